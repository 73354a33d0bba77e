//! Attention of grouped heads over a cache in which each sample has its own number of positions.

use crate::heads::{Added, Heads};
use crate::math;
use tensor::{Diagnostic, ErrorKind, Result};

fn bad(text: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Shape, text)
}

/// A cache that holds the latest positions alone: of `capacity` rows, at least the last `window` positions.
#[derive(Clone, Copy, Debug)]
pub struct Latest {
    /// Rows of the buffer.
    pub capacity: i128,
    /// Positions that a query sees.
    pub window: i128,
}

impl Latest {
    /// How many positions are held after `n`: when the buffer is full, as many go as there is room beyond the window, and one more.
    pub fn held(&self, n: i128) -> i128 {
        let over = n - self.capacity;
        let step = self.capacity - self.window + 1;
        if over <= 0 { n } else { n - step * ((over + step - 1) / step) }
    }
}

/// Where a step's keys lie.
#[derive(Clone, Debug)]
pub struct Step {
    /// Positions of each sample after the step.
    pub total: Vec<i128>,
    /// How many of the new keys of each sample count.
    pub new: Vec<i128>,
    /// Of a cache that holds the latest positions.
    pub latest: Option<Latest>,
}

impl Step {
    /// The first position that a cache holds after `n`.
    fn first(&self, n: i128) -> i128 {
        self.latest.map_or(0, |l| n - l.held(n))
    }
    /// Element `[b, h, position, d]`: of what is new, or of the past.
    fn at(&self, past: &Heads, new: &Heads, [b, h, p, d]: [usize; 4]) -> f64 {
        let before = self.total[b] - self.new[b];
        let row = |r: i128, of: &Heads| usize::try_from(r).ok().filter(|&r| r < of.shape[2]);
        match p as i128 >= before {
            true => row(p as i128 - before, new).map_or(0.0, |r| new.at([b, h, r, d])),
            false => row(p as i128 - self.first(before), past).map_or(0.0, |r| past.at([b, h, r, d])),
        }
    }
    /// The cache of `length` positions after the step. Where all positions have a place, keys that do not count come after those that
    /// do; all else is as it was, and 0 beyond the past.
    ///
    /// # Errors
    /// `Shape` where past and new do not fit together.
    pub fn present(&self, past: &Heads, new: &Heads, length: usize) -> Result<Heads> {
        let [b, h, _, d] = new.shape;
        self.check(past, new)?;
        if self.latest.is_some() {
            return Ok(Heads::build([b, h, length, d], |[b, h, i, d]| {
                let total = self.total[b];
                match i as i128 >= total - self.first(total) {
                    true => 0.0,
                    false => self.at(past, new, [b, h, i + usize::try_from(self.first(total)).unwrap_or(0), d]),
                }
            }));
        }
        let old = |[b, h, i, d]: [usize; 4]| if i < past.shape[2] { past.at([b, h, i, d]) } else { 0.0 };
        let from: Vec<i128> = self.total.iter().zip(&self.new).map(|(t, n)| t - n).collect();
        new.within(&Heads::build([b, h, length, d], old), &from)
    }
    fn check(&self, past: &Heads, new: &Heads) -> Result<()> {
        let ([b, h, m, d], [b2, h2, _, d2]) = (past.shape, new.shape);
        let has_room = self.latest.is_none_or(|l| l.window >= 1 && l.capacity >= l.window && l.capacity == m as i128);
        if (b, h, d) != (b2, h2, d2) || self.total.len() != b || self.new.len() != b || !has_room {
            return Err(bad(format!(
                "a past of {:?} before {:?} of {} samples",
                past.shape,
                new.shape,
                self.total.len()
            )));
        }
        Ok(())
    }
    /// Keys or values of all positions up to `length`, 0 where none is held.
    ///
    /// # Errors
    /// `Shape` where past and new do not fit together.
    pub fn all(&self, past: &Heads, new: &Heads, length: usize) -> Result<Heads> {
        let [b, h, _, d] = new.shape;
        self.check(past, new)?;
        Ok(Heads::build([b, h, length, d], |[b, h, p, d]| {
            let held = (p as i128) < self.total[b] && p as i128 >= self.first(self.total[b] - self.new[b]);
            if held { self.at(past, new, [b, h, p, d]) } else { 0.0 }
        }))
    }
}

/// How scores become shares.
#[derive(Clone, Debug)]
pub struct Scores {
    /// By default `1/√d`.
    pub scale: Option<f64>,
    /// Scores become `c · tanh(score / c)`; 0 for none.
    pub softcap: f64,
    /// Added after that.
    pub added: Option<Added>,
    /// For each head a score that has a share of its own, but no value.
    pub sinks: Option<Vec<f64>>,
    /// A query sees keys up to its position.
    pub causal: bool,
    /// A query sees as many keys, up to the last that it sees.
    pub window: Option<i128>,
}

/// Attention of queries whose first is at position `starts[b]`, over the first `totals[b]` keys. A query after the last position sees
/// what one at the last position would. Gives the result, scores and shares; both are 0 for keys that are not seen.
///
/// # Shapes
/// q `[b, h, s, d]`, k `[b, hk, t, d]`, v `[b, hk, t, d]`
///
/// # Errors
/// `Shape` when they do not fit together.
pub fn grouped(
    [q, k, v]: [&Heads; 3],
    starts: &[i128],
    totals: &[i128],
    how: &Scores,
) -> Result<(Heads, Heads, Heads)> {
    let ([b, h, s, d], [_, hk, t, e]) = (q.shape, v.shape);
    let samples = starts.len() == b && totals.len() == b && how.sinks.as_ref().is_none_or(|s| s.len() == h);
    if k.shape != [b, hk, t, d] || v.shape[0] != b || hk == 0 || h % hk != 0 || !samples {
        return Err(bad(format!("queries {:?}, keys {:?}, values {:?}", q.shape, k.shape, v.shape)));
    }
    let scale = how.scale.unwrap_or(1.0 / (d.max(1) as f64).sqrt());
    let sees = |[b, _, i, j]: [usize; 4]| {
        let (last, j) = (totals[b] - 1, j as i128);
        let p = if how.causal { last.min(starts[b] + i as i128) } else { last };
        j <= p && how.window.is_none_or(|w| j > p - w)
    };
    let scores = Heads::build([b, h, s, t], |at| {
        let [i, j, row, key] = at;
        if !sees(at) {
            return 0.0;
        }
        let x = scale * math::sum((0..d).map(|c| q.at([i, j, row, c]) * k.at([i, j / (h / hk), key, c])));
        let x = if how.softcap > 0.0 { how.softcap * (x / how.softcap).tanh() } else { x };
        x + how.added.as_ref().map_or(0.0, |a| a.at(at))
    });
    let mut shares = Heads { v: vec![0.0; b * h * s * t], shape: [b, h, s, t] };
    for row in 0..b * h * s {
        let (i, j, r) = (row / (h * s), row / s % h, row % s);
        let seen: Vec<usize> = (0..t).filter(|&key| sees([i, j, r, key])).collect();
        let sink = how.sinks.as_ref().map_or(f64::NEG_INFINITY, |s| s[j]);
        let most = seen.iter().map(|&key| scores.v[row * t + key]).fold(sink, f64::max);
        if most == f64::NEG_INFINITY {
            continue;
        }
        let share = |key: &usize| (scores.v[row * t + key] - most).exp();
        let all = math::sum(seen.iter().map(share)) + (sink - most).exp();
        seen.iter().for_each(|key| shares.v[row * t + key] = share(key) / all);
    }
    let y = Heads::build([b, h, s, e], |[i, j, row, c]| {
        let of = |key| shares.at([i, j, row, key]);
        math::sum((0..t).filter(|&key| of(key) != 0.0).map(|key| of(key) * v.at([i, j / (h / hk), key, c])))
    });
    Ok((y, scores, shares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_drops_several_positions_at_once() {
        let l = Latest { capacity: 8, window: 6 };
        assert_eq!([5, 8, 9, 10, 11, 12].map(|n| l.held(n)), [5, 8, 6, 7, 8, 6]);
        let l = Latest { capacity: 4, window: 4 };
        assert_eq!([3, 4, 5, 9].map(|n| l.held(n)), [3, 4, 4, 4]);
    }

    #[test]
    fn new_keys_follow_the_past_of_their_sample() {
        let past = Heads::build([2, 1, 4, 1], |[b, _, p, _]| (10 * b + p) as f64);
        let new = Heads::build([2, 1, 2, 1], |[b, _, p, _]| (100 + 10 * b + p) as f64);
        let step = Step { total: vec![3, 5], new: vec![2, 2], latest: None };
        let present = step.present(&past, &new, 5).unwrap();
        assert_eq!(present.v, [0.0, 100.0, 101.0, 3.0, 0.0, 10.0, 11.0, 12.0, 110.0, 111.0]);
        let latest = Some(Latest { capacity: 4, window: 3 });
        let step = Step { total: vec![3, 5], new: vec![2, 2], latest };
        let present = step.present(&past, &new, 4).unwrap();
        assert_eq!(present.v, [0.0, 100.0, 101.0, 0.0, 12.0, 110.0, 111.0, 0.0]);
    }
}
