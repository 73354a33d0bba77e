//! What two right implementations agree on: for which elements an operator's text says what it does, where its results jump, and which
//! cases are left to readings.

mod microsoft;

use super::Value;
use super::node::Known;
use crate::cases::{Case, CaseOperand};
use crate::op::{OpDef, Tol};
use reference::data::ints;
use tensor::DType::{self, *};
use tensor::Tensor;

/// Rows whose results jump where an operand moves by a rounding error, though they are floats.
pub const JUMPS: &[&str] = &[
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Mod",
    "Hardmax",
    "ThresholdedRelu",
    "Shrink",
    "HardSwish",
    "Tan",
    "DynamicQuantizeLinear",
    "BitCast",
    "Unique",
    "Dropout",
];
/// Rows that are several operators by their text, each of which may round what it gives.
pub const STEPS: &[&str] =
    &["Attention", "LinearAttention", "GroupNormalization", "SwiGLU", "RNN", "GRU", "LSTM", "com.microsoft:Inverse"];
/// Exact rows that are continuous: a rounding error passes through and does not grow.
const STEADY: &[&str] = &[
    "Relu",
    "Abs",
    "Neg",
    "Max",
    "Min",
    "Clip",
    "Where",
    "MaxPool",
    "GlobalMaxPool",
    "ReduceMax",
    "ReduceMin",
    "LpPool",
];

/// Whether a rounding error of an operand passes through a row without a jump.
pub fn steady(def: &OpDef, ins: &[Option<(Value, Known)>], results: &[Tensor]) -> bool {
    let name = def.full_name();
    let name = name.as_str();
    if JUMPS.contains(&name) || results.iter().any(|t| !t.dtype().is_float() || t.dtype().bits() < 16) {
        return false;
    }
    let first_alone = || ins.iter().skip(1).flatten().all(|(_, k)| k.exact);
    match def.tolerance {
        Tol::Rel(_) => true,
        Tol::Exact if def.traits.moves => first_alone(),
        Tol::Exact => {
            STEADY.contains(&name) && (name != "Where" || ins.first().into_iter().flatten().all(|(_, k)| k.exact))
                || matches!(name, "Concat" | "Pad" | "Gather" | "GatherElements" | "GatherND") && {
                    let first = if name == "Concat" { ins.len() } else { 1 };
                    ins.iter().skip(first).flatten().all(|(_, k)| k.exact)
                }
        }
    }
}

/// Whether the operator's text says what it does with these elements of operand `i`.
pub fn defined(def: &OpDef, i: usize, t: &Tensor) -> bool {
    let ints = || t.to_i64_vec();
    let is_int = t.dtype().is_int();
    match (def.full_name().as_str(), i) {
        ("Div" | "Mod", 1) => !is_int || ints().iter().all(|&v| v != 0),
        ("Pow", 1) => !is_int || ints().iter().all(|&v| (0..=4).contains(&v)),
        ("Cast" | "CastLike", 0) if t.dtype().is_float() => {
            t.to_f64_vec().iter().all(|v| v.is_finite() && v.abs() < 100.0)
        }
        ("BitShift", 1) => ints().iter().all(|&v| v >= 0 && v < i64::try_from(t.dtype().bits()).unwrap_or(8)),
        _ => true,
    }
}

/// Elements for which it does, in place of those for which it does not.
pub fn tame(def: &OpDef, t: &Tensor) -> Tensor {
    let v = t.to_i64_vec().into_iter().map(|v| match def.name {
        "Pow" => v.rem_euclid(4),
        "BitShift" => v.rem_euclid(i64::try_from(t.dtype().bits()).unwrap_or(8)),
        _ => {
            if v == 0 {
                3
            } else {
                v
            }
        }
    });
    Tensor::from_i64_as(t.dtype(), t.shape(), &v.collect::<Vec<_>>())
}

/// Whether the operator's text leaves results open: numbers that the results' type does not have.
pub fn left_open(def: &OpDef, case: &Case, ins: &[Option<(Value, Known)>], results: &[Tensor]) -> bool {
    let operand = |i: usize| ins.get(i).and_then(|x| x.as_ref()).map(|x| &x.1.value);
    let floats = |i: usize| operand(i).is_some_and(|t| t.dtype().is_float());
    let whole = results.first().is_some_and(|t| t.dtype().is_int());
    match def.full_name().as_str() {
        "Pow" if whole && floats(1) => true,
        // Sums, squares and powers that the type of the result may not have.
        "ReduceSum" | "ReduceMean" | "ReduceSumSquare" | "ReduceL1" | "ReduceL2" | "Pow" if whole => {
            operand(0).is_some_and(|t| ints(t).iter().any(|v| v.unsigned_abs() > 1 << 12))
        }
        // What is cut off depends on the last bit.
        "Resize" | "GridSample" if whole => {
            matches!(Asked { def, case }.str("mode"), Some("cubic" | "bicubic"))
        }
        "Cast" | "CastLike" => {
            let unsigned = results.first().is_some_and(|t| !t.dtype().is_signed());
            whole && unsigned && floats(0) && operand(0).is_some_and(|t| t.to_f64_vec().iter().any(|&v| v <= -1.0))
        }
        _ => false,
    }
}

/// Whether implementations differ in these results: in what becomes of a fraction as an integer of a few bits, of which the text is silent, and
/// onnxruntime in the maximum and the masked scores that are infinities below 0, in small results of sigmoids, and where all elements are equal
/// that are normalized.
pub fn differing(def: &OpDef, ins: &[Option<(Value, Known)>], results: &[Tensor]) -> bool {
    let name = def.full_name();
    if matches!(name.as_str(), "MaxPool" | "GlobalMaxPool" | "Attention") {
        return results.iter().any(|t| t.dtype().is_float() && t.to_f64_vec().contains(&f64::NEG_INFINITY));
    }
    // Its sigmoids and logarithms lose their digits where they are small, as its epsilon of a normalization is lost.
    let small = |t: &Tensor| {
        let v = t.to_f64_vec();
        v.iter().any(|v| *v != 0.0) && v.iter().all(|v| v.abs() < 1e-2)
    };
    match name.as_str() {
        "com.microsoft:FastGelu" | "com.microsoft:Gelu" | "com.microsoft:BiasGelu" | "com.microsoft:QuickGelu"
            if results.iter().any(|t| t.to_f64_vec().iter().any(|v| *v != 0.0 && v.abs() < 1e-4)) =>
        {
            return true;
        }
        "Softplus" | "Mish" | "Sigmoid" | "Swish" | "Atanh" if results.iter().any(small) => return true,
        "MeanVarianceNormalization" if results.iter().any(|t| t.to_f64_vec().contains(&0.0)) => return true,
        _ => {}
    }
    // Roots of differences that cancel, and matrices without an inverse.
    match name.as_str() {
        "com.microsoft:CDist" => return results.iter().any(|t| t.to_f64_vec().iter().any(|&v| v < 0.5)),
        "com.microsoft:Inverse" => return results.iter().any(|t| t.to_f64_vec().iter().any(|v| !v.is_finite())),
        _ => {}
    }
    // Which of two experts with equal logits is chosen.
    if matches!(name.as_str(), "com.microsoft:MoE" | "com.microsoft:QMoE")
        && let Some(Some((_, logits))) = ins.get(1)
    {
        let (t, n) = (&logits.value, logits.value.shape().last().copied().unwrap_or(1).max(1));
        let tied = |row: &[f64]| (1..row.len()).any(|i| row[..i].contains(&row[i]));
        return t.to_f64_vec().chunks(n).any(tied);
    }
    let few_bits = results.iter().any(|t| t.dtype().is_int() && t.dtype().bits() < 8);
    let fraction = |t: &Tensor| t.dtype().is_float() && t.to_f64_vec().iter().any(|v| v.fract() != 0.0);
    few_bits && ins.iter().flatten().any(|(_, k)| fraction(&k.value))
}

/// Leaves out of a case what implementations differ in where the text is silent, and what onnxruntime does not run at some types, ranks or
/// attributes. Says whether anything is left.
pub fn common(def: &OpDef, dtype: DType, case: &mut Case) -> bool {
    // The mask of Dropout that drops nothing was not said before opset 12.
    if def.name == "Dropout" && def.until < 12 {
        case.n_outs = 1;
    }
    // Differences of infinities.
    for o in case.operands.iter_mut().flatten() {
        o.fill.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = 3.0);
    }
    if !def.domain.is_empty() {
        case.n_outs = microsoft::results(def.name, case.n_outs);
        let case = Asked { def, case };
        return microsoft::reads_alike(&case, dtype) && microsoft::runs(&case, dtype);
    }
    let case = Asked { def, case };
    read_alike(&case, dtype) && run_by_peer(&case, dtype)
}

/// A case, asked by names and places.
struct Asked<'a> {
    def: &'a OpDef,
    case: &'a Case,
}

impl Asked<'_> {
    fn str(&self, name: &str) -> Option<&str> {
        self.def.slot(name).and_then(|slot| self.case.attrs.str(slot))
    }
    fn int(&self, name: &str) -> Option<i64> {
        self.def.slot(name).and_then(|slot| self.case.attrs.int(slot))
    }
    fn float(&self, name: &str) -> Option<f32> {
        self.def.slot(name).and_then(|slot| self.case.attrs.float(slot))
    }
    fn ints(&self, name: &str) -> Option<&[i64]> {
        self.def.slot(name).and_then(|slot| self.case.attrs.ints(slot))
    }
    fn operand(&self, i: usize) -> Option<&CaseOperand> {
        self.case.operands.get(i).and_then(Option::as_ref)
    }
    fn shape(&self, i: usize) -> &[usize] {
        self.operand(i).map_or(&[], |o| &o.shape)
    }
    fn operands(&self) -> impl Iterator<Item = &CaseOperand> {
        self.case.operands.iter().flatten()
    }
    fn has_empty(&self) -> bool {
        self.operands().any(|o| o.shape.contains(&0))
    }
    fn numbers(&self, i: usize) -> &[f64] {
        self.operand(i).map_or(&[], |o| &o.fill)
    }
}

/// Whether implementations read the operator's text in the same way for this case.
fn read_alike(case: &Asked, dtype: DType) -> bool {
    let empty = case.has_empty();
    match case.def.name {
        // An infinity as an integer.
        "ReduceLogSum" | "ReduceLogSumExp" => dtype.is_float(),
        // Integers beyond their range.
        "ReduceProd" | "CumProd" => dtype.is_float(),
        "Resize" | "Upsample" => {
            let coordinates = case.str("coordinate_transformation_mode").unwrap_or("half_pixel");
            matches!(dtype, F32 | F16)
                && case.int("antialias") != Some(1)
                && !empty
                && case.str("keep_aspect_ratio_policy").unwrap_or("stretch") == "stretch"
                && matches!(coordinates, "half_pixel" | "asymmetric" | "pytorch_half_pixel")
        }
        // Which axes go depends on which extents turn out to be 1.
        // An empty list is one, or none.
        "Squeeze" => {
            case.operand(1).is_some_and(|o| o.shape != [0]) || case.ints("axes").is_some_and(|a| !a.is_empty())
        }
        // In which order they come.
        "TopK" => case.int("sorted") != Some(0),
        // How much SAME pads where there are dilations, and where windows have gaps between them.
        "Conv" | "ConvInteger" | "QLinearConv" | "MaxPool" | "AveragePool" | "LpPool"
            if case.str("auto_pad").is_some_and(|p| p.starts_with("SAME")) =>
        {
            let ints = |name: &str| case.ints(name).unwrap_or(&[]);
            let gaps = ints("kernel_shape").iter().zip(ints("strides")).any(|(k, s)| k < s);
            !empty && !gaps && ints("dilations").iter().all(|&d| d == 1)
        }
        "Col2Im" | "AffineGrid" => false,
        // Whether positions count in the given shape or in the least one.
        "MaxUnpool" => case.case.operands.len() < 3,
        "ReduceMean" | "Det" => !empty,
        // The last state after no step.
        "RNN" | "GRU" | "LSTM" => !empty,
        // NaN in onnxruntime, which takes the root of the scale.
        "Attention" => dtype != F64 && case.float("scale").is_none_or(|s| s >= 0.0),
        // What is in f32 and what in the type of the data.
        "GroupNormalization" => dtype != F64,
        // Its function's epsilon is 0 as a number of 16 bits.
        "MeanVarianceNormalization" => dtype != F16,
        // What the statistics of training are, and whether more outputs ask for them.
        "BatchNormalization" => case.case.n_outs == 1 && case.int("training_mode").unwrap_or(0) == 0,
        // Sums of nothing are left unwritten.
        "MatMulInteger" | "QLinearMatMul" | "ConvInteger" | "QLinearConv" | "MatMul" | "Gemm" => !empty,
        _ => true,
    }
}

/// Whether onnxruntime has what this case needs beyond the row and its element type.
fn run_by_peer(case: &Asked, dtype: DType) -> bool {
    let rank = case.shape(0).len();
    match case.def.name {
        "Resize" => match case.str("mode").unwrap_or("nearest") {
            "nearest" => case.int("exclude_outside") != Some(1),
            // Of four axes the last two.
            "cubic" => rank == 4 && case.ints("axes").is_none() && case.numbers(2).iter().take(2).all(|&s| s == 1.0),
            _ => rank == 4,
        },
        "Upsample" => case.operand(1).is_none() || case.numbers(1).iter().all(|&s| s >= 1.0),
        "SoftmaxCrossEntropyLoss" | "NegativeLogLikelihoodLoss" => case.int("ignore_index").is_none(),
        "MaxPool" | "AveragePool" | "LpPool" | "GlobalLpPool" if case.has_empty() => false,
        "DeformConv" => rank == 4,
        "GridSample" => (4..=5).contains(&rank),
        "LRN" => case.int("size").is_some_and(|size| size % 2 == 1),
        // By the size of the state alone.
        "RNN" | "GRU" | "LSTM" => case.int("hidden_size").is_some(),
        "TensorScatter" => case.numbers(2).iter().all(|&v| v >= 0.0),
        "QLinearMatMul" => [2, 5].iter().all(|&i| case.shape(i).iter().product::<usize>() == 1),
        // Their functions mix types.
        "CenterCropPad" => case.operands().all(|o| o.dtype != Some(I32)),
        "Clip" => !matches!(dtype, I16 | U16),
        "EyeLike" => case.int("dtype").is_none_or(|d| [F32, F64, I32, I64].iter().any(|t| i64::from(t.onnx()) == d)),
        "DequantizeLinear" => {
            case.int("output_dtype").unwrap_or(0) == 0 && case.operands().all(|o| o.dtype != Some(BF16))
        }
        // From the end only in newer opsets.
        "Flatten" => case.def.since >= 11 || case.int("axis").is_none_or(|a| a >= 0),
        "Conv" | "MaxPool" | "LpPool" | "AveragePool" => case.ints("pads").is_none_or(|p| p.iter().all(|&p| p >= 0)),
        // A mask that ends before the keys do.
        "Attention" => case.operand(3).is_none_or(|m| {
            let keys = |i: usize| case.operand(i).and_then(|o| o.shape.iter().nth_back(1).copied()).unwrap_or(0);
            m.shape.last().is_some_and(|&n| n == keys(1) + keys(4))
        }),
        _ => true,
    }
}
