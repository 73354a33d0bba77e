//! How a nest is spread over threads, and which of its accesses move several elements at once. Decided from the nest and the extents
//! that are known when it is compiled, the same for every architecture. Knows no LLVM.

use crate::nest::terms::{access_exprs, children, load};
use ir::nest::{Access, Axis, BinOp, Expr, ExprId, Nest, Phase, Term, UnOp};
use kernels::gpu::{Launch, Schedule};
use lower::host::{DimSource, KernelDef};
use tensor::{DType, DimId, Entity};

/// Threads per block.
const BLOCK: u32 = 256;
/// Threads per block where a point has so many inner points.
const WIDE: (i64, u32) = (1 << 15, 1024);
/// Inner spaces up to this size are a loop of one thread.
const SMALL_INNER: i64 = 16;
/// The same for windows, whose neighbors read overlapping elements.
const SMALL_WINDOW: i64 = 1 << 10;
/// Inner spaces up to this size are shared by a wave, not by a block.
pub(crate) const WAVE_INNER: i64 = 1 << 10;
/// Inner spaces up to this size are a loop of one thread where neighboring points are neighbors in memory.
const SMALL_COLUMN: i64 = 64;
/// Threads that shall be on a processor of 64 K registers at once, measured on an H200 (share of the copy's rate, LayerNorm of 1024 and
/// Softmax of 4096 f32): of waves that hold rows, 80 registers each (89 %; with 64 it is 80 %); of blocks that do, 64 (92 %; with 80 it
/// is 82 %); of flat nests, 32 (GELU of f16 91 %; with 40 it is 84 %) unless they are large.
const WAVES_RESIDENT: u32 = 768;
const BLOCKS_RESIDENT: u32 = 1024;
const FLAT_RESIDENT: u32 = 2048;
/// Loads and expressions of a flat nest that surely does with 32 registers.
const SMALL_FLAT: (usize, usize) = (4, 48);
/// Accumulators of a thread of [`Schedule::BlockPerColumns`]: so many rows, over the number of reductions, are read at once.
pub(crate) const SUMS_AT_ONCE: usize = 8;
/// Columns of so many rows are shared by so many threads per block.
const LONG_COLUMN: (i64, u32) = (1 << 10, 512);
/// As many points give every thread of a large GPU one.
const MANY_POINTS: i64 = 1 << 18;
/// Bytes of the widest load or store.
pub(crate) const WIDEST: i64 = 16;

/// What is decided about a nest.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How it is launched.
    pub launch: Launch,
    /// Neighbors along the innermost axis of the space that threads share out, taken at once; 1 for one after the other.
    pub width: u32,
    /// Loads whose elements are contiguous along that axis.
    pub loads: Vec<ExprId>,
    /// Stores of which the same holds: phase and position in it.
    pub stores: Vec<(usize, usize)>,
    /// Where the length of rows is known at run time only: who takes a row is decided then.
    pub any_length: bool,
    /// Threads that shall find registers on a processor at once, so that enough loads are on their way; 0 for as it comes.
    pub resident: u32,
    /// Whether a wave may take a row: what one phase stores and another one after it is ordered for blocks only.
    pub waves_may: bool,
}

impl Plan {
    /// Decides.
    pub fn of(def: &KernelDef) -> Plan {
        let nest = &*def.nest;
        let mut launch = launch(def);
        let along = match launch.schedule {
            Schedule::GridStride if is_flat(nest) => last(&nest.outer, Axis::Outer),
            Schedule::BlockPerPoint | Schedule::WavePerPoint => last(&nest.inner, Axis::Inner),
            _ => None,
        };
        let any_length = launch.schedule == Schedule::BlockPerPoint && product(def, &nest.inner).is_none();
        let waves_may = n_stores(nest) <= 1;
        let mut plan = Plan { launch, width: 1, loads: vec![], stores: vec![], any_length, resident: 0, waves_may };
        if let Some(axis) = along {
            plan.widen(def, axis);
        }
        let is_small = plan.loads.len() <= SMALL_FLAT.0 && nest.exprs.len() <= SMALL_FLAT.1;
        plan.resident = match launch.schedule {
            Schedule::WavePerPoint => WAVES_RESIDENT,
            Schedule::BlockPerPoint => BLOCKS_RESIDENT,
            Schedule::GridStride if plan.width > 1 && is_small => FLAT_RESIDENT,
            _ => 0,
        };
        if launch.schedule == Schedule::GridStride {
            launch.vector = plan.width;
        }
        plan.launch = launch;
        plan
    }

    fn widen(&mut self, def: &KernelDef, axis: Axis) {
        let nest = &*def.nest;
        let varies = varies(nest, axis);
        let live = live(nest);
        let contiguous = |a: &Access| along(def, a, axis, &varies) == Some(1);
        for (i, x) in nest.exprs.iter().enumerate().filter(|(i, _)| live[*i]) {
            if let Expr::Load(a) = x
                && contiguous(a)
            {
                self.loads.push(ExprId::new(i));
            }
        }
        for (p, phase) in nest.phases.iter().enumerate() {
            let Phase::Store { over_inner, stores } = phase else { continue };
            if *over_inner || matches!(axis, Axis::Outer(_)) {
                self.stores.extend((0..stores.len()).filter(|i| contiguous(&stores[*i].0)).map(|i| (p, i)));
            }
        }
        let size = |a: &Access| nest.operands[usize::from(a.operand)].dtype.size().unwrap_or(1);
        let loads = self.loads.iter().filter_map(|x| load(nest.get(*x))).map(size);
        let stores = self.stores.iter().filter_map(|(p, i)| match &nest.phases[*p] {
            Phase::Store { stores, .. } => Some(size(&stores[*i].0)),
            Phase::Reduce(_) => None,
        });
        let Some(widest) = loads.chain(stores).max() else { return };
        // As many as the widest element allows in one access; fewer where each costs many instructions.
        let most = match heavy(nest, &live) {
            0 if is_flat(nest) => 16,
            0..=3 => 8,
            _ => 2,
        };
        let width = (16 / widest).min(most);
        if width < 2 {
            (self.loads, self.stores) = (vec![], vec![]);
            return;
        }
        self.width = u32::try_from(width).unwrap_or(1);
    }
}

/// Whether everything that is kept is f16 or bf16.
pub(crate) fn keeps_half(nest: &Nest) -> bool {
    let half = |a: &Access| matches!(nest.operands[usize::from(a.operand)].dtype, DType::F16 | DType::BF16);
    nest.phases.iter().all(|p| match p {
        Phase::Reduce(_) => true,
        Phase::Store { stores, .. } => stores.iter().all(|(a, _)| half(a)),
    })
}

/// Whether threads go over outer points only.
pub(crate) fn is_flat(nest: &Nest) -> bool {
    nest.phases.iter().all(|p| match p {
        Phase::Reduce(_) => false,
        Phase::Store { over_inner, .. } => !over_inner || nest.inner.is_empty(),
    })
}

fn last(axes: &[DimId], make: fn(u16) -> Axis) -> Option<Axis> {
    axes.len().checked_sub(1).and_then(|i| u16::try_from(i).ok()).map(make)
}

fn launch(def: &KernelDef) -> Launch {
    let nest = &*def.nest;
    let per_thread = Launch { schedule: Schedule::GridStride, block: BLOCK, vector: 1 };
    // What one thread of a point wrote another one may not read.
    let written = |x: &Expr| load(x).is_some_and(|a| nest.operands[usize::from(a.operand)].written);
    if is_flat(nest) || nest.inner.is_empty() || nest.exprs.iter().any(written) {
        return per_thread;
    }
    let (points, inner) = (product(def, &nest.outer), product(def, &nest.inner));
    let at_most = |n: Option<i64>, limit: i64| n.is_some_and(|n| n <= limit);
    if at_most(inner, SMALL_INNER) || (at_most(inner, SMALL_WINDOW) && is_window(nest)) {
        return per_thread;
    }
    if is_vertical(def) {
        if at_most(inner, SMALL_COLUMN) || points.is_some_and(|n| n >= MANY_POINTS) {
            return per_thread;
        }
        let sizes = nest.operands.iter().filter(|o| !o.written).filter_map(|o| o.dtype.size());
        let columns = 128 / sizes.min().unwrap_or(4).clamp(1, 4);
        let vector = u32::try_from(columns).unwrap_or(32);
        let block = if inner.is_none_or(|n| n >= LONG_COLUMN.0) { LONG_COLUMN.1 } else { BLOCK };
        return Launch { schedule: Schedule::BlockPerColumns, block, vector };
    }
    if at_most(inner, WAVE_INNER) && n_stores(nest) <= 1 {
        return Launch { schedule: Schedule::WavePerPoint, ..per_thread };
    }
    let block = if inner.is_some_and(|n| n >= WIDE.0) { WIDE.1 } else { BLOCK };
    Launch { schedule: Schedule::BlockPerPoint, block, vector: 1 }
}

/// Store phases. What one stores and then another is ordered by a barrier, which only a block has.
fn n_stores(nest: &Nest) -> usize {
    nest.phases.iter().filter(|p| matches!(p, Phase::Store { .. })).count()
}

/// The value of a dim that is known at compile time.
pub(crate) fn known(def: &KernelDef, d: DimId) -> Option<i64> {
    def.dims.iter().find(|(x, _)| *x == d).and_then(|(_, s)| match s {
        DimSource::Const(c) => Some(*c),
        DimSource::Param(_) => None,
    })
}
/// The number of points of a space, when all extents are known.
pub(crate) fn product(def: &KernelDef, axes: &[DimId]) -> Option<i64> {
    axes.iter().try_fold(1i64, |n, d| n.checked_mul(known(def, *d)?))
}

/// Whether each expression depends on an axis.
pub(crate) fn varies(nest: &Nest, axis: Axis) -> Vec<bool> {
    let mut out: Vec<bool> = Vec::with_capacity(nest.exprs.len());
    for x in &nest.exprs {
        let own = match x {
            Expr::Index(a) => *a == axis,
            Expr::Reduced(_) => matches!(axis, Axis::Outer(_)),
            _ => load(x).is_some_and(|a| a.coords.iter().flat_map(|c| &c.terms).any(|(t, _)| *t == Term::Axis(axis))),
        };
        out.push(own || children(x).iter().any(|c| out[c.index()]));
    }
    out
}

/// How far apart in memory, in elements, neighbors along an axis are, when that is a constant.
pub(crate) fn along(def: &KernelDef, a: &Access, axis: Axis, varies: &[bool]) -> Option<i64> {
    let strides = &def.nest.operands[usize::from(a.operand)].strides;
    let mut sum = 0i64;
    for (c, s) in a.coords.iter().zip(strides) {
        for (t, k) in &c.terms {
            match t {
                Term::Axis(x) if *x == axis => {
                    sum = sum.checked_add(known(def, *k)?.checked_mul(known(def, *s)?)?)?;
                }
                Term::Expr(x) if varies[x.index()] => return None,
                _ => {}
            }
        }
    }
    Some(sum)
}

/// Which expressions the phases use.
fn live(nest: &Nest) -> Vec<bool> {
    let mut roots: Vec<ExprId> = vec![];
    for p in &nest.phases {
        match p {
            Phase::Reduce(rs) => roots.extend(rs.iter().map(|r| r.value)),
            Phase::Store { stores, .. } => {
                for (a, x) in stores {
                    roots.push(*x);
                    roots.extend(access_exprs(a));
                }
            }
        }
    }
    let mut live = vec![false; nest.exprs.len()];
    for x in crate::nest::terms::needed(nest, roots) {
        live[x.index()] = true;
    }
    live
}

/// Whether reductions read contiguous elements along the last outer axis and not along the last inner one.
fn is_vertical(def: &KernelDef) -> bool {
    let nest = &*def.nest;
    let (Some(o), Some(i)) = (last(&nest.outer, Axis::Outer), last(&nest.inner, Axis::Inner)) else { return false };
    let roots = nest.phases.iter().flat_map(|p| match p {
        Phase::Reduce(rs) => rs.iter().map(|r| r.value).collect(),
        Phase::Store { .. } => vec![],
    });
    let (vo, vi) = (varies(nest, o), varies(nest, i));
    let mut any = false;
    for x in crate::nest::terms::needed(nest, roots) {
        if let Some(a) = load(nest.get(x)) {
            match (along(def, a, o, &vo), along(def, a, i, &vi)) {
                (Some(1), Some(1)) | (Some(0), _) => {}
                (Some(1), _) => any = true,
                _ => return false,
            }
        }
    }
    any
}

/// Whether some coordinate is the sum of an outer and an inner axis: neighboring points read overlapping windows.
fn is_window(nest: &Nest) -> bool {
    nest.exprs.iter().filter_map(load).flat_map(|a| &a.coords).any(|c| {
        let has = |outer: bool| {
            let of = |t: &Term| {
                matches!((t, outer), (Term::Axis(Axis::Outer(_)), true) | (Term::Axis(Axis::Inner(_)), false))
            };
            c.terms.iter().any(|(t, _)| of(t))
        };
        has(true) && has(false)
    })
}

/// How many operations take dozens of instructions.
fn heavy(nest: &Nest, live: &[bool]) -> usize {
    use UnOp::{Abs, BitNot, Ceil, Floor, FromBits, IsInf, IsNan, Neg, Not, Recip, RoundEven, Rsqrt, Sign, Sqrt};
    use UnOp::{ToBits, Trunc};
    let one = |x: &Expr| match x {
        Expr::Unary(
            Abs | BitNot | Ceil | Floor | FromBits | IsInf | IsNan | Neg | Not | Recip | RoundEven | Rsqrt | Sign
            | Sqrt | ToBits | Trunc,
            _,
        ) => 0,
        Expr::Unary(..) => 1,
        Expr::Binary(BinOp::Pow | BinOp::Mod | BinOp::Rem, ..) => 2,
        _ => 0,
    };
    nest.exprs.iter().zip(live).filter(|(_, l)| **l).map(|(x, _)| one(x)).sum()
}
