//! Element types.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $onnx:literal, $name:literal, $bits:literal, $doc:literal;)*) => {
        /// An element type; the discriminant is the number of ONNX's `TensorProto.DataType`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum DType { $(#[doc = $doc] $variant = $onnx,)* }
        impl DType {
            /// Every element type.
            pub const ALL: &[DType] = &[$(DType::$variant),*];
            /// From ONNX's number.
            pub fn from_onnx(n: i32) -> Option<DType> {
                match n { $($onnx => Some(DType::$variant),)* _ => None }
            }
            /// The short name used in text form and messages (`f32`, `i64`, `bool`).
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }
            /// Bits an element takes in memory; 0 for strings.
            pub const fn bits(self) -> usize {
                match self { $(DType::$variant => $bits,)* }
            }
        }
    };
}

dtypes! {
    F32 = 1, "f32", 32, "IEEE binary32.";
    U8 = 2, "u8", 8, "Unsigned 8-bit.";
    I8 = 3, "i8", 8, "Signed 8-bit.";
    U16 = 4, "u16", 16, "Unsigned 16-bit.";
    I16 = 5, "i16", 16, "Signed 16-bit.";
    I32 = 6, "i32", 32, "Signed 32-bit.";
    I64 = 7, "i64", 64, "Signed 64-bit.";
    String = 8, "str", 0, "UTF-8 strings; host only.";
    Bool = 9, "bool", 8, "One byte, 0 or 1.";
    F16 = 10, "f16", 16, "IEEE binary16.";
    F64 = 11, "f64", 64, "IEEE binary64.";
    U32 = 12, "u32", 32, "Unsigned 32-bit.";
    U64 = 13, "u64", 64, "Unsigned 64-bit.";
    C64 = 14, "c64", 64, "Two f32: real, imaginary.";
    C128 = 15, "c128", 128, "Two f64: real, imaginary.";
    BF16 = 16, "bf16", 16, "bfloat16: the upper half of an f32.";
    F8E4M3FN = 17, "f8e4m3fn", 8, "8-bit float, 4 exponent bits, no infinities.";
    F8E4M3FNUZ = 18, "f8e4m3fnuz", 8, "8-bit float, 4 exponent bits, no infinities, no negative zero.";
    F8E5M2 = 19, "f8e5m2", 8, "8-bit float, 5 exponent bits, IEEE style.";
    F8E5M2FNUZ = 20, "f8e5m2fnuz", 8, "8-bit float, 5 exponent bits, no infinities, no negative zero.";
    U4 = 21, "u4", 4, "Unsigned 4-bit, two a byte, low nibble first.";
    I4 = 22, "i4", 4, "Signed 4-bit, two a byte, low nibble first.";
    F4E2M1 = 23, "f4e2m1", 4, "4-bit float, two a byte, low nibble first.";
    F8E8M0 = 24, "f8e8m0", 8, "8-bit power of two (a scale).";
    U2 = 25, "u2", 2, "Unsigned 2-bit, four a byte, lowest bits first.";
    I2 = 26, "i2", 2, "Signed 2-bit, four a byte, lowest bits first.";
}

impl DType {
    /// ONNX's number.
    pub const fn onnx(self) -> i32 {
        self as i32
    }
    /// By short name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.name() == name)
    }
    /// Whole bytes an element takes; `None` for packed sub-byte types and strings.
    pub const fn size(self) -> Option<usize> {
        let b = self.bits();
        if b >= 8 { Some(b / 8) } else { None }
    }
    /// Bytes of `n_elems` contiguous elements, sub-byte types packed; `None` on overflow and for strings.
    pub fn size_bytes(self, n_elems: usize) -> Option<usize> {
        match self.bits() {
            0 => None,
            b => n_elems.checked_mul(b).map(|bits| bits.div_ceil(8)),
        }
    }
    /// Real floating point of any width.
    pub const fn is_float(self) -> bool {
        use DType::*;
        matches!(self, F32 | F16 | BF16 | F64 | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F4E2M1 | F8E8M0)
    }
    /// Signed or unsigned integer (bool is not one).
    pub const fn is_int(self) -> bool {
        use DType::*;
        matches!(self, U8 | I8 | U16 | I16 | I32 | I64 | U32 | U64 | U4 | I4 | U2 | I2)
    }
    /// Signed integer or float.
    pub const fn is_signed(self) -> bool {
        use DType::*;
        self.is_float() || matches!(self, I8 | I16 | I32 | I64 | I4 | I2)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
