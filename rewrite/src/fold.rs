//! Constant folding through the rows' reference functions, bounded in size.

use crate::facts::{Data, Facts};
use crate::lang::{ENode, Head};
use ir::Type;
use ir::consts::{Const, ConstData, ConstId};
use ir::op::RefCtx;
use smallvec::SmallVec;
use tensor::{DType, Tensor};

/// A folded result may always have this many bytes; a larger one only when it is not larger than its largest operand.
pub const FOLD_BYTES: usize = 1 << 20;

/// The constant that `node` is, when its operands are constants and the result is small enough.
pub fn fold(f: &mut Facts, node: &ENode, kids: &[Data], absent: &[bool], d: &Data) -> Option<ConstId> {
    let Head::Op { op, attrs, n_outs: 1, unique: 0 } = node.head else { return None };
    let registry = f.registry.clone();
    let def = &registry[op];
    let out = static_type(f, &d.ty);
    // A result whose elements are all known is that constant, whatever its operands are (Shape of a static value).
    if let (Some(v), Some((dtype @ (DType::I64 | DType::I32), shape))) = (&d.values, &out) {
        let v: Option<Vec<i64>> = v.iter().map(|&x| f.dims.as_const(x)).collect();
        if let Some(v) = v.filter(|v| v.len() == shape.iter().product::<usize>() && shape.len() <= 1) {
            return Some(f.constant(Const::from_tensor("", &Tensor::from_i64_as(*dtype, shape, &v))));
        }
    }
    if def.traits.random || def.traits.regions {
        return None;
    }
    let (dtype, shape) = out?;
    let consts: Vec<Option<ConstId>> =
        kids.iter().zip(absent).map(|(k, &no)| if no { None } else { k.konst }).collect();
    if consts.iter().zip(absent).any(|(c, &no)| c.is_none() && !no) || dtype == DType::String {
        return None;
    }
    let list = f.attrs[attrs].clone();
    let run = |f: &Facts, ins: &[Option<Tensor>]| {
        let cx = RefCtx { def, attrs: &list, consts: &f.consts, ins, n_outs: 1 };
        def.reference?(&cx).ok().and_then(|r| r.into_iter().next())
    };
    let splat = |f: &mut Facts, one: &Tensor| {
        let data = ConstData::Splat(one.bytes().iter().copied().collect());
        f.constant(Const { dtype, shape: shape.iter().copied().collect(), data, name: String::new() })
    };
    // Extents whose product overflows cannot be a constant; planning refuses them.
    let n_elems = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let size = dtype.size_bytes(n_elems)?;
    if n_elems > 1 && dtype.size().is_some() {
        // Splats stay splats: nothing of the full size is made.
        let is_splat = |c: &Option<ConstId>| c.is_none_or(|c| f.consts[c].splat_f64().is_some());
        let scalar = |c: ConstId| -> Option<Tensor> {
            let c = &f.consts[c];
            Const { shape: SmallVec::new(), data: c.data.clone(), ..c.clone() }.read().ok().filter(|t| t.n_elems() == 1)
        };
        if def.is_elementwise() && consts.iter().all(is_splat) {
            let ins: Vec<Option<Tensor>> = consts.iter().map(|c| c.and_then(scalar)).collect();
            if ins.iter().zip(&consts).all(|(t, c)| t.is_some() == c.is_some())
                && let Some(one) = run(f, &ins).filter(|t| t.n_elems() == 1 && t.dtype() == dtype)
            {
                return Some(splat(f, &one));
            }
        }
        if def.traits.moves
            && let Some(c) = consts.first().copied().flatten()
            && matches!(f.consts[c].data, ConstData::Splat(_))
            && let Some(one) = scalar(c)
        {
            return Some(splat(f, &one));
        }
        if def.name == "ConstantOfShape" {
            let one = match def.slot("value").and_then(|s| list.tensor(s)) {
                Some(c) => f.consts[c].read().ok()?,
                None => Tensor::from_f32(&[], &[0.0]),
            };
            return Some(splat(f, &one));
        }
    }
    let largest = consts.iter().flatten().map(|&c| f.consts[c].size_bytes()).max().unwrap_or(0);
    if size > FOLD_BYTES.max(largest) || largest > (1 << 31) {
        return None;
    }
    let ins: Vec<Option<Tensor>> = consts.iter().map(|c| c.and_then(|c| f.consts[c].read().ok())).collect();
    if ins.iter().zip(&consts).any(|(t, c)| t.is_some() != c.is_some()) {
        return None;
    }
    let t = run(f, &ins).filter(|t| t.dtype() == dtype && t.shape() == shape.as_slice())?;
    Some(f.constant(Const::from_tensor("", &t)))
}

/// Element type and extents when all are known.
pub fn static_type(f: &Facts, ty: &Type) -> Option<(DType, Vec<usize>)> {
    let t = ty.as_tensor()?;
    let shape: Option<Vec<usize>> =
        t.shape.as_ref()?.iter().map(|&d| f.dims.as_const(d).and_then(|c| usize::try_from(c).ok())).collect();
    Some((t.dtype, shape?))
}
