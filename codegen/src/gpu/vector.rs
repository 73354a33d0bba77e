//! Loads and stores of several neighboring elements: words of up to 16 bytes, from which elements are cut and of which they are
//! composed. The address is a multiple of the access's size or of 16 bytes.

use crate::emit::{Em, I};
use crate::scalar::{self, Val, Why};
use inkwell::types::BasicTypeEnum;
use inkwell::values::{BasicValue, InstructionValue, PointerValue, VectorValue};
use kernels::gpu::Platform;
use tensor::DType;

fn aligned(i: Option<InstructionValue<'_>>, bytes: u32) {
    if let Some(i) = i {
        i.set_alignment(bytes).expect("a power of two");
    }
}

/// Bytes of each access and its type: whole words, two bytes where there is less than one.
fn pieces<'c>(e: &Em<'_, 'c>, size: u32, width: u32) -> (u32, BasicTypeEnum<'c>) {
    let bytes = (size * width).min(16);
    let t: BasicTypeEnum<'c> = match (size, bytes) {
        (8, 8) => e.i64().into(),
        (8, _) => e.i64().vec_type(bytes / 8).into(),
        (_, 2) => e.i16().into(),
        (_, 4) => e.i32().into(),
        _ => e.i32().vec_type(bytes / 4).into(),
    };
    (bytes, t)
}

fn part<'c>(e: &Em<'_, 'c>, v: VectorValue<'c>, i: u32) -> I<'c> {
    e.b.build_extract_element(v, e.c32(i), "").expect("an integer vector").into_int_value()
}

/// Loads `width` elements from `p` on, as they lie in memory.
pub(crate) fn load<'c>(e: &Em<'_, 'c>, p: PointerValue<'c>, d: DType, width: u32) -> Why<Vec<Val<'c>>> {
    let size = u32::try_from(d.size().unwrap_or(1)).unwrap_or(1);
    let (bytes, t) = pieces(e, size, width);
    let memory = scalar::memory_type(e, d)?;
    let mut out = Vec::new();
    for k in 0..size * width / bytes {
        let v = e.load(t, e.gep(t, p, e.c64(i64::from(k))));
        aligned(v.as_instruction_value(), bytes);
        let word_bits = if size == 8 { 64 } else { (8 * bytes).min(32) };
        let words: Vec<I<'c>> = match v {
            Val::VectorValue(v) => (0..v.get_type().get_size()).map(|i| part(e, v, i)).collect(),
            _ => vec![v.into_int_value()],
        };
        for w in words {
            for i in 0..word_bits / (8 * size) {
                let shift = i64::from(8 * size * i);
                let bits = if shift == 0 { w } else { e.lshr(w, e.ik(w, shift)) };
                let int = match size {
                    1 => e.trunc(bits, e.i8()),
                    2 if word_bits > 16 => e.trunc(bits, e.i16()),
                    _ => bits,
                };
                out.push(if memory.is_float_type() { e.from_bits(int).into() } else { int.into() });
            }
        }
    }
    Ok(out)
}

/// Two f32 as a word of f16, the first in its low half: one instruction where there is one.
fn pair_of_halves<'c>(e: &Em<'_, 'c>, low: Val<'c>, high: Val<'c>) -> I<'c> {
    let args = [high.into_float_value().into(), low.into_float_value().into()];
    let v = e.intr("llvm.nvvm.ff2f16x2.rn", &[], &args);
    e.b.build_bit_cast(v, e.i32(), "").expect("32 bits each").into_int_value()
}

/// Stores values of compute type `from` as elements of `d` from `p` on.
pub(crate) fn store<'c>(e: &Em<'_, 'c>, p: PointerValue<'c>, from: DType, d: DType, values: &[Val<'c>]) {
    if (from, d, e.caps.gpu) == (DType::F32, DType::F16, Some(Platform::Cuda)) && values.len().is_multiple_of(2) {
        let words: Vec<Val<'c>> = values.chunks(2).map(|v| pair_of_halves(e, v[0], v[1]).into()).collect();
        return store_elements(e, p, DType::U32, &words);
    }
    let elements: Vec<Val<'c>> = values.iter().map(|v| scalar::to_memory(e, *v, from, d)).collect();
    store_elements(e, p, d, &elements);
}

/// Stores elements as they lie in memory.
fn store_elements<'c>(e: &Em<'_, 'c>, p: PointerValue<'c>, d: DType, elements: &[Val<'c>]) {
    let size = u32::try_from(d.size().unwrap_or(1)).unwrap_or(1);
    let width = u32::try_from(elements.len()).unwrap_or(0);
    let (bytes, t) = pieces(e, size, width);
    let per_piece = usize::try_from(bytes / size).unwrap_or(1);
    for (k, piece) in (0i64..).zip(elements.chunks(per_piece)) {
        let bits = |v: &Val<'c>| match v {
            Val::FloatValue(x) => e.bits(*x),
            v => v.into_int_value(),
        };
        let word = match t {
            BasicTypeEnum::VectorType(v) => v.get_element_type().into_int_type(),
            t => t.into_int_type(),
        };
        let per_word = usize::try_from(word.get_bit_width() / (8 * size)).unwrap_or(1).max(1);
        let mut words = Vec::new();
        for group in piece.chunks(per_word) {
            let mut w: Option<I<'c>> = None;
            for (i, v) in (0i64..).zip(group) {
                let b = bits(v);
                let b = if b.get_type() == word { b } else { e.zext(b, word) };
                let b = if i == 0 { b } else { e.shl(b, e.ik(b, i * i64::from(8 * size))) };
                w = Some(w.map_or(b, |w| e.or(w, b)));
            }
            words.extend(w);
        }
        let v: Val<'c> = match t {
            BasicTypeEnum::VectorType(t) => {
                let mut v = t.get_undef();
                for (i, w) in (0u32..).zip(&words) {
                    v = e.b.build_insert_element(v, *w, e.c32(i), "").expect("an integer vector");
                }
                v.into()
            }
            _ => words[0].into(),
        };
        aligned(Some(e.store(e.gep(t, p, e.c64(k)), v)), bytes);
    }
}
