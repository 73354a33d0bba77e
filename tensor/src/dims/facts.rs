//! What holds of dims whatever the symbols are: bounds, proofs, and what vanishes with what.

use super::{Atom, AtomId, DimId, DimPool, Proof, both, quotient};
use crate::Entity;

/// How deep [`DimPool::vanishes_with`] looks.
const VANISH_DEPTH: usize = 6;

impl DimPool {
    /// Bounds over every value the symbols may take, both inclusive; saturated at the ends of i64.
    pub fn range(&self, d: DimId) -> (i64, i64) {
        let (mut lo, mut hi) = (0i128, 0i128);
        for (m, c) in &self.poly(d).0 {
            let (mut l, mut h) = (1i128, 1i128);
            for t in m {
                let (a, b) = self.atom_range(self.atoms[t.index()]);
                let (a, b) = (i128::from(a), i128::from(b));
                let p = [l.saturating_mul(a), l.saturating_mul(b), h.saturating_mul(a), h.saturating_mul(b)];
                (l, h) = (p.into_iter().min().unwrap_or(0), p.into_iter().max().unwrap_or(0));
            }
            let (a, b) = (l.saturating_mul((*c).into()), h.saturating_mul((*c).into()));
            lo = lo.saturating_add(a.min(b));
            hi = hi.saturating_add(a.max(b));
        }
        let clamp = |x: i128| x.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        (clamp(lo), clamp(hi))
    }
    fn atom_range(&self, a: Atom) -> (i64, i64) {
        // Each operand is looked at once: quotients nest as deep as a model has windows, and two looks at each would be 2ⁿ at the innermost.
        let r = |d| self.range(d);
        let unknown = (i64::MIN, i64::MAX);
        match a {
            Atom::Sym(s) => (self.symbols[s].lo, self.symbols[s].hi),
            Atom::Min(a, b) => both(r(a), r(b), i64::min),
            Atom::Max(a, b) => both(r(a), r(b), i64::max),
            Atom::Mod(_, b) => match r(b) {
                (lo, hi) if lo > 0 => (0, hi.saturating_sub(1)),
                _ => unknown,
            },
            Atom::FloorDiv(a, b) => quotient(r(a), r(b)).unwrap_or(unknown),
            // One more than the quotient bounds both roundings.
            Atom::CeilDiv(a, b) => quotient(r(a), r(b)).map_or(unknown, |(lo, hi)| (lo, hi.saturating_add(1))),
        }
    }
    /// Whether every value is 0 or 1: an axis of this extent has one element, at index 0, or none.
    pub fn is_at_most_one(&self, d: DimId) -> bool {
        matches!(self.range(d), (0.., ..=1))
    }
    /// Whether `part` is known to be `whole` times something that is 0 or 1.
    pub fn is_part(&self, part: DimId, whole: DimId) -> bool {
        let ([(m, 1)], [(all, 1)]) = (self.poly(part).0.as_slice(), self.poly(whole).0.as_slice()) else {
            return false;
        };
        let mut rest = m.clone();
        for t in all {
            match rest.iter().position(|x| x == t) {
                Some(i) => drop(rest.remove(i)),
                None => return false,
            }
        }
        let mark = |t: &AtomId| matches!(self.atom_range(self.atoms[t.index()]), (0.., ..=1));
        !all.is_empty() && rest.iter().all(mark)
    }
    /// Whether `d` is known to be 0 wherever `by`, which is never negative, is 0. "No" means that it was not found out.
    pub fn vanishes_with(&self, d: DimId, by: DimId) -> bool {
        self.vanishes(d, by, VANISH_DEPTH)
    }
    fn vanishes(&self, d: DimId, by: DimId, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        if d == by {
            return true;
        }
        if let [(m, 1)] = self.poly(by).0.as_slice() {
            if !m.is_empty() && self.poly(d).0.iter().all(|(own, _)| m.iter().all(|t| own.contains(t))) {
                return true;
            }
            // A minimum with what is positive is 0 where the other one is.
            if let [t] = m.as_slice()
                && let Atom::Min(a, b) = self.atoms[t.index()]
            {
                let other = if self.range(a).0 > 0 { Some(b) } else { (self.range(b).0 > 0).then_some(a) };
                if other.is_some_and(|x| self.range(x).0 >= 0 && self.vanishes(d, x, depth)) {
                    return true;
                }
            }
        }
        let vanishes = |x: DimId| self.vanishes(x, by, depth);
        let factor = |t: &AtomId| match self.atoms[t.index()] {
            Atom::Min(a, b) => self.range(a).0 >= 0 && self.range(b).0 >= 0 && (vanishes(a) || vanishes(b)),
            Atom::Max(a, b) => vanishes(a) && vanishes(b),
            Atom::FloorDiv(a, b) | Atom::CeilDiv(a, b) => self.range(b).0 > 0 && vanishes(a),
            Atom::Sym(_) | Atom::Mod(..) => false,
        };
        self.poly(d).0.iter().all(|(m, _)| m.iter().any(factor))
    }
    /// What `build` builds, unless it overflows: then nothing, and the pool is not overflowed by it. For expressions that no model
    /// asks for, as those of proofs.
    pub fn checked<T>(&mut self, build: impl FnOnce(&mut DimPool) -> T) -> Option<T> {
        let before = std::mem::take(&mut self.overflowed);
        let built = build(self);
        (!std::mem::replace(&mut self.overflowed, before)).then_some(built)
    }

    /// Whether `a = b` for every value the symbols may take.
    pub fn prove_eq(&mut self, a: DimId, b: DimId) -> Proof {
        if a == b {
            return Proof::Yes;
        }
        let Some(d) = self.checked(|p| p.sub(a, b)) else { return Proof::Unknown };
        match self.range(d) {
            (0, 0) => Proof::Yes,
            (lo, hi) if lo > 0 || hi < 0 => Proof::No,
            _ => Proof::Unknown,
        }
    }
    /// Whether `a ≤ b` for every value the symbols may take.
    pub fn prove_le(&mut self, a: DimId, b: DimId) -> Proof {
        let Some(d) = self.checked(|p| p.sub(b, a)) else { return Proof::Unknown };
        match self.range(d) {
            (lo, _) if lo >= 0 => Proof::Yes,
            (_, hi) if hi < 0 => Proof::No,
            _ => Proof::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, SymId};
    use super::*;

    fn pool() -> (DimPool, DimId, DimId) {
        let mut p = DimPool::new();
        let s = p.symbol("s", Origin::Unknown);
        let t = p.symbol("t", Origin::Unknown);
        (p, s, t)
    }

    #[test]
    fn what_is_0_with_another_extent_is_found_by_its_factors() {
        let (mut p, ..) = pool();
        let mut check = |d: &str, by: &str, want: bool| {
            let (d, by) = (p.parse(d).unwrap(), p.parse(by).unwrap());
            assert_eq!(p.vanishes_with(d, by), want, "{} by {}", p.display(d), p.display(by));
            if want {
                // Every pair of values agrees.
                for (s, t) in (0..5).flat_map(|s| (0..5).map(move |t| (s, t))) {
                    let env = |x: SymId| Some(if p.sym(x).name == "s" { s } else { t });
                    assert!(p.eval(by, &env) != Ok(0) || p.eval(d, &env) == Ok(0), "{s}, {t}");
                }
            }
        };
        check("s", "min(1, s)", true);
        check("3*s*t", "min(1, s)", true);
        check("s + s*t", "min(1, s)", true);
        check("min(s, t)", "min(1, s)", true);
        check("floordiv(s + s*t, 2)", "min(1, s)", true);
        check("min(1, s)*t", "min(1, s)", true);
        check("max(s, s*t)", "min(1, s)", true);
        check("2*min(1, s)*t", "t*min(1, s)", true);
        check("s + 1", "min(1, s)", false);
        check("max(s, t)", "min(1, s)", false);
        check("t", "min(1, s)", false);
        check("s", "min(1, s)*t", false);
        check("s", "min(1, max(0, s - 1))", false);
        check("min(s, t - 1)", "min(1, s)", false);
    }

    #[test]
    fn a_part_of_an_extent_is_it_times_marks() {
        let (mut p, ..) = pool();
        let mut check = |part: &str, whole: &str, want: bool| {
            let (a, b) = (p.parse(part).unwrap(), p.parse(whole).unwrap());
            assert_eq!(p.is_part(a, b), want, "{part} of {whole}");
        };
        check("s*min(1, t)", "s", true);
        check("s*min(1, t)*min(1, s)", "s*min(1, s)", true);
        check("s*min(2, t)", "s", false);
        check("s*t", "s", false);
        check("2*s*min(1, t)", "s", false);
        check("min(1, t)", "s", false);
        check("min(1, t)", "1", false);
    }
}
