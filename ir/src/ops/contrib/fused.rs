//! Products of matrices with what optimizers fuse into them.

use super::super::broadcast::require_broadcasts_to;
use super::super::matmul::{gemm_infer, product_extents};
use super::super::row::{FLOATS, ROW};
use super::activate::Act;
use super::{MICROSOFT, T, rounded};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::matmul::{self, Activation};
use reference::movement::transpose;
use tensor::DType::{self, F64};
use tensor::{ErrorKind, Result, Tensor};

/// Rounding of sums of many products.
const SUMS: Tol = Tol::Rel(1e-5);
const PRODUCT: [AttrDef; 5] = [
    attr("alpha", AttrKind::Float(1.0)),
    attr("transA", AttrKind::Int(0)),
    attr("transB", AttrKind::Int(0)),
    attr("transBatchA", AttrKind::Int(0)),
    attr("transBatchB", AttrKind::Int(0)),
];
const ACTIVATION: [AttrDef; 3] = [
    attr("activation_alpha", AttrKind::FloatOpt),
    attr("activation_beta", AttrKind::FloatOpt),
    attr("activation_gamma", AttrKind::FloatOpt),
];

/// The activation whose name is in slot `at`, its parameters in the three after it.
fn act(attrs: &Attrs, at: usize) -> std::result::Result<Act, std::string::String> {
    let slot = |name: &str| ["alpha", "beta", "gamma"].iter().position(|&n| n == name);
    Act::named(attrs.str(at).unwrap_or(""), |name, _| attrs.float(at + 1 + slot(name)?))
}

/// Refuses activations that are not known.
fn check_act(c: &InferCtx, at: usize) -> Result<Act> {
    let refuse = |why| c.error(ErrorKind::Unsupported, format!("{}: {why}", c.def.name));
    act(c.attrs, at).map_err(refuse)
}

fn act_of(c: &RefCtx, at: usize) -> Result<Act> {
    act(c.attrs, at).map_err(|why| tensor::Diagnostic::new(ErrorKind::Unsupported, why))
}

/// How a product takes its operands: the last two axes swapped, and the first axis moved before the last one.
struct Turned {
    trans: [bool; 2],
    batch: [bool; 2],
}

impl Turned {
    fn of(attrs: &Attrs) -> Turned {
        let on = |i| attrs.int(i).is_some_and(|v| v != 0);
        Turned { trans: [on(1), on(2)], batch: [on(3), on(4)] }
    }
    /// The axes of operand `i` in the order in which batches come first, where that differs.
    fn perm(&self, i: usize, rank: usize) -> Option<Vec<usize>> {
        let moved = self.batch[i] && rank > 2;
        moved.then(|| (1..rank - 1).chain([0, rank - 1]).collect())
    }
}

fn infer_product(c: &mut InferCtx) -> Result<()> {
    let (t, dtype) = (Turned::of(c.attrs), c.dtype(0)?);
    let (Some(a), Some(b)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let turned = |s: Shape, i: usize| match t.perm(i, s.len()) {
        Some(perm) => perm.into_iter().map(|a| s[a]).collect(),
        None => s,
    };
    let s = product_extents(c, (turned(a, 0), turned(b, 1)), t.trans.into())?;
    c.set(0, dtype, s);
    Ok(())
}

/// The product in f64, before it is rounded.
fn product(c: &RefCtx) -> Result<Tensor> {
    let t = Turned::of(c.attrs);
    let turned = |i: usize| {
        let x = rounded(c.input(i)?, F64);
        t.perm(i, x.shape().len()).map_or(Ok(x.clone()), |perm| transpose(&x, &perm))
    };
    let alpha = c.attrs.float(0).unwrap_or(1.0);
    matmul::fused_matmul(&turned(0)?, &turned(1)?, &[], t.trans.into(), alpha.into(), Activation::None)
}

/// Our fused product, so that a scale counts before the product is rounded.
fn expand_product(x: &mut Expansion) -> Result<(Value, DType)> {
    let t = Turned::of(x.attrs());
    let mut ins = Vec::new();
    for i in 0..2 {
        let v = x.need(i)?;
        let rank = x.tensor(v)?.1.len();
        let perm: Option<Vec<i64>> =
            t.perm(i, rank).map(|p| p.into_iter().filter_map(|a| i64::try_from(a).ok()).collect());
        ins.push(Some(perm.map_or(v, |perm| x.transpose(v, &perm))));
    }
    let [a, b] = t.trans.map(|on| Attr::Int(on.into()));
    let attrs = [("transA", a), ("transB", b), ("alpha", x.attrs().get(0).clone())];
    let dtype = x.tensor(x.need(0)?)?.0;
    Ok((x.own("FusedMatMul", &ins, &attrs), dtype))
}

fn gemm_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let act = act_of(c, 4)?;
    let dtype = c.input(0)?.dtype();
    let wide = |t: &Tensor| rounded(t, F64);
    let (alpha, beta) = (c.attrs.float(0).unwrap_or(1.0), c.attrs.float(1).unwrap_or(1.0));
    let trans = (c.attrs.int(2).is_some_and(|v| v != 0), c.attrs.int(3).is_some_and(|v| v != 0));
    let added = c.opt(2).map(wide);
    let y = matmul::gemm(&wide(c.input(0)?), &wide(c.input(1)?), added.as_ref(), trans, alpha.into(), beta.into())?;
    Ok(vec![rounded(&act.apply(&y), dtype)])
}

fn expand_gemm(x: &mut Expansion) -> Result<Vec<Value>> {
    let act = act(x.attrs(), 4).map_err(|why| tensor::Diagnostic::new(ErrorKind::Unsupported, why))?;
    let (a, b, added) = (x.need(0)?, x.need(1)?, x.input(2));
    let flag = |i: usize| Attr::Int(x.attrs().int(i).is_some_and(|v| v != 0).into());
    let mut attrs = vec![("alpha", x.attrs().get(0).clone()), ("transA", flag(2)), ("transB", flag(3))];
    let dtype = x.tensor(a)?.0;
    let fused = act.fused();
    let y = if added.is_none() || x.attrs().float(1) == Some(1.0) {
        attrs.extend(fused.iter().flatten().cloned());
        x.own("FusedMatMul", &[Some(a), Some(b), added], &attrs)
    } else {
        attrs.push(("beta", x.attrs().get(1).clone()));
        let y = x.op_opt("Gemm", &[Some(a), Some(b), added], &attrs, 1)[0];
        return Ok(vec![act.expand(x, y, dtype)]);
    };
    Ok(vec![if fused.is_some() { y } else { act.expand(x, y, dtype) }])
}

fn infer_gelu_product(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let (Some(a), Some(b)) = (c.shape(0), c.shape(1)) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let s = product_extents(c, (a, b), (false, false))?;
    if let Some(from) = c.shape(2) {
        require_broadcasts_to(c, &from, &s, "the bias")?;
    }
    c.set(0, dtype, s);
    Ok(())
}

const FUSED: OpDef = OpDef {
    name: "FusedMatMul",
    domain: MICROSOFT,
    inputs: &[req("A", "T"), req("B", "T")],
    outputs: &[req("Y", "T")],
    attrs: &PRODUCT,
    dtypes: &[T],
    infer: infer_product,
    reference: Some(|c| Ok(vec![rounded(&product(c)?, c.input(0)?.dtype())])),
    lower: &[Expand(|x| Ok(vec![expand_product(x)?.0]))],
    tolerance: SUMS,
    cases: &[
        "[3,4];[4,5]",
        "[2,3,4];[4,5] alpha=0.25",
        "[2,4,3];[2,5,4] transA=1 transB=1",
        "[3,2,4];[2,4,5] transBatchA=1",
        "[4,2,3];[2,4,5] transA=1 transBatchA=1 alpha=-2",
        "[3,2,6,4];[4,2,6,5] transBatchA=1 transBatchB=1",
        "[2,6,3,4];[5,2,6,4] transBatchB=1 transB=1",
        "[4];[4,5] transA=1 transBatchA=1",
        "[2,0,4];[4,5]",
        "[2,3,0];[0,5]",
    ],
    ..ROW
};

/// The rows.
pub static ROWS: &[OpDef] = &[
    // Y = alpha · op(A) · op(B)
    FUSED,
    // The former name.
    OpDef {
        name: "TransposeMatMul",
        attrs: &[PRODUCT[0], PRODUCT[1], PRODUCT[2]],
        cases: &["[2,3,4];[4,5] alpha=0.5", "[2,4,3];[2,5,4] transA=1 transB=1"],
        ..FUSED
    },
    // Y = activation(alpha · op(A) · op(B))
    OpDef {
        name: "FusedMatMulActivation",
        attrs: &[
            PRODUCT[0],
            PRODUCT[1],
            PRODUCT[2],
            PRODUCT[3],
            PRODUCT[4],
            attr("activation", AttrKind::Str("")),
            ACTIVATION[0],
            ACTIVATION[1],
            ACTIVATION[2],
            attr("activation_axis", AttrKind::IntOpt),
        ],
        infer: |c| {
            check_act(c, 5)?;
            if let Some(axis) = c.attrs.int(9) {
                let text = format!("{}: activation_axis={axis} is of no activation that is known", c.def.name);
                return Err(c.error(ErrorKind::Unsupported, text));
            }
            infer_product(c)
        },
        reference: Some(|c| Ok(vec![rounded(&act_of(c, 5)?.apply(&product(c)?), c.input(0)?.dtype())])),
        lower: &[Expand(|x| {
            let act = act(x.attrs(), 5).map_err(|why| tensor::Diagnostic::new(ErrorKind::Unsupported, why))?;
            let (y, dtype) = expand_product(x)?;
            Ok(vec![act.expand(x, y, dtype)])
        })],
        cases: &["[2,3,4];[4,5] activation=Relu", "[3,2,4];[2,4,5] transBatchA=1 activation=Elu activation_alpha=0.5"],
        ..FUSED
    },
    // Y = activation(alpha · op(A) · op(B) + beta · C)
    OpDef {
        name: "FusedGemm",
        domain: MICROSOFT,
        inputs: &[req("A", "T"), req("B", "T"), opt("C", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[
            attr("alpha", AttrKind::Float(1.0)),
            attr("beta", AttrKind::Float(1.0)),
            attr("transA", AttrKind::Int(0)),
            attr("transB", AttrKind::Int(0)),
            attr("activation", AttrKind::Str("")),
            ACTIVATION[0],
            ACTIVATION[1],
            ACTIVATION[2],
        ],
        dtypes: &[T],
        infer: |c| {
            check_act(c, 4)?;
            gemm_infer(c)
        },
        reference: Some(gemm_ref),
        lower: &[Expand(expand_gemm)],
        tolerance: SUMS,
        cases: &[
            "[3,4];[4,5];[5]",
            "[3,4];[4,5] activation=Relu",
            "[4,3];[5,4];[3,1] transA=1 transB=1 activation=Relu",
            "[0,4];[4,5];[5] activation=Relu",
            "[3,4];[4,5] activation=LeakyRelu activation_alpha=0.2 alpha=0.5",
            "[3,4];[4,5];[] activation=Tanh beta=0.5",
            "[3,4];[4,5] activation=Sigmoid",
            "[3,4];[4,5] activation=Silu",
            "[3,4];[4,5] activation=Softplus",
            "[3,4];[4,5] activation=Softsign",
            "[3,4];[4,5] activation=Elu",
            "[3,4];[4,5] activation=ThresholdedRelu activation_alpha=0.3",
            "[3,4];[4,5] activation=HardSigmoid activation_alpha=0.3 activation_beta=0.4",
            "[3,4];[4,5] activation=Selu activation_alpha=1.5 activation_gamma=1.1",
            "[3,4];[4,5] activation=ScaledTanh activation_alpha=1.5 activation_beta=0.4",
            "[3,4];[4,5] activation=ParametricSoftplus activation_alpha=1.5 activation_beta=0.4",
        ],
        ..ROW
    },
    // Y = gelu(X · W + bias) by tanh
    OpDef {
        name: "GemmFastGelu",
        domain: MICROSOFT,
        inputs: &[req("X", "T"), req("W", "T"), opt("bias", "T")],
        outputs: &[req("Y", "T")],
        dtypes: &[("T", FLOATS)],
        infer: infer_gelu_product,
        reference: Some(|c| {
            let [x, w] = [0, 1].map(|i| c.input(i).map(|t| rounded(t, F64)));
            let bias = c.opt(2).map(|t| rounded(t, F64));
            let bias: Vec<&Tensor> = bias.iter().collect();
            let y = matmul::fused_matmul(&x?, &w?, &bias, (false, false), 1.0, Activation::GeluTanh)?;
            Ok(vec![rounded(&y, c.input(0)?.dtype())])
        }),
        lower: &[Expand(|x| {
            let ins = [Some(x.need(0)?), Some(x.need(1)?), x.input(2)];
            Ok(vec![x.own("FusedMatMul", &ins, &[("activation", Attr::Str("gelu_tanh".into()))])])
        })],
        tolerance: SUMS,
        cases: &["[2,3,4];[4,5];[5]", "[3,4];[4,5]"],
        ..ROW
    },
];
