//! Reductions: what they start from and how they take one more value.

use crate::emit::{Em, I};
use crate::scalar::{self, Val, Why, value_type};
use inkwell::FloatPredicate as FP;
use ir::nest::{BinOp, Combiner};
use tensor::DType;

/// Whether the reduction gives a position and carries the value beside it.
pub(crate) fn is_arg(c: Combiner) -> bool {
    matches!(c, Combiner::ArgMax | Combiner::ArgMin)
}

/// What a reduction starts from (value, and position for the arg kinds).
pub(crate) fn identity<'c>(e: &Em<'_, 'c>, c: Combiner, d: DType) -> Why<Vec<Val<'c>>> {
    let t = value_type(e, d);
    let extreme = |greatest: bool| -> Val<'c> {
        if d.is_float() {
            return t.into_float_type().const_float(if greatest { f64::INFINITY } else { f64::NEG_INFINITY }).into();
        }
        let it = t.into_int_type();
        let ones = it.const_all_ones();
        let top = e.shl(it.const_int(1, false), it.const_int(u64::from(it.get_bit_width() - 1), false));
        match (d.is_signed(), greatest) {
            (true, true) => e.xor(ones, top),
            (true, false) => top,
            (false, true) => ones,
            (false, false) => it.const_zero(),
        }
        .into()
    };
    let number = |v: f64| -> Val<'c> {
        if d.is_float() {
            t.into_float_type().const_float(v).into()
        } else {
            t.into_int_type().const_int(u64::from(v != 0.0), false).into()
        }
    };
    Ok(match c {
        Combiner::Sum | Combiner::Prod if d == DType::Bool => return Err(format!("{c:?} of bools is not defined")),
        Combiner::Sum => vec![number(0.0)],
        Combiner::Prod => vec![number(1.0)],
        Combiner::Max => vec![extreme(false)],
        Combiner::Min => vec![extreme(true)],
        Combiner::ArgMax => vec![extreme(false), e.c64(0).into()],
        Combiner::ArgMin => vec![extreme(true), e.c64(0).into()],
        other => return Err(format!("the reduction {other:?} is not known to this code generator")),
    })
}

/// What `acc` becomes with one more value. `in_order` keeps the order of a float sum; `at` gives the position of `v`.
pub(crate) fn combine<'c>(
    e: &Em<'_, 'c>,
    c: Combiner,
    d: DType,
    in_order: bool,
    acc: &[Val<'c>],
    v: Val<'c>,
    at: impl FnOnce() -> Why<I<'c>>,
) -> Why<Vec<Val<'c>>> {
    Ok(match c {
        Combiner::Sum if d.is_float() && in_order => {
            vec![e.fadd(acc[0].into_float_value(), v.into_float_value()).into()]
        }
        Combiner::Sum if d.is_float() => {
            vec![e.fadd_reassoc(acc[0].into_float_value(), v.into_float_value()).into()]
        }
        Combiner::Sum => vec![scalar::binary(e, BinOp::Add, acc[0], v, d)?],
        Combiner::Prod => vec![scalar::binary(e, BinOp::Mul, acc[0], v, d)?],
        Combiner::Max if d == DType::Bool => vec![scalar::binary(e, BinOp::Or, acc[0], v, d)?],
        Combiner::Min if d == DType::Bool => vec![scalar::binary(e, BinOp::And, acc[0], v, d)?],
        Combiner::Max => vec![scalar::binary(e, BinOp::Max, acc[0], v, d)?],
        Combiner::Min => vec![scalar::binary(e, BinOp::Min, acc[0], v, d)?],
        _ => {
            let max = c == Combiner::ArgMax;
            let mut better = scalar::binary(e, if max { BinOp::Gt } else { BinOp::Lt }, v, acc[0], d)?.into_int_value();
            if d.is_float() {
                let (new, old) = (v.into_float_value(), acc[0].into_float_value());
                better = e.or(better, e.and(e.is_nan(new), e.fcmp(FP::ORD, old, old)));
            }
            let at = at()?;
            vec![e.sel(better, v, acc[0]), e.isel(better, at, acc[1].into_int_value()).into()]
        }
    })
}
