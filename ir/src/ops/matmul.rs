//! Rows of matrix products: MatMul, Gemm and our fused forms of product and attention.

use super::activate::{self, ACTIVATION_ATTRS};
use super::broadcast::{broadcast, require_broadcasts_to};
use super::cast::int_path;
use super::loops::{Builder, inner, outer};
use super::row::{FLOATS, ROW};
use crate::lowering::{CallSpec, Candidate, IntArg, NodeCtx, Operand, Plan};
use crate::nest::{BinOp, Combiner, Coord, Expr, ExprId, Nest};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::matmul::{self, Activation};
use tensor::{DType, DType::*, DimId, DimPool, ErrorKind, Result};

const PRODUCTS: &[DType] = &[F32, F16, BF16, F64, I32, I64, U32, U64];
const T: (&str, &[DType]) = ("T", PRODUCTS);
const TF: (&str, &[DType]) = ("T", FLOATS);
/// Sums of many products: rounding grows with their number.
const SUMS: Tol = Tol::Rel(1e-5);

const MATMUL: OpDef = OpDef {
    name: "MatMul",
    inputs: &[req("A", "T"), req("B", "T")],
    outputs: &[req("Y", "T")],
    infer: |c| {
        let s = product_shape(c, (0, 1), (false, false))?;
        set(c, s)
    },
    reference: Some(|c| Ok(vec![matmul::matmul(c.input(0)?, c.input(1)?)?])),
    lower: &[
        Candidate::Kernel(|c| gemm_call(c, &Product::default())),
        Candidate::Loops(|c| product_loops(c, &Product::default())),
    ],
    tolerance: SUMS,
    cases: &[
        "[3,4];[4,5]",
        "[2,3,4];[4,5]",
        "[2,1,3,4];[5,4,2]",
        "[4];[4]",
        "[4];[2,4,3]",
        "[2,3,4];[4]",
        "[3,0];[0,2]",
    ],
    ..ROW
};
const GEMM: OpDef = OpDef {
    name: "Gemm",
    outputs: &[req("Y", "T")],
    attrs: &[
        attr("alpha", AttrKind::Float(1.0)),
        attr("beta", AttrKind::Float(1.0)),
        attr("transA", AttrKind::Int(0)),
        attr("transB", AttrKind::Int(0)),
    ],
    infer: gemm_infer,
    reference: Some(|c| {
        let (alpha, beta) = (c.attrs.float(0).unwrap_or(1.0), c.attrs.float(1).unwrap_or(1.0));
        let trans = (c.attrs.int(2) == Some(1), c.attrs.int(3) == Some(1));
        Ok(vec![matmul::gemm(c.input(0)?, c.input(1)?, c.opt(2), trans, alpha.into(), beta.into())?])
    }),
    lower: &[
        Candidate::Kernel(|c| {
            let p = gemm_product(c);
            if p.beta != 1.0 && c.has(2) {
                return Err(format!("beta is {}", p.beta).into());
            }
            gemm_call(c, &p)
        }),
        Candidate::Loops(|c| {
            let p = gemm_product(c);
            product_loops(c, &p)
        }),
    ],
    tolerance: SUMS,
    cases: &[
        "[3,4];[4,5];[5]",
        "[4,3];[5,4];[3,1] transA=1 transB=1",
        "[3,4];[4,5];[1]",
        "[3,4];[4,5];[]",
        "[3,4];[4,5];[5] alpha=0.5 beta=-1",
    ],
    ..ROW
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef { until: 8, dtypes: &[TF], ..MATMUL },
    OpDef { since: 9, dtypes: &[T], ..MATMUL },
    // Before opset 7 C has the result's shape where broadcast=1 does not say otherwise
    OpDef {
        until: 6,
        inputs: &[req("A", "T"), req("B", "T"), req("C", "T")],
        attrs: &[
            GEMM.attrs[0],
            GEMM.attrs[1],
            GEMM.attrs[2],
            GEMM.attrs[3],
            attr("broadcast", AttrKind::Int(0)),
            attr("consumed_inputs", AttrKind::Ints),
        ],
        dtypes: &[("T", &[F32, F16, F64])],
        infer: |c| {
            gemm_infer(c)?;
            let result = c.outs.first().and_then(|t| t.shape().cloned());
            if let (false, Some(a), Some(b)) = (c.attrs.int(4) == Some(1), c.shape(2), result) {
                if a.len() != b.len() {
                    return Err(c.error(ErrorKind::Shape, "Gemm before opset 7: C needs broadcast=1 to repeat"));
                }
                a.iter().zip(&b).try_for_each(|(&a, &b)| c.require_eq(a, b, "C without broadcast=1"))?;
            }
            Ok(())
        },
        cases: &[
            "[3,4];[4,5];[3,5]",
            "[3,4];[4,5];[5] broadcast=1",
            "[4,3];[5,4];[1] broadcast=1 transA=1 transB=1 beta=0",
        ],
        ..GEMM
    },
    OpDef { since: 7, until: 8, inputs: &[req("A", "T"), req("B", "T"), req("C", "T")], dtypes: &[TF], ..GEMM },
    OpDef { since: 9, until: 10, inputs: &[req("A", "T"), req("B", "T"), req("C", "T")], dtypes: &[T], ..GEMM },
    OpDef { since: 11, inputs: &[req("A", "T"), req("B", "T"), opt("C", "T")], dtypes: &[T], ..GEMM },
    OpDef {
        name: "FusedMatMul",
        domain: HIP_DOMAIN,
        inputs: &[req("A", "T"), req("B", "T"), opt("bias", "T"), opt("residual", "T")],
        outputs: &[req("Y", "T")],
        attrs: &[
            attr("transA", AttrKind::Int(0)),
            attr("transB", AttrKind::Int(0)),
            attr("alpha", AttrKind::Float(1.0)),
            ACTIVATION_ATTRS[0],
            ACTIVATION_ATTRS[1],
            ACTIVATION_ATTRS[2],
        ],
        dtypes: &[TF],
        infer: |c| {
            activate::check(c, 3)?;
            let trans = (c.attrs.int(0) == Some(1), c.attrs.int(1) == Some(1));
            let s = product_shape(c, (0, 1), trans)?;
            for (i, what) in [(2, "the bias"), (3, "the residual")] {
                if let (Some(from), Some(to)) = (c.shape(i), &s) {
                    require_broadcasts_to(c, &from, to, what)?;
                }
            }
            set(c, s)
        },
        reference: Some(|c| {
            let trans = (c.attrs.int(0) == Some(1), c.attrs.int(1) == Some(1));
            let alpha = c.attrs.float(2).unwrap_or(1.0);
            let added: Vec<_> = [c.opt(2), c.opt(3)].into_iter().flatten().collect();
            let act = activate::of_ref(c, 3)?;
            Ok(vec![matmul::fused_matmul(c.input(0)?, c.input(1)?, &added, trans, alpha.into(), act)?])
        }),
        lower: &[
            Candidate::Kernel(|c| {
                let p = fused_product(c)?;
                gemm_call(c, &p)
            }),
            Candidate::Loops(|c| {
                let p = fused_product(c)?;
                product_loops(c, &p)
            }),
        ],
        tolerance: SUMS,
        cases: &[
            "[2,3,4];[4,5];[5] activation=relu",
            "[3,4];[5,4] transB=1 alpha=0.25",
            "[2,3,4];[2,4,5];_;[2,3,5]",
            "[2,4,3];[4,5];[3,1];[3,5] transA=1 activation=gelu",
        ],
        ..ROW
    },
    OpDef {
        name: "Attention",
        domain: HIP_DOMAIN,
        inputs: &[req("q", "T"), req("k", "T"), req("v", "T"), opt("mask", "T")],
        outputs: &[req("y", "T")],
        // The rows of q are `groups` times those of the mask, which repeat. With mask_selects an element of the mask that is not 0 takes
        // the score's place, with nan_to_zero a weight that is NaN counts as 0, as those of a row do whose scores are all -∞.
        attrs: &[
            attr("scale", AttrKind::Float(1.0)),
            attr("k_trans", AttrKind::Int(0)),
            attr("mask_selects", AttrKind::Int(0)),
            attr("nan_to_zero", AttrKind::Int(0)),
            attr("groups", AttrKind::Int(1)),
        ],
        dtypes: &[TF],
        infer: attention_infer,
        reference: Some(|c| {
            let is = |i| c.attrs.int(i) == Some(1);
            let scale = c.attrs.float(0).unwrap_or(1.0).into();
            let how = matmul::Attend { scale, k_trans: is(1), selects: is(2), nan_to_zero: is(3) };
            Ok(vec![matmul::attention(c.input(0)?, c.input(1)?, c.input(2)?, c.opt(3), &how)?])
        }),
        lower: &[Candidate::Kernel(attention_call)],
        tolerance: SUMS,
        cases: &[
            "[2,3,4,8];[2,3,5,8];[2,3,5,6]",
            "[2,2,4,8];[2,2,8,4];[2,2,4,8];[2,1,1,4] k_trans=1",
            "[2,4,8];[2,5,8];[2,5,8];[4,5]{0,0,-9,0,-9,0,-9} mask_selects=1",
            "[2,4,8];[2,5,8];[2,5,8];[2,5]{0,-2,-inf,0,1,-1,-9} scale=0.5 groups=2",
            "[2,2,6,4];[2,2,3,4];[2,2,3,4];[2,1,3,3]{-inf,-inf,-inf,0,-inf,-9,1} nan_to_zero=1 groups=2",
            "[4,8];[5,8];[5,8];[1,5] groups=2",
        ],
        ..ROW
    },
];

/// What is multiplied and added, for all rows of this file.
#[derive(Clone, Copy, Debug)]
struct Product {
    trans: (bool, bool),
    alpha: f64,
    beta: f64,
    act: Activation,
}

impl Default for Product {
    fn default() -> Self {
        Product { trans: (false, false), alpha: 1.0, beta: 1.0, act: Activation::None }
    }
}

fn gemm_product(c: &NodeCtx) -> Product {
    let f = |i| f64::from(c.attrs.float(i).unwrap_or(1.0));
    Product {
        trans: (c.attrs.int(2) == Some(1), c.attrs.int(3) == Some(1)),
        alpha: f(0),
        beta: f(1),
        act: Activation::None,
    }
}

fn fused_product(c: &NodeCtx) -> Plan<Product> {
    let act = activate::from_attrs(c.attrs, 3).map_err(|e| e.message().to_string())?;
    let trans = (c.attrs.int(0) == Some(1), c.attrs.int(1) == Some(1));
    Ok(Product { trans, alpha: c.attrs.float(2).unwrap_or(1.0).into(), beta: 1.0, act })
}

fn set(c: &mut InferCtx, s: Option<Shape>) -> Result<()> {
    let dtype = c.dtype(0)?;
    match s {
        Some(s) => c.set(0, dtype, s),
        None => c.set_unranked(0, dtype),
    }
    Ok(())
}

/// Extents of a product of the operands `of`: batch axes broadcast, the inner extents must agree, operands of rank 1 lose their axis.
pub(super) fn product_shape(c: &mut InferCtx, of: (usize, usize), trans: (bool, bool)) -> Result<Option<Shape>> {
    let (Some(a), Some(b)) = (c.shape(of.0), c.shape(of.1)) else { return Ok(None) };
    product_extents(c, (a, b), trans).map(Some)
}

/// As [`product_shape`], of operands with these extents.
pub(super) fn product_extents(c: &mut InferCtx, of: (Shape, Shape), trans: (bool, bool)) -> Result<Shape> {
    let (mut a, mut b) = of;
    if a.is_empty() || b.is_empty() {
        return Err(c.error(ErrorKind::Shape, format!("{} needs operands of at least 1 axis", c.def.name)));
    }
    let swap = |s: &mut Shape| {
        let r = s.len();
        if r > 1 {
            s.swap(r - 2, r - 1);
        }
    };
    if trans.0 {
        swap(&mut a);
    }
    if trans.1 {
        swap(&mut b);
    }
    let k = a[a.len() - 1];
    let k2 = if b.len() > 1 { b[b.len() - 2] } else { b[0] };
    c.require_eq(k, k2, "inner extents")?;
    let batches =
        [&a[..a.len().saturating_sub(2)], &b[..b.len().saturating_sub(2)]].map(|s| s.iter().copied().collect());
    let mut out: Shape = broadcast(c, &batches)?;
    if a.len() > 1 {
        out.push(a[a.len() - 2]);
    }
    if b.len() > 1 {
        out.push(b[b.len() - 1]);
    }
    Ok(out)
}

pub(super) fn gemm_infer(c: &mut InferCtx) -> Result<()> {
    for i in 0..2 {
        if c.shape(i).is_some_and(|s| s.len() != 2) {
            return Err(c.error(ErrorKind::Shape, "Gemm multiplies matrices of 2 axes"));
        }
    }
    let trans = (c.attrs.int(2) == Some(1), c.attrs.int(3) == Some(1));
    let s = product_shape(c, (0, 1), trans)?;
    if let (Some(from), Some(to)) = (c.shape(2), &s) {
        require_broadcasts_to(c, &from, to, "C")?;
    }
    set(c, s)
}

fn attention_infer(c: &mut InferCtx) -> Result<()> {
    let (Some(q), Some(k), Some(v)) = (c.shape(0), c.shape(1), c.shape(2)) else { return set(c, None) };
    let r = q.len();
    if r < 2 || k.len() < 2 || v.len() < 2 {
        return Err(c.error(ErrorKind::Shape, "Attention needs operands of at least 2 axes"));
    }
    let (mut t, mut d) = (k[k.len() - 2], k[k.len() - 1]);
    if c.attrs.int(1) == Some(1) {
        std::mem::swap(&mut t, &mut d);
    }
    c.require_eq(q[r - 1], d, "q and k must have equal rows")?;
    c.require_eq(t, v[v.len() - 2], "k and v must have as many rows")?;
    let batches = [&q, &k, &v].map(|s| s[..s.len() - 2].iter().copied().collect());
    let mut out: Shape = broadcast(c, &batches)?;
    out.push(q[r - 2]);
    if let Some(mut m) = c.shape(3) {
        let mut scores = out.clone();
        if let Some(row) = m.len().checked_sub(2)
            && !is_one(c.dims, m[row])
        {
            let groups = c.dims.constant(c.attrs.int(4).unwrap_or(1));
            m[row] = c.dims.mul(m[row], groups);
        }
        scores.push(t);
        require_broadcasts_to(c, &m, &scores, "the mask")?;
    }
    out.push(v[v.len() - 1]);
    set(c, Some(out))
}

/// Which catalog entry; other types have none.
fn kernel_for(dtype: DType, f32_: &'static str, f16: &'static str) -> Plan<&'static str> {
    match dtype {
        F32 => Ok(f32_),
        F16 => Ok(f16),
        d => Err(format!("no kernel for {d}").into()),
    }
}

/// Whether only index 0 is ever read along an axis.
fn is_one(p: &DimPool, d: DimId) -> bool {
    p.is_at_most_one(d)
}

/// The stride of `axis` of read buffer `buffer`; 0 where the extent is 1, so that whatever stride a view gives such an axis is
/// never used.
fn stride(p: &mut DimPool, s: &Shape, buffer: usize, axis: usize) -> IntArg {
    match is_one(p, s[axis]) {
        true => IntArg::Dim(p.constant(0)),
        false => IntArg::ReadStride { buffer, axis },
    }
}

/// The stride of several axes seen as one: that of the innermost whose extent is not 1. The kernel's caller makes sure that the
/// others are packed around it, because they are not among the arguments.
fn joint_stride(p: &mut DimPool, s: &Shape, buffer: usize, axes: std::ops::Range<usize>) -> IntArg {
    let axis = axes.rev().find(|&a| !is_one(p, s[a]));
    axis.map_or_else(|| IntArg::Dim(p.constant(0)), |axis| IntArg::ReadStride { buffer, axis })
}

fn batch_of(s: &Shape) -> &[DimId] {
    &s[..s.len().saturating_sub(2)]
}

/// How the batch axes of an operand meet those of the result: `Some(true)` when the operand has one matrix for all, `Some(false)`
/// when it has one for each, `None` when it repeats along some axes only. Extents that are neither 1 nor known to be equal
/// are equal by a guard of the shape rule.
fn repeats(p: &DimPool, s: &[DimId], to: &[DimId]) -> Option<bool> {
    if s.iter().all(|&d| is_one(p, d)) {
        return Some(true);
    }
    let own = |i: usize| (i + s.len()).checked_sub(to.len()).is_some_and(|k| !is_one(p, s[k]));
    (0..to.len()).all(|i| is_one(p, to[i]) || own(i)).then_some(false)
}

/// A call of the GEMM kernel: `y = act(alpha · op(a) · op(b) + bias + residual)`.
///
/// Batch axes become one axis: both operands have the same, or one has none and repeats. Where `b` has none, the batch axes of `a`
/// become rows.
fn gemm_call(c: &mut NodeCtx, p: &Product) -> Plan<CallSpec> {
    let (a, b, y) = (c.need(0)?, c.need(1)?, c.outs[0].clone());
    let kernel = kernel_for(y.dtype, "gemm.f32", "gemm.f16")?;
    let (sa, sb) = (a.shape.clone(), b.shape.clone());
    let (ra, rb) = (sa.len(), sb.len());
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    let no = IntArg::Dim(zero);
    // Axes of rows and columns; a vector on the left has no row axis, one on the right no column axis.
    let (a_row, a_col) = match (ra, p.trans.0) {
        (1, _) => (None, 0),
        (r, false) => (Some(r - 2), r - 1),
        (r, true) => (Some(r - 1), r - 2),
    };
    let (b_row, b_col) = match (rb, p.trans.1) {
        (1, _) => (0, None),
        (r, false) => (r - 2, Some(r - 1)),
        (r, true) => (r - 1, Some(r - 2)),
    };
    let (ba, bb) = (batch_of(&sa).to_vec(), batch_of(&sb).to_vec());
    let m = a_row.map_or(one, |x| sa[x]);
    let n = b_col.map_or(one, |x| sb[x]);
    let k = sa[a_col];
    let n_matrix = usize::from(a_row.is_some()) + usize::from(b_col.is_some());
    let by: Shape = y.shape[..y.shape.len() - n_matrix].into();
    let in_part = "the kernel has one batch axis, and these batch axes broadcast in part";
    let (a_repeats, b_repeats) = (repeats(c.dims, &ba, &by).ok_or(in_part)?, repeats(c.dims, &bb, &by).ok_or(in_part)?);
    let (bias, residual) = (c.ins.get(2).cloned().flatten(), c.ins.get(3).cloned().flatten());
    let bias_rows = bias.as_ref().map(|o| bias_strides(c, o, a_row.is_some(), b_col.is_some())).transpose()?;
    let r_batch = residual.as_ref().map(|o| o.shape[..o.shape.len().saturating_sub(2)].to_vec());
    let r_repeats = match &r_batch {
        Some(s) => repeats(c.dims, s, &by).ok_or("the residual's batch axes broadcast in part")?,
        None => false,
    };
    let one_matrix = by.iter().all(|&d| is_one(c.dims, d));
    let own_rows = bias_rows.is_some_and(|(row, _)| row != no) || (r_batch.is_some() && r_repeats);
    let folded = b_repeats && !p.trans.0 && (one_matrix || !own_rows);
    let all = c.dims.product(by.iter().copied());
    let (batch, rows, a_batch, a_row_stride, b_batch);
    if folded {
        (batch, rows) = (one, c.dims.mul(all, m));
        (a_batch, b_batch) = (no, no);
        a_row_stride = a_row.map_or(no, |r| joint_stride(c.dims, &sa, 0, 0..r + 1));
    } else {
        (batch, rows) = (all, m);
        a_batch = if a_repeats { no } else { joint_stride(c.dims, &sa, 0, 0..ba.len()) };
        b_batch = if b_repeats { no } else { joint_stride(c.dims, &sb, 1, 0..bb.len()) };
        a_row_stride = a_row.map_or(no, |r| stride(c.dims, &sa, 0, r));
    }
    let a_col_stride = stride(c.dims, &sa, 0, a_col);
    let b_row_stride = stride(c.dims, &sb, 1, b_row);
    let b_col_stride = b_col.map_or(no, |x| stride(c.dims, &sb, 1, x));
    let mut reads = vec![Some(0), Some(1), None, None];
    let (bias_row, bias_col) = bias_rows.unwrap_or((no, no));
    if bias.is_some() {
        reads[2] = Some(2);
    }
    let (mut residual_batch, mut residual_row) = (no, no);
    if let Some(r) = residual {
        reads[3] = Some(3);
        let rank = r.shape.len();
        if rank < 2 || n_matrix < 2 || is_one(c.dims, r.shape[rank - 1]) != is_one(c.dims, n) {
            return Err("the residual does not have the result's rows".into());
        }
        if folded && is_one(c.dims, r.shape[rank - 2]) && !is_one(c.dims, m) {
            return Err("the residual repeats one row".into());
        }
        if folded {
            residual_row = joint_stride(c.dims, &r.shape, 3, 0..rank - 1);
        } else {
            residual_batch = if r_repeats { no } else { joint_stride(c.dims, &r.shape, 3, 0..rank - 2) };
            residual_row = stride(c.dims, &r.shape, 3, rank - 2);
        }
    }
    let (code, params) = activate::code(p.act);
    let code = IntArg::Dim(c.dims.constant(code));
    let ints = vec![
        IntArg::Dim(batch),
        IntArg::Dim(rows),
        IntArg::Dim(n),
        IntArg::Dim(k),
        a_batch,
        a_row_stride,
        a_col_stride,
        b_batch,
        b_row_stride,
        b_col_stride,
        bias_row,
        bias_col,
        residual_batch,
        residual_row,
        code,
    ];
    let scalars = vec![p.alpha, params[0], params[1]];
    Ok(CallSpec { kernel, reads, writes: vec![0], ints, scalars, scratch: vec![] })
}

/// Row and column stride of a bias.
fn bias_strides(c: &mut NodeCtx, bias: &Operand, rows: bool, cols: bool) -> Plan<(IntArg, IntArg)> {
    let (s, r) = (&bias.shape, bias.shape.len());
    let no = IntArg::Dim(c.dims.constant(0));
    let lead = r.saturating_sub(usize::from(rows) + usize::from(cols));
    if s[..lead].iter().any(|&d| !is_one(c.dims, d)) {
        return Err("the bias differs between matrices of the batch".into());
    }
    let col = if cols && r > 0 { stride(c.dims, s, 2, r - 1) } else { no };
    let row_axis = if rows { r.checked_sub(if cols { 2 } else { 1 }) } else { None };
    let row = row_axis.map_or(no, |axis| stride(c.dims, s, 2, axis));
    Ok((row, col))
}

/// Coordinates of an operand that broadcasts to the result, aligned at the last axes.
fn aligned(b: &mut Builder, s: &Shape, rank: usize) -> Vec<Coord> {
    let pad = rank - s.len();
    s.iter()
        .enumerate()
        .map(|(i, &d)| if is_one(b.c.dims, d) { b.fixed_at(0) } else { b.along(outer(pad + i)) })
        .collect()
}

/// Where the factors of the point's terms lie in operands of shapes `x` and `w`; `inner` becomes the axis that they share.
pub(super) fn factors(b: &mut Builder, x: &Shape, w: &Shape, trans: (bool, bool)) -> (Vec<Coord>, Vec<Coord>) {
    let (ra, rb) = (x.len(), w.len());
    let rank = b.nest.outer.len();
    let n_matrix = usize::from(ra > 1) + usize::from(rb > 1);
    let n_batch = rank - n_matrix;
    let k_axis =
        |r: usize, first: bool, trans: bool| if r == 1 || first == trans { r.saturating_sub(2) } else { r - 1 };
    let ka = if ra == 1 { 0 } else { k_axis(ra, true, trans.0) };
    let kb = if rb == 1 { 0 } else { k_axis(rb, false, trans.1) };
    b.nest.inner = vec![x[ka]];
    let coords = |b: &mut Builder, s: &Shape, k: usize, free: usize| -> Vec<Coord> {
        let r = s.len();
        let lead = r.saturating_sub(2);
        (0..r)
            .map(|i| {
                if i == k {
                    b.along(inner(0))
                } else if i >= lead {
                    b.along(outer(free))
                } else if is_one(b.c.dims, s[i]) {
                    b.fixed_at(0)
                } else {
                    b.along(outer(n_batch + i - lead))
                }
            })
            .collect()
    };
    (coords(b, x, ka, n_batch), coords(b, w, kb, rank.saturating_sub(1)))
}

/// The product as one loop nest: always right, for every type.
fn product_loops(c: &mut NodeCtx, p: &Product) -> Plan<Nest> {
    let (x, w) = (c.need(0)?, c.need(1)?);
    let mut b = Builder::over_result(c)?;
    let rank = b.nest.outer.len();
    let (at, w_at) = factors(&mut b, &x.shape, &w.shape, p.trans);
    let e = b.load(0, at)?;
    let f = b.load(1, w_at)?;
    let t = b.bin(BinOp::Mul, e, f);
    let mut y = b.reduce([(Combiner::Sum, t)])[0];
    let exact = b.nest.expr_dtype(y);
    // Integers are scaled as f64 and truncated once, at the end.
    let d = if exact.is_float() || (p.alpha, p.beta) == (1.0, 1.0) { exact } else { F64 };
    let scaled = |b: &mut Builder, e: ExprId, by: f64| {
        let e = if b.nest.expr_dtype(e) == d { e } else { b.nest.expr(Expr::Cast(e, d)) };
        if by == 1.0 {
            return e;
        }
        let k = b.nest.num(by, d);
        b.bin(BinOp::Mul, e, k)
    };
    y = scaled(&mut b, y, p.alpha);
    for i in 2..b.c.ins.len() {
        if let Some(o) = b.c.ins[i].clone() {
            let at = aligned(&mut b, &o.shape, rank);
            let e = b.load(i, at)?;
            let e = scaled(&mut b, e, p.beta);
            y = b.bin(BinOp::Add, y, e);
        }
    }
    if d != exact {
        let whole = b.nest.expr(Expr::Cast(y, int_path(exact)));
        y = b.nest.expr(Expr::Cast(whole, exact));
    }
    let y = activate::apply(&mut b.nest, p.act, y)?;
    Ok(b.store(y))
}

/// A call of the attention kernel. The last four axes are batch, head, row, column; further batch axes are one with the first.
fn attention_call(c: &mut NodeCtx) -> Plan<CallSpec> {
    let (q, k, v, y) = (c.need(0)?, c.need(1)?, c.need(2)?, c.outs[0].clone());
    let kernel = kernel_for(y.dtype, "attention.f32", "attention.f16")?;
    let r = y.shape.len();
    let (zero, one) = (c.dims.constant(0), c.dims.constant(1));
    let no = IntArg::Dim(zero);
    let heads = if r > 2 { y.shape[r - 3] } else { one };
    let lead: Vec<DimId> = y.shape[..r.saturating_sub(3)].to_vec();
    let batch = c.dims.product(lead.iter().copied());
    // Batch and head strides of an operand of rank `s.len()`: 0 where it repeats.
    let outer_strides = |c: &mut NodeCtx, s: &Shape, buffer: usize| -> Plan<[IntArg; 2]> {
        let r2 = s.len();
        let head = if r2 > 2 { stride(c.dims, s, buffer, r2 - 3) } else { no };
        let own = &s[..r2.saturating_sub(3)];
        match repeats(c.dims, own, &lead).ok_or("the batch axes broadcast in part")? {
            true => Ok([no, head]),
            false => Ok([joint_stride(c.dims, s, buffer, 0..own.len()), head]),
        }
    };
    let rows = |c: &mut NodeCtx, s: &Shape, buffer: usize, back: usize| match s.len().checked_sub(back) {
        Some(axis) => stride(c.dims, s, buffer, axis),
        None => no,
    };
    let (mut t, mut k_row, mut k_col) = (k.shape[k.shape.len() - 2], 2, 1);
    if c.attrs.int(1) == Some(1) {
        (t, k_row, k_col) = (k.shape[k.shape.len() - 1], 1, 2);
    }
    let d = q.shape[q.shape.len() - 1];
    let e = v.shape[v.shape.len() - 1];
    let mut ints: Vec<IntArg> = [batch, heads, y.shape[r - 2], t, d, e].map(IntArg::Dim).to_vec();
    ints.extend(outer_strides(c, &q.shape, 0)?);
    ints.push(rows(c, &q.shape, 0, 2));
    ints.extend(outer_strides(c, &k.shape, 1)?);
    ints.push(rows(c, &k.shape, 1, k_row));
    ints.push(rows(c, &k.shape, 1, k_col));
    ints.extend(outer_strides(c, &v.shape, 2)?);
    ints.push(rows(c, &v.shape, 2, 2));
    let mut reads = vec![Some(0), Some(1), Some(2), None];
    match c.ins.get(3).cloned().flatten() {
        Some(m) => {
            reads[3] = Some(3);
            ints.extend(outer_strides(c, &m.shape, 3)?);
            ints.push(rows(c, &m.shape, 3, 2));
            ints.push(rows(c, &m.shape, 3, 1));
        }
        None => ints.extend([no; 4]),
    }
    let flag = |c: &NodeCtx, i| if c.attrs.int(i) == Some(1) { IntArg::Dim(one) } else { no };
    let mask_rows = c.ins.get(3).and_then(|m| m.as_ref()).map_or(one, |m| match m.shape.len().checked_sub(2) {
        Some(row) => m.shape[row],
        None => one,
    });
    ints.extend([flag(c, 2), IntArg::Dim(mask_rows), flag(c, 3)]);
    let scale = f64::from(c.attrs.float(0).unwrap_or(1.0));
    Ok(CallSpec { kernel, reads, writes: vec![0], ints, scalars: vec![scale], scratch: vec![] })
}
