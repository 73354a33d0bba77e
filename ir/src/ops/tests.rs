//! Every row's cases: inferred shapes against the reference's, generated nests against the reference's values.
//!
//! Each case runs for the element types of the row, with extents as constants and with extents as symbols.

mod channels;
mod empty;
mod indices;
mod pad;
mod random;
mod refused;
mod run_axes;
mod sampled;

use crate::cases::{self, Case, Random};
use crate::consts::{Const, ConstId};
use crate::graph::{Guard, Module, Onnx};
use crate::lowering::{Candidate, NodeCtx, Operand, Part, ViewOp, build_pointwise};
use crate::nest::{Expr, Nest};
use crate::nest_eval;
use crate::op::{InferCtx, InferIn, OpDef, RefCtx, Registry, Tol};
use crate::ty::{Shape, Type};
use std::collections::BTreeMap;
use tensor::dims::Origin;
use tensor::{DType, DimId, DimPool, PrimaryMap, SymId, Tensor};

/// Rows with a reference function: control flow has none.
fn families() -> impl Iterator<Item = &'static OpDef> {
    super::FAMILIES.iter().copied().flatten().filter(|def| def.reference.is_some())
}

/// What a check of one node found: how many nests were compared, or what is wrong.
type Found = Result<usize, String>;

/// How extents are given to shape rules and candidates.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Extents {
    Constant,
    /// Equal extents above 1 are one symbol.
    Symbolic,
    /// The same, and elements of small integer operands are symbols too: the model computes them.
    Computed,
}

/// A node with operands: what shape rules and candidates see, and the values behind it.
struct Prepared {
    dims: DimPool,
    values: BTreeMap<SymId, i64>,
    consts: PrimaryMap<ConstId, Const>,
    tensors: Vec<Option<Tensor>>,
    operands: Vec<Option<Operand>>,
}

/// Operands of a case, as the model would have them.
fn prepare(
    def: &OpDef,
    case: &Case,
    types: &BTreeMap<&str, DType>,
    extents: Extents,
    seed: u64,
) -> Result<Prepared, String> {
    let mut random = Random::new(seed);
    let mut dims = DimPool::new();
    let mut known: BTreeMap<usize, DimId> = BTreeMap::new();
    let mut values: BTreeMap<SymId, i64> = BTreeMap::new();
    let mut consts: PrimaryMap<ConstId, Const> = PrimaryMap::new();
    let mut tensors = vec![];
    let mut operands: Vec<Option<Operand>> = vec![];
    for (i, o) in case.operands.iter().enumerate() {
        let param = def.inputs.get(i).or(def.inputs.last()).ok_or("the row has no operands")?;
        let Some(o) = o else {
            tensors.push(None);
            operands.push(None);
            continue;
        };
        let t = o.tensor(types.get(param.ty).copied().unwrap_or(DType::F32), &mut random);
        // What has a type of its own, and single values where extents are constant, are constants of the model.
        let own = o.dtype.is_some() || (extents == Extents::Constant && !o.fill.is_empty() && o.shape.is_empty());
        let is_const = own && extents != Extents::Computed;
        let mut extent = |n: usize| match extents {
            Extents::Symbolic | Extents::Computed if n > 1 && !own => {
                *known.entry(n).or_insert_with(|| symbol(&mut dims, &mut values, "n", n as i64, 0))
            }
            _ => dims.constant(n as i64),
        };
        let shape: Shape = t.shape().iter().map(|&n| extent(n)).collect();
        let konst = is_const.then(|| consts.push(Const::from_tensor("", &t)));
        let small = own && t.shape().len() <= 1 && matches!(t.dtype(), DType::I64 | DType::I32);
        let mut element = |v: i64| match is_const {
            true => dims.constant(v),
            false => symbol(&mut dims, &mut values, "e", v, i64::MIN),
        };
        let elements = small.then(|| t.to_i64_vec().into_iter().map(&mut element).collect());
        operands.push(Some(Operand { dtype: t.dtype(), shape, values: elements, konst }));
        tensors.push(Some(t));
    }
    Ok(Prepared { dims, values, consts, tensors, operands })
}

/// A symbol that is `value` at run time and known to be at least `lo`.
fn symbol(dims: &mut DimPool, values: &mut BTreeMap<SymId, i64>, name: &str, value: i64, lo: i64) -> DimId {
    let d = dims.symbol(name, Origin::Unknown);
    if let Some(s) = dims.as_symbol(d) {
        dims.sym_mut(s).lo = lo;
        values.insert(s, value);
    }
    d
}

impl Prepared {
    /// Runs the row's shape rule.
    fn infer(&mut self, def: &OpDef, case: &Case) -> tensor::Result<(Vec<Type>, Vec<Guard>)> {
        let in_types: Vec<Option<Type>> = self
            .operands
            .iter()
            .map(|o| Some(Type::tensor(o.as_ref()?.dtype, o.as_ref()?.shape.iter().copied())))
            .collect();
        let ins: Vec<Option<InferIn>> = self
            .operands
            .iter()
            .zip(&in_types)
            .map(|(o, t)| {
                Some(InferIn { ty: t.as_ref()?, values: o.as_ref()?.values.as_ref(), konst: o.as_ref()?.konst })
            })
            .collect();
        let mut ctx = InferCtx {
            def,
            attrs: &case.attrs,
            dims: &mut self.dims,
            consts: &self.consts,
            ins: &ins,
            n_outs: case.n_outs,
            outs: vec![Type::Unknown; case.n_outs],
            out_values: vec![None; case.n_outs],
            out_partial: vec![Default::default(); case.n_outs],
            guards: vec![],
            demands: Default::default(),
            path: "/case",
            symbols: &mut vec![],
            n_symbols: 0,
        };
        (def.infer)(&mut ctx)?;
        Ok((ctx.outs, ctx.guards))
    }

    /// What is wrong with the values according to the guards.
    fn check_guards(&self, guards: &[Guard]) -> Result<(), String> {
        let env = |s: SymId| self.values.get(&s).copied();
        for g in guards {
            let (a, b) = (self.dims.eval(g.lhs, &env), self.dims.eval(g.rhs, &env));
            let holds = match g.rel {
                crate::graph::Rel::Eq => a == b,
                crate::graph::Rel::Le => a.clone().ok() <= b.clone().ok(),
                crate::graph::Rel::Ne => a != b,
            };
            if !holds {
                return Err(format!("guard {:?} does not hold: {a:?}, {b:?}", g.why));
            }
        }
        Ok(())
    }

    /// Runs a nest on the operands.
    fn eval(&self, nest: &Nest) -> tensor::Result<Vec<Tensor>> {
        let reads: Vec<&Tensor> = self.tensors.iter().flatten().collect();
        nest_eval::eval(nest, &self.dims, &|s: SymId| self.values.get(&s).copied(), &reads)
    }
}

/// What the first loop nest of a node computes, after its guards hold.
fn run_loops(def: &OpDef, case: &Case, p: &mut Prepared) -> Result<Vec<Tensor>, String> {
    let (types, guards) = p.infer(def, case).map_err(|e| format!("infer: {e}"))?;
    p.check_guards(&guards)?;
    let out = |t: &Type| Some(Operand { dtype: t.dtype()?, shape: t.shape()?.clone(), values: None, konst: None });
    let outs = types.iter().map(out).collect::<Option<Vec<_>>>().ok_or("a result has no type")?;
    let mut ctx =
        NodeCtx { dims: &mut p.dims, attrs: &case.attrs, ins: &p.operands, outs: &outs, consts: &p.consts, below: &[] };
    let loops = def.lower.iter().find_map(|c| if let Candidate::Loops(f) = c { Some(f) } else { None });
    let nest = loops.ok_or("the row has no loops")?(&mut ctx).map_err(|r| r.0)?;
    p.eval(&nest).map_err(|e| format!("{e}\n{nest:?}"))
}

/// Checks one node.
fn check(def: &OpDef, case: &Case, types: &BTreeMap<&str, DType>, extents: Extents, seed: u64) -> Found {
    let mut p = prepare(def, case, types, extents, seed)?;
    let reference = def.reference.ok_or("the row has no reference function")?;
    let of_reference = RefCtx { def, attrs: &case.attrs, consts: &p.consts, ins: &p.tensors, n_outs: case.n_outs };
    let results = reference(&of_reference).map_err(|e| format!("reference: {e}"))?;
    // Shapes.
    let (types_out, guards) = p.infer(def, case).map_err(|e| format!("infer: {e}"))?;
    // An extent that only the result shows.
    for (ty, got) in types_out.iter().zip(&results) {
        for (&d, &n) in ty.shape().into_iter().flatten().zip(got.shape()) {
            if let Some(s) = p.dims.as_symbol(d).filter(|&s| p.dims.sym(s).origin == Origin::DeviceResult) {
                p.values.entry(s).or_insert(n as i64);
            }
        }
    }
    p.check_guards(&guards)?;
    let Prepared { mut dims, values, consts, tensors, operands } = p;
    let env = |s: SymId| values.get(&s).copied();
    let mut outs = vec![];
    for (i, ty) in types_out.iter().enumerate() {
        let got = results.get(i).ok_or_else(|| format!("the reference has no result {i}"))?;
        let shape = ty.shape().ok_or_else(|| format!("result {i} has no shape"))?.clone();
        let want: Vec<usize> = shape.iter().map(|&d| dims.eval(d, &env).map_or(usize::MAX, |v| v as usize)).collect();
        if ty.dtype() != Some(got.dtype()) || want != got.shape() {
            return Err(format!("result {i}: inferred {} {want:?}, got {got:?}", ty.display(&dims)));
        }
        outs.push(Operand { dtype: got.dtype(), shape, values: None, konst: None });
    }
    // Values.
    let (mut compared, mut moved) = (0, false);
    let mut refusals = vec![];
    for candidate in def.lower {
        let mut ctx =
            NodeCtx { dims: &mut dims, attrs: &case.attrs, ins: &operands, outs: &outs, consts: &consts, below: &[] };
        let nest: Result<Nest, _> = match candidate {
            Candidate::Pointwise(f) => build_pointwise(&mut ctx, *f),
            Candidate::Loops(f) => f(&mut ctx),
            Candidate::View(f) => {
                let view = match f(&mut ctx) {
                    Ok(v) => v,
                    Err(r) => {
                        refusals.push(r.0);
                        continue;
                    }
                };
                moved = true;
                let x = tensors[0].as_ref().ok_or("a view of nothing")?;
                for (i, want) in results.iter().take(case.n_outs).enumerate() {
                    let got = seen(&mut dims, &env, x, &view, i, (want.dtype(), want.shape()))?;
                    near(&got, want, Tol::Exact).map_err(|e| format!("view {i}: {e}"))?;
                }
                continue;
            }
            Candidate::Assemble(f) => {
                let parts = f(&mut ctx).map_err(|r| format!("the parts refuse: {}", r.0))?;
                let got = assembled(&dims, &env, &tensors, &parts, &results[0])?;
                near(&got, &results[0], Tol::Exact).map_err(|e| format!("parts: {e}"))?;
                moved = true;
                continue;
            }
            Candidate::Update(f) => {
                let got = updated(f(&mut ctx), &dims, &env, &tensors, &results[0])?;
                near(&got, &results[0], Tol::Exact).map_err(|e| format!("update: {e}"))?;
                compared += 1;
                continue;
            }
            Candidate::Expand(_) => {
                let got = expanded(def, case, &tensors, extents).map_err(|e| format!("expanded: {e}"))?;
                for (i, (got, want)) in got.iter().zip(&results).enumerate() {
                    near(got, want, def.tolerance).map_err(|e| format!("result {i} of the expansion: {e}"))?;
                }
                compared += 1;
                continue;
            }
            Candidate::Kernel(f) => {
                // Whether the kernel computes this is tested where there are kernels; here the row must not fail.
                let _ = f(&mut ctx);
                continue;
            }
            _ => continue,
        };
        match nest {
            Ok(nest) => {
                let reads: Vec<&Tensor> = tensors.iter().flatten().collect();
                let got = nest_eval::eval(&nest, &dims, &env, &reads).map_err(|e| format!("{e}\n{nest:?}"))?;
                for (i, (got, want)) in got.iter().zip(&results).enumerate() {
                    near(got, want, def.tolerance).map_err(|e| format!("result {i}: {e}"))?;
                }
                compared += 1;
            }
            Err(r) => refusals.push(r.0),
        }
    }
    let tested = |c: &Candidate| !matches!(c, Candidate::Host | Candidate::Kernel(_));
    let host = def.lower.iter().any(|c| matches!(c, Candidate::Host));
    // Packed elements have no address: rows that move them refuse.
    let packed = outs.iter().chain(operands.iter().flatten()).any(|o| o.dtype.size().is_none());
    if compared == 0 && !moved && def.lower.iter().any(tested) && !host && !packed {
        return Err(format!("every candidate refuses: {refusals:?}"));
    }
    Ok(compared)
}

/// Operand 0 in the place of the result, with what the nest of an update stores.
fn updated(
    nest: crate::lowering::Plan<Nest>,
    dims: &DimPool,
    env: &impl Fn(SymId) -> Option<i64>,
    tensors: &[Option<Tensor>],
    like: &Tensor,
) -> Result<Tensor, String> {
    let nest = nest.map_err(|r| r.0)?;
    let past = tensors[0].as_ref().ok_or("an update of nothing")?;
    let axis = (0..like.shape().len()).find(|&a| past.shape()[a] != like.shape()[a]).unwrap_or(0);
    let held = reference::attention::grown(past, axis, like.shape()[axis]).map_err(|e| e.to_string())?;
    let loads_past = |e: &Expr| matches!(e, Expr::Load(a) | Expr::LoadIf { access: a, .. } if a.operand == 0);
    if nest.exprs.iter().any(loads_past) {
        return Err("an update loads the past, which need no longer be there".into());
    }
    let mut buffers: Vec<Tensor> = tensors.iter().flatten().cloned().chain([held]).collect();
    nest_eval::eval_buffers(&nest, dims, env, &mut buffers).map_err(|e| format!("{e}\n{nest:?}"))?;
    Ok(buffers.pop().unwrap_or_else(|| past.clone()))
}

/// What the operators compute that a node is expanded to.
fn expanded(def: &OpDef, case: &Case, tensors: &[Option<Tensor>], extents: Extents) -> tensor::Result<Vec<Tensor>> {
    let mut m: Module<Onnx> = Module::new(Registry::builtin());
    let (mut ins, mut given) = (vec![], vec![]);
    for (i, (o, t)) in case.operands.iter().zip(tensors).enumerate() {
        let (Some(o), Some(t)) = (o, t) else {
            ins.push(None);
            continue;
        };
        let extent = |(axis, &n): (usize, &usize)| {
            let name = format!("n{n}");
            match (extents, m.dims.find_symbol(&name)) {
                _ if n < 2 || o.dtype.is_some() || extents == Extents::Constant => m.dims.constant(n as i64),
                (_, Some(s)) => m.dims.sym_dim(s),
                _ => m.dims.symbol(&name, Origin::Input { input: i as u32, axis: axis as u32 }),
            }
        };
        let ty = Type::tensor(t.dtype(), t.shape().iter().enumerate().map(extent).collect::<Vec<_>>());
        ins.push(Some(if o.dtype.is_some() && extents != Extents::Computed {
            let c = m.consts.push(Const::from_tensor("", t));
            m.graph_mut().add_const(c, ty, "")
        } else {
            given.push(t.clone());
            m.graph_mut().add_input(ty, format!("x{i}"))
        }));
    }
    let op = m.registry.find(def.domain, def.name, def.since).expect("a row of the registry");
    let attrs = m.attrs.intern(case.attrs.clone());
    let outs = (0..case.n_outs).map(|i| (Type::Unknown, format!("y{i}").into()));
    let n = m.graph_mut().add_node(op, attrs, ins, outs, [], crate::graph::Origin("/case".into()));
    m.graph_mut().outputs = m.graph().nodes[n].outs.to_vec();
    crate::infer::infer(&mut m)?;
    assert!(crate::expand::expand(&mut m)?, "{} is not expanded", def.full_name());
    crate::verify::verify_onnx(&m)?;
    crate::interp::run(&m, &given)
}

/// Result `i` of a view.
fn seen(
    dims: &mut DimPool,
    env: &impl Fn(SymId) -> Option<i64>,
    x: &Tensor,
    view: &ViewOp,
    i: usize,
    (dtype, shape): (DType, &[usize]),
) -> Result<Tensor, String> {
    let rank = x.shape().len();
    let eval = |d: DimId| dims.eval(d, env).map_err(|e| e.to_string());
    // The position along every axis of the operand, for a coordinate of the result.
    let at: Box<dyn Fn(&[usize]) -> Vec<usize>> = match view {
        ViewOp::Reshape => return Ok(x.reshaped(shape)),
        ViewOp::Bits => return Tensor::new(dtype, shape, x.bytes().clone()).map_err(|e| e.to_string()),
        ViewOp::Permute(p) => Box::new(|c| (0..rank).map(|a| c[p.iter().position(|&q| q == a).unwrap_or(0)]).collect()),
        ViewOp::Broadcast => {
            Box::new(|c| (0..rank).map(|a| if x.shape()[a] == 1 { 0 } else { c[c.len() - rank + a] }).collect())
        }
        ViewOp::Slice(s) => {
            let s: Vec<(i64, i64)> = s.iter().map(|s| Ok((eval(s.0)?, eval(s.1)?))).collect::<Result<_, String>>()?;
            Box::new(move |c| c.iter().zip(&s).map(|(&c, s)| (s.0 + c as i64 * s.1) as usize).collect())
        }
        ViewOp::Select { axis, at, axes } => {
            let (axis, axes, at) = (*axis, *axes, eval(*at)? as usize);
            Box::new(move |c| c[..axis].iter().copied().chain([at]).chain(c[axis + axes..].iter().copied()).collect())
        }
        ViewOp::Parts(all) => {
            let s: Vec<i64> = all[i].iter().map(|&d| eval(d)).collect::<Result<_, _>>()?;
            Box::new(move |c| c.iter().zip(&s).map(|(&c, s)| s.wrapping_add(c as i64) as usize).collect())
        }
    };
    let (mut w, v) = (tensor::Writer::new(x.dtype(), shape), x.view());
    for k in 0..shape.iter().product() {
        let p = at(&coordinate(shape, k)).iter().zip(x.shape()).fold(0, |p, (c, d)| p * d + c);
        if x.dtype().is_float() { w.push_f64(v.f64_at(p)) } else { w.push_i64(v.i64_at(p)) }
    }
    Ok(w.finish())
}

/// The row-major `k`-th coordinate.
fn coordinate(shape: &[usize], mut k: usize) -> Vec<usize> {
    let mut c: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&d| {
            let i = k % d;
            k /= d;
            i
        })
        .collect();
    c.reverse();
    c
}

/// Operands laid into a result.
fn assembled(
    dims: &DimPool,
    env: &impl Fn(SymId) -> Option<i64>,
    tensors: &[Option<Tensor>],
    parts: &[Part],
    want: &Tensor,
) -> Result<Tensor, String> {
    let mut found: Vec<Option<(usize, usize)>> = vec![None; want.n_elems()];
    for p in parts {
        let x = tensors[p.operand].as_ref().ok_or("a part of nothing")?;
        let start: Vec<i64> = p.start.iter().map(|&d| dims.eval(d, env).unwrap_or(-1)).collect();
        for k in 0..x.n_elems() {
            let c = coordinate(x.shape(), k);
            let at = (0..c.len()).fold(0, |at, a| at * want.shape()[a] + c[a] + start[a] as usize);
            if found[at].replace((p.operand, k)).is_some() {
                return Err("two parts overlap".into());
            }
        }
    }
    let mut w = tensor::Writer::new(want.dtype(), want.shape());
    for f in found {
        let (i, k) = f.ok_or("an element has no part")?;
        let v = tensors[i].as_ref().ok_or("a part of nothing")?.view();
        if want.dtype().is_float() { w.push_f64(v.f64_at(k)) } else { w.push_i64(v.i64_at(k)) }
    }
    Ok(w.finish())
}

/// Whether two tensors agree within a row's tolerance.
fn near(got: &Tensor, want: &Tensor, tolerance: Tol) -> Result<(), String> {
    if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) {
        return Err(format!("{got:?} is not {want:?}"));
    }
    let (a, b) = (reference::data::f64s(got), reference::data::f64s(want));
    let greatest = b.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
    let ceiling = match (tolerance, want.dtype()) {
        (Tol::Exact, _) => 0.0,
        (Tol::Rel(_), d) if !d.is_float() => 0.0,
        (Tol::Rel(_), DType::F16) => 2e-3 * greatest,
        (Tol::Rel(_), DType::BF16) => 1.6e-2 * greatest,
        (Tol::Rel(r), _) => r * greatest,
    };
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= ceiling;
        if !same {
            return Err(format!("element {i} is {x}, should be {y}: {got:?} for {want:?}"));
        }
    }
    Ok(())
}

/// Element types for the row's variables: each variable through all of its types, the others at their first; all pairs for two.
fn assignments(def: &OpDef) -> Vec<BTreeMap<&'static str, DType>> {
    let of_inputs: Vec<_> = def.dtypes.iter().filter(|(v, _)| def.inputs.iter().any(|p| p.ty == *v)).collect();
    let first: BTreeMap<&str, DType> = of_inputs.iter().map(|(v, d)| (*v, d[0])).collect();
    let mut all = vec![first.clone()];
    let numeric = |d: &&DType| **d != DType::String;
    match of_inputs.as_slice() {
        [(v, a), (w, b)] => {
            for x in a.iter().filter(numeric) {
                for y in b.iter().filter(numeric) {
                    all.push(BTreeMap::from([(*v, *x), (*w, *y)]));
                }
            }
        }
        vars => {
            for (v, list) in vars {
                for d in list.iter().filter(numeric) {
                    all.push(first.clone().into_iter().chain([(*v, *d)]).collect());
                }
            }
        }
    }
    all.dedup();
    all
}

/// A seed that no other row or case moves.
fn seed(def: &OpDef, text: &str) -> u64 {
    let name = format!("{}-{} {text}", def.full_name(), def.since);
    name.bytes().fold(0, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn every_family_is_in_the_list() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let all =
        |folder: &std::path::Path| std::fs::read_dir(folder).unwrap().flatten().map(|e| e.path()).collect::<Vec<_>>();
    let files = all(&folder).into_iter().flat_map(|p| if p.is_dir() { all(&p) } else { vec![p] });
    let rows =
        |p: &std::path::PathBuf| std::fs::read_to_string(p).is_ok_and(|text| text.contains("\npub static ROWS:"));
    let n = files.filter(rows).count();
    assert_eq!(n, super::FAMILIES.len(), "a file with rows is missing in FAMILIES (ir/src/ops/mod.rs)");
}

/// Elementwise operators make equal elements of equal ones, wherever they stand; movers hand operand 0's on.
#[test]
fn rows_are_what_their_traits_say() {
    let (mut n, mut wrong) = (0, vec![]);
    for def in families() {
        let views = def.lower.iter().any(|c| matches!(c, Candidate::View(_)));
        if views && !def.is_elementwise() && !def.traits.moves {
            wrong.push(format!("{} is a view and does not move", def.full_name()));
        }
        for text in def.cases.iter().filter(|_| def.is_elementwise() || def.traits.moves) {
            let Ok(mut case) = cases::parse(def, text) else { continue };
            let mut random = Random::new(seed(def, text));
            for o in case.operands.iter_mut().take(if def.traits.moves { 1 } else { usize::MAX }).flatten() {
                o.fill = vec![o.fill.first().copied().unwrap_or(random.unit())];
            }
            let types = &assignments(def)[0];
            let dtype = |i: usize| def.inputs.get(i).or(def.inputs.last()).and_then(|p| types.get(p.ty)).copied();
            let tensors: Vec<Option<Tensor>> = (case.operands.iter().enumerate())
                .map(|(i, o)| Some(o.as_ref()?.tensor(dtype(i).unwrap_or(DType::F32), &mut random)))
                .collect();
            let consts = PrimaryMap::new();
            let cx = RefCtx { def, attrs: &case.attrs, consts: &consts, ins: &tensors, n_outs: 1 };
            let Some(y) = def.reference.and_then(|f| f(&cx).ok()).and_then(|y| y.into_iter().next()) else { continue };
            let v = y.to_f64_vec();
            let first = match (&tensors[0], def.traits.moves) {
                (Some(x), true) => x.to_f64_vec().first().copied(),
                _ => v.first().copied(),
            };
            n += 1;
            if v.iter().any(|x| Some(x.to_bits()) != first.map(f64::to_bits)) {
                wrong.push(format!("{} {text}: {v:?}", def.full_name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n > 200, "only {n} cases ran");
}

#[test]
fn every_case_agrees_with_its_reference() {
    let (mut n, mut wrong) = (0, vec![]);
    for def in families() {
        assert!(!def.cases.is_empty(), "{} has no cases", def.full_name());
        let mut of_row = 0;
        for text in def.cases {
            let case = cases::parse(def, text).unwrap_or_else(|e| panic!("{}: {text}: {e}", def.full_name()));
            for types in assignments(def) {
                for extents in [Extents::Constant, Extents::Symbolic] {
                    match check(def, &case, &types, extents, seed(def, text)) {
                        Ok(k) => of_row += k,
                        Err(e) => wrong.push(format!("{} {text} {types:?} {extents:?}: {e}", def.full_name())),
                    }
                    n += 1;
                }
            }
        }
        let generates =
            def.lower.iter().any(|c| matches!(c, Candidate::Pointwise(_) | Candidate::Loops(_) | Candidate::Expand(_)));
        if generates && of_row == 0 && wrong.is_empty() {
            wrong.push(format!("{}: no case reaches a nest", def.full_name()));
        }
    }
    assert!(wrong.is_empty(), "{} of {n} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert!(n > 3000, "only {n} checks ran");
}
