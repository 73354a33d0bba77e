//! Element types as kernels see them: read to f32, written from f32.

use half::f16;

/// A plain element.
pub(crate) trait Elem: Copy + Send + Sync + 'static {
    /// Widens.
    fn get(self) -> f32;
    /// Rounds to nearest even.
    fn set(v: f32) -> Self;
    /// Whether it is not zero (NaN is not).
    fn is_set(self) -> bool {
        self.get() != 0.0
    }
}

impl Elem for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }
    #[inline(always)]
    fn set(v: f32) -> f32 {
        v
    }
}

impl Elem for f16 {
    #[inline(always)]
    fn get(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn set(v: f32) -> f16 {
        f16::from_f32(v)
    }
}

macro_rules! ints {
    ($($t:ty),*) => {$(
        impl Elem for $t {
            fn get(self) -> f32 {
                self as f32
            }
            fn set(v: f32) -> $t {
                v as $t
            }
            fn is_set(self) -> bool {
                self != 0
            }
        }
    )*};
}
ints!(u8, i32, i64);
