//! Caches in one place: every input and output that the model lets share memory, bound to one tensor in the device's memory.

use artifact::{Metadata, Port};
use runtime::{DeviceTensor, RunInputs, Session};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// The caches of a decoding.
#[derive(Debug)]
pub struct Caches {
    all: Vec<(String, String, DeviceTensor)>,
}

/// The axis along which an output may be longer than the input that it updates.
fn growing(past: &Port, present: &Port) -> Option<usize> {
    (0..past.rank()).find(|&i| past.dims.get(i) != present.dims.get(i))
}

/// Names of the inputs and outputs that may share memory.
pub fn pairs(m: &Metadata) -> Vec<(&Port, &Port)> {
    let at = |ports: &'_ [Port], i: u32| usize::try_from(i).ok().filter(|&i| i < ports.len());
    let pair = |a: &artifact::Alias| Some((&m.inputs[at(&m.inputs, a.input)?], &m.outputs[at(&m.outputs, a.output)?]));
    m.aliases.iter().filter_map(pair).collect()
}

/// A tensor with zeros behind it along an axis.
fn grown(t: &Tensor, axis: usize, length: usize) -> Result<Tensor> {
    let bytes_of = |shape: &[usize]| t.dtype().size_bytes(shape[axis..].iter().product()).unwrap_or(0);
    let mut shape = t.shape().to_vec();
    let have = bytes_of(&shape);
    shape[axis] = length;
    let want = bytes_of(&shape);
    let n_rows: usize = shape[..axis].iter().product();
    let mut data = vec![0u8; n_rows * want];
    for (i, row) in data.chunks_exact_mut(want.max(1)).enumerate() {
        row[..have].copy_from_slice(&t.bytes()[i * have..(i + 1) * have]);
    }
    Tensor::new(t.dtype(), &shape, data.into())
}

impl Caches {
    /// What is given of inputs that may share memory with an output, in the device's memory, with at least `room` places along the axis
    /// that may grow; zeros lie behind what is given.
    ///
    /// # Errors
    /// `Argument` when the model has no such inputs, or none is given; those of the device.
    pub fn new(session: &Session, inputs: &[(String, Tensor)], room: usize) -> Result<Caches> {
        let mut all = vec![];
        for (past, present) in pairs(session.model().metadata()) {
            let Some((_, t)) = inputs.iter().find(|(n, _)| *n == past.name) else { continue };
            let axis = growing(past, present);
            let length = axis.map_or(0, |a| t.shape().get(a).map_or(0, |&d| d.max(room)));
            let held = match axis {
                Some(a) => grown(t, a, length)?,
                None => t.clone(),
            };
            let mut cache = session.zeros(t.dtype(), held.shape())?;
            cache.write(&held)?;
            all.push((past.name.clone(), present.name.clone(), cache));
        }
        match all.is_empty() {
            true => Err(Diagnostic::new(ErrorKind::Argument, "no input of the model may share memory with an output")
                .help("caches that are concatenated grow with every run; export the model with TensorScatter or GroupQueryAttention")),
            false => Ok(Caches { all }),
        }
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }
    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    /// Whether an input is one of them.
    pub fn has(&self, past: &str) -> bool {
        self.all.iter().any(|(p, ..)| p == past)
    }
    /// Adds them to the inputs of a run.
    pub fn bind<'a>(&'a mut self, inputs: &mut RunInputs<'a>) {
        for (past, present, t) in &mut self.all {
            inputs.shared(past, present, t);
        }
    }
    /// What an output holds that is in one of them.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read(&self, present: &str) -> Result<Option<Tensor>> {
        self.all.iter().find(|(_, p, _)| p == present).map(|(.., t)| t.read()).transpose()
    }
}
