//! Ops that only move elements: any dtype, strings and packed types too.

use crate::math;
use smallvec::SmallVec;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor, Writer};

fn fail(text: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// Product of extents.
pub(crate) fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Row-major strides in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut s = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        s[i - 1] = s[i] * shape[i];
    }
    s
}

/// Calls `f` with every coordinate of `shape`, row-major.
pub(crate) fn each_coord(shape: &[usize], mut f: impl FnMut(&[usize])) {
    let n = count(shape);
    let mut c: SmallVec<[usize; 8]> = SmallVec::from_elem(0, shape.len());
    for _ in 0..n {
        f(&c);
        for i in (0..shape.len()).rev() {
            c[i] += 1;
            if c[i] < shape[i] {
                break;
            }
            c[i] = 0;
        }
    }
}

/// A tensor of `shape` whose elements are those of `sources` at the positions given, row-major: (source, position).
pub(crate) fn pick(
    dtype: DType,
    shape: &[usize],
    sources: &[&Tensor],
    from: impl IntoIterator<Item = (usize, usize)>,
) -> Result<Tensor> {
    let from = from.into_iter();
    if dtype == DType::String {
        let all: Vec<String> = from.map(|(s, p)| sources[s].strings()[p].clone()).collect();
        return Ok(Tensor::from_strings(shape, all));
    }
    let Some(size) = dtype.size() else {
        let views: Vec<_> = sources.iter().map(|t| t.view()).collect();
        let mut w = Writer::new(dtype, shape);
        from.for_each(
            |(s, p)| if dtype.is_float() { w.push_f64(views[s].f64_at(p)) } else { w.push_i64(views[s].i64_at(p)) },
        );
        return Ok(w.finish());
    };
    let bytes: Vec<&[u8]> = sources.iter().map(|t| t.bytes().as_ref()).collect();
    let mut out = Vec::with_capacity(count(shape) * size);
    from.for_each(|(s, p)| out.extend_from_slice(&bytes[s][p * size..(p + 1) * size]));
    Tensor::new(dtype, shape, out.into())
}

/// The elements of `x` at coordinates: `map` turns a coordinate of the result into a position of `x`.
pub(crate) fn remap(x: &Tensor, shape: &[usize], mut map: impl FnMut(&[usize]) -> usize) -> Result<Tensor> {
    let mut from = Vec::with_capacity(count(shape));
    each_coord(shape, |c| from.push((0, map(c))));
    pick(x.dtype(), shape, &[x], from)
}

/// The tensor itself, which must have one element: an operand that stands for a number.
///
/// # Errors
/// `Shape` when it has none or several.
pub fn single<'a>(t: &'a Tensor, what: &str) -> Result<&'a Tensor> {
    match t.n_elems() {
        1 => Ok(t),
        n => Err(fail(format!("{what} must be one number, not {n}"))),
    }
}

/// The same elements under another shape.
///
/// # Errors
/// `Shape` when the counts differ.
pub fn with_shape(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if count(shape) != x.n_elems() {
        return Err(fail(format!("cannot reshape {:?} to {shape:?}", x.shape())));
    }
    Ok(x.reshaped(shape))
}

/// `Reshape`: -1 takes what is left, 0 keeps the operand's extent (or is an extent of 0 with `allow_zero`).
///
/// # Errors
/// `Shape` when the counts cannot agree, or where `allow_zero` leaves the extent of a -1 beside a 0 open.
pub fn reshape(x: &Tensor, shape: &[i64], allow_zero: bool) -> Result<Tensor> {
    let mut out = Vec::with_capacity(shape.len());
    let mut open = None;
    // Kept extents cancel out of the open one, also where they are 0.
    let mut left = x.shape().to_vec();
    let mut given = 1;
    for (i, &d) in shape.iter().enumerate() {
        out.push(match d {
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            0 if !allow_zero => {
                let kept = left
                    .get_mut(i)
                    .ok_or_else(|| fail(format!("axis {i} has no extent to keep in {:?}", x.shape())))?;
                std::mem::replace(kept, 1)
            }
            d => {
                let d = usize::try_from(d).map_err(|_| fail(format!("cannot reshape {:?} to {shape:?}", x.shape())))?;
                given *= d;
                d
            }
        });
    }
    if let Some(i) = open {
        if allow_zero && shape.contains(&0) {
            return Err(fail(format!("0 and -1 in {shape:?} leave the extent open")));
        }
        out[i] = count(&left).checked_div(given).unwrap_or(0);
    }
    with_shape(x, &out)
}

/// Result axis `i` is operand axis `perm[i]`.
///
/// # Errors
/// Never for a valid permutation.
pub fn transpose(x: &Tensor, perm: &[usize]) -> Result<Tensor> {
    let s = strides(x.shape());
    let shape: Vec<usize> = perm.iter().map(|&p| x.shape()[p]).collect();
    let s: Vec<usize> = perm.iter().map(|&p| s[p]).collect();
    remap(x, &shape, |c| c.iter().zip(&s).map(|(c, s)| c * s).sum())
}

/// The operands one after the other along `axis`.
///
/// # Errors
/// `Shape` when other extents differ.
pub fn concat(xs: &[&Tensor], axis: usize) -> Result<Tensor> {
    let first = xs.first().ok_or_else(|| fail("Concat needs an operand"))?;
    let mut shape = first.shape().to_vec();
    let same =
        |x: &&Tensor| x.shape().len() == shape.len() && (0..shape.len()).all(|a| a == axis || x.shape()[a] == shape[a]);
    if axis >= shape.len() || !xs.iter().all(same) {
        let all: Vec<&[usize]> = xs.iter().map(|x| x.shape()).collect();
        return Err(fail(format!("cannot concatenate {all:?} along axis {axis}")));
    }
    shape[axis] = xs.iter().map(|x| x.shape()[axis]).sum();
    let (outer, inner) = (count(&shape[..axis]), count(&shape[axis + 1..]));
    let from = (0..outer).flat_map(|o| {
        xs.iter().enumerate().flat_map(move |(k, x)| {
            let n = x.shape()[axis] * inner;
            (o * n..(o + 1) * n).map(move |p| (k, p))
        })
    });
    pick(first.dtype(), &shape, xs, from)
}

/// Pieces of the given extents along `axis`.
///
/// # Errors
/// `Shape` when they do not add up.
pub fn split(x: &Tensor, axis: usize, sizes: &[usize]) -> Result<Vec<Tensor>> {
    if sizes.iter().sum::<usize>() != x.shape()[axis] {
        return Err(fail(format!("cannot split {:?} along axis {axis} into {sizes:?}", x.shape())));
    }
    let mut start = 0;
    sizes
        .iter()
        .map(|&n| {
            let mut shape = x.shape().to_vec();
            shape[axis] = n;
            let mut first = vec![0; shape.len()];
            first[axis] = start;
            start += n;
            slice_positions(x, &shape, &first, &vec![1; shape.len()])
        })
        .collect()
}

fn slice_positions(x: &Tensor, shape: &[usize], first: &[usize], steps: &[i64]) -> Result<Tensor> {
    let s = strides(x.shape());
    remap(x, shape, |c| {
        c.iter().enumerate().map(|(a, &i)| (first[a] as i64 + i as i64 * steps[a]) as usize * s[a]).sum()
    })
}

/// First element, number of elements for one axis of a slice, as ONNX clamps: starts of a backward slice to the last element, ends
/// to one before the first.
pub fn slice_axis(n: usize, start: i64, end: i64, step: i64) -> (i64, usize) {
    let n = n as i64;
    let wrap = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
    let (start, end) = (wrap(start), wrap(end));
    if n == 0 {
        return (0, 0);
    }
    let (start, end) =
        if step > 0 { (start.clamp(0, n), end.clamp(0, n)) } else { (start.clamp(0, n - 1), end.clamp(-1, n - 1)) };
    let len = if step > 0 { (end - start + step - 1) / step } else { (start - end + (-step) - 1) / -step };
    (start, len.max(0) as usize)
}

/// `Slice`: per listed axis start, end, step.
///
/// # Errors
/// `Shape` for a step of 0.
pub fn slice(x: &Tensor, axes: &[usize], starts: &[i64], ends: &[i64], steps: &[i64]) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    let (mut first, mut step) = (vec![0; shape.len()], vec![1; shape.len()]);
    for (k, &a) in axes.iter().enumerate() {
        if steps[k] == 0 {
            return Err(fail("Slice: a step is 0"));
        }
        let (s, n) = slice_axis(x.shape()[a], starts[k], ends[k], steps[k].clamp(-i64::MAX / 4, i64::MAX / 4));
        (first[a], shape[a], step[a]) = (s as usize, n, steps[k]);
    }
    slice_positions(x, &shape, &first, &step)
}

/// Numpy broadcast of `x` with a shape, both ways.
///
/// # Errors
/// `Shape` when they do not broadcast.
pub fn expand(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let rank = shape.len().max(x.shape().len());
    let padded = |s: &[usize]| [vec![1; rank - s.len()], s.to_vec()].concat();
    let (a, b) = (padded(x.shape()), padded(shape));
    if a.iter().zip(&b).any(|(&p, &q)| p != q && p != 1 && q != 1) {
        return Err(fail(format!("cannot broadcast {:?} with {shape:?}", x.shape())));
    }
    let out: Vec<usize> = a.iter().zip(&b).map(|(&p, &q)| if p == 1 { q } else { p }).collect();
    let s = strides(&a);
    remap(x, &out, |c| (0..rank).map(|i| if a[i] == 1 { 0 } else { c[i] * s[i] }).sum())
}

/// `x` repeated along each axis.
///
/// # Errors
/// Never: one repeat per axis is the caller's duty.
pub fn tile(x: &Tensor, repeats: &[usize]) -> Result<Tensor> {
    let shape: Vec<usize> = x.shape().iter().zip(repeats).map(|(d, r)| d * r).collect();
    let s = strides(x.shape());
    let dims = x.shape().to_vec();
    remap(x, &shape, |c| (0..c.len()).map(|i| c[i] % dims[i] * s[i]).sum())
}

/// How `Pad` fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// A constant.
    Constant,
    /// Mirrored without the edge.
    Reflect,
    /// The edge repeated.
    Edge,
    /// From the other side.
    Wrap,
}

impl PadMode {
    /// By ONNX's name.
    pub fn from_name(s: &str) -> Option<PadMode> {
        Some(match s {
            "constant" => PadMode::Constant,
            "reflect" => PadMode::Reflect,
            "edge" => PadMode::Edge,
            "wrap" => PadMode::Wrap,
            _ => return None,
        })
    }
}

/// `Pad`: elements added before and after each axis. Negative numbers remove elements, before any are added: what is added
/// repeats those that are left. `value` has one element, for constant mode.
///
/// # Errors
/// `Shape` when an extent would be negative, nothing is left to repeat, or more is mirrored than lies beside the edge.
pub fn pad(x: &Tensor, begin: &[i64], end: &[i64], mode: PadMode, value: &Tensor) -> Result<Tensor> {
    if mode == PadMode::Constant {
        single(value, "the value to pad with")?;
    }
    let mut shape = Vec::new();
    for (a, &d) in x.shape().iter().enumerate() {
        let n = (d as i64).checked_add(begin[a]).and_then(|n| usize::try_from(n.checked_add(end[a])?).ok());
        shape.push(n.ok_or_else(|| fail(format!("Pad: axis {a} of {:?} gets a negative extent", x.shape())))?);
        let (left, added) = (kept(d, begin[a], end[a]), begin[a].max(end[a]).max(0));
        let needed = match mode {
            PadMode::Reflect => added.saturating_add(1),
            PadMode::Edge | PadMode::Wrap => 1,
            PadMode::Constant => i64::MIN,
        };
        if (begin[a], end[a]) != (0, 0) && left < needed {
            return Err(fail(format!("Pad: {mode:?} needs {needed} elements along axis {a}, the pads leave {left}")));
        }
    }
    let s = strides(x.shape());
    let mut from = Vec::with_capacity(count(&shape));
    each_coord(&shape, |c| {
        let mut p = Some(0);
        for (a, &i) in c.iter().enumerate() {
            let n = kept(x.shape()[a], begin[a], end[a]);
            // Positions among the elements that are left, then among all.
            let i = i as i64 - begin[a].max(0);
            let j = match mode {
                PadMode::Constant => (0..n).contains(&i).then_some(i),
                PadMode::Edge => Some(i.clamp(0, n - 1)),
                PadMode::Wrap => Some(i.rem_euclid(n)),
                PadMode::Reflect => Some(n - 1 - (n - 1 - i.abs()).abs()),
            };
            let first = begin[a].min(0).saturating_neg();
            p = p.zip(j).map(|(p, j)| p + (first + j) as usize * s[a]);
        }
        from.push(p.map_or((1, 0), |p| (0, p)));
    });
    pick(x.dtype(), &shape, &[x, value], from)
}

/// How many of `d` elements negative pads leave.
fn kept(d: usize, begin: i64, end: i64) -> i64 {
    (d as i64).saturating_add(begin.min(0)).saturating_add(end.min(0))
}

/// One element everywhere.
///
/// # Errors
/// Never for a `value` of one element.
pub fn fill(value: &Tensor, shape: &[usize]) -> Result<Tensor> {
    single(value, "the value to fill with")?;
    pick(value.dtype(), shape, &[value], std::iter::repeat_n((0, 0), count(shape)))
}

/// `Range`: `start + i·delta` while it is before `limit`.
///
/// # Errors
/// `Shape` for a delta of 0.
pub fn range(start: &Tensor, limit: &Tensor, delta: &Tensor) -> Result<Tensor> {
    for (t, what) in [(start, "start"), (limit, "limit"), (delta, "delta")] {
        single(t, what)?;
    }
    let dtype = start.dtype();
    if dtype.is_float() {
        let [s, l, d] = [start, limit, delta].map(|t| t.view().f64_at(0));
        let n = ((l - s) / d).ceil().max(0.0);
        if n.is_nan() || n >= 1e12 {
            return Err(fail(format!("Range from {s} to {l} by {d} has no end")));
        }
        return progression(start, delta, n as usize);
    }
    let [s, l, d] = [start, limit, delta].map(|t| i128::from(t.view().i64_at(0)));
    if d == 0 {
        return Err(fail("Range: delta is 0"));
    }
    let n = if d > 0 { (l - s + d - 1) / d } else { (s - l - d - 1) / -d }.max(0);
    let v: Vec<i64> = (0..n).map(|i| (s + i * d) as i64).collect();
    Ok(Tensor::from_i64_as(dtype, &[v.len()], &v))
}

/// `start + i·delta` for each `i` below `n`, of floats.
///
/// # Errors
/// `Shape` when an operand is not one number.
pub fn progression(start: &Tensor, delta: &Tensor, n: usize) -> Result<Tensor> {
    let [s, d] = [single(start, "start")?, single(delta, "delta")?].map(|t| t.view().f64_at(0));
    let v: Vec<f64> = (0..n).map(|i| s + i as f64 * d).collect();
    Ok(Tensor::from_f64_as(start.dtype(), &[v.len()], &v))
}

/// The upper or lower triangle of the last two axes, from diagonal `k`; 0 elsewhere.
///
/// # Errors
/// `Shape` below rank 2.
pub fn trilu(x: &Tensor, k: i64, upper: bool) -> Result<Tensor> {
    let r = x.shape().len();
    if r < 2 {
        return Err(fail(format!("Trilu needs at least 2 axes, not {r}")));
    }
    let zero = Tensor::zeros(x.dtype(), &[])?;
    let (mut from, mut p) = (Vec::with_capacity(x.n_elems()), 0);
    each_coord(x.shape(), |c| {
        let d = c[r - 1] as i64 - c[r - 2] as i64;
        let keep = if upper { d >= k } else { d <= k };
        from.push(if keep { (0, p) } else { (1, 0) });
        p += 1;
    });
    pick(x.dtype(), x.shape(), &[x, &zero], from)
}

/// An index with negative numbers counted from the end.
fn at(i: i64, n: usize) -> Result<usize> {
    let j = if i < 0 { i + n as i64 } else { i };
    usize::try_from(j)
        .ok()
        .filter(|&j| j < n)
        .ok_or_else(|| fail(format!("index {i} is out of range for an axis of {n}")))
}

/// `Gather`: rows of `x` along `axis` by index.
///
/// # Errors
/// `Shape` for an index out of range.
pub fn gather(x: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor> {
    let d = x.shape()[axis];
    let idx: Vec<usize> = indices.to_i64_vec().into_iter().map(|i| at(i, d)).collect::<Result<_>>()?;
    let (outer, inner) = (count(&x.shape()[..axis]), count(&x.shape()[axis + 1..]));
    let shape = [&x.shape()[..axis], indices.shape(), &x.shape()[axis + 1..]].concat();
    let idx = &idx;
    let from = (0..outer)
        .flat_map(|o| idx.iter().flat_map(move |&i| ((o * d + i) * inner..(o * d + i + 1) * inner).map(|p| (0, p))));
    pick(x.dtype(), &shape, &[x], from)
}

/// `GatherElements`: `y[c] = x[c with c[axis] replaced by indices[c]]`.
///
/// # Errors
/// `Shape` for an index out of range or other extents beyond those of `x`.
pub fn gather_elements(x: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor> {
    let s = strides(x.shape());
    let idx = indices.to_i64_vec();
    let (mut from, mut k, mut bad) = (Vec::new(), 0, None);
    each_coord(indices.shape(), |c| {
        let mut p = 0;
        for a in 0..c.len() {
            let i = if a == axis { idx[k] } else { c[a] as i64 };
            match at(i, x.shape()[a]) {
                Ok(i) => p += i * s[a],
                Err(e) => bad = Some(e),
            }
        }
        from.push((0, p));
        k += 1;
    });
    bad.map_or(Ok(()), Err)?;
    pick(x.dtype(), indices.shape(), &[x], from)
}

/// Positions in a tensor of `shape` of the slices that the rows of `indices` name, and the number of elements of a slice.
fn nd_positions(shape: &[usize], indices: &Tensor, batch: usize) -> Result<(Vec<usize>, usize)> {
    let (k, lead) = indices.shape().split_last().ok_or_else(|| fail("indices need an axis"))?;
    if batch + k > shape.len() || lead.len() < batch {
        return Err(fail(format!("indices {:?} are too deep for {shape:?}", indices.shape())));
    }
    if lead[..batch] != shape[..batch] {
        return Err(fail(format!("indices {:?} and {shape:?} differ in {batch} batch axes", indices.shape())));
    }
    let (s, idx) = (strides(shape), indices.to_i64_vec());
    let inner = count(&shape[batch + k..]);
    let (mut out, mut row) = (Vec::new(), 0);
    let mut bad = None;
    each_coord(lead, |c| {
        let mut p: usize = (0..batch).map(|a| c[a] * s[a]).sum();
        for j in 0..*k {
            match at(idx[row * k + j], shape[batch + j]) {
                Ok(i) => p += i * s[batch + j],
                Err(e) => bad = Some(e),
            }
        }
        out.push(p);
        row += 1;
    });
    bad.map_or(Ok((out, inner)), Err)
}

/// `GatherND`.
///
/// # Errors
/// `Shape` for an index out of range.
pub fn gather_nd(x: &Tensor, indices: &Tensor, batch: usize) -> Result<Tensor> {
    let (starts, inner) = nd_positions(x.shape(), indices, batch)?;
    let (k, lead) = indices.shape().split_last().ok_or_else(|| fail("indices need an axis"))?;
    let shape = [lead, &x.shape()[batch + k..]].concat();
    pick(x.dtype(), &shape, &[x], starts.into_iter().flat_map(|p| (p..p + inner).map(|p| (0, p))))
}

/// How a scattered element meets the one that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scatter {
    /// Replaces it; the last of several wins.
    None,
    /// Is added.
    Add,
    /// Is multiplied.
    Mul,
    /// The greater stays.
    Max,
    /// The smaller stays.
    Min,
}

impl Scatter {
    /// By ONNX's name.
    pub fn from_name(s: &str) -> Option<Scatter> {
        Some(match s {
            "none" => Scatter::None,
            "add" => Scatter::Add,
            "mul" => Scatter::Mul,
            "max" => Scatter::Max,
            "min" => Scatter::Min,
            _ => return None,
        })
    }
}

/// `x` with elements of `updates` at positions: (position in x, position in updates), in order.
fn scatter(x: &Tensor, updates: &Tensor, to: Vec<(usize, usize)>, how: Scatter) -> Result<Tensor> {
    let dtype = x.dtype();
    if how == Scatter::None {
        let mut from: Vec<(usize, usize)> = (0..x.n_elems()).map(|p| (0, p)).collect();
        to.into_iter().for_each(|(p, u)| from[p] = (1, u));
        return pick(dtype, x.shape(), &[x, updates], from);
    }
    if dtype.is_float() {
        let (mut v, u) = (x.to_f64_vec(), updates.to_f64_vec());
        for (p, q) in to {
            v[p] = match how {
                Scatter::Add => v[p] + u[q],
                Scatter::Mul => v[p] * u[q],
                Scatter::Max => math::max(v[p], u[q]),
                _ => math::min(v[p], u[q]),
            };
        }
        return Ok(Tensor::from_f64_as(dtype, x.shape(), &v));
    }
    let (mut v, u) = (x.to_i64_vec(), updates.to_i64_vec());
    for (p, q) in to {
        v[p] = match how {
            Scatter::Add => v[p].wrapping_add(u[q]),
            Scatter::Mul => v[p].wrapping_mul(u[q]),
            Scatter::Max => v[p].max(u[q]),
            _ => v[p].min(u[q]),
        };
    }
    Ok(Tensor::from_i64_as(dtype, x.shape(), &v))
}

/// `ScatterND`.
///
/// # Errors
/// `Shape` for an index out of range or updates of another shape.
pub fn scatter_nd(x: &Tensor, indices: &Tensor, updates: &Tensor, how: Scatter) -> Result<Tensor> {
    let (starts, inner) = nd_positions(x.shape(), indices, 0)?;
    if updates.n_elems() != starts.len() * inner {
        return Err(fail(format!("ScatterND: updates {:?} do not fit indices {:?}", updates.shape(), indices.shape())));
    }
    let to = starts.iter().enumerate().flat_map(|(r, &p)| (0..inner).map(move |i| (p + i, r * inner + i))).collect();
    scatter(x, updates, to, how)
}

/// `ScatterElements`.
///
/// # Errors
/// `Shape` for an index out of range or updates of another shape.
pub fn scatter_elements(x: &Tensor, indices: &Tensor, updates: &Tensor, axis: usize, how: Scatter) -> Result<Tensor> {
    if updates.shape() != indices.shape() || indices.shape().len() != x.shape().len() {
        return Err(fail(format!("ScatterElements: {:?} updates for {:?} indices", updates.shape(), indices.shape())));
    }
    let (s, idx) = (strides(x.shape()), indices.to_i64_vec());
    let (mut to, mut k, mut bad) = (Vec::new(), 0, None);
    each_coord(indices.shape(), |c| {
        let mut p = 0;
        for a in 0..c.len() {
            match at(if a == axis { idx[k] } else { c[a] as i64 }, x.shape()[a]) {
                Ok(i) => p += i * s[a],
                Err(e) => bad = Some(e),
            }
        }
        to.push((p, k));
        k += 1;
    });
    bad.map_or(Ok(()), Err)?;
    scatter(x, updates, to, how)
}

/// `OneHot`: `values` holds off and on; the new axis has `depth` elements; an index outside ±depth gives off everywhere.
///
/// # Errors
/// Never for valid axes.
pub fn one_hot(indices: &Tensor, depth: usize, values: &Tensor, axis: usize) -> Result<Tensor> {
    if values.n_elems() != 2 {
        return Err(fail(format!("OneHot: values are off and on, not {} elements", values.n_elems())));
    }
    let idx = indices.to_i64_vec();
    let mut shape = indices.shape().to_vec();
    shape.insert(axis, depth);
    let s = strides(indices.shape());
    let mut from = Vec::with_capacity(count(&shape));
    each_coord(&shape, |c| {
        let p: usize = (0..s.len()).map(|a| c[if a < axis { a } else { a + 1 }] * s[a]).sum();
        let i = if idx[p] < 0 { idx[p] + depth as i64 } else { idx[p] };
        from.push((0, usize::from(i == c[axis] as i64)));
    });
    pick(values.dtype(), &shape, &[values], from)
}

/// `NonZero`: coordinates of the elements that are not 0, `[rank, count]`.
pub fn non_zero(x: &Tensor) -> Tensor {
    let view = x.view();
    let (mut found, mut i) = (Vec::new(), 0);
    each_coord(x.shape(), |c| {
        let hit = if x.dtype().is_float() { view.f64_at(i) != 0.0 } else { view.i64_at(i) != 0 };
        if hit {
            found.push(c.iter().map(|&c| c as i64).collect::<Vec<_>>());
        }
        i += 1;
    });
    let rank = x.shape().len();
    let v: Vec<i64> = (0..rank).flat_map(|a| found.iter().map(move |c| c[a])).collect();
    Tensor::from_i64(&[rank, found.len()], &v)
}

/// Sums or products along `axis` up to each element (before it when `exclusive`), from the other end when `reverse`.
pub fn cumulative(x: &Tensor, axis: usize, product: bool, exclusive: bool, reverse: bool) -> Tensor {
    let (n, inner) = (x.shape()[axis], count(&x.shape()[axis + 1..]));
    let at = |o: usize, i: usize, k: usize| (o * n + if reverse { n - 1 - k } else { k }) * inner + i;
    let outer = count(&x.shape()[..axis]);
    macro_rules! sums {
        ($v:expr, $zero:expr, |$a:ident, $b:ident| $add:expr) => {{
            let v = $v;
            let mut out = v.clone();
            for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
                let mut $a = $zero;
                for k in 0..n {
                    let $b = v[at(o, i, k)];
                    let next = $add;
                    out[at(o, i, k)] = if exclusive { $a } else { next };
                    $a = next;
                }
            }
            out
        }};
    }
    let (d, s) = (x.dtype(), x.shape());
    match (d.is_float(), product) {
        (true, false) => Tensor::from_f64_as(d, s, &sums!(x.to_f64_vec(), 0.0, |a, b| a + b)),
        (true, true) => Tensor::from_f64_as(d, s, &sums!(x.to_f64_vec(), 1.0, |a, b| a * b)),
        (false, false) => Tensor::from_i64_as(d, s, &sums!(x.to_i64_vec(), 0i64, |a, b| a.wrapping_add(b))),
        (false, true) => Tensor::from_i64_as(d, s, &sums!(x.to_i64_vec(), 1i64, |a, b| a.wrapping_mul(b))),
    }
}
