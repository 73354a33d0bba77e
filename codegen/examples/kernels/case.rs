//! One call of a kernel with its inputs and the answer from plain loops in f64.

use half::f16;
use kernels::catalog::CATALOG;
use kernels::gpu::{Arch, LaunchPlan, plan};

/// A buffer's elements.
#[derive(Clone, Debug)]
pub enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    U8(Vec<u8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Data {
    /// Values rounded to the element type of a kernel.
    pub fn floats(v: &[f32], half: bool) -> Data {
        if half { Data::F16(v.iter().map(|&x| f16::from_f32(x)).collect()) } else { Data::F32(v.to_vec()) }
    }
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Data::F32(v) => v.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Data::F16(v) => v.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Data::U8(v) => v.clone(),
            Data::I32(v) => v.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Data::I64(v) => v.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Data::F64(v) => v.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        }
    }
    pub fn elem_bytes(&self) -> usize {
        match self {
            Data::U8(_) => 1,
            Data::F16(_) => 2,
            Data::F32(_) | Data::I32(_) => 4,
            Data::I64(_) | Data::F64(_) => 8,
        }
    }
}

/// The right answer.
#[derive(Clone, Debug)]
pub enum Want {
    /// Floats within `tolerance` of the largest finite magnitude.
    Near { values: Vec<f64>, half: bool, tolerance: f64 },
    /// The same in f64.
    Wide { values: Vec<f64>, tolerance: f64 },
    /// These bytes.
    Exact(Vec<u8>),
}

impl Want {
    pub fn bytes(&self) -> usize {
        match self {
            Want::Near { values, half, .. } => values.len() * if *half { 2 } else { 4 },
            Want::Wide { values, .. } => values.len() * 8,
            Want::Exact(b) => b.len(),
        }
    }
    /// Compares; gives the largest error as a share of the tolerance.
    ///
    /// # Errors
    /// The first element that is off.
    pub fn check(&self, got: &[u8]) -> Result<f64, String> {
        let (values, bytes, tolerance) = match self {
            Want::Exact(want) => {
                let off = want.iter().zip(got).position(|(a, b)| a != b);
                return off.map_or(Ok(0.0), |i| Err(format!("byte {i} is {}, not {}", got[i], want[i])));
            }
            Want::Near { values, half, tolerance } => (values, if *half { 2 } else { 4 }, *tolerance),
            Want::Wide { values, tolerance } => (values, 8, *tolerance),
        };
        let top = values.iter().filter(|x| x.is_finite()).fold(1e-3f64, |m, x| m.max(x.abs()));
        let mut worst = 0f64;
        for (i, &want) in values.iter().enumerate() {
            let v = match got[bytes * i..][..bytes] {
                [a, b] => f16::from_ne_bytes([a, b]).to_f64(),
                [a, b, c, d] => f64::from(f32::from_ne_bytes([a, b, c, d])),
                [a, b, c, d, e, f, g, h] => f64::from_ne_bytes([a, b, c, d, e, f, g, h]),
                _ => f64::NAN,
            };
            let error = (v - want).abs() / (tolerance * top);
            if v.is_nan() && want.is_nan() || v == want {
                continue;
            }
            if error.is_nan() || error > 1.0 {
                return Err(format!(
                    "element {i} of {} is {v}, not {want} (tolerance {:.1e})",
                    values.len(),
                    tolerance * top
                ));
            }
            worst = worst.max(error);
        }
        Ok(worst)
    }
}

/// What is launched.
#[derive(Clone, Debug)]
pub enum Call {
    /// A kernel of the catalog.
    Catalog(u32),
    /// A kernel of the runtime's own.
    Own(LaunchPlan),
}

/// One call.
#[derive(Clone, Debug)]
pub struct Case {
    pub what: String,
    pub call: Call,
    pub inputs: Vec<Option<Data>>,
    pub ints: Vec<i64>,
    pub scalars: Vec<f64>,
    pub want: Want,
    /// Elements by which the inputs' addresses are off an alignment of 16 bytes.
    pub skew: usize,
    /// Bytes of the scratch buffer after the result; none when 0.
    pub scratch: usize,
}

impl Case {
    /// A call of the catalog.
    pub fn catalog(
        name: &str,
        what: String,
        inputs: Vec<Option<Data>>,
        ints: Vec<i64>,
        scalars: Vec<f64>,
        want: Want,
    ) -> Case {
        let id = kernels::catalog::find(name).unwrap_or(u32::MAX);
        Case {
            what: format!("{name} {what}"),
            call: Call::Catalog(id),
            inputs,
            ints,
            scalars,
            want,
            skew: 0,
            scratch: 0,
        }
    }
    /// How it is launched on an architecture.
    ///
    /// # Errors
    /// When the launch is refused.
    pub fn plan(&self, arch: &Arch) -> Result<LaunchPlan, String> {
        match &self.call {
            Call::Own(p) => Ok(*p),
            Call::Catalog(id) => plan(*id, &self.ints, arch).map_err(|e| e.0),
        }
    }
}

/// Bytes of the arguments of a kernel, as its signature in the catalog says; those of the runtime's own kernels are documented.
pub fn kernarg_bytes(entry: &str, catalog: Option<&str>) -> usize {
    match catalog.and_then(|n| CATALOG.iter().find(|k| k.name == n)) {
        Some(k) => 8 * (k.buffers.len() + k.ints.len() + k.scalars.len()),
        None if entry == kernels::gpu::catalog::STORE_INTS => 8 * 19,
        None => 8 * 4,
    }
}
