//! Whether the memory that the caller gives for an output is its own, or that of an input which the model updates in place.

use crate::device::Space;
use crate::io::OutputBuffer;
use crate::run::{Run, index};
use artifact::Metadata;
use tensor::{Diagnostic, ErrorKind, Result};

/// Memory of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) start: usize,
    /// Those that the tensor takes.
    pub(crate) bytes: usize,
    pub(crate) space: Space,
}

impl Memory {
    /// As memory for an output.
    pub(crate) fn buffer(&self) -> OutputBuffer {
        OutputBuffer { ptr: std::ptr::with_exposed_provenance_mut(self.start), bytes: self.bytes, space: self.space }
    }
    fn overlaps(&self, other: &Memory) -> bool {
        let ends = |m: &Memory| m.start.saturating_add(m.bytes);
        self.bytes > 0 && other.bytes > 0 && self.start < ends(other) && other.start < ends(self)
    }
}

impl Run<'_> {
    /// Checks the memory given for output `i` of extents `dims` against inputs and outputs before it. Says whether it is that of an input,
    /// which must be `shared` where the caller said so.
    ///
    /// # Errors
    /// `Argument` when the two may not be in one place, or only a part of them is.
    pub(crate) fn check_memory(&self, i: usize, memory: Memory, dims: &[i64], shared: Option<usize>) -> Result<bool> {
        let meta = self.model.metadata();
        // Where the host's memory is the device's, spaces have one address space.
        let host_is_device = self.device.properties().host_is_device;
        let meets = |m: &Memory| (host_is_device || m.space == memory.space) && m.overlaps(&memory);
        let mut in_place = false;
        for (k, input) in self.inputs.iter().enumerate() {
            if shared != Some(k) && !meets(&input.memory) {
                continue;
            }
            may_share(meta, k, i)?;
            if input.dims.as_slice() != dims {
                let text = format!(
                    "output {} would have extents {dims:?} in the memory of input {} of extents {:?}: memory that is shared does not grow",
                    name(&meta.outputs, i),
                    name(&meta.inputs, k),
                    input.dims.as_slice()
                );
                return Err(Diagnostic::new(ErrorKind::Argument, text)
                    .help("give an input that has room for every position, or another memory for the output"));
            }
            if input.memory.start != memory.start {
                let text = format!(
                    "the memory given for output {} begins {} bytes from that of input {}, which it overlaps",
                    name(&meta.outputs, i),
                    memory.start.abs_diff(input.memory.start),
                    name(&meta.inputs, k)
                );
                return Err(Diagnostic::new(ErrorKind::Argument, text).help("give the same memory, or another one"));
            }
            in_place = true;
        }
        let earlier = self.outputs.iter().enumerate().filter_map(|(j, o)| o.as_ref().map(|o| (j, o)));
        for (j, o) in earlier {
            if meets(&o.memory) {
                let text = format!(
                    "the memory given for output {} overlaps that of output {}",
                    name(&meta.outputs, i),
                    name(&meta.outputs, j)
                );
                return Err(Diagnostic::new(ErrorKind::Argument, text).help("give each output memory of its own"));
            }
        }
        Ok(in_place)
    }
}

/// Whether the model lets an input and an output be in one place.
///
/// # Errors
/// `Argument` with the pairs that may.
pub(crate) fn may_share(meta: &Metadata, input: usize, output: usize) -> Result<()> {
    if meta.aliases.iter().any(|a| (index(a.input), index(a.output)) == (input, output)) {
        return Ok(());
    }
    let text = format!(
        "output {} cannot be in the memory of input {}: the model does not update the one into the other, or reads the input afterwards",
        name(&meta.outputs, output),
        name(&meta.inputs, input)
    );
    let pair = |a: &artifact::Alias| {
        format!("{} and {}", name(&meta.inputs, index(a.input)), name(&meta.outputs, index(a.output)))
    };
    let pairs: Vec<String> = meta.aliases.iter().map(pair).collect();
    let help = match pairs.is_empty() {
        true => "no input and output of this model may share memory: give the output memory of its own".into(),
        false => format!("give the output memory of its own; those that may share it are {}", pairs.join(", ")),
    };
    Err(Diagnostic::new(ErrorKind::Argument, text).help(help))
}

fn name(ports: &[artifact::Port], i: usize) -> String {
    ports.get(i).map_or_else(|| i.to_string(), |p| format!("{:?}", p.name))
}
