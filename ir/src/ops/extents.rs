//! Arithmetic on extents that shape rules share: quotients, clamping, signs.

use crate::op::InferCtx;
use crate::ty::Shape;
use tensor::dims::Proof;
use tensor::{DimId, DimPool, ErrorKind, Result};

/// Ends from here on stand for the end of the axis: exporters write 2³¹-1, 10⁹ and the like.
const OPEN_END: i64 = 1_000_000_000;

/// `min(max(d, lo), hi)`.
pub fn clamp(p: &mut DimPool, d: DimId, lo: DimId, hi: DimId) -> DimId {
    let d = p.max(d, lo);
    p.min(d, hi)
}

/// 1 where `d < 0`, else 0, as a dim.
pub fn is_negative(p: &mut DimPool, d: DimId) -> DimId {
    // Clamped first: the least number has no negative.
    let (zero, minus) = (p.constant(0), p.constant(-1));
    let sign = clamp(p, d, minus, zero);
    p.sub(zero, sign)
}

/// 1 where `d = 0`, else 0, as a dim.
pub fn is_zero(p: &mut DimPool, d: DimId) -> DimId {
    let (zero, one, minus) = (p.constant(0), p.constant(1), p.constant(-1));
    let sign = clamp(p, d, minus, one);
    let opposite = p.sub(zero, sign);
    let nonzero = p.max(sign, opposite);
    p.sub(one, nonzero)
}

/// `a` where `mark` is 0, `b` where it is 1.
pub fn choose(p: &mut DimPool, mark: DimId, a: DimId, b: DimId) -> DimId {
    match p.as_const(mark) {
        Some(0) => a,
        Some(1) => b,
        _ => {
            let step = p.sub(b, a);
            let step = p.mul(mark, step);
            p.add(a, step)
        }
    }
}

/// 1 where `d`, from the start or the end, names axis `axis` of `rank`, else 0, as a dim.
pub fn is_axis(p: &mut DimPool, d: DimId, axis: i64, rank: i64) -> DimId {
    let (from_start, from_end) = (p.constant(axis), p.constant(axis - rank));
    let (a, b) = (p.sub(d, from_start), p.sub(d, from_end));
    let (a, b) = (is_zero(p, a), is_zero(p, b));
    p.add(a, b)
}

/// An index from the start of an axis of extent `n`: negative ones count from the end.
pub fn from_start(p: &mut DimPool, d: DimId, n: DimId) -> DimId {
    match p.range(d) {
        (lo, _) if lo >= 0 => d,
        (_, hi) if hi < 0 => p.add(d, n),
        _ => {
            let neg = is_negative(p, d);
            let shift = p.mul(neg, n);
            p.add(d, shift)
        }
    }
}

/// The product of `nums` over the product of `dens`, and whether it is known to be without remainder. Factors on both sides
/// cancel: where one of them is 0 there are no elements, and any quotient is right.
pub fn quotient(p: &mut DimPool, nums: &[DimId], dens: &[DimId]) -> (DimId, bool) {
    let (mut nums, mut dens) = (nums.to_vec(), dens.to_vec());
    dens.retain(|d| match nums.iter().position(|n| n == d) {
        Some(i) if p.as_const(*d) != Some(0) => {
            nums.swap_remove(i);
            false
        }
        _ => true,
    });
    let (num, den) = (p.product(nums.iter().copied()), p.product(dens.iter().copied()));
    if p.as_const(den) == Some(0) {
        return (p.constant(0), p.as_const(num) == Some(0));
    }
    // With the divisor's symbols taken as at least 1, a polynomial quotient cancels them.
    let raised: Vec<_> = p.symbols_of(den).into_iter().filter(|&s| p.sym(s).lo == 0).collect();
    raised.iter().for_each(|&s| p.sym_mut(s).lo = 1);
    let q = p.floordiv(num, den);
    raised.iter().for_each(|&s| p.sym_mut(s).lo = 0);
    if p.mul(q, den) == num {
        return (q, true);
    }
    let one = p.constant(1);
    let den = p.max(den, one);
    (p.floordiv(num, den), false)
}

/// First element (from the start, clamped) and number of elements of a slice along an axis of extent `n`.
pub fn slice_axis(c: &mut InferCtx, n: DimId, start: DimId, end: DimId, step: DimId) -> Result<(DimId, DimId)> {
    let by = c.dims.as_const(step);
    if by == Some(0) {
        return Err(c.error(ErrorKind::Shape, "Slice: a step is 0"));
    }
    if by.is_none() {
        let one = c.dims.constant(1);
        let is = is_zero(c.dims, step);
        let not = c.dims.sub(one, is);
        c.require_le(one, not, "Slice: a step must not be 0");
    }
    if by > Some(0)
        && let Some(e) = c.dims.as_const(end).filter(|&e| e >= OPEN_END)
        && c.dims.range(n).1 > e
        && e != i64::MAX
    {
        // True for any axis shorter than that, which the guard makes sure of.
        c.require_le(n, end, "Slice: an end of 10⁹ or more must be the end of the axis");
        return Ok(slice_dims(c.dims, n, start, n, step));
    }
    Ok(slice_dims(c.dims, n, start, end, step))
}

/// A start or end from the start of the axis. Constants that lie before the start of every such axis are all the same place, -1:
/// the least of them has no negative, so that nothing could be proved about its sum with the extent.
fn slice_bound(p: &mut DimPool, d: DimId, n: DimId) -> DimId {
    let longest = p.range(n).1;
    match p.as_const(d) {
        Some(c) if c < 0 && longest.saturating_add(c) < 0 => p.constant(-1),
        _ => from_start(p, d, n),
    }
}

/// See [`slice_axis`]; `step` is not 0.
pub fn slice_dims(p: &mut DimPool, n: DimId, start: DimId, end: DimId, step: DimId) -> (DimId, DimId) {
    let (zero, one) = (p.constant(0), p.constant(1));
    if let Some(k) = p.as_const(step) {
        let by = p.constant(k.saturating_abs());
        return steps(p, n, (start, end), by, k > 0);
    }
    // Both ways; which one it is, the run knows.
    let opposite = p.sub(zero, step);
    let (forward, backward) = (p.max(step, one), p.max(opposite, one));
    let (up, down) = (steps(p, n, (start, end), forward, true), steps(p, n, (start, end), backward, false));
    let back = is_negative(p, step);
    (choose(p, back, up.0, down.0), choose(p, back, up.1, down.1))
}

/// The same for steps of `by`, which is positive, up or down.
fn steps(p: &mut DimPool, n: DimId, (start, end): (DimId, DimId), by: DimId, up: bool) -> (DimId, DimId) {
    let (zero, one) = (p.constant(0), p.constant(1));
    let (s, e) = (slice_bound(p, start, n), slice_bound(p, end, n));
    if up {
        let (first, last) = (clamp(p, s, zero, n), clamp(p, e, zero, n));
        // Where one side is an end of the axis the length has a simpler form than the difference of the clamped sides.
        let len = if last == n && p.prove_le(zero, s) == Proof::Yes {
            let d = p.sub(n, s);
            p.max(d, zero)
        } else if last == n && p.prove_le(s, n) == Proof::Yes {
            let d = p.sub(n, s);
            p.min(d, n)
        } else if p.checked(|p| p.sub(e, s)) == Some(one) {
            // One element, or none where the axis ends before: what is known to be at most 1 repeats in a broadcast.
            let from_start = p.prove_le(zero, s) == Proof::Yes;
            let left = if from_start { p.sub(n, s) } else { p.add(s, one) };
            let some = p.max(left, zero);
            match from_start || p.prove_le(e, n) == Proof::Yes {
                true => p.min(some, one),
                false => {
                    let d = p.sub(last, first);
                    let d = p.max(d, zero);
                    p.min(d, one)
                }
            }
        } else {
            let d = p.sub(last, first);
            p.max(d, zero)
        };
        return (first, p.ceildiv(len, by));
    }
    let (minus, top) = (p.constant(-1), p.sub(n, one));
    let first = if s == top || p.prove_le(n, s) == Proof::Yes { top } else { clamp(p, s, zero, top) };
    let last = clamp(p, e, minus, top);
    let d = p.sub(first, last);
    let mut len = p.max(d, zero);
    if p.range(len).1 > 1 && p.checked(|p| p.sub(s, e)) == Some(one) {
        // One element, or none, as above.
        len = if s == first && p.prove_le(s, top) == Proof::Yes {
            let some = p.add(s, one);
            let some = p.max(some, zero);
            p.min(some, one)
        } else {
            p.min(len, one)
        };
    }
    (first, p.ceildiv(len, by))
}

impl InferCtx<'_> {
    /// States `a ≤ b`: dropped where it always holds, else a guard. For facts that only hostile or huge inputs break.
    pub fn require_le(&mut self, a: DimId, b: DimId, what: &str) {
        if self.dims.prove_le(a, b) != Proof::Yes {
            let node = self.path.into();
            let guard = crate::graph::Guard { lhs: a, rel: crate::graph::Rel::Le, rhs: b, why: what.into(), node };
            self.guards.push(guard);
        }
    }
    /// States that an axis of extent `n`, which elements look into, has a place for them where there are any: an index has no other to go to.
    pub fn require_some(&mut self, n: DimId, elements: impl IntoIterator<Item = DimId>, what: &str) {
        let one = self.dims.constant(1);
        let all = self.dims.product(elements);
        let some = self.dims.min(all, one);
        let what = format!("{}: {what}", self.def.name);
        self.require_le(some, n, &what);
    }
    /// Requires operand `i`, where present, to have one element: it stands for a number.
    ///
    /// # Errors
    /// `Shape` when it has none or several.
    pub fn require_single(&mut self, i: usize, what: &str) -> Result<()> {
        let one = self.dims.constant(1);
        match self.shape(i) {
            Some(s) if s.len() > 1 => {
                let text = format!("{}: {what} must be one number, not of {} axes", self.def.name, s.len());
                Err(self.error(ErrorKind::Shape, text))
            }
            Some(s) => s.iter().try_for_each(|&d| self.require_eq(d, one, &format!("{what} must be one number"))),
            None => Ok(()),
        }
    }
    /// An element of a shape operand as an extent: negative numbers are refused now or at run time.
    ///
    /// # Errors
    /// `Shape` when it is always negative.
    pub fn extent(&mut self, d: DimId) -> Result<DimId> {
        let zero = self.dims.constant(0);
        if self.dims.range(d).1 < 0 {
            let text = format!("{}: an extent is negative: {}", self.def.name, self.dims.display(d));
            return Err(self.error(ErrorKind::Shape, text));
        }
        self.require_le(zero, d, &format!("{}: an extent must not be negative", self.def.name));
        Ok(d)
    }
    /// Number of elements of operand `i`, a list: its extent, where constant.
    pub fn list_len(&self, i: usize) -> Option<usize> {
        let s = self.shape(i)?;
        match s.as_slice() {
            [] => Some(1),
            [n] => usize::try_from(self.dims.as_const(*n)?).ok(),
            _ => None,
        }
    }
    /// Fresh extents for a result of known rank whose extents nothing derives.
    pub fn unknown_extents(&mut self, rank: usize) -> Shape {
        (0..rank).map(|_| self.fresh("unknown", tensor::dims::Origin::Unknown)).collect()
    }
    /// Attribute slot by name, as integers, or operand `i` as constants; `None` where absent, an error where not constant.
    ///
    /// # Errors
    /// `Unsupported` when the operand is present but not constant.
    pub fn const_list(&self, i: usize, what: &str) -> Result<Option<Vec<i64>>> {
        if !self.has(i) {
            return Ok(None);
        }
        match self.const_ints(i) {
            Some(v) => Ok(Some(v)),
            None => {
                let text = format!("{}: {what} must be known when the model is compiled", self.def.name);
                Err(self.error(ErrorKind::Unsupported, text))
            }
        }
    }
    /// Normalises a list of axes, each at most once.
    ///
    /// # Errors
    /// `Shape` when one is out of range or repeated.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        let mut out: Vec<usize> = Vec::with_capacity(axes.len());
        for &a in axes {
            let a = self.axis(a, rank)?;
            if out.contains(&a) {
                return Err(self.error(ErrorKind::Shape, format!("{}: axis {a} is given twice", self.def.name)));
            }
            out.push(a);
        }
        Ok(out)
    }
}
