//! Entry points of the fuzz targets: each takes bytes, builds an input and checks what must always hold.

use crate::check::check_intervals;
use crate::plan::{Interval, OffsetPool, Packing, pack, round_up};
use tensor::dims::Origin;
use tensor::{DimId, DimPool, Result, SymId};

/// Builds intervals of static and symbolic sizes from bytes.
pub fn intervals(data: &[u8]) -> (DimPool, Vec<SymId>, Vec<Interval>) {
    let mut dims = DimPool::new();
    let mut names = vec![];
    for n in ["b", "s", "h"] {
        names.push(dims.symbol(n, Origin::Unknown));
    }
    let syms = names.iter().filter_map(|&d| dims.as_symbol(d)).collect();
    let mut out = vec![];
    let mut now = 0u32;
    for c in data.chunks_exact(4) {
        now += u32::from(c[0] & 3);
        let end = now + u32::from(c[0] >> 4) * if c[0] & 4 != 0 { 8 } else { 1 };
        let k = dims.constant(i64::from(c[1]) + 1);
        // Which symbols the size has: none, or any product of up to three.
        let picked = (0..3).filter(|i| c[2] & (1 << i) != 0).map(|i| names[i]);
        let picked: Vec<DimId> = picked.chain((c[2] & 8 != 0).then_some(names[1])).chain([k]).collect();
        let elems = dims.product(picked);
        let elems = if c[2] & 16 != 0 { dims.max(elems, k) } else { elems };
        out.push(Interval { start: now, end, size: round_up(&mut dims, elems) });
    }
    (dims, syms, out)
}

/// Packs intervals and checks the packing at several values of the symbols, 0 and primes among them.
///
/// # Errors
/// What the planner or the checker says.
pub fn plan(data: &[u8]) -> Result<()> {
    let (mut dims, syms, iv) = intervals(data);
    let mut pool = OffsetPool::default();
    let p = pack(&mut dims, &mut pool, &iv)?;
    for values in [[0, 0, 0], [1, 1, 1], [1, 127, 3], [5, 2, 31], [0, 64, 7], [13, 257, 12]] {
        check_at(&dims, &pool, &p, &iv, &|s| syms.iter().position(|x| *x == s).map(|i| values[i]))?;
    }
    Ok(())
}

/// Checks a packing at symbol values.
///
/// # Errors
/// What the checker says.
pub fn check_at(
    dims: &DimPool,
    pool: &OffsetPool,
    p: &Packing,
    iv: &[Interval],
    env: &impl Fn(SymId) -> Option<i64>,
) -> Result<crate::check::PoolUse> {
    let (offsets, peak) = p.at(dims, pool, env)?;
    let sizes: Vec<i64> = iv.iter().map(|i| dims.eval(i.size, env)).collect::<Result<_>>()?;
    check_intervals(iv, &sizes, &offsets, peak)
}

#[cfg(test)]
mod tests {
    /// Bytes of a fixed pseudo-random stream.
    pub(crate) fn noise(seed: u64, n: usize) -> Vec<u8> {
        let mut rng = crate::plan_scan::Rng(seed);
        (0..n).map(|_| (rng.next() >> 32) as u8).collect()
    }

    #[test]
    fn plans_of_random_intervals_hold_at_every_sample() {
        for seed in 0..60 {
            let n = 4 * (1 + seed as usize % 80);
            super::plan(&noise(seed, n)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }
}
