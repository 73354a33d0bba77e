//! The second pass of lowering: each node becomes ops of the HIP dialect, in order.

use super::Lowering;
use super::choose::{Action, Choice, kernel};
use crate::bytes::{self, Place, is_packed, per_byte};
use crate::nests;
use crate::views::{self, BufView};
use ir::Shape;
use ir::attrs::{Attrs, AttrsId};
use ir::consts::{Const, ConstId};
use ir::graph::{Def, Node, Origin, RegionId, Value};
use ir::hip::{Call, Hip, HipOp, HipType, Layout, Space};
use ir::lowering::{CallSpec, IntArg, Part, ViewOp};
use ir::nest::{Expr, Nest, compute_dtype};
use ir::{Dialect, Onnx};
use kernels::catalog::{Access, BufferDef, Contract};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tensor::{DType, Diagnostic, DimId, ErrorKind, Result, SymId, Tensor, dims};

/// Where a value's producer should write, when it can.
#[derive(Clone, Debug)]
pub(super) enum Dest {
    /// The caller's buffer for a graph output.
    Output(u32),
    /// A place in an assembled value.
    Part { of: Value, start: Vec<DimId> },
    /// The buffer of a value that has the same elements under another shape.
    Reshape { of: Value },
    /// The buffer of a value whose axis `i` is this one's axis `perm[i]`.
    Permute { of: Value, perm: Vec<usize> },
}

/// Emits one region of the HIP dialect.
pub(super) struct Emit<'c, 'a> {
    pub cx: &'c mut Lowering<'a>,
    /// The graph that is written.
    pub dst: RegionId,
    /// Buffers of values.
    pub bind: FxHashMap<(RegionId, Value), BufView>,
    /// Parameters of bodies that stand for a value outside (inlined branches, captured constants).
    pub alias: FxHashMap<(RegionId, Value), (RegionId, Value)>,
    /// Symbols with a value here.
    pub known: FxHashSet<SymId>,
    consts: FxHashMap<ConstId, Value>,
    views: FxHashMap<BufView, Value>,
    dests: FxHashMap<(RegionId, Value), Dest>,
    /// Buffers made before their value's node: graph outputs, assembled values.
    early: FxHashMap<(RegionId, Value), BufView>,
    outputs: FxHashMap<u32, Value>,
    uses: FxHashMap<(RegionId, Value), u32>,
    /// Elements of values that only this graph knows as dims: the number of an iteration.
    pub extra: FxHashMap<(RegionId, Value), Shape>,
    /// The node being emitted.
    pub origin: Origin,
    pub note: usize,
}

/// Emits the main graph.
pub(super) fn main_graph(cx: &mut Lowering, known: FxHashSet<SymId>) -> Result<()> {
    let main = cx.src.main;
    let mut e = Emit::new(cx, main, known);
    let g = &e.cx.src.graphs[main];
    for &v in &g.inputs {
        let t = g.values[v].ty.as_tensor().and_then(|t| Some((t.dtype, t.shape.clone()?)));
        let Some((dtype, shape)) = t else {
            let text = format!("graph input \"{}\" is not a tensor of known rank", g.values[v].name);
            return Err(Diagnostic::new(ErrorKind::Unsupported, text));
        };
        let b = e.param(dtype, &shape, &g.values[v].name);
        e.bind.insert((main, v), b);
    }
    e.plan_dests(main, true);
    for &v in &g.inputs {
        e.read_back(main, v)?;
    }
    e.body(main)?;
    for (i, &v) in g.outputs.iter().enumerate() {
        let i = u32::try_from(i).unwrap_or(u32::MAX);
        e.origin = Origin(format!("output \"{}\"", g.values[v].name).into());
        e.output(main, v, i)?;
    }
    Ok(())
}

impl<'c, 'a> Emit<'c, 'a> {
    pub fn new(cx: &'c mut Lowering<'a>, dst: RegionId, known: FxHashSet<SymId>) -> Emit<'c, 'a> {
        Emit {
            cx,
            dst,
            bind: FxHashMap::default(),
            alias: FxHashMap::default(),
            known,
            consts: FxHashMap::default(),
            views: FxHashMap::default(),
            dests: FxHashMap::default(),
            early: FxHashMap::default(),
            outputs: FxHashMap::default(),
            uses: FxHashMap::default(),
            extra: FxHashMap::default(),
            origin: Origin::default(),
            note: 0,
        }
    }

    /// All nodes of a region of the ONNX dialect.
    pub fn body(&mut self, r: RegionId) -> Result<()> {
        let src = self.cx.src;
        for &n in &src.graphs[r].order {
            let Some(Choice { action, note }) = self.cx.choices.get(&(r, n)).cloned() else { continue };
            self.origin = src.graphs[r].nodes[n].origin.clone();
            self.note = note;
            self.node(r, n, action).map_err(|e| e.node(src.graphs[r].nodes[n].origin.to_string()))?;
        }
        Ok(())
    }

    fn node(&mut self, r: RegionId, n: Node, action: Action) -> Result<()> {
        let src = self.cx.src;
        let node = &src.graphs[r].nodes[n];
        match action {
            Action::Nothing => return Ok(()),
            Action::View(op) => self.view(r, n, &op)?,
            Action::Nest(nest) => self.nest(r, n, nest)?,
            Action::Update(nest) => self.update(r, n, nest)?,
            Action::Assemble(parts) => self.assemble(r, n, &parts)?,
            Action::Call(spec) => self.call(r, n, &spec)?,
            Action::Host => self.host(r, n)?,
            Action::Inline(b) => self.inline(r, n, b)?,
            Action::Branch => self.branch(r, n)?,
            Action::Loop => self.loop_(r, n)?,
        }
        node.outs.iter().try_for_each(|&v| self.read_back(r, v))
    }

    /// Appends an op. Gives its results.
    pub fn push(&mut self, op: HipOp, ins: Vec<Option<Value>>, outs: Vec<(HipType, Arc<str>)>) -> Node {
        let attrs = self.cx.out.attrs.intern(Attrs::default());
        self.push_with(op, attrs, ins, outs, vec![])
    }
    pub fn push_with(
        &mut self,
        op: HipOp,
        attrs: AttrsId,
        ins: Vec<Option<Value>>,
        outs: Vec<(<Hip as Dialect>::Ty, Arc<str>)>,
        regions: Vec<RegionId>,
    ) -> Node {
        let origin = self.origin.clone();
        self.cx.out.graphs[self.dst].add_node(op, attrs, ins, outs, regions, origin)
    }
    fn note(&mut self, text: String) {
        if let Some(n) = self.cx.explain.nodes.get_mut(self.note) {
            n.notes.push(text);
        }
    }

    pub fn contiguous_type(&mut self, dtype: DType, shape: &[DimId], space: Space) -> HipType {
        let strides = views::row_major(&mut self.cx.out.dims, shape);
        HipType { dtype, shape: shape.into(), strides, layout: Layout::Strided, space }
    }
    pub fn whole(&mut self, root: Value, ty: &HipType) -> BufView {
        let offset = self.cx.out.dims.constant(0);
        BufView { root, offset, shape: ty.shape.clone(), strides: ty.strides.clone(), dtype: ty.dtype, space: ty.space }
    }
    /// Adds a parameter of the graph.
    pub fn param(&mut self, dtype: DType, shape: &[DimId], name: &Arc<str>) -> BufView {
        let ty = self.contiguous_type(dtype, shape, Space::Device);
        let root = self.cx.out.graphs[self.dst].add_input(ty.clone(), name.clone());
        self.whole(root, &ty)
    }
    /// Defines a buffer.
    pub fn define(
        &mut self,
        op: HipOp,
        dtype: DType,
        shape: &[DimId],
        space: Space,
        name: Arc<str>,
    ) -> Result<BufView> {
        shape.iter().try_for_each(|&d| self.need_known(d))?;
        let ty = self.contiguous_type(dtype, shape, space);
        let n = self.push(op, vec![], vec![(ty.clone(), name)]);
        let root = self.cx.out.graphs[self.dst].nodes[n].outs[0];
        Ok(self.whole(root, &ty))
    }
    pub fn alloc(&mut self, dtype: DType, shape: &[DimId], space: Space, name: Arc<str>) -> Result<BufView> {
        self.define(HipOp::Alloc, dtype, shape, space, name)
    }

    pub fn is_known(&self, d: DimId) -> bool {
        self.cx.out.dims.as_const(d).is_some() || self.cx.out.dims.symbols_of(d).iter().all(|s| self.known.contains(s))
    }
    pub fn need_known(&self, d: DimId) -> Result<()> {
        if self.is_known(d) {
            return Ok(());
        }
        let dims = &self.cx.out.dims;
        let missing = dims.symbols_of(d).into_iter().find(|s| !self.known.contains(s));
        let name = missing.map_or(String::new(), |s| dims.sym(s).name.clone());
        Err(Diagnostic::new(
            ErrorKind::Unsupported,
            format!("extent {} depends on \"{name}\", which nothing gives a value here", dims.display(d)),
        )
        .help("the extent comes from an operator whose shape rule cannot derive it; give the model static or named dims there"))
    }

    /// The type of a tensor value of the ONNX dialect.
    pub fn tensor_type(&self, r: RegionId, v: Value) -> Result<(DType, Shape)> {
        let data = &self.cx.src.graphs[r].values[v];
        let t = data.ty.as_tensor().and_then(|t| Some((t.dtype, t.shape.clone()?)));
        t.ok_or_else(|| {
            let ty = data.ty.display(&self.cx.src.dims);
            Diagnostic::new(ErrorKind::Unsupported, format!("\"{}\" is {ty}: not a tensor of known rank", data.name))
        })
    }
    pub fn resolve(&self, mut r: RegionId, mut v: Value) -> (RegionId, Value) {
        while let Some(&(a, b)) = self.alias.get(&(r, v)) {
            (r, v) = (a, b);
        }
        (r, v)
    }
    /// The constant behind a value.
    pub fn konst(&self, r: RegionId, v: Value) -> Option<ConstId> {
        let (r, v) = self.resolve(r, v);
        self.cx.src.graphs[r].as_const(v)
    }
    /// Elements that the host knows without reading the value.
    pub fn host_values(&self, r: RegionId, v: Value) -> Option<Shape> {
        let (r2, v2) = self.resolve(r, v);
        (self.cx.host_known(r, v).or_else(|| self.cx.host_known(r2, v2))).or_else(|| self.extra.get(&(r2, v2))).cloned()
    }

    /// The buffer that holds a value; made from dims when the value exists as dims only.
    pub fn buf(&mut self, r: RegionId, v: Value) -> Result<BufView> {
        let key = self.resolve(r, v);
        if let Some(b) = self.bind.get(&key) {
            return Ok(b.clone());
        }
        let (dtype, shape) = self.tensor_type(key.0, key.1)?;
        let name = self.cx.src.graphs[key.0].values[key.1].name.clone();
        let b = if let Some(c) = self.cx.src.graphs[key.0].as_const(key.1) {
            self.constant(c, dtype, &shape, name)
        } else if let Some(x) = self.host_values(key.0, key.1) {
            self.from_dims(dtype, &shape, &x, name)?
        } else {
            return Err(Diagnostic::new(
                ErrorKind::Internal,
                format!("\"{name}\" is used before anything computes it"),
            ));
        };
        self.bind.insert(key, b.clone());
        Ok(b)
    }
    pub fn constant(&mut self, c: ConstId, dtype: DType, shape: &[DimId], name: Arc<str>) -> BufView {
        let ty = self.contiguous_type(dtype, shape, Space::Device);
        let root = match self.consts.get(&c) {
            Some(&v) => v,
            None => {
                let v = self.cx.out.graphs[self.dst].add_const(c, ty.clone(), name);
                self.consts.insert(c, v);
                v
            }
        };
        self.whole(root, &ty)
    }
    /// A tensor of elements that are dims: a constant when they are numbers, else written by the host.
    pub fn from_dims(&mut self, dtype: DType, shape: &[DimId], x: &Shape, name: Arc<str>) -> Result<BufView> {
        let dims = &self.cx.out.dims;
        let ints: Option<Vec<i64>> = x.iter().map(|&d| dims.as_const(d)).collect();
        let extents: Option<Vec<usize>> =
            shape.iter().map(|&d| dims.as_const(d).and_then(|v| usize::try_from(v).ok())).collect();
        if let (Some(ints), Some(extents)) = (ints, extents) {
            let key = (dtype, extents, ints);
            let c = match self.cx.int_consts.get(&key) {
                Some(&c) => c,
                None => {
                    let t = Tensor::from_i64_as(dtype, &key.1, &key.2);
                    let c = self.cx.out.consts.push(Const::from_tensor(name.to_string(), &t));
                    self.cx.int_consts.insert(key, c);
                    c
                }
            };
            return Ok(self.constant(c, dtype, shape, name));
        }
        x.iter().try_for_each(|&d| self.need_known(d))?;
        let b = self.alloc(dtype, shape, Space::HostMapped, name)?;
        self.push(HipOp::StoreDims(x.clone()), vec![Some(b.root)], vec![]);
        Ok(b)
    }

    /// The value that is the view: the root itself, or a `View` of it.
    pub fn value(&mut self, b: &BufView) -> Result<Value> {
        let ty = &self.cx.out.graphs[self.dst].values[b.root].ty;
        let zero = self.cx.out.dims.as_const(b.offset) == Some(0);
        if zero && ty.dtype == b.dtype && ty.shape == b.shape && ty.strides == b.strides {
            return Ok(b.root);
        }
        if let Some(&v) = self.views.get(b) {
            return Ok(v);
        }
        let v = self.new_view(b, "".into())?;
        self.views.insert(b.clone(), v);
        Ok(v)
    }
    pub fn new_view(&mut self, b: &BufView, name: Arc<str>) -> Result<Value> {
        b.shape.iter().chain(&b.strides).chain([&b.offset]).try_for_each(|&d| self.need_known(d))?;
        let ty = HipType {
            dtype: b.dtype,
            shape: b.shape.clone(),
            strides: b.strides.clone(),
            layout: Layout::Strided,
            space: b.space,
        };
        let n = self.push(HipOp::View { offset: b.offset }, vec![Some(b.root)], vec![(ty, name)]);
        Ok(self.cx.out.graphs[self.dst].nodes[n].outs[0])
    }

    /// Whether the elements lie row-major without gaps; packed ones from the start of a byte on.
    pub fn is_contiguous(&mut self, b: &BufView) -> bool {
        let at_byte = |d: i64| d % per_byte(b.dtype) == 0;
        if is_packed(b.dtype) && !self.cx.out.dims.as_const(b.offset).is_some_and(at_byte) {
            return false;
        }
        views::is_contiguous(&mut self.cx.out.dims, &self.cx.eq, &b.shape, &b.strides)
    }
    /// A contiguous view with the strides that its shape alone gives. Those it had may say the same only because it is empty or by what
    /// guards state, which whoever gets the bytes does not ask.
    fn with_own_strides(&mut self, b: &BufView) -> BufView {
        BufView { strides: views::row_major(&mut self.cx.out.dims, &b.shape), ..b.clone() }
    }
    /// Whether two views show the same elements in the same places. What an axis of one element has as a stride does not matter.
    fn same_place(&self, a: &BufView, b: &BufView) -> bool {
        let (dims, eq) = (&self.cx.out.dims, &self.cx.eq);
        let axes = a.shape.iter().zip(&b.shape).zip(a.strides.iter().zip(&b.strides));
        a.root == b.root
            && a.dtype == b.dtype
            && a.shape.len() == b.shape.len()
            && eq.same(a.offset, b.offset)
            && axes
                .into_iter()
                .all(|((&m, &n), (&s, &t))| eq.same(m, n) && (dims.as_const(m) == Some(1) || eq.same(s, t)))
    }
    /// Copies elements to where they are not yet.
    pub fn copy(&mut self, from: &BufView, to: &BufView) -> Result<()> {
        if self.same_place(from, to) {
            return Ok(());
        }
        let plain = self.is_contiguous(from) && self.is_contiguous(to);
        let packed = is_packed(from.dtype);
        let by_bytes = from.space != to.space || compute_dtype(from.dtype).is_none() || packed;
        if plain && by_bytes && (!packed || self.is_whole(to)) {
            let (from, to) = (self.with_own_strides(from), self.with_own_strides(to));
            let (a, b) = (self.value(&from)?, self.value(&to)?);
            self.push(HipOp::Copy, vec![Some(a), Some(b)], vec![]);
        } else if compute_dtype(from.dtype).is_some() {
            let nest = nests::copy(&mut self.cx.out.dims, from.dtype, &to.shape, &from.strides, &to.strides);
            self.launch(nest, &[from.clone(), to.clone()])?;
        } else {
            return Err(Diagnostic::new(ErrorKind::Unsupported, format!("loops cannot copy {}", from.dtype)));
        }
        Ok(())
    }
    /// Whether a view shows all of its buffer in order.
    fn is_whole(&mut self, b: &BufView) -> bool {
        let root = self.cx.out.graphs[self.dst].values[b.root].ty.shape.clone();
        let dims = &mut self.cx.out.dims;
        let (all, shown) = (dims.product(root), dims.product(b.shape.iter().copied()));
        self.cx.out.dims.as_const(b.offset) == Some(0) && self.cx.eq.same(all, shown) && self.is_contiguous(b)
    }
    /// Runs a nest on buffers whose strides it has. Packed operands become bytes.
    fn launch(&mut self, mut nest: Nest, on: &[BufView]) -> Result<()> {
        let mut on = on.to_vec();
        if nest.operands.iter().any(|o| is_packed(o.dtype)) {
            let refuse = |why: String| Diagnostic::new(ErrorKind::Unsupported, why);
            let mut places = vec![];
            for (b, o) in on.iter_mut().zip(&nest.operands) {
                if !is_packed(o.dtype) {
                    places.push(None);
                    continue;
                }
                if o.written && !self.is_whole(b) {
                    return Err(refuse(format!(
                        "a part of a buffer of {} cannot be written: parts share bytes",
                        o.dtype
                    )));
                }
                let root = self.cx.out.graphs[self.dst].values[b.root].ty.shape.clone();
                let dims = &mut self.cx.out.dims;
                let (n, per) = (dims.product(root), dims.constant(per_byte(o.dtype)));
                let (zero, one, n_bytes) = (dims.constant(0), dims.constant(1), dims.ceildiv(n, per));
                places.push(Some(Place { offset: b.offset, n_bytes }));
                let list = |d: DimId| Shape::from_slice(&[d]);
                *b = BufView { offset: zero, shape: list(n_bytes), strides: list(one), dtype: DType::U8, ..b.clone() };
            }
            nest = bytes::over_bytes(&mut self.cx.out.dims, &nest, &places).map_err(|r| refuse(r.0))?;
        }
        let ins = on.iter().map(|b| Ok(Some(self.value(b)?))).collect::<Result<Vec<_>>>()?;
        nests::dims_of(&nest).into_iter().try_for_each(|d| self.need_known(d))?;
        self.push(HipOp::Launch(Arc::new(nest)), ins, vec![]);
        Ok(())
    }
    /// The same elements without gaps: the view itself, or a copy.
    pub fn contiguous(&mut self, b: &BufView, why: &str) -> Result<BufView> {
        if self.is_contiguous(b) {
            return Ok(self.with_own_strides(b));
        }
        self.note(format!("copies an operand: {why}"));
        let to = self.alloc(b.dtype, &b.shape, Space::Device, "".into())?;
        self.copy(b, &to)?;
        Ok(to)
    }

    // --- destinations ---

    /// Finds out, from the end, which values can be written straight to where they are needed.
    fn plan_dests(&mut self, r: RegionId, main: bool) {
        let src = self.cx.src;
        let g = &src.graphs[r];
        for &v in &g.outputs {
            *self.uses.entry((r, v)).or_default() += 1;
        }
        for &n in &g.order {
            if self.cx.choices.get(&(r, n)).is_some_and(|c| !matches!(c.action, Action::Nothing)) {
                for &v in g.nodes[n].ins.iter().flatten() {
                    *self.uses.entry((r, v)).or_default() += 1;
                }
            }
        }
        // Elements that guards alone are about are read, too.
        for &n in &g.order {
            for &v in &g.nodes[n].outs {
                if self.has_elements_to_read(r, v) {
                    self.uses.entry((r, v)).or_insert(1);
                }
            }
        }
        // Values that lie whole in the caller's buffer may have any number of readers.
        let mut whole: FxHashSet<Value> = FxHashSet::default();
        if main {
            for (i, &v) in g.outputs.iter().enumerate() {
                if self.writable(r, v) && !self.dests.contains_key(&(r, v)) {
                    self.dests.insert((r, v), Dest::Output(u32::try_from(i).unwrap_or(u32::MAX)));
                    whole.insert(v);
                }
            }
        }
        for &n in g.order.iter().rev() {
            let node = &g.nodes[n];
            let Some(choice) = self.cx.choices.get(&(r, n)).cloned() else { continue };
            let free =
                |s: &Self, v: Value| s.writable(r, v) && !s.dests.contains_key(&(r, v)) && !g.outputs.contains(&v);
            let once = |s: &Self, v: Value| s.uses.get(&(r, v)) == Some(&1);
            match &choice.action {
                Action::View(op @ (ViewOp::Reshape | ViewOp::Permute(_))) => {
                    let (Some(Some(x)), of) = (node.ins.first().copied(), node.outs[0]) else { continue };
                    let wide = whole.contains(&of);
                    if !free(self, x) || !self.dests.contains_key(&(r, of)) || !(wide || once(self, x)) {
                        continue;
                    }
                    let dest = match op {
                        ViewOp::Permute(perm) => Dest::Permute { of, perm: perm.to_vec() },
                        _ => {
                            if wide {
                                whole.insert(x);
                            }
                            Dest::Reshape { of }
                        }
                    };
                    if !matches!(dest, Dest::Permute { .. }) || once(self, x) {
                        self.dests.insert((r, x), dest);
                    }
                }
                Action::Assemble(parts) => {
                    for p in parts {
                        let Some(Some(x)) = node.ins.get(p.operand).copied() else { continue };
                        if free(self, x) && once(self, x) {
                            self.dests.insert((r, x), Dest::Part { of: node.outs[0], start: p.start.clone() });
                        }
                    }
                }
                _ => {}
            }
        }
    }
    /// Whether a node of the region computes the value on the device.
    fn writable(&self, r: RegionId, v: Value) -> bool {
        let Def::Node(n, _) = self.cx.src.graphs[r].values[v].def else { return false };
        let fits = matches!(
            self.cx.choices.get(&(r, n)).map(|c| &c.action),
            Some(
                Action::View(ViewOp::Reshape | ViewOp::Permute(_))
                    | Action::Nest(_)
                    | Action::Update(_)
                    | Action::Assemble(_)
                    | Action::Call(_)
                    | Action::Host
            )
        );
        fits && self.host_values(r, v).is_none()
    }
    /// The place that `plan_dests` found for a value, when it can exist already.
    fn dest(&mut self, r: RegionId, v: Value) -> Option<BufView> {
        if let Some(b) = self.early.get(&(r, v)) {
            return Some(b.clone());
        }
        let dest = self.dests.get(&(r, v)).cloned()?;
        let (dtype, shape) = self.tensor_type(r, v).ok()?;
        if !shape.iter().all(|&d| self.is_known(d)) {
            return None;
        }
        let name = self.cx.src.graphs[r].values[v].name.clone();
        let b = match dest {
            Dest::Output(i) => {
                let b = self.define(HipOp::Output(i), dtype, &shape, Space::Device, name).ok()?;
                self.outputs.insert(i, b.root);
                b
            }
            Dest::Part { of, start } => {
                if !start.iter().all(|&d| self.is_known(d)) {
                    return None;
                }
                let base = self.dest_or_alloc(r, of)?;
                let offset = views::part(&mut self.cx.out.dims, base.offset, &base.strides, &start);
                BufView { offset, shape, ..base }
            }
            Dest::Reshape { of } => {
                let base = self.dest_or_alloc(r, of)?;
                let strides = views::reshape(&mut self.cx.out.dims, &self.cx.eq, &base.shape, &base.strides, &shape)?;
                BufView { strides, shape, ..base }
            }
            Dest::Permute { of, perm } => {
                let base = self.dest_or_alloc(r, of)?;
                let mut strides = base.strides.clone();
                perm.iter().zip(&base.strides).for_each(|(&p, &s)| strides[p] = s);
                BufView { strides, shape, ..base }
            }
        };
        self.early.insert((r, v), b.clone());
        Some(b)
    }
    fn dest_or_alloc(&mut self, r: RegionId, v: Value) -> Option<BufView> {
        if let Some(b) = self.dest(r, v) {
            return Some(b);
        }
        let (dtype, shape) = self.tensor_type(r, v).ok()?;
        let name = self.cx.src.graphs[r].values[v].name.clone();
        let b = self.alloc(dtype, &shape, Space::Device, name).ok()?;
        self.early.insert((r, v), b.clone());
        Some(b)
    }
    /// The buffer for a node's result, bound to it.
    pub fn result(&mut self, r: RegionId, v: Value, contiguous: bool) -> Result<BufView> {
        let b = match self.dest(r, v) {
            Some(b) if !contiguous || (self.is_contiguous(&b) && (!is_packed(b.dtype) || self.is_whole(&b))) => b,
            _ => {
                let (dtype, shape) = self.tensor_type(r, v)?;
                let name = self.cx.src.graphs[r].values[v].name.clone();
                self.alloc(dtype, &shape, Space::Device, name)?
            }
        };
        self.bind.insert((r, v), b.clone());
        Ok(b)
    }
    fn used(&self, r: RegionId, v: Value) -> bool {
        self.uses.get(&(r, v)).is_some_and(|&n| n > 0)
    }

    /// Hands a value out as graph output `i`.
    fn output(&mut self, r: RegionId, v: Value, i: u32) -> Result<()> {
        let b = self.buf(r, v)?;
        let name = self.cx.src.graphs[r].values[v].name.clone();
        let made = self.outputs.get(&i).copied();
        let value = match made {
            Some(o) if b.root == o => o,
            _ if made.is_none() && b.space == Space::Device && self.is_contiguous(&b) => {
                let b = self.with_own_strides(&b);
                let v = self.new_view(&b, name)?;
                self.push(HipOp::PassOutput(i), vec![Some(v)], vec![]);
                v
            }
            _ => {
                let to = match made {
                    Some(o) => {
                        let ty = self.cx.out.graphs[self.dst].values[o].ty.clone();
                        self.whole(o, &ty)
                    }
                    None => self.define(HipOp::Output(i), b.dtype, &b.shape, Space::Device, name)?,
                };
                self.copy(&b, &to)?;
                to.root
            }
        };
        self.cx.out.graphs[self.dst].outputs.push(value);
        Ok(())
    }

    /// Whether elements of a value are symbols that must be read from it, if nothing before has them.
    fn has_elements_to_read(&self, r: RegionId, v: Value) -> bool {
        let dims = &self.cx.out.dims;
        let symbols = self.cx.info.values(r, v).into_iter().flatten().filter_map(|&d| dims.as_symbol(d));
        symbols.into_iter().any(|s| dims.sym(s).origin == dims::Origin::ShapeValue)
    }
    /// Gives symbols that are elements of a value their values, where nothing else does.
    pub fn read_back(&mut self, r: RegionId, v: Value) -> Result<()> {
        let Some(x) = self.cx.info.values(r, v).cloned() else { return Ok(()) };
        for (k, &d) in x.iter().enumerate() {
            let Some(s) = self.cx.out.dims.as_symbol(d).filter(|s| !self.known.contains(s)) else { continue };
            if self.cx.out.dims.sym(s).origin != dims::Origin::ShapeValue {
                continue;
            }
            let b = self.buf(r, v)?;
            let flat = self.is_contiguous(&b);
            let (at, index) = if flat {
                (b, u32::try_from(k).unwrap_or(u32::MAX))
            } else {
                let k = self.cx.out.dims.constant(i64::try_from(k).unwrap_or(i64::MAX));
                let at = vec![k; b.strides.len()];
                let offset = views::part(&mut self.cx.out.dims, b.offset, &b.strides, &at);
                (BufView { offset, shape: Shape::new(), strides: Shape::new(), ..b }, 0)
            };
            let hi = self.cx.out.dims.sym(s).hi;
            let max = self.cx.out.dims.constant(hi);
            let from = self.value(&at)?;
            self.push(HipOp::Readback { sym: s, index, max }, vec![Some(from)], vec![]);
            self.known.insert(s);
        }
        Ok(())
    }

    // --- nodes ---

    fn view(&mut self, r: RegionId, n: Node, op: &ViewOp) -> Result<()> {
        let node = &self.cx.src.graphs[r].nodes[n];
        let Some(Some(x)) = node.ins.first().copied() else {
            return Err(Diagnostic::new(ErrorKind::Internal, "a view has no operand"));
        };
        let b = self.buf(r, x)?;
        for (i, &v) in node.outs.iter().enumerate() {
            if !self.used(r, v) {
                continue;
            }
            let (dtype, shape) = self.tensor_type(r, v)?;
            let dims = &mut self.cx.out.dims;
            let seen = match op {
                ViewOp::Reshape => match views::reshape(dims, &self.cx.eq, &b.shape, &b.strides, &shape) {
                    Some(strides) => BufView { shape, strides, ..b.clone() },
                    None => {
                        let c = self.contiguous(&b, "no strides give its elements the new shape")?;
                        let strides = views::row_major(&mut self.cx.out.dims, &shape);
                        BufView { shape, strides, ..c }
                    }
                },
                ViewOp::Permute(perm) => BufView { shape, strides: views::permute(&b.strides, perm), ..b.clone() },
                ViewOp::Bits => BufView { dtype, ..b.clone() },
                ViewOp::Broadcast => {
                    let strides = views::broadcast(dims, &self.cx.eq, &b.shape, &b.strides, &shape);
                    BufView { shape, strides, ..b.clone() }
                }
                ViewOp::Slice(steps) => {
                    let (offset, strides) = views::slice(dims, b.offset, &b.strides, steps);
                    BufView { offset, shape, strides, ..b.clone() }
                }
                ViewOp::Select { axis, at, axes } => {
                    let by = dims.mul(*at, b.strides[*axis]);
                    let (offset, zero) = (dims.add(b.offset, by), dims.constant(0));
                    let (before, after) = (&b.strides[..*axis], &b.strides[axis + 1..]);
                    let strides =
                        before.iter().copied().chain(vec![zero; *axes]).chain(after.iter().copied()).collect();
                    BufView { offset, shape, strides, ..b.clone() }
                }
                ViewOp::Parts(all) => {
                    let Some(start) = all.get(i) else {
                        return Err(Diagnostic::new(ErrorKind::Internal, format!("result {i} has no part")));
                    };
                    BufView { offset: views::part(dims, b.offset, &b.strides, start), shape, ..b.clone() }
                }
            };
            self.bind.insert((r, v), seen);
        }
        Ok(())
    }

    /// The literal that every element of a value is.
    fn literal(&self, r: RegionId, v: Value) -> Option<Expr> {
        let (dtype, _) = self.tensor_type(r, v).ok()?;
        if let Some(c) = self.konst(r, v) {
            let c = &self.cx.src.consts[c];
            let compute = compute_dtype(dtype)?;
            // Only where f64 holds the value exactly.
            return match compute {
                d if d.is_float() => c.splat_f64().map(|x| Expr::Float(x.to_bits(), d)),
                d => {
                    let x = c.splat_f64().filter(|x| x.abs() < 2f64.powi(53))?;
                    Some(Expr::Int(x as i64, d))
                }
            };
        }
        match self.host_values(r, v)?.as_slice() {
            [d] if self.is_known(*d) => Some(Expr::Dim(*d)),
            _ => None,
        }
    }

    fn nest(&mut self, r: RegionId, n: Node, mut nest: Nest) -> Result<()> {
        let node = &self.cx.src.graphs[r].nodes[n];
        let reads: Vec<Value> = node.ins.iter().copied().flatten().collect();
        for (k, &v) in reads.iter().enumerate() {
            if let Some(x) = self.literal(r, v) {
                nest = nests::replace_loads(&nest, u16::try_from(k).unwrap_or(u16::MAX), &x);
            }
        }
        let unused: Vec<u16> = node
            .outs
            .iter()
            .enumerate()
            .filter(|(_, v)| !self.used(r, **v))
            .map(|(i, _)| u16::try_from(reads.len() + i).unwrap_or(u16::MAX))
            .collect();
        for p in &mut nest.phases {
            if let ir::nest::Phase::Store { stores, .. } = p {
                stores.retain(|(a, _)| !unused.contains(&a.operand));
            }
        }
        nest.phases.retain(|p| !matches!(p, ir::nest::Phase::Store { stores, .. } if stores.is_empty()));
        let mut nest = nests::simplify(&mut self.cx.out.dims, &nest);
        let kept = nests::prune_operands(&mut nest);
        let mut on = vec![];
        for (k, &at) in kept.iter().enumerate() {
            let b = match reads.get(at) {
                Some(&v) => self.buf(r, v)?,
                None => {
                    let v = node.outs[at - reads.len()];
                    match self.bind.get(&(r, v)) {
                        Some(b) => b.clone(),
                        None => self.result(r, v, is_packed(nest.operands[k].dtype))?,
                    }
                }
            };
            nest.operands[k].shape = b.shape.clone();
            nest.operands[k].strides = b.strides.clone();
            on.push(b);
        }
        self.launch(nest, &on)
    }

    /// The result becomes operand 0, then the nest stores what is new.
    fn update(&mut self, r: RegionId, n: Node, nest: Nest) -> Result<()> {
        let node = &self.cx.src.graphs[r].nodes[n];
        let (Some(Some(x)), out) = (node.ins.first().copied(), node.outs[0]) else {
            return Err(Diagnostic::new(ErrorKind::Internal, "an update has no operand"));
        };
        let from = self.buf(r, x)?;
        let to = self.result(r, out, true)?;
        let (from, to) = (self.value(&from)?, self.value(&to)?);
        let op = if stores_all(&self.cx.out.dims, &nest) { HipOp::Reuse } else { HipOp::Carry };
        self.push(op, vec![Some(from), Some(to)], vec![]);
        self.nest(r, n, nest)
    }

    fn assemble(&mut self, r: RegionId, n: Node, parts: &[Part]) -> Result<()> {
        let node = &self.cx.src.graphs[r].nodes[n];
        let to = self.result(r, node.outs[0], false)?;
        for p in parts {
            let Some(Some(x)) = node.ins.get(p.operand).copied() else { continue };
            let from = self.buf(r, x)?;
            let offset = views::part(&mut self.cx.out.dims, to.offset, &to.strides, &p.start);
            // What was made in its place is there, also where its strides are written in extents that only a guard says are these.
            let placed = matches!(self.dests.get(&(r, x)), Some(Dest::Part { of, .. }) if *of == node.outs[0]);
            if placed && (from.root, from.offset) == (to.root, offset) {
                continue;
            }
            let place = BufView { offset, shape: from.shape.clone(), ..to.clone() };
            self.copy(&from, &place)?;
        }
        Ok(())
    }

    /// An operand of a kernel with strides that the kernel's contract and the row's arguments allow.
    fn call_operand(&mut self, b: BufView, def: &BufferDef, buffer: usize, ints: &[IntArg]) -> Result<BufView> {
        let b = if b.space == Space::Host { self.to_device(&b)? } else { b };
        let b = if b.dtype == def.dtype { b } else { self.convert(&b, def.dtype)? };
        if def.contract == Contract::Contiguous {
            return self.contiguous(&b, &format!("{} must be contiguous", def.name));
        }
        let given = |axis: usize| ints.contains(&IntArg::ReadStride { buffer, axis });
        let dims = &mut self.cx.out.dims;
        let mut fits = true;
        for axis in 0..b.shape.len() {
            // Kernels refuse a negative stride even of an axis with one element.
            let zero = dims.constant(0);
            let ahead = dims.prove_le(zero, b.strides[axis]) == dims::Proof::Yes;
            if dims.as_const(b.shape[axis]) == Some(1) {
                fits &= ahead || !given(axis);
                continue;
            }
            let inner = b.shape[axis + 1..].iter().any(|&d| dims.as_const(d) != Some(1));
            let next = (axis + 1..b.shape.len()).find(|&k| dims.as_const(b.shape[k]) != Some(1));
            let step = match next {
                Some(k) => dims.mul(b.shape[k], b.strides[k]),
                None => dims.constant(1),
            };
            let packed = self.cx.eq.same(b.strides[axis], step);
            let must_be_one = !inner && def.contract == Contract::InnerContiguous;
            fits &= packed || (given(axis) && !must_be_one && ahead);
        }
        match fits {
            true => Ok(b),
            false => self.contiguous(&b, &format!("the kernel does not take these strides of {}", def.name)),
        }
    }
    /// The elements as another type, in memory of their own.
    fn convert(&mut self, b: &BufView, dtype: DType) -> Result<BufView> {
        self.note(format!("converts an operand from {} to {dtype}", b.dtype));
        let to = self.alloc(dtype, &b.shape, Space::Device, "".into())?;
        let nest = nests::convert(&mut self.cx.out.dims, (b.dtype, &b.strides), (dtype, &to.strides), &b.shape);
        self.launch(nest, &[b.clone(), to.clone()])?;
        Ok(to)
    }
    fn to_device(&mut self, b: &BufView) -> Result<BufView> {
        let to = self.alloc(b.dtype, &b.shape, Space::Device, "".into())?;
        self.copy(b, &to)?;
        Ok(to)
    }

    fn call(&mut self, r: RegionId, n: Node, spec: &CallSpec) -> Result<()> {
        let node = &self.cx.src.graphs[r].nodes[n];
        let internal = |what: String| Diagnostic::new(ErrorKind::Internal, what);
        let def = kernel(spec.kernel).ok_or_else(|| internal(format!("the catalog has no {}", spec.kernel)))?;
        let mut reads: Vec<Option<BufView>> = vec![];
        let defs = def.buffers.iter().filter(|b| b.access == Access::Read);
        for (i, (at, bd)) in spec.reads.iter().zip(defs).enumerate() {
            reads.push(match at.and_then(|k| node.ins.get(k).copied().flatten()) {
                Some(v) => {
                    let b = self.buf(r, v)?;
                    Some(self.call_operand(b, bd, i, &spec.ints)?)
                }
                None => None,
            });
        }
        let mut ins: Vec<Option<Value>> = vec![];
        for b in &reads {
            ins.push(b.as_ref().map(|b| self.value(b)).transpose()?);
        }
        self.count_first(r, n, spec, &reads)?;
        for &w in &spec.writes {
            let b = self.result(r, node.outs[w], true)?;
            ins.push(Some(self.value(&b)?));
        }
        for &bytes in &spec.scratch {
            let b = self.alloc(DType::U8, &[bytes], Space::Device, "".into())?;
            ins.push(Some(b.root));
        }
        let mut ints = vec![];
        for a in &spec.ints {
            ints.push(match *a {
                IntArg::Dim(d) => d,
                IntArg::ReadStride { buffer, axis } => {
                    let b = reads.get(buffer).and_then(|b| b.as_ref());
                    let s = b.and_then(|b| b.strides.get(axis)).copied();
                    s.ok_or_else(|| internal(format!("{} has no axis {axis} of operand {buffer}", spec.kernel)))?
                }
            });
        }
        ints.iter().try_for_each(|&d| self.need_known(d))?;
        let n_reads = u32::try_from(reads.len()).unwrap_or(u32::MAX);
        let scalars = spec.scalars.iter().map(|x| x.to_bits()).collect();
        let call = Call { kernel: def.name, n_reads, ints, scalars };
        self.push(HipOp::Call(Arc::new(call)), ins, vec![]);
        Ok(())
    }

    /// Where an extent of the result is known only to the device (`x_fill.t`), runs the kernel that counts (`x_count.t`) and reads
    /// the number back.
    fn count_first(&mut self, r: RegionId, n: Node, spec: &CallSpec, reads: &[Option<BufView>]) -> Result<()> {
        let node = &self.cx.src.graphs[r].nodes[n];
        let mut missing: Vec<SymId> = vec![];
        for &w in &spec.writes {
            let (_, shape) = self.tensor_type(r, node.outs[w])?;
            for d in shape {
                missing.extend(self.cx.out.dims.symbols_of(d).into_iter().filter(|s| !self.known.contains(s)));
            }
        }
        let Some(&sym) = missing.first() else { return Ok(()) };
        let count = spec.kernel.replace("_fill.", "_count.");
        let count = kernel(&count).filter(|k| k.name != spec.kernel && k.ints.len() == 1);
        let (Some(count), 1, Some(Some(x))) = (count, missing.len(), reads.first()) else {
            return Ok(()); // the destination's check says which extent is missing
        };
        let n_elems = self.cx.out.dims.product(x.shape.iter().copied());
        let x = self.value(x)?;
        let to = self.alloc(DType::I64, &[], Space::Device, "".into())?;
        let call = Call { kernel: count.name, n_reads: 1, ints: vec![n_elems], scalars: vec![] };
        self.push(HipOp::Call(Arc::new(call)), vec![Some(x), Some(to.root)], vec![]);
        self.push(HipOp::Readback { sym, index: 0, max: n_elems }, vec![Some(to.root)], vec![]);
        self.known.insert(sym);
        Ok(())
    }

    fn host(&mut self, r: RegionId, n: Node) -> Result<()> {
        let node = &self.cx.src.graphs[r].nodes[n];
        let mut ins = vec![];
        for &v in &node.ins {
            ins.push(match v {
                None => None,
                Some(v) => {
                    let b = self.buf(r, v)?;
                    let b = self.contiguous(&b, "a host op takes contiguous operands")?;
                    let b = if b.space == Space::Device {
                        let to = self.alloc(b.dtype, &b.shape, Space::Host, "".into())?;
                        self.copy(&b, &to)?;
                        to
                    } else {
                        b
                    };
                    Some(self.value(&b)?)
                }
            });
        }
        let n_reads = u32::try_from(ins.len()).unwrap_or(u32::MAX);
        let mut back = vec![];
        for &v in &node.outs {
            let (dtype, shape) = self.tensor_type(r, v)?;
            let b = self.alloc(dtype, &shape, Space::Host, "".into())?;
            ins.push(Some(b.root));
            back.push((v, b));
        }
        let attrs = self.cx.out.attrs.intern(self.cx.src.attrs[node.attrs].clone());
        self.push_with(HipOp::HostCall { op: node.op, n_reads }, attrs, ins, vec![], vec![]);
        for (v, b) in back {
            if self.used(r, v) {
                let to = self.result(r, v, true)?;
                self.copy(&b, &to)?;
            }
        }
        Ok(())
    }

    /// A branch whose condition is a constant: its nodes, here.
    fn inline(&mut self, r: RegionId, n: Node, body: RegionId) -> Result<()> {
        let src: &ir::Module<Onnx> = self.cx.src;
        let node = &src.graphs[r].nodes[n];
        let g = &src.graphs[body];
        let caps = &node.ins[node.ins.len() - node.n_captures as usize..];
        let own = g.inputs.len().saturating_sub(caps.len());
        for (&p, v) in g.inputs[own..].iter().zip(caps) {
            if let Some(v) = v {
                self.alias.insert((body, p), (r, *v));
            }
        }
        self.plan_dests(body, false);
        let (origin, note) = (self.origin.clone(), self.note);
        g.inputs.iter().try_for_each(|&p| self.read_back(body, p))?;
        self.body(body)?;
        (self.origin, self.note) = (origin, note);
        for (&out, &v) in node.outs.iter().zip(&g.outputs) {
            let b = self.buf(body, v)?;
            self.bind.insert((r, out), b);
        }
        Ok(())
    }

    /// Lets the producer of a result of the body write to `place`, when it can.
    pub fn write_to(&mut self, r: RegionId, v: Value, place: &BufView) {
        if self.writable(r, v) && self.uses.get(&(r, v)) == Some(&1) {
            self.early.insert((r, v), place.clone());
        }
    }

    /// Plans destinations of a body that is emitted into a graph of its own.
    pub fn plan_body(&mut self, r: RegionId) {
        self.plan_dests(r, false);
    }
}

/// Whether a nest of one result stores every element of it, and loads none: a point for each.
fn stores_all(dims: &tensor::DimPool, nest: &Nest) -> bool {
    let Some(result) = nest.operands.iter().position(|o| o.written) else { return false };
    let [ir::nest::Phase::Store { over_inner: false, stores }] = nest.phases.as_slice() else { return false };
    let own = |(i, c): (usize, &ir::nest::Coord)| {
        let axis = ir::nest::Axis::Outer(u16::try_from(i).unwrap_or(u16::MAX));
        let step = |k: DimId| dims.as_const(k) == Some(1);
        dims.as_const(c.offset) == Some(0)
            && matches!(c.terms.as_slice(), [(ir::nest::Term::Axis(a), k)] if *a == axis && step(*k))
    };
    let loads =
        |e: &Expr| matches!(e, Expr::Load(a) | Expr::LoadIf { access: a, .. } if usize::from(a.operand) == result);
    nest.operands[result].shape.as_slice() == nest.outer.as_slice()
        && stores.iter().all(|(a, _)| a.coords.iter().enumerate().all(own))
        && !nest.exprs.iter().any(loads)
}
