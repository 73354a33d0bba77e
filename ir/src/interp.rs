//! The interpreter: runs a module of the ONNX dialect on host tensors with the reference functions of its rows.
//!
//! It is the meaning against which everything else is tested, so it takes no shortcut: every node runs, every result is checked
//! against the type that inference gave it. A value is freed after its last use.
//!
//! Extents of the types are evaluated with the extents of the inputs. A symbol that no input defines gets its value where a
//! result shows it first, and must keep it within one run of its region.

use crate::graph::{Def, Graph, Module, Node, NodeData, Onnx, RegionId, Rel, Value};
use crate::op::RefCtx;
use crate::ops::scan::Scan;
use crate::ty::Type;
use rustc_hash::FxHashMap;
use tensor::{DType, Diagnostic, DimId, Entity, ErrorKind, Result, SymId, Tensor};

/// Most iterations of one loop, so that a model that never stops gets an error.
pub const MAX_ITERATIONS: u64 = 100_000_000;
/// Deepest nesting of bodies.
const MAX_DEPTH: usize = 64;

/// Called after every node with its results; those of nodes in bodies come once per run of the body.
pub type Observer<'a> = dyn FnMut(RegionId, Node, &[Tensor]) + 'a;

/// Runs the main graph.
///
/// # Errors
/// `Argument` when inputs do not fit the declared ones, `Guard` when a fact assumed at compile time does not hold, what a
/// reference function refuses, `Internal` when a result contradicts its inferred type; with the node's path.
pub fn run(m: &Module<Onnx>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    run_observed(m, inputs, &mut |_, _, _| {})
}

/// The inputs of a model: those given, in order, then the defaults of those left out at the end.
///
/// # Errors
/// What reading a default gives.
pub fn with_defaults(m: &Module<Onnx>, given: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut all = given.to_vec();
    while let Some(t) = m.default_input(all.len())? {
        all.push(t);
    }
    Ok(all)
}

/// Runs the main graph and shows every node's results to `observe`.
///
/// # Errors
/// As [`run`].
pub fn run_observed(m: &Module<Onnx>, inputs: &[Tensor], observe: &mut Observer) -> Result<Vec<Tensor>> {
    let inputs = with_defaults(m, inputs)?;
    let mut env = Env::default();
    bind_inputs(m, &inputs, &mut env)?;
    check_guards(m, &env)?;
    Interp { m, observe }.region(m.main, inputs, &mut env, 0)
}

/// Whether inputs fit the declared ones and every fact assumed at compile time that does not depend on what the run computes.
///
/// # Errors
/// As [`run`].
pub fn check_inputs(m: &Module<Onnx>, inputs: &[Tensor]) -> Result<()> {
    let mut env = Env::default();
    bind_inputs(m, inputs, &mut env)?;
    check_guards(m, &env)
}

/// Values of symbols, as far as known.
type Env = FxHashMap<SymId, i64>;

fn bind_inputs(m: &Module<Onnx>, inputs: &[Tensor], env: &mut Env) -> Result<()> {
    let g = m.graph();
    if inputs.len() != g.inputs.len() {
        let text = format!("the model has {} inputs but {} were given", g.inputs.len(), inputs.len());
        return Err(Diagnostic::new(ErrorKind::Argument, text));
    }
    for (&v, t) in g.inputs.iter().zip(inputs) {
        let Type::Tensor(ty) = &g.values[v].ty else { continue };
        let name = &g.values[v].name;
        let rank_differs = ty.shape.as_ref().is_some_and(|s| s.len() != t.shape().len());
        if ty.dtype != t.dtype() || rank_differs {
            let text = format!(
                "input \"{name}\" is {} but {}{:?} was given",
                g.values[v].ty.display(&m.dims),
                t.dtype(),
                t.shape()
            );
            return Err(Diagnostic::new(ErrorKind::Argument, text));
        }
        for (&d, &x) in ty.shape.iter().flatten().zip(t.shape()) {
            if let Some(s) = m.dims.as_symbol(d) {
                env.entry(s).or_insert(int(x));
            }
        }
    }
    // Once more, now that every symbol has a value.
    for (&v, t) in g.inputs.iter().zip(inputs) {
        let Some(shape) = g.values[v].ty.shape() else { continue };
        for (axis, (&d, &x)) in shape.iter().zip(t.shape()).enumerate() {
            let want = m.dims.eval(d, &|s| env.get(&s).copied());
            if want.as_ref().is_ok_and(|&w| w != int(x)) {
                let (name, dim) = (&g.values[v].name, m.dims.display(d));
                let want = want.unwrap_or(0);
                let text = format!("input \"{name}\" has extent {x} along axis {axis} but {dim} is {want}");
                return Err(Diagnostic::new(ErrorKind::Argument, text));
            }
        }
    }
    Ok(())
}

fn check_guards(m: &Module<Onnx>, env: &Env) -> Result<()> {
    for g in &m.guards {
        let eval = |d| m.dims.eval(d, &|s| env.get(&s).copied());
        // A side that depends on what the run computes is checked by the shapes of results.
        let (Ok(a), Ok(b)) = (eval(g.lhs), eval(g.rhs)) else { continue };
        let (holds, word) = match g.rel {
            Rel::Eq => (a == b, "equal to"),
            Rel::Le => (a <= b, "at most"),
            Rel::Ne => (a != b, "other than"),
        };
        if !holds {
            let e = Diagnostic::new(ErrorKind::Guard, format!("{}: {a} must be {word} {b}", g.why));
            return Err(if g.node.is_empty() { e } else { e.node(g.node.clone()) });
        }
    }
    Ok(())
}

fn int(x: usize) -> i64 {
    i64::try_from(x).unwrap_or(i64::MAX)
}

struct Interp<'m, 'o> {
    m: &'m Module<Onnx>,
    observe: &'m mut Observer<'o>,
}

/// The values of one run of a region.
struct Values {
    slots: Vec<Option<Tensor>>,
    uses: Vec<u32>,
}

impl Values {
    fn new(g: &Graph<Onnx>) -> Values {
        let mut uses = vec![0u32; g.values.len()];
        for &n in &g.order {
            g.nodes[n].ins.iter().flatten().for_each(|v| uses[v.index()] += 1);
        }
        g.outputs.iter().for_each(|v| uses[v.index()] += 1);
        Values { slots: vec![None; g.values.len()], uses }
    }
    fn set(&mut self, v: Value, t: Tensor) {
        if self.uses[v.index()] > 0 {
            self.slots[v.index()] = Some(t);
        }
    }
    /// The value for one of its uses; the last one takes it.
    fn take(&mut self, m: &Module<Onnx>, g: &Graph<Onnx>, v: Value) -> Result<Tensor> {
        let i = v.index();
        if let (None, Def::Const(c)) = (&self.slots[i], g.values[v].def) {
            self.slots[i] = Some(m.consts[c].read()?);
        }
        self.uses[i] = self.uses[i].saturating_sub(1);
        let slot = &mut self.slots[i];
        let t = if self.uses[i] == 0 { slot.take() } else { slot.clone() };
        t.ok_or_else(|| Diagnostic::new(ErrorKind::Internal, format!("value {v} is used before it is defined")))
    }
}

impl Interp<'_, '_> {
    fn region(&mut self, r: RegionId, inputs: Vec<Tensor>, env: &mut Env, depth: usize) -> Result<Vec<Tensor>> {
        if depth > MAX_DEPTH {
            return Err(Diagnostic::new(ErrorKind::Limit, format!("bodies are nested deeper than {MAX_DEPTH}")));
        }
        let m = self.m;
        let g = &m.graphs[r];
        if inputs.len() != g.inputs.len() {
            let text = format!("region {r} has {} parameters but got {} values", g.inputs.len(), inputs.len());
            return Err(Diagnostic::new(ErrorKind::Internal, text));
        }
        let mut values = Values::new(g);
        for (&v, t) in g.inputs.iter().zip(inputs) {
            if depth > 0 {
                check_type(m, &g.values[v].ty, &t, env).map_err(|what| mismatch(&format!("parameter {v}"), what))?;
            }
            values.set(v, t);
        }
        for &n in &g.order {
            let node = &g.nodes[n];
            let at = |e: Diagnostic| {
                let name = &m.registry[node.op].name;
                e.node(if node.origin.0.is_empty() { format!("{name} ({n})") } else { node.origin.to_string() })
            };
            let ins = node.ins.iter().map(|v| v.map(|v| values.take(m, g, v)).transpose());
            let ins = ins.collect::<Result<Vec<Option<Tensor>>>>().map_err(at)?;
            let outs = self.node(r, node, ins, env, depth).map_err(at)?;
            for (i, &v) in node.outs.iter().enumerate() {
                let Some(t) = outs.get(i) else {
                    // A result that the row does not compute must have no use.
                    if values.uses[v.index()] > 0 {
                        let text = format!("{} does not compute its result {i}", m.registry[node.op].full_name());
                        return Err(at(Diagnostic::new(ErrorKind::Unsupported, text)));
                    }
                    continue;
                };
                check_type(m, &g.values[v].ty, t, env).map_err(|what| {
                    at(mismatch(&format!("result {i} of {}", m.registry[node.op].full_name()), what))
                })?;
            }
            (self.observe)(r, n, &outs);
            for (&v, t) in node.outs.iter().zip(outs) {
                values.set(v, t);
            }
        }
        g.outputs.iter().map(|&v| values.take(m, g, v)).collect()
    }

    fn node(
        &mut self,
        r: RegionId,
        node: &NodeData<Onnx>,
        ins: Vec<Option<Tensor>>,
        env: &mut Env,
        depth: usize,
    ) -> Result<Vec<Tensor>> {
        let def = &self.m.registry[node.op];
        if node.regions.is_empty() {
            let f = def.reference.ok_or_else(|| {
                Diagnostic::new(ErrorKind::Unsupported, format!("{} has no reference function", def.full_name()))
            })?;
            let attrs = &self.m.attrs[node.attrs];
            return f(&RefCtx { def, attrs, consts: &self.m.consts, ins: &ins, n_outs: node.outs.len() });
        }
        match def.name {
            "If" => self.branch(node, ins, env, depth),
            "Loop" => self.repeat(r, node, ins, env, depth),
            "Scan" => self.scan(node, ins, env, depth),
            name => Err(Diagnostic::new(ErrorKind::Unsupported, format!("bodies of {name} are not interpreted"))),
        }
    }

    fn branch(
        &mut self,
        node: &NodeData<Onnx>,
        ins: Vec<Option<Tensor>>,
        env: &mut Env,
        depth: usize,
    ) -> Result<Vec<Tensor>> {
        let mut ins = ins.into_iter();
        let cond = truth(ins.next().flatten().as_ref(), "If needs a condition")?;
        let body = node.regions.get(usize::from(!cond));
        let body = *body.ok_or_else(|| Diagnostic::new(ErrorKind::Malformed, "If needs two bodies"))?;
        self.region(body, present(ins)?, &mut env.clone(), depth + 1)
    }

    /// `Loop(M?, cond?, carried…, captures…)`: the body maps (iteration, condition, carried…, captures…) to (condition,
    /// carried…, scanned…); results are the carried values and each scanned one with all iterations along a new first axis.
    fn repeat(
        &mut self,
        r: RegionId,
        node: &NodeData<Onnx>,
        ins: Vec<Option<Tensor>>,
        env: &mut Env,
        depth: usize,
    ) -> Result<Vec<Tensor>> {
        let body = *node.regions.first().ok_or_else(|| Diagnostic::new(ErrorKind::Malformed, "Loop needs a body"))?;
        let n_captures = node.n_captures as usize;
        let own = ins.len().saturating_sub(n_captures);
        if own < 2 {
            return Err(Diagnostic::new(ErrorKind::Malformed, "Loop needs a trip count and a condition"));
        }
        let trips = ins[0].as_ref().map(|t| t.to_i64_vec().first().copied().unwrap_or(0));
        let mut cond = ins[1].as_ref().is_none_or(|t| t.bytes().first() != Some(&0));
        let mut carried = present(ins[2..own].iter().cloned())?;
        let captures = present(ins[own..].iter().cloned())?;
        let n_scanned = node.outs.len().saturating_sub(carried.len());
        let mut scanned: Vec<Vec<Tensor>> = vec![Vec::new(); n_scanned];
        let mut i = 0i64;
        while cond && trips.is_none_or(|m| i < m) {
            if i.unsigned_abs() >= MAX_ITERATIONS {
                return Err(Diagnostic::new(ErrorKind::Limit, format!("Loop ran {MAX_ITERATIONS} iterations")));
            }
            let mut args = vec![Tensor::from_i64(&[], &[i]), Tensor::from_bool(&[], &[cond])];
            args.append(&mut carried);
            args.extend(captures.iter().cloned());
            let mut results = self.region(body, args, &mut env.clone(), depth + 1)?.into_iter();
            cond = truth(results.next().as_ref(), "the body of Loop needs to return a condition")?;
            carried.extend(results.by_ref().take(own - 2));
            for (list, t) in scanned.iter_mut().zip(results) {
                list.push(t);
            }
            i += 1;
        }
        for (k, list) in scanned.into_iter().enumerate() {
            // Of no iterations: by the node's own type, where it has a rank.
            let ty = self.m.graphs[r].values[node.outs[own - 2 + k]].ty.without(Some(0));
            let inner = &self.m.graphs[body];
            let ty = match (ty.shape(), inner.outputs.get(own - 1 + k)) {
                (None, Some(&v)) => inner.values[v].ty.clone(),
                _ => ty,
            };
            let extent = |d| self.m.dims.eval(d, &|s| env.get(&s).copied()).ok().and_then(|n| usize::try_from(n).ok());
            carried.push(stack(list, Some(&ty), &extent, &node.outs, own - 2 + k)?);
        }
        Ok(carried)
    }
}

impl Interp<'_, '_> {
    /// `Scan(states…, sequences…, captures…)`: the body maps (states…, elements…, captures…) to (states…, given…). In version 8 it does
    /// so for each sample by itself; what it gives for steps after the end of a sequence is 0.
    fn scan(
        &mut self,
        node: &NodeData<Onnx>,
        ins: Vec<Option<Tensor>>,
        env: &mut Env,
        depth: usize,
    ) -> Result<Vec<Tensor>> {
        let scan = Scan::new(self.m, node)?;
        let own = ins.len().saturating_sub(node.n_captures as usize);
        let captures = present(ins[own..].iter().cloned())?;
        let all = present(ins[usize::from(scan.batched)..own].iter().cloned())?;
        let n_states = scan.initial.len();
        if !scan.batched {
            let (states, given) = self.scan_sample(&scan, &all, None, &captures, env, depth)?;
            return self.finish(&scan, node, states, given, env);
        }
        let length = |t: &Tensor, axis: usize| t.shape().get(axis).copied().unwrap_or(0);
        let (n_samples, n_steps) = (length(&all[n_states], 0), length(&all[n_states], 1));
        let lengths = ins[0].as_ref().map(Tensor::to_i64_vec);
        let mut samples: Vec<Vec<Tensor>> = vec![vec![]; node.outs.len()];
        for b in 0..n_samples {
            let of_sample: Result<Vec<Tensor>> = all.iter().map(|t| element(t, 0, b)).collect();
            let n = lengths.as_ref().and_then(|l| usize::try_from(*l.get(b)?).ok()).map(|n| n.min(n_steps));
            let (states, mut given) = self.scan_sample(&scan, &of_sample?, n, &captures, env, depth)?;
            for list in &mut given {
                if let Some(zeros) = list.first().map(|t| Tensor::zeros(t.dtype(), t.shape())).transpose()? {
                    list.resize(n_steps, zeros);
                }
            }
            let results = self.finish(&scan, node, states, given, env)?;
            samples.iter_mut().zip(results).for_each(|(list, t)| list.push(t));
        }
        let types = node.outs.iter().map(|_| None);
        let none = |_| None;
        samples.into_iter().zip(types).enumerate().map(|(k, (l, ty))| stack(l, ty, &none, &node.outs, k)).collect()
    }

    /// One run over the elements of sequences: the last states, and what each step gave.
    fn scan_sample(
        &mut self,
        scan: &Scan,
        operands: &[Tensor],
        length: Option<usize>,
        captures: &[Tensor],
        env: &Env,
        depth: usize,
    ) -> Result<(Vec<Tensor>, Vec<Vec<Tensor>>)> {
        let (states, sequences) = operands.split_at(scan.initial.len());
        let (mut states, mut axes) = (states.to_vec(), vec![]);
        for (k, t) in sequences.iter().enumerate() {
            axes.push(scan.input_axis(k, t.shape().len())?);
        }
        let n_steps = length.unwrap_or(sequences[0].shape()[axes[0]]);
        let n_given = self.m.graphs[scan.body].outputs.len() - states.len();
        let mut given = vec![vec![]; n_given];
        for step in 0..n_steps {
            let mut args = std::mem::take(&mut states);
            for (k, t) in sequences.iter().enumerate() {
                let at = if scan.input_reversed(k) { n_steps - 1 - step } else { step };
                args.push(element(t, axes[k], at)?);
            }
            args.extend(captures.iter().cloned());
            let mut results = self.region(scan.body, args, &mut env.clone(), depth + 1)?.into_iter();
            states.extend(results.by_ref().take(scan.initial.len()));
            given.iter_mut().zip(results).for_each(|(list, t)| list.push(t));
        }
        Ok((states, given))
    }

    /// The results of a run: what was given lies along its axis, in its order.
    fn finish(
        &self,
        scan: &Scan,
        node: &NodeData<Onnx>,
        mut results: Vec<Tensor>,
        given: Vec<Vec<Tensor>>,
        env: &Env,
    ) -> Result<Vec<Tensor>> {
        let n_states = results.len();
        let extent = |d| self.m.dims.eval(d, &|s| env.get(&s).copied()).ok().and_then(|n| usize::try_from(n).ok());
        let g = &self.m.graphs[scan.body];
        for (k, mut list) in given.into_iter().enumerate() {
            if scan.output_reversed(k) {
                list.reverse();
            }
            let ty = g.outputs.get(n_states + k).map(|&v| &g.values[v].ty);
            let t = stack(list, ty, &extent, &node.outs, n_states + k)?;
            let axis = scan.output_axis(k, t.shape().len())?;
            let mut perm: Vec<usize> = (1..t.shape().len()).collect();
            perm.insert(axis, 0);
            results.push(reference::movement::transpose(&t, &perm)?);
        }
        Ok(results)
    }
}

/// Element `i` of a tensor along an axis.
fn element(t: &Tensor, axis: usize, i: usize) -> Result<Tensor> {
    reference::movement::gather(t, &Tensor::from_i64(&[], &[int(i)]), axis)
}

fn present(ins: impl Iterator<Item = Option<Tensor>>) -> Result<Vec<Tensor>> {
    ins.map(|t| t.ok_or_else(|| Diagnostic::new(ErrorKind::Malformed, "an operand of a body is absent"))).collect()
}

fn truth(t: Option<&Tensor>, what: &str) -> Result<bool> {
    match t.filter(|t| t.n_elems() == 1 && t.dtype() == DType::Bool) {
        Some(t) => Ok(t.bytes()[0] != 0),
        None => Err(Diagnostic::new(ErrorKind::Type, format!("{what}: one bool"))),
    }
}

/// Tensors of one shape along a new first axis; of none, the element type and extents come from the type of each, where an extent that
/// only an iteration would tell is 0.
fn stack(
    list: Vec<Tensor>,
    ty: Option<&Type>,
    extent: &dyn Fn(DimId) -> Option<usize>,
    outs: &[Value],
    out: usize,
) -> Result<Tensor> {
    let Some(first) = list.first() else {
        let Some(t) = ty.and_then(|t| t.as_tensor()) else {
            return Err(Diagnostic::new(ErrorKind::Type, format!("the type of {:?} is unknown", outs.get(out))));
        };
        let each = t.shape.iter().flatten().map(|&d| extent(d).unwrap_or(0));
        return Tensor::zeros(t.dtype, &std::iter::once(0).chain(each).collect::<Vec<_>>());
    };
    let (dtype, shape) = (first.dtype(), first.shape().to_vec());
    if let Some(t) = list.iter().find(|t| t.shape() != shape) {
        let text = format!("iterations of Loop return shapes {shape:?} and {:?} for one result", t.shape());
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let full: Vec<usize> = std::iter::once(list.len()).chain(shape).collect();
    if dtype == DType::String {
        return Ok(Tensor::from_strings(&full, list.iter().flat_map(|t| t.strings().to_vec()).collect()));
    }
    if dtype.size().is_some() {
        return Tensor::new(dtype, &full, list.iter().flat_map(|t| t.bytes().to_vec()).collect::<Vec<u8>>().into());
    }
    let all: Vec<i128> = list.iter().flat_map(reference::data::ints).collect();
    Ok(reference::data::from_ints(dtype, &full, &all))
}

fn mismatch(what: &str, problem: String) -> Diagnostic {
    let e = Diagnostic::new(ErrorKind::Internal, format!("{what} {problem}"));
    e.help("this is a bug of a shape rule or of a reference function")
}

/// Compares a tensor with a type; symbols without a value get one.
fn check_type(m: &Module<Onnx>, ty: &Type, t: &Tensor, env: &mut Env) -> std::result::Result<(), String> {
    let Type::Tensor(tt) = ty else { return Ok(()) };
    let got = || format!("is {}{:?}, but its type is {}", t.dtype(), t.shape(), ty.display(&m.dims));
    if tt.dtype != t.dtype() {
        return Err(got());
    }
    let Some(shape) = &tt.shape else { return Ok(()) };
    if shape.len() != t.shape().len() {
        return Err(got());
    }
    for (&d, &x) in shape.iter().zip(t.shape()) {
        match m.dims.as_symbol(d) {
            Some(s) if !env.contains_key(&s) => {
                env.insert(s, int(x));
            }
            _ => check_dim(m, d, x, env).map_err(|why| format!("{}: {why}", got()))?,
        }
    }
    Ok(())
}

fn check_dim(m: &Module<Onnx>, d: DimId, x: usize, env: &Env) -> std::result::Result<(), String> {
    let known = m.dims.symbols_of(d).iter().all(|s| env.contains_key(s));
    match m.dims.eval(d, &|s| env.get(&s).copied()) {
        Ok(v) if v == int(x) => Ok(()),
        Ok(v) => Err(format!("{} is {v}", m.dims.display(d))),
        Err(e) if known => Err(e.message().to_string()),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::Attrs;
    use crate::graph::Origin;
    use crate::op::Registry;
    use tensor::dims;

    /// A module with one f32 input `x[n]` and what `build` adds; returns it and the input.
    fn module(build: impl FnOnce(&mut Module<Onnx>, Value) -> Vec<Value>) -> Module<Onnx> {
        let mut m = Module::new(Registry::builtin());
        let n = m.dims.symbol("n", dims::Origin::Input { input: 0, axis: 0 });
        let x = m.graph_mut().add_input(Type::tensor(DType::F32, [n]), "x");
        let outs = build(&mut m, x);
        m.graph_mut().outputs = outs;
        m
    }

    fn node(m: &mut Module<Onnx>, r: RegionId, name: &str, ins: &[Value], ty: Type) -> Value {
        let op = m.registry.newest("", name);
        let attrs = m.attrs.intern(Attrs::new(m.registry[op].default_attrs()));
        let ins: Vec<_> = ins.iter().copied().map(Some).collect();
        let n = m.graphs[r].add_node(op, attrs, ins, [(ty, "".into())], [], Origin(name.into()));
        m.graphs[r].nodes[n].outs[0]
    }

    fn check(m: &Module<Onnx>, x: &[f32], expected: std::result::Result<&[f64], &str>) {
        let got = run(m, &[Tensor::from_f32(&[x.len()], x)]);
        match (got, expected) {
            (Ok(y), Ok(e)) => assert_eq!(y[0].to_f64_vec(), e),
            (Err(e), Err(text)) => assert!(e.to_string().contains(text), "{e}"),
            (got, expected) => panic!("{got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn values_pass_from_node_to_node() {
        let m = module(|m, x| {
            let (r, ty) = (m.main, m.graph().values[x].ty.clone());
            let a = node(m, r, "Relu", &[x], ty.clone());
            vec![node(m, r, "Add", &[a, x], ty)]
        });
        check(&m, &[1.0, -2.0], Ok(&[2.0, -2.0]));
        let mut count = 0;
        run_observed(&m, &[Tensor::from_f32(&[0], &[])], &mut |_, _, outs| count += outs.len()).unwrap();
        assert_eq!(count, 2);
    }

    #[test]
    fn a_result_that_contradicts_its_type_is_reported_with_its_node() {
        let m = module(|m, x| {
            let two = m.dims.constant(2);
            vec![node(m, m.main, "Relu", &[x], Type::tensor(DType::F32, [two]))]
        });
        check(&m, &[1.0, 2.0], Ok(&[1.0, 2.0]));
        check(&m, &[1.0], Err("result 0 of Relu is f32[1], but its type is f32[2]"));
    }

    #[test]
    fn guards_are_checked_at_the_entry() {
        let mut m = module(|_, x| vec![x]);
        let (n, three) = (m.graph().values[m.graph().inputs[0]].ty.shape().unwrap()[0], m.dims.constant(3));
        let guard = crate::graph::Guard { lhs: n, rel: Rel::Le, rhs: three, why: "few".into(), node: "/a".into() };
        m.guards.push(guard);
        check(&m, &[0.0; 3], Ok(&[0.0; 3]));
        check(&m, &[0.0; 4], Err("few: 4 must be at most 3"));
    }
}
