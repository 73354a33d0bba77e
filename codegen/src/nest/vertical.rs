//! The vertical order: where elements lie contiguous along the last outer axis and not along `inner`, the points of a block run side by
//! side and each accumulates in its own element of a small array.

use crate::emit::I;
use crate::nest::loops::{Kernel, ROW};
use crate::nest::parallel;
use crate::nest::reduce::{combine, identity, is_arg};
use crate::nest::terms::Level;
use crate::nest::values::Reduced;
use crate::scalar::{Val, Why, value_type};
use inkwell::IntPredicate as IP;
use inkwell::basic_block::BasicBlock;
use inkwell::types::BasicType;
use inkwell::values::{MetadataValue, PointerValue};
use ir::nest::Phase;
use tensor::DType;

/// Outer points whose reductions run side by side.
const BLOCK: u32 = 128;

/// The array of one reduction: values, and positions for the arg kinds.
pub(super) type Accumulator<'c> = (PointerValue<'c>, Option<PointerValue<'c>>);

impl<'c> Kernel<'_, '_, 'c> {
    /// Makes the arrays; the builder stands in the entry block.
    pub fn accumulators(&mut self) {
        let e = self.v.e;
        for p in &self.v.nest.phases {
            let Phase::Reduce(rs) = p else { continue };
            for r in rs {
                let value = e.alloca(value_type(e, self.v.nest.expr_dtype(r.value)).array_type(BLOCK), "acc");
                let at = is_arg(r.combiner).then(|| e.alloca(e.i64().array_type(BLOCK), "at"));
                self.v.reduced[self.arrays.len()] = Some(Reduced::Array(at.unwrap_or(value)));
                self.arrays.push((value, at));
            }
        }
    }

    /// The vertical order.
    pub fn blocks(&mut self, exit: BasicBlock<'c>) -> Why<()> {
        let e = self.v.e;
        let nest = self.v.nest;
        let Some((last, fixed)) = nest.outer.split_last() else { return Err("no outer axis".into()) };
        let column = fixed.len();
        let some = self.some_inner()?;
        self.each_row(*last, fixed, exit, &mut |k, from, to| {
            let (pre, head) = (e.here(), e.block("block"));
            e.br(head);
            e.at(head);
            let start = e.phi(e.i64(), "block");
            let sv = start.as_basic_value().into_int_value();
            let next = e.nsw_add(sv, e.c64(i64::from(BLOCK)));
            let stop = e.isel(e.icmp(IP::SLT, next, to), next, to);
            k.v.block_start = Some(sv);
            let mut first = 0;
            for phase in &nest.phases {
                match phase {
                    Phase::Reduce(rs) => {
                        k.v.begin_phase(rs.iter().map(|r| r.value).collect(), std::iter::empty());
                        k.columns(column, sv, stop, Some(parallel::distinct_node(e)), &mut |k| {
                            for (i, r) in rs.iter().enumerate() {
                                let start = identity(e, r.combiner, nest.expr_dtype(r.value))?;
                                k.put_array(first + i, &start)?;
                            }
                            Ok(())
                        })?;
                        k.guarded(some, vec![], |k| {
                            k.inner_loops(0, vec![], None, &mut |k, _| {
                                k.columns(column, sv, stop, Some(parallel::distinct_node(e)), &mut |k| {
                                    k.v.hoist(Level::MAX)?;
                                    for (i, r) in rs.iter().enumerate() {
                                        let d = nest.expr_dtype(r.value);
                                        let acc = k.get_array(first + i, d)?;
                                        let v = combine(e, r.combiner, d, true, &acc, k.v.value(r.value)?, || {
                                            k.v.position()
                                        })?;
                                        k.put_array(first + i, &v)?;
                                    }
                                    Ok(())
                                })?;
                                Ok(vec![])
                            })
                        })?;
                        first += rs.len();
                    }
                    Phase::Store { over_inner, stores } => {
                        k.v.begin_phase(stores.iter().map(|s| s.1).collect(), stores.iter().map(|s| &s.0));
                        let stores: Vec<_> = stores.iter().collect();
                        let group = k.independent(&stores, k.shape.point(nest));
                        if *over_inner {
                            k.guarded(some, vec![], |k| {
                                k.inner_loops(0, vec![], None, &mut |k, _| {
                                    k.columns(column, sv, stop, group, &mut |k| {
                                        k.v.hoist(Level::MAX)?;
                                        k.v.store_all(&stores)
                                    })?;
                                    Ok(vec![])
                                })
                            })?;
                        } else {
                            k.v.hoist(ROW)?;
                            k.columns(column, sv, stop, group, &mut |k| {
                                k.v.hoist(Level::MAX)?;
                                k.v.store_all(&stores)
                            })?;
                        }
                    }
                }
            }
            let (back, after) = (e.here(), e.block("blocks_done"));
            e.cond_br(e.icmp(IP::SLT, next, to), head, after);
            start.add_incoming(&[(&from, pre), (&next, back)]);
            e.at(after);
            Ok(())
        })
    }
    /// A vector loop over the points of a block.
    fn columns(
        &mut self,
        axis: usize,
        from: I<'c>,
        to: I<'c>,
        group: Option<MetadataValue<'c>>,
        body: &mut dyn FnMut(&mut Self) -> Why<()>,
    ) -> Why<()> {
        self.looped((from, to), self.shape.point(self.v.nest), &[], group, |k, i, _| {
            k.v.outer[axis] = Some(i);
            body(k)?;
            Ok(vec![])
        })?;
        Ok(())
    }
    fn get_array(&self, i: usize, d: DType) -> Why<Vec<Val<'c>>> {
        let (value, at) = self.arrays[i];
        let mut out = vec![self.v.read_array(value, d)?];
        if let Some(p) = at {
            out.push(self.v.read_array(p, DType::I64)?);
        }
        Ok(out)
    }
    fn put_array(&self, i: usize, v: &[Val<'c>]) -> Why<()> {
        let (value, at) = self.arrays[i];
        let j = self.v.in_block()?;
        for (p, v) in [Some(value), at].into_iter().flatten().zip(v) {
            let s = self.v.e.store(self.v.e.gep(v.get_type(), p, j), *v);
            self.v.mark(Some(s));
        }
        Ok(())
    }
}
