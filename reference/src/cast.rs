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

/// `x` in another element type.
///
/// Float to integer as [`float_to_int`]; integer to integer keeps the low bits; to bool is `≠ 0`; to a narrower float rounds to
/// nearest even. For 8-bit floats `saturate` says whether values beyond the greatest become it, or infinity (NaN where the
/// format has none). From strings: a decimal number, `NaN`, `INF`, `-INF`; to strings: the shortest that reads back.
///
/// # Errors
/// `Argument` when a string is not a number.
pub fn cast(x: &Tensor, to: DType, saturate: bool) -> Result<Tensor> {
    let from = x.dtype();
    let shape = x.shape();
    if from == to {
        return Ok(x.clone());
    }
    if from == DType::String {
        return from_string(x, to, saturate);
    }
    if to == DType::String {
        return Ok(Tensor::from_strings(shape, to_strings(x)));
    }
    if from.is_float() && to == DType::F8E5M2 && !saturate {
        // The one 8-bit format with infinities; the codec saturates.
        let v = f64s(x);
        let mut bytes = from_f64s(to, shape, &v).bytes().to_vec();
        for (b, v) in bytes.iter_mut().zip(&v).filter(|(_, v)| v.abs() >= 61440.0) {
            *b = 0x7c | (u8::from(v.is_sign_negative()) << 7);
        }
        return Tensor::new(to, shape, bytes.into());
    }
    if from.is_float() && to.is_float() {
        let v: Vec<f64> = f64s(x).into_iter().map(|v| overflow(v, to, saturate)).collect();
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
        return Ok(from_f64s(to, shape, &v.map(|v| overflow(v, to, saturate)).collect::<Vec<_>>()));
    }
    Ok(from_ints(to, shape, &v))
}

/// Values that round beyond the range of an 8-bit float, when they do not saturate.
fn overflow(v: f64, to: DType, saturate: bool) -> f64 {
    // Greatest value, and the distance between neighbours there.
    let (max, step) = match to {
        DType::F8E4M3FN => (448.0, 32.0),
        DType::F8E4M3FNUZ => (240.0, 16.0),
        DType::F8E5M2FNUZ => (57344.0, 8192.0),
        // Without a code for NaN, negative zero stands for it.
        DType::F4E2M1 if v.is_nan() => return -0.0,
        _ => return v,
    };
    // Ties go to even, and the greatest code of the formats without infinity is even where the next would be NaN.
    let beyond = if to == DType::F8E4M3FN { v.abs() > max + step / 2.0 } else { v.abs() >= max + step / 2.0 };
    match (saturate, beyond) {
        (false, true) => f64::NAN,
        _ => v,
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

fn from_string(x: &Tensor, to: DType, saturate: bool) -> Result<Tensor> {
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
    Ok(from_f64s(to, x.shape(), &v.into_iter().map(|v| overflow(v, to, saturate)).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(x: Tensor, to: DType, expected: &[f64]) {
        let y = cast(&x, to, true).unwrap();
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
        assert!(cast(&Tensor::from_strings(&[1], vec!["x".into()]), DType::F32, true).is_err());
    }

    #[test]
    fn eight_bit_floats_saturate_unless_told_not_to() {
        let x = Tensor::from_f32(&[2], &[1000.0, 464.0]);
        check(x.clone(), DType::F8E4M3FN, &[448.0, 448.0]);
        let y = cast(&x, DType::F8E4M3FN, false).unwrap().to_f64_vec();
        assert!(y[0].is_nan() && y[1] == 448.0);
        let y = cast(&Tensor::from_f32(&[2], &[-1e9, 60000.0]), DType::F8E5M2, false).unwrap().to_f64_vec();
        assert_eq!(y, [f64::NEG_INFINITY, 57344.0]);
    }
}
