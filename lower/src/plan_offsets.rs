//! Offsets of a memory plan: sums and maxima over dims, each once.
//!
//! The dims themselves stay polynomials. Maxima of sums of maxima would not be small as dim expressions (a dim prints and
//! evaluates as a tree), so offsets are a graph of their own, evaluated and emitted bottom up: linear in its size.

use indexmap::IndexSet;
use tensor::dims::Proof;
use tensor::{DimId, DimPool, Entity, Result, SymId};

tensor::entity! {
    /// An offset or size in bytes in an [`OffsetPool`].
    pub struct OffsetId, "o"
}

/// How an offset is computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OffsetExpr {
    /// A dim expression.
    Dim(DimId),
    /// An offset plus a size.
    Add(OffsetId, DimId),
    /// The greatest of at least two.
    Max(Box<[OffsetId]>),
}

/// Most alternatives that one maximum lists, and that an addition distributes over: more stay nested.
const MAX_WIDTH: usize = 6;

/// Every offset of a plan once; operands come before users.
#[derive(Clone, Debug, Default)]
pub struct OffsetPool {
    exprs: IndexSet<OffsetExpr>,
}

impl OffsetPool {
    fn intern(&mut self, e: OffsetExpr) -> OffsetId {
        OffsetId::new(self.exprs.insert_full(e).0)
    }
    /// How an offset is computed.
    pub fn get(&self, o: OffsetId) -> &OffsetExpr {
        &self.exprs[o.index()]
    }
    /// How many offsets there are; ids are `0..len`.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }
    /// All offsets; operands come before users.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (OffsetId, &OffsetExpr)> {
        self.exprs.iter().enumerate().map(|(i, e)| (OffsetId::new(i), e))
    }
    /// A dim expression as an offset.
    pub fn dim(&mut self, d: DimId) -> OffsetId {
        self.intern(OffsetExpr::Dim(d))
    }
    fn as_dim(&self, o: OffsetId) -> Option<DimId> {
        match self.get(o) {
            OffsetExpr::Dim(d) => Some(*d),
            _ => None,
        }
    }
    /// The value when it is a constant.
    pub fn as_const(&self, dims: &DimPool, o: OffsetId) -> Option<i64> {
        dims.as_const(self.as_dim(o)?)
    }

    /// `o + d`. Distributes over a small maximum of dims, so that alternatives can be compared later.
    pub fn add(&mut self, dims: &mut DimPool, o: OffsetId, d: DimId) -> OffsetId {
        if dims.as_const(d) == Some(0) {
            return o;
        }
        match self.get(o).clone() {
            OffsetExpr::Dim(x) => {
                let s = dims.add(x, d);
                self.dim(s)
            }
            OffsetExpr::Max(xs) => {
                let flat: Option<Vec<DimId>> = xs.iter().map(|&x| self.as_dim(x)).collect();
                match flat {
                    Some(ds) => {
                        let mut sums: Vec<OffsetId> = Vec::with_capacity(ds.len());
                        for x in ds {
                            let s = dims.add(x, d);
                            sums.push(self.dim(s));
                        }
                        sums.sort();
                        self.intern(OffsetExpr::Max(sums.into()))
                    }
                    None => self.intern(OffsetExpr::Add(o, d)),
                }
            }
            OffsetExpr::Add(..) => self.intern(OffsetExpr::Add(o, d)),
        }
    }

    /// The greatest of `os` (0 when empty). Alternatives that dim facts prove to be no greater than another are left out when
    /// `prove`, else only constants are compared.
    pub fn max(&mut self, dims: &mut DimPool, os: impl IntoIterator<Item = OffsetId>, prove: bool) -> OffsetId {
        let mut flat: Vec<OffsetId> = os.into_iter().collect();
        flat.sort();
        flat.dedup();
        if flat.len() == 1 {
            return flat[0];
        }
        // Nested maxima join while the list stays short.
        let mut wide: Vec<OffsetId> = vec![];
        for &o in &flat {
            match self.get(o) {
                OffsetExpr::Max(xs) => wide.extend(xs.iter().copied()),
                _ => wide.push(o),
            }
        }
        wide.sort();
        wide.dedup();
        if wide.len() <= 2 * MAX_WIDTH {
            let kept = self.prune(dims, wide, prove);
            if kept.len() <= MAX_WIDTH {
                flat = kept;
            } else {
                flat = self.prune(dims, flat, prove);
            }
        } else {
            flat = self.prune(dims, flat, false);
        }
        match flat.as_slice() {
            [] => {
                let zero = dims.constant(0);
                self.dim(zero)
            }
            [one] => *one,
            _ => self.intern(OffsetExpr::Max(flat.into())),
        }
    }

    fn prune(&self, dims: &mut DimPool, os: Vec<OffsetId>, prove: bool) -> Vec<OffsetId> {
        let greatest = os.iter().filter_map(|&o| self.as_const(dims, o)).max();
        let mut out: Vec<OffsetId> = Vec::with_capacity(os.len());
        for o in os {
            match (self.as_const(dims, o), self.as_dim(o)) {
                (Some(c), _) if Some(c) < greatest => continue,
                (_, Some(d)) if prove => {
                    let others: Vec<DimId> = out.iter().filter_map(|&x| self.as_dim(x)).collect();
                    if others.iter().any(|&x| dims.prove_le(d, x) == Proof::Yes) {
                        continue;
                    }
                    let beaten: Vec<DimId> =
                        others.into_iter().filter(|&x| dims.prove_le(x, d) == Proof::Yes).collect();
                    out.retain(|&x| self.as_dim(x).is_none_or(|x| !beaten.contains(&x)));
                    out.push(o);
                }
                _ => out.push(o),
            }
        }
        out
    }

    /// The value of every offset under `env`, by id.
    ///
    /// # Errors
    /// `Shape` when a symbol has no value, on overflow and on division by zero.
    pub fn eval_all(&self, dims: &DimPool, env: &impl Fn(SymId) -> Option<i64>) -> Result<Vec<i64>> {
        let mut out: Vec<i64> = Vec::with_capacity(self.exprs.len());
        for e in &self.exprs {
            let v = match e {
                OffsetExpr::Dim(d) => dims.eval(*d, env)?,
                OffsetExpr::Add(o, d) => {
                    let (a, b) = (out[o.index()], dims.eval(*d, env)?);
                    a.checked_add(b).ok_or_else(|| crate::plan::too_large(a, b))?
                }
                OffsetExpr::Max(os) => os.iter().map(|o| out[o.index()]).max().unwrap_or(0),
            };
            out.push(v);
        }
        Ok(out)
    }

    /// Prints an offset. Parts that occur more than once in a large expression are named first:
    /// `t1 = max(a, b); max(t1 + c, t1 + d)`.
    pub fn display(&self, dims: &DimPool, root: OffsetId) -> String {
        let (head, body) = self.display_parts(dims, root, "t");
        head + &body
    }
    /// Definitions of named parts (each ends in `; `) and the expression. Names are `prefix` and a number.
    pub fn display_parts(&self, dims: &DimPool, root: OffsetId, prefix: &str) -> (String, String) {
        const LARGE: u64 = 64;
        const DEEP: usize = 8;
        // No name of the model may be taken for one of ours.
        let mut prefix = prefix.to_string();
        while dims.symbols().any(|(_, s)| s.name.starts_with(&prefix)) {
            prefix.insert(0, '_');
        }
        let n = root.index() + 1;
        let mut tree = vec![1u64; n];
        let mut uses = vec![0u32; n];
        let mut reach = vec![false; n];
        reach[root.index()] = true;
        for (i, e) in self.exprs.iter().enumerate().take(n) {
            tree[i] = match e {
                OffsetExpr::Dim(_) => 1,
                OffsetExpr::Add(o, _) => tree[o.index()].saturating_add(1),
                OffsetExpr::Max(os) => os.iter().fold(1u64, |a, o| a.saturating_add(tree[o.index()])),
            };
        }
        for i in (0..n).rev() {
            if !reach[i] {
                continue;
            }
            let mut touch = |o: &OffsetId| {
                reach[o.index()] = true;
                uses[o.index()] += 1;
            };
            match &self.exprs[i] {
                OffsetExpr::Dim(_) => {}
                OffsetExpr::Add(o, _) => touch(o),
                OffsetExpr::Max(os) => os.iter().for_each(touch),
            }
        }
        let share = tree[root.index()] > LARGE;
        let mut text: Vec<String> = vec![String::new(); n];
        let mut depth = vec![0usize; n];
        let (mut head, mut k) = (String::new(), 0);
        for i in (0..n).filter(|&i| reach[i]) {
            let body = match &self.exprs[i] {
                OffsetExpr::Dim(d) => dims.display(*d).to_string(),
                OffsetExpr::Add(o, d) => format!("{} + {}", text[o.index()], dims.display(*d)),
                OffsetExpr::Max(os) => {
                    // Binary, so that the same text parses as a dim expression.
                    let mut it = os.iter().map(|o| text[o.index()].clone());
                    let first = it.next().unwrap_or_default();
                    it.fold(first, |a, b| format!("max({a}, {b})"))
                }
            };
            depth[i] = match &self.exprs[i] {
                OffsetExpr::Dim(_) => 0,
                OffsetExpr::Add(o, _) => depth[o.index()],
                OffsetExpr::Max(os) => os.len() + os.iter().map(|o| depth[o.index()]).max().unwrap_or(0),
            };
            let named = share && (uses[i] > 1 || depth[i] >= DEEP) && !matches!(self.exprs[i], OffsetExpr::Dim(_));
            if named {
                depth[i] = 0;
            }
            text[i] = if named {
                k += 1;
                head += &format!("{prefix}{k} = {body}; ");
                format!("{prefix}{k}")
            } else {
                body
            };
        }
        (head, std::mem::take(&mut text[root.index()]))
    }
}
