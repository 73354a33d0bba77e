//! The independent checker of memory plans.

use crate::plan::{ALIGN, Interval};
use tensor::{Diagnostic, ErrorKind, Result};

/// What a pool needs at given symbol values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Bytes of the pool.
    pub peak: i64,
    /// The largest sum of sizes that are live at one time.
    pub live: i64,
}

/// Checks placed intervals on numbers: aligned, inside the pool, and no two live at one time share a byte. Walks over time with the
/// live set ordered by address; a newcomer must fit between its neighbors.
///
/// # Errors
/// `Internal` with the two intervals.
pub fn check_intervals(intervals: &[Interval], sizes: &[i64], offsets: &[i64], peak: i64) -> Result<PoolUse> {
    let bad = |what: String| Err(Diagnostic::new(ErrorKind::Internal, what));
    let mut events: Vec<(u32, bool, usize)> = vec![];
    for (i, x) in intervals.iter().enumerate() {
        if offsets[i] % ALIGN != 0 || sizes[i] % ALIGN != 0 {
            return bad(format!("interval {i} at {} of {} bytes is not aligned", offsets[i], sizes[i]));
        }
        if offsets[i] < 0 || sizes[i] < 0 || offsets[i].checked_add(sizes[i]).is_none_or(|e| e > peak) {
            return bad(format!("interval {i} at {} of {} bytes is outside the pool of {peak}", offsets[i], sizes[i]));
        }
        if sizes[i] > 0 {
            events.push((x.start, true, i));
            events.push((x.end.saturating_add(1), false, i));
        }
    }
    // At one time the dead leave before the new come.
    events.sort();
    let mut live: std::collections::BTreeMap<i64, usize> = Default::default();
    let (mut sum, mut most) = (0i64, 0i64);
    for (t, comes, i) in events {
        let at = offsets[i];
        if !comes {
            live.remove(&at);
            sum -= sizes[i];
            continue;
        }
        let below = live.range(..=at).next_back().filter(|(o, j)| **o + sizes[**j] > at);
        let above = live.range(at..).next().filter(|(o, _)| at + sizes[i] > **o);
        if let Some((o, j)) = below.or(above) {
            return bad(format!(
                "intervals {j} [{o}, {}) and {i} [{at}, {}) share bytes at time {t}",
                o + sizes[*j],
                at + sizes[i]
            ));
        }
        live.insert(at, i);
        sum += sizes[i];
        most = most.max(sum);
    }
    Ok(PoolUse { peak, live: most })
}
