//! Counts breaks made on purpose: how many a check noticed, which it did not, where there was nothing to break.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What became of breaks.
#[derive(Default)]
pub struct Tally {
    /// Noticed and made, by kind.
    kinds: BTreeMap<String, (usize, usize)>,
    /// Those that were not noticed.
    blind: Vec<String>,
    /// Entries in which a kind finds nothing to break, by kind.
    none: BTreeMap<String, Vec<String>>,
}

impl Tally {
    /// A break of `kind` in `entry`; `what` was broken.
    pub fn made(&mut self, kind: &str, entry: &str, what: &str, noticed: bool) {
        let k = self.kinds.entry(kind.into()).or_default();
        *k = (k.0 + usize::from(noticed), k.1 + 1);
        if !noticed {
            self.blind.push(format!("{entry} to {kind}: {what}"));
        }
    }
    /// There is nothing of `kind` to break in `entry`.
    pub fn none(&mut self, kind: &str, entry: &str) {
        self.none.entry(kind.into()).or_default().push(entry.into());
    }
    /// Adds another one's.
    pub fn add(&mut self, other: Tally) {
        for (kind, (seen, n)) in other.kinds {
            let k = self.kinds.entry(kind).or_default();
            *k = (k.0 + seen, k.1 + n);
        }
        self.blind.extend(other.blind);
        for (kind, entries) in other.none {
            self.none.entry(kind).or_default().extend(entries);
        }
    }
    fn total(&self) -> (usize, usize) {
        self.kinds.values().fold((0, 0), |a, k| (a.0 + k.0, a.1 + k.1))
    }
    /// One line for a table.
    pub fn line(&self) -> String {
        let part = |(kind, (seen, n)): (&String, &(usize, usize))| format!("{kind} {seen}/{n}");
        self.kinds.iter().map(part).collect::<Vec<_>>().join(", ")
    }
    /// The whole as JSON.
    pub fn json(&self) -> Value {
        let (seen, n) = self.total();
        json!({"noticed": seen, "breaks": n, "kinds": self.kinds, "insensitive": self.blind, "nothing_to_break": self.none})
    }
    /// Prints what was not noticed and demands that at least 95 % was, of every model or case together.
    ///
    /// # Errors
    /// When fewer were, or none were made.
    pub fn verdict(&self) -> Result<()> {
        for (kind, entries) in &self.none {
            println!("nothing to break by {kind} in {}: {}", entries.len(), shorten(entries));
        }
        self.blind.iter().for_each(|b| println!("insensitive: {b}"));
        let (seen, n) = self.total();
        println!("{seen} of {n} breaks noticed ({})", self.line());
        if n == 0 || seen * 100 < n * 95 { bail!("fewer than 95 % of the breaks were noticed") } else { Ok(()) }
    }
}

fn shorten(all: &[String]) -> String {
    let shown = all.iter().take(12).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > 12 { format!("{shown}, …") } else { shown }
}
