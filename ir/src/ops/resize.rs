//! Rows of resizing along axes.

use super::resample::{Along, Scale, resample};
use super::row::ROW;
use super::sample::{MOST, require_exact};
use crate::attrs::{Attr, Attrs};
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::Nest;
use crate::op::{AttrDef, AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::resize::{self, Mode, Nearest, Resampled, Resize, Transform};
use tensor::{DType, DType::*, Diagnostic, DimId, ErrorKind, Result, Tensor};

/// Element types before bf16 was allowed.
const OLD: &[DType] = &[F32, F16, F64, I32, I64, I8, I16, U8, U16, U32, U64, Bool, String];
const ALL: &[DType] = &[F32, F16, BF16, F64, I32, I64, I8, I16, U8, U16, U32, U64, Bool, String];
const T1: (&str, &[DType]) = ("T1", ALL);
const T1_OLD: (&str, &[DType]) = ("T1", OLD);
const T2: (&str, &[DType]) = ("T2", &[F32, F16, F64]);
const S: (&str, &[DType]) = ("S", &[F32]);
const I: (&str, &[DType]) = ("I", &[I64]);

const MODE: AttrDef = attr("mode", AttrKind::Str("nearest"));
const TRANSFORM: AttrDef = attr("coordinate_transformation_mode", AttrKind::Str("half_pixel"));
const NEAREST: AttrDef = attr("nearest_mode", AttrKind::Str("round_prefer_floor"));
const CUBIC: AttrDef = attr("cubic_coeff_a", AttrKind::Float(-0.75));
const EXCLUDE: AttrDef = attr("exclude_outside", AttrKind::Int(0));
const EXTRAPOLATION: AttrDef = attr("extrapolation_value", AttrKind::Float(0.0));
/// What `nearest_mode` is called where there was none.
const SIMPLE: &str = "simple";
const AXES: usize = 7;
const POLICY: usize = 8;

/// Where scales are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// In attribute 1.
    Attribute,
    /// In operand 1.
    Operand,
    /// In operand 2, or sizes in operand 3; operand 1 says which part.
    Full,
    /// The same, and both may be given: extents are the sizes, coordinates follow from the scales.
    Both,
}

impl Form {
    fn scales(self) -> usize {
        if self.has_sizes() { 2 } else { 1 }
    }
    fn has_sizes(self) -> bool {
        matches!(self, Form::Full | Form::Both)
    }
}

const FULL: OpDef = OpDef {
    name: "Resize",
    inputs: &[req("X", "T1"), opt("roi", "T2"), opt("scales", "S"), opt("sizes", "I")],
    outputs: &[req("Y", "T1")],
    attrs: &[MODE, TRANSFORM, NEAREST, CUBIC, EXCLUDE, EXTRAPOLATION],
    dtypes: &[T1, T2, S, I],
    infer: |c| infer(c, Form::Full),
    reference: Some(|c| reference(c, Form::Full)),
    lower: &[Candidate::Expand(|x| expand(x, Form::Full))],
    tolerance: Tol::Rel(1e-5),
    cases: &[
        "[2,3,4];_;f32[3]{1,1.5,2}",
        "[1,3,4];_;f32[3]{1,2,3} nearest_mode=floor coordinate_transformation_mode=asymmetric",
        "[1,3,4];_;_;i64[3]{1,2,7} nearest_mode=ceil coordinate_transformation_mode=align_corners",
        "[1,3,4];_;_;i64[3]{1,5,1} nearest_mode=round_prefer_ceil coordinate_transformation_mode=pytorch_half_pixel",
        "[1,3,4];_;_;i64[3]{1,5,7} coordinate_transformation_mode=tf_half_pixel_for_nn",
        "[3,4];_;_;i64[2]{5,2} mode=linear",
        "[3,4];_;f32[2]{0.6,1.7} mode=linear coordinate_transformation_mode=align_corners",
        "[3,4];f32[4]{0.1,-0.2,0.9,0.8};_;i64[2]{5,3} mode=linear coordinate_transformation_mode=tf_crop_and_resize \
         extrapolation_value=7",
        "[4,3];f32[4]{0,0.5,0.9,1.5};f32[2]{1,2} coordinate_transformation_mode=tf_crop_and_resize \
         extrapolation_value=-3",
        "[2,4,5];_;_;i64[3]{2,7,3} mode=cubic cubic_coeff_a=-0.5",
        "[4,5];_;f32[2]{0.5,1.7} mode=cubic exclude_outside=1 coordinate_transformation_mode=asymmetric",
    ],
    ..ROW
};

const LATE: OpDef = OpDef {
    attrs: &[
        MODE,
        TRANSFORM,
        NEAREST,
        CUBIC,
        EXCLUDE,
        EXTRAPOLATION,
        attr("antialias", AttrKind::Int(0)),
        attr("axes", AttrKind::Ints),
        attr("keep_aspect_ratio_policy", AttrKind::Str("stretch")),
    ],
    cases: &[
        "[2,3,4];_;f32[2]{1.5,2} axes=[2,-2]",
        "[2,5,4];_;_;i64[2]{9,3} axes=[1,2] keep_aspect_ratio_policy=not_larger",
        "[2,5,4];_;_;i64[2]{7,3} axes=[1,2] keep_aspect_ratio_policy=not_smaller mode=linear",
        // In f32, 9·0.57142854 + 2·0.42857146 is below 6; by halves of each product it is 6.
        "[1,5,4]{9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,2,2,2,2};_;_;i64[2]{7,3} axes=[1,2] \
         keep_aspect_ratio_policy=not_smaller mode=linear",
        "[2,7,6];_;f32[2]{0.4,0.7} axes=[1,2] mode=linear antialias=1",
        "[2,7,6];_;_;i64[2]{3,8} axes=[1,2] mode=cubic antialias=1",
        "[7,6];_;_;i64[2]{3,4} mode=cubic antialias=1 exclude_outside=1",
        "[7,6];_;_;i64[2]{3,4} mode=linear antialias=1 keep_aspect_ratio_policy=not_larger",
        "[2,3,3,2];_;_;i64[4]{3,2,4,3} mode=cubic",
        "[4,6];_;f32[2]{1.7,0.7} mode=linear coordinate_transformation_mode=half_pixel_symmetric",
        "[4,2,3];f32[2]{0.2,1.1};_;i64[1]{4} axes=[2] mode=cubic coordinate_transformation_mode=tf_crop_and_resize",
    ],
    ..FULL
};

const OPERAND: OpDef = OpDef {
    inputs: &[req("X", "T1"), req("scales", "S")],
    attrs: &[MODE],
    dtypes: &[T1_OLD, S],
    infer: |c| infer(c, Form::Operand),
    reference: Some(|c| reference(c, Form::Operand)),
    lower: &[Candidate::Expand(|x| expand(x, Form::Operand))],
    cases: &["[1,3,4];f32[3]{1,2,1.5}", "[1,3,4];f32[3]{1,0.7,2} mode=linear", "[5,7];f32[2]{0.6,0.4}"],
    ..FULL
};

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "Upsample",
        since: 7,
        until: 8,
        inputs: &[req("X", "T1")],
        attrs: &[MODE, attr("scales", AttrKind::Floats)],
        dtypes: &[T1_OLD],
        infer: |c| infer(c, Form::Attribute),
        reference: Some(|c| reference(c, Form::Attribute)),
        lower: &[Candidate::Expand(|x| expand(x, Form::Attribute))],
        cases: &["[1,3,4] scales=[1,2,1.5]", "[1,3,4] scales=[1,2,2] mode=linear"],
        ..FULL
    },
    OpDef { name: "Upsample", since: 9, until: 9, ..OPERAND },
    OpDef { since: 10, until: 10, ..OPERAND },
    OpDef { since: 11, until: 12, dtypes: &[T1_OLD, T2, S, I], ..FULL },
    OpDef { since: 13, until: 17, ..FULL },
    OpDef { since: 18, ..LATE },
    OpDef {
        domain: HIP_DOMAIN,
        since: 1,
        infer: |c| infer(c, Form::Both),
        reference: Some(|c| reference(c, Form::Both)),
        lower: &[Candidate::Loops(|c| loops(c, Form::Both))],
        ..LATE
    },
];

/// How attributes say to resize.
fn how(attrs: &Attrs, form: Form) -> Result<Resize> {
    let unknown = |what: &str, slot: usize| {
        Diagnostic::new(ErrorKind::Unsupported, format!("{what} {:?} is not known", attrs.str(slot).unwrap_or("")))
    };
    let old = !form.has_sizes();
    let named = |slot: usize| attrs.str(slot).unwrap_or("");
    let mode = match named(0) {
        "nearest" if old => Mode::Nearest(Nearest::Simple),
        "nearest" if form == Form::Both && named(2) == SIMPLE => Mode::Nearest(Nearest::Simple),
        "nearest" => Mode::Nearest(Nearest::from_name(named(2)).ok_or_else(|| unknown("nearest_mode", 2))?),
        "linear" => Mode::Linear,
        "cubic" if !old => Mode::Cubic { a: attrs.float(3).unwrap_or(-0.75), exclude_outside: attrs.int(4) == Some(1) },
        _ => return Err(unknown("mode", 0)),
    };
    let transform = match old {
        true => Transform::Asymmetric,
        false => Transform::from_name(named(1)).ok_or_else(|| unknown("coordinate_transformation_mode", 1))?,
    };
    let antialias = !old && attrs.int(6) == Some(1);
    if antialias && matches!(mode, Mode::Nearest(_)) {
        return Err(Diagnostic::new(ErrorKind::Unsupported, "antialias is for modes linear and cubic"));
    }
    Ok(Resize { mode, transform, antialias, extrapolation: if old { 0.0 } else { attrs.float(5).unwrap_or(0.0) } })
}

/// Whether no extent is to be larger than its size (or none smaller), with the ratio of extents kept.
fn policy(attrs: &Attrs) -> Result<Option<bool>> {
    match attrs.str(POLICY) {
        None | Some("stretch") => Ok(None),
        Some("not_larger") => Ok(Some(true)),
        Some("not_smaller") => Ok(Some(false)),
        Some(name) => {
            let text = format!("keep_aspect_ratio_policy {name:?} is not known");
            Err(Diagnostic::new(ErrorKind::Unsupported, text))
        }
    }
}

/// The axes that scales, sizes and parts are of.
fn listed(attrs: &Attrs, form: Form, rank: usize) -> Option<Vec<usize>> {
    let all = || Some((0..rank).collect());
    let Some(axes) = attrs.ints(AXES).filter(|_| form.has_sizes()) else { return all() };
    let r = i64::try_from(rank).ok()?;
    let mut found = Vec::new();
    for &a in axes {
        let a = usize::try_from(if a < 0 { a + r } else { a }).ok().filter(|&a| a < rank && !found.contains(&a))?;
        found.push(a);
    }
    Some(found)
}

/// Whether operand `i` is there: exporters give a list of nothing for what is absent.
fn is_given(c: &InferCtx, i: usize) -> bool {
    c.has(i) && !c.shape(i).is_some_and(|s| s.len() == 1 && c.dims.as_const(s[0]) == Some(0))
}

fn infer(c: &mut InferCtx, form: Form) -> Result<()> {
    let (dtype, name) = (c.dtype(0)?, c.def.name);
    let explain = |c: &InferCtx, e: &Diagnostic| c.error(e.kind(), format!("{name}: {}", e.message()));
    let resize = how(c.attrs, form).map_err(|e| explain(c, &e))?;
    let keep = policy(c.attrs).map_err(|e| explain(c, &e))?;
    let crop = resize.transform == Transform::TfCropAndResize;
    if dtype == String && (crop || !matches!(resize.mode, Mode::Nearest(_))) {
        return Err(c.error(ErrorKind::Unsupported, format!("{name}: there is nothing between strings")));
    }
    let Some(x) = c.shape(0) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let axes = listed(c.attrs, form, x.len());
    let axes = axes.ok_or_else(|| c.error(ErrorKind::Shape, format!("{name}: axes are out of range, or repeated")))?;
    check_len(c, form, 1, if form.has_sizes() { 2 * axes.len() } else { axes.len() })?;
    if crop && !is_given(c, 1) {
        return Err(c.error(ErrorKind::Malformed, format!("{name}: tf_crop_and_resize needs the operand roi")));
    }
    let by_scale = form == Form::Attribute || is_given(c, form.scales());
    let by_size = form.has_sizes() && is_given(c, 3);
    if by_scale == by_size && form != Form::Both {
        let text = format!("{name}: either scales or sizes must be given");
        return Err(c.error(ErrorKind::Malformed, text));
    }
    let scales = match form {
        Form::Attribute => c.attrs.floats(1),
        _ if by_scale => c.const_tensor(form.scales()).map(|t| floats(&t)),
        _ => None,
    };
    if let Some(scales) = &scales
        && (scales.len() != axes.len() || !scales.iter().all(|&s| s.is_finite() && s > 0.0))
    {
        let text = format!("{name}: scales {scales:?} must be {} positive numbers", axes.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    let mut out = x.clone();
    if by_size {
        check_len(c, form, 3, axes.len())?;
        match c.need_values(3) {
            Some(sizes) if sizes.len() == axes.len() => {
                for (i, &a) in axes.iter().enumerate() {
                    let size = match keep {
                        Some(larger) if !by_scale => kept(c, &x, &axes, &sizes, a, larger),
                        _ => sizes[i],
                    };
                    out[a] = c.extent(size)?;
                }
            }
            _ => axes.iter().zip(c.unknown_extents(axes.len())).for_each(|(&a, d)| out[a] = d),
        }
    } else if let Some(scales) = scales {
        // The extents of what `roi` names do not count, whatever the text says of them: shape inference of ONNX and onnxruntime agree.
        for (&a, &s) in axes.iter().zip(&scales) {
            out[a] = match c.dims.as_const(x[a]) {
                None if !is_quotient(s) && form != Form::Both => c.unknown_extents(1)[0],
                _ => scaled(c, x[a], s),
            };
        }
    } else {
        // What scales give that are computed, or no quotients, becomes known as sizes when the node is expanded.
        check_len(c, form, form.scales(), axes.len())?;
        axes.iter().zip(c.unknown_extents(axes.len())).for_each(|(&a, d)| out[a] = d);
    }
    for &a in axes.iter().filter(|&&a| out[a] != x[a]) {
        check_extents(c, a, x[a], out[a]);
    }
    c.set(0, dtype, out);
    Ok(())
}

/// States that what is made of nothing is nothing, and that coordinates are exact.
fn check_extents(c: &mut InferCtx, a: usize, n: DimId, out: DimId) {
    let (one, name) = (c.dims.constant(1), c.def.name);
    let some = c.dims.min(out, one);
    c.require_le(some, n, &format!("{name}: axis {a} has no elements to make others of"));
    require_exact(c, n);
    require_exact(c, out);
}

fn check_len(c: &mut InferCtx, form: Form, i: usize, n: usize) -> Result<()> {
    let absent = form == Form::Attribute || !is_given(c, i);
    let (false, Some(s)) = (absent, c.shape(i)) else { return Ok(()) };
    let (name, what) = (c.def.name, c.def.inputs.get(i).map_or("", |p| p.name));
    let [len] = s.as_slice() else {
        return Err(c.error(ErrorKind::Shape, format!("{name}: {what} must be a list")));
    };
    let n = c.dims.constant(i64::try_from(n).unwrap_or(i64::MAX));
    c.require_eq(*len, n, &format!("{what} are one per axis"))
}

/// An extent with the ratio kept: sizes over extents, the least ratio or the greatest, times the extent, rounded half up. As the quotient
/// grows with the ratio, it is the least or greatest of the quotients.
fn kept(c: &mut InferCtx, x: &Shape, axes: &[usize], sizes: &Shape, a: usize, larger: bool) -> DimId {
    let (two, one) = (c.dims.constant(2), c.dims.constant(1));
    let mut best = None;
    for (&j, &size) in axes.iter().zip(sizes) {
        c.require_le(one, x[j], &format!("{}: an extent of 0 has no ratio", c.def.name));
        let q = if j == a {
            size
        } else {
            let n = c.dims.max(x[j], one);
            let (twice, double) = (c.dims.mul(size, two), c.dims.mul(n, two));
            let twice = c.dims.mul(twice, x[a]);
            let twice = c.dims.add(twice, n);
            c.dims.floordiv(twice, double)
        };
        best = Some(match best {
            None => q,
            Some(b) if larger => c.dims.min(b, q),
            Some(b) => c.dims.max(b, q),
        });
    }
    best.unwrap_or(x[a])
}

/// `floor(n · s)` as f32 computes it.
fn floor_f32(n: i64, s: f32) -> i64 {
    (n as f32 * s).floor() as i64
}

/// The extent `n` scaled: the product is rounded to f32 before it is rounded down, as everybody does it. For an extent that only a
/// run knows this is a quotient of whole numbers up to some extent, which a guard holds.
fn scaled(c: &mut InferCtx, n: DimId, s: f32) -> DimId {
    if let Some(k) = c.dims.as_const(n) {
        return c.dims.constant(floor_f32(k, s));
    }
    let (p, q, most) = ratio(s);
    let most = c.dims.constant(most);
    c.require_le(n, most, &format!("{}: the scale {s} of greater extents is not exact", c.def.name));
    let (p, q) = (c.dims.constant(p), c.dims.constant(q));
    let product = c.dims.mul(n, p);
    c.dims.floordiv(product, q)
}

/// Extents to which a scale must be a quotient.
const FAR: i64 = 1 << 16;

/// Whether extents that only a run knows are scaled by a quotient.
fn is_quotient(s: f32) -> bool {
    s == 1.0 || ratio(s).2 >= FAR - 1
}

/// `p`, `q` and `most` with `floor_f32(n, s) = floor(n · p / q)` for `n` up to `most`: of the number's own quotient by a power of 2, and
/// of the simplest quotient that rounds to it, the one that holds longer.
fn ratio(s: f32) -> (i64, i64, i64) {
    let (mut p, mut shift) = (f64::from(s), 0);
    while p.fract() != 0.0 && shift < 40 {
        (p, shift) = (p * 2.0, shift + 1);
    }
    let far = |p: i64, q: i64| (1..FAR).take_while(|&n| floor_f32(n, s) == (n * p).div_euclid(q)).last().unwrap_or(0);
    let mut best = (1, 1, 0);
    if p.fract() == 0.0 && p < MOST as f64 {
        let p = p as i64;
        // As long as the product is exact.
        let most = if MOST / p >= FAR { MOST / p } else { far(p, 1 << shift) };
        best = (p, 1 << shift, most);
    }
    if best.2 < FAR - 1
        && let Some(q) = (1i64..1000).find(|&q| (f64::from(s) * q as f64).round() as f32 / q as f32 == s)
    {
        let p = (f64::from(s) * q as f64).round() as i64;
        let most = far(p, q);
        if most > best.2 {
            best = (p, q, most);
        }
    }
    best
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.to_f64_vec().into_iter().map(|v| v as f32).collect()
}

/// Whether an axis stays as it is. One that keeps its extent though it is scaled does not, by the text; onnxruntime copies an image all of whose
/// extents stay. A scale of 1 leaves it so in every mode (as in onnxruntime, also where `tf_half_pixel_for_nn` would name
/// the element after); `roi` may name another part of it: by the text `start_x` and `end_x` count whatever the scale is.
fn stays(scale: f32, roi: Option<[f32; 2]>) -> bool {
    scale == 1.0 && roi.is_none_or(|r| r == [0.0, 1.0])
}

fn reference(c: &RefCtx, form: Form) -> Result<Vec<Tensor>> {
    let x = c.input(0)?;
    let (resize, shape) = (how(c.attrs, form)?, x.shape());
    let wrong = || Diagnostic::new(ErrorKind::Shape, format!("{}: operands do not fit {shape:?}", c.def.name));
    let axes = listed(c.attrs, form, shape.len()).ok_or_else(wrong)?;
    let list = |i: usize| c.opt(i).filter(|t| t.n_elems() > 0);
    let crop = resize.transform == Transform::TfCropAndResize;
    let roi = list(1).filter(|_| crop).map(floats);
    let scales = match form {
        Form::Attribute => c.attrs.floats(1),
        _ => list(form.scales()).map(floats),
    };
    let sizes = list(3).map(|t| t.to_i64_vec());
    let len = scales.as_ref().map(Vec::len).or(sizes.as_ref().map(Vec::len));
    if len != Some(axes.len()) || roi.as_ref().is_some_and(|r| r.len() != 2 * axes.len()) || (crop && roi.is_none()) {
        return Err(wrong());
    }
    let ratios = |i: usize| sizes.as_ref().map_or(1.0, |s| s[i] as f32 / shape[axes[i]] as f32);
    let keep = if form.has_sizes() { policy(c.attrs)? } else { None };
    if keep.is_some() && axes.iter().any(|&a| shape[a] == 0) {
        return Err(wrong());
    }
    let all = (0..axes.len()).map(ratios);
    let shared = keep.and_then(|larger| all.reduce(if larger { f32::min } else { f32::max }));
    // See `kept`.
    let quotient = |size: i64, j: usize, n: usize| {
        let (n, of) = (n as i64, (shape[axes[j]] as i64).max(1));
        if shape[axes[j]] as i64 == n { size } else { (2 * size * n + of).div_euclid(2 * of) }
    };
    let mut resampled = Vec::new();
    for (i, &axis) in axes.iter().enumerate() {
        let n = shape[axis];
        let part = roi.as_ref().map(|r| [r[i], r[axes.len() + i]]);
        let (scale, width, extent) = match (&scales, &sizes, shared) {
            (Some(s), Some(sizes), _) => (s[i], n as f32 * s[i], sizes[i]),
            (Some(s), None, _) => (s[i], n as f32 * s[i], floor_f32(n as i64, s[i])),
            (_, Some(sizes), Some(s)) => {
                let all = sizes.iter().enumerate().map(|(j, &size)| quotient(size, j, n));
                let extent = if keep == Some(true) { all.min() } else { all.max() };
                (s, n as f32 * s, extent.unwrap_or(0))
            }
            (_, Some(s), _) => (ratios(i), s[i] as f32, s[i]),
            _ => return Err(wrong()),
        };
        let extent = usize::try_from(extent).map_err(|_| wrong())?;
        if !(stays(scale, part) || n == 0 && extent == 0) {
            resampled.push(Resampled { axis, extent, scale, width, roi: part.unwrap_or([0.0, 1.0]) });
        }
    }
    resampled.sort_by_key(|a| a.axis);
    Ok(vec![resize::resize(x, &resampled, &resize)?])
}

/// The row of ours, to which the rules of all versions are attributes. Scales that are computed, or not quotients to extents that only a run
/// knows, give the sizes beside it.
fn expand(x: &mut Expansion, form: Form) -> Result<Vec<Value>> {
    let image = x.need(0)?;
    let (_, shape) = x.tensor(image)?;
    let mut attrs: Vec<(&str, Attr)> = vec![("mode", x.attrs().get(0).clone())];
    let (roi, mut scales, mut sizes) = match form {
        Form::Full | Form::Both => (x.input(1), x.input(2), x.input(3)),
        Form::Operand => (None, x.input(1), None),
        Form::Attribute => {
            let scales: Vec<f64> = x.attrs().floats(1).unwrap_or_default().into_iter().map(f64::from).collect();
            (None, Some(x.constant(&reference::data::from_f64s(F32, &[scales.len()], &scales))), None)
        }
    };
    if form.has_sizes() {
        let names = x.def().attrs.iter().map(|a| a.name).collect::<Vec<_>>();
        attrs = names.into_iter().zip(x.attrs().slots().to_vec()).collect();
    } else {
        attrs.push((TRANSFORM.name, Attr::Str("asymmetric".into())));
        attrs.push((NEAREST.name, Attr::Str(SIMPLE.into())));
    }
    let is_empty =
        |x: &Expansion, v: Value| x.tensor(v).is_ok_and(|(_, s)| s.len() == 1 && x.as_const(s[0]) == Some(0));
    scales = scales.filter(|&v| !is_empty(x, v));
    sizes = sizes.filter(|&v| !is_empty(x, v));
    let by_quotients = |x: &Expansion, v: Value| {
        let constant = shape.iter().all(|&d| x.as_const(d).is_some());
        x.const_tensor(v).is_some_and(|t| constant || floats(&t).into_iter().all(is_quotient))
    };
    if let Some(scales) = scales.filter(|&v| sizes.is_none() && !by_quotients(x, v)) {
        let mut extents = x.op("Shape", &[image], &[]);
        if let Some(axes) = listed(x.attrs(), form, shape.len()).filter(|_| form.has_sizes()) {
            let axes: Vec<i64> = axes.into_iter().map(|a| a as i64).collect();
            let axes = x.ints(&axes);
            extents = x.op("Gather", &[extents, axes], &[]);
        }
        let extents = x.cast(extents, F32);
        let extents = x.op("Mul", &[extents, scales], &[]);
        let extents = x.op("Floor", &[extents], &[]);
        sizes = Some(x.cast(extents, I64));
    }
    Ok(vec![x.own("Resize", &[Some(image), roi, scales, sizes], &attrs)])
}

fn loops(c: &mut NodeCtx, form: Form) -> Plan<Nest> {
    let (resize, x) = (how(c.attrs, form).map_err(|e| e.message().to_owned())?, c.need(0)?);
    let out = c.outs[0].shape.clone();
    let axes = listed(c.attrs, form, x.shape.len()).ok_or("axes are out of range")?;
    let is_given = |c: &NodeCtx, i: usize| {
        c.ins.get(i).cloned().flatten().filter(|o| o.shape.first().is_none_or(|&n| c.dims.as_const(n) != Some(0)))
    };
    let known = |c: &NodeCtx, i: usize| {
        let konst = is_given(c, i)?.konst?;
        c.consts[konst].read().ok().map(|t| floats(&t))
    };
    let scales = match form {
        Form::Attribute => c.attrs.floats(1),
        _ => known(c, form.scales()),
    };
    let crop = resize.transform == Transform::TfCropAndResize;
    let roi = if crop { known(c, 1) } else { None };
    let keep = if form.has_sizes() { policy(c.attrs).map_err(|e| e.message().to_owned())? } else { None };
    let sizes = if form.has_sizes() { is_given(c, 3).and_then(|o| o.values) } else { None };
    let mut along = Vec::new();
    for (i, &axis) in axes.iter().enumerate() {
        let (n, extent) = (x.shape[axis], out[axis]);
        let scale = match (&scales, &sizes, keep) {
            (Some(s), ..) => Scale::Known(*s.get(i).ok_or("too few scales")?),
            _ if is_given(c, form.scales()).is_some() => Scale::Loaded(i),
            (_, Some(sizes), Some(larger)) => {
                let of = sizes.iter().zip(&axes).map(|(&s, &a)| (s, x.shape[a])).collect();
                Scale::Shared { of, larger }
            }
            (_, None, Some(_)) => return Err("sizes are not known as extents".into()),
            _ => Scale::Extents,
        };
        let part = roi.as_ref().and_then(|r| Some([*r.get(i)?, *r.get(axes.len() + i)?]));
        let same = scale == Scale::Known(1.0) || (scale == Scale::Extents && n == extent);
        if !(same && (!crop || part.is_some_and(|p| stays(1.0, Some(p))))) {
            along.push(Along { axis, n, extent, scale, roi: [i, axes.len() + i] });
        }
    }
    along.sort_by_key(|a| a.axis);
    resample(c, &resize, &along)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_hold_as_far_as_they_say() {
        for s in [2.0, 0.5, 1.5, 0.6, 0.7, 1.0 / 3.0, 2.0 / 7.0, 0.1, 3.7, 1e-3, 100.0, 0.123_456_7] {
            let (p, q, most) = ratio(s);
            assert!(is_quotient(s), "{s}: {p} / {q} up to {most}");
            for n in (0..most.min(100_000)).chain([most]) {
                assert_eq!(floor_f32(n, s), (n * p).div_euclid(q), "{n} times {s}, which is {p} / {q}");
            }
        }
        // 90 times this is 117 but for its rounding.
        assert!(!is_quotient(1.3) && is_quotient(1.0));
        assert_eq!(ratio(0.5), (1, 2, 1 << 24));
        assert_eq!((ratio(0.7).0, ratio(0.7).1), (7, 10));
    }
}
