//! Tensors that stay in a device's memory from run to run: caches.

use crate::device::{Buffer, Device, Space};
use crate::io::HostBytes;
use crate::run::Dims;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor};

/// A tensor in a device's memory that a run reads as an input and writes as an output, in place: see
/// [`RunInputs::shared`](crate::RunInputs::shared). [`Session::zeros`](crate::Session::zeros) makes one.
pub struct DeviceTensor {
    dtype: DType,
    shape: Dims,
    bytes: usize,
    device: Arc<dyn Device>,
    buffer: Buffer,
    /// A run works on it.
    in_use: AtomicBool,
}

impl std::fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?} on {}", self.dtype, self.shape.as_slice(), self.device.properties().name)
    }
}

/// Zeros are written in pieces of so many bytes.
const PIECE: usize = 1 << 20;

impl DeviceTensor {
    pub(crate) fn zeros(device: &Arc<dyn Device>, dtype: DType, shape: &[usize]) -> Result<DeviceTensor> {
        let n = shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d)).and_then(|n| dtype.size_bytes(n));
        let bytes = n.ok_or_else(|| {
            Diagnostic::new(ErrorKind::Limit, format!("a tensor {dtype}{shape:?} has more bytes than can be addressed"))
        })?;
        let buffer = Buffer::new(device, Space::Device, bytes)?;
        let (shape, in_use) = (shape.into(), AtomicBool::new(false));
        let t = DeviceTensor { dtype, shape, bytes, device: device.clone(), buffer, in_use };
        let mut zeros = HostBytes::zeroed(bytes.min(PIECE))?;
        let from = zeros.as_mut_ptr().expose_provenance();
        t.copies((0..bytes).step_by(PIECE).map(|at| {
            let n = PIECE.min(bytes - at);
            ((t.addr() + at, Space::Device), (from, Space::Host), n)
        }))?;
        Ok(t)
    }
    /// Runs copies to their end.
    fn copies(&self, all: impl Iterator<Item = ((usize, Space), (usize, Space), usize)>) -> Result<()> {
        let stream = self.device.stream()?;
        let mut done = Ok(());
        for (dst, src, n) in all {
            if n > 0 && done.is_ok() {
                // SAFETY: the callers' ranges are within this buffer and host memory that lives until the stream was waited for.
                done = unsafe { self.device.copy(stream, dst, src, n) };
            }
        }
        let waited = self.device.synchronize(stream);
        let closed = self.device.close_stream(stream);
        done.and(waited).and(closed)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// Bytes of all elements.
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }
    pub(crate) fn addr(&self) -> usize {
        self.buffer.addr()
    }
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Copies the elements to the host.
    ///
    /// # Errors
    /// `Device` when the device fails, `Limit` when there is no memory.
    pub fn read(&self) -> Result<Tensor> {
        let mut to = HostBytes::zeroed(self.bytes)?;
        let at = to.as_mut_ptr().expose_provenance();
        self.copies(std::iter::once(((at, Space::Host), (self.addr(), Space::Device), self.bytes)))?;
        Tensor::new(self.dtype, &self.shape, bytes::Bytes::from_owner(to))
    }

    /// Replaces all elements.
    ///
    /// # Errors
    /// `Argument` for a tensor of another type or other extents; `Device` when the device fails.
    pub fn write(&mut self, t: &Tensor) -> Result<()> {
        if t.dtype() != self.dtype || t.shape() != self.shape.as_slice() {
            let text = format!("{}{:?} cannot be written to {self:?}", t.dtype(), t.shape());
            return Err(Diagnostic::new(ErrorKind::Argument, text).help("give a tensor of the same type and extents"));
        }
        let from = t.bytes().as_ptr().expose_provenance();
        self.copies(std::iter::once(((self.addr(), Space::Device), (from, Space::Host), self.bytes)))
    }

    /// Takes it for a run.
    pub(crate) fn enter(&self) -> Result<InUse<'_>> {
        match self.in_use.compare_exchange(false, true, Acquire, Relaxed) {
            Ok(_) => Ok(InUse(self)),
            Err(_) => Err(Diagnostic::new(ErrorKind::Argument, format!("{self:?} is in use by another run"))
                .help("a shared tensor is of one run at a time: give each run one of its own")),
        }
    }
}

/// A tensor that a run works on.
pub(crate) struct InUse<'a>(&'a DeviceTensor);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.in_use.store(false, Release);
    }
}
