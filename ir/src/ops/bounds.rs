//! Constant indices against known extents. What a model computes is not known here: nests clamp or drop it.

use crate::consts::{Const, ConstData};
use crate::op::InferCtx;
use smallvec::SmallVec;
use tensor::{DimId, ErrorKind, Result};

/// An axis that indices count along.
#[derive(Clone, Copy)]
pub(super) struct Indexed {
    /// Its number.
    pub axis: usize,
    /// Its extent.
    pub extent: DimId,
}

impl InferCtx<'_> {
    /// Refuses a constant element of operand `i` that is out of range. The elements count along `axes` in turn: of several, each
    /// row of the last axis names a place.
    ///
    /// # Errors
    /// `Shape` with the index, its position, the axis and the extent.
    pub(super) fn check_indices(&self, i: usize, axes: &[Indexed]) -> Result<()> {
        let known: Vec<Option<i64>> = axes.iter().map(|a| self.dims.as_const(a.extent)).collect();
        if known.iter().all(Option::is_none) {
            return Ok(());
        }
        let outside = |k: usize, index: i64| {
            let n = known[k % known.len()]?;
            (!(-n..n).contains(&index)).then_some((k, index, n))
        };
        let found = match self.values(i) {
            // Of some elements more is known than of others.
            Some(v) => v.iter().enumerate().find_map(|(k, &d)| outside(k, self.dims.as_const(d)?)),
            None => self.konst(i).and_then(|c| first(c, known.len(), outside)),
        };
        let Some((k, index, n)) = found else { return Ok(()) };
        let shape: Vec<i64> = self.shape(i).iter().flatten().map(|&d| self.dims.as_const(d).unwrap_or(1)).collect();
        let at = if shape.is_empty() { String::new() } else { format!(" at {:?}", coordinate(&shape, k)) };
        let (name, axis) = (self.def.name, axes[k % axes.len()].axis);
        let text = format!("{name}: index {index}{at} is out of range for axis {axis} of extent {n}");
        let help = match n {
            0 => "an empty axis has no elements to name".to_string(),
            _ => format!("indices along this axis are from {} to {}", -n, n - 1),
        };
        Err(self.error(ErrorKind::Shape, text).help(help))
    }

    fn konst(&self, i: usize) -> Option<&Const> {
        Some(&self.consts[self.ins.get(i)?.as_ref()?.konst?])
    }
}

/// The first element that `found` takes. A splat is one element, however many places it fills: one turn of the axes shows it.
fn first<T>(c: &Const, n_axes: usize, found: impl Fn(usize, i64) -> Option<T>) -> Option<T> {
    let n = c.n_elems();
    if let ConstData::Splat(_) = c.data {
        let one = Const { shape: SmallVec::new(), ..c.clone() }.read().ok()?.view().i64_at(0);
        return (0..n.min(n_axes)).find_map(|k| found(k, one));
    }
    let t = c.read().ok()?;
    let v = t.view();
    (0..n).find_map(|k| found(k, v.i64_at(k)))
}

/// The row-major `k`-th coordinate.
fn coordinate(shape: &[i64], k: usize) -> Vec<i64> {
    let mut k = i64::try_from(k).unwrap_or(i64::MAX);
    let mut at = vec![0; shape.len()];
    for (a, &d) in shape.iter().enumerate().rev() {
        (at[a], k) = (k % d.max(1), k / d.max(1));
    }
    at
}
