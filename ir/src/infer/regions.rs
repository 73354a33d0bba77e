//! Bodies: parameters of If and Loop, joins of what branches and iterations give.

use super::State;
use crate::consts::Const;
use crate::graph::{Guard, Node, NodeData, Onnx, RegionId, Rel, Value};
use crate::ty::{Shape, TensorType, Type};
use std::collections::BTreeMap;
use tensor::dims::{Origin, Proof};
use tensor::{DType, Diagnostic, DimId, ErrorKind, Result, SymId, Tensor};

impl State<'_> {
    /// A node with bodies.
    pub(super) fn control(&mut self, r: RegionId, n: Node) -> Result<()> {
        let node = self.m.graphs[r].nodes[n].clone();
        node.ins.iter().flatten().for_each(|&v| self.load_const(r, v));
        self.parent.extend(node.regions.iter().map(|&b| (b, r)));
        match self.m.registry[node.op].name {
            "If" => self.branch(r, n, &node),
            "Loop" => self.loop_(r, n, &node),
            "Scan" => self.scan(r, &node),
            other => Err(Diagnostic::new(ErrorKind::Unsupported, format!("bodies of {other} are not supported"))),
        }
    }

    /// Hands captures to the last parameters of a body.
    pub(super) fn seed_captures(&mut self, r: RegionId, node: &NodeData<Onnx>, body: RegionId) -> Result<usize> {
        let n = node.n_captures as usize;
        let params = self.m.graphs[body].inputs.clone();
        if params.len() < n || node.ins.len() < n {
            let text = format!("a body has {} parameters but the node captures {n} values", params.len());
            return Err(Diagnostic::new(ErrorKind::Malformed, text));
        }
        let own = params.len() - n;
        let captured = &node.ins[node.ins.len() - n..];
        for (&p, v) in params[own..].iter().zip(captured) {
            if let Some(v) = *v {
                self.seed(r, v, body, p);
            }
        }
        Ok(own)
    }

    /// Gives parameter `p` of `body` the type, elements and constant of `v`.
    fn seed(&mut self, r: RegionId, v: Value, body: RegionId, p: Value) {
        self.m.graphs[body].values[p].ty = self.ty(r, v).clone();
        self.copy_values(r, v, body, p);
        match self.konst_of(r, v) {
            Some(c) => drop(self.konst.insert((body, p), c)),
            None => drop(self.konst.remove(&(body, p))),
        }
    }

    fn copy_values(&mut self, r: RegionId, v: Value, body: RegionId, p: Value) {
        match self.values.get(&(r, v)).cloned() {
            Some(x) => drop(self.values.insert((body, p), x)),
            // Elements that a use in the body demanded stay.
            None if self.demanded(body, p) => {}
            None => drop(self.values.remove(&(body, p))),
        }
    }

    /// Whether the elements of `v` are symbols that a use asked for.
    fn demanded(&self, r: RegionId, v: Value) -> bool {
        let own = |d: &DimId| self.named.get(d) == Some(&(r, v));
        self.values.get(&(r, v)).is_some_and(|x| !x.is_empty() && x.iter().all(own))
    }

    /// What a condition is, where that is known: a constant, or a comparison of extents.
    fn truth(&self, r: RegionId, v: Value) -> Option<bool> {
        if let Some(t) = self.konst_of(r, v).and_then(|c| self.m.consts[c].read().ok()).filter(|t| t.n_elems() == 1) {
            return Some(t.view().i64_at(0) != 0);
        }
        match self.values.get(&(r, v))?.as_slice() {
            [d] => self.m.dims.as_const(*d).map(|k| k != 0),
            _ => None,
        }
    }

    /// Makes constants of the conditions that are known, so that no later stage looks at the branches that are never taken.
    pub(super) fn settle_conditions(&mut self) {
        for ((r, n), taken) in std::mem::take(&mut self.taken) {
            let Some(Some(cond)) = self.m.graphs[r].nodes[n].ins.first().copied() else { continue };
            if self.m.graphs[r].as_const(cond).is_some() {
                continue;
            }
            let c = self.m.consts.push(Const::from_tensor("", &Tensor::from_bool(&[], &[taken])));
            let v = self.m.graphs[r].add_const(c, Type::tensor(DType::Bool, []), "");
            self.m.graphs[r].nodes[n].ins[0] = Some(v);
        }
    }

    fn branch(&mut self, r: RegionId, n: Node, node: &NodeData<Onnx>) -> Result<()> {
        let cond = node.ins.first().copied().flatten();
        let mut taken = cond.and_then(|v| self.truth(r, v));
        self.guards.remove(&(r, n));
        self.conditions.remove(&(r, n));
        let bodies: Vec<RegionId> = node.regions.to_vec();
        for (i, &b) in bodies.iter().enumerate() {
            self.seed_captures(r, node, b)?;
            // The branch never taken need not be right.
            if taken.is_none_or(|t| t == (i == 0))
                && let Err(e) = self.region(b)
            {
                // One that is wrong for every input must never be taken, which the inputs' extents must decide: the node goes.
                let wrong = matches!(e.kind(), ErrorKind::Shape | ErrorKind::Type | ErrorKind::Argument);
                let Some(v) = cond.filter(|_| wrong && taken.is_none()) else { return Err(e) };
                let cond = self.condition(r, n, v)?.filter(|&d| self.m.dims.is_at_entry(d));
                let Some(cond) = cond else { return Err(e) };
                let (other, never) = (i != 0, ["then", "else"][i.min(1)]);
                taken = Some(other);
                let rhs = self.m.dims.constant(i64::from(other));
                let why = format!("If: the {never} branch must not be taken, it is wrong ({})", e.message());
                let guard = Guard { lhs: cond, rel: Rel::Eq, rhs, why, node: node.origin.to_string() };
                self.guards.insert((r, n), vec![guard]);
            }
            if self.m.graphs[b].outputs.len() != node.outs.len() {
                let (have, want) = (self.m.graphs[b].outputs.len(), node.outs.len());
                return Err(Diagnostic::new(
                    ErrorKind::Malformed,
                    format!("If has {want} results but a branch has {have}"),
                ));
            }
        }
        // A later visit, of a loop whose values turned out to change, may know less.
        match taken {
            Some(t) => drop(self.taken.insert((r, n), t)),
            None => drop(self.taken.remove(&(r, n))),
        }
        if let Some(v) = cond.filter(|_| taken.is_none() && bodies.iter().any(|&b| !self.collect_guards(b).is_empty()))
        {
            // What a branch demands holds where it is taken.
            let known = self.condition(r, n, v)?;
            self.conditions.extend(known.map(|d| ((r, n), d)));
        }
        for (i, &out) in node.outs.iter().enumerate() {
            let results = bodies.iter().enumerate().filter(|(k, _)| taken.is_none_or(|t| t == (*k == 0)));
            let results: Vec<(RegionId, Value)> = results.map(|(_, &b)| (b, self.m.graphs[b].outputs[i])).collect();
            self.set_results(r, out, &results)?;
        }
        Ok(())
    }

    /// Sets the type and elements of `out` to what holds for each of `results`.
    fn set_results(&mut self, r: RegionId, out: Value, results: &[(RegionId, Value)]) -> Result<()> {
        let mut ty: Option<Type> = None;
        for &(b, v) in results {
            self.load_const(b, v);
            let t = self.outward(r, out, b, self.ty(b, v).clone());
            ty = Some(match ty {
                None => t,
                Some(a) => self.join(r, out, a, t)?,
            });
        }
        let Some(ty) = ty else { return Ok(()) };
        let all: Vec<Option<Shape>> = results.iter().map(|k| self.values.get(k).cloned()).collect();
        let local = |st: &Self, s: &Shape| results.iter().any(|&(b, _)| s.iter().any(|&d| st.is_local(b, d)));
        self.m.graphs[r].values[out].ty = ty;
        match all.first().cloned().flatten() {
            Some(x) if all.iter().all(|y| y.as_ref() == Some(&x)) && !local(self, &x) => {
                self.values.insert((r, out), x);
            }
            _ if self.demanded(r, out) => {}
            _ => drop(self.values.remove(&(r, out))),
        }
        Ok(())
    }

    /// A type of a body as the region around sees it: extents that only the body knows become symbols.
    pub(super) fn outward(&mut self, r: RegionId, out: Value, body: RegionId, ty: Type) -> Type {
        let Type::Tensor(TensorType { dtype, shape: Some(s) }) = ty else { return ty };
        let s: Vec<DimId> = s
            .iter()
            .enumerate()
            .map(|(i, &d)| if self.is_local(body, d) { self.joined(r, out, i) } else { d })
            .collect();
        Type::tensor(dtype, s)
    }

    /// Whether `d` mentions a symbol that has a value only inside `body`.
    fn is_local(&self, body: RegionId, d: DimId) -> bool {
        if self.owner.is_empty() {
            return false;
        }
        self.m.dims.symbols_of(d).into_iter().any(|s| {
            let mut at = self.owner.get(&s).copied();
            while let Some(r) = at {
                if r == body {
                    return true;
                }
                at = self.parent.get(&r).copied();
            }
            false
        })
    }

    /// The symbol for extent `axis` of `v` where joined types differ: the same at every visit, and the one that the value's
    /// type already has where the module was inferred before.
    fn joined(&mut self, r: RegionId, v: Value, axis: usize) -> DimId {
        if let Some(&d) = self.joins.get(&(r, v, axis)) {
            return d;
        }
        let old = self.before.get(&(r, v)).or_else(|| self.ty(r, v).shape()).and_then(|s| s.get(axis)).copied();
        let is_region = |d: &DimId| {
            let sym = self.m.dims.as_symbol(*d);
            sym.is_some_and(|s| self.m.dims.sym(s).origin == Origin::Region && !self.joins.values().any(|x| x == d))
        };
        let name = self.m.graphs[r].values[v].name.to_string();
        let name = if name.is_empty() { v.to_string() } else { name };
        let d = match old.filter(is_region) {
            Some(d) => d,
            None => self.m.dims.symbol(&format!("{name}_d{axis}"), Origin::Region),
        };
        self.joins.insert((r, v, axis), d);
        self.own(r, d);
        d
    }

    /// The type that both types have.
    fn join(&mut self, r: RegionId, v: Value, a: Type, b: Type) -> Result<Type> {
        if a == b {
            return Ok(a);
        }
        let (Type::Tensor(x), Type::Tensor(y)) = (&a, &b) else {
            return match (a, b) {
                (Type::Sequence(x), Type::Sequence(y)) => Ok(Type::Sequence(Box::new(any_rank(*x, *y)))),
                (Type::Optional(x), Type::Optional(y)) => Ok(Type::Optional(Box::new(any_rank(*x, *y)))),
                _ => Ok(Type::Unknown),
            };
        };
        if x.dtype != y.dtype {
            let text = format!("branches or iterations give \"{}\" as {} and as {}", self.name(r, v), x.dtype, y.dtype);
            return Err(Diagnostic::new(ErrorKind::Type, text));
        }
        let dtype = x.dtype;
        let (Some(s), Some(t)) = (&x.shape, &y.shape) else {
            return Ok(Type::Tensor(TensorType { dtype, shape: None }));
        };
        if s.len() != t.len() {
            return Ok(Type::Tensor(TensorType { dtype, shape: None }));
        }
        let (s, t) = (s.clone(), t.clone());
        let mut out = Shape::new();
        for (i, (&d, &e)) in s.iter().zip(&t).enumerate() {
            let same = d == e || self.m.dims.prove_eq(d, e) == Proof::Yes;
            out.push(if same { d } else { self.joined(r, v, i) });
        }
        Ok(Type::tensor(dtype, out))
    }

    fn name(&self, r: RegionId, v: Value) -> String {
        self.m.graphs[r].values[v].name.to_string()
    }

    /// Loop: operands `M?, cond?, initial…, captures…`; parameters `i, cond, carried…, captures…`; results of the body
    /// `cond, carried…, scanned…`; results of the node `carried…, scanned…`.
    fn loop_(&mut self, r: RegionId, n: Node, node: &NodeData<Onnx>) -> Result<()> {
        let Some(&body) = node.regions.first() else {
            return Err(Diagnostic::new(ErrorKind::Malformed, "Loop has no body"));
        };
        let own = self.seed_captures(r, node, body)?;
        let n_own_ins = node.ins.len() - node.n_captures as usize;
        let n_carried = n_own_ins.saturating_sub(2);
        let results = self.m.graphs[body].outputs.clone();
        if own != n_carried + 2 || results.len() != node.outs.len() + 1 || node.outs.len() < n_carried {
            let text = format!(
                "Loop carries {n_carried} values, but its body has {own} parameters and {} results for {} results of the node",
                results.len(),
                node.outs.len()
            );
            return Err(Diagnostic::new(ErrorKind::Malformed, text));
        }
        let params = self.m.graphs[body].inputs[..own].to_vec();
        self.m.graphs[body].values[params[0]].ty = Type::tensor(DType::I64, []);
        self.m.graphs[body].values[params[1]].ty = Type::tensor(DType::Bool, []);
        let initial: Vec<Value> = node.ins[2..n_own_ins].iter().copied().flatten().collect();
        if initial.len() != n_carried {
            return Err(Diagnostic::new(ErrorKind::Malformed, "an initial value of Loop is missing"));
        }
        // Types that an earlier visit of this loop reached stay: they only get wider. Elements are carried while they do not
        // change.
        let first = self.loops.insert(body);
        for (&v, &p) in initial.iter().zip(&params[2..]) {
            if let Some(s) = self.ty(body, p).shape().filter(|_| first).cloned() {
                self.before.insert((body, p), s);
            }
            let initial = self.ty(r, v).clone();
            let ty = if first { initial } else { self.join(body, p, self.ty(body, p).clone(), initial)? };
            self.m.graphs[body].values[p].ty = ty;
            if !self.values.contains_key(&(r, v)) {
                // What an earlier visit knew of the initial value, in a loop around, counts no more.
                self.unsteady.insert((body, p));
                if !self.demanded(body, p) {
                    self.values.remove(&(body, p));
                }
            } else if !self.unsteady.contains(&(body, p)) {
                self.copy_values(r, v, body, p);
            }
        }
        let n_carried_extents =
            |st: &Self| params.iter().map(|&p| st.ty(body, p).shape().map_or(0, |s| s.len())).sum::<usize>();
        // Each visit but the last widens an extent or a rank or drops elements.
        for _ in 0..2 * n_carried + n_carried_extents(self) + 2 {
            self.region(body)?;
            let mut changed = false;
            for (&p, &out) in params[2..].iter().zip(&results[1..]) {
                self.load_const(body, out);
                let (a, b) = (self.ty(body, p).clone(), self.ty(body, out).clone());
                let ty = self.join(body, p, a.clone(), b)?;
                if ty != a {
                    self.m.graphs[body].values[p].ty = ty;
                    changed = true;
                }
                let known = self.values.get(&(body, p)).filter(|_| !self.unsteady.contains(&(body, p)));
                if known.is_some_and(|x| self.values.get(&(body, out)) != Some(x)) {
                    self.unsteady.insert((body, p));
                    self.values.remove(&(body, p));
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        if let Some(trips) = node.ins[0].filter(|_| !self.collect_guards(body).is_empty()) {
            // What the body demands holds where it runs.
            self.element(r, n, trips)?;
        }
        let steady = self.steady_extents(r, &initial, body, &params[2..], &results[1..]);
        for k in 0..n_carried {
            let pairs = [(r, initial[k]), (body, results[1 + k])];
            let out = node.outs[k];
            let a = self.ty(r, initial[k]).clone();
            let b = self.substituted(self.ty(body, results[1 + k]).clone(), &steady);
            let b = self.outward(r, out, body, b);
            let ty = self.join(r, out, a, b)?;
            self.m.graphs[r].values[out].ty = ty;
            let both: Vec<Option<&Shape>> = pairs.iter().map(|k| self.values.get(k)).collect();
            match both[0].filter(|x| both[1] == Some(*x)).cloned() {
                Some(x) => drop(self.values.insert((r, out), x)),
                None if self.demanded(r, out) => {}
                None => drop(self.values.remove(&(r, out))),
            }
        }
        for (k, &out) in node.outs.iter().enumerate().skip(n_carried) {
            let trips = self.trips(r, node, body, out);
            match self.substituted(self.ty(body, results[1 + k]).clone(), &steady) {
                Type::Tensor(TensorType { dtype, shape: Some(s) }) => {
                    let rest = s
                        .iter()
                        .enumerate()
                        .map(|(i, &d)| if self.is_local(body, d) { self.joined(r, out, i + 1) } else { d });
                    let shape: Vec<DimId> = std::iter::once(trips).chain(rest.collect::<Vec<_>>()).collect();
                    self.m.graphs[r].values[out].ty = Type::tensor(dtype, shape);
                }
                t => self.m.graphs[r].values[out].ty = t,
            }
        }
        Ok(())
    }

    /// Extents of carried values that a body gives back as it got them, and what they are: those of the initial values.
    fn steady_extents(
        &self,
        r: RegionId,
        initial: &[Value],
        body: RegionId,
        params: &[Value],
        results: &[Value],
    ) -> BTreeMap<SymId, DimId> {
        // `None` for an extent that changes, or of which two values know different things.
        let mut all: BTreeMap<SymId, Option<DimId>> = BTreeMap::new();
        for ((&v, &p), &out) in initial.iter().zip(params).zip(results) {
            let (first, inside, next) = (self.ty(r, v).shape(), self.ty(body, p).shape(), self.ty(body, out).shape());
            let (Some(first), Some(inside), Some(next)) = (first, inside, next) else { continue };
            for ((&first, &inside), &next) in first.iter().zip(inside).zip(next) {
                if let Some(s) = self.m.dims.as_symbol(inside).filter(|_| self.is_local(body, inside)) {
                    let value = (inside == next).then_some(first);
                    all.entry(s).and_modify(|known| *known = known.filter(|_| *known == value)).or_insert(value);
                }
            }
        }
        all.into_iter().filter_map(|(s, d)| Some((s, d?))).collect()
    }

    /// A type with other extents in place of symbols.
    fn substituted(&mut self, ty: Type, extents: &BTreeMap<SymId, DimId>) -> Type {
        let Type::Tensor(TensorType { dtype, shape: Some(s) }) = ty else { return ty };
        let find = |s: SymId| extents.get(&s).copied();
        Type::tensor(dtype, s.iter().map(|&d| self.m.dims.substitute(d, &find)).collect::<Vec<_>>())
    }

    /// How often a loop runs: the bound where only it ends the loop, else a symbol.
    fn trips(&mut self, r: RegionId, node: &NodeData<Onnx>, body: RegionId, out: Value) -> DimId {
        let always = |st: &Self, r: RegionId, v: Value| {
            let c = st.konst_of(r, v).and_then(|c| st.m.consts[c].read().ok());
            c.is_some_and(|t| t.n_elems() == 1 && t.view().i64_at(0) != 0)
        };
        let starts = node.ins[1].is_none_or(|v| always(self, r, v));
        let cond_out = self.m.graphs[body].outputs[0];
        let mut goes_on = cond_out;
        while let Some(n) = self.m.graphs[body].def_node(goes_on) {
            match (self.m.registry[n.op].name, n.ins.first()) {
                ("Identity", Some(Some(v))) => goes_on = *v,
                _ => break,
            }
        }
        let goes_on = goes_on == self.m.graphs[body].inputs[1] || always(self, body, goes_on);
        let bound = node.ins[0].and_then(|v| self.values.get(&(r, v))).and_then(|x| x.first().copied());
        match bound {
            Some(d) if starts && goes_on => {
                let zero = self.m.dims.constant(0);
                self.m.dims.max(d, zero)
            }
            _ => self.joined(r, out, 0),
        }
    }
}

/// What is common to element types of sequences or optionals.
fn any_rank(a: Type, b: Type) -> Type {
    match (&a, &b) {
        _ if a == b => a,
        (Type::Tensor(x), Type::Tensor(y)) if x.dtype == y.dtype => {
            Type::Tensor(TensorType { dtype: x.dtype, shape: None })
        }
        _ => Type::Unknown,
    }
}
