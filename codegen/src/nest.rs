//! A loop nest becomes one function of the kernel signature: `i32 name(ptr ctx, ptr args, i64 begin, i64 end)`.
//!
//! Without `inner` the last outer axis is the vector loop, and `begin..end` is cut into rows of it. With `inner` there is one loop over
//! points, and each phase is a loop nest over `inner` whose last axis is the vector loop. Where elements lie contiguous along the last
//! outer axis and not along `inner` (a reduction of columns), the order changes: blocks of outer points, `inner`, points of a block,
//! with the reductions of a block in a small array. The loops are plain scalar loops with what
//! does not vary hoisted in front of them; LLVM's vectoriser widens them. Store loops carry parallel-access metadata: every point
//! touches what is its own, so no run-time overlap check is needed even when a kernel works in place.
//!
//! Results do not depend on `begin..end`: elementwise values are the same in vector bodies and remainders, and the order of a
//! reduction follows from the extents of `inner` alone.

mod loops;
mod parallel;
pub(crate) mod reduce;
pub(crate) mod terms;
pub(crate) mod values;
mod vertical;

use crate::emit::Em;
use inkwell::attributes::AttributeLoc;
use inkwell::module::Linkage;
use inkwell::values::FunctionValue;
use lower::host::{DimSource, KernelDef};
use rustc_hash::FxHashMap;
use tensor::{Diagnostic, Entity, ErrorKind, Result};

/// Checks that the nest of `def` can be emitted: dtypes, operations, references.
///
/// # Errors
/// `Unsupported` with the reason and the model node; `Internal` where the nest refers to what it does not have.
pub fn check(def: &KernelDef, node: Option<&str>) -> Result<()> {
    let refuse = |kind, why: String| {
        let d = Diagnostic::new(kind, format!("kernel {} cannot be generated: {why}", def.name));
        Err(match node {
            Some(n) => d.node(n),
            None => d,
        })
    };
    for (i, op) in def.nest.operands.iter().enumerate() {
        if !ir::nest::is_storable(op.dtype) {
            let what = format!("operand {i} has {} elements, which generated kernels neither load nor store", op.dtype);
            return refuse(ErrorKind::Unsupported, what);
        }
    }
    let n = def.nest.exprs.len();
    for (i, x) in def.nest.exprs.iter().enumerate() {
        if terms::children(x).iter().any(|c| c.index() >= i) {
            return refuse(ErrorKind::Internal, format!("expression e{i} of {n} uses a later one"));
        }
        if let Some(a) = terms::load(x)
            && usize::from(a.operand) >= def.nest.operands.len()
        {
            return refuse(ErrorKind::Internal, format!("expression e{i} loads operand {}", a.operand));
        }
    }
    Ok(())
}

/// Emits the kernel. The function is internal unless `linkage` says otherwise.
///
/// # Errors
/// As [`check`], and `Unsupported` for an operation that its compute type does not have.
pub fn emit<'c>(e: &Em<'_, 'c>, def: &KernelDef, node: Option<&str>, linkage: Linkage) -> Result<FunctionValue<'c>> {
    check(def, node)?;
    let fty = e.i32().fn_type(&[e.ptr().into(), e.ptr().into(), e.i64().into(), e.i64().into()], false);
    // The host program of the same module has declared it.
    let f = e.m.get_function(&def.name).unwrap_or_else(|| e.m.add_function(&def.name, fty, None));
    f.set_linkage(linkage);
    e.attr(f, AttributeLoc::Function, "nounwind");
    e.string_attr(f, "no-builtins", "");
    for a in ["noalias", "readonly", "nocapture"] {
        e.attr(f, AttributeLoc::Param(1), a);
    }
    for (i, name) in ["ctx", "args", "begin", "end"].iter().enumerate() {
        let p = f.get_nth_param(u32::try_from(i).unwrap_or(0)).expect("four parameters");
        match p {
            inkwell::values::BasicValueEnum::PointerValue(v) => v.set_name(name),
            _ => p.into_int_value().set_name(name),
        }
    }
    e.at(e.ctx.append_basic_block(f, "entry"));
    kernel(e, def, f).body().map_err(|why| {
        let d = Diagnostic::new(ErrorKind::Unsupported, format!("kernel {} cannot be generated: {why}", def.name));
        match node {
            Some(n) => d.node(n),
            None => d,
        }
    })?;
    Ok(f)
}

/// The function's arguments as dims and buffers, and the loops chosen for them.
fn kernel<'e, 'a, 'c>(e: &'e Em<'a, 'c>, def: &'e KernelDef, f: FunctionValue<'c>) -> loops::Kernel<'e, 'a, 'c> {
    let nest = &*def.nest;
    let param = |i| f.get_nth_param(i).expect("four parameters");
    let args = param(1).into_pointer_value();
    let bufs = (0i64..).zip(&nest.operands).map(|(i, _)| {
        let p = e.load(e.ptr(), e.gep(e.i64(), args, e.c64(i))).into_pointer_value();
        p.set_name(&format!("buf{i}"));
        p
    });
    let bufs: Vec<_> = bufs.collect();
    let n = i64::try_from(bufs.len()).unwrap_or(0);
    let mut dims = FxHashMap::default();
    for (d, source) in &def.dims {
        let v = match source {
            DimSource::Const(c) => e.c64(*c),
            DimSource::Param(i) => e.load(e.i64(), e.gep(e.i64(), args, e.c64(n + i64::from(*i)))).into_int_value(),
        };
        if matches!(source, DimSource::Param(_)) {
            v.set_name(&d.to_string());
        }
        dims.insert(*d, v);
    }
    let shape = loops::Shape::of(def);
    let v = values::Values::new(e, nest, dims, bufs, shape.order(nest));
    loops::Kernel { v, shape, begin: param(2).into_int_value(), end: param(3).into_int_value(), arrays: Vec::new() }
}
