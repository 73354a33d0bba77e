//! Products with quantized weights.

use crate::pattern::Match;
use crate::rule;
use crate::rule::{Cx, Rule, Skip, miss};
use crate::rules::matmul::is_plain;
use egg::Id;
use ir::attrs::Attr;
use ir::consts::{Const, ConstData, ConstId};
use tensor::{DType, Tensor};

/// The table.
pub const RULES: &[Rule] = &[
    // a·w + c with w = (codes - zero)·scale: weights are widened where they are read, and not rounded to the element type of a
    rule!("matmul-quantized", Reassoc, idiom [
              "(hip:FusedMatMul@p ?a (DequantizeLinear@d ?w ?s ..) ?c _)",
          ] => code quantized;
          "a:f32[m,40] w:u4[40,n]!c s:f32[3,n]!c c: @d.axis=0 @d.block_size=16 @d/2:u4[3,n]!c",
          "a:f32[p,m,48] w:i4[n,48]!c s:f32[n,1]!c c:f32[n] @p.transB=1 @d.axis=-1 @d.block_size=48",
          "a:f32[m,64] w:u4[n,64]!c s:f32[n,2]!c c:f32[1,n] @p.transB=1 @d.axis=1 @d.block_size=32",
          "a:f32[m,96] w:i2[96,n]!c s:f32[2,n]!c c: @d.axis=0 @d.block_size=48",
          "a:f32[m,24] w:i8[24,n]!c s:f32[n]!c c: @d.axis=1 @d/2:i8[n]!c",
          "a:f32[m,3] w:u8[n,3]!c s:f32[]=0.25 c: @p.transB=1 @d/2:u8[]=3",
          "a:f32[m,32] w:u8[32,n]!c s:f32[n]!c c: @d.axis=1",
          "a:f16[m,32] w:i4[n,32]!c s:f16[n,2]!c c: @p.transB=1 @d.axis=1 @d.block_size=16"),
];

/// Blocks are no longer than this where the weights do not say how long they are.
const BLOCK: usize = 256;

/// Weights as a matrix of `n` columns of `k` elements each.
struct Weights {
    n: usize,
    k: usize,
    /// Whether a column lies in a row of the tensor.
    rows: bool,
    bits: usize,
    signed: bool,
}

/// What has one scale.
#[derive(Clone, Copy)]
enum Grain {
    All,
    Column,
    Group(usize),
}

impl Weights {
    /// Where element `j` of column `i` is, in a tensor of `k` elements a column.
    fn at(&self, i: usize, j: usize, k: usize) -> usize {
        if self.rows { i * k + j } else { j * self.n + i }
    }
    /// Where the scale of a block that starts at element `j` of column `i` is.
    fn scale_at(&self, grain: Grain, i: usize, j: usize) -> usize {
        match grain {
            Grain::All => 0,
            Grain::Column => i,
            Grain::Group(size) => self.at(i, j / size, self.k.div_ceil(size)),
        }
    }
    /// Elements of a block, all of one scale: a power of two from 16 on.
    fn block(&self, grain: Grain) -> Option<usize> {
        let two = |n: usize| 1 << n.trailing_zeros();
        match grain {
            Grain::Group(size) if size < self.k => Some(two(size)).filter(|&b| b >= 16),
            _ => Some(two(self.k).clamp(16, BLOCK)),
        }
    }
    /// The codes without sign, each column from a byte on, in whole blocks.
    fn packed(&self, c: &Const, block: usize) -> Option<Const> {
        let (bits, row) = (self.bits, self.k.div_ceil(block) * block * self.bits / 8);
        let shape = [self.n, self.k.div_ceil(block), block * bits / 8].into_iter().collect();
        if self.rows && !self.signed && self.k.is_multiple_of(block) && !matches!(c.data, ConstData::Splat(_)) {
            // The very bytes.
            return Some(Const { dtype: DType::U8, shape, data: c.data.clone(), name: c.name.clone() });
        }
        let t = c.read().ok()?;
        let (from, mask, flip) = (t.bytes(), 0xff >> (8 - bits), u8::from(self.signed) << (bits - 1));
        let mut out = vec![0u8; self.n.checked_mul(row)?];
        // A few columns at a time, so that reads along the other axis stay in cache.
        for first in (0..self.n).step_by(64) {
            for j in 0..self.k {
                for i in first..self.n.min(first + 64) {
                    let bit = self.at(i, j, self.k) * bits;
                    let code = (from[bit / 8] >> (bit % 8) & mask) ^ flip;
                    out[i * row + j * bits / 8] |= code << (j * bits % 8);
                }
            }
        }
        Some(Const { dtype: DType::U8, shape, data: ConstData::Bytes(out.into()), name: c.name.clone() })
    }
    /// The scale of each block of each column.
    fn scales(&self, c: &Const, grain: Grain, block: usize) -> Option<Const> {
        let t = c.read().ok()?;
        let size = t.dtype().size()?;
        let blocks = self.k.div_ceil(block);
        let places = (0..self.n).flat_map(|i| (0..blocks).map(move |j| self.scale_at(grain, i, j * block)));
        let bytes: Vec<u8> = places.flat_map(|p| t.bytes()[p * size..(p + 1) * size].iter().copied()).collect();
        let t = Tensor::new(t.dtype(), &[self.n, blocks], bytes.into()).ok()?;
        Some(Const::from_tensor(c.name.clone(), &t))
    }
    /// The zero point of each block of each column, packed; none without a tensor.
    fn zeros(&self, c: Option<&Const>, grain: Grain, block: usize) -> Option<Const> {
        let values = match c {
            Some(c) => c.read().ok()?.to_i64_vec(),
            None => Vec::new(),
        };
        let (bits, blocks) = (self.bits, self.k.div_ceil(block));
        let row = (blocks * bits).div_ceil(8);
        let middle = if self.signed { 1i64 << (bits - 1) } else { 0 };
        let mut out = vec![0u8; self.n * row];
        for i in 0..self.n {
            for j in 0..blocks {
                let v = values.get(self.scale_at(grain, i, j * block)).copied().unwrap_or(0) + middle;
                out[i * row + j * bits / 8] |= u8::try_from(v).ok()? << (j * bits % 8);
            }
        }
        let name = c.map_or_else(String::new, |c| c.name.clone());
        Some(Const {
            dtype: DType::U8,
            shape: [self.n, row].into_iter().collect(),
            data: ConstData::Bytes(out.into()),
            name,
        })
    }
}

fn quantized(cx: &mut Cx<'_>, m: &Match) -> Result<Id, Skip> {
    let (p, d, a, w, s, c) = (m.node("p").clone(), m.node("d").clone(), m.v("a"), m.v("w"), m.v("s"), m.v("c"));
    if !is_plain(cx, &p) || cx.attr_float(&p, "alpha") != Some(1.0) || cx.attr_int(&p, "transA") != Some(0) {
        return Err(Skip::No);
    }
    let (Some(dtype), Some(of_w)) = (cx.dtype(a), cx.dtype(w)) else { return Err(Skip::No) };
    if !matches!(dtype, DType::F32 | DType::F16) || cx.dtype(s) != Some(dtype) || cx.dtype(p.kids[1]) != Some(dtype) {
        return miss(format!("no kernel computes {dtype} with weights whose scales are of another type"));
    }
    let (DType::I2 | DType::U2 | DType::I4 | DType::U4 | DType::I8 | DType::U8) = of_w else {
        return miss(format!("no kernel has weights of {of_w}"));
    };
    let z = cx.kid(&d, 2);
    let konst = |cx: &Cx<'_>, id: Id| cx.data(id).konst;
    let (Some(of_codes), Some(of_scales)) = (konst(cx, w), konst(cx, s)) else {
        return miss("the weights or their scales are computed");
    };
    let of_zeros = z.map(|z| konst(cx, z).ok_or(Skip::Miss("the zero points are computed".into()))).transpose()?;
    let (codes, scale) = (&cx.eg.analysis.consts[of_codes], &cx.eg.analysis.consts[of_scales]);
    let &[outer, inner] = codes.shape.as_slice() else { return miss("the weights are no matrix") };
    let rows = cx.attr_int(&p, "transB") == Some(1);
    let (n, k) = if rows { (outer, inner) } else { (inner, outer) };
    if n == 0 || k == 0 {
        return Err(Skip::No);
    }
    let axis = cx.attr_int(&d, "axis").unwrap_or(1);
    let along_k = (axis.rem_euclid(2) == 1) == rows;
    let size = cx.attr_int(&d, "block_size").unwrap_or(0);
    let grain = match (scale.n_elems(), scale.shape.len(), usize::try_from(size)) {
        (1, ..) => Grain::All,
        (_, 2, Ok(size @ 1..)) if along_k => Grain::Group(size),
        (_, 1, Ok(0)) if !along_k => Grain::Column,
        _ => return miss("the scales do not run along the columns"),
    };
    let weights = Weights { n, k, rows, bits: of_w.bits(), signed: of_w.is_signed() };
    let Some(block) = weights.block(grain) else { return miss(format!("blocks of {size} are not made of 16")) };
    let bias = bias(cx, c, n, dtype)?;
    let how = [n, k, usize::from(rows), size.max(0) as usize, axis.rem_euclid(2) as usize, block];
    let lost = || Skip::Miss("the weights cannot be read".into());
    let f = &mut cx.eg.analysis;
    let b = f.derived(("codes", of_codes, how), |c| weights.packed(&c[of_codes], block)).ok_or_else(lost)?;
    let scales = f.derived(("scales", of_scales, how), |c| weights.scales(&c[of_scales], grain, block));
    let scales = scales.ok_or_else(lost)?;
    // Without zero points it is the middle; codes without sign have 0 there.
    let from: ConstId = of_zeros.unwrap_or(of_codes);
    let zeros = match of_zeros {
        None if weights.signed => None,
        z => {
            let make = |c: &tensor::PrimaryMap<ConstId, Const>| weights.zeros(z.map(|z| &c[z]), grain, block);
            Some(f.derived(("zeros", from, how), make).ok_or_else(lost)?)
        }
    };
    let (b, scales) = (cx.const_id(b), cx.const_id(scales));
    let (zeros, none) = (zeros.map(|z| cx.const_id(z)), cx.none());
    let int = |n: usize| Attr::Int(n as i64);
    let attrs = [("K", int(k)), ("N", int(n)), ("bits", int(weights.bits)), ("block_size", int(block))];
    cx.add("com.microsoft:MatMulNBits", &attrs, &[a, b, scales, zeros.unwrap_or(none), none, bias])
}

/// The bias as a list of `n` elements, if there is one.
fn bias(cx: &mut Cx<'_>, c: Id, n: usize, dtype: DType) -> Result<Id, Skip> {
    if cx.absent(c) {
        return Ok(c);
    }
    let n = n as i64;
    match cx.static_shape(c) {
        Some(s) if s.iter().product::<i64>() == n && s.last() == Some(&n) && cx.dtype(c) == Some(dtype) => {
            let spec = cx.ints_const(&[n]);
            if s.len() == 1 { Ok(c) } else { cx.add("Reshape", &[], &[c, spec]) }
        }
        _ => miss("the bias is not one for each column"),
    }
}
