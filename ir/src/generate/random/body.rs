//! Control flow in random models: a branch or a loop over what earlier nodes gave.

use super::Draft;
use super::node::Known;
use crate::attrs::Attrs;
use crate::cases::Random;
use crate::graph::{Graph, Origin, RegionId, Value};
use crate::op::RefCtx;
use crate::ty::Type;
use std::sync::Arc;
use tensor::DType::{self, *};
use tensor::Tensor;

/// Element types that bodies compute with.
const TYPES: &[DType] = &[F32, F16, F64, I32, I64];
/// Most iterations of a loop.
const TRIPS: u64 = 4;

/// What a body computes of a carried value `x` and a captured `c` of the same extents.
#[derive(Clone, Copy)]
enum Step {
    /// `|x| - c`
    Distance,
    /// `max(-x, c)`
    Greater,
}

impl Step {
    fn nodes(self) -> [(&'static str, bool); 2] {
        match self {
            Step::Distance => [("Abs", false), ("Sub", true)],
            Step::Greater => [("Neg", false), ("Max", true)],
        }
    }
}

impl Draft {
    /// Adds an If or a Loop where there is a value that it can be over.
    pub fn add_body(&mut self, random: &mut Random) {
        // Of integers and half floats Max came in later opsets.
        let types = if self.peer.is_some() && self.opset < 13 { &[F32, F64][..] } else { TYPES };
        let fits = |k: &Known| k.usable && types.contains(&k.value.dtype());
        let all: Vec<usize> = (0..self.known.len()).filter(|&i| fits(&self.known[i].1)).collect();
        let Some(&x) = all.get(random.below(all.len() as u64) as usize) else { return };
        let same = |k: &Known, x: &Known| k.value.dtype() == x.value.dtype() && k.value.shape() == x.value.shape();
        let others: Vec<usize> = all.iter().copied().filter(|&i| same(&self.known[i].1, &self.known[x].1)).collect();
        let c = others[random.below(others.len() as u64) as usize];
        let (x, c) = (self.known[x].clone(), self.known[c].clone());
        let before = (self.m.clone(), self.inputs.clone());
        let (n_known, branch) = (self.known.len(), random.below(2) == 0);
        let added = if branch { self.add_if(&x, &c, random) } else { self.add_loop(&x, &c, random) };
        if added.is_none() || !self.is_valid() {
            (self.m, self.inputs) = before;
            self.known.truncate(n_known);
        }
    }

    fn add_if(&mut self, x: &(Value, Known), c: &(Value, Known), random: &mut Random) -> Option<()> {
        let taken = random.below(2) == 1;
        let cond = self.input(&Tensor::from_i64_as(Bool, &[], &[i64::from(taken)]), false, random);
        let bodies = [Step::Distance, Step::Greater].map(|step| {
            let r = self.m.graphs.push(Graph::default());
            let [x, c] = [x, c].map(|v| self.parameter(r, v.0));
            let y = self.step(r, step, x, c)?;
            self.m.graphs[r].outputs = vec![y];
            Some(r)
        });
        let [then, other] = bodies;
        let out = self.owner("If", &[Some(cond)], &[x.0, c.0], [then?, other?], 1)?;
        let step = if taken { Step::Distance } else { Step::Greater };
        let known = Known {
            value: self.apply(step, &x.1.value, &c.1.value)?,
            disturbed: self.apply(step, &x.1.disturbed, &c.1.disturbed)?,
            exact: x.1.exact && c.1.exact,
            usable: true,
        };
        self.known.push((out[0], known));
        Some(())
    }

    fn add_loop(&mut self, x: &(Value, Known), c: &(Value, Known), random: &mut Random) -> Option<()> {
        // Without a trip, onnxruntime forgets the extents of what iterations give, and nobody has those that only an iteration tells.
        let least = u64::from(self.peer.is_some() || !self.same_extents(x.0, c.0));
        let n = least + random.below(TRIPS + 1 - least);
        let trips = Tensor::from_i64(&[], &[i64::try_from(n).ok()?]);
        let trips = if random.below(2) == 0 { self.constant(&trips) } else { self.input(&trips, false, random) };
        let step = if random.below(2) == 0 { Step::Distance } else { Step::Greater };
        let r = self.m.graphs.push(Graph::default());
        let _iteration = self.m.graphs[r].add_input(Type::tensor(I64, []), "");
        let go_on = self.m.graphs[r].add_input(Type::tensor(Bool, []), "");
        let [carried, captured] = [x, c].map(|v| self.parameter(r, v.0));
        let y = self.step(r, step, carried, captured)?;
        self.m.graphs[r].outputs = vec![go_on, y, y];
        let outs = self.owner("Loop", &[Some(trips), None, Some(x.0)], &[c.0], [r], 2)?;
        let run = |x: &Tensor, c: &Tensor| {
            let (mut now, mut all) = (x.clone(), vec![]);
            for _ in 0..n {
                now = self.apply(step, &now, c)?;
                all.push(now.reshaped(&[&[1], now.shape()].concat()));
            }
            let stacked = match all.len() {
                0 => Tensor::zeros(x.dtype(), &[&[0], x.shape()].concat()).ok()?,
                _ => reference::movement::concat(&all.iter().collect::<Vec<_>>(), 0).ok()?,
            };
            Some([now, stacked])
        };
        let values = run(&x.1.value, &c.1.value)?;
        let disturbed = run(&x.1.disturbed, &c.1.disturbed)?;
        for ((out, value), disturbed) in outs.into_iter().zip(values).zip(disturbed) {
            self.known.push((out, Known { value, disturbed, exact: x.1.exact && c.1.exact, usable: true }));
        }
        Some(())
    }

    /// Whether inference knows that two values have the same extents.
    fn same_extents(&self, a: Value, b: Value) -> bool {
        let mut m = self.m.clone();
        let known = crate::infer::infer(&mut m).is_ok();
        let shape = |v: Value| m.graph().values[v].ty.shape().cloned();
        known && shape(a).is_some() && shape(a) == shape(b)
    }

    /// A parameter of a body for a value of the main graph.
    fn parameter(&mut self, r: RegionId, v: Value) -> Value {
        let ty = self.m.graph().values[v].ty.clone();
        self.m.graphs[r].add_input(ty, "")
    }

    /// A node with bodies that capture values.
    fn owner(
        &mut self,
        name: &str,
        ins: &[Option<Value>],
        captured: &[Value],
        bodies: impl IntoIterator<Item = RegionId>,
        n_outs: usize,
    ) -> Option<Vec<Value>> {
        let op = self.m.registry.find("", name, self.opset)?;
        let attrs = self.m.attrs.intern(Attrs::new(self.m.registry[op].default_attrs()));
        let k = self.m.graph().nodes.len();
        let outs = (0..n_outs).map(|i| (Type::Unknown, Arc::from(format!("v{k}_{i}"))));
        let ins = ins.iter().copied().chain(captured.iter().copied().map(Some));
        let path = format!("/{name}_{k}");
        let n = self.m.graph_mut().add_node(op, attrs, ins, outs, bodies, Origin(path.as_str().into()));
        self.m.graph_mut().nodes[n].n_captures = u32::try_from(captured.len()).ok()?;
        Some(self.m.graph().nodes[n].outs.to_vec())
    }

    /// Adds the nodes of a step to a body.
    fn step(&mut self, r: RegionId, step: Step, x: Value, c: Value) -> Option<Value> {
        let mut y = x;
        for (i, (name, binary)) in step.nodes().into_iter().enumerate() {
            let op = self.m.registry.find("", name, self.opset)?;
            let attrs = self.m.attrs.intern(Attrs::new(self.m.registry[op].default_attrs()));
            let ins = if binary { vec![Some(y), Some(c)] } else { vec![Some(y)] };
            let outs = [(Type::Unknown, Arc::from(format!("r{r}_{i}")))];
            let origin = Origin(format!("/body_{r}/{name}").as_str().into());
            let n = self.m.graphs[r].add_node(op, attrs, ins, outs, [], origin);
            y = self.m.graphs[r].nodes[n].outs[0];
        }
        Some(y)
    }

    /// What a step gives.
    fn apply(&self, step: Step, x: &Tensor, c: &Tensor) -> Option<Tensor> {
        let mut y = x.clone();
        for (name, binary) in step.nodes() {
            let def = &self.m.registry[self.m.registry.find("", name, self.opset)?];
            let ins = if binary { vec![Some(y), Some(c.clone())] } else { vec![Some(y)] };
            let attrs = Attrs::new(def.default_attrs());
            let run = RefCtx { def, attrs: &attrs, consts: &self.m.consts, ins: &ins, n_outs: 1 };
            y = def.reference?(&run).ok()?.into_iter().next()?;
        }
        Some(y)
    }
}
