//! Resampling along axes: nearest, linear and cubic, with and without a filter against aliasing.
//!
//! Coordinates are computed in f32, in the order in which the formulas stand, as the scales are f32: which element is the nearest, or
//! the next, must be the same everywhere. Weighted sums are in f64, the last axis first, and rounded
//! once; but see [`blends_in_f32`].

use crate::data::{f64s, from_f64s};
use crate::movement::{count, each_coord, pick, strides};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// From positions in the result to coordinates in the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// `(x + 0.5) / scale - 0.5`
    HalfPixel,
    /// The same about the center, where the scaled extent is not whole.
    HalfPixelSymmetric,
    /// As `HalfPixel`; 0 where the result has one element.
    PytorchHalfPixel,
    /// `x · (n - 1) / (width - 1)`, with the width before it is rounded down; 0 where the result has one element. (The text has
    /// `length_resized` for the width, and calls a target length that can be fractional `output_width`; ONNX's tests take that one,
    /// onnxruntime and PyTorch take the whole one.)
    AlignCorners,
    /// `x / scale`
    Asymmetric,
    /// `(x + 0.5) / scale`
    TfHalfPixelForNn,
    /// From `start · (n - 1)` to `end · (n - 1)`; their middle where the result has one element.
    TfCropAndResize,
}

/// Which element a coordinate names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nearest {
    /// The nearest; the lower of two.
    RoundPreferFloor,
    /// The nearest; the upper of two.
    RoundPreferCeil,
    /// The one before.
    Floor,
    /// The one after.
    Ceil,
    /// The one before where the scale is at least 1, else the one after: what opset 10 and `Upsample` do.
    Simple,
}

/// Coordinates as near as this to the middle between two elements are in the middle but for rounding: so they are in onnxruntime.
pub const TIE: f32 = 1e-6;

/// How elements are made of those around a coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// One of them.
    Nearest(Nearest),
    /// Weights that fall linearly with the distance.
    Linear,
    /// Cubic convolution with coefficient `a`.
    Cubic {
        /// The coefficient.
        a: f32,
        /// Whether elements outside have no weight, the others more of it; else the border is repeated.
        exclude_outside: bool,
    },
}

/// One axis to resample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resampled {
    /// Which.
    pub axis: usize,
    /// Its extent in the result.
    pub extent: usize,
    /// Result over operand.
    pub scale: f32,
    /// Extent of the result before it was rounded to a whole number.
    pub width: f32,
    /// Start and end of the part that is resampled, as fractions; for [`Transform::TfCropAndResize`].
    pub roi: [f32; 2],
}

/// What all axes share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resize {
    /// See [`Mode`].
    pub mode: Mode,
    /// See [`Transform`].
    pub transform: Transform,
    /// Whether weights reach as far as elements of the result are apart.
    pub antialias: bool,
    /// What stands where a coordinate of [`Transform::TfCropAndResize`] is outside.
    pub extrapolation: f32,
}

impl Transform {
    /// By ONNX's name.
    pub fn from_name(s: &str) -> Option<Transform> {
        Some(match s {
            "half_pixel" => Transform::HalfPixel,
            "half_pixel_symmetric" => Transform::HalfPixelSymmetric,
            "pytorch_half_pixel" => Transform::PytorchHalfPixel,
            "align_corners" => Transform::AlignCorners,
            "asymmetric" => Transform::Asymmetric,
            "tf_half_pixel_for_nn" => Transform::TfHalfPixelForNn,
            "tf_crop_and_resize" => Transform::TfCropAndResize,
            _ => return None,
        })
    }
    /// The coordinate of element `x` of the result, along an axis of `n` elements.
    pub fn coordinate(self, a: &Resampled, n: usize, x: usize) -> f32 {
        let (x, n, [start, end]) = (x as f32, n as f32, a.roi);
        match self {
            Transform::PytorchHalfPixel | Transform::AlignCorners if a.extent <= 1 => 0.0,
            Transform::HalfPixel | Transform::PytorchHalfPixel => (x + 0.5) / a.scale - 0.5,
            Transform::HalfPixelSymmetric => {
                let offset = n * 0.5 * (1.0 - a.extent as f32 / a.width);
                offset + (x + 0.5) / a.scale - 0.5
            }
            Transform::AlignCorners => x * (n - 1.0) / (a.width - 1.0),
            Transform::Asymmetric => x / a.scale,
            Transform::TfHalfPixelForNn => (x + 0.5) / a.scale,
            Transform::TfCropAndResize if a.extent <= 1 => 0.5 * (start + end) * (n - 1.0),
            Transform::TfCropAndResize => start * (n - 1.0) + x * (end - start) * (n - 1.0) / (a.extent as f32 - 1.0),
        }
    }
}

impl Nearest {
    /// By ONNX's name.
    pub fn from_name(s: &str) -> Option<Nearest> {
        Some(match s {
            "round_prefer_floor" => Nearest::RoundPreferFloor,
            "round_prefer_ceil" => Nearest::RoundPreferCeil,
            "floor" => Nearest::Floor,
            "ceil" => Nearest::Ceil,
            _ => return None,
        })
    }
    /// The element that coordinate `x` names, as a whole number.
    fn of(self, x: f32, scale: f32) -> f32 {
        match self {
            Nearest::RoundPreferFloor => x.floor() + if x - x.floor() - 0.5 > TIE { 1.0 } else { 0.0 },
            Nearest::RoundPreferCeil => x.floor() + if x - x.floor() - 0.5 >= -TIE { 1.0 } else { 0.0 },
            Nearest::Ceil => x.ceil(),
            Nearest::Simple if scale < 1.0 => x.ceil(),
            Nearest::Floor | Nearest::Simple => x.floor(),
        }
    }
}

/// The weight at a distance.
fn weight(mode: Mode, d: f64) -> f64 {
    let d = d.abs();
    match mode {
        Mode::Nearest(_) => 1.0,
        Mode::Linear => (1.0 - d).max(0.0),
        Mode::Cubic { a, .. } => {
            let a = f64::from(a);
            match d {
                _ if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
                _ if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
                _ => 0.0,
            }
        }
    }
}

impl Resize {
    /// The elements of an axis of `n` elements, with their weights, that make an element of the result.
    fn taps(&self, a: &Resampled, n: usize, x: f32) -> Vec<(usize, f64)> {
        let last = n as i64 - 1;
        let clamped = |i: i64| i.clamp(0, last.max(0)) as usize;
        if let Mode::Nearest(nearest) = self.mode {
            return vec![(clamped(nearest.of(x, a.scale) as i64), 1.0)];
        }
        let squeeze = if self.antialias { a.scale.min(1.0) } else { 1.0 };
        let reach = if self.mode == Mode::Linear { 1.0 } else { 2.0 };
        let first = (-reach / squeeze).floor() as i64 + 1;
        let (floor, part) = (x.floor() as i64, f64::from(x - x.floor()));
        let exclude = matches!(self.mode, Mode::Cubic { exclude_outside: true, .. });
        let tap = |t: i64| {
            let at = floor.saturating_add(t);
            let outside = exclude && !(0..=last).contains(&at);
            let w = weight(self.mode, (t as f64 - part) * f64::from(squeeze));
            (clamped(at), if outside { 0.0 } else { w })
        };
        let mut taps: Vec<_> = (first..=1 - first).map(tap).collect();
        let sum: f64 = taps.iter().map(|t| t.1).sum();
        if (self.antialias || exclude) && sum != 0.0 {
            taps.iter_mut().for_each(|t| t.1 /= sum);
        }
        taps
    }
}

/// Resamples `x` along some axes.
///
/// # Errors
/// `Shape` when an axis without elements is to have some, `Unsupported` for interpolation of what are no numbers.
pub fn resize(x: &Tensor, axes: &[Resampled], how: &Resize) -> Result<Tensor> {
    if let Some(a) = axes.iter().find(|a| x.shape()[a.axis] == 0 && a.extent > 0) {
        let text = format!("Resize: axis {} has no elements to make {} of", a.axis, a.extent);
        return Err(Diagnostic::new(ErrorKind::Shape, text));
    }
    let mut shape = x.shape().to_vec();
    axes.iter().for_each(|a| shape[a.axis] = a.extent);
    let crop = how.transform == Transform::TfCropAndResize;
    // Along each axis, whether the element lies outside.
    let mut outside: Vec<Vec<bool>> = shape.iter().map(|&n| vec![false; n]).collect();
    let mut taps = Vec::new();
    for a in axes {
        let n = x.shape()[a.axis];
        let at: Vec<f32> = (0..a.extent).map(|i| how.transform.coordinate(a, n, i)).collect();
        outside[a.axis] = at.iter().map(|&c| crop && !(c >= 0.0 && c <= n as f32 - 1.0)).collect();
        taps.push(at.iter().map(|&c| how.taps(a, n, c)).collect::<Vec<_>>());
    }
    let is_outside = |c: &[usize]| c.iter().zip(&outside).any(|(&i, o)| o[i]);
    if let Mode::Nearest(_) = how.mode {
        let value = match x.dtype() {
            DType::String => Tensor::from_strings(&[1], vec![String::new()]),
            d => from_f64s(d, &[1], &[converted(how.extrapolation.into(), d)]),
        };
        let st = strides(x.shape());
        let mut from = Vec::with_capacity(count(&shape));
        each_coord(&shape, |c| {
            let mut at = c.to_vec();
            axes.iter().zip(&taps).for_each(|(a, t)| at[a.axis] = t[c[a.axis]][0].0);
            let p = at.iter().zip(&st).map(|(i, s)| i * s).sum();
            from.push(if is_outside(c) { (1, 0) } else { (0, p) });
        });
        return pick(x.dtype(), &shape, &[x, &value], from);
    }
    if x.dtype() == DType::String {
        return Err(Diagnostic::new(ErrorKind::Unsupported, "Resize: strings cannot be interpolated"));
    }
    if how.mode == Mode::Linear && !how.antialias && blends_in_f32(x.dtype()) {
        return Ok(whole(x, axes, &taps, &shape, |c| is_outside(c).then_some(how.extrapolation)));
    }
    let (mut v, mut now) = (f64s(x), x.shape().to_vec());
    for (a, taps) in axes.iter().zip(&taps).rev() {
        (v, now) = along(&v, &now, a.axis, taps);
    }
    let mut k = 0;
    each_coord(&shape, |c| {
        if is_outside(c) {
            v[k] = how.extrapolation.into();
        }
        v[k] = if how.antialias && x.dtype().is_int() { (v[k] + 0.5).floor() } else { v[k] };
        v[k] = converted(v[k], x.dtype());
        k += 1;
    });
    Ok(from_f64s(x.dtype(), &shape, &v))
}

/// Whether linear interpolation of elements of type `d` is in f32: truncation shows every rounding, and onnxruntime's are these. (It also takes
/// halves of the last element along an axis of an image that keeps its extent, which rounds otherwise now and then.)
pub fn blends_in_f32(d: DType) -> bool {
    matches!(d, DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32)
}

/// Linear interpolation in f32: each product of all weights times an element, the last axis fastest. Two weights of one element are halves.
fn whole(
    x: &Tensor,
    axes: &[Resampled],
    taps: &[Vec<Vec<(usize, f64)>>],
    shape: &[usize],
    outside: impl Fn(&[usize]) -> Option<f32>,
) -> Tensor {
    let (v, st) = (f64s(x), strides(x.shape()));
    let mut y = Vec::with_capacity(count(shape));
    each_coord(shape, |c| {
        let mut sum: Option<f32> = None;
        for corner in 0..1usize << axes.len() {
            let (mut at, mut weight) = (c.to_vec(), None);
            for (k, (a, t)) in axes.iter().zip(taps).rev().enumerate() {
                let pair = &t[c[a.axis]];
                let (i, w) = pair[corner >> k & 1];
                at[a.axis] = i;
                let w = if pair[0].0 == pair[1].0 { 0.5 } else { w as f32 };
                weight = Some(weight.map_or(w, |p: f32| p * w));
            }
            let e = v[at.iter().zip(&st).map(|(i, s)| i * s).sum::<usize>()] as f32;
            let e = weight.map_or(e, |w| w * e);
            sum = Some(sum.map_or(e, |s| s + e));
        }
        y.push(converted(outside(c).or(sum).unwrap_or(0.0).into(), x.dtype()));
    });
    from_f64s(x.dtype(), shape, &y)
}

/// What a conversion to `d` keeps of a number: integers truncate and saturate.
fn converted(v: f64, d: DType) -> f64 {
    match d {
        DType::Bool => f64::from(u8::from(v != 0.0)),
        d if d.is_int() => v.trunc(),
        _ => v,
    }
}

/// Weighted sums along one axis.
fn along(v: &[f64], shape: &[usize], axis: usize, taps: &[Vec<(usize, f64)>]) -> (Vec<f64>, Vec<usize>) {
    let (before, n, after) = (count(&shape[..axis]), shape[axis], count(&shape[axis + 1..]));
    let mut out = Vec::with_capacity(before * taps.len() * after);
    for b in 0..before {
        for t in taps {
            out.extend((0..after).map(|i| t.iter().map(|&(k, w)| w * v[(b * n + k) * after + i]).sum::<f64>()));
        }
    }
    let mut shape = shape.to_vec();
    shape[axis] = taps.len();
    (out, shape)
}
