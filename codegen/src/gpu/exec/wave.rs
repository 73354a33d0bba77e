//! What the operations of a wave compute, from AMD's ISA documents (CDNA3, RDNA3, RDNA4) and NVIDIA's of PTX.

use super::fiber::{Op, SLOT};
use half::f16;

/// Addresses of a lane's arguments and result; `None` for a lane that is not active.
type Lane = Option<(usize, usize)>;

/// # Safety
/// Argument `i` of a lane lies at `i * SLOT` from the first address, results take up to `SLOT` bytes at the second.
unsafe fn arg<T: Copy>(lane: &Lane, i: usize) -> Option<T> {
    // SAFETY: by this function's contract.
    lane.map(|(args, _)| unsafe { ((args + i * SLOT) as *const T).read() })
}
/// # Safety
/// As for [`arg`].
unsafe fn set<T>(lane: &Lane, v: T) {
    if let Some((_, result)) = lane {
        // SAFETY: by this function's contract.
        unsafe { (*result as *mut T).write(v) };
    }
}

/// One unit in the last place away: the error that an instruction may have.
fn inexact(y: f32) -> f32 {
    if y.is_normal() { f32::from_bits(y.to_bits() ^ 1) } else { y }
}
fn flushed(y: f32) -> f32 {
    if y.is_subnormal() { 0f32.copysign(y) } else { y }
}
/// 2^x.
pub(super) extern "C" fn exp2(x: f32) -> f32 {
    inexact(x.exp2())
}
/// 2^x by an instruction that knows no subnormal numbers.
pub(super) extern "C" fn exp2_flushed(x: f32) -> f32 {
    flushed(exp2(flushed(x)))
}
/// 1/x by an instruction that knows no subnormal numbers.
pub(super) extern "C" fn recip_flushed(x: f32) -> f32 {
    flushed(inexact(1.0 / flushed(x)))
}

/// Computes every active lane's result.
///
/// # Errors
/// When an operand breaks a rule of the instruction.
///
/// # Safety
/// As for [`arg`].
pub(super) unsafe fn perform(op: Op, lanes: &[Lane]) -> Result<(), String> {
    let n = lanes.len();
    // SAFETY: by this function's contract, here and below.
    let int = |l: usize, i: usize| unsafe { arg::<i32>(&lanes[l], i) };
    match op {
        Op::Bpermute => {
            let values: Vec<i32> = (0..n).map(|l| int(l, 1).unwrap_or(0)).collect();
            for l in 0..n {
                let Some(address) = int(l, 0) else { continue };
                // SAFETY: as above.
                unsafe { set(&lanes[l], values[(address as u32 as usize / 4) % n]) };
            }
        }
        Op::Shuffle => {
            let values: Vec<i32> = (0..n).map(|l| int(l, 0).unwrap_or(0)).collect();
            for l in 0..n {
                let Some(from) = int(l, 1) else { continue };
                // SAFETY: as above.
                unsafe { set(&lanes[l], values[from as u32 as usize % n]) };
            }
        }
        Op::MmaSync => {
            // SAFETY: as above.
            unsafe { mma_sync(lanes) }?;
        }
        Op::Ballot => {
            // SAFETY: as above.
            let bit = |l: usize| unsafe { arg::<u8>(&lanes[l], 0) }.is_some_and(|b| b & 1 == 1);
            let votes = (0..n).filter(|&l| bit(l)).fold(0u64, |v, l| v | 1 << l);
            // SAFETY: as above; an i32 result takes the low half.
            lanes.iter().for_each(|l| unsafe { set(l, votes) });
        }
        Op::ReadFirstLane | Op::ReadLane => {
            let values: Vec<Option<i32>> = (0..n).map(|l| int(l, 0)).collect();
            let first = values.iter().position(Option::is_some).unwrap_or(0);
            for l in 0..n {
                let from = if op == Op::ReadLane { int(l, 1).map_or(0, |i| i as u32 as usize % n) } else { first };
                // SAFETY: as above.
                unsafe { set(&lanes[l], values[from].unwrap_or(0)) };
            }
        }
        Op::Dpp => {
            let (old, src): (Vec<_>, Vec<_>) = (0..n).map(|l| (int(l, 0), int(l, 1))).unzip();
            for l in 0..n {
                let (Some(old), Some(control)) = (old[l], int(l, 2)) else { continue };
                let (rows, banks, bound) = (int(l, 3).unwrap_or(15), int(l, 4).unwrap_or(15), int(l, 5).unwrap_or(0));
                let enabled = rows >> (l / 16 % 4) & 1 == 1 && banks >> (l % 16 / 4) & 1 == 1;
                let from = dpp(control as u32, l)?.and_then(|f| src.get(f).copied().flatten());
                let v = match from {
                    Some(v) if enabled => v,
                    None if enabled && bound & 1 == 1 => 0,
                    _ => old,
                };
                // SAFETY: as above.
                unsafe { set(&lanes[l], v) };
            }
        }
        Op::Swizzle => {
            let values: Vec<Option<i32>> = (0..n).map(|l| int(l, 0)).collect();
            for l in 0..n {
                let Some(pattern) = int(l, 1) else { continue };
                let p = pattern as u32 as usize;
                let from = if p >> 15 == 1 {
                    l & !3 | p >> (2 * (l & 3)) & 3
                } else {
                    l & !31 | ((l & 31) & (p & 31) | p >> 5 & 31) ^ (p >> 10 & 31)
                };
                // SAFETY: as above.
                unsafe { set(&lanes[l], values[from].unwrap_or(0)) };
            }
        }
        Op::Mfma => {
            if n != 64 {
                return Err(format!("needs a wave of 64, not {n}"));
            }
            // SAFETY: as above.
            unsafe { matrix::<4, 4>(lanes, |l, j| (l % 16, 4 * (l / 16) + j), |l, r| (4 * (l / 16) + r, l % 16)) }?;
        }
        Op::Wmma11 => {
            // SAFETY: as above.
            unsafe {
                for l in 16..32 {
                    for i in 0..2 {
                        if arg::<[u16; 16]>(&lanes[l], i) != arg::<[u16; 16]>(&lanes[l - 16], i) {
                            return Err(format!("lanes {} and {l} hold different operands", l - 16));
                        }
                    }
                }
                matrix::<16, 8>(lanes, |l, j| (l % 16, j), |l, r| (2 * r + l / 16, l % 16))?;
            }
        }
        Op::Wmma12 => {
            // SAFETY: as above.
            unsafe { matrix::<8, 8>(lanes, |l, j| (l % 16, 8 * (l / 16) + j), |l, r| (8 * (l / 16) + r, l % 16)) }?;
        }
    }
    Ok(())
}

/// The lane that DPP control `c` reads from in lane `l`; `None` when it lies outside.
fn dpp(c: u32, l: usize) -> Result<Option<usize>, String> {
    let (row, at) = (l & !15, l & 15);
    let by = (c & 15) as usize;
    Ok(match c {
        0..=0xff => Some(l & !3 | (c as usize) >> (2 * (l & 3)) & 3),
        0x101..=0x10f => (at + by < 16).then(|| l + by),
        0x111..=0x11f => at.checked_sub(by).map(|a| row + a),
        0x121..=0x12f => Some(row + (at + 16 - by) % 16),
        0x140 => Some(row + 15 - at),
        0x141 => Some((l & !7) + 7 - (l & 7)),
        0x142 => row.checked_sub(1),
        0x143 => (l & !31).checked_sub(1),
        0x150..=0x15f => Some(row + by),
        0x160..=0x16f => Some(row + (at ^ by)),
        _ => return Err(format!("DPP control {c:#x} is not known")),
    })
}

/// d = a · b + c of 16x16x16: `operand` gives row (of a, or column of b) and k of element j in a lane; `result` row and column.
///
/// # Safety
/// As for [`arg`].
unsafe fn matrix<const IN: usize, const OUT: usize>(
    lanes: &[Lane],
    operand: impl Fn(usize, usize) -> (usize, usize),
    result: impl Fn(usize, usize) -> (usize, usize),
) -> Result<(), String> {
    if lanes.iter().any(Option::is_none) {
        return Err("lanes are missing".into());
    }
    let mut m = [[[0f32; 16]; 16]; 2];
    for (l, lane) in lanes.iter().enumerate() {
        for (i, m) in m.iter_mut().enumerate() {
            // SAFETY: by this function's contract.
            let v = unsafe { arg::<[u16; IN]>(lane, i) }.unwrap_or([0; IN]);
            for (j, bits) in v.iter().enumerate() {
                let (row, k) = operand(l, j);
                m[row][k] = f16::from_bits(*bits).to_f32();
            }
        }
    }
    for (l, lane) in lanes.iter().enumerate() {
        // SAFETY: by this function's contract.
        let mut acc = unsafe { arg::<[f32; OUT]>(lane, 2) }.unwrap_or([0.0; OUT]);
        for (r, acc) in acc.iter_mut().enumerate() {
            let (row, col) = result(l, r);
            *acc = (0..16).fold(*acc, |s, k| m[0][row][k].mul_add(m[1][col][k], s));
        }
        // SAFETY: by this function's contract.
        unsafe { set(lane, acc) };
    }
    Ok(())
}

/// m16n8k16: four pairs of a, two of b, four sums. With g = lane / 4 and t = lane % 4, pairs start at k = 2t and 2t + 8; a's are of rows
/// g and g + 8, b's of column g, sums of columns 2t and 2t + 1.
///
/// # Safety
/// As for [`arg`].
unsafe fn mma_sync(lanes: &[Lane]) -> Result<(), String> {
    if lanes.len() != 32 || lanes.iter().any(Option::is_none) {
        return Err("needs 32 lanes".into());
    }
    let (mut a, mut b) = ([[0f32; 16]; 16], [[0f32; 16]; 8]);
    let pair = |l: usize, i: usize| {
        // SAFETY: by this function's contract.
        let v = unsafe { arg::<u32>(&lanes[l], i) }.unwrap_or(0);
        [f16::from_bits(v as u16).to_f32(), f16::from_bits((v >> 16) as u16).to_f32()]
    };
    for l in 0..32 {
        let (g, k) = (l / 4, l % 4 * 2);
        for (i, (row, k)) in [(g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8)].into_iter().enumerate() {
            a[row][k..k + 2].copy_from_slice(&pair(l, i));
        }
        for (i, k) in [k, k + 8].into_iter().enumerate() {
            b[g][k..k + 2].copy_from_slice(&pair(l, 4 + i));
        }
    }
    for (l, lane) in lanes.iter().enumerate() {
        let mut d = [0f32; 4];
        for (i, d) in d.iter_mut().enumerate() {
            let (row, col) = (l / 4 + i / 2 * 8, l % 4 * 2 + i % 2);
            // SAFETY: by this function's contract.
            let c = unsafe { arg::<f32>(lane, 6 + i) }.unwrap_or(0.0);
            *d = (0..16).fold(c, |s, k| a[row][k].mul_add(b[col][k], s));
        }
        // SAFETY: by this function's contract.
        unsafe { set(lane, d) };
    }
    Ok(())
}
