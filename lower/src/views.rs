//! Views: a buffer seen with another offset, shape and strides. Pure arithmetic on dims; no bytes move.

use ir::Shape;
use ir::graph::{Guard, Rel, Value};
use ir::hip::Space;
use rustc_hash::FxHashMap;
use tensor::{DType, DimId, DimPool};

/// A buffer of the HIP dialect as something sees it: its root (what `Alloc`, `Output`, a parameter or a constant defines), and the
/// element offset, extents and strides over it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BufView {
    /// The buffer.
    pub root: Value,
    /// First element, relative to the root's first.
    pub offset: DimId,
    /// Extents.
    pub shape: Shape,
    /// Strides in elements; 0 repeats.
    pub strides: Shape,
    /// Element type.
    pub dtype: DType,
    /// Memory space.
    pub space: Space,
}

/// Extents that the module's guards say are equal at run time.
#[derive(Clone, Debug, Default)]
pub struct Equalities(FxHashMap<DimId, DimId>);

impl Equalities {
    /// From the equality guards.
    pub fn new(guards: &[Guard]) -> Equalities {
        let mut e = Equalities::default();
        for g in guards.iter().filter(|g| g.rel == Rel::Eq) {
            let (a, b) = (e.find(g.lhs), e.find(g.rhs));
            if a != b {
                e.0.insert(a.max(b), a.min(b));
            }
        }
        e
    }
    fn find(&self, mut d: DimId) -> DimId {
        while let Some(&n) = self.0.get(&d) {
            d = n;
        }
        d
    }
    /// Whether the two are the same extent in every run that passes the guards.
    pub fn same(&self, a: DimId, b: DimId) -> bool {
        a == b || self.find(a) == self.find(b)
    }
}

/// Row-major strides.
pub fn row_major(dims: &mut DimPool, shape: &[DimId]) -> Shape {
    let mut stride = dims.constant(1);
    let mut out: Shape = shape
        .iter()
        .rev()
        .map(|&d| {
            let s = stride;
            stride = dims.mul(stride, d);
            s
        })
        .collect();
    out.reverse();
    out
}

/// Whether the elements lie row-major without gaps. Strides of axes of extent 1 do not matter.
pub fn is_contiguous(dims: &mut DimPool, eq: &Equalities, shape: &[DimId], strides: &[DimId]) -> bool {
    if shape.iter().any(|&d| dims.as_const(d) == Some(0)) {
        return true;
    }
    let mut expected = dims.constant(1);
    for (&d, &s) in shape.iter().zip(strides).rev() {
        if dims.as_const(d) == Some(1) {
            continue;
        }
        if !eq.same(s, expected) {
            return false;
        }
        expected = dims.mul(expected, d);
    }
    true
}

/// Result axis `i` is axis `perm[i]`.
pub fn permute(strides: &[DimId], perm: &[usize]) -> Shape {
    perm.iter().map(|&p| strides[p]).collect()
}

/// Offset of the part that starts at `start` along each axis.
pub fn part(dims: &mut DimPool, offset: DimId, strides: &[DimId], start: &[DimId]) -> DimId {
    strides.iter().zip(start).fold(offset, |at, (&s, &start)| {
        let by = dims.mul(start, s);
        dims.add(at, by)
    })
}

/// Offset and strides of the slice with a first element and a step along each axis.
pub fn slice(dims: &mut DimPool, offset: DimId, strides: &[DimId], steps: &[(DimId, DimId)]) -> (DimId, Shape) {
    let start: Shape = steps.iter().map(|s| s.0).collect();
    let out = strides.iter().zip(steps).map(|(&s, &(_, step))| dims.mul(s, step)).collect();
    (part(dims, offset, strides, &start), out)
}

/// How far a coordinate of an axis of extent `from` moves when the axis of extent `to` that it is broadcast to moves by one: 1 when
/// the extents are equal, 0 when `from` is never above 1, and an expression of `from` that is one or the other at run time when unknown.
pub fn broadcast_step(dims: &mut DimPool, eq: &Equalities, from: DimId, to: DimId) -> DimId {
    if eq.same(from, to) {
        return dims.constant(1);
    }
    if dims.is_at_most_one(from) {
        return dims.constant(0);
    }
    let one = dims.constant(1);
    let less = dims.sub(from, one);
    let step = dims.min(one, less);
    let zero = dims.constant(0);
    dims.max(step, zero)
}

/// Strides of a view of shape `to`: numpy broadcast, aligned at the last axis.
pub fn broadcast(dims: &mut DimPool, eq: &Equalities, shape: &[DimId], strides: &[DimId], to: &[DimId]) -> Shape {
    let zero = dims.constant(0);
    let lead = to.len().saturating_sub(shape.len());
    to.iter()
        .enumerate()
        .map(|(i, &d)| match i.checked_sub(lead) {
            None => zero,
            Some(k) => {
                let step = broadcast_step(dims, eq, shape[k], d);
                dims.mul(step, strides[k])
            }
        })
        .collect()
}

/// Strides with which the same elements in the same order have shape `to`, or `None` when no strides can do that. `shape` and `to`
/// have the same number of elements.
pub fn reshape(dims: &mut DimPool, eq: &Equalities, shape: &[DimId], strides: &[DimId], to: &[DimId]) -> Option<Shape> {
    if is_contiguous(dims, eq, shape, strides) {
        return Some(row_major(dims, to));
    }
    // Runs of axes that step like one axis: (extent, innermost stride).
    let mut groups: Vec<(DimId, DimId)> = vec![];
    let mut outer_stride = None;
    for (&d, &s) in shape.iter().zip(strides).rev() {
        if dims.as_const(d) == Some(1) {
            continue;
        }
        match groups.last_mut() {
            Some(g) if outer_stride.is_some_and(|o| eq.same(o, s)) => g.0 = dims.mul(g.0, d),
            _ => groups.push((d, s)),
        }
        outer_stride = Some(dims.mul(s, d));
    }
    // Each run is split into axes of the new shape, from the innermost out. The last run takes all that remain: the number of
    // elements is the same, and the other runs matched.
    let one = dims.constant(1);
    let mut out: Vec<DimId> = vec![];
    let mut axes = to.iter().rev().peekable();
    for (i, &(extent, stride)) in groups.iter().enumerate() {
        let (mut have, mut step) = (one, stride);
        let last = i + 1 == groups.len();
        while last || !eq.same(have, extent) {
            match axes.next() {
                Some(&d) => {
                    out.push(step);
                    step = dims.mul(step, d);
                    have = dims.mul(have, d);
                }
                None if last => break,
                None => return None,
            }
        }
    }
    for _ in axes {
        out.push(one);
    }
    out.reverse();
    (out.len() == to.len()).then_some(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::dims::Origin;

    fn consts(p: &mut DimPool, v: &[i64]) -> Shape {
        v.iter().map(|&c| p.constant(c)).collect()
    }
    fn show(p: &DimPool, v: &Shape) -> String {
        v.iter().map(|&d| p.display(d).to_string()).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn reshape_keeps_strides_where_axes_group() {
        let check = |shape: &[i64], strides: &[i64], to: &[i64], want: Option<&str>| {
            let mut p = DimPool::new();
            let e = Equalities::default();
            let (a, b, c) = (consts(&mut p, shape), consts(&mut p, strides), consts(&mut p, to));
            let got = reshape(&mut p, &e, &a, &b, &c);
            assert_eq!(got.map(|g| show(&p, &g)).as_deref(), want, "{shape:?}:{strides:?} -> {to:?}");
        };
        check(&[2, 3, 4], &[12, 4, 1], &[6, 4], Some("4, 1"));
        check(&[2, 3, 4], &[24, 4, 1], &[2, 12], Some("24, 1"));
        check(&[2, 3, 4], &[24, 4, 1], &[6, 4], None);
        check(&[3, 2], &[1, 3], &[6], None);
        check(&[3, 2], &[1, 3], &[1, 3, 1, 2], Some("3, 1, 1, 3"));
        check(&[4, 6], &[1, 8], &[2, 2, 3, 2], Some("2, 1, 16, 8"));
        check(&[1, 5], &[0, 2], &[5, 1], Some("2, 2"));
    }

    #[test]
    fn symbolic_reshape_matches_by_product() {
        let mut p = DimPool::new();
        let e = Equalities::default();
        let s = p.symbol("s", Origin::Unknown);
        let b = p.symbol("b", Origin::Unknown);
        let c = |p: &mut DimPool, v| p.constant(v);
        let (h, d, one) = (c(&mut p, 12), c(&mut p, 64), c(&mut p, 1));
        // [b, s, 12, 64] with rows of a wider buffer -> [b, s, 768]
        let wide = c(&mut p, 2304);
        let bs = p.mul(s, wide);
        let flat = c(&mut p, 768);
        let got = reshape(&mut p, &e, &[b, s, h, d], &[bs, wide, d, one], &[b, s, flat]).unwrap();
        assert_eq!(show(&p, &got), "2304*s, 2304, 1");
        let rows = p.mul(b, s);
        let got = reshape(&mut p, &e, &[b, s, h, d], &[bs, wide, d, one], &[rows, flat]).unwrap();
        assert_eq!(show(&p, &got), "2304, 1");
    }

    #[test]
    fn slices_and_broadcasts_compose_on_offset_and_strides() {
        let mut p = DimPool::new();
        let e = Equalities::default();
        let strides = consts(&mut p, &[12, 4, 1]);
        let [zero, one, two, three] = [0, 1, 2, 3].map(|k| p.constant(k));
        let (back, by_two) = (p.constant(-1), p.constant(-2));
        let (at, s) = slice(&mut p, zero, &strides, &[(zero, one), (two, back), (three, by_two)]);
        assert_eq!((p.display(at).to_string().as_str(), show(&p, &s).as_str()), ("11", "12, -4, -2"));
        let shape = consts(&mut p, &[3, 1]);
        let strides = consts(&mut p, &[1, 1]);
        let to = consts(&mut p, &[2, 3, 5]);
        let s = broadcast(&mut p, &e, &shape, &strides, &to);
        assert_eq!(show(&p, &s), "0, 1, 0");
        // Unknown at compile time: the step is 0 or 1 by the extent.
        let n = p.symbol("n", Origin::Unknown);
        let step = broadcast_step(&mut p, &e, n, two);
        for (v, want) in [(1, 0), (2, 1), (0, 0)] {
            assert_eq!(p.eval(step, &|_| Some(v)), Ok(want));
        }
        // Never above 1: it repeats.
        let last = p.min(one, n);
        assert_eq!(broadcast_step(&mut p, &e, last, n), zero);
    }
}
