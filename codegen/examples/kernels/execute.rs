//! Runs a case on the host execution of an architecture and compares.

use crate::case::{Case, Data};
use crate::exec::{Executor, Launch, Order, Region};
use kernels::gpu::Arch;

/// Bytes around each buffer, so that addresses just outside belong to nobody.
const GAP: usize = 4096;

/// A buffer of device memory: 256-byte aligned, as drivers give it, plus the case's skew.
struct Memory {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Memory {
    fn new(content: &[u8], skew: usize) -> Memory {
        let mut bytes = vec![0xcd; content.len() + 2 * GAP + 256];
        let at = (bytes.as_ptr() as usize + GAP).next_multiple_of(256) - bytes.as_ptr() as usize + skew;
        bytes[at..at + content.len()].copy_from_slice(content);
        Memory { bytes, at, len: content.len() }
    }
    fn region(&mut self, writable: bool) -> Region {
        Region { address: self.bytes.as_mut_ptr() as usize + self.at, bytes: self.len, writable }
    }
    fn content(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.len]
    }
}

/// Launches with more blocks take one order only, on architectures that share their wave size with another.
const MANY_BLOCKS: u32 = 64;

/// Runs and compares with the answer; gives the largest error as a share of the tolerance. Then runs in reverse order: the results must
/// agree bit for bit.
///
/// # Errors
/// What was noticed or differs.
pub fn run(x: &Executor, arch: &Arch, case: &Case, skip_barrier: Option<u32>) -> Result<f64, String> {
    let plan = case.plan(arch)?;
    let forward = once(x, case, &plan, Order::Forward, skip_barrier)?;
    let error = case.want.check(&forward)?;
    if plan.grid.iter().product::<u32>() > MANY_BLOCKS && !["gfx942", "gfx1100"].contains(&arch.name) {
        return Ok(error);
    }
    let reverse = once(x, case, &plan, Order::Reverse, skip_barrier)?;
    if forward != reverse {
        return Err("the result depends on the order in which threads run".into());
    }
    Ok(error)
}

fn once(
    x: &Executor,
    case: &Case,
    plan: &kernels::gpu::LaunchPlan,
    order: Order,
    skip_barrier: Option<u32>,
) -> Result<Vec<u8>, String> {
    let skew = |d: &Data| case.skew * d.elem_bytes();
    let mut inputs: Vec<Option<Memory>> =
        case.inputs.iter().map(|d| d.as_ref().map(|d| Memory::new(&d.bytes(), skew(d)))).collect();
    // What a kernel leaves unwritten must not look right.
    let mut output = Memory::new(&vec![0xcd; case.want.bytes()], 0);
    let mut regions: Vec<Region> = inputs.iter_mut().flatten().map(|m| m.region(false)).collect();
    regions.push(output.region(true));
    let mut scratch = Memory::new(&vec![0xcd; case.scratch], 0);
    if case.scratch > 0 {
        regions.push(scratch.region(true));
    }
    let mut kernarg = Vec::new();
    for m in &mut inputs {
        kernarg.extend(m.as_mut().map_or(0, |m| m.region(false).address).to_ne_bytes());
    }
    kernarg.extend(output.region(true).address.to_ne_bytes());
    if case.scratch > 0 {
        kernarg.extend(scratch.region(true).address.to_ne_bytes());
    }
    case.ints.iter().for_each(|i| kernarg.extend(i.to_ne_bytes()));
    case.scalars.iter().for_each(|s| kernarg.extend(s.to_ne_bytes()));
    let launch = Launch {
        kernel: plan.entry,
        grid: plan.grid,
        block: plan.block,
        kernarg: &kernarg,
        regions: &regions,
        order,
        skip_barrier,
    };
    // SAFETY: the regions are buffers of this function that nobody else uses.
    unsafe { x.run(&launch) }?;
    Ok(output.content().to_vec())
}
