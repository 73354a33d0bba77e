//! Generated models of any size: chains, mixed graphs, decoder stacks in primitive operators as exporters write them.
//!
//! The same request gives the same module. Types are left to inference.

mod dag;
mod decoder;
mod networks;
pub mod random;

pub use dag::{chain, dag};
pub use decoder::decoder;
pub use networks::{encoder, resnet50};

use crate::attrs::{Attr, Attrs};
use crate::consts::{Const, ConstData};
use crate::{Module, Onnx, OpId, Origin, Registry, Type, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::dims::Origin as DimOrigin;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// Most nodes, or layers, of a request by text.
pub const MOST: usize = 1_000_000;
/// Different weights of one shape in a generated model.
pub const WEIGHTS: usize = 32;

/// What [`from_spec`] understands.
pub const SPECS: &str =
    "dag:NODES, dag:NODES:SEED, chain:NODES, decoder:LAYERS, encoder:LAYERS, resnet50:BITS with BITS 16 or 32";

/// The model that a text asks for, one of [`SPECS`].
///
/// # Errors
/// `Argument` when the text is none of them.
pub fn from_spec(text: &str, registry: &Arc<Registry>) -> Result<Module<Onnx>> {
    let wrong = || {
        Diagnostic::new(ErrorKind::Argument, format!("there is no generated model {text:?}"))
            .help(format!("the generated models are {SPECS}, each number at most {MOST}"))
    };
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or_default();
    let numbers: Vec<u64> = parts.map(str::parse).collect::<std::result::Result<_, _>>().map_err(|_| wrong())?;
    let size = numbers.first().and_then(|&n| usize::try_from(n).ok()).filter(|n| (1..=MOST).contains(n));
    let size = size.ok_or_else(wrong)?;
    match (kind, numbers.len()) {
        ("dag", 1) => Ok(dag(registry, size, 0)),
        ("dag", 2) => Ok(dag(registry, size, numbers[1])),
        ("chain", 1) => Ok(chain(registry, size)),
        ("decoder", 1) => Ok(decoder(registry.clone(), size)),
        ("encoder", 1) => Ok(encoder(registry.clone(), size)),
        ("resnet50", 1) if size == 16 => Ok(resnet50(registry.clone(), DType::F16)),
        ("resnet50", 1) if size == 32 => Ok(resnet50(registry.clone(), DType::F32)),
        _ => Err(wrong()),
    }
}

/// Reproducible numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    /// In [-1, 1).
    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Builds a module node by node; types are left to inference.
pub struct Builder {
    /// The module so far.
    pub module: Module<Onnx>,
    prefix: String,
    n: usize,
    weights: FxHashMap<Vec<usize>, Vec<Value>>,
    drawn: usize,
    random: Random,
}

impl Builder {
    /// An empty module.
    pub fn new(registry: Arc<Registry>) -> Builder {
        let mut module = Module::new(registry);
        module.meta.name = "generated".into();
        Builder { module, prefix: String::new(), n: 0, weights: FxHashMap::default(), drawn: 0, random: Random(0) }
    }
    fn n_nodes(&self) -> usize {
        self.module.graph().order.len()
    }
    /// Names of nodes from here on start with this.
    pub fn scope(&mut self, prefix: impl Into<String>) {
        self.prefix = prefix.into();
    }
    /// A graph input; extents are numbers or names of symbols.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[&str]) -> Value {
        let input = u32::try_from(self.module.graph().inputs.len()).unwrap_or(u32::MAX);
        let dims: Vec<_> = shape
            .iter()
            .enumerate()
            .map(|(axis, d)| match (d.parse::<i64>(), self.module.dims.find_symbol(d)) {
                (Ok(c), _) => self.module.dims.constant(c),
                (_, Some(s)) => self.module.dims.sym_dim(s),
                _ => {
                    let axis = u32::try_from(axis).unwrap_or(u32::MAX);
                    self.module.dims.symbol(d, DimOrigin::Input { input, axis })
                }
            })
            .collect();
        self.module.graph_mut().add_input(Type::tensor(dtype, dims), name)
    }
    /// A constant.
    pub fn tensor(&mut self, t: &Tensor) -> Value {
        self.constant(Const::from_tensor("", t))
    }
    /// A scalar f32 constant.
    pub fn scalar(&mut self, v: f32) -> Value {
        self.tensor(&Tensor::from_f32(&[], &[v]))
    }
    /// A 1-D i64 constant.
    pub fn ints(&mut self, v: &[i64]) -> Value {
        self.tensor(&Tensor::from_i64(&[v.len()], v))
    }
    /// A constant that repeats one value and takes no memory.
    pub fn splat(&mut self, shape: &[usize], v: f32) -> Value {
        let mut c = Const::from_tensor("", &Tensor::from_f32(&[], &[v]));
        c.data = ConstData::Splat(v.to_le_bytes().into_iter().collect());
        c.shape = SmallVec::from_slice(shape);
        self.constant(c)
    }
    /// The next weight of a shape: uniform random elements, scaled so that a product keeps the size of its operand (matrices)
    /// or around 1 (vectors). After [`WEIGHTS`] different ones of a shape they come again, so that large models stay small.
    pub fn weight(&mut self, shape: &[usize]) -> Value {
        self.drawn += 1;
        let have = self.weights.get(shape).map_or(0, Vec::len);
        if have == WEIGHTS {
            return self.weights[shape][self.drawn % WEIGHTS];
        }
        let n: usize = shape.iter().product();
        let (middle, spread) = match shape {
            [.., rows, _] => (0.0, (3.0 / *rows as f32).sqrt()),
            _ => (1.0, 0.25),
        };
        let data: Vec<f32> = (0..n).map(|_| middle + spread * self.random.signed()).collect();
        let mut c = Const::from_tensor("", &Tensor::from_f32(shape, &data));
        c.name = format!("w{}_{have}", shape.iter().map(|d| format!("{d}x")).collect::<String>());
        let v = self.constant(c);
        self.weights.entry(shape.to_vec()).or_default().push(v);
        v
    }
    /// A weight that takes no memory until it is used: uniform in `middle ± spread`, each one different.
    pub fn seeded(&mut self, dtype: DType, shape: &[usize], middle: f32, spread: f32) -> Value {
        self.drawn += 1;
        let seed = self.drawn as u64;
        let data = ConstData::Seeded(tensor::Seeded { seed, middle, spread });
        self.constant(Const { dtype, shape: SmallVec::from_slice(shape), data, name: format!("w{seed}") })
    }
    fn constant(&mut self, c: Const) -> Value {
        let dims: Vec<_> =
            c.shape.iter().map(|&d| self.module.dims.constant(i64::try_from(d).unwrap_or(i64::MAX))).collect();
        let ty = Type::tensor(c.dtype, dims);
        let name = c.name.clone();
        let id = self.module.consts.push(c);
        self.module.graph_mut().add_const(id, ty, name.as_str())
    }
    /// A node of the newest row with one result.
    pub fn node(&mut self, op: &str, attrs: &[(&str, Attr)], ins: &[Value]) -> Value {
        let ins: Vec<Option<Value>> = ins.iter().copied().map(Some).collect();
        self.node_opt(op, attrs, &ins, 1)[0]
    }
    /// A node of the newest row.
    pub fn node_opt(&mut self, op: &str, attrs: &[(&str, Attr)], ins: &[Option<Value>], n_outs: usize) -> Vec<Value> {
        let (domain, name) = op.split_once(':').unwrap_or(("", op));
        let id = self.module.registry.newest(domain, name);
        let list = self.module.registry[id].attrs_with(attrs);
        self.node_with(id, list, ins, n_outs)
    }
    /// A node of a given row.
    pub fn node_with(&mut self, op: OpId, attrs: Attrs, ins: &[Option<Value>], n_outs: usize) -> Vec<Value> {
        self.n += 1;
        let path = format!("{}/{}_{}", self.prefix, self.module.registry[op].name, self.n);
        let attrs = self.module.attrs.intern(attrs);
        let outs: Vec<(Type, Arc<str>)> =
            (0..n_outs).map(|i| (Type::Unknown, format!("{path}_out{i}").into())).collect();
        let n =
            self.module.graph_mut().add_node(op, attrs, ins.iter().copied(), outs, [], Origin(path.as_str().into()));
        self.module.graph().nodes[n].outs.to_vec()
    }
    /// Makes `v` a graph output.
    pub fn output(&mut self, v: Value) {
        self.module.graph_mut().outputs.push(v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: &str, least: usize, most: usize) -> Module<Onnx> {
        let make = || from_spec(spec, &Registry::builtin()).unwrap();
        let (mut m, again) = (make(), make());
        assert_eq!(crate::text::print_onnx(&m), crate::text::print_onnx(&again));
        let n = m.graph().order.len();
        assert!((least..=most).contains(&n), "{spec} has {n} nodes");
        let info = crate::infer::infer(&mut m).unwrap();
        assert_eq!(info.unknown, Vec::<String>::new());
        crate::verify::verify_onnx(&m).unwrap();
        m
    }

    #[test]
    fn generated_models_have_the_size_asked_for_and_all_types() {
        check("dag:300", 290, 310);
        check("chain:50", 50, 50);
        check("decoder:2", 60, 120);
        check("encoder:2", 60, 70);
        check("resnet50:16", 120, 130);
        let (a, b) = (check("dag:100:1", 90, 110), check("dag:100:2", 90, 110));
        assert_ne!(crate::text::print_onnx(&a), crate::text::print_onnx(&b));
        for wrong in ["", "dag", "dag:0", "dag:9999999", "dag:x", "tree:5", "chain:5:5", "decoder:-1", "resnet50:8"] {
            let e = from_spec(wrong, &Registry::builtin()).unwrap_err();
            assert!(e.to_string().contains("decoder:LAYERS"), "{e}");
        }
    }

    #[test]
    fn values_of_a_mixed_graph_neither_vanish_nor_explode() {
        let m = check("dag:1500:3", 1480, 1520);
        let mut random = Random(5);
        let mut input = || {
            let data: Vec<f32> = (0..3 * dag::WIDTH).map(|_| random.signed()).collect();
            Tensor::from_f32(&[3, dag::WIDTH], &data)
        };
        let inputs = [input(), input()];
        let y = crate::interp::run(&m, &inputs).unwrap();
        let y = y[0].to_f64_vec();
        let size = (y.iter().map(|v| v * v).sum::<f64>() / y.len() as f64).sqrt();
        assert!((1e-2..1e2).contains(&size), "the result has size {size}");
        let mean = |r: usize| y[r * dag::WIDTH..(r + 1) * dag::WIDTH].iter().sum::<f64>();
        assert!((mean(0) - mean(1)).abs() > 1e-4 && (mean(1) - mean(2)).abs() > 1e-4, "rows are equal");
    }
}
