//! ONNX dialect to HIP dialect: every node takes the first candidate of its row that accepts.
//!
//! First all nodes choose, so that one error lists every node that nothing can run; then each region is emitted in order.

mod choose;
mod control;
mod emit;

use crate::explain::Explain;
use crate::views::Equalities;
use ir::graph::{Node, RegionId, Value};
use ir::hip::Hip;
use ir::infer::Info;
use ir::{Graph, Module, Onnx, Shape};
use rustc_hash::FxHashMap;
use tensor::dims::Origin;
use tensor::{PrimaryMap, Result, SymId};

/// What lowering may do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether ops may run on the host when nothing else takes them.
    pub host_ops: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { host_ops: true }
    }
}

/// Lowers a module whose types and shape values are inferred.
///
/// # Errors
/// `Unsupported`, one error for all nodes that no candidate takes, with the reasons; `Unsupported` where an extent has no source.
pub fn to_hip(m: &Module<Onnx>, info: &Info, options: &Options) -> Result<(Module<Hip>, Explain)> {
    let mut cx = Lowering {
        src: m,
        info,
        eq: Equalities::new(&m.guards),
        choices: FxHashMap::default(),
        explain: Explain::default(),
        out: Module {
            registry: m.registry.clone(),
            dims: m.dims.clone(),
            attrs: m.attrs.clone(),
            consts: m.consts.clone(),
            graphs: PrimaryMap::new(),
            main: m.main,
            guards: m.guards.clone(),
            defaults: m.defaults.clone(),
            meta: m.meta.clone(),
        },
        int_consts: FxHashMap::default(),
        iterations: FxHashMap::default(),
        below: vec![],
    };
    choose::choose(&mut cx, options)?;
    // Regions keep their ids: a node's bodies are emitted where the node stands.
    for _ in m.graphs.keys() {
        cx.out.graphs.push(Graph::default());
    }
    let mut known: rustc_hash::FxHashSet<SymId> = rustc_hash::FxHashSet::default();
    for (s, sym) in m.dims.symbols() {
        if matches!(sym.origin, Origin::Input { .. }) {
            known.insert(s);
        }
    }
    emit::main_graph(&mut cx, known)?;
    for r in m.graphs.keys() {
        crate::dead::remove_dead(&mut cx.out, r);
    }
    Ok((cx.out, cx.explain))
}

/// State of one lowering.
struct Lowering<'a> {
    src: &'a Module<Onnx>,
    info: &'a Info,
    eq: Equalities,
    choices: FxHashMap<(RegionId, Node), choose::Choice>,
    explain: Explain,
    out: Module<Hip>,
    /// Constants made for shape values whose elements are numbers.
    int_consts: FxHashMap<(tensor::DType, Vec<usize>, Vec<i64>), ir::consts::ConstId>,
    /// The number of the iteration, by the loop's body.
    iterations: FxHashMap<RegionId, tensor::DimId>,
    /// Numbers of iterations with the trip counts that they stay below, where those are known before the loop.
    below: Vec<(tensor::DimId, tensor::DimId)>,
}

impl Lowering<'_> {
    /// Elements of a tensor that needs no tensor at run time: every symbol in them is known to the host anyway. An element that must be
    /// read back from the device is better left there; extents (Shape, Size) are known once there is a tensor that has them.
    fn host_known(&self, r: RegionId, v: Value) -> Option<&Shape> {
        let elems = self.info.values(r, v)?;
        let extents = self.src.graphs[r].def_node(v).is_some_and(|n| self.src.registry[n.op].lower.is_empty());
        let cheap = |s: SymId| !matches!(self.src.dims.sym(s).origin, Origin::ShapeValue | Origin::Unknown);
        let known = extents || elems.iter().all(|&d| self.out.dims.symbols_of(d).into_iter().all(cheap));
        known.then_some(elems)
    }
}
