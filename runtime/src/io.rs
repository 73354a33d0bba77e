//! What goes into a run and what comes out: inputs by name or position, outputs through a callback.

use crate::device::{Region, Space};
use crate::device_tensor::DeviceTensor;
use bytes::Bytes;
use smallvec::SmallVec;
use std::alloc::Layout;
use std::ptr::NonNull;
use tensor::{DType, Diagnostic, ErrorKind, Result, Tensor, View};

/// Inputs of a run.
///
/// ```
/// use runtime::RunInputs;
/// use tensor::Tensor;
/// let x = Tensor::from_f32(&[2], &[1.0, 2.0]);
/// let mut inputs = RunInputs::new();
/// inputs.tensor("x", &x);
/// assert_eq!(inputs.len(), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct RunInputs<'a> {
    pub(crate) items: Vec<(Key<'a>, Given<'a>)>,
}

/// What an input is.
#[derive(Clone, Debug)]
pub(crate) enum Given<'a> {
    View(View<'a>),
    /// Memory of the device, where output `present` goes as well.
    Shared {
        tensor: &'a DeviceTensor,
        present: &'a str,
    },
}

/// How an input is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Name(&'a str),
    Index(usize),
}

impl<'a> RunInputs<'a> {
    /// None.
    pub fn new() -> RunInputs<'a> {
        RunInputs::default()
    }
    /// The first inputs in the model's order; those that are left out must have defaults.
    pub fn in_order(tensors: &'a [Tensor]) -> RunInputs<'a> {
        let mut r = RunInputs::new();
        for (i, t) in tensors.iter().enumerate() {
            r.push(Key::Index(i), t.view());
        }
        r
    }
    /// Adds an input by name.
    pub fn tensor(&mut self, name: &'a str, t: &'a Tensor) -> &mut Self {
        self.view(name, t.view())
    }
    /// Adds an input by name: any strides, also zero and negative ones. Contiguous and aligned views are used in place.
    pub fn view(&mut self, name: &'a str, v: View<'a>) -> &mut Self {
        self.push(Key::Name(name), v);
        self
    }
    /// Adds an input by position.
    pub fn at(&mut self, index: usize, v: View<'a>) -> &mut Self {
        self.push(Key::Index(index), v);
        self
    }
    /// Adds an input in memory where the run also writes an output: a cache that is updated in place. The output is not asked of the
    /// [`OutputAllocator`]; afterwards the tensor holds it. Which inputs and outputs may share memory is in the model's metadata
    /// (`aliases`; `hip-inspect` prints them), and the output must have the input's extents: give a cache that has room for every position.
    ///
    /// ```no_run
    /// use runtime::{Collect, RunInputs, Session};
    /// use tensor::{DType, Tensor};
    /// # fn decode(session: &Session, mut id: Tensor, next: impl Fn(&Tensor) -> Tensor) -> tensor::Result<()> {
    /// let mut key = session.zeros(DType::F32, &[1, 8, 4096, 64])?;
    /// for n in 1..=16 {
    ///     let (last, total) = (Tensor::from_i32(&[1], &[n - 1]), Tensor::from_i32(&[], &[n]));
    ///     let mut inputs = RunInputs::new();
    ///     inputs.tensor("input_ids", &id).tensor("seqlens_k", &last).tensor("total_sequence_length", &total);
    ///     inputs.shared("past_key", "present_key", &mut key);
    ///     let mut outputs = Collect::new();
    ///     let report = session.run(&inputs, &mut outputs, &Default::default())?;
    ///     assert_eq!(report.counters.shared_outputs, 1);
    ///     id = next(&outputs.take("logits").expect("an output that is not shared"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(&mut self, past: &'a str, present: &'a str, tensor: &'a mut DeviceTensor) -> &mut Self {
        self.items.push((Key::Name(past), Given::Shared { tensor, present }));
        self
    }
    fn push(&mut self, key: Key<'a>, v: View<'a>) {
        self.items.push((key, Given::View(v)));
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// What the program asks the caller for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutputRequest<'a> {
    /// Position among the model's outputs.
    pub index: usize,
    /// Name.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Exact extents.
    pub shape: &'a [usize],
    /// Bytes of the contiguous tensor.
    pub bytes: usize,
    /// Where the device would write: memory of this space is written directly, host memory gets a copy at the end.
    pub space: Space,
    /// Device id.
    pub device: u32,
}

/// Memory for an output.
#[derive(Clone, Copy, Debug)]
pub struct OutputBuffer {
    /// First byte; may be null for zero bytes.
    pub ptr: *mut u8,
    /// Usable bytes, at least those asked for.
    pub bytes: usize,
    /// Where it is.
    pub space: Space,
}

/// Gives memory for outputs. Called once per output and run, as soon as the output's shape is known, on the thread of the run. Memory
/// that an input is in may be given where the metadata says that the two may share it (`aliases`) and their extents are equal.
///
/// # Safety
/// The memory is writable and not used by anything else until the run ends, aligned for the element type.
pub unsafe trait OutputAllocator {
    /// Memory for an output.
    ///
    /// # Errors
    /// Any; the run ends with it, and the output is named in it.
    fn allocate(&mut self, request: &OutputRequest<'_>) -> Result<OutputBuffer>;
}

/// Collects outputs as tensors.
#[derive(Debug, Default)]
pub struct Collect {
    outputs: Vec<Option<Collected>>,
}

#[derive(Debug)]
struct Collected {
    name: String,
    dtype: DType,
    shape: SmallVec<[usize; 6]>,
    bytes: HostBytes,
}

impl Collect {
    /// Empty.
    pub fn new() -> Collect {
        Collect::default()
    }
    /// The outputs of a successful run, in order.
    ///
    /// # Errors
    /// `Internal` when one was not asked for.
    pub fn finish(self) -> Result<Vec<Tensor>> {
        let tensor = |(i, o): (usize, Option<Collected>)| {
            let lost = || Diagnostic::new(ErrorKind::Internal, format!("output {i} was not produced"));
            o.ok_or_else(lost)?.tensor()
        };
        self.outputs.into_iter().enumerate().map(tensor).collect()
    }
    /// An output of a successful run by its name, once; none that is in the memory of an input.
    pub fn take(&mut self, name: &str) -> Option<Tensor> {
        let slot = self.outputs.iter_mut().find(|o| o.as_ref().is_some_and(|o| o.name == name))?;
        slot.take()?.tensor().ok()
    }
}

impl Collected {
    fn tensor(self) -> Result<Tensor> {
        Tensor::new(self.dtype, &self.shape, Bytes::from_owner(self.bytes))
    }
}

// SAFETY: each buffer is a fresh allocation that lives in `self`, which the run borrows.
unsafe impl OutputAllocator for Collect {
    fn allocate(&mut self, r: &OutputRequest<'_>) -> Result<OutputBuffer> {
        if self.outputs.len() <= r.index {
            self.outputs.resize_with(r.index + 1, || None);
        }
        let mut bytes = HostBytes::zeroed(r.bytes)?;
        let buffer = OutputBuffer { ptr: bytes.as_mut_ptr(), bytes: r.bytes, space: Space::Host };
        if let Some(slot) = self.outputs.get_mut(r.index) {
            *slot = Some(Collected { name: r.name.into(), dtype: r.dtype, shape: r.shape.into(), bytes });
        }
        Ok(buffer)
    }
}

/// 64-byte aligned host memory. Big ones are mapped on their own, so that zeros cost nothing until they are written.
pub(crate) struct HostBytes {
    ptr: NonNull<u8>,
    len: usize,
    region: Option<Region>,
}

// SAFETY: an owned allocation without interior mutability.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    const ALIGN: usize = 64;
    const BIG: usize = 1 << 20;

    pub(crate) fn zeroed(len: usize) -> Result<HostBytes> {
        let none = || Diagnostic::new(ErrorKind::Limit, format!("no memory for {len} bytes"));
        if u64::try_from(len).map_or(true, |l| l > crate::device::physical_memory()) {
            return Err(none());
        }
        if len >= Self::BIG {
            let region = Region::new(len, false)?;
            let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(region.addr())).ok_or_else(none)?;
            return Ok(HostBytes { ptr, len, region: Some(region) });
        }
        let layout = Layout::from_size_align(len.max(1), Self::ALIGN).map_err(|_| none())?;
        // SAFETY: the layout has a size.
        let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(none)?;
        Ok(HostBytes { ptr, len, region: None })
    }
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }
    pub(crate) fn addr(&self) -> usize {
        self.ptr.as_ptr().expose_provenance()
    }
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: an owned, initialized allocation of this length.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for HostBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: an owned, initialized allocation of this length.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        if let (None, Ok(layout)) = (&self.region, Layout::from_size_align(self.len.max(1), Self::ALIGN)) {
            // SAFETY: allocated with this layout.
            unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl std::fmt::Debug for HostBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// A view that a run uses: either in place, or a contiguous copy.
#[derive(Debug)]
pub(crate) enum HostInput {
    InPlace { addr: usize, bytes: usize },
    Copied(HostBytes),
}

impl HostInput {
    pub(crate) fn addr(&self) -> usize {
        match self {
            HostInput::InPlace { addr, .. } => *addr,
            HostInput::Copied(b) => b.addr(),
        }
    }
    pub(crate) fn bytes(&self) -> usize {
        match self {
            HostInput::InPlace { bytes, .. } => *bytes,
            HostInput::Copied(b) => b.len,
        }
    }
}

/// Checks that a view stays within its bytes, and makes it contiguous and aligned.
pub(crate) fn contiguous(v: &View<'_>) -> Result<HostInput> {
    let bad = |why: &str| {
        let text = format!("a view {}{:?} with strides {:?} {why}", v.dtype, v.shape.as_slice(), v.strides.as_slice());
        Diagnostic::new(ErrorKind::Argument, text)
    };
    if v.shape.len() != v.strides.len() {
        return Err(bad("has another number of strides than axes"));
    }
    let n = v.shape.iter().try_fold(1usize, |a, &d| a.checked_mul(d)).ok_or_else(|| bad("has too many elements"))?;
    let bytes = v.dtype.size_bytes(n).ok_or_else(|| bad("has too many bytes"))?;
    if n == 0 {
        return Ok(HostInput::InPlace { addr: HostBytes::ALIGN, bytes: 0 });
    }
    let mut expect = 1usize;
    let dense = v.shape.iter().zip(&v.strides).rev().all(|(&d, &s)| {
        let fits = d == 1 || usize::try_from(s).ok() == Some(expect);
        expect = expect.saturating_mul(d);
        fits
    });
    let Some(size) = v.dtype.size() else {
        // Packed types cannot be strided.
        if !dense || v.offset != 0 || v.data.len() < bytes {
            return Err(bad("of a packed type must be contiguous and whole"));
        }
        return Ok(HostInput::InPlace { addr: v.data.as_ptr().expose_provenance(), bytes });
    };
    let reach = |low: bool| {
        v.shape.iter().zip(&v.strides).try_fold(0i64, |a, (&d, &s)| {
            let last = i64::try_from(d - 1).ok()?.checked_mul(i64::try_from(s).ok()?)?;
            a.checked_add(if low { last.min(0) } else { last.max(0) })
        })
    };
    let start = i64::try_from(v.offset).ok();
    let inside = start.zip(reach(true)).zip(reach(false)).and_then(|((start, low), high)| {
        let end = start.checked_add(high)?.checked_add(1)?;
        (start.checked_add(low)? >= 0).then_some(())?;
        (usize::try_from(end).ok()?.checked_mul(size)? <= v.data.len()).then_some(())
    });
    inside.ok_or_else(|| bad(&format!("reaches outside its {} bytes", v.data.len())))?;
    let from = v.data.get(v.offset * size..).unwrap_or_default();
    if dense && from.as_ptr().addr().is_multiple_of(size.min(8)) {
        return Ok(HostInput::InPlace { addr: from.as_ptr().expose_provenance(), bytes });
    }
    let mut out = HostBytes::zeroed(bytes)?;
    gather(v, size, out.as_mut());
    Ok(HostInput::Copied(out))
}

/// Copies elements in row-major order. The view was checked.
fn gather(v: &View<'_>, size: usize, out: &mut [u8]) {
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, v.shape.len());
    let mut at = v.offset.cast_signed();
    for element in out.chunks_exact_mut(size) {
        // Always there: `contiguous` checked how far the strides reach.
        if let Some(from) = usize::try_from(at).ok().and_then(|a| v.data.get(a * size..a * size + size)) {
            element.copy_from_slice(from);
        }
        for axis in (0..index.len()).rev() {
            let (Some(i), Some(&d), Some(&s)) = (index.get_mut(axis), v.shape.get(axis), v.strides.get(axis)) else {
                break;
            };
            *i += 1;
            at += s;
            if *i < d {
                break;
            }
            at -= s * d.cast_signed();
            *i = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: &[usize], strides: &[isize], offset: usize, want: Option<&[i32]>) {
        let t = Tensor::from_i32(&[6], &[0, 1, 2, 3, 4, 5]);
        let v = View { dtype: DType::I32, shape: shape.into(), strides: strides.into(), offset, data: t.bytes() };
        let got = contiguous(&v).ok().map(|h| {
            // SAFETY: `contiguous` checked the range.
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<i32>(h.addr()), h.bytes() / 4) }
                .to_vec()
        });
        assert_eq!(got.as_deref(), want, "{shape:?} {strides:?} {offset}");
    }

    #[test]
    fn views_become_contiguous() {
        check(&[2, 3], &[3, 1], 0, Some(&[0, 1, 2, 3, 4, 5]));
        check(&[3, 2], &[1, 3], 0, Some(&[0, 3, 1, 4, 2, 5]));
        check(&[2, 2], &[0, 1], 4, Some(&[4, 5, 4, 5]));
        check(&[3], &[-2], 5, Some(&[5, 3, 1]));
        check(&[1, 2], &[99, 1], 1, Some(&[1, 2]));
        check(&[0, 2], &[2, 1], 99, Some(&[]));
        check(&[], &[], 3, Some(&[3]));
        check(&[4], &[-2], 5, None);
        check(&[4], &[2], 0, None);
        check(&[2], &[1], 5, None);
        check(&[2], &[1, 1], 0, None);
        check(&[usize::MAX, 2], &[0, 0], 0, None);
        check(&[2], &[isize::MAX], 0, None);
    }
}
