//! Mixtures of experts. Tokens choose experts by the router's logits; only the weights of those that were chosen are read.

use super::super::row::ROW;
use super::MICROSOFT;
use super::moe_expand::expand_moe;
use crate::attrs::Attrs;
use crate::lowering::Candidate::Expand;
use crate::op::{AttrDef, AttrKind, InferCtx, OpDef, RefCtx, Tol, attr, opt, req};
use crate::ty::Shape;
use reference::moe::{self, Experts, Gate, Layer, Routing};
use reference::packed::Packed;
use tensor::DType::{self, BF16, F16, F32, U8};
use tensor::{Diagnostic, DimId, ErrorKind, Result, Tensor};

pub(super) const INPUT: usize = 0;
pub(super) const ROUTER: usize = 1;

/// Operands of a layer by position.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub weights: usize,
    pub bias: usize,
    pub scales: Option<usize>,
    pub zeros: Option<usize>,
}

const PLAIN: [Places; 3] = [
    Places { weights: 2, bias: 3, scales: None, zeros: None },
    Places { weights: 4, bias: 5, scales: None, zeros: None },
    Places { weights: 6, bias: 7, scales: None, zeros: None },
];
const QUANTIZED: [Places; 3] = [
    Places { weights: 2, bias: 4, scales: Some(3), zeros: Some(11) },
    Places { weights: 5, bias: 7, scales: Some(6), zeros: Some(12) },
    Places { weights: 8, bias: 10, scales: Some(9), zeros: Some(13) },
];
/// Weights of experts where the logits only choose.
pub(super) const ROUTER_WEIGHTS: usize = 14;
/// From here on operands belong to other kinds of quantization.
const OF_FLOATS: usize = 15;

/// What the attributes say.
pub(super) struct Mixture {
    pub routing: Routing,
    pub gate: Gate,
    pub fusion: i64,
    /// Bits of each layer's weights; 0 where they are not packed.
    pub bits: [i64; 3],
    pub block: i64,
}

impl Mixture {
    /// # Errors
    /// `Unsupported` with what is not.
    pub fn of(def: &OpDef, attrs: &Attrs, has_fc3: bool) -> Result<Mixture> {
        let refuse = |text: String| Err(Diagnostic::new(ErrorKind::Unsupported, format!("{}: {text}", def.name)));
        let int = |name: &str| def.slot(name).and_then(|s| attrs.int(s));
        let num = |name: &str| def.slot(name).and_then(|s| attrs.float(s)).map(f64::from);
        let text = |name: &str| def.slot(name).and_then(|s| attrs.str(s));
        let k = int("k").unwrap_or(1);
        let Some(chosen) = usize::try_from(k).ok().filter(|&k| k > 0) else {
            return refuse(format!("k={k} is not a number of experts"));
        };
        let sparse = int("use_sparse_mixer") == Some(1);
        if sparse && k != 2 {
            return refuse(format!("use_sparse_mixer=1 chooses 2 experts, not k={k}"));
        }
        let fusion = int("swiglu_fusion").unwrap_or(0);
        let gate = match text("activation_type").unwrap_or("relu") {
            "relu" => Gate::Relu,
            "relu2" => Gate::Relu2,
            "gelu" => Gate::Gelu,
            "silu" => Gate::Silu,
            "identity" => Gate::Identity,
            "geglu" => Gate::GeGlu,
            "swiglu" => Gate::SwiGlu {
                alpha: num("activation_alpha").unwrap_or(1.0),
                beta: num("activation_beta").unwrap_or(0.0),
                limit: num("swiglu_limit"),
                limit_after: int("swiglu_limit_after_activation") == Some(1),
            },
            other => return refuse(format!("activation_type={other:?} is not known")),
        };
        let gated = matches!(gate, Gate::SwiGlu { .. } | Gate::GeGlu);
        match (gated, fusion, has_fc3) {
            (true, 0, false) => return refuse("swiglu_fusion=0 needs the linear part as fc3".into()),
            (true, 1 | 2, true) => return refuse(format!("swiglu_fusion={fusion} has no fc3: it is in fc1")),
            (true, 0..=2, _) | (false, ..) => {}
            _ => return refuse(format!("swiglu_fusion={fusion} is not 0, 1 or 2")),
        }
        let quantized = def.name == "QMoE";
        let whole = int("expert_weight_bits").unwrap_or(4);
        let names = ["fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"];
        let bits = names.map(|n| if quantized { int(n).unwrap_or(whole) } else { 0 });
        let block = if quantized { int("block_size").unwrap_or(0).max(0) } else { 0 };
        if quantized {
            if let Some(b) = bits.iter().find(|b| ![2, 3, 4, 8].contains(b)) {
                return refuse(format!("weights of {b} bits are not of 2, 3, 4 or 8"));
            }
            if block == 0 && bits.contains(&3) {
                return refuse("weights of 3 bits need block_size".into());
            }
            if block != 0 && (block < 16 || block & (block - 1) != 0) {
                return refuse(format!("block_size={block} is not a power of two from 16 on"));
            }
            if text("quant_type").is_some_and(|t| t != "int") {
                return refuse(format!("quant_type={:?} is not \"int\"", text("quant_type").unwrap_or("")));
            }
            if int("weights_prepacked") == Some(1) {
                return refuse("weights_prepacked=1 is a layout of another device".into());
            }
        }
        let routing = Routing { k: chosen, normalize: int("normalize_routing_weights") == Some(1), sparse };
        let fusion = if gated { fusion } else { 0 };
        Ok(Mixture { routing, gate, fusion, bits, block })
    }
}

pub(super) fn places(def: &OpDef) -> [Places; 3] {
    if def.name == "QMoE" { QUANTIZED } else { PLAIN }
}

impl Mixture {
    /// Elements of a byte of layer `l`; 1 where they are not packed.
    pub fn per(&self, l: usize) -> i64 {
        8i64.checked_div(self.bits[l]).unwrap_or(1)
    }
    /// Whether weights have rows and elements the other way round in their extents, as onnxruntime's first exporters wrote them; their
    /// bytes are in the usual order.
    pub fn turned(&self, hidden: i64, fc1: &[i64], fc2: &[i64]) -> bool {
        let (&[_, rows, _], &[_, a, b]) = (fc1, fc2) else { return false };
        let all = i128::from(a) * i128::from(b) * i128::from(self.per(1));
        let Some(inter) = all.checked_div(hidden.into()) else { return false };
        let square = inter == i128::from(hidden);
        (!square && inter == i128::from(a)) || (square && self.fusion > 0 && rows == hidden)
    }
}

/// The extents of a layer's weights in the usual order.
fn usual(c: &mut InferCtx, m: &Mixture, l: usize, s: &Shape, turned: bool) -> Shape {
    let (&[e, a, b], true) = (s.as_slice(), turned) else { return s.clone() };
    let per = c.dims.constant(m.per(l));
    [e, c.dims.mul(b, per), c.dims.floordiv(a, per)].into_iter().collect()
}

fn require_rank(c: &InferCtx, i: usize, rank: usize) -> Result<Option<Shape>> {
    let Some(s) = c.shape(i) else { return Ok(None) };
    if s.len() != rank {
        let text = format!("{}: {} has {rank} axes, not {}", c.def.name, c.def.inputs[i].name, s.len());
        return Err(c.error(ErrorKind::Shape, text));
    }
    Ok(Some(s))
}

/// Requires weights `[experts, n, k]` of layer `l`, with scales where they are packed.
fn check_layer(c: &mut InferCtx, m: &Mixture, l: usize, turned: bool, [experts, n, k]: [DimId; 3]) -> Result<()> {
    let p = places(c.def)[l];
    let what =
        format!("{} is [experts, rows, elements] with the extents of the other operands", c.def.inputs[p.weights].name);
    let Some(s) = require_rank(c, p.weights, 3)? else { return Ok(()) };
    let s = usual(c, m, l, &s, turned);
    c.require_eq(s[0], experts, &what)?;
    c.require_eq(s[1], n, &what)?;
    let (eight, bits) = (c.dims.constant(8), c.dims.constant(m.bits[l]));
    if m.bits[l] == 0 {
        c.require_eq(s[2], k, &what)?;
    } else {
        let (have, need) = (c.dims.mul(s[2], eight), c.dims.mul(k, bits));
        c.require_eq(have, need, &what)?;
    }
    let mut blocks = None;
    if m.block > 0 {
        let size = c.dims.constant(m.block);
        let n = c.dims.floordiv(k, size);
        let whole = c.dims.mul(n, size);
        c.require_eq(whole, k, "blocks fill the rows of weights")?;
        blocks = Some(n);
    }
    let per = blocks.map_or([experts, n].to_vec(), |b| vec![experts, n, b]);
    let mut of_zeros = per.clone();
    if let Some(last) = of_zeros.last_mut() {
        let all = c.dims.mul(*last, bits);
        *last = c.dims.ceildiv(all, eight);
    }
    let rest = [p.scales.map(|i| (i, per)), p.zeros.map(|i| (i, of_zeros)), Some((p.bias, vec![experts, n]))];
    for (i, want) in rest.into_iter().flatten() {
        let Some(s) = require_rank(c, i, want.len())? else { continue };
        let what = format!("{} fits the layer's weights", c.def.inputs[i].name);
        s.iter().zip(want).try_for_each(|(&a, b)| c.require_eq(a, b, &what))?;
    }
    Ok(())
}

fn infer_moe(c: &mut InferCtx) -> Result<()> {
    let p = places(c.def);
    let m = Mixture::of(c.def, c.attrs, c.has(p[2].weights)).map_err(|e| c.error(e.kind(), e.message().to_string()))?;
    let name = c.def.name;
    for l in 0..3 {
        if let Some(i) = p[l].scales.filter(|&i| c.has(p[l].weights) && !c.has(i)) {
            return Err(c.error(ErrorKind::Unsupported, format!("{name}: {} is missing", c.def.inputs[i].name)));
        }
    }
    if let Some(i) = (OF_FLOATS..c.ins.len()).find(|&i| c.has(i)) {
        let text = format!("{name}: {} belongs to weights of floats", c.def.inputs[i].name);
        return Err(c.error(ErrorKind::Unsupported, text));
    }
    let dtype = c.dtype(INPUT)?;
    let Some(s) = c.shape(INPUT) else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let (2..=3, Some(&hidden)) = (s.len(), s.last()) else {
        return Err(c.error(ErrorKind::Shape, format!("{name}: the input has 2 or 3 axes, not {}", s.len())));
    };
    if let (Some(r), Some(w), Some(last)) =
        (require_rank(c, ROUTER, 2)?, require_rank(c, p[0].weights, 3)?, require_rank(c, p[1].weights, 3)?)
    {
        let tokens = c.dims.product(s[..s.len() - 1].iter().copied());
        c.require_eq(r[0], tokens, "the router has a row for each token")?;
        let k = c.dims.constant(i64::try_from(m.routing.k).unwrap_or(i64::MAX));
        c.require_le(k, r[1], "no more experts are chosen than there are");
        if c.dims.prove_le(k, r[1]) == tensor::dims::Proof::No {
            return Err(c.error(ErrorKind::Shape, format!("{name}: k={} is more than all experts", m.routing.k)));
        }
        let known = |s: &Shape| s.iter().map(|&d| c.dims.as_const(d)).collect::<Option<Vec<i64>>>();
        let turned = match (c.dims.as_const(hidden), known(&w), known(&last)) {
            (Some(h), Some(fc1), Some(fc2)) => m.turned(h, &fc1, &fc2),
            _ => false,
        };
        let (w, last) = (usual(c, &m, 0, &w, turned), usual(c, &m, 1, &last, turned));
        // Rows of the first layer: gates, and linear parts where they are fused.
        let (rows, two) = (w[1], c.dims.constant(2));
        let inter = if m.fusion > 0 { c.dims.floordiv(rows, two) } else { rows };
        if m.fusion > 0 {
            let whole = c.dims.mul(inter, two);
            c.require_eq(whole, rows, "fused layers have pairs of rows")?;
        }
        check_layer(c, &m, 0, turned, [r[1], rows, hidden])?;
        check_layer(c, &m, 1, turned, [r[1], last[1], inter])?;
        c.require_eq(last[1], hidden, "experts give rows of the input's length")?;
        if c.has(p[2].weights) {
            check_layer(c, &m, 2, turned, [r[1], inter, hidden])?;
        }
        if let Some(w) = (name == "QMoE").then(|| require_rank(c, ROUTER_WEIGHTS, 2)).transpose()?.flatten() {
            w.iter().zip(&r).try_for_each(|(&a, &b)| c.require_eq(a, b, "router_weights are like router_probs"))?;
        }
    }
    c.set(0, dtype, s);
    Ok(())
}

fn moe_ref(c: &RefCtx) -> Result<Vec<Tensor>> {
    let p = places(c.def);
    let m = Mixture::of(c.def, c.attrs, c.opt(p[2].weights).is_some())?;
    let (x, router) = (c.input(INPUT)?, c.input(ROUTER)?);
    let hidden = x.shape().last().copied().unwrap_or(0);
    let size = |n: i64| usize::try_from(n).unwrap_or(0);
    let extents = |l: usize| -> Result<Vec<i64>> {
        Ok(c.input(p[l].weights)?.shape().iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect())
    };
    let turned = m.turned(i64::try_from(hidden).unwrap_or(i64::MAX), &extents(0)?, &extents(1)?);
    let rows = |l: usize| -> Result<usize> {
        let s = extents(l)?;
        Ok(size(if turned { s[2] * m.per(l) } else { s.get(1).copied().unwrap_or(0) }))
    };
    let layer = |l: usize, k: usize| -> Result<Layer> {
        let packed = Packed {
            codes: c.input(p[l].weights)?,
            scales: p[l].scales.and_then(|i| c.opt(i)),
            zeros: p[l].zeros.and_then(|i| c.opt(i)),
            bits: size(m.bits[l]),
            n: rows(l)?,
            k,
            block: size(m.block),
        };
        Layer::new(&packed, c.opt(p[l].bias))
    };
    let inter = if m.fusion > 0 { rows(0)? / 2 } else { rows(0)? };
    let experts = Experts {
        fc1: layer(0, hidden)?,
        fc2: layer(1, inter)?,
        fc3: c.opt(p[2].weights).map(|_| layer(2, hidden)).transpose()?,
        gate: m.gate,
        fusion: m.fusion,
    };
    let given = if c.def.name == "QMoE" { c.opt(ROUTER_WEIGHTS) } else { None };
    Ok(vec![moe::moe(x, router, given, m.routing, &experts)?])
}

const FLOATS: &[DType] = &[F32, F16, BF16];
const K: AttrDef = attr("k", AttrKind::Int(1));
const NORMALIZE: AttrDef = attr("normalize_routing_weights", AttrKind::Int(0));
const SPARSE: AttrDef = attr("use_sparse_mixer", AttrKind::Int(0));
const ACTIVATION: AttrDef = attr("activation_type", AttrKind::Str("relu"));
const ALPHA: AttrDef = attr("activation_alpha", AttrKind::Float(1.0));
const BETA: AttrDef = attr("activation_beta", AttrKind::Float(0.0));
const FUSION: AttrDef = attr("swiglu_fusion", AttrKind::Int(0));
const LIMIT: AttrDef = attr("swiglu_limit", AttrKind::FloatOpt);
const LIMIT_AFTER: AttrDef = attr("swiglu_limit_after_activation", AttrKind::Int(0));

/// The rows.
pub static ROWS: &[OpDef] = &[
    // output = Σ over the k chosen experts of weight · fc2(activation(fc1(x)) [· fc3(x)])
    OpDef {
        name: "MoE",
        domain: MICROSOFT,
        inputs: &[
            req("input", "T"),
            req("router_probs", "T"),
            req("fc1_experts_weights", "T"),
            opt("fc1_experts_bias", "T"),
            req("fc2_experts_weights", "T"),
            opt("fc2_experts_bias", "T"),
            opt("fc3_experts_weights", "T"),
            opt("fc3_experts_bias", "T"),
        ],
        outputs: &[req("output", "T")],
        attrs: &[K, NORMALIZE, SPARSE, ACTIVATION, ALPHA, BETA, FUSION, LIMIT, LIMIT_AFTER],
        dtypes: &[("T", FLOATS)],
        infer: infer_moe,
        reference: Some(moe_ref),
        lower: &[Expand(expand_moe)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[5,6];[5,3];[3,4,6];_;[3,6,4]",
            "[2,3,6];[6,3];[3,4,6];[3,4];[3,6,4];[3,6] k=2 normalize_routing_weights=1 activation_type=gelu",
            "[5,6];[5,3];[3,4,6];[3,4];[3,6,4];_;[3,4,6];[3,4] k=2 activation_type=silu",
            "[5,6];[5,3];[3,8,6];[3,8];[3,6,4];[3,6] activation_type=swiglu swiglu_fusion=1 activation_alpha=1.702 activation_beta=1 swiglu_limit=0.7",
            "[5,6];[5,3];[3,8,6];_;[3,6,4] k=3 activation_type=swiglu swiglu_fusion=2 swiglu_limit=0.7 swiglu_limit_after_activation=1",
            "[5,6];[5,3];[3,4,6];_;[3,6,4];_;[3,4,6] k=2 activation_type=swiglu",
            "[5,6];[5,3];[3,8,6];_;[3,6,4] activation_type=geglu swiglu_fusion=2",
            "[5,6];[5,4]{1,1.005,0.3,1.01,-2,0.99,2,1.98};[4,4,6];_;[4,6,4] k=2 use_sparse_mixer=1 activation_type=identity",
            "[5,6];[5,3];[3,4,6];_;[3,6,4] activation_type=relu2",
            "f32[5,6];[5,3];f32[3,6,4];[3,4];f32[3,4,6];[3,6];f32[3,6,4] k=2 activation_type=silu",
            "f32[5,6];[5,3];f32[3,6,12];_;f32[3,6,6] activation_type=swiglu swiglu_fusion=1",
            "[0,6];[0,3];[3,4,6];_;[3,6,4] k=2",
        ],
        ..ROW
    },
    // The same with packed weights: (code - zero point) · scale
    OpDef {
        name: "QMoE",
        domain: MICROSOFT,
        inputs: &[
            req("input", "T"),
            req("router_probs", "T"),
            req("fc1_experts_weights", "T1"),
            opt("fc1_scales", "T2"),
            opt("fc1_experts_bias", "T"),
            req("fc2_experts_weights", "T1"),
            opt("fc2_scales", "T2"),
            opt("fc2_experts_bias", "T"),
            opt("fc3_experts_weights", "T1"),
            opt("fc3_scales", "T2"),
            opt("fc3_experts_bias", "T"),
            opt("fc1_zero_points", "T1"),
            opt("fc2_zero_points", "T1"),
            opt("fc3_zero_points", "T1"),
            opt("router_weights", "T"),
            opt("fc1_global_scale", "T4"),
            opt("fc2_global_scale", "T4"),
            opt("fc1_act_scale", "T4"),
            opt("fc2_act_scale", "T4"),
            opt("fc1_act_block_scale", "T2"),
            opt("fc2_act_block_scale", "T2"),
        ],
        outputs: &[req("output", "T")],
        attrs: &[
            K,
            NORMALIZE,
            SPARSE,
            ACTIVATION,
            ALPHA,
            BETA,
            FUSION,
            LIMIT,
            LIMIT_AFTER,
            attr("expert_weight_bits", AttrKind::Int(4)),
            attr("fc1_expert_weight_bits", AttrKind::IntOpt),
            attr("fc2_expert_weight_bits", AttrKind::IntOpt),
            attr("fc3_expert_weight_bits", AttrKind::IntOpt),
            attr("block_size", AttrKind::IntOpt),
            attr("quant_type", AttrKind::Str("int")),
            attr("weights_prepacked", AttrKind::Int(-1)),
            attr("accuracy_level", AttrKind::Int(0)),
        ],
        dtypes: &[("T", FLOATS), ("T1", &[U8]), ("T2", FLOATS), ("T4", &[F32])],
        infer: infer_moe,
        reference: Some(moe_ref),
        lower: &[Expand(expand_moe)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[5,8];[5,3];u8[3,4,4]{17,250,3,99,201};[3,4];[3,4];u8[3,8,2]{201,64,158};[3,8];[3,8] k=2",
            "[2,3,16];[6,3];u8[3,32,16]{17,250,3};[3,32,1];_;u8[3,16,16]{201,64,158,3,120};[3,16,1];_;_;_;_;u8[3,32,1]{130};u8[3,16,1]{9,77} k=2 expert_weight_bits=8 block_size=16 normalize_routing_weights=1 activation_type=swiglu swiglu_fusion=1 swiglu_limit=7",
            "[5,8];[5,3];u8[3,4,4]{17,250,3,99,201};[3,4];_;u8[3,8,2]{201,64,158};[3,8];_;u8[3,4,4]{9,1,240,77,31};[3,4];_;u8[3,2]{130,9,77};u8[3,4]{31,8};u8[3,2]{57,120};[5,3] k=2 activation_type=silu normalize_routing_weights=1",
            "[2,32];[2,3];u8[3,64,12]{17,250,3,99,201};[3,64,1];_;u8[3,32,16]{201,64,158};[3,32,1] activation_type=swiglu swiglu_fusion=1 block_size=32 fc1_expert_weight_bits=3 weights_prepacked=0",
            "f32[5,8];[5,3];u8[3,8,2]{17,250,3,99,201};[3,4];_;u8[3,4,4]{201,64,158};[3,8] k=2",
            "[2,8];[2,3];u8[3,4,2]{17,250,3,99,201};[3,4];_;u8[3,8,1]{201,64,158};[3,8];_;_;_;_;u8[3,1]{130,9,77};u8[3,2]{31,8} expert_weight_bits=2 activation_type=gelu",
        ],
        ..ROW
    },
];
