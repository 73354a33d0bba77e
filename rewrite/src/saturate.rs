//! Saturation: search all rules, apply all matches, restore congruence; until nothing changes or a limit is reached.

use crate::facts::Graph;
use crate::report::Stop;
use crate::rule::{Compiled, Cx, Skip};
use egg::Id;
use ir::Shape;
use ir::Type;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::time::Instant;
use tensor::DType;

/// Matches of one left-hand side looked at per class.
pub const MATCHES_PER_CLASS: usize = 32;

/// Limits of one e-graph. Nodes and rounds only, so that results do not depend on the machine; time when asked for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// E-nodes.
    pub nodes: usize,
    /// Rounds.
    pub rounds: usize,
    /// The moment to stop.
    pub deadline: Option<Instant>,
}

/// What saturation did to one e-graph.
#[derive(Debug)]
pub struct Saturation {
    /// Why it ended.
    pub stop: Stop,
    /// Rounds.
    pub rounds: usize,
    /// Unions per rule.
    pub applied: BTreeMap<&'static str, usize>,
    /// Near misses: rule, class, condition.
    pub misses: Vec<(&'static str, Id, String)>,
}

/// Saturates `eg`.
pub fn saturate(eg: &mut Graph, rules: &[Compiled], limits: &Limits) -> Saturation {
    let mut out = Saturation { stop: Stop::Rounds, rounds: 0, applied: BTreeMap::new(), misses: Vec::new() };
    let mut hits: Vec<(&'static str, Id)> = Vec::new();
    merge_equal_values(eg);
    eg.rebuild();
    for round in 0..limits.rounds {
        out.rounds = round + 1;
        let (size_before, classes_before) = (eg.total_size(), eg.number_of_classes());
        let mut found = Vec::new();
        for (r, rule) in rules.iter().enumerate() {
            for (l, (lhs, _)) in rule.lhs.iter().enumerate() {
                let mut classes: Vec<Id> = lhs
                    .root_kinds()
                    .iter()
                    .filter_map(|k| eg.classes_for_op(k))
                    .flatten()
                    .map(|c| eg.find(c))
                    .collect();
                classes.sort_unstable();
                classes.dedup();
                for c in classes {
                    // A class that is a constant needs nothing more.
                    if eg[c].data.konst.is_none() {
                        found.extend(
                            lhs.matches(eg, c, rule.rule.idiom, MATCHES_PER_CLASS).into_iter().map(|m| (r, l, m)),
                        );
                    }
                }
            }
        }
        out.misses.clear();
        let mut over = false;
        for (r, l, m) in found {
            if eg.total_size() > limits.nodes {
                over = true;
                break;
            }
            let rule = &rules[r];
            let root = eg.find(m.root);
            let result = rule.apply(&mut Cx { eg }, l, &m);
            match result {
                Ok(id) => {
                    let (root, id) = (eg.find(root), eg.find(id));
                    hits.push((rule.rule.name, root));
                    if root == id {
                        continue;
                    }
                    let (a, b) = (eg[root].data.ty.clone(), eg[id].data.ty.clone());
                    let lost = matches!(&*b, Type::Unknown) && !matches!(&*a, Type::Unknown);
                    if lost || !eg.analysis.compatible(&a, &b) {
                        let show = |t: &Type| t.display(&eg.analysis.dims);
                        let text = format!("{} and {} ({})", show(&a), show(&b), rule.rule.name);
                        eg.analysis.conflicts.push(text);
                        continue;
                    }
                    eg.union(root, id);
                    *out.applied.entry(rule.rule.name).or_default() += 1;
                }
                Err(Skip::Miss(why)) if rule.rule.idiom => out.misses.push((rule.rule.name, root, why.into_owned())),
                Err(_) => {}
            }
        }
        eg.rebuild();
        merge_equal_values(eg);
        eg.rebuild();
        if over {
            out.stop = Stop::Nodes;
            break;
        }
        if (eg.total_size(), eg.number_of_classes()) == (size_before, classes_before) {
            out.stop = Stop::Saturated;
            break;
        }
        if limits.deadline.is_some_and(|d| Instant::now() >= d) {
            out.stop = Stop::Time;
            break;
        }
    }
    let mut done: Vec<(&str, Id)> = hits.into_iter().map(|(r, c)| (r, eg.find(c))).collect();
    done.sort_unstable();
    done.dedup();
    out.misses = std::mem::take(&mut out.misses).into_iter().map(|(r, c, w)| (r, eg.find(c), w)).collect();
    out.misses.retain(|(r, c, _)| done.binary_search(&(*r, *c)).is_err());
    out.misses.sort();
    out.misses.dedup();
    out
}

/// Integer tensors of one type whose elements are the same dims are equal, however they are computed.
fn merge_equal_values(eg: &mut Graph) {
    let mut ids: Vec<Id> = eg.classes().filter(|c| c.data.values.is_some()).map(|c| c.id).collect();
    ids.sort_unstable();
    let mut first: FxHashMap<(DType, Shape, Shape), Id> = FxHashMap::default();
    for id in ids {
        let d = &eg[id].data;
        let (Some(v), Some(t)) = (&d.values, d.ty.as_tensor()) else { continue };
        let Some(shape) = t.shape.clone() else { continue };
        let key = (t.dtype, shape, v.clone());
        match first.get(&key) {
            Some(&other) => {
                eg.union(other, id);
            }
            None => {
                first.insert(key, id);
            }
        }
    }
}
