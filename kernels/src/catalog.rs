//! Names, signatures and limits of hand-written kernels. Generated code calls them by id: the position in [`CATALOG`].

use tensor::DType;

/// A kernel of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct KernelDef {
    /// `family.dtype`, as `gemm.f32`.
    pub name: &'static str,
    /// Buffers: reads, then writes, then scratch.
    pub buffers: &'static [BufferDef],
    /// Integer arguments by name.
    pub ints: &'static [&'static str],
    /// Scalar arguments by name.
    pub scalars: &'static [&'static str],
    /// One sentence with the formula.
    pub doc: &'static str,
}

/// A buffer of a kernel's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferDef {
    /// Name.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Direction.
    pub access: Access,
    /// What strides it takes.
    pub contract: Contract,
    /// Whether it may be null.
    pub optional: bool,
}

/// Direction of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
    Scratch,
}

/// Strides a buffer may have. Strides are ≥ 0: a buffer that runs backwards, such as a reversed slice, is copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// Row-major without gaps.
    Contiguous,
    /// Any strides ≥ 0 on the axes whose strides are integer arguments, innermost contiguous.
    InnerContiguous,
    /// Any strides ≥ 0; all are integer arguments.
    Strided,
}

macro_rules! buffers {
    ($d:expr; $($name:literal $access:ident $contract:ident $($opt:ident)?),* $(,)?) => {
        &[$(BufferDef {
            name: $name,
            dtype: $d,
            access: Access::$access,
            contract: Contract::$contract,
            optional: buffers!(@opt $($opt)?),
        }),*]
    };
    (@opt opt) => { true };
    (@opt) => { false };
}

const GEMM_INTS: &[&str] = &[
    "batch",
    "m",
    "n",
    "k",
    "a_batch_stride",
    "a_row_stride",
    "a_col_stride",
    "b_batch_stride",
    "b_row_stride",
    "b_col_stride",
    "bias_row_stride",
    "bias_col_stride",
    "residual_batch_stride",
    "residual_row_stride",
    "activation",
];
const CONV_INTS: &[&str] = &[
    "n",
    "c",
    "h",
    "w",
    "m",
    "kh",
    "kw",
    "group",
    "stride_h",
    "stride_w",
    "pad_top",
    "pad_left",
    "dil_h",
    "dil_w",
    "oh",
    "ow",
    "activation",
];
const POOL_INTS: &[&str] = &[
    "nc",
    "h",
    "w",
    "kh",
    "kw",
    "stride_h",
    "stride_w",
    "pad_top",
    "pad_left",
    "dil_h",
    "dil_w",
    "oh",
    "ow",
    "kind",
    "pad_bottom",
    "pad_right",
];
const ATTENTION_INTS: &[&str] = &[
    "batch",
    "heads",
    "s",
    "t",
    "d",
    "e",
    "q_batch",
    "q_head",
    "q_row",
    "k_batch",
    "k_head",
    "k_row",
    "k_col",
    "v_batch",
    "v_head",
    "v_row",
    "mask_batch",
    "mask_head",
    "mask_row",
    "mask_col",
    "mask_selects",
    "mask_rows",
    "nan_to_zero",
];
const FILL_INTS: &[&str] = &["rank", "count", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"];

const fn gemm(name: &'static str, d: DType) -> KernelDef {
    KernelDef {
        name,
        buffers: match d {
            DType::F16 => {
                buffers!(DType::F16; "a" Read Strided, "b" Read Strided, "bias" Read Strided opt, "residual" Read InnerContiguous opt, "c" Write Contiguous)
            }
            _ => {
                buffers!(DType::F32; "a" Read Strided, "b" Read Strided, "bias" Read Strided opt, "residual" Read InnerContiguous opt, "c" Write Contiguous)
            }
        },
        ints: GEMM_INTS,
        scalars: &["alpha", "act_lo", "act_hi"],
        doc: "c[b, m, n] = act(alpha * sum_k a[b, m, k] * b[b, k, n] + bias[m, n] + residual[b, m, n]), sums in f32",
    }
}
const fn conv(name: &'static str, d: DType) -> KernelDef {
    KernelDef {
        name,
        buffers: match d {
            DType::F16 => {
                buffers!(DType::F16; "x" Read Contiguous, "w" Read Contiguous, "bias" Read Contiguous opt, "residual" Read Contiguous opt, "y" Write Contiguous)
            }
            _ => {
                buffers!(DType::F32; "x" Read Contiguous, "w" Read Contiguous, "bias" Read Contiguous opt, "residual" Read Contiguous opt, "y" Write Contiguous)
            }
        },
        ints: CONV_INTS,
        scalars: &["act_lo", "act_hi"],
        doc: "y = act(conv(x[n, c, h, w], w[m, c/group, kh, kw]) + bias[m] + residual[n, m, oh, ow]), sums in f32",
    }
}
const fn pool(name: &'static str, d: DType) -> KernelDef {
    KernelDef {
        name,
        buffers: match d {
            DType::F16 => buffers!(DType::F16; "x" Read Contiguous, "y" Write Contiguous),
            _ => buffers!(DType::F32; "x" Read Contiguous, "y" Write Contiguous),
        },
        ints: POOL_INTS,
        scalars: &[],
        doc: "y[nc, oh, ow] = max (kind 0), mean over the image (kind 1) or mean over image and padding (kind 2) of windows of x[nc, h, w]",
    }
}
const fn attention(name: &'static str, d: DType) -> KernelDef {
    KernelDef {
        name,
        buffers: match d {
            DType::F16 => {
                buffers!(DType::F16; "q" Read InnerContiguous, "k" Read Strided, "v" Read InnerContiguous, "mask" Read Strided opt, "y" Write Contiguous)
            }
            _ => {
                buffers!(DType::F32; "q" Read InnerContiguous, "k" Read Strided, "v" Read InnerContiguous, "mask" Read Strided opt, "y" Write Contiguous)
            }
        },
        ints: ATTENTION_INTS,
        scalars: &["scale"],
        doc: "y[b, h, s, e] = softmax(scale * q[b, h, s, d] * k[b, h, t, d]^T + mask) * v[b, h, t, e], softmax in f32; row r of s has row r % mask_rows of the mask; with mask_selects an element of the mask that is not 0 takes the score's place; with nan_to_zero a row whose softmax is NaN gives 0",
    }
}
const fn nbits(name: &'static str, d: DType) -> KernelDef {
    const fn packed(name: &'static str, optional: bool) -> BufferDef {
        BufferDef { name, dtype: DType::U8, access: Access::Read, contract: Contract::Contiguous, optional }
    }
    const B: BufferDef = packed("b", false);
    const ZEROS: BufferDef = packed("zero_points", true);
    const fn float(name: &'static str, dtype: DType, access: Access, optional: bool) -> BufferDef {
        BufferDef { name, dtype, access, contract: Contract::Contiguous, optional }
    }
    const fn all(d: DType) -> [BufferDef; 6] {
        let read = Access::Read;
        let (a, scales, bias) =
            (float("a", d, read, false), float("scales", d, read, false), float("bias", d, read, true));
        [a, B, scales, ZEROS, bias, float("c", d, Access::Write, false)]
    }
    const F32_BUFFERS: [BufferDef; 6] = all(DType::F32);
    const F16_BUFFERS: [BufferDef; 6] = all(DType::F16);
    KernelDef {
        name,
        buffers: match d {
            DType::F16 => &F16_BUFFERS,
            _ => &F32_BUFFERS,
        },
        ints: &["m", "n", "k", "bits", "block"],
        scalars: &[],
        doc: "c[m, n] = sum_k a[m, k] * (b[n, k] - zero_points[n, k / block]) * scales[n, k / block] + bias[n], sums in f32; b and zero_points packed with 2, 4 or 8 bits a number, rows of b of whole blocks",
    }
}
const fn count(name: &'static str, d: DType) -> KernelDef {
    KernelDef {
        name,
        buffers: match d {
            DType::Bool => &[BOOL_X, COUNT],
            DType::I64 => &[I64_X, COUNT],
            DType::I32 => &[I32_X, COUNT],
            _ => &[F32_X, COUNT],
        },
        ints: &["n"],
        scalars: &[],
        doc: "count = number of elements of x that are not 0",
    }
}
const fn fill(name: &'static str, d: DType) -> KernelDef {
    KernelDef {
        name,
        buffers: match d {
            DType::Bool => &[BOOL_X, FILLED],
            DType::I64 => &[I64_X, FILLED],
            DType::I32 => &[I32_X, FILLED],
            _ => &[F32_X, FILLED],
        },
        ints: FILL_INTS,
        scalars: &[],
        doc: "y[rank, count] = coordinates of the elements of x that are not 0, in row-major order",
    }
}
const fn dft(name: &'static str, d: DType) -> KernelDef {
    KernelDef {
        name,
        buffers: match d {
            DType::F64 => &[F64_X, ROOTS, F64_Y, WORK],
            _ => &[F32_X, ROOTS, F32_Y, WORK],
        },
        ints: &["outer", "t", "inner", "parts", "n", "bins", "out_parts", "inverse"],
        scalars: &[],
        doc: "y[outer, bins, inner, out_parts] = sum_k x[outer, k, inner, parts] * exp(-2 pi i k bin/n) (inverse: exp(2 pi i k bin/n) / n), x 0 beyond t, in f64; roots[n, 2] = cos and sin of 2 pi k/n; with one part of results x is one half of a spectrum; n times the sum of n's prime factors products a signal; work: 32 n min(outer inner, 256) bytes",
    }
}
const fn plain(name: &'static str, dtype: DType, access: Access) -> BufferDef {
    BufferDef { name, dtype, access, contract: Contract::Contiguous, optional: false }
}
const BOOL_X: BufferDef = plain("x", DType::Bool, Access::Read);
const I64_X: BufferDef = plain("x", DType::I64, Access::Read);
const I32_X: BufferDef = plain("x", DType::I32, Access::Read);
const F32_X: BufferDef = plain("x", DType::F32, Access::Read);
const F64_X: BufferDef = plain("x", DType::F64, Access::Read);
const F64_Y: BufferDef = plain("y", DType::F64, Access::Write);
const F32_Y: BufferDef = plain("y", DType::F32, Access::Write);
const ROOTS: BufferDef = plain("roots", DType::F64, Access::Read);
const WORK: BufferDef = plain("work", DType::U8, Access::Scratch);
const COUNT: BufferDef = plain("count", DType::I64, Access::Write);
const FILLED: BufferDef = plain("y", DType::I64, Access::Write);

/// The kernel that begins a draw of random numbers.
pub const DRAW: &str = "draw.i64";

/// The kernels. A new one goes at the end: ids are positions and stand in artifacts.
pub static CATALOG: &[KernelDef] = &[
    gemm("gemm.f32", DType::F32),
    gemm("gemm.f16", DType::F16),
    conv("conv2d.f32", DType::F32),
    conv("conv2d.f16", DType::F16),
    pool("pool2d.f32", DType::F32),
    pool("pool2d.f16", DType::F16),
    attention("attention.f32", DType::F32),
    attention("attention.f16", DType::F16),
    count("nonzero_count.bool", DType::Bool),
    count("nonzero_count.f32", DType::F32),
    count("nonzero_count.i64", DType::I64),
    count("nonzero_count.i32", DType::I32),
    fill("nonzero_fill.bool", DType::Bool),
    fill("nonzero_fill.f32", DType::F32),
    fill("nonzero_fill.i64", DType::I64),
    fill("nonzero_fill.i32", DType::I32),
    KernelDef {
        name: "argsort.u64",
        buffers: &[
            plain("keys", DType::U64, Access::Read),
            plain("positions", DType::I64, Access::Write),
            plain("work", DType::U8, Access::Scratch),
        ],
        ints: &["rows", "n", "k"],
        scalars: &[],
        doc: "positions[rows, k] = where the k least of keys[rows, n] are, in ascending order, of equal ones the first first; work: 16 rows n bytes",
    },
    nbits("nbits.f32", DType::F32),
    nbits("nbits.f16", DType::F16),
    KernelDef {
        name: DRAW,
        buffers: &[plain("words", DType::I64, Access::Write)],
        ints: &["stream", "seed", "session", "draw", "run"],
        scalars: &[],
        doc: "words[3] = what a draw of random numbers depends on: seed + 2^63, draw, 0; where seed is -1: session xor stream 2^32, draw, run. The runtime puts the session's seed and the numbers of draw and run in the last three",
    },
    dft("dft.f32", DType::F32),
    dft("dft.f64", DType::F64),
    KernelDef {
        name: "nms.f32",
        buffers: &[
            plain("boxes", DType::F32, Access::Read),
            plain("order", DType::I64, Access::Read),
            plain("eligible", DType::Bool, Access::Read),
            plain("limit", DType::I64, Access::Read),
            plain("iou_threshold", DType::F32, Access::Read),
            plain("kept", DType::I64, Access::Write),
        ],
        ints: &["batch", "classes", "n", "center"],
        scalars: &[],
        doc: "kept[batch, classes, n] = of boxes[batch, n, 4] in the order[batch, classes, n] the eligible ones whose intersection over union with each kept before is at most the threshold, up to the limit, then -1; boxes are opposite corners y, x or, with center, middle x, y and width, height",
    },
];

/// The id of a kernel.
pub fn find(name: &str) -> Option<u32> {
    CATALOG.iter().position(|k| k.name == name).and_then(|i| u32::try_from(i).ok())
}

/// Activation codes of GEMM and convolution.
pub mod activation {
    /// y = x
    pub const NONE: i64 = 0;
    /// max(x, 0)
    pub const RELU: i64 = 1;
    /// x/2 (1 + erf(x/√2))
    pub const GELU: i64 = 2;
    /// x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))
    pub const GELU_TANH: i64 = 3;
    /// x · sigmoid(x)
    pub const SILU: i64 = 4;
    /// 1 / (1 + exp(-x))
    pub const SIGMOID: i64 = 5;
    /// tanh(x)
    pub const TANH: i64 = 6;
    /// min(max(x, act_lo), act_hi)
    pub const CLIP: i64 = 7;
    /// min(max(act_lo · x + act_hi, 0), 1)
    pub const HARD_SIGMOID: i64 = 8;
}
