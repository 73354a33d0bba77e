//! Codecs of the 8- and 4-bit floats, by table of their parameters.

use crate::DType;

/// Exponent bits, mantissa bits, bias, and how the top codes are used.
struct Format {
    exp: u32,
    man: u32,
    bias: i32,
    specials: Specials,
}

#[derive(PartialEq)]
enum Specials {
    /// IEEE: all-ones exponent is infinity and NaN.
    Ieee,
    /// No infinity, NaN is all ones.
    Fn,
    /// No infinity, no negative zero; NaN is 0x80.
    Fnuz,
    /// Every code is a number.
    None,
}

fn format(d: DType) -> Format {
    match d {
        DType::F8E4M3FN => Format { exp: 4, man: 3, bias: 7, specials: Specials::Fn },
        DType::F8E4M3FNUZ => Format { exp: 4, man: 3, bias: 8, specials: Specials::Fnuz },
        DType::F8E5M2 => Format { exp: 5, man: 2, bias: 15, specials: Specials::Ieee },
        DType::F8E5M2FNUZ => Format { exp: 5, man: 2, bias: 16, specials: Specials::Fnuz },
        _ => Format { exp: 2, man: 1, bias: 1, specials: Specials::None },
    }
}

/// The value of `code`.
pub(crate) fn decode(d: DType, code: u8) -> f64 {
    if d == DType::F8E8M0 {
        return if code == 255 { f64::NAN } else { 2f64.powi(i32::from(code) - 127) };
    }
    let f = format(d);
    let sign = if code >> (f.exp + f.man) & 1 == 1 { -1.0 } else { 1.0 };
    let e = i32::from(code >> f.man & ((1 << f.exp) - 1));
    let m = f64::from(code & ((1 << f.man) - 1));
    let top = e == (1 << f.exp) - 1;
    match f.specials {
        Specials::Fnuz if code == 0x80 => return f64::NAN,
        Specials::Fn if top && m == f64::from((1 << f.man) - 1) => return f64::NAN,
        Specials::Ieee if top => return if m == 0.0 { sign * f64::INFINITY } else { f64::NAN },
        _ => {}
    }
    let scale = 2f64.powi(-(f.man as i32));
    sign * if e == 0 { m * scale * 2f64.powi(1 - f.bias) } else { (1.0 + m * scale) * 2f64.powi(e - f.bias) }
}

/// The code nearest to `x`, ties to even, out-of-range values saturated; NaN and infinities kept where the format has them.
pub(crate) fn encode(d: DType, x: f64) -> u8 {
    if d == DType::F8E8M0 {
        // The exponent of the nearest f32 that is a power of two, from the middle up; 2⁻¹²⁷ is below the normal ones.
        let bits = (x as f32).abs().to_bits();
        let exponent = if bits <= 0x40_0000 { 0 } else { (bits + 0x40_0000) >> 23 };
        return if x.is_nan() { 255 } else { exponent.min(254) as u8 };
    }
    let f = format(d);
    let sign_bit = 1u8 << (f.exp + f.man);
    if x.is_nan() {
        return match f.specials {
            Specials::Fnuz => 0x80,
            Specials::None => sign_bit - 1,
            _ => 0x7f,
        };
    }
    // The positive codes are ordered by value: find the neighbours by bisection.
    let max = (0..sign_bit).rev().find(|&c| decode(d, c).is_finite()).unwrap_or(0);
    let a = x.abs();
    let code = if a >= decode(d, max) {
        if a.is_infinite() && f.specials == Specials::Ieee { max + 1 } else { max }
    } else {
        let (mut lo, mut hi) = (0u8, max);
        while hi - lo > 1 {
            let mid = lo + (hi - lo) / 2;
            if decode(d, mid) <= a { lo = mid } else { hi = mid }
        }
        let (dl, dh) = (a - decode(d, lo), decode(d, hi) - a);
        if dl < dh || (dl == dh && lo % 2 == 0) { lo } else { hi }
    };
    let negative = x.is_sign_negative() && !(code == 0 && f.specials == Specials::Fnuz);
    if negative { code | sign_bit } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_every_small_float_round_trips() {
        for d in [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::F4E2M1, DType::F8E8M0] {
            for code in 0..=(0xffu32 >> (8 - d.bits())) as u8 {
                let v = decode(d, code);
                if !v.is_nan() {
                    assert_eq!(decode(d, encode(d, v)).to_bits(), v.to_bits(), "{d} {code:#x}");
                }
            }
        }
        assert_eq!(decode(DType::F8E4M3FN, 0x7e), 448.0);
        assert_eq!(decode(DType::F8E5M2, 0x7b), 57344.0);
        assert_eq!(decode(DType::F4E2M1, 7), 6.0);
    }
}
