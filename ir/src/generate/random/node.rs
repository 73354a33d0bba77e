//! One node: a case of its row with changed extents and attributes, operands from earlier nodes, and whether the result can be
//! compared between two right implementations.

use super::agreed::{JUMPS, STEPS, common, defined, differing, left_open, steady, tame};
use super::{Draft, Pair, cases, microsoft, template};
use crate::attrs::{Attr, Attrs, F32};
use crate::cases::{Case, CaseOperand, Random, parse};
use crate::graph::{Origin, Value};
use crate::op::{AttrKind, OpDef, RefCtx, Tol};
use crate::ty::Type;
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::DType::{self, *};
use tensor::Tensor;

/// What is known of a value.
#[derive(Clone)]
pub struct Known {
    /// What the reference functions gave.
    pub value: Tensor,
    /// What they gave where every rounded result on the way was disturbed by a rounding error; the same tensor where nothing was rounded.
    pub disturbed: Tensor,
    /// Whether every right implementation has these very bits.
    pub exact: bool,
    /// Whether later nodes may use it: finite numbers of moderate size.
    pub usable: bool,
}

/// Greatest magnitude that later nodes get.
const LARGE: f64 = 1e4;
/// How far results may be apart after disturbance, as a share of what a comparison allows: it allows 16-bit floats a few roundings.
fn spread(dtype: DType) -> f64 {
    if matches!(dtype, F16 | BF16) { 0.5 } else { 0.25 }
}
/// Draws of a node before it is given up.
const TRIES: u64 = 6;

impl Draft {
    /// Adds a node of a row. Says whether it could.
    pub fn add(&mut self, pair: Pair, random: &mut Random) -> bool {
        (0..TRIES).any(|attempt| {
            let def = &self.m.registry.clone()[pair.0];
            let Some((mut case, whole)) = self.draw(def, pair, random) else { return false };
            // At last as the case stands.
            if attempt + 1 < TRIES {
                vary_attributes(def, &mut case, random);
                if attempt < TRIES / 2 && !whole {
                    vary_extents(&mut case, random);
                }
            }
            if self.peer.is_some() && !common(def, pair.1, &mut case) {
                return false;
            }
            self.add_node(pair, def, &case, attempt + 2 < TRIES, random)
        })
    }
    /// Adds a node as a case stands. Says whether it could.
    #[cfg(test)]
    pub fn add_parsed(&mut self, pair: Pair, case: &Case, random: &mut Random) -> bool {
        let registry = self.m.registry.clone();
        self.add_node(pair, &registry[pair.0], case, false, random)
    }
    /// Adds a node as the `nth` case of its row stands. Says whether it could.
    pub fn add_case(&mut self, pair: Pair, nth: usize, random: &mut Random) -> bool {
        let registry = self.m.registry.clone();
        let def = &registry[pair.0];
        let case = def.cases.get(nth).and_then(|text| parse(def, text).ok());
        case.is_some_and(|case| self.add_node(pair, def, &case, false, random))
    }
    fn add_node(&mut self, pair: Pair, def: &OpDef, case: &Case, linked: bool, random: &mut Random) -> bool {
        let before = (self.m.clone(), self.inputs.clone(), self.pairs.clone());
        let n_known = self.known.len();
        let added = self.try_node(pair, def, case, linked, random);
        if added.is_none() {
            (self.m, self.inputs, self.pairs) = before;
            self.known.truncate(n_known);
        }
        added.is_some()
    }
    fn try_node(&mut self, pair: Pair, def: &OpDef, case: &Case, linked: bool, random: &mut Random) -> Option<()> {
        let types = assignment(def, pair.1, self.peer.is_some(), random);
        let mut ins: Vec<Option<(Value, Known)>> = vec![];
        let counted = def.dtypes.first().map_or("", |(var, _)| var);
        for (i, o) in case.operands.iter().enumerate() {
            let param = def.inputs.get(i).or(def.inputs.last())?;
            // What may be of any type is of the row's outside of ai.onnx: a cache.
            let any = if def.domain.is_empty() { F32 } else { pair.1 };
            let dtype = types.get(param.ty).copied().unwrap_or(any);
            // What the row counts under may not be what the case says.
            if param.ty == counted && o.as_ref().and_then(|o| o.dtype).is_some_and(|d| d != pair.1) {
                return None;
            }
            ins.push(match o {
                Some(o) => Some(self.operand(def, i, o, dtype, linked, random)?),
                None => None,
            });
        }
        let outs = self.node(pair, def, case.attrs.clone(), &ins, case.n_outs);
        // Inference first: it refuses what the reference functions need not expect.
        if !self.is_valid() {
            return None;
        }
        let known = self.results(def, case, &ins, random)?;
        for (v, known) in outs.into_iter().zip(known) {
            self.known.push((v, known));
        }
        Some(())
    }
    /// A value for operand `i`: of an earlier node, an input or an initializer.
    fn operand(
        &mut self,
        def: &OpDef,
        i: usize,
        o: &CaseOperand,
        dtype: DType,
        linked: bool,
        random: &mut Random,
    ) -> Option<(Value, Known)> {
        // The extents of weights are known when the model is compiled.
        let weights = i > 0 && (def.name.contains("Conv") || matches!(def.name, "RNN" | "GRU" | "LSTM"));
        if linked && !weights && o.dtype.is_none() && o.fill.is_empty() && random.below(4) > 0 {
            let fits = |(_, k): &(Value, Known)| k.usable && k.value.dtype() == dtype && k.value.shape() == o.shape;
            let all: Vec<usize> = (0..self.known.len()).filter(|&i| fits(&self.known[i])).collect();
            if !all.is_empty() {
                return Some(self.known[all[random.below(all.len() as u64) as usize]].clone());
            }
            if let Some(made) = self.reshaped(dtype, &o.shape, random) {
                return Some(made);
            }
        }
        let mut t = o.tensor(dtype, random);
        if !defined(def, i, &t) {
            t = tame(def, &t);
        }
        let own = o.dtype.is_some() || !o.fill.is_empty();
        // A few numbers that say what is done to the first operand may be for the run to know.
        let few = !t.shape().is_empty() && (1..=2).contains(&t.n_elems()) || t.shape().is_empty();
        let constant = if own {
            let seldom =
                matches!(def.name, "Dropout" | "Expand") || self.peer.is_some() && def.name == "DynamicQuantizeLSTM";
            // Outside of ai.onnx what an operand says is mostly for the run to know.
            let n = if def.domain.is_empty() { 8 } else { 2 };
            !few && def.domain.is_empty() || seldom || random.below(n) > 0
        } else {
            random.below(3) == 0
        };
        let constant = constant || self.peer.is_some() && t.dtype().bits() < 8;
        // The extents of weights must be known to other implementations.
        let symbols = !def.domain.is_empty() && (self.peer.is_none() || def.name.ends_with("Attention"))
            || o.dtype.is_none()
                && (i == 0 || def.is_elementwise() || matches!(def.name, "Concat" | "MatMul" | "Gemm"));
        let v = if constant { self.constant(&t) } else { self.input(&t, symbols, random) };
        let known = Known { disturbed: t.clone(), exact: true, usable: usable(&t), value: t };
        if !constant && !own {
            self.known.push((v, known.clone()));
        }
        Some((v, known))
    }
    /// A value of an earlier node brought to other extents: repeated or cut, and reshaped. `None` where there is nothing to take.
    fn reshaped(&mut self, dtype: DType, shape: &[usize], random: &mut Random) -> Option<(Value, Known)> {
        let n: usize = shape.iter().product();
        let fits =
            |k: &Known| k.usable && k.value.dtype() == dtype && k.value.n_elems() > 0 && k.value.n_elems() <= 4096;
        let all: Vec<usize> = (0..self.known.len()).filter(|&i| fits(&self.known[i].1)).collect();
        if all.is_empty() || n == 0 || self.opset < 13 || dtype.size().is_none() {
            return None;
        }
        let mut x = self.known[all[random.below(all.len() as u64) as usize]].clone();
        let have = x.1.value.n_elems();
        let list = |v: i64| Tensor::from_i64(&[1], &[v]);
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        if have != n {
            x = self.moved("Reshape", x, &[list(-1)], random)?;
            if have < n {
                x = self.moved("Tile", x, &[list(count(n.div_ceil(have)))], random)?;
            }
            if !n.is_multiple_of(have) {
                x = self.moved("Slice", x, &[list(0), list(count(n))], random)?;
            }
        }
        let extents: Vec<i64> = shape.iter().map(|&d| count(d)).collect();
        self.moved("Reshape", x, &[Tensor::from_i64(&[shape.len()], &extents)], random)
    }
    /// A node that moves the elements of a value as constant operands say.
    fn moved(&mut self, name: &str, x: (Value, Known), how: &[Tensor], random: &mut Random) -> Option<(Value, Known)> {
        let op = self.m.registry.find("", name, self.opset)?;
        let def = self.m.registry.clone()[op].clone();
        let case = Case { operands: vec![], attrs: Attrs::new(def.default_attrs()), n_outs: 1 };
        let dtype = x.1.value.dtype();
        let mut ins = vec![Some(x)];
        for t in how {
            let known = Known { value: t.clone(), disturbed: t.clone(), exact: true, usable: false };
            ins.push(Some((self.constant(t), known)));
        }
        let known = self.results(&def, &case, &ins, random)?.into_iter().next()?;
        let v = self.node((op, dtype), &def, case.attrs, &ins, 1)[0];
        self.known.push((v, known.clone()));
        Some((v, known))
    }
    /// Adds a node; its results.
    fn node(
        &mut self,
        pair: Pair,
        def: &OpDef,
        attrs: Attrs,
        ins: &[Option<(Value, Known)>],
        n_outs: usize,
    ) -> Vec<Value> {
        let attrs = self.m.attrs.intern(attrs);
        let k = self.m.graph().nodes.len();
        let outs = (0..n_outs).map(|i| (Type::Unknown, Arc::from(format!("v{k}_{i}"))));
        let values = ins.iter().map(|x| x.as_ref().map(|x| x.0));
        let path = format!("/{}_{k}", def.name);
        let n = self.m.graph_mut().add_node(pair.0, attrs, values, outs, [], Origin(path.as_str().into()));
        self.pairs.push(pair);
        self.m.graph().nodes[n].outs.to_vec()
    }
    /// The results of a node, if two right implementations agree on them.
    fn results(
        &self,
        def: &OpDef,
        case: &Case,
        ins: &[Option<(Value, Known)>],
        random: &mut Random,
    ) -> Option<Vec<Known>> {
        let run = |ins: Vec<Option<Tensor>>| {
            let c = RefCtx { def, attrs: &case.attrs, consts: &self.m.consts, ins: &ins, n_outs: case.n_outs };
            def.reference?(&c).ok().filter(|r| r.len() >= case.n_outs)
        };
        let given =
            |f: fn(&Known) -> &Tensor| ins.iter().map(|x| x.as_ref().map(|(_, k)| f(k).clone())).collect::<Vec<_>>();
        if given(|k| &k.value).iter().enumerate().any(|(i, t)| t.as_ref().is_some_and(|t| !defined(def, i, t))) {
            return None;
        }
        let values = run(given(|k| &k.value))?;
        let exact_ins = ins.iter().flatten().all(|(_, k)| k.exact);
        let exact = exact_ins && def.tolerance == Tol::Exact;
        if !exact_ins && !steady(def, ins, &values) {
            return None;
        }
        let name = def.full_name();
        // What is rounded within the operator shows where its operands are off by a rounding error.
        let off = |(i, x): (usize, &Option<(Value, Known)>), random: &mut Random| {
            let known = &x.as_ref()?.1;
            let data = case
                .operands
                .get(i)
                .is_some_and(|o| o.as_ref().is_some_and(|o| o.dtype.is_none() && o.fill.is_empty()));
            // What is computed of 16-bit floats is rounded once, at the end, but where there are steps.
            let wide = matches!(known.value.dtype(), F32 | F64) || STEPS.contains(&name.as_str());
            let rounds = data && wide && known.exact && !JUMPS.contains(&name.as_str()) && def.tolerance != Tol::Exact;
            Some(if rounds { disturb(&known.disturbed, random) } else { known.disturbed.clone() })
        };
        let disturbed = match exact {
            true => values.clone(),
            false => {
                let ins: Vec<_> = ins.iter().enumerate().map(|x| off(x, random)).collect();
                run(ins)?
            }
        };
        // What is rounded to fewer bits than the result has shows in it.
        let bits = values.iter().map(Tensor::dtype).filter(|d| d.is_float()).map(DType::bits).max().unwrap_or(0);
        let coarse = |k: &Known| !k.exact && k.value.dtype().is_float() && k.value.dtype().bits() < bits;
        if !def.domain.is_empty() && ins.iter().flatten().any(|(_, k)| coarse(k)) {
            return None;
        }
        // Steps that are quantized on the way jump seldom.
        if def.name.starts_with("DynamicQuantize") && !def.domain.is_empty() {
            for _ in 0..6 {
                let near: Vec<_> = ins.iter().enumerate().map(|x| off(x, random)).collect();
                if !run(near)?.iter().zip(&values).all(|(a, b)| agree(a, b)) {
                    return None;
                }
            }
        }
        // Where no key of a query counts, the fill of masked scores takes digits from them: as much as it takes, nothing may change.
        if let Some(slot) = def.slot("mask_filter_value")
            && case.attrs.float(slot).is_none_or(|v| v < -100.0)
        {
            let attrs = with_slot(&case.attrs, slot, Attr::Float(F32::new(-1e30)));
            let ins = given(|k| &k.value);
            let c = RefCtx { def, attrs: &attrs, consts: &self.m.consts, ins: &ins, n_outs: 1 };
            if !def.reference?(&c).ok()?.iter().zip(&values).take(1).all(|(a, b)| agree(a, b)) {
                return None;
            }
        }
        // A float's last bit must not tell to which integer a result is rounded.
        let rounds = |t: &Tensor| t.dtype().is_int() && t.dtype().bits() <= 8;
        let asked = self.peer.as_ref().is_some_and(|p| !p.is_empty());
        if asked && !def.domain.is_empty() && !def.traits.moves && values.iter().any(rounds) {
            for _ in 0..3 {
                let near = |t: &Option<(Value, Known)>, random: &mut Random| {
                    t.as_ref().map(|(_, k)| disturb(&k.disturbed, random))
                };
                let near: Vec<_> = ins.iter().map(|t| near(t, random)).collect();
                if run(near)?.iter().zip(&values).any(|(a, b)| rounds(a) && a != b) {
                    return None;
                }
            }
        }
        let mut out = vec![];
        if left_open(def, case, ins, &values) || self.peer.is_some() && differing(def, ins, &values) {
            return None;
        }
        for (value, moved) in values.into_iter().zip(disturbed).take(case.n_outs) {
            if value.n_elems() > 1 << 16 || value.shape() != moved.shape() {
                return None;
            }
            let is_float = value.dtype().is_float();
            let disturbed = if exact || !is_float { moved } else { disturb(&moved, random) };
            if !agree(&value, &disturbed) {
                return None;
            }
            // Infinities and NaN end a path; they are rare there so that they hide nothing.
            let usable = usable(&value);
            if !usable && is_float && random.below(3) > 0 && !ins.is_empty() {
                return None;
            }
            out.push(Known { value, disturbed, exact: exact || !is_float, usable });
        }
        Some(out)
    }
}

/// Finite and of moderate size.
fn usable(t: &Tensor) -> bool {
    !t.dtype().is_float() || t.to_f64_vec().iter().all(|v| v.is_finite() && v.abs() <= LARGE)
}

/// Each element off by about a rounding error of its type.
fn disturb(t: &Tensor, random: &mut Random) -> Tensor {
    // Of 16-bit floats the rounding itself, at most: implementations compute in more.
    let ulp = match t.dtype() {
        F64 => 2f64.powi(-52),
        F32 => 2f64.powi(-23),
        F16 => 2f64.powi(-12),
        BF16 => 2f64.powi(-9),
        _ => return t.clone(),
    };
    let v: Vec<f64> = t.to_f64_vec().into_iter().map(|v| v * (1.0 + ulp * random.unit())).collect();
    Tensor::from_f64_as(t.dtype(), t.shape(), &v)
}

/// Whether two tensors are well within what a comparison allows.
fn agree(a: &Tensor, b: &Tensor) -> bool {
    tensor::compare::compare(b, a, tensor::compare::Tolerance::of(a.dtype()))
        .is_ok_and(|r| r.share <= spread(a.dtype()) || r.worst.is_none())
}

/// Element types of the row's variables: the first as asked for, the others the same where they may be, mostly. Where another implementation is
/// to run it, the others are those of its first test.
fn assignment(def: &OpDef, first: DType, peer: bool, random: &mut Random) -> BTreeMap<&'static str, DType> {
    let mut all = BTreeMap::new();
    for (i, (var, list)) in def.dtypes.iter().enumerate() {
        let plain: Vec<DType> = list.iter().copied().filter(|&d| d != String).collect();
        // Kernels of quantized operands take either sign, a second one after unsigned ones alone. What they give is like the first.
        if !def.domain.is_empty() && plain.iter().all(|d| matches!(d, I8 | U8)) && (!peer || i > 0) {
            let lead = all.values().copied().find(|d| matches!(d, I8 | U8));
            let drawn = plain[random.below(plain.len() as u64) as usize];
            let given_back = var.starts_with("TY");
            let like_lead = lead.filter(|&d| d == I8 || given_back).filter(|d| peer && plain.contains(d));
            all.insert(*var, like_lead.unwrap_or(if i == 0 { first } else { drawn }));
            continue;
        }
        let drawn = if peer { 0 } else { random.below(plain.len() as u64) as usize };
        let Some(&any) = plain.get(drawn) else { continue };
        let same = plain.contains(&first) && (peer || random.below(4) > 0);
        all.insert(*var, if i == 0 || same { first } else { any });
    }
    all
}

impl Draft {
    /// A random case of a row: from a generator of its own, a template, or one of its cases. Whether its extents are to stay as they are.
    fn draw(&self, def: &OpDef, pair: Pair, random: &mut Random) -> Option<(Case, bool)> {
        let templates = if def.domain.is_empty() { &[][..] } else { microsoft::templates(def.name) };
        let template = templates.get(random.below(templates.len() as u64) as usize);
        let own = match template {
            _ if random.below(4) == 0 => None,
            Some(t) => Some(template::fill(def, t, random)?),
            None => cases::random_case(def, random),
        };
        let whole = template.is_some();
        let mut case = match own {
            Some(text) => parse(def, &text).ok()?,
            None => parse(def, def.cases.get(random.below(def.cases.len() as u64) as usize)?).ok()?,
        };
        let targets = def.dtypes.get(1).map_or(&[][..], |(_, list)| list);
        if let Some(slot) = def.slot("to").filter(|_| def.name == "Cast" && random.below(4) > 0) {
            // What another implementation casts from, it casts to.
            let runs = |d: DType| self.peer.as_ref().is_none_or(|p| p.runs((pair.0, d), self.opset));
            let plain: Vec<DType> = targets.iter().copied().filter(|&d| d != String && runs(d)).collect();
            if let Some(&to) = plain.get(random.below(plain.len() as u64) as usize) {
                // What does not fit the target is left open by the text.
                let signed = |d: DType| d.is_signed();
                let fits = to.is_float() || to == Bool || (signed(to) && pair.1.bits() >= 8) || !signed(pair.1);
                if fits {
                    case.attrs = with_slot(&case.attrs, slot, Attr::Int(i64::from(to.onnx())));
                }
            }
        }
        Some((case, whole))
    }
    /// A value as an output: of a type that can be handed to and from another implementation, where one is to run the model.
    pub fn handed_over(&mut self, v: Value, known: Known) -> (Value, Known) {
        let (dtype, opset) = (known.value.dtype(), self.opset);
        let Some(op) = self.peer.is_some().then(|| self.m.registry.find("", "Cast", opset)).flatten() else {
            return (v, known);
        };
        let def = self.m.registry.clone()[op].clone();
        if is_plain(dtype) || !self.peer.as_ref().is_some_and(|p| p.runs((op, dtype), opset)) {
            return (v, known);
        }
        // Floats that a float holds exactly, integers as bytes.
        let to = if dtype.is_float() { F32 } else { I8 };
        let attrs = Attrs::new(def.default_attrs());
        let Some(slot) = def.slot("to") else { return (v, known) };
        let attrs = with_slot(&attrs, slot, Attr::Int(i64::from(to.onnx())));
        let cast = |t: &Tensor| Tensor::from_f64_as(to, t.shape(), &t.to_f64_vec());
        let cast = Known { value: cast(&known.value), disturbed: cast(&known.disturbed), ..known.clone() };
        let ins = [Some((v, known))];
        (self.node((op, dtype), &def, attrs, &ins, 1)[0], cast)
    }
}

/// Whether Python's arrays have the type.
fn is_plain(dtype: DType) -> bool {
    matches!(dtype, F64 | F32 | F16 | Bool) || dtype.is_int() && dtype.bits() >= 8
}

/// Extents that new ones are drawn from.
const EXTENTS: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 33];

/// Gives every extent another value, the same one for equal extents; sometimes an empty axis.
fn vary_extents(case: &mut Case, random: &mut Random) {
    let mut new: BTreeMap<usize, usize> = BTreeMap::new();
    let all: Vec<usize> =
        case.operands.iter().flatten().filter(|o| o.fill.is_empty()).flat_map(|o| o.shape.clone()).collect();
    for n in all {
        if n == 1 && random.below(4) > 0 {
            new.entry(1).or_insert(1);
            continue;
        }
        let drawn = match random.below(24) {
            0 => 0,
            1..=8 => n,
            _ => EXTENTS[random.below(EXTENTS.len() as u64) as usize],
        };
        new.entry(n).or_insert(drawn);
    }
    for o in case.operands.iter_mut().flatten() {
        // Values given one by one belong to their extents, and lists that are empty stay so.
        let n = o.shape.iter().product::<usize>();
        if (o.dtype.is_none() || n > 0) && (o.fill.len() <= 1 || o.fill.len() != n) {
            o.shape.iter_mut().for_each(|n| *n = new.get(n).copied().unwrap_or(*n));
        }
    }
    if case.operands.iter().flatten().map(|o| o.shape.iter().product::<usize>()).sum::<usize>() > 1 << 14 {
        case.operands.iter_mut().flatten().flat_map(|o| &mut o.shape).for_each(|n| *n = (*n).min(4));
    }
}

/// Attributes that are 0 or 1.
const FLAGS: &[&str] = &[
    "keepdims",
    "exclusive",
    "reverse",
    "largest",
    "transA",
    "transB",
    "transBatchA",
    "noop_with_empty_axes",
    "ceil_mode",
    "count_include_pad",
    "is_causal",
    "upper",
    "select_last_index",
    "align_corners",
    "exclude_outside",
    "antialias",
    "linear_before_reset",
    "input_forget",
    "layout",
    "interleaved",
    "allowzero",
];
/// Attributes that scale.
const SCALES: &[&str] = &["alpha", "beta", "gamma", "bias", "lambd", "delta", "scale", "softcap"];

/// Changes flags, axes and scales.
fn vary_attributes(def: &OpDef, case: &mut Case, random: &mut Random) {
    let rank = case.operands.first().and_then(|o| Some(o.as_ref()?.shape.len())).unwrap_or(0) as i64;
    let plain = def.attrs.iter().filter(|a| a.kind != AttrKind::Graph);
    for (slot, a) in plain.enumerate() {
        let new = match (case.attrs.get(slot), a.name) {
            (Attr::Int(v), name) if FLAGS.contains(&name) && random.below(3) == 0 => Attr::Int(1 - v),
            (Attr::Int(v), "axis") if rank > 0 => match random.below(4) {
                0 => Attr::Int(random.below(rank as u64) as i64),
                1 => Attr::Int(if *v < 0 { v + rank } else { v - rank }),
                _ => continue,
            },
            (Attr::Float(v), name) if SCALES.contains(&name) && random.below(3) == 0 => {
                Attr::Float(F32::new(v.get() * [0.5, 2.0, -1.0, 0.25][random.below(4) as usize]))
            }
            _ => continue,
        };
        case.attrs = with_slot(&case.attrs, slot, new);
    }
}

fn with_slot(attrs: &Attrs, slot: usize, value: Attr) -> Attrs {
    Attrs::new(attrs.slots().iter().enumerate().map(|(i, a)| if i == slot { value.clone() } else { a.clone() }))
}
