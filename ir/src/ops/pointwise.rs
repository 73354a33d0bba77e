//! Small words for scalar expressions, shared by the rows that make them.

use crate::lowering::{NodeCtx, Plan};
use crate::nest::{BinOp, Expr, ExprId, Nest, UnOp, compute_dtype};
use smallvec::SmallVec;
use tensor::DType;

/// What a pointwise candidate returns.
pub type Exprs = Plan<SmallVec<[ExprId; 1]>>;

/// One result.
pub fn one(e: ExprId) -> Exprs {
    Ok(SmallVec::from_iter([e]))
}

/// Argument `i`, or a refusal.
pub fn arg(args: &[Option<ExprId>], i: usize) -> Plan<ExprId> {
    args.get(i).copied().flatten().ok_or_else(|| format!("operand {i} is missing").into())
}

/// The compute type of result `i`.
pub fn out_type(c: &NodeCtx, i: usize) -> Plan<DType> {
    let d = c.outs.get(i).ok_or("the result is missing")?.dtype;
    compute_dtype(d).ok_or_else(|| format!("nothing can be computed with {d}").into())
}

impl Nest {
    /// A constant in the compute type of `like`.
    pub fn num_like(&mut self, v: f64, like: ExprId) -> ExprId {
        let d = self.expr_dtype(like);
        self.num(v, d)
    }
    /// `a op v`, the constant in the type of `a`.
    pub fn bin_num(&mut self, op: BinOp, a: ExprId, v: f64) -> ExprId {
        let v = self.num_like(v, a);
        self.bin(op, a, v)
    }
    /// `v op a`, the constant in the type of `a`.
    pub fn num_bin(&mut self, op: BinOp, v: f64, a: ExprId) -> ExprId {
        let v = self.num_like(v, a);
        self.bin(op, v, a)
    }
    /// `c ? a : b`.
    pub fn select(&mut self, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
        self.expr(Expr::Select(c, a, b))
    }
    /// `a` in a compute type; itself when it has it.
    pub fn cast(&mut self, a: ExprId, to: DType) -> ExprId {
        if self.expr_dtype(a) == to { a } else { self.expr(Expr::Cast(a, to)) }
    }
    /// `1 / (1 + e^(-a))`.
    pub fn sigmoid(&mut self, a: ExprId) -> ExprId {
        let n = self.un(UnOp::Neg, a);
        let e = self.un(UnOp::Exp, n);
        let d = self.bin_num(BinOp::Add, e, 1.0);
        self.num_bin(BinOp::Div, 1.0, d)
    }
    /// `min(max(a, lo), hi)`.
    pub fn clamp(&mut self, a: ExprId, lo: f64, hi: f64) -> ExprId {
        let x = self.bin_num(BinOp::Max, a, lo);
        self.bin_num(BinOp::Min, x, hi)
    }
    /// `ln(1 + a)` for `a` from 0 to 1. Of a small `a` the sum `1 + a` keeps little or nothing: what it lost is added to the
    /// logarithm, whose slope there is 1.
    fn log_1p(&mut self, a: ExprId) -> ExprId {
        let p = self.bin_num(BinOp::Add, a, 1.0);
        let l = self.un(UnOp::Log, p);
        let kept = self.bin_num(BinOp::Sub, p, 1.0);
        let lost = self.bin(BinOp::Sub, a, kept);
        self.bin(BinOp::Add, l, lost)
    }
    /// `ln(1 + e^a) = max(a, 0) + ln(1 + e^(-|a|))`.
    pub fn softplus(&mut self, a: ExprId) -> ExprId {
        let abs = self.un(UnOp::Abs, a);
        let n = self.un(UnOp::Neg, abs);
        let e = self.un(UnOp::Exp, n);
        let l = self.log_1p(e);
        let m = self.bin_num(BinOp::Max, a, 0.0);
        self.bin(BinOp::Add, m, l)
    }
    /// `a/2 · (1 + erf(a/√2))`.
    pub fn gelu(&mut self, a: ExprId) -> ExprId {
        let s = self.bin_num(BinOp::Mul, a, std::f64::consts::FRAC_1_SQRT_2);
        let e = self.un(UnOp::Erf, s);
        let p = self.bin_num(BinOp::Add, e, 1.0);
        let h = self.bin_num(BinOp::Mul, a, 0.5);
        self.bin(BinOp::Mul, h, p)
    }
    /// `a/2 · (1 + tanh(√(2/π) · (a + 0.044715·a³)))`.
    pub fn gelu_tanh(&mut self, a: ExprId) -> ExprId {
        let a2 = self.bin(BinOp::Mul, a, a);
        let a3 = self.bin(BinOp::Mul, a2, a);
        let c = self.bin_num(BinOp::Mul, a3, 0.044715);
        let s = self.bin(BinOp::Add, a, c);
        let t = self.bin_num(BinOp::Mul, s, (2.0 / std::f64::consts::PI).sqrt());
        let t = self.un(UnOp::Tanh, t);
        let p = self.bin_num(BinOp::Add, t, 1.0);
        let h = self.bin_num(BinOp::Mul, a, 0.5);
        self.bin(BinOp::Mul, h, p)
    }
}
