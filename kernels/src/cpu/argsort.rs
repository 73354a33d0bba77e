//! Positions of the least keys of each row, in order.

use super::{Args, KernelError, missing, product};
use crate::team::Team;

/// Keys that are worth a thread of their own.
const GRAIN: usize = 1 << 12;

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn argsort(team: &dyn Team, args: &Args) -> Result<(), KernelError> {
    let (rows, n, k) = (args.size(0)?, args.size(1)?, args.size(2)?);
    if k > n {
        return Err(KernelError(format!("{k} of {n} keys")));
    }
    let total = product(&[rows, n])?;
    // SAFETY: the caller promises buffers of these sizes.
    let keys = unsafe { args.read::<i64>(0, total) }.ok_or_else(|| missing("keys"))?;
    let (out, work) = (args.out::<i64>(1), args.out::<(u64, u64)>(2));
    team.run(rows, GRAIN.div_ceil(n.max(1)), &|begin, end| {
        for row in begin..end {
            // SAFETY: each task owns its rows.
            let (pairs, out) = unsafe { (work.slice(row * n, n), out.slice(row * k, k)) };
            for ((i, pair), &key) in pairs.iter_mut().enumerate().zip(&keys[row * n..]) {
                *pair = (key as u64, i as u64);
            }
            // No two pairs are equal: the order is the only one, however it is found.
            if 0 < k && k < n {
                pairs.select_nth_unstable(k - 1);
            }
            pairs[..k].sort_unstable();
            out.iter_mut().zip(pairs).for_each(|(o, pair)| *o = pair.1 as i64);
        }
    });
    Ok(())
}
