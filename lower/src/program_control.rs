//! `If` and `Loop` in the host program: functions for regions, merged and carried registers.

use crate::host::*;
use crate::plan::Point;
use crate::plan_live::broken;
use crate::program::Builder;
use ir::hip::{Hip, HipOp};
use ir::{NodeData, RegionId, Value};
use tensor::{Entity, Result};

impl Builder<'_> {
    /// Whether a buffer is used at all; results nobody reads have no place.
    fn is_planned(&self, region: RegionId, v: Value) -> bool {
        self.plan.buffer(region, v).is_some()
    }
    /// Nodes may stand after the last node of a region.
    fn end_of(&self, region: RegionId) -> Point {
        Point { region, pos: self.m.graphs[region].order.len() }
    }
    fn space_of(&self, region: RegionId, v: Value) -> ir::hip::Space {
        self.m.graphs[region].values[v].ty.space
    }

    pub(crate) fn branch(&mut self, at: Point, node: &NodeData<Hip>) -> Result<()> {
        let HipOp::If { dims } = &node.op else { return Ok(()) };
        let region = at.region;
        let n = self.m.graphs[region].order[at.pos];
        let (Some(Some(cond)), [then, els]) = (node.ins.first().copied(), node.regions.as_slice()) else {
            return Err(broken(self.m, region, n, "a branch needs a condition and two regions"));
        };
        self.hoist_operands(at)?;
        let cond = self.readback(at, cond, 0, "condition")?;
        // Results of known size have their place before the branch; the others share a domain reserved in the arm.
        let mut own_domain = None;
        for &v in &node.outs {
            if !self.is_planned(region, v) {
                continue;
            }
            match self.result_domain(region, v, n) {
                Some(d) => own_domain = Some(d),
                None => drop(self.ptr(region, v)?),
            }
        }
        let mut arms = vec![];
        for (body, name) in [(*then, "then"), (*els, "else")] {
            let marks = self.mark();
            self.regs.begin(format!("if_{}_{name}", n.index()));
            let params = self.m.graphs[body].inputs.clone();
            for (&p, &v) in params.iter().zip(&node.ins[1..]) {
                let v = v.ok_or_else(|| broken(self.m, region, n, "a capture is missing"))?;
                let r = self.ptr(region, v)?;
                self.bind(body, p, r);
            }
            self.region(body)?;
            self.before(self.end_of(body))?;
            let mut values = vec![];
            for d in dims {
                let r = self.dim(if name == "then" { d.then } else { d.els })?;
                values.push(r);
            }
            for (d, &r) in dims.iter().zip(&values) {
                self.regs.syms.set(d.sym, r);
            }
            if let Some(d) = own_domain {
                self.reserve(d)?;
                values.push(self.bases.get(&d).unwrap_or(cond));
            }
            let outputs = self.m.graphs[body].outputs.clone();
            for (&out, &v) in node.outs.iter().zip(&outputs) {
                if !self.is_planned(region, out) {
                    continue;
                }
                let (from, to) = (self.ptr(body, v)?, self.ptr(region, out)?);
                self.copy_value(at, (body, v), from, (to, self.space_of(region, out)))?;
            }
            let f = self.regs.end(None);
            self.reset(marks);
            arms.push((f, values));
        }
        let merged: Vec<Reg> = arms[0].1.iter().map(|_| self.regs.fresh()).collect();
        let merges = merged.iter().zip(arms[0].1.iter().zip(&arms[1].1)).map(|(&r, (&a, &b))| (r, a, b)).collect();
        self.regs.push(Stmt::If { cond, then: arms[0].0, els: arms[1].0, merges });
        if let (Some(d), Some(&base)) = (own_domain, merged.last()) {
            self.rebase(d, base);
        }
        for (d, &r) in dims.iter().zip(&merged) {
            self.define(d.sym, r)?;
        }
        if let Some(d) = own_domain {
            self.pick(d)?;
        }
        Ok(())
    }

    pub(crate) fn looped(&mut self, at: Point, node: &NodeData<Hip>) -> Result<()> {
        let HipOp::Loop(l) = &node.op else { return Ok(()) };
        let region = at.region;
        let n = self.m.graphs[region].order[at.pos];
        let [body] = node.regions[..] else {
            return Err(broken(self.m, region, n, "a loop needs one region"));
        };
        let n_carried = l.n_carried as usize;
        self.hoist_operands(at)?;
        let inits: Vec<Value> = node.ins.iter().skip(1).take(n_carried).flatten().copied().collect();
        let outputs = self.m.graphs[body].outputs.clone();
        if inits.len() != n_carried || outputs.len() != n_carried + usize::from(l.cond) {
            return Err(broken(self.m, region, n, "carried values do not fit the loop"));
        }
        let (zero, one) = (self.regs.int(0), self.regs.int(1));
        let trips = l.trips.map(|d| self.dim(d)).transpose()?;
        let start = match (l.cond, node.ins.first().copied().flatten()) {
            (true, Some(c)) => {
                let r = self.readback(at, c, 0, "condition")?;
                self.regs.op(IntOp::Lt, zero, r)
            }
            _ => one,
        };
        let go_init = match trips {
            Some(t) => {
                let more = self.regs.op(IntOp::Lt, zero, t);
                self.regs.op(IntOp::And, start, more)
            }
            None => start,
        };

        // States. Those of a size that changes share a domain that is reserved anew for each value.
        let own_domain = node.outs.iter().find_map(|&v| self.result_domain(region, v, n));
        let dim_inits: Vec<Reg> = l.dims.iter().map(|d| self.dim(d.init)).collect::<Result<_>>()?;
        let mut base_init = None;
        let marks = self.mark();
        for (d, &r) in l.dims.iter().zip(&dim_inits) {
            self.regs.syms.set(d.sym, r);
            d.result.into_iter().for_each(|s| self.regs.syms.set(s, r));
        }
        if let Some(d) = own_domain {
            self.reserve(d)?;
            base_init = self.bases.get(&d);
        }
        for (&state, &v) in node.outs.iter().zip(&inits) {
            let (from, to) = (self.ptr(region, v)?, self.buffer_ptr(region, state)?);
            self.copy_value(at, (region, v), from, (to, self.space_of(region, state)))?;
        }
        self.reset(marks);
        for &state in node.outs.iter().take(n_carried) {
            if self.result_domain(region, state, n).is_none() {
                self.ptr(region, state)?;
            }
        }

        let (go, iter) = (self.regs.fresh(), self.regs.fresh());
        let dim_regs: Vec<Reg> = l.dims.iter().map(|_| self.regs.fresh()).collect();
        let base_reg = base_init.map(|_| self.regs.fresh());

        let marks = self.mark();
        self.regs.begin(format!("loop_{}", n.index()));
        // In the body a state is seen through the parameter; its size is that of this iteration.
        let see_states = self.mark();
        for (d, &r) in l.dims.iter().zip(&dim_regs) {
            d.result.into_iter().for_each(|s| self.regs.syms.set(s, r));
        }
        if let (Some(d), Some(base)) = (own_domain, base_reg) {
            self.rebase(d, base);
            self.pick(d)?;
        }
        let mut state_ptrs = vec![];
        for &state in node.outs.iter().take(n_carried) {
            state_ptrs.push(self.buffer_ptr(region, state)?);
        }
        self.reset(see_states);
        let params = self.m.graphs[body].inputs.clone();
        let captures: Vec<Value> = node.ins.iter().skip(1 + n_carried).flatten().copied().collect();
        for v in captures {
            state_ptrs.push(self.ptr(region, v)?);
        }
        if params.len() != state_ptrs.len() {
            return Err(broken(self.m, region, n, "parameters of the body do not fit the operands"));
        }
        params.iter().zip(&state_ptrs).for_each(|(&p, &r)| self.bind(body, p, r));
        self.define(l.iter, iter)?;
        for (d, &r) in l.dims.iter().zip(&dim_regs) {
            self.define(d.sym, r)?;
        }
        self.region(body)?;
        self.before(self.end_of(body))?;
        // All outputs are complete: conditions and extents first, then the copies.
        let more = if l.cond {
            let ptr = self.ptr(body, outputs[0])?;
            let ty = self.m.graphs[body].values[outputs[0]].ty.clone();
            let debug = self.node(at, "readback condition");
            let reg = self.regs.fresh();
            self.regs.push(Stmt::Readback { reg, ptr, space: ty.space, dtype: ty.dtype, index: 0, node: debug });
            self.regs.op(IntOp::Lt, zero, reg)
        } else {
            one
        };
        let iter_next = self.regs.op(IntOp::Add, iter, one);
        let go_next = match trips {
            Some(t) => {
                let in_range = self.regs.op(IntOp::Lt, iter_next, t);
                self.regs.op(IntOp::And, more, in_range)
            }
            None => more,
        };
        let dim_nexts: Vec<Reg> = l.dims.iter().map(|d| self.dim(d.next)).collect::<Result<_>>()?;
        let sources: Vec<(Value, Reg)> =
            outputs[usize::from(l.cond)..].iter().map(|&v| Ok((v, self.ptr(body, v)?))).collect::<Result<_>>()?;
        let mut base_next = None;
        let see_states = self.mark();
        for (d, &r) in l.dims.iter().zip(&dim_nexts) {
            d.result.into_iter().for_each(|s| self.regs.syms.set(s, r));
        }
        if let Some(d) = own_domain {
            self.reserve(d)?;
            base_next = self.bases.get(&d);
        }
        let mut targets = vec![];
        for &state in node.outs.iter().take(n_carried) {
            targets.push(self.buffer_ptr(region, state)?);
        }
        self.reset(see_states);
        for ((v, from), (&to, &state)) in sources.into_iter().zip(targets.iter().zip(&node.outs)) {
            self.copy_value(at, (body, v), from, (to, self.space_of(region, state)))?;
        }
        let f = self.regs.end(None);
        self.reset(marks);

        let mut carried = vec![(go, go_init, go_next), (iter, zero, iter_next)];
        let dims = dim_regs.iter().zip(dim_inits.iter().zip(&dim_nexts));
        carried.extend(dims.map(|(&r, (&a, &b))| (r, a, b)));
        if let (Some(r), Some(a), Some(b)) = (base_reg, base_init, base_next) {
            carried.push((r, a, b));
        }
        self.regs.push(Stmt::Loop { carried, go, body: f });
        if let (Some(d), Some(base)) = (own_domain, base_reg) {
            self.rebase(d, base);
        }
        for &s in &l.counts {
            self.define(s, iter)?;
        }
        for (d, &r) in l.dims.iter().zip(&dim_regs) {
            if let Some(s) = d.result {
                self.define(s, r)?;
            }
        }
        if let Some(d) = own_domain {
            self.pick(d)?;
        }
        Ok(())
    }
}
