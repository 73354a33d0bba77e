//! Rearrangements of images: blocks and channels, reversed sequences, centered parts, unpooling; and pooling with norms.

use crate::conv::Window;
use crate::data::{f64s, from_f64s, from_ints, ints};
use crate::movement::{count, each_coord, pick, remap, strides};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

fn fail(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// Channels to blocks of `block` × `block` pixels: `x [n, c, h, w]` → `[n, c / block², h · block, w · block]`. Channels count blocks first, or
/// with `depth_first` their own number.
///
/// # Errors
/// `Shape` when the channels do not fill blocks.
pub fn depth_to_space(x: &Tensor, block: usize, depth_first: bool) -> Result<Tensor> {
    let &[n, c, h, w] = x.shape() else { return Err(fail(format!("DepthToSpace of {:?}", x.shape()))) };
    if block == 0 || c % (block * block) != 0 {
        return Err(fail(format!("DepthToSpace: {c} channels do not fill blocks of {block}")));
    }
    let (depth, s) = (c / (block * block), strides(x.shape()));
    remap(x, &[n, depth, h * block, w * block], |at| {
        let within = (at[2] % block) * block + at[3] % block;
        let channel = if depth_first { at[1] * block * block + within } else { within * depth + at[1] };
        at[0] * s[0] + channel * s[1] + at[2] / block * s[2] + at[3] / block
    })
}

/// Blocks of `block` × `block` pixels to channels: the inverse of [`depth_to_space`].
///
/// # Errors
/// `Shape` when the image is not made of blocks.
pub fn space_to_depth(x: &Tensor, block: usize, depth_first: bool) -> Result<Tensor> {
    let &[n, c, h, w] = x.shape() else { return Err(fail(format!("SpaceToDepth of {:?}", x.shape()))) };
    if block == 0 || h % block != 0 || w % block != 0 {
        return Err(fail(format!("SpaceToDepth: {h} by {w} pixels are not made of blocks of {block}")));
    }
    let s = strides(x.shape());
    remap(x, &[n, c * block * block, h / block, w / block], |at| {
        let area = block * block;
        let (channel, within) = if depth_first { (at[1] / area, at[1] % area) } else { (at[1] % c, at[1] / c) };
        let (y, z) = (at[2] * block + within / block, at[3] * block + within % block);
        at[0] * s[0] + channel * s[1] + y * s[2] + z
    })
}

/// The first `lens[b]` elements along axis `time` backwards, for every `b` along axis `batch`.
///
/// # Errors
/// `Shape` when there is not one length per sequence, or one is longer than the sequences.
pub fn reverse_sequence(x: &Tensor, lens: &[i64], batch: usize, time: usize) -> Result<Tensor> {
    let shape = x.shape();
    if shape.len() < 2 || batch == time || batch.max(time) >= shape.len() || lens.len() != shape[batch] {
        return Err(fail(format!("ReverseSequence: {} lengths for {shape:?}", lens.len())));
    }
    if let Some(l) = lens.iter().find(|&&l| l < 0 || l > shape[time] as i64) {
        return Err(fail(format!("ReverseSequence: a length of {l} in sequences of {}", shape[time])));
    }
    let s = strides(shape);
    remap(x, shape, |at| {
        let len = lens[at[batch]] as usize;
        let t = if at[time] < len { len - 1 - at[time] } else { at[time] };
        let p: usize = at.iter().zip(&s).map(|(a, s)| a * s).sum();
        p - at[time] * s[time] + t * s[time]
    })
}

/// The middle of `x`, or `x` in the middle of zeros, along each axis. An odd element falls to the end.
///
/// # Errors
/// Never for one extent per axis.
pub fn center_crop_pad(x: &Tensor, extents: &[usize]) -> Result<Tensor> {
    let (zero, s) = (from_ints(x.dtype(), &[1], &[0]), strides(x.shape()));
    let mut from = Vec::with_capacity(count(extents));
    each_coord(extents, |at| {
        let mut position = Some(0);
        for (a, (&n, &m)) in x.shape().iter().zip(extents).enumerate() {
            let i = (at[a] + n.saturating_sub(m) / 2).checked_sub(m.saturating_sub(n) / 2).filter(|&i| i < n);
            position = position.zip(i).map(|(p, i)| p + i * s[a]);
        }
        from.push(position.map_or((1, 0), |p| (0, p)));
    });
    pick(x.dtype(), extents, &[x, &zero], from)
}

/// 1 on diagonal `k` of a matrix, else 0.
pub fn eye(dtype: DType, rows: usize, columns: usize, k: i64) -> Tensor {
    let mut v = Vec::with_capacity(rows * columns);
    each_coord(&[rows, columns], |at| v.push(f64::from(u8::from(at[1] as i64 - at[0] as i64 == k))));
    from_f64s(dtype, &[rows, columns], &v)
}

/// `(Σ |x|ᵖ)^(1/p)` over windows of `x [n, c, spatial…]`.
///
/// # Errors
/// `Shape` when a window does not fit.
pub fn lp_pool(x: &Tensor, window: &Window, p: i64) -> Result<Tensor> {
    let [n, c, image @ ..] = x.shape() else { return Err(fail(format!("pooling of {:?}", x.shape()))) };
    let outs = window.outputs(image)?;
    let (v, size, st, p) = (f64s(x), count(image), strides(image), p as f64);
    let mut y = Vec::new();
    for plane in (0..n * c).map(|i| &v[i * size..(i + 1) * size]) {
        each_coord(&outs, |o| {
            let mut sum = 0.0;
            each_coord(&window.kernel, |k| {
                let place = |a: usize| usize::try_from(window.at(a, o[a], k[a])).ok().filter(|&i| i < image[a]);
                if let Some(at) = (0..k.len()).map(|a| Some(place(a)? * st[a])).sum::<Option<usize>>() {
                    sum += plane[at].abs().powf(p);
                }
            });
            y.push(sum.powf(1.0 / p));
        });
    }
    Ok(from_f64s(x.dtype(), &[&[*n, *c], outs.as_slice()].concat(), &y))
}

/// Elements of `x` at the row-major positions that `at` names in zeros of extents `inner`, which lie in the first corner of `outer`. The last
/// of several elements at one place stays.
///
/// # Errors
/// `Shape` when there is not one position per element, one is out of range, or `inner` is larger than `outer`.
pub fn max_unpool(x: &Tensor, at: &Tensor, inner: &[usize], outer: &[usize]) -> Result<Tensor> {
    if x.shape() != at.shape() || inner.len() != outer.len() || inner.iter().zip(outer).any(|(i, o)| i > o) {
        return Err(fail(format!("MaxUnpool of {:?}, {:?} to {inner:?} in {outer:?}", x.shape(), at.shape())));
    }
    let mut source: Vec<Option<usize>> = vec![None; count(inner)];
    for (k, &p) in at.to_i64_vec().iter().enumerate() {
        let slot = usize::try_from(p).ok().and_then(|p| source.get_mut(p));
        *slot.ok_or_else(|| fail(format!("MaxUnpool: position {p} is not in {inner:?}")))? = Some(k);
    }
    let (zero, s) = (from_ints(x.dtype(), &[1], &[0]), strides(inner));
    let mut from = Vec::with_capacity(count(outer));
    each_coord(outer, |c| {
        let inside = c.iter().zip(inner).all(|(c, n)| c < n);
        let p: usize = c.iter().zip(&s).map(|(c, s)| c * s).sum();
        from.push(if inside { source[p].map_or((1, 0), |k| (0, k)) } else { (1, 0) });
    });
    pick(x.dtype(), outer, &[x, &zero], from)
}

/// Blocks summed into images: `x [n, c · block, columns]` → `[n, c, image…]`, one column per place of the block.
///
/// # Errors
/// `Shape` when the columns are not those of the image.
pub fn col2im(x: &Tensor, image: &[usize], window: &Window) -> Result<Tensor> {
    let (block, outs) = (count(&window.kernel), window.outputs(image)?);
    let &[n, rows, columns] = x.shape() else { return Err(fail(format!("Col2Im of {:?}", x.shape()))) };
    if block == 0 || rows % block != 0 || columns != count(&outs) {
        let text = format!("Col2Im: {rows} rows and {columns} columns for blocks of {block} at {outs:?} places");
        return Err(fail(text));
    }
    let (size, st) = (count(image), strides(image));
    // Where each element goes.
    let mut to = Vec::with_capacity(x.n_elems());
    for plane in 0..n * (rows / block) {
        each_coord(&window.kernel, |k| {
            each_coord(&outs, |o| {
                let place = |a: usize| usize::try_from(window.at(a, o[a], k[a])).ok().filter(|&i| i < image[a]);
                let at = (0..k.len()).map(|a| Some(place(a)? * st[a])).sum::<Option<usize>>();
                to.push(at.map(|p| plane * size + p));
            });
        });
    }
    let shape = [&[n, rows / block], image].concat();
    if x.dtype().is_float() {
        let mut y = vec![0.0; count(&shape)];
        to.iter().zip(f64s(x)).for_each(|(p, v)| p.iter().for_each(|&p| y[p] += v));
        return Ok(from_f64s(x.dtype(), &shape, &y));
    }
    let mut y = vec![0i128; count(&shape)];
    to.iter().zip(ints(x)).for_each(|(p, v)| p.iter().for_each(|&p| y[p] += v));
    Ok(from_ints(x.dtype(), &shape, &y))
}
