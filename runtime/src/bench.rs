//! What a device's memory can do: the ceiling that kernels are measured against.

use crate::device::{Buffer, Device, Space};
use std::sync::Arc;
use tensor::{DType, Diagnostic, ErrorKind, Result, Seeded};

/// Random bytes that are uploaded again and again to fill a buffer.
const BLOCK: usize = 16 << 20;
/// Copies that are timed, after two that are not.
const REPEAT: usize = 20;

/// Gigabytes read and written per second by a copy of `bytes` within the device's memory: the median of 20, by the device's own clock, of
/// random content.
///
/// # Errors
/// `Device` when there is not twice the memory; `Argument` for no bytes.
pub fn copy_bandwidth(device: &Arc<dyn Device>, bytes: usize) -> Result<f64> {
    if bytes == 0 {
        return Err(Diagnostic::new(ErrorKind::Argument, "a copy of no bytes").help("give a size of many megabytes"));
    }
    let (from, to) = (Buffer::new(device, Space::Device, bytes)?, Buffer::new(device, Space::Device, bytes)?);
    let stream = device.stream()?;
    let mut block = vec![0u8; BLOCK.min(bytes.next_multiple_of(4))];
    Seeded { seed: 1, middle: 0.0, spread: 1.0 }.fill(DType::F32, &mut block)?;
    let host = block.as_ptr().expose_provenance();
    for at in (0..bytes).step_by(BLOCK) {
        let n = BLOCK.min(bytes - at);
        // SAFETY: the block is live until the stream was waited for, and the buffer has `bytes` bytes.
        unsafe { device.copy(stream, (from.addr() + at, Space::Device), (host, Space::Host), n)? };
    }
    device.synchronize(stream)?;
    let mut rates = Vec::new();
    for i in 0..REPEAT + 2 {
        let begin = device.record(stream)?;
        // SAFETY: both buffers are live, have this length and are different.
        unsafe { device.copy(stream, (to.addr(), Space::Device), (from.addr(), Space::Device), bytes)? };
        let end = device.record(stream)?;
        device.synchronize(stream)?;
        let ns = device.elapsed_ns(begin, end)?.max(1);
        if i >= 2 {
            rates.push(2.0 * bytes as f64 / ns as f64);
        }
        device.forget(begin);
        device.forget(end);
    }
    device.close_stream(stream)?;
    rates.sort_by(f64::total_cmp);
    Ok(rates.get(REPEAT / 2).copied().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_copy_on_the_cpu_has_a_rate() {
        let device: std::sync::Arc<dyn crate::Device> = std::sync::Arc::new(crate::device::Cpu::new());
        let rate = super::copy_bandwidth(&device, 64 << 20).expect("there is memory");
        assert!((0.1..10_000.0).contains(&rate), "{rate} GB/s");
        assert!(super::copy_bandwidth(&device, 0).is_err());
    }
}
