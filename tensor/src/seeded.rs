//! Pseudo-random tensors that are made where they are needed, so that test and bench models of any size are small files.

use crate::{DType, Diagnostic, ErrorKind, Result};

/// Uniform elements `middle + spread · u` with `u` in [-1, 1): element `i` follows from `seed` and `i` alone, on every machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seeded {
    /// Which of the 2^64 streams.
    pub seed: u64,
    /// Mean.
    pub middle: f32,
    /// Half the width.
    pub spread: f32,
}

/// The i-th value of the splitmix64 stream of `seed`.
fn bits(seed: u64, i: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(i.wrapping_add(1)));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Seeded {
    /// Element `i` before it is rounded to its type.
    pub fn at(&self, i: u64) -> f32 {
        let u = (bits(self.seed, i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        self.middle + self.spread * u
    }

    /// Whether tensors of this type can be made: f32, f16 and bf16.
    pub fn makes(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Writes as many little-endian elements as fit into `out`.
    ///
    /// # Errors
    /// `Unsupported` for another element type than those of [`Seeded::makes`].
    pub fn fill(&self, dtype: DType, out: &mut [u8]) -> Result<()> {
        match dtype {
            DType::F32 => {
                (0..).zip(out.chunks_exact_mut(4)).for_each(|(i, c)| c.copy_from_slice(&self.at(i).to_le_bytes()))
            }
            DType::F16 => (0..)
                .zip(out.chunks_exact_mut(2))
                .for_each(|(i, c)| c.copy_from_slice(&half::f16::from_f32(self.at(i)).to_le_bytes())),
            DType::BF16 => (0..)
                .zip(out.chunks_exact_mut(2))
                .for_each(|(i, c)| c.copy_from_slice(&half::bf16::from_f32(self.at(i)).to_le_bytes())),
            _ => {
                let text = format!("a seeded tensor of {dtype}");
                return Err(Diagnostic::new(ErrorKind::Unsupported, text).help("seeded tensors are f32, f16 or bf16"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_do_not_depend_on_the_length_and_spread_evenly() {
        let s = Seeded { seed: 3, middle: 1.0, spread: 0.5 };
        let (mut short, mut long) = (vec![0; 40], vec![0; 40_000]);
        s.fill(DType::F32, &mut short).unwrap();
        s.fill(DType::F32, &mut long).unwrap();
        assert_eq!(short, long[..40]);
        let v: Vec<f32> = long.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
        let mean = v.iter().sum::<f32>() / v.len() as f32;
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
        assert!(v.iter().all(|x| (0.5..1.5).contains(x)));
        let mut distinct: Vec<u32> = v.iter().map(|x| x.to_bits()).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 9_900, "{} distinct values", distinct.len());
        assert_ne!(Seeded { seed: 4, ..s }.at(0), s.at(0));
        assert!(s.fill(DType::I32, &mut short).is_err());
    }
}
