//! If and Loop become structured regions of the HIP dialect.

use super::choose::Action;
use super::emit::Emit;
use crate::views::{self, BufView};
use ir::Shape;
use ir::consts::Const;
use ir::graph::{Def, Node, RegionId, Value};
use ir::hip::{BranchDim, HipOp, LoopDim, LoopOp, Space};
use tensor::{DType, Diagnostic, DimId, ErrorKind, Result, SymId, Tensor, dims};

/// What a body takes from outside: its parameter and the outer buffer.
struct Capture {
    /// Position among the node's captures.
    at: usize,
    outer: BufView,
}

impl<'a> Emit<'_, 'a> {
    /// Buffers that the bodies capture. Constants and dims are not passed: a body makes its own.
    fn captures(&mut self, r: RegionId, n: Node) -> Result<Vec<Capture>> {
        let src = self.cx.src;
        let node = &src.graphs[r].nodes[n];
        let n_caps = node.n_captures as usize;
        let caps = &node.ins[node.ins.len() - n_caps..];
        let mut out = vec![];
        for (at, v) in caps.iter().enumerate() {
            let Some(v) = *v else { continue };
            let param = |b: RegionId| src.graphs[b].inputs[src.graphs[b].inputs.len() - n_caps + at];
            let used = node.regions.iter().any(|&b| self.body_uses(b, param(b)));
            if !used || self.konst(r, v).is_some() {
                continue;
            }
            if node.regions.iter().all(|&b| self.host_values(b, param(b)).is_some()) {
                continue;
            }
            out.push(Capture { at, outer: self.buf(r, v)? });
        }
        Ok(out)
    }
    /// Whether anything that runs in the body needs the parameter's buffer.
    fn body_uses(&self, b: RegionId, p: Value) -> bool {
        let g = &self.cx.src.graphs[b];
        let runs = |n: &Node| self.cx.choices.get(&(b, *n)).is_some_and(|c| !matches!(c.action, Action::Nothing));
        let symbol = |d: &DimId| {
            let s = self.cx.out.dims.as_symbol(*d);
            s.is_some_and(|s| self.cx.out.dims.sym(s).origin == dims::Origin::ShapeValue && !self.known.contains(&s))
        };
        g.outputs.contains(&p)
            || g.order.iter().any(|n| runs(n) && g.nodes[*n].ins.contains(&Some(p)))
            || self.cx.info.values(b, p).is_some_and(|x| x.iter().any(symbol))
    }
    /// An emitter for a body. Constants that the node captures are its own; call [`Self::bind_captures`] once the parameters that
    /// come before them exist.
    fn enter(&mut self, r: RegionId, n: Node, b: RegionId) -> Emit<'_, 'a> {
        let src = self.cx.src;
        let node = &src.graphs[r].nodes[n];
        let n_caps = node.n_captures as usize;
        let (caps, params) = (&node.ins[node.ins.len() - n_caps..], &src.graphs[b].inputs);
        let own = params.len() - n_caps;
        let consts = caps.iter().zip(&params[own..]).filter_map(|(v, &p)| {
            let v = (*v)?;
            self.konst(r, v).map(|_| ((b, p), self.resolve(r, v)))
        });
        let consts: Vec<_> = consts.collect();
        let known = self.known.clone();
        let (origin, note) = (self.origin.clone(), self.note);
        let mut child = Emit::new(&mut *self.cx, b, known);
        child.alias.extend(consts);
        (child.origin, child.note) = (origin, note);
        child
    }
    /// Parameters for captures; `n_caps` of them are in the ONNX dialect.
    fn bind_captures(&mut self, b: RegionId, n_caps: usize, captures: &[Capture]) {
        let params = &self.cx.src.graphs[b].inputs;
        for c in captures {
            let p = params[params.len() - n_caps + c.at];
            let name = self.cx.src.graphs[b].values[p].name.clone();
            let inner = self.param_like(&c.outer, name);
            self.bind.insert((b, p), inner);
        }
    }
    /// A parameter that is a buffer of the region around.
    fn param_like(&mut self, outer: &BufView, name: std::sync::Arc<str>) -> BufView {
        let ty = ir::hip::HipType {
            dtype: outer.dtype,
            shape: outer.shape.clone(),
            strides: outer.strides.clone(),
            layout: ir::hip::Layout::Strided,
            space: outer.space,
        };
        let root = self.cx.out.graphs[self.dst].add_input(ty.clone(), name);
        self.whole(root, &ty)
    }
    /// A buffer that the region allocates itself, whole, contiguous, on the device and not among `taken`: the value's own, or a copy.
    fn own_buffer(&mut self, b: RegionId, v: Value, taken: &[Value]) -> Result<BufView> {
        let from = self.buf(b, v)?;
        let data = &self.cx.out.graphs[self.dst].values[from.root];
        // Of what a loop collected, the buffer may be longer than the value.
        let whole = data.ty.shape == from.shape
            && self.cx.out.dims.as_const(from.offset) == Some(0)
            && data.ty.strides == from.strides;
        let own = matches!(data.def, Def::Node(n, _) if self.cx.out.graphs[self.dst].nodes[n].op == HipOp::Alloc);
        let fits = whole && own && from.space == Space::Device && !taken.contains(&from.root);
        if fits && self.is_contiguous(&from) {
            return Ok(from);
        }
        let name = self.cx.src.graphs[b].values[v].name.clone();
        let to = self.alloc(from.dtype, &from.shape, Space::Device, name)?;
        self.copy(&from, &to)?;
        Ok(to)
    }
    /// All nodes of a body, and buffers of its own for these results.
    fn body_results(&mut self, b: RegionId, results: &[Value]) -> Result<Vec<Value>> {
        let mut roots = vec![];
        for &v in results {
            let own = self.own_buffer(b, v, &roots)?;
            roots.push(own.root);
        }
        Ok(roots)
    }
    fn shape_of(&self, r: RegionId, v: Value) -> Result<Shape> {
        self.tensor_type(r, v).map(|t| t.1)
    }
    /// The symbol that a dim is, when nothing has given it a value here.
    fn unknown_symbol(&self, d: DimId) -> Option<SymId> {
        self.cx.out.dims.as_symbol(d).filter(|s| !self.known.contains(s))
    }

    pub(super) fn branch(&mut self, r: RegionId, n: Node) -> Result<()> {
        let src = self.cx.src;
        let node = &src.graphs[r].nodes[n];
        let Some(Some(cond)) = node.ins.first().copied() else {
            return Err(Diagnostic::new(ErrorKind::Malformed, "If has no condition"));
        };
        let cond = self.buf(r, cond)?;
        let cond = self.contiguous(&cond, "the host reads the condition")?;
        let captures = self.captures(r, n)?;
        let n_caps = node.n_captures as usize;
        for &b in &node.regions {
            let mut child = self.enter(r, n, b);
            child.bind_captures(b, n_caps, &captures);
            child.plan_body(b);
            src.graphs[b].inputs.iter().try_for_each(|&p| child.read_back(b, p))?;
            child.body(b)?;
            let roots = child.body_results(b, &src.graphs[b].outputs)?;
            self.cx.out.graphs[b].outputs = roots;
        }
        let mut merged: Vec<BranchDim> = vec![];
        for (i, &v) in node.outs.iter().enumerate() {
            let shape = self.shape_of(r, v)?;
            let then = self.shape_of(node.regions[0], src.graphs[node.regions[0]].outputs[i])?;
            let els = self.shape_of(node.regions[1], src.graphs[node.regions[1]].outputs[i])?;
            for (axis, &d) in shape.iter().enumerate() {
                if let Some(sym) = self.unknown_symbol(d).filter(|s| merged.iter().all(|m| m.sym != *s)) {
                    merged.push(BranchDim { sym, then: then[axis], els: els[axis] });
                }
            }
        }
        self.known.extend(merged.iter().map(|m| m.sym));
        let mut ins = vec![Some(self.value(&cond)?)];
        for c in &captures {
            ins.push(Some(self.value(&c.outer)?));
        }
        let op = HipOp::If { dims: merged };
        self.push_control(r, op, ins, captures.len(), node.regions.to_vec(), &node.outs)
    }

    /// Appends the node and binds its results.
    fn push_control(
        &mut self,
        r: RegionId,
        op: HipOp,
        ins: Vec<Option<Value>>,
        n_captures: usize,
        regions: Vec<RegionId>,
        outs: &[Value],
    ) -> Result<()> {
        let mut types = vec![];
        for &v in outs {
            let (dtype, shape) = self.tensor_type(r, v)?;
            shape.iter().try_for_each(|&d| self.need_known(d))?;
            let name = self.cx.src.graphs[r].values[v].name.clone();
            types.push((self.contiguous_type(dtype, &shape, Space::Device), name));
        }
        let attrs = self.cx.out.attrs.intern(ir::attrs::Attrs::default());
        let made = self.push_with(op, attrs, ins, types.clone(), regions);
        let g = &mut self.cx.out.graphs[self.dst];
        g.nodes[made].n_captures = u32::try_from(n_captures).unwrap_or(u32::MAX);
        let roots = g.nodes[made].outs.clone();
        for ((&v, root), (ty, _)) in outs.iter().zip(roots).zip(types) {
            let b = self.whole(root, &ty);
            self.bind.insert((r, v), b);
        }
        Ok(())
    }

    /// Whether a value is the constant true.
    fn is_true(&self, r: RegionId, v: Value) -> bool {
        self.konst(r, v).is_some_and(|c| self.cx.src.consts[c].splat_f64() == Some(1.0))
    }

    pub(super) fn loop_(&mut self, r: RegionId, n: Node) -> Result<()> {
        let src = self.cx.src;
        let node = &src.graphs[r].nodes[n];
        let b = node.regions[0];
        let g = &src.graphs[b];
        let n_caps = node.n_captures as usize;
        let n_own = node.ins.len() - n_caps;
        let n_carried = n_own.saturating_sub(2);
        let (trips_in, cond_in) = (node.ins.first().copied().flatten(), node.ins.get(1).copied().flatten());
        let trips = trips_in.map(|v| self.trip_count(r, v)).transpose()?;
        // The body's condition, when it is one: a body that hands its own condition on, or gives true, never stops the loop.
        let cond_param = g.inputs[1];
        let goes_on = g.outputs[0] == cond_param || self.is_true(b, g.outputs[0]);
        let starts = cond_in.is_none_or(|v| self.is_true(r, v));
        let cond = !(goes_on && starts);
        let mut ins: Vec<Option<Value>> = vec![];
        if cond {
            let c = match cond_in {
                Some(v) => self.buf(r, v)?,
                None => self.truth(),
            };
            let c = self.contiguous(&c, "the host reads the condition")?;
            ins.push(Some(self.value(&c)?));
        } else {
            ins.push(None);
        }
        let mut initial = vec![];
        for v in &node.ins[2..n_own] {
            let Some(v) = *v else { return Err(Diagnostic::new(ErrorKind::Malformed, "an initial value is missing")) };
            let x = self.buf(r, v)?;
            let x = self.contiguous(&x, "a loop takes contiguous initial values")?;
            ins.push(Some(self.value(&x)?));
            initial.push(self.shape_of(r, v)?);
        }
        let captures = self.captures(r, n)?;
        for c in &captures {
            ins.push(Some(self.value(&c.outer)?));
        }
        let scans = self.scan_buffers(r, n, n_carried, trips)?;
        ins.extend(scans.iter().map(|s| Some(s.root)));

        let number = self.cx.iterations.get(&b).and_then(|&d| Some((d, self.cx.out.dims.as_symbol(d)?)));
        let Some((iter_dim, iter)) = number else {
            return Err(Diagnostic::new(ErrorKind::Internal, "a loop has no number of its iteration"));
        };
        // Extents that the body's parameters have for themselves.
        let mut carried_dims: Vec<LoopDim> = vec![];
        for k in 0..n_carried {
            let inside = self.shape_of(b, g.inputs[2 + k])?;
            let next = self.shape_of(b, g.outputs[1 + k])?;
            let result = self.shape_of(r, node.outs[k])?;
            for (axis, &d) in inside.iter().enumerate() {
                let Some(sym) = self.unknown_symbol(d) else { continue };
                if carried_dims.iter().all(|x| x.sym != sym) {
                    let result = self.unknown_symbol(result[axis]);
                    carried_dims.push(LoopDim { sym, init: initial[k][axis], next: next[axis], result });
                }
            }
        }

        let mut child = self.enter(r, n, b);
        child.known.insert(iter);
        child.known.extend(carried_dims.iter().map(|d| d.sym));
        child.extra.insert((b, g.inputs[0]), [iter_dim].into_iter().collect());
        for &p in &g.inputs[2..2 + n_carried] {
            let (dtype, shape) = child.tensor_type(b, p)?;
            let name = src.graphs[b].values[p].name.clone();
            let inner = child.param(dtype, &shape, &name);
            child.bind.insert((b, p), inner);
        }
        child.bind_captures(b, n_caps, &captures);
        if child.body_uses(b, cond_param) {
            // While the body runs, its condition holds.
            let truth = child.truth();
            child.bind.insert((b, cond_param), truth);
        }
        child.plan_body(b);
        let mut places = vec![];
        for (s, &v) in scans.iter().zip(&g.outputs[1 + n_carried..]) {
            let whole = child.param_like(s, "".into());
            let inside = child.shape_of(b, v)?;
            let zero = child.cx.out.dims.constant(0);
            let start: Vec<DimId> = std::iter::once(iter_dim).chain(inside.iter().map(|_| zero)).collect();
            let offset = views::part(&mut child.cx.out.dims, whole.offset, &whole.strides, &start);
            let (shape, strides) = (whole.shape[1..].into(), whole.strides[1..].into());
            let place = BufView { offset, shape, strides, ..whole };
            child.write_to(b, v, &place);
            places.push(place);
        }
        g.inputs.iter().try_for_each(|&p| child.read_back(b, p))?;
        child.body(b)?;
        for (place, &v) in places.iter().zip(&g.outputs[1 + n_carried..]) {
            let from = child.buf(b, v)?;
            if (from.root, from.offset) != (place.root, place.offset) {
                child.copy(&from, place)?;
            }
        }
        let mut outputs = vec![];
        if cond {
            let c = child.buf(b, g.outputs[0])?;
            let c = child.contiguous(&c, "the host reads the condition")?;
            outputs.push(child.value(&c)?);
        }
        outputs.extend(child.body_results(b, &g.outputs[1..1 + n_carried])?);
        self.cx.out.graphs[b].outputs = outputs;

        let mut counts = vec![];
        for &v in &node.outs[n_carried..] {
            let shape = self.shape_of(r, v)?;
            counts.extend(shape.first().and_then(|&d| self.unknown_symbol(d)).filter(|s| !counts.contains(s)));
        }
        self.known.extend(counts.iter().copied());
        self.known.extend(carried_dims.iter().filter_map(|d| d.result));
        let n_carried_u32 = u32::try_from(n_carried).unwrap_or(u32::MAX);
        let op = LoopOp { trips, cond, n_carried: n_carried_u32, iter, counts, dims: carried_dims };
        let n_all = captures.len() + scans.len();
        self.push_control(r, HipOp::Loop(Box::new(op)), ins, n_all, vec![b], &node.outs[..n_carried])?;
        for (s, &v) in scans.iter().zip(&node.outs[n_carried..]) {
            let shape = self.shape_of(r, v)?;
            shape.iter().try_for_each(|&d| self.need_known(d))?;
            self.bind.insert((r, v), BufView { shape, ..s.clone() });
        }
        Ok(())
    }

    /// A constant true in this graph.
    fn truth(&mut self) -> BufView {
        let c = self.cx.out.consts.push(Const::from_tensor("", &Tensor::from_bool(&[], &[true])));
        self.constant(c, DType::Bool, &[], "".into())
    }

    /// The trip count as a dim: known, or read back.
    fn trip_count(&mut self, r: RegionId, v: Value) -> Result<DimId> {
        if let Some(&[d]) = self.host_values(r, v).as_deref() {
            return Ok(d);
        }
        if let Some(&[d]) = self.cx.info.values(r, v).map(|x| x.as_slice())
            && self.is_known(d)
        {
            return Ok(d);
        }
        let b = self.buf(r, v)?;
        let b = self.contiguous(&b, "the host reads the trip count")?;
        let d = self.cx.out.dims.symbol("trips", dims::Origin::ShapeValue);
        let Some(sym) = self.cx.out.dims.as_symbol(d) else {
            return Err(Diagnostic::new(ErrorKind::Internal, "a new symbol is no symbol"));
        };
        self.cx.out.dims.sym_mut(sym).lo = i64::MIN;
        let max = self.cx.out.dims.constant(i64::MAX);
        let from = self.value(&b)?;
        self.push(HipOp::Readback { sym, index: 0, max }, vec![Some(from)], vec![]);
        self.known.insert(sym);
        Ok(d)
    }

    /// Buffers for scan outputs, `trips` slices each.
    fn scan_buffers(&mut self, r: RegionId, n: Node, n_carried: usize, trips: Option<DimId>) -> Result<Vec<BufView>> {
        let outs = self.cx.src.graphs[r].nodes[n].outs[n_carried..].to_vec();
        let mut made = vec![];
        for v in outs {
            let Some(trips) = trips else {
                return Err(Diagnostic::new(
                    ErrorKind::Unsupported,
                    "a loop without a trip count cannot have scan outputs: their size has no bound",
                )
                .help("give the loop a greatest trip count"));
            };
            let (dtype, mut shape) = self.tensor_type(r, v)?;
            let zero = self.cx.out.dims.constant(0);
            shape[0] = self.cx.out.dims.max(trips, zero);
            let name = self.cx.src.graphs[r].values[v].name.clone();
            made.push(self.alloc(dtype, &shape, Space::Device, name)?);
        }
        Ok(made)
    }
}
