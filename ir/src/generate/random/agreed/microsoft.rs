//! com.microsoft: where onnxruntime's CPU kernels do something else than the operators' text says, and what they do not run of it.

use super::Asked;
use tensor::DType::{self, *};

/// Leaves out results that onnxruntime does not write (statistics of normalizations) or cannot type (scores that are shown).
pub fn results(name: &str, n_outs: usize) -> usize {
    match name {
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => 1,
        "MultiHeadAttention" | "DecoderMaskedMultiHeadAttention" => n_outs.min(3),
        _ => n_outs,
    }
}

/// Whether onnxruntime reads the operator's text as it stands for this case.
pub fn reads_alike(case: &Asked, dtype: DType) -> bool {
    let on = |name: &str| case.int(name) == Some(1);
    let same = case.str("auto_pad").is_some_and(|p| p.starts_with("SAME"));
    match case.def.name {
        // Shares are normalized over the chosen experts whatever normalize_routing_weights says.
        "QMoE" => {
            on("normalize_routing_weights") || case.shape(1).last().is_some_and(|&e| case.int("k") == Some(e as i64))
        }
        // Beside a mask the beams are not followed.
        "MultiHeadAttention" => !(case.operand(4).is_some() && case.operand(9).is_some()),
        // Weights that are not transposed are read beyond their end.
        "MatMulBnb4" => case.int("transB") != Some(0),
        // What the cache holds beyond a sample's own positions.
        "GroupQueryAttention" => {
            let lengths = case.numbers(5);
            let one = lengths.windows(2).all(|n| n[0] == n[1]);
            let full = case.shape(3).get(2).is_some_and(|&m| case.numbers(6).first().is_some_and(|&t| m as f64 <= t));
            !on("sliding_window_cache") && (case.operand(3).is_none() || one && full)
        }
        // Packed zero points are not those of the groups.
        // With accuracy_level=4 scales that are no constants count as 0.
        "MatMulNBits" => {
            case.int("accuracy_level") != Some(4) && !(case.operand(3).is_some() && case.operand(4).is_some())
        }
        // The last state after no step.
        "DynamicQuantizeLSTM" => case.numbers(4).iter().all(|&n| n > 0.0),
        // A word without characters is not written.
        "WordConvEmbedding" => {
            let (width, chars) = (case.shape(0).last().copied().unwrap_or(1).max(1), case.numbers(0));
            let n = case.shape(0).iter().product::<usize>();
            !chars.is_empty() && (0..n).step_by(width).all(|i| chars[i % chars.len()] > 0.0)
        }
        // Its constants are of f32.
        "FastGelu" => dtype != F64,
        // It is computed in 16 bits.
        "Inverse" => dtype != F16,
        // Sums of nothing are left unwritten.
        "DynamicQuantizeMatMul" | "MatMulIntegerToFloat" | "QGemm" | "FusedMatMul" | "FusedGemm" => !case.has_empty(),
        // What lies beyond the end counts, where padding does.
        "QLinearAveragePool" => !(same || on("ceil_mode") && on("count_include_pad")),
        "NhwcMaxPool" => !same && !on("ceil_mode"),
        // How much SAME pads where there are dilations, and where windows have gaps between them.
        "FusedConv" | "NhwcConv" | "NhwcFusedConv" | "MaxpoolWithMask" | "ConvTransposeWithDynamicPads" => !same,
        _ => true,
    }
}

/// Whether onnxruntime has what this case needs beyond the row and its element type.
pub fn runs(case: &Asked, dtype: DType) -> bool {
    let has = |i: usize| case.operand(i).is_some();
    let scalars = |at: &[usize]| at.iter().all(|&i| case.operand(i).is_some_and(|o| o.shape.is_empty()));
    let on = |name: &str| case.int(name) == Some(1);
    let activation = |name: &str| case.str(name).unwrap_or("");
    let heads = case.int("num_heads").unwrap_or(1);
    match case.def.name {
        "Attention" => {
            let biased_past = has(4) && has(5);
            let more = on("do_rotary") || on("past_present_share_buffer") || case.shape(3).len() > 3;
            !(biased_past || more)
        }
        // Without presents there is no past.
        "MultiHeadAttention" if has(6) && case.case.n_outs < 3 => false,
        "DecoderMaskedMultiHeadAttention" if has(5) && case.case.n_outs < 3 => false,
        "MultiHeadAttention" => case.shape(0).len() != 5 && case.shape(1).len() != 5,
        "DecoderMaskedMultiHeadAttention" => has(1) && has(5) == on("past_present_share_buffer"),
        "GroupQueryAttention" => {
            let all = heads + if has(1) { 0 } else { 2 * case.int("kv_num_heads").unwrap_or(1) };
            let [b, s, width] = *case.shape(0) else { return false };
            let size = width as i64 / all.max(1);
            let step = if on("do_rotary") { 16 } else { 8 };
            let float_cache = case.operand(3).and_then(|o| o.dtype).is_some_and(DType::is_float);
            // Without presents nothing is written.
            let presents = !has(3) || case.case.n_outs > 2;
            presents && size % step == 0 && !(has(3) && b > 1 && s > 1) && !has(14) && !has(16) && !float_cache
        }
        "SparseAttention" => case.shape(3).last().is_some_and(|d| d % 16 == 0),
        "EmbedLayerNormalization" => case.case.n_outs > 1,
        "QLinearAdd" | "QLinearMul" => scalars(&[1, 2, 4, 5, 6, 7]),
        "QLinearSigmoid" | "QLinearLeakyRelu" => has(2) && has(4),
        "QLinearAveragePool" => scalars(&[1, 2, 3, 4]),
        "QEmbedLayerNormalization" => (8..18).filter(|&i| has(i)).all(|i| case.shape(i).is_empty()),
        "DynamicQuantizeLSTM" => {
            let zeros = [9, 11].iter().all(|&i| case.numbers(i).iter().all(|&v| v == 0.0));
            case.int("hidden_size").is_some() && zeros
        }
        "GatherBlockQuantized" => {
            let last = case.shape(0).len() as i64 - 1;
            dtype != U8 || case.int("quantize_axis").is_none_or(|a| a == -1 || a == last)
        }
        "MoE" | "QMoE" => {
            let kind = activation("activation_type");
            let fused = matches!(kind, "swiglu") && on("swiglu_fusion");
            let third = if case.def.name == "MoE" { 6 } else { 8 };
            !has(third) && !on("use_sparse_mixer") && (fused || matches!(kind, "relu" | "gelu" | "silu" | "identity"))
        }
        "MatMulNBits" => matches!(case.int("bits"), Some(2 | 4 | 8)),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => case.shape(1).len() > 1,
        "FusedMatMul" => {
            let ranks = [0, 1].map(|i| case.shape(i).len());
            ranks[0] > 1 && (ranks[0] == ranks[1] && ranks[0] > 2 || !on("transBatchA") && !on("transBatchB"))
        }
        "FusedGemm" => match activation("activation") {
            "" | "Silu" | "Selu" => false,
            "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" => true,
            _ => case.float("activation_alpha").is_some() && case.float("activation_beta").is_some(),
        },
        "FusedConv" => activation("activation") != "Silu",
        "ConvTransposeWithDynamicPads" => has(2),
        "CDist" => !case.has_empty(),
        _ => true,
    }
}
