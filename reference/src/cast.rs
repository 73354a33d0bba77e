//! Conversion between element types.

use crate::data::{f64s, from_f64s, from_ints, ints};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// `x` truncated toward zero for an integer type. Values outside of i32 (for types below 32 bits), i64 (u32) or the type itself
/// saturate there first; what then does not fit wraps. NaN gives 0.
pub fn float_to_int(x: f64, to: DType) -> i128 {
    match to {
        DType::U64 => (x as u64).into(),
        DType::I64 | DType::U32 => (x as i64).into(),
        _ => (x as i32).into(),
    }
}

/// How values that an 8-bit float does not have become values that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// Whether those out of its range become its greatest (f8e8m0: or least), or infinity or NaN.
    pub saturate: bool,
    /// Where those between two powers of two go in f8e8m0.
    pub scale: ScaleRounding,
}

/// Rounding to a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleRounding {
    /// To the greater.
    Up,
    /// To the less.
    Down,
    /// To the nearer, from the middle to the greater.
    Nearest,
}

impl Default for Rounding {
    fn default() -> Rounding {
        Rounding { saturate: true, scale: ScaleRounding::Up }
    }
}

impl ScaleRounding {
    /// By the name that the attribute `round_mode` has for it.
    pub fn from_name(name: &str) -> Option<ScaleRounding> {
        match name {
            "up" => Some(ScaleRounding::Up),
            "down" => Some(ScaleRounding::Down),
            "nearest" => Some(ScaleRounding::Nearest),
            _ => None,
        }
    }
    /// What is added to the bits of an f32 before those of its fraction are dropped.
    pub fn carry(self) -> u32 {
        match self {
            ScaleRounding::Up => 0x7f_ffff,
            ScaleRounding::Down => 0,
            ScaleRounding::Nearest => 0x40_0000,
        }
    }
}

/// `x` in another element type.
///
/// Float to integer as [`float_to_int`]; integer to integer keeps the low bits; to bool is `≠ 0`; to a narrower float rounds to
/// nearest even, to an 8-bit one as [`Rounding`] says. From strings: a decimal number, `NaN`, `INF`, `-INF`; to strings: the
/// shortest that reads back.
///
/// # Errors
/// `Argument` when a string is not a number.
pub fn cast(x: &Tensor, to: DType, how: Rounding) -> Result<Tensor> {
    let from = x.dtype();
    let shape = x.shape();
    if from == to {
        return Ok(x.clone());
    }
    if from == DType::String {
        return from_string(x, to, how);
    }
    if to == DType::String {
        return Ok(Tensor::from_strings(shape, to_strings(x)));
    }
    if from.is_float() && to.is_float() {
        let v: Vec<f64> = f64s(x).into_iter().map(|v| fit(v, to, how)).collect();
        return Ok(from_f64s(to, shape, &v));
    }
    if to == DType::Bool {
        let bits: Vec<bool> = match from.is_float() {
            true => f64s(x).into_iter().map(|v| v != 0.0).collect(),
            false => ints(x).into_iter().map(|v| v != 0).collect(),
        };
        return Ok(Tensor::from_bool(shape, &bits));
    }
    if from.is_float() {
        return Ok(from_ints(to, shape, &f64s(x).into_iter().map(|v| float_to_int(v, to)).collect::<Vec<_>>()));
    }
    let v = ints(x);
    if to.is_float() {
        // One rounding from the integer itself, not two by way of f64.
        let v = v.into_iter().map(|v| if to == DType::F32 { f64::from(v as f32) } else { v as f64 });
        return Ok(from_f64s(to, shape, &v.map(|v| fit(v, to, how)).collect::<Vec<_>>()));
    }
    Ok(from_ints(to, shape, &v))
}

/// Where an 8-bit float with a sign ends.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The greatest value.
    pub max: f64,
    /// The middle between it and what would be the next value.
    pub tie: f64,
    /// Whether the middle rounds to the greatest value: its code is even, and ties go to even.
    pub tie_stays: bool,
    /// What stands for values beyond, if they do not saturate.
    pub beyond: f64,
}

impl Ends {
    /// Of an element type; `None` for all others.
    pub fn of(d: DType) -> Option<Ends> {
        let (max, tie, beyond) = match d {
            DType::F8E4M3FN => (448.0, 464.0, f64::NAN),
            DType::F8E4M3FNUZ => (240.0, 248.0, f64::NAN),
            DType::F8E5M2 => (57344.0, 61440.0, f64::INFINITY),
            DType::F8E5M2FNUZ => (57344.0, 61440.0, f64::NAN),
            _ => return None,
        };
        Some(Ends { max, tie, tie_stays: d == DType::F8E4M3FN, beyond })
    }
}

/// A value that the codec of `to` rounds to what `how` asks for.
fn fit(v: f64, to: DType, how: Rounding) -> f64 {
    match (to, Ends::of(to)) {
        (_, Some(e)) if how.saturate => v.clamp(-e.max, e.max),
        (_, Some(e)) if v.abs() > e.tie || (v.abs() == e.tie && !e.tie_stays) => e.beyond.copysign(v),
        // Without a code for NaN, negative zero stands for it.
        (DType::F4E2M1, _) if v.is_nan() => -0.0,
        (DType::F8E8M0, _) => power_of_two(v, how),
        _ => v,
    }
}

/// Bits of the least f8e8m0, 2⁻¹²⁷, and of the greatest, as f32.
pub const SCALE_ENDS: (u32, u32) = (0x0040_0000, 0x7f00_0000);

/// The power of two that an f8e8m0 holds for a magnitude.
fn power_of_two(v: f64, how: Rounding) -> f64 {
    let (x, (least, greatest)) = ((v as f32).abs(), SCALE_ENDS);
    let bits = x.to_bits();
    if x.is_nan() || (!how.saturate && bits < least) {
        return f64::NAN;
    }
    if bits <= least {
        return f64::from(f32::from_bits(least));
    }
    match (bits + how.scale.carry()) & 0xff80_0000 {
        r if r <= greatest => f64::from(f32::from_bits(r)),
        _ if how.saturate => f64::from(f32::from_bits(greatest)),
        _ => f64::NAN,
    }
}

fn to_strings(x: &Tensor) -> Vec<String> {
    let float = |v: f64, text: String| match v {
        _ if v.is_nan() => "NaN".into(),
        _ if v.is_infinite() => if v > 0.0 { "INF" } else { "-INF" }.into(),
        _ => text,
    };
    match x.dtype() {
        DType::F64 => f64s(x).into_iter().map(|v| float(v, format!("{v}"))).collect(),
        d if d.is_float() => f64s(x).into_iter().map(|v| float(v, format!("{}", v as f32))).collect(),
        DType::Bool => ints(x).into_iter().map(|v| if v != 0 { "True" } else { "False" }.into()).collect(),
        _ => ints(x).into_iter().map(|v| v.to_string()).collect(),
    }
}

fn from_string(x: &Tensor, to: DType, how: Rounding) -> Result<Tensor> {
    let bad = |s: &str| Diagnostic::new(ErrorKind::Argument, format!("the string {s:?} is not a number of type {to}"));
    if to.is_int() {
        let parse = |s: &String| {
            let t = s.trim();
            let by_float = || t.parse::<f64>().ok().filter(|v| v.is_finite()).map(|v| float_to_int(v, to));
            t.parse::<i128>().ok().or_else(by_float).ok_or_else(|| bad(s))
        };
        return Ok(from_ints(to, x.shape(), &x.strings().iter().map(parse).collect::<Result<Vec<_>>>()?));
    }
    let parse = |s: &String| s.trim().parse::<f64>().map_err(|_| bad(s));
    let v = x.strings().iter().map(parse).collect::<Result<Vec<_>>>()?;
    if to == DType::Bool {
        return Ok(Tensor::from_bool(x.shape(), &v.iter().map(|&v| v != 0.0).collect::<Vec<_>>()));
    }
    Ok(from_f64s(to, x.shape(), &v.into_iter().map(|v| fit(v, to, how)).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(x: Tensor, to: DType, expected: &[f64]) {
        let y = cast(&x, to, Rounding::default()).unwrap();
        assert_eq!((y.dtype(), y.to_f64_vec()), (to, expected.to_vec()));
    }

    #[test]
    fn casts_follow_the_table() {
        let x = Tensor::from_f32(&[5], &[-1.5, 300.0, f32::NAN, f32::INFINITY, 0.5]);
        check(x.clone(), DType::I32, &[-1.0, 300.0, 0.0, 2147483647.0, 0.0]);
        check(x.clone(), DType::U8, &[255.0, 44.0, 0.0, 255.0, 0.0]);
        check(x, DType::Bool, &[1.0; 5]);
        check(Tensor::from_i64(&[2], &[16_777_217, -1]), DType::F32, &[16_777_216.0, -1.0]);
        check(Tensor::from_i64(&[2], &[-1, 257]), DType::U8, &[255.0, 1.0]);
        check(
            Tensor::from_strings(&[3], vec!["1e3".into(), "-INF".into(), " 7".into()]),
            DType::F64,
            &[1000.0, f64::NEG_INFINITY, 7.0],
        );
        assert!(cast(&Tensor::from_strings(&[1], vec!["x".into()]), DType::F32, Rounding::default()).is_err());
    }

    #[test]
    fn eight_bit_floats_saturate_unless_told_not_to() {
        let x = Tensor::from_f32(&[2], &[1000.0, 464.0]);
        check(x.clone(), DType::F8E4M3FN, &[448.0, 448.0]);
        let exact = Rounding { saturate: false, ..Rounding::default() };
        let y = cast(&x, DType::F8E4M3FN, exact).unwrap().to_f64_vec();
        assert!(y[0].is_nan() && y[1] == 448.0);
        let y = cast(&Tensor::from_f32(&[2], &[-1e9, 60000.0]), DType::F8E5M2, exact).unwrap().to_f64_vec();
        assert_eq!(y, [f64::NEG_INFINITY, 57344.0]);
    }
    #[test]
    fn scales_round_to_powers_of_two() {
        let x = Tensor::from_f32(&[6], &[0.0, 1.0, 1.1, 1.5, 3e38, f32::INFINITY]);
        let (tiny, great) = (2f64.powi(-127), 2f64.powi(127));
        for (scale, expected) in [
            (ScaleRounding::Up, [tiny, 1.0, 2.0, 2.0, great, great]),
            (ScaleRounding::Down, [tiny, 1.0, 1.0, 1.0, great, great]),
            (ScaleRounding::Nearest, [tiny, 1.0, 1.0, 2.0, great, great]),
        ] {
            let how = Rounding { saturate: true, scale };
            assert_eq!(cast(&x, DType::F8E8M0, how).unwrap().to_f64_vec(), expected);
        }
        let how = Rounding { saturate: false, scale: ScaleRounding::Nearest };
        let y = cast(&x, DType::F8E8M0, how).unwrap().to_f64_vec();
        assert!(y[0].is_nan() && y[4].is_nan() && y[5].is_nan() && y[3] == 2.0);
    }
}
