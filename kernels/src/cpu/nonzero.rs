//! Counting and listing elements that are not zero.

use super::elem::Elem;
use super::{Args, KernelError, missing, product};

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn count<T: Elem>(args: &Args) -> Result<(), KernelError> {
    let (n, out) = (args.size(0)?, args.out::<i64>(1));
    // SAFETY: the caller promises buffers of these sizes.
    let (x, out) = unsafe { (args.read::<T>(0, n).ok_or_else(|| missing("x"))?, out.slice(0, 1)) };
    out[0] = i64::try_from(x.iter().filter(|v| v.is_set()).count()).unwrap_or(i64::MAX);
    Ok(())
}

/// See the catalog.
///
/// # Safety
/// As for [`super::run`].
pub(crate) unsafe fn fill<T: Elem>(args: &Args) -> Result<(), KernelError> {
    let (rank, count) = (args.size(0)?, args.size(1)?);
    if rank > 8 {
        return Err(KernelError(format!("rank {rank} is above 8")));
    }
    let dims = (0..rank).map(|i| args.size(2 + i)).collect::<Result<Vec<_>, _>>()?;
    let (n, n_out, out) = (product(&dims)?, product(&[rank, count])?, args.out::<i64>(1));
    // SAFETY: the caller promises buffers of these sizes.
    let (x, out) = unsafe { (args.read::<T>(0, n).ok_or_else(|| missing("x"))?, out.slice(0, n_out)) };
    let mut found = 0;
    for (i, _) in x.iter().enumerate().filter(|(_, v)| v.is_set()) {
        if found == count {
            return Err(KernelError(format!("more than the {count} elements counted before are not zero")));
        }
        let mut rest = i;
        for (axis, &d) in dims.iter().enumerate().rev() {
            out[axis * count + found] = (rest % d) as i64;
            rest /= d;
        }
        found += 1;
    }
    if found == count { Ok(()) } else { Err(KernelError(format!("{found} of {count} counted elements are not zero"))) }
}
