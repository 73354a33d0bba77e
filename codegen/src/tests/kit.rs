//! Builds nests by hand and runs them through the JIT.

use crate::object::{self, OptLevel};
use crate::orc::Orc;
use crate::target::CpuTarget;
use ir::nest::{Access, Axis, Coord, Nest, NestOperand, Term};
use lower::host::{DimSource, KernelDef};
use runtime::abi::KernelFn;
use std::sync::Arc;
use tensor::dims::DimPool;
use tensor::{DType, DimId};

/// A kernel under construction: dims are constants of a pool of its own.
#[derive(Default)]
pub struct Kit {
    pub pool: DimPool,
    pub nest: Nest,
}

impl Kit {
    pub fn d(&mut self, v: i64) -> DimId {
        self.pool.constant(v)
    }
    pub fn operand(&mut self, dtype: DType, shape: &[i64], strides: &[i64], written: bool) -> u16 {
        let shape = shape.iter().map(|v| self.pool.constant(*v)).collect();
        let strides = strides.iter().map(|v| self.pool.constant(*v)).collect();
        self.nest.operand(NestOperand { dtype, shape, strides, written })
    }
    /// An access whose coordinates are the given axes.
    pub fn access(&mut self, operand: u16, axes: &[Axis]) -> Access {
        let (zero, one) = (self.d(0), self.d(1));
        let coords = axes.iter().map(|a| Coord { offset: zero, terms: [(Term::Axis(*a), one)].into_iter().collect() });
        Access { operand, coords: coords.collect() }
    }
    /// The kernel; every dim of the pool is a constant.
    pub fn def(&self, name: &str) -> KernelDef {
        let mut dims = Vec::new();
        let all: Vec<DimId> = (0..self.pool_len()).map(<DimId as tensor::Entity>::new).collect();
        for d in all {
            if let Some(c) = self.pool.as_const(d) {
                dims.push((d, DimSource::Const(c)));
            }
        }
        KernelDef { name: name.into(), nest: Arc::new(self.nest.clone()), dims, n_params: 0 }
    }
    fn pool_len(&self) -> usize {
        // Constants get ids in order of creation; the next new one tells how many there are.
        let mut p = self.pool.clone();
        tensor::Entity::index(p.constant(i64::MAX - 77))
    }
}

/// Loaded kernels.
pub struct Loaded {
    orc: Orc,
}

impl Loaded {
    pub fn new(defs: &[KernelDef], tier: &str) -> Loaded {
        let nodes = vec![None; defs.len()];
        let target = CpuTarget::tier(tier).unwrap();
        let k = object::kernels("test", defs, &nodes, &target, OptLevel::Full, false).unwrap();
        let orc = Orc::new().unwrap();
        orc.add(&k.object).unwrap();
        Loaded { orc }
    }
    pub fn call(&self, name: &str, args: &[u64], begin: i64, end: i64) {
        let a = self.orc.lookup(name).unwrap();
        // SAFETY: the address is that of a function with the kernel signature, and the arguments are those its nest names.
        let status = unsafe {
            let f: KernelFn = std::mem::transmute::<usize, KernelFn>(a);
            f(std::ptr::null_mut(), args.as_ptr(), begin, end)
        };
        assert_eq!(status, 0);
    }
}

/// Tiers this machine can run.
pub fn tiers() -> Vec<&'static str> {
    let n = CpuTarget::native();
    let mut v = vec!["x86-64", "native"];
    if n.has("avx2") && n.has("fma") && n.has("f16c") && n.has("bmi2") {
        v.push("x86-64-v3");
    }
    v
}
