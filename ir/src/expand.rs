//! Expansion: nodes that are functions of other operators become those operators.
//!
//! A row whose meaning is a composition names it with [`Candidate::Expand`]: a function that adds nodes in place of one. What it adds
//! is inferred, rewritten and lowered like nodes of the model, and may be expanded in turn.

mod branches;
mod run_time;
mod unbounded;

use crate::attrs::Attr;
use crate::consts::Const;
use crate::graph::{Def, Graph, Module, Node, NodeData, Onnx, RegionId, Value};
use crate::infer::infer;
use crate::lowering::Candidate;
use crate::op::{OpDef, OpId};
use crate::ty::{Shape, TensorType, Type};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tensor::{DType, Diagnostic, DimId, ErrorKind, Result, Tensor};

/// How often what an expansion added may be expanded in turn.
const MAX_DEPTH: usize = 8;

/// Adds the nodes that a node stands for; returns its results in order. Those that the node does not have are left out.
pub type ExpandFn = fn(&mut Expansion) -> Result<Vec<Value>>;

/// Expands nodes of every region until none is left, and infers the types of what was added. Says whether there were any.
///
/// # Errors
/// What an expansion or a shape rule refuses, with the node; `Internal` when expansions go on without end.
pub fn expand(m: &mut Module<Onnx>) -> Result<bool> {
    let mut changed = false;
    let mut sunk = branches::Sunk::default();
    for _ in 0..MAX_DEPTH {
        while branches::settle(m, &mut sunk) {
            changed = true;
            infer(m)?;
        }
        let mut any = false;
        for r in branches::used_regions(m) {
            any |= expand_region(m, r)?;
        }
        if !any {
            return Ok(changed);
        }
        changed = true;
        infer(m)?;
    }
    Err(Diagnostic::new(ErrorKind::Internal, format!("expansions are nested deeper than {MAX_DEPTH}")))
}

fn expansion_of(m: &Module<Onnx>, r: RegionId, node: &NodeData<Onnx>) -> Option<ExpandFn> {
    if unbounded::is_unbounded(m, r, node) {
        return Some(unbounded::expand_unbounded);
    }
    if let Some(f) = run_time::of(m, r, node) {
        return Some(f);
    }
    m.registry[node.op].lower.iter().find_map(|c| if let Candidate::Expand(f) = c { Some(*f) } else { None })
}

fn expand_region(m: &mut Module<Onnx>, r: RegionId) -> Result<bool> {
    if !m.graphs[r].order.iter().any(|&n| expansion_of(m, r, &m.graphs[r].nodes[n]).is_some()) {
        return Ok(false);
    }
    let order = std::mem::take(&mut m.graphs[r].order);
    let mut renamed: FxHashMap<Value, Value> = FxHashMap::default();
    let new = |renamed: &FxHashMap<Value, Value>, v: Value| renamed.get(&v).copied().unwrap_or(v);
    for n in order {
        for v in m.graphs[r].nodes[n].ins.iter_mut().flatten() {
            *v = new(&renamed, *v);
        }
        let node = m.graphs[r].nodes[n].clone();
        let Some(f) = expansion_of(m, r, &node) else {
            m.graphs[r].order.push(n);
            continue;
        };
        let outs = node.outs.clone();
        let path = node.origin.to_string();
        let mut x = Expansion { m: &mut *m, region: r, node };
        let results = f(&mut x).map_err(|e| e.node(path))?;
        for (&old, result) in outs.iter().zip(results) {
            let result = x.take_name(old, result);
            renamed.insert(old, result);
        }
    }
    for v in &mut m.graphs[r].outputs {
        *v = new(&renamed, *v);
    }
    Ok(true)
}

/// A node in expansion: what it has, and ways to add nodes in its place.
pub struct Expansion<'m> {
    m: &'m mut Module<Onnx>,
    /// Where nodes are added: the node's region, or the body of a loop being added.
    region: RegionId,
    node: NodeData<Onnx>,
}

impl Expansion<'_> {
    /// Operand `i`, if present.
    pub fn input(&self, i: usize) -> Option<Value> {
        self.node.ins.get(i).copied().flatten()
    }
    /// Operand `i`.
    ///
    /// # Errors
    /// `Malformed` when it is absent.
    pub fn need(&self, i: usize) -> Result<Value> {
        let name = self.m.registry[self.node.op].name;
        self.input(i).ok_or_else(|| Diagnostic::new(ErrorKind::Malformed, format!("operand {i} of {name} is missing")))
    }
    /// The node's attributes.
    pub fn attrs(&self) -> &crate::attrs::Attrs {
        self.m.attrs_of(&self.node)
    }
    /// The node's row.
    pub fn def(&self) -> &OpDef {
        &self.m.registry[self.node.op]
    }
    /// How many results the node has.
    pub fn n_outs(&self) -> usize {
        self.node.outs.len()
    }
    /// The node.
    pub(crate) fn node(&self) -> &NodeData<Onnx> {
        &self.node
    }
    /// The module.
    pub(crate) fn module(&self) -> &Module<Onnx> {
        self.m
    }
    /// The module, for expansions that make a body over.
    pub(crate) fn module_mut(&mut self) -> &mut Module<Onnx> {
        self.m
    }
    /// The type of a value where nodes are added.
    pub(crate) fn type_of(&self, v: Value) -> Type {
        self.m.graphs[self.region].values[v].ty.clone()
    }
    /// Adds what `f` adds to a body.
    pub(crate) fn within<T>(&mut self, body: RegionId, f: impl FnOnce(&mut Expansion) -> T) -> T {
        let outer = std::mem::replace(&mut self.region, body);
        let result = f(self);
        self.region = outer;
        result
    }
    /// Makes `value`, which nothing defines any more, the result of the node that defines `made`.
    pub(crate) fn replace_result(&mut self, made: Value, value: Value) {
        let g = &mut self.m.graphs[self.region];
        if let Def::Node(n, i) = g.values[made].def
            && let Some(out) = g.nodes[n].outs.get_mut(usize::try_from(i).unwrap_or(usize::MAX))
        {
            *out = value;
            g.values[value].def = Def::Node(n, i);
        }
    }
    /// The node's operands that its bodies capture.
    pub fn captures(&self) -> Vec<Value> {
        let own = self.node.ins.len().saturating_sub(self.node.n_captures as usize);
        self.node.ins[own..].iter().copied().flatten().collect()
    }
    /// A graph of the module.
    pub fn graph(&self, r: RegionId) -> &Graph<Onnx> {
        &self.m.graphs[r]
    }
    /// The tensor type of an operand of the node, with its extents.
    ///
    /// # Errors
    /// `Unsupported` when the operand is no tensor of known rank.
    pub fn tensor(&self, v: Value) -> Result<(DType, Shape)> {
        match &self.m.graphs[self.region].values[v].ty {
            Type::Tensor(TensorType { dtype, shape: Some(s) }) => Ok((*dtype, s.clone())),
            t => {
                let (name, ty) = (self.m.registry[self.node.op].name, t.display(&self.m.dims));
                Err(Diagnostic::new(ErrorKind::Unsupported, format!("{name} of {ty}: the rank must be known")))
            }
        }
    }
    /// The constant that a value is. Reads it: for small ones.
    pub fn const_tensor(&self, v: Value) -> Option<Tensor> {
        match self.m.graphs[self.region].values[v].def {
            Def::Const(c) => self.m.consts[c].read().ok(),
            _ => None,
        }
    }
    /// An extent that is a number.
    pub fn as_const(&self, d: DimId) -> Option<i64> {
        self.m.dims.as_const(d)
    }
    /// Whether an extent is known to be 0 or 1.
    pub fn is_at_most_one(&self, d: DimId) -> bool {
        self.m.dims.is_at_most_one(d)
    }
    /// A number as an extent.
    pub fn dim(&mut self, n: i64) -> DimId {
        self.m.dims.constant(n)
    }
    /// Whether two extents are always equal.
    pub fn same(&mut self, a: DimId, b: DimId) -> bool {
        self.m.dims.prove_eq(a, b) == tensor::dims::Proof::Yes
    }
    /// A constant.
    pub fn constant(&mut self, t: &Tensor) -> Value {
        let shape: Vec<DimId> =
            t.shape().iter().map(|&n| self.m.dims.constant(i64::try_from(n).unwrap_or(i64::MAX))).collect();
        let c = self.m.consts.push(Const::from_tensor("", t));
        self.m.graphs[self.region].add_const(c, Type::tensor(t.dtype(), shape), "")
    }
    /// A constant of rank 0.
    pub fn scalar(&mut self, dtype: DType, v: f64) -> Value {
        self.constant(&reference::data::from_f64s(dtype, &[], &[v]))
    }
    /// A constant list of integers.
    pub fn ints(&mut self, v: &[i64]) -> Value {
        self.constant(&Tensor::from_i64(&[v.len()], v))
    }
    /// A node of the newest row of an operator of ai.onnx; its only result.
    pub fn op(&mut self, name: &str, ins: &[Value], attrs: &[(&str, Attr)]) -> Value {
        self.op_n(name, ins, attrs, 1)[0]
    }
    /// A node of an operator of ours (in [`crate::op::HIP_DOMAIN`]); its only result.
    pub fn own(&mut self, name: &str, ins: &[Option<Value>], attrs: &[(&str, Attr)]) -> Value {
        let op = self.m.registry.newest(crate::op::HIP_DOMAIN, name);
        let n = self.add_row(op, ins, attrs, 1, None);
        self.m.graphs[self.region].nodes[n].outs[0]
    }
    /// The shape that inference gave result `i` of the node, if it is known.
    pub fn result_shape(&self, i: usize) -> Option<Shape> {
        let v = self.node.outs.get(i)?;
        self.m.graphs[self.region].values[*v].ty.shape().cloned()
    }
    /// States the type of a result in advance: a symbol that its rule would make is the one given here, so that what is known of the
    /// node's own results stays true.
    pub fn expect(&mut self, v: Value, dtype: DType, shape: impl IntoIterator<Item = DimId>) {
        self.m.graphs[self.region].values[v].ty = Type::tensor(dtype, shape);
    }
    /// A node with several results.
    pub fn op_n(&mut self, name: &str, ins: &[Value], attrs: &[(&str, Attr)], n_outs: usize) -> SmallVec<[Value; 2]> {
        let ins: Vec<Option<Value>> = ins.iter().copied().map(Some).collect();
        self.op_opt(name, &ins, attrs, n_outs)
    }
    /// A node with several results, some of whose operands may be left out.
    pub fn op_opt(
        &mut self,
        name: &str,
        ins: &[Option<Value>],
        attrs: &[(&str, Attr)],
        n_outs: usize,
    ) -> SmallVec<[Value; 2]> {
        let n = self.add(name, ins, attrs, n_outs, None);
        self.m.graphs[self.region].nodes[n].outs.clone()
    }
    fn add(
        &mut self,
        name: &str,
        ins: &[Option<Value>],
        attrs: &[(&str, Attr)],
        n_outs: usize,
        body: Option<RegionId>,
    ) -> Node {
        let op = self.m.registry.newest("", name);
        self.add_row(op, ins, attrs, n_outs, body)
    }
    fn add_row(
        &mut self,
        op: OpId,
        ins: &[Option<Value>],
        attrs: &[(&str, Attr)],
        n_outs: usize,
        body: Option<RegionId>,
    ) -> Node {
        let attrs = self.m.registry[op].attrs_with(attrs);
        let attrs = self.m.attrs.intern(attrs);
        let outs = (0..n_outs).map(|_| (Type::Unknown, "".into()));
        let origin = self.node.origin.clone();
        self.m.graphs[self.region].add_node(op, attrs, ins.iter().copied(), outs, body, origin)
    }
    /// `a` with its elements in another type.
    pub fn cast(&mut self, a: Value, to: DType) -> Value {
        self.op("Cast", &[a], &[("to", Attr::Int(i64::from(to.onnx())))])
    }
    /// `a` with its axes in another order.
    pub fn transpose(&mut self, a: Value, perm: &[i64]) -> Value {
        self.op("Transpose", &[a], &[("perm", Attr::Ints(perm.into()))])
    }
    /// `a` under another shape: numbers as Reshape takes them.
    pub fn reshape(&mut self, a: Value, shape: &[i64]) -> Value {
        let shape = self.ints(shape);
        self.op("Reshape", &[a, shape], &[])
    }
    /// `a` under another shape, each extent a list of one integer.
    pub fn reshape_to(&mut self, a: Value, extents: &[Value]) -> Value {
        let shape = self.concat(extents, 0);
        self.op("Reshape", &[a, shape], &[("allowzero", Attr::Int(1))])
    }
    /// `a` with new axes of extent 1.
    pub fn unsqueeze(&mut self, a: Value, axes: &[i64]) -> Value {
        let axes = self.ints(axes);
        self.op("Unsqueeze", &[a, axes], &[])
    }
    /// `a` without axes of extent 1.
    pub fn squeeze(&mut self, a: Value, axes: &[i64]) -> Value {
        let axes = self.ints(axes);
        self.op("Squeeze", &[a, axes], &[])
    }
    /// Elements `from` to before `to` along an axis.
    pub fn slice(&mut self, a: Value, axis: i64, from: i64, to: i64) -> Value {
        let (from, to, axis) = (self.ints(&[from]), self.ints(&[to]), self.ints(&[axis]));
        self.op("Slice", &[a, from, to, axis], &[])
    }
    /// `a` backwards along an axis.
    pub fn reverse(&mut self, a: Value, axis: i64) -> Value {
        let (from, to, axis, step) = (self.ints(&[-1]), self.ints(&[i64::MIN]), self.ints(&[axis]), self.ints(&[-1]));
        self.op("Slice", &[a, from, to, axis, step], &[])
    }
    /// All of them one after the other along an axis.
    pub fn concat(&mut self, all: &[Value], axis: i64) -> Value {
        self.op("Concat", all, &[("axis", Attr::Int(axis))])
    }
    /// The extent of `a` along an axis, as a list of one integer.
    pub fn extent(&mut self, a: Value, axis: i64) -> Value {
        let mut attrs = vec![("start", Attr::Int(axis))];
        if axis != -1 {
            attrs.push(("end", Attr::Int(axis + 1)));
        }
        self.op("Shape", &[a], &attrs)
    }
    /// `0, 1, …` up to before `n`, a list of one integer.
    pub fn count_to(&mut self, n: Value) -> Value {
        let n = self.squeeze(n, &[0]);
        let (zero, one) = (self.scalar(DType::I64, 0.0), self.scalar(DType::I64, 1.0));
        self.op("Range", &[zero, n, one], &[])
    }
    /// A Loop of `trips` (one integer) iterations. `body` takes an expansion that adds to the body, the number of the iteration, the
    /// carried values and what was captured, and returns the next carried values and what each iteration gives. Results: the last
    /// carried values, then what iterations gave with all of them along a new first axis. A single iteration stands without a loop.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn repeat(
        &mut self,
        trips: Value,
        carried: &[Value],
        captured: &[Value],
        body: impl FnOnce(&mut Expansion, Value, &[Value], &[Value]) -> Result<(Vec<Value>, Vec<Value>)>,
    ) -> Result<Vec<Value>> {
        if self.is_extent_of_one(trips) {
            let first = self.scalar(DType::I64, 0.0);
            let (mut results, given) = body(self, first, carried, captured)?;
            results.extend(given.into_iter().map(|v| self.unsqueeze(v, &[0])));
            return Ok(results);
        }
        let outer = self.region;
        let r = self.m.graphs.push(Graph::default());
        let iter = self.m.graphs[r].add_input(Type::tensor(DType::I64, []), "");
        let go_on = self.m.graphs[r].add_input(Type::tensor(DType::Bool, []), "");
        let mut params = Vec::new();
        for &v in carried.iter().chain(captured) {
            let ty = self.m.graphs[outer].values[v].ty.clone();
            params.push(self.m.graphs[r].add_input(ty, ""));
        }
        let (state, rest) = params.split_at(carried.len());
        let (next, scanned) = self.within(r, |x| body(x, iter, state, rest))?;
        let n_outs = next.len() + scanned.len();
        self.m.graphs[r].outputs = [go_on].into_iter().chain(next).chain(scanned).collect();
        Ok(self.add_loop(r, (Some(trips), None), carried, captured, n_outs))
    }
    /// Whether a value of [`Expansion::extent`] is known to be 1.
    fn is_extent_of_one(&self, v: Value) -> bool {
        let g = &self.m.graphs[self.region];
        let Some(node) = g.def_node(v) else { return false };
        let (def, start) = (&self.m.registry[node.op], self.m.attrs[node.attrs].int(0));
        let of = node.ins.first().copied().flatten().and_then(|x| g.values[x].ty.shape());
        let axis = start.and_then(|a| usize::try_from(a).ok()).filter(|_| def.name == "Shape" && def.domain.is_empty());
        let extent = axis.zip(of).and_then(|(a, shape)| self.m.dims.as_const(*shape.get(a)?));
        extent == Some(1)
    }
    /// A Loop over a body that stands, up to a number of iterations and while a condition holds: else as [`Expansion::repeat`].
    pub(crate) fn add_loop(
        &mut self,
        body: RegionId,
        (trips, cond): (Option<Value>, Option<Value>),
        carried: &[Value],
        captured: &[Value],
        n_outs: usize,
    ) -> Vec<Value> {
        let ins: Vec<Option<Value>> =
            [trips, cond].into_iter().chain(carried.iter().chain(captured).copied().map(Some)).collect();
        let n = self.add("Loop", &ins, &[], n_outs, Some(body));
        let g = &mut self.m.graphs[self.region];
        g.nodes[n].n_captures = u32::try_from(captured.len()).unwrap_or(u32::MAX);
        g.nodes[n].outs.to_vec()
    }
    /// The value that takes the place, type and name of result `old`: `new`, or a copy where `new` has a name of its own.
    fn take_name(&mut self, old: Value, new: Value) -> Value {
        let own = {
            let v = &self.m.graphs[self.region].values[new];
            matches!(v.def, Def::Node(..)) && v.name.is_empty()
        };
        let new = if own { new } else { self.op("Identity", &[new], &[]) };
        let values = &mut self.m.graphs[self.region].values;
        (values[new].name, values[new].ty) = (values[old].name.clone(), values[old].ty.clone());
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Registry;
    use crate::text::{parse_onnx, print_onnx};

    /// The operators of a module after expansion, and its text again.
    fn check(text: &str, expected: &str) {
        let mut m = parse_onnx(text, &Registry::builtin()).unwrap();
        infer(&mut m).unwrap();
        assert!(expand(&mut m).unwrap());
        crate::verify::verify_onnx(&m).unwrap();
        let nodes = m.graphs.values().flat_map(|g| g.order.iter().map(|&n| &g.nodes[n]));
        let all: Vec<&str> = nodes.map(|n| m.registry[n.op].name).collect();
        assert_eq!(all.join(" "), expected);
        let names = |m: &Module<Onnx>| -> Vec<String> {
            let g = m.graph();
            g.outputs.iter().map(|&v| format!("{}: {}", g.values[v].name, g.values[v].ty.display(&m.dims))).collect()
        };
        let before = names(&parse_onnx(text, &Registry::builtin()).unwrap());
        assert_eq!(names(&m), before, "{}", print_onnx(&m));
        assert!(!expand(&mut m).unwrap(), "nothing is left to expand");
    }

    #[test]
    fn results_keep_their_names_and_types() {
        let head = "onnx module \"m\"\nopset \"\" 17\ndim n : input(0, 0)\n";
        let params = "graph(%v0 \"x\" : f32[n, 5], %v1 \"t\" : i64[n])";
        let node = "%v2, %v3 = SoftmaxCrossEntropyLoss-13 %v0, %v1 : f32[], f32[n, 5]";
        let body = "return %v2 \"loss\", %v3 \"log\"";
        check(&format!("{head}{params} {{ {node} {body} }}"), "LogSoftmax NegativeLogLikelihoodLoss");
    }

    #[test]
    fn bodies_are_expanded() {
        let text = "onnx module \"m\"\nopset \"\" 17\ndim n : input(0, 0)\n\
            graph(%v0 \"x\" : f32[n, 5], %v1 \"t\" : i64[n], %v2 \"c\" : bool[]) {\n\
              %v3 = If-1 %v2 captures [%v0, %v1] : f32[]\n\
                region then_branch(%v0 : f32[n, 5], %v1 : i64[n]) {\n\
                  %v2 = SoftmaxCrossEntropyLoss-13 %v0, %v1 : f32[]\n\
                  return %v2\n\
                }\n\
                region else_branch(%v0 : f32[n, 5], %v1 : i64[n]) {\n\
                  %v2 = NegativeLogLikelihoodLoss-12 %v0, %v1 : f32[]\n\
                  return %v2\n\
                }\n\
              return %v3 \"loss\"\n}";
        let expected = "If LogSoftmax NegativeLogLikelihoodLoss NegativeLogLikelihoodLoss";
        check(text, expected);
    }
}
