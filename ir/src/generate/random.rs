//! Random models from the rows of ai.onnx and com.microsoft: several operators deep, odd extents, empty tensors, axes and steps from both
//! ends, every row and element type about equally often.
//!
//! A [`Sampler`] draws nodes from cases and templates of rows, changes their extents and attributes, feeds them with what earlier nodes
//! gave, and keeps what inference accepts and the reference functions compute. The numbers stay such that right answers agree: a value that
//! differs between two right runs by its rounding never reaches an operator that would turn the difference into another
//! integer, position or sign, and sums that cancel are left out (see [`Sampler::sample`]).

mod agreed;
mod body;
mod cases;
mod microsoft;
mod node;
mod pick;
mod template;

#[cfg(test)]
pub(crate) use cases::{elementwise_case, movement_case};

use super::Random as Seeds;
use crate::cases::Random;
use crate::consts::Const;
use crate::{Module, Onnx, OpId, Registry, Type, Value};
use node::Known;
use pick::Pairs;
pub use pick::Peer;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::dims::Origin;
use tensor::{DType, Tensor};

/// A row and the element type of its first type variable: what is counted.
pub type Pair = (OpId, DType);

/// A random model, inputs for it, and what the interpreter computes from them.
pub struct Sample {
    /// The model.
    pub module: Module<Onnx>,
    /// Its inputs.
    pub inputs: Vec<Tensor>,
    /// What the reference functions gave for its outputs.
    pub outputs: Vec<Tensor>,
    /// The rows in it with their element types.
    pub pairs: Vec<Pair>,
    /// Whether another implementation was said to run each of them.
    pub shared: bool,
}

/// Draws random models; the same seed gives the same ones.
pub struct Sampler {
    registry: Arc<Registry>,
    random: Random,
    pairs: Pairs,
}

/// Nodes of a model, at most; of those that no other implementation runs, whose rows would else come up too seldom.
const NODES: (u64, u64) = (14, 40);
/// Of sixteen models, those made of what another implementation runs, where that is known.
const SHARED: u64 = 12;
/// How often a model is begun before the pair that it began with is given up for this time.
const TRIES: usize = 64;

impl Sampler {
    /// A sampler of all rows of ai.onnx and com.microsoft that have a reference function, or of those of one `domain`. `peer` says which of
    /// them another implementation runs, if that is known: most models are then made of those alone.
    pub fn new(registry: Arc<Registry>, seed: u64, peer: Option<Peer>, domain: Option<&str>) -> Sampler {
        let pairs = Pairs::new(&registry, peer, domain);
        Sampler { registry, random: Random::new(Seeds(seed).next()), pairs }
    }
    /// How often each pair has been drawn.
    pub fn coverage(&self) -> Vec<(Pair, u32)> {
        self.pairs.counts()
    }
    /// Models of one node: the unchanged cases of the row that serve the element type; at the newest opset of the row.
    pub fn singles(&mut self, pair: Pair) -> impl Iterator<Item = Sample> {
        let newest = *self.pairs.opsets(pair.0).end();
        (0..self.registry[pair.0].cases.len()).filter_map(move |nth| {
            let mut draft = Draft::new(&self.registry, newest, false, Some(Arc::default()));
            if draft.add_case(pair, nth, &mut self.random) { draft.finish(&mut self.random) } else { None }
        })
    }
    /// The opsets at which a row has its meaning.
    pub fn opsets(&self, row: OpId) -> std::ops::RangeInclusive<i64> {
        self.pairs.opsets(row)
    }
    /// The next model: it begins with the pair drawn least often.
    pub fn sample(&mut self) -> Sample {
        loop {
            let shared = self.pairs.peer().is_some() && self.random.below(16) < SHARED;
            let first = self.pairs.least(shared, &mut self.random);
            for _ in 0..TRIES {
                if let Some(mut s) = self.model(first, shared) {
                    s.pairs.iter().for_each(|&p| self.pairs.count(p));
                    s.shared = shared;
                    return s;
                }
            }
            // Left for later, so that others come first.
            self.pairs.give_up(first, shared);
        }
    }
    fn model(&mut self, first: Pair, shared: bool) -> Option<Sample> {
        let opset = self.pairs.opset(first, shared, &mut self.random);
        let dynamic = self.random.below(3) > 0;
        let peer = self.pairs.peer().filter(|_| shared).cloned();
        let mut draft = Draft::new(&self.registry, opset, dynamic, peer);
        if !draft.add(first, &mut self.random) {
            return None;
        }
        let n = 1 + self.random.below(if shared { NODES.0 } else { NODES.1 } - 1);
        // Nodes that only bring a value to other extents do not count.
        let mut added = 0;
        for _ in 0..2 * n {
            if added == n {
                break;
            }
            if self.random.below(12) == 0 {
                draft.add_body(&mut self.random);
                continue;
            }
            let next = self.pairs.next(opset, shared, &mut self.random)?;
            if draft.add(next, &mut self.random) {
                added += 1;
            } else {
                self.pairs.missed(next, shared);
            }
        }
        draft.finish(&mut self.random)
    }
}

/// A model under construction.
struct Draft {
    m: Module<Onnx>,
    /// What is known of each value of the main graph, in the order made.
    known: Vec<(Value, Known)>,
    inputs: Vec<Tensor>,
    pairs: Vec<Pair>,
    opset: i64,
    /// Whether extents of inputs may be symbols.
    dynamic: bool,
    /// What the other implementation runs that is to run this model, too: where the two read the text in different ways, or stop at different
    /// numbers, it is left out.
    peer: Option<Arc<Peer>>,
}

impl Draft {
    fn new(registry: &Arc<Registry>, opset: i64, dynamic: bool, peer: Option<Arc<Peer>>) -> Draft {
        let mut m = Module::new(registry.clone());
        m.meta.name = "random".into();
        m.meta.opsets = vec![(String::new(), opset)];
        Draft { m, known: vec![], inputs: vec![], pairs: vec![], opset, dynamic, peer }
    }
    /// A graph input with this value. In a dynamic model its extents may be symbols, where these are allowed, one for all axes of equal
    /// extents.
    fn input(&mut self, t: &Tensor, symbols: bool, random: &mut Random) -> Value {
        let input = u32::try_from(self.inputs.len()).unwrap_or(u32::MAX);
        let mut shape: SmallVec<[_; 4]> = SmallVec::new();
        for (axis, &n) in t.shape().iter().enumerate() {
            // A file has no extents of 0: they are read as symbols.
            let dim = if n == 0 || symbols && self.dynamic && n > 1 && random.below(3) > 0 {
                let name = format!("n{n}");
                match self.m.dims.find_symbol(&name) {
                    Some(s) => self.m.dims.sym_dim(s),
                    None => {
                        let axis = u32::try_from(axis).unwrap_or(u32::MAX);
                        self.m.dims.symbol(&name, Origin::Input { input, axis })
                    }
                }
            } else {
                self.m.dims.constant(i64::try_from(n).unwrap_or(i64::MAX))
            };
            shape.push(dim);
        }
        self.inputs.push(t.clone());
        self.m.graph_mut().add_input(Type::tensor(t.dtype(), shape), format!("x{input}"))
    }
    /// An initializer.
    fn constant(&mut self, t: &Tensor) -> Value {
        let dims: SmallVec<[_; 4]> =
            t.shape().iter().map(|&n| self.m.dims.constant(i64::try_from(n).unwrap_or(i64::MAX))).collect();
        let name = format!("c{}", self.m.consts.len());
        let c = self.m.consts.push(Const::from_tensor(name.as_str(), t));
        self.m.graph_mut().add_const(c, Type::tensor(t.dtype(), dims), name)
    }
    /// Whether inference and the verifier take the model and its guards hold for the inputs.
    fn is_valid(&self) -> bool {
        let mut m = self.m.clone();
        crate::infer::infer(&mut m).is_ok_and(|info| info.unknown.is_empty())
            && crate::verify::verify_onnx(&m).is_ok()
            && crate::interp::check_inputs(&m, &self.inputs).is_ok()
    }
    /// The model with every value that nothing uses as an output, and some others; `None` when it is no valid model after all.
    fn finish(mut self, random: &mut Random) -> Option<Sample> {
        let g = self.m.graph();
        let used: FxHashSet<Value> = g.order.iter().flat_map(|&n| g.nodes[n].ins.iter().flatten().copied()).collect();
        let results: Vec<usize> =
            (0..self.known.len()).filter(|&i| self.m.graph().def_node(self.known[i].0).is_some()).collect();
        let mut outputs = vec![];
        for i in results {
            let (v, known) = self.known[i].clone();
            if !used.contains(&v) || (random.below(6) == 0) {
                let (v, known) = self.handed_over(v, known);
                self.m.graph_mut().outputs.push(v);
                outputs.push(known.value);
            }
        }
        // Names of outputs are what a comparison goes by.
        for (i, v) in self.m.graph().outputs.clone().into_iter().enumerate() {
            self.m.graph_mut().values[v].name = format!("y{i}").into();
        }
        let valid = !outputs.is_empty() && self.is_valid();
        let Draft { m: module, inputs, pairs, .. } = self;
        valid.then_some(Sample { module, inputs, outputs, pairs, shared: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_models_are_valid_deep_and_the_same_again() {
        let sampler = || Sampler::new(Registry::builtin(), 5, None, None);
        let (mut a, mut b) = (sampler(), sampler());
        let (mut nodes, mut empty, mut bodies) = (0, 0, 0);
        for i in 0..150 {
            let s = a.sample();
            let again = b.sample();
            assert_eq!(crate::text::print_onnx(&s.module), crate::text::print_onnx(&again.module));
            let text = crate::text::print_onnx(&s.module);
            let mut m = s.module.clone();
            crate::infer::infer(&mut m).unwrap_or_else(|e| panic!("model {i}: {e}\n{text}"));
            crate::verify::verify_onnx(&m).unwrap_or_else(|e| panic!("model {i}: {e}\n{text}"));
            let got = crate::interp::run(&m, &s.inputs).unwrap_or_else(|e| panic!("model {i}: {e}\n{text}"));
            for (x, y) in got.iter().zip(&s.outputs) {
                let r = tensor::compare::compare(x, y, tensor::compare::Tolerance::Exact).unwrap();
                assert!(r.ok(), "model {i}: {r}\n{text}");
            }
            crate::export::to_onnx(&s.module).unwrap_or_else(|e| panic!("model {i}: {e}\n{text}"));
            nodes += s.pairs.len();
            empty += usize::from(s.outputs.iter().any(|t| t.n_elems() == 0));
            bodies += usize::from(s.module.graphs.len() > 1);
        }
        assert!(nodes > 600, "{nodes} nodes in 150 models");
        assert!(empty > 2 && bodies > 5, "{empty} models with empty tensors, {bodies} with bodies");
    }
}
