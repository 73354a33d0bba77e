//! Rows for unit tests: shape rules without meaning, so that the e-graph is tested apart from the operators.

use ir::lowering::Candidate;
use ir::op::{AttrKind, InferCtx, OpDef, OpTraits, attr, opt, req, var};
use ir::ops::broadcast::set_broadcast;
use ir::ops::row::{MOVES, ROW};
use ir::{Module, Onnx, Registry, Shape, Type};
use std::sync::Arc;
use tensor::{DType, Result};

fn same(c: &mut InferCtx) -> Result<()> {
    let t = c.ty(0).clone();
    c.set_type(0, t);
    Ok(())
}
fn binary(c: &mut InferCtx) -> Result<()> {
    let d = c.dtype(0)?;
    set_broadcast(c, 0, d, &[0, 1])
}
fn transpose(c: &mut InferCtx) -> Result<()> {
    let (d, s) = (c.dtype(0)?, c.shape(0).unwrap_or_default());
    let perm: Vec<usize> = match c.attrs.ints(0) {
        Some(p) => p.iter().map(|&a| a as usize).collect(),
        None => (0..s.len()).rev().collect(),
    };
    let out: Shape = perm.iter().map(|&a| s[a]).collect();
    c.set(0, d, out);
    Ok(())
}
fn product(c: &mut InferCtx, ta: bool, tb: bool) -> Result<()> {
    let (d, mut a, mut b) = (c.dtype(0)?, c.shape(0).unwrap_or_default(), c.shape(1).unwrap_or_default());
    let (n, m) = (a.len(), b.len());
    if ta {
        a.swap(n - 2, n - 1);
    }
    if tb {
        b.swap(m - 2, m - 1);
    }
    let mut out: Shape = if n >= m { a[..n - 2].into() } else { b[..m - 2].into() };
    out.extend([a[n - 2], b[m - 1]]);
    c.set(0, d, out);
    Ok(())
}
fn fused_matmul(c: &mut InferCtx) -> Result<()> {
    let (ta, tb) = (c.attrs.int(0) == Some(1), c.attrs.int(1) == Some(1));
    product(c, ta, tb)
}
fn attention(c: &mut InferCtx) -> Result<()> {
    let (d, mut q, v) = (c.dtype(0)?, c.shape(0).unwrap_or_default(), c.shape(2).unwrap_or_default());
    if let (Some(x), Some(&e)) = (q.last_mut(), v.last()) {
        *x = e;
    }
    c.set(0, d, q);
    Ok(())
}
fn mean(c: &mut InferCtx) -> Result<()> {
    let (d, mut s) = (c.dtype(0)?, c.shape(0).unwrap_or_default());
    let one = c.dims.constant(1);
    for a in c.const_ints(1).unwrap_or_default() {
        let a = c.axis(a, s.len())?;
        s[a] = one;
    }
    c.set(0, d, s);
    Ok(())
}
fn reshape(c: &mut InferCtx) -> Result<()> {
    let (d, s) = (c.dtype(0)?, c.shape(0).unwrap_or_default());
    let spec = c.const_ints(1).unwrap_or_default();
    let total = c.dims.product(s.iter().copied());
    let mut out: Shape = Shape::new();
    for (i, &x) in spec.iter().enumerate() {
        out.push(match x {
            0 => s[i],
            x => c.dims.constant(x),
        });
    }
    if let Some(i) = spec.iter().position(|&x| x == -1) {
        let rest = c.dims.product(out.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, &d)| d));
        out[i] = c.dims.floordiv(total, rest);
    }
    c.set(0, d, out);
    Ok(())
}
fn halves(c: &mut InferCtx) -> Result<()> {
    for i in 0..c.n_outs {
        let t = c.ty(0).clone();
        c.set_type(i, t);
    }
    Ok(())
}

const F: &[(&str, &[DType])] = &[("T", &[DType::F32])];

fn row(name: &'static str, n_ins: usize, infer: fn(&mut InferCtx) -> Result<()>) -> OpDef {
    const INS: [ir::op::Param; 3] = [req("a", "T"), req("b", "T"), req("c", "T")];
    OpDef { name, inputs: &INS[..n_ins], outputs: &[const { req("y", "T") }], dtypes: F, infer, ..ROW }
}

fn unary(name: &'static str) -> OpDef {
    OpDef { lower: &[Candidate::Pointwise(|_, _, _| Err("a row for tests".into()))], ..row(name, 1, same) }
}

/// The rows.
pub fn registry() -> Arc<Registry> {
    let mut rows: Vec<OpDef> = ["Add", "Sub", "Mul", "Div", "Pow"].into_iter().map(|n| row(n, 2, binary)).collect();
    rows.extend(["Relu", "Sigmoid", "Tanh", "Erf", "Sqrt", "Reciprocal", "Identity", "Neg", "Exp"].map(unary));
    rows.extend([
        OpDef { attrs: &[const { attr("perm", AttrKind::Ints) }], traits: MOVES, ..row("Transpose", 1, transpose) },
        row("MatMul", 2, |c| product(c, false, false)),
        OpDef { traits: MOVES, ..row("Reshape", 2, reshape) },
        OpDef { attrs: &[const { attr("keepdims", AttrKind::Int(1)) }], ..row("ReduceMean", 2, mean) },
        OpDef { attrs: &[const { attr("axis", AttrKind::Int(-1)) }], ..row("Softmax", 1, same) },
        OpDef {
            inputs: &[const { req("x", "T") }, const { req("g", "T") }, const { opt("b", "T") }],
            attrs: &[const { attr("axis", AttrKind::Int(-1)) }, const { attr("epsilon", AttrKind::Float(1e-5)) }],
            ..row("LayerNormalization", 2, same)
        },
        OpDef {
            attrs: &[const { attr("axis", AttrKind::Int(-1)) }, const { attr("epsilon", AttrKind::Float(1e-5)) }],
            ..row("RMSNormalization", 2, same)
        },
        OpDef { domain: "hip", ..unary("Silu") },
        OpDef { domain: "hip", attrs: &[const { attr("approximate", AttrKind::Str("none")) }], ..unary("Gelu") },
        OpDef {
            domain: "hip",
            inputs: &[
                const { req("a", "T") },
                const { req("b", "T") },
                const { opt("c", "T") },
                const { opt("r", "T") },
            ],
            attrs: &[
                const { attr("transA", AttrKind::Int(0)) },
                const { attr("transB", AttrKind::Int(0)) },
                const { attr("alpha", AttrKind::Float(1.0)) },
                const { attr("activation", AttrKind::Str("")) },
                const { attr("act_lo", AttrKind::FloatOpt) },
                const { attr("act_hi", AttrKind::FloatOpt) },
            ],
            ..row("FusedMatMul", 2, fused_matmul)
        },
        OpDef {
            domain: "hip",
            inputs: &[
                const { req("q", "T") },
                const { req("k", "T") },
                const { req("v", "T") },
                const { opt("m", "T") },
            ],
            attrs: &[
                const { attr("scale", AttrKind::Float(1.0)) },
                const { attr("k_trans", AttrKind::Int(0)) },
                const { attr("mask_selects", AttrKind::Int(0)) },
                const { attr("nan_to_zero", AttrKind::Int(0)) },
                const { attr("groups", AttrKind::Int(1)) },
            ],
            ..row("Attention", 3, attention)
        },
        OpDef { outputs: &[const { var("ys", "T") }], ..row("Halves", 1, halves) },
        OpDef { traits: OpTraits { random: true, ..OpTraits::NONE }, ..row("Noise", 1, same) },
    ]);
    Arc::new(Registry::with_rows(rows))
}

/// Types of a straight graph, by the rows' rules.
pub fn infer(m: &mut Module<Onnx>) {
    let registry = m.registry.clone();
    for n in m.graph().order.clone() {
        let node = m.graph().nodes[n].clone();
        let types: Vec<Option<(Type, Option<ir::consts::ConstId>)>> =
            node.ins.iter().map(|v| v.map(|v| (m.graph().values[v].ty.clone(), m.graph().as_const(v)))).collect();
        let ins: Vec<Option<ir::op::InferIn<'_>>> = types
            .iter()
            .map(|t| t.as_ref().map(|(ty, konst)| ir::op::InferIn { ty, values: None, konst: *konst }))
            .collect();
        let attrs = m.attrs[node.attrs].clone();
        let mut symbols = vec![];
        let mut cx = InferCtx {
            def: &registry[node.op],
            attrs: &attrs,
            dims: &mut m.dims,
            consts: &m.consts,
            ins: &ins,
            n_outs: node.outs.len(),
            outs: vec![Type::Unknown; node.outs.len()],
            out_values: vec![None; node.outs.len()],
            out_partial: vec![Default::default(); node.outs.len()],
            guards: vec![],
            path: &node.origin.0,
            demands: Default::default(),
            symbols: &mut symbols,
            n_symbols: 0,
        };
        (registry[node.op].infer)(&mut cx).expect("test rows accept");
        let outs = cx.outs;
        for (v, t) in node.outs.iter().zip(outs) {
            m.graph_mut().values[*v].ty = t;
        }
    }
}
