//! Modules, graphs, nodes and values: arenas with `u32` keys, generic over the dialect.

use crate::attrs::{AttrPool, Attrs, AttrsId};
use crate::consts::{Const, ConstId};
use crate::op::{OpId, Registry};
use crate::ty::Type;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::{DimId, DimPool, PrimaryMap, Result, Tensor};

tensor::entity! {
    /// A value of a [`Graph`].
    pub struct Value, "v"
}
tensor::entity! {
    /// A node of a [`Graph`].
    pub struct Node, "n"
}
tensor::entity! {
    /// A graph of a [`Module`]: the main graph or the body of a control-flow op.
    pub struct RegionId, "r"
}

/// What distinguishes the ONNX dialect ([`Onnx`]) from the HIP dialect ([`crate::hip::Hip`]).
pub trait Dialect: Clone + std::fmt::Debug + 'static {
    /// What a node does.
    type Op: Clone + std::fmt::Debug + PartialEq;
    /// The type of a value.
    type Ty: Clone + std::fmt::Debug + PartialEq;
}

/// The ONNX dialect: ops are rows of the [`Registry`], values are immutable tensors (and sequences, optionals, maps).
#[derive(Clone, Debug)]
pub struct Onnx;

impl Dialect for Onnx {
    type Op = OpId;
    type Ty = Type;
}

/// A model: graphs over shared pools.
#[derive(Clone, Debug)]
pub struct Module<D: Dialect> {
    /// The operator rows that ids refer to.
    pub registry: Arc<Registry>,
    /// Symbolic extents.
    pub dims: DimPool,
    /// Attribute lists.
    pub attrs: AttrPool,
    /// Constants.
    pub consts: PrimaryMap<ConstId, Const>,
    /// Every graph; nodes refer to their bodies by id.
    pub graphs: PrimaryMap<RegionId, Graph<D>>,
    /// The main graph.
    pub main: RegionId,
    /// Facts assumed at compile time, checked at the run's entry.
    pub guards: Vec<Guard>,
    /// What inputs of the main graph are where the caller gives nothing, by position. They are no constants: the caller may give others.
    pub defaults: BTreeMap<u32, ConstId>,
    /// Provenance.
    pub meta: Meta,
}

/// Where a model comes from; travels unchanged into the artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Name of the main graph.
    pub name: String,
    /// The exporter and its version.
    pub producer: String,
    /// Imported operator sets: domain and version.
    pub opsets: Vec<(String, i64)>,
    /// The model's own key-value pairs.
    pub props: Vec<(String, String)>,
}

/// A fact about extents that must hold for the compiled code to be right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// Left side.
    pub lhs: DimId,
    /// The relation.
    pub rel: Rel,
    /// Right side.
    pub rhs: DimId,
    /// The sentence for the user when it fails, without the numbers: which input or node needs it.
    pub why: String,
    /// The node that needs it: a path as in diagnostics, empty for declared input shapes.
    pub node: String,
}

/// A relation of a [`Guard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rel {
    /// Equal.
    Eq,
    /// Less or equal.
    Le,
    /// Not equal.
    Ne,
}

/// One single-block region in SSA form. Bodies are isolated: what they capture are operands of the owning node that come
/// after its own, and parameters of the body that come after its own (the same captures for every body of a node).
#[derive(Clone, Debug)]
pub struct Graph<D: Dialect> {
    /// Every value ever made; unused ones stay.
    pub values: PrimaryMap<Value, ValueData<D>>,
    /// Every node ever made; only those in `order` exist.
    pub nodes: PrimaryMap<Node, NodeData<D>>,
    /// Execution order; operands come before users.
    pub order: Vec<Node>,
    /// Parameters.
    pub inputs: Vec<Value>,
    /// Results; a value may appear twice and may be an input. A result's name is that of its value: who puts another value in its place
    /// hands the name on ([`ValueData::name`]), or the model's interface changes.
    pub outputs: Vec<Value>,
}

/// A value.
#[derive(Clone, Debug)]
pub struct ValueData<D: Dialect> {
    /// Its type.
    pub ty: D::Ty,
    /// What defines it.
    pub def: Def,
    /// The model's name for it; empty if it has none.
    pub name: Arc<str>,
}

/// What defines a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Def {
    /// Parameter `i` of the graph.
    Input(u32),
    /// Result `i` of a node.
    Node(Node, u32),
    /// A constant.
    Const(ConstId),
}

/// A node.
#[derive(Clone, Debug)]
pub struct NodeData<D: Dialect> {
    /// What it does.
    pub op: D::Op,
    /// Attributes in the order of the op's row.
    pub attrs: AttrsId,
    /// Operands; `None` where an optional one is absent.
    pub ins: SmallVec<[Option<Value>; 4]>,
    /// Results; an absent optional result has a value without uses.
    pub outs: SmallVec<[Value; 2]>,
    /// Bodies of control-flow ops, in the order of the row's graph attributes.
    pub regions: SmallVec<[RegionId; 2]>,
    /// How many of the last operands are captures of the bodies (see [`Graph`]); 0 without bodies.
    pub n_captures: u32,
    /// The node of the model it comes from.
    pub origin: Origin,
}

/// The path of the model node something comes from (`/encoder/layer.3/attn/q/MatMul`); several when fused. Shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Origin(pub Arc<str>);

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<D: Dialect> Default for Graph<D> {
    fn default() -> Self {
        Graph {
            values: PrimaryMap::new(),
            nodes: PrimaryMap::new(),
            order: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }
}

impl<D: Dialect> Graph<D> {
    /// Adds a parameter.
    pub fn add_input(&mut self, ty: D::Ty, name: impl Into<Arc<str>>) -> Value {
        let i = u32::try_from(self.inputs.len()).unwrap_or(u32::MAX);
        let v = self.values.push(ValueData { ty, def: Def::Input(i), name: name.into() });
        self.inputs.push(v);
        v
    }
    /// Adds a value for a constant of the module.
    pub fn add_const(&mut self, c: ConstId, ty: D::Ty, name: impl Into<Arc<str>>) -> Value {
        self.values.push(ValueData { ty, def: Def::Const(c), name: name.into() })
    }
    /// Appends a node with one result per entry of `outs` (type and name). Where bodies capture operands, set
    /// [`NodeData::n_captures`] afterwards.
    pub fn add_node(
        &mut self,
        op: D::Op,
        attrs: AttrsId,
        ins: impl IntoIterator<Item = Option<Value>>,
        outs: impl IntoIterator<Item = (D::Ty, Arc<str>)>,
        regions: impl IntoIterator<Item = RegionId>,
        origin: Origin,
    ) -> Node {
        let n = self.nodes.push(NodeData {
            op,
            attrs,
            ins: ins.into_iter().collect(),
            outs: SmallVec::new(),
            regions: regions.into_iter().collect(),
            n_captures: 0,
            origin,
        });
        for (i, (ty, name)) in outs.into_iter().enumerate() {
            let def = Def::Node(n, u32::try_from(i).unwrap_or(u32::MAX));
            let v = self.values.push(ValueData { ty, def, name });
            self.nodes[n].outs.push(v);
        }
        self.order.push(n);
        n
    }
    /// The node that defines `v`, if a node does.
    pub fn def_node(&self, v: Value) -> Option<&NodeData<D>> {
        match self.values[v].def {
            Def::Node(n, _) => Some(&self.nodes[n]),
            _ => None,
        }
    }
    /// The constant behind `v`, if it is one.
    pub fn as_const(&self, v: Value) -> Option<ConstId> {
        match self.values[v].def {
            Def::Const(c) => Some(c),
            _ => None,
        }
    }
    /// Removes nodes without effect on the outputs. `has_effect` keeps a node whatever its uses.
    pub fn remove_dead(&mut self, has_effect: impl Fn(&NodeData<D>) -> bool) {
        let mut live = vec![false; self.values.len()];
        let idx = tensor::Entity::index;
        self.outputs.iter().for_each(|&v: &Value| live[idx(v)] = true);
        let mut keep = vec![];
        for &n in self.order.iter().rev() {
            let node = &self.nodes[n];
            if has_effect(node) || node.outs.iter().any(|&v| live[idx(v)]) {
                node.ins.iter().flatten().for_each(|&v| live[idx(v)] = true);
                keep.push(n);
            }
        }
        keep.reverse();
        self.order = keep;
    }
}

impl<D: Dialect> Module<D> {
    /// An empty module with an empty main graph.
    pub fn new(registry: Arc<Registry>) -> Module<D> {
        let mut graphs = PrimaryMap::new();
        let main = graphs.push(Graph::default());
        Module {
            registry,
            dims: DimPool::new(),
            attrs: AttrPool::default(),
            consts: PrimaryMap::new(),
            graphs,
            main,
            guards: Vec::new(),
            defaults: BTreeMap::new(),
            meta: Meta::default(),
        }
    }
    /// What an input of the main graph is where the caller gives nothing, if it has a default. Reads it.
    ///
    /// # Errors
    /// What reading the constant gives.
    pub fn default_input(&self, index: usize) -> Result<Option<Tensor>> {
        let konst = u32::try_from(index).ok().and_then(|i| self.defaults.get(&i));
        konst.map(|&c| self.consts[c].read()).transpose()
    }
    /// The main graph.
    pub fn graph(&self) -> &Graph<D> {
        &self.graphs[self.main]
    }
    /// The main graph, mutably.
    pub fn graph_mut(&mut self) -> &mut Graph<D> {
        &mut self.graphs[self.main]
    }
    /// A graph again, with the bodies in it.
    pub fn copy_region(&mut self, r: RegionId) -> RegionId {
        let mut g = self.graphs[r].clone();
        for &n in &g.order {
            for body in &mut g.nodes[n].regions {
                *body = self.copy_region(*body);
            }
        }
        self.graphs.push(g)
    }
    /// The attributes of a node.
    pub fn attrs_of(&self, n: &NodeData<D>) -> &Attrs {
        &self.attrs[n.attrs]
    }
}
