//! Axes of which only a run knows which they are: extents and coordinates as expressions over the elements of the axes operand.
//!
//! With mark m ∈ {0, 1} of an axis of extent n, the points run over `n + m·(1 - n)` positions of it, and each of them over
//! `1 + m·(n - 1)`; one of the two is 1, so that the sum of both indices is the position.

use super::extents::{choose, clamp, is_axis, is_zero};
use crate::nest::{Axis, Coord, Term};
use crate::op::InferCtx;
use crate::ty::Shape;
use smallvec::SmallVec;
use tensor::dims::Proof;
use tensor::{DimId, DimPool, ErrorKind, Result};

/// Most computed axes times rank: the expressions grow with both, and what is proved about them takes its time.
const MOST: usize = 6;

/// Whether expressions over as many computed axes of `rank` stay small.
pub(super) fn stay_small(n_axes: usize, rank: usize) -> bool {
    n_axes * rank <= MOST
}

/// The marks of all axes of a tensor.
pub(super) struct RunAxes {
    marks: Shape,
    /// How many are marked.
    n: usize,
}

impl RunAxes {
    /// Of the elements of the operand, each from `-rank` to `rank - 1` and no two the same axis.
    pub(super) fn new(p: &mut DimPool, elements: &[DimId], rank: usize) -> RunAxes {
        let r = i64::try_from(rank).unwrap_or(i64::MAX);
        let (zero, one) = (p.constant(0), p.constant(1));
        let mut marks = Shape::from_elem(zero, rank);
        for (axis, mark) in (0..r).zip(&mut marks) {
            for &e in elements {
                let is = is_axis(p, e, axis, r);
                *mark = p.add(*mark, is);
            }
            *mark = p.min(*mark, one);
        }
        RunAxes { marks, n: elements.len() }
    }

    /// Of one element for each axis, 1 where it is marked and else 0. How many are marked only the run knows, so that no axis goes.
    pub(super) fn of_marks(p: &mut DimPool, elements: &[DimId]) -> RunAxes {
        let (zero, one) = (p.constant(0), p.constant(1));
        RunAxes { marks: elements.iter().map(|&e| clamp(p, e, zero, one)).collect(), n: 0 }
    }

    /// States what is assumed of the elements.
    ///
    /// # Errors
    /// `Shape` for one that is known to be out of range.
    pub(super) fn check(&self, c: &mut InferCtx, elements: &[DimId]) -> Result<()> {
        let computed = elements.iter().any(|&e| c.dims.as_const(e).is_none());
        if computed && !stay_small(self.n, self.marks.len()) {
            let text = format!("{}: {} axes of {} that only the run knows", c.def.name, self.n, self.marks.len());
            let help = "make the axes constant: extents as expressions over so many do not stay small";
            return Err(c.error(ErrorKind::Unsupported, text).help(help));
        }
        let r = i64::try_from(self.marks.len()).unwrap_or(i64::MAX);
        let (low, high) = (c.dims.constant(-r), c.dims.constant(r - 1));
        for &e in elements {
            let what = format!("{}: axes are from {} to {}", c.def.name, -r, r - 1);
            for (low, high) in [(low, e), (e, high)] {
                if c.dims.prove_le(low, high) == Proof::No {
                    return Err(c.error(ErrorKind::Shape, what));
                }
                c.require_le(low, high, &what);
            }
        }
        let zero = c.dims.constant(0);
        let sum = self.marks.clone().into_iter().fold(zero, |s, m| c.dims.add(s, m));
        let n = c.dims.constant(i64::try_from(self.n).unwrap_or(i64::MAX));
        c.require_eq(sum, n, "no axis is named twice")
    }

    /// Extents of the points along each axis of `shape`.
    pub(super) fn outer(&self, p: &mut DimPool, shape: &[DimId]) -> Shape {
        let one = p.constant(1);
        shape.iter().zip(&self.marks).map(|(&n, &m)| choose(p, m, n, one)).collect()
    }
    /// Extents of what each point runs over.
    pub(super) fn inner(&self, p: &mut DimPool, shape: &[DimId]) -> Shape {
        let one = p.constant(1);
        shape.iter().zip(&self.marks).map(|(&n, &m)| choose(p, m, one, n)).collect()
    }
    /// The position along each axis: of a point and within it.
    pub(super) fn positions(&self, p: &mut DimPool) -> SmallVec<[Coord; 4]> {
        let (offset, one) = (p.constant(0), p.constant(1));
        let axes = 0..u16::try_from(self.marks.len()).unwrap_or(u16::MAX);
        let term = |a| (Term::Axis(a), one);
        axes.map(|i| Coord { offset, terms: [term(Axis::Outer(i)), term(Axis::Inner(i))].into_iter().collect() })
            .collect()
    }

    /// The mark of each axis.
    pub(super) fn marks(&self) -> &[DimId] {
        &self.marks
    }

    /// By axis that is left and axis of the whole, 1 where they are the same.
    fn left(&self, p: &mut DimPool) -> Vec<Shape> {
        let (zero, one) = (p.constant(0), p.constant(1));
        let n_left = i64::try_from(self.marks.len().saturating_sub(self.n)).unwrap_or(0);
        let place = |p: &mut DimPool, j: i64| {
            let mut before = zero;
            let mut row = Shape::new();
            for (d, &m) in (0i64..).zip(&self.marks) {
                let d = p.constant(d);
                let at = p.sub(d, before);
                let (j, stays) = (p.constant(j), p.sub(one, m));
                let off = p.sub(at, j);
                let here = is_zero(p, off);
                row.push(p.mul(here, stays));
                before = p.add(before, m);
            }
            row
        };
        (0..n_left).map(|j| place(p, j)).collect()
    }
    /// The extents of the axes that are not marked.
    pub(super) fn extents_left(&self, p: &mut DimPool, shape: &[DimId]) -> Shape {
        let zero = p.constant(0);
        let rows = self.left(p);
        let sum = |row: &Shape| {
            row.iter().zip(shape).fold(zero, |s, (&is, &n)| {
                let part = p.mul(is, n);
                p.add(s, part)
            })
        };
        rows.iter().map(sum).collect()
    }
    /// A point's position along the axes that are not marked.
    pub(super) fn positions_left(&self, p: &mut DimPool) -> SmallVec<[Coord; 4]> {
        let offset = p.constant(0);
        let coord = |row: Shape| Coord {
            offset,
            terms: (0u16..).zip(row).map(|(i, is)| (Term::Axis(Axis::Outer(i)), is)).collect(),
        };
        self.left(p).into_iter().map(coord).collect()
    }
}
