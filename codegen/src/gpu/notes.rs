//! What a code object says about its kernels: the AMDGPU metadata note, MessagePack.

use crate::gpu::elf::{Bytes, at, headers};
use tensor::{Diagnostic, ErrorKind, Result};

/// Deepest nesting that is read.
const MAX_DEPTH: u32 = 16;

/// A kernel of a code object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Its name; the symbol of its descriptor is `NAME.kd`.
    pub name: String,
    /// Vector registers of a thread.
    pub vgprs: u64,
    /// Accumulation registers of a thread (CDNA).
    pub agprs: u64,
    /// Scalar registers of a wave.
    pub sgprs: u64,
    /// Registers that did not fit.
    pub spills: u64,
    /// Shared memory of a block, bytes.
    pub shared_bytes: u64,
    /// Private memory of a thread, bytes.
    pub private_bytes: u64,
    /// Arguments, bytes.
    pub kernarg_bytes: u64,
    /// Wave size.
    pub wave: u64,
    /// Most threads of a block.
    pub block: u64,
    /// Arguments beyond the explicit ones; ours have none.
    pub hidden_args: u64,
}

fn bad(why: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, format!("the metadata of the code object is damaged: {why}"))
        .help("compile the model again")
}

#[derive(Debug)]
enum Value {
    Int(u64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    Other,
}

impl Value {
    fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Map(m) => m.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }
    fn int(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Int(v)) => *v,
            _ => 0,
        }
    }
    fn text(&self, key: &str) -> &str {
        match self.get(key) {
            Some(Value::Text(t)) => t,
            _ => "",
        }
    }
    fn list(&self, key: &str) -> &[Value] {
        match self.get(key) {
            Some(Value::List(l)) => l,
            _ => &[],
        }
    }
}

/// A MessagePack reader.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: u64) -> Result<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(at(n)).ok_or_else(|| bad("it is cut short"))?;
        self.bytes = rest;
        Ok(head)
    }
    fn int(&mut self, n: u64) -> Result<u64> {
        Ok(self.take(n)?.iter().fold(0, |v, b| (v << 8) | u64::from(*b)))
    }
    fn text(&mut self, n: u64) -> Result<Value> {
        Ok(Value::Text(String::from_utf8_lossy(self.take(n)?).into_owned()))
    }
    fn list(&mut self, n: u64, depth: u32) -> Result<Value> {
        (0..n).map(|_| self.value(depth + 1)).collect::<Result<_>>().map(Value::List)
    }
    fn map(&mut self, n: u64, depth: u32) -> Result<Value> {
        let mut out = vec![];
        for _ in 0..n {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            if let Value::Text(key) = key {
                out.push((key, value));
            }
        }
        Ok(Value::Map(out))
    }
    fn value(&mut self, depth: u32) -> Result<Value> {
        if depth > MAX_DEPTH {
            return Err(bad("it nests too deep"));
        }
        let tag = self.int(1)?;
        Ok(match tag {
            0..=0x7f => Value::Int(tag),
            0x80..=0x8f => self.map(tag & 15, depth)?,
            0x90..=0x9f => self.list(tag & 15, depth)?,
            0xa0..=0xbf => self.text(tag & 31)?,
            0xc0 | 0xc2 => Value::Other,
            0xc3 => Value::Int(1),
            0xcc..=0xcf => Value::Int(self.int(1 << (tag - 0xcc))?),
            0xd9..=0xdb => {
                let n = self.int(1 << (tag - 0xd9))?;
                self.text(n)?
            }
            0xdc | 0xdd => {
                let n = self.int(2 << (tag - 0xdc))?;
                self.list(n, depth)?
            }
            0xde | 0xdf => {
                let n = self.int(2 << (tag - 0xde))?;
                self.map(n, depth)?
            }
            // Negative numbers.
            0xd0..=0xd3 => {
                self.take(1 << (tag - 0xd0))?;
                Value::Other
            }
            0xe0..=0xff => Value::Other,
            _ => return Err(bad("it holds a type that is not known")),
        })
    }
}

/// The kernels of a code object, in order.
///
/// # Errors
/// `Malformed` or `Internal` when it is no code object or a damaged one.
pub fn kernels(code: &[u8]) -> Result<Vec<Kernel>> {
    let b = Bytes(code);
    for (_, kind, _, offset, size, ..) in headers(code)?.sections {
        if kind != 7 {
            continue;
        }
        let note = Bytes(b.at(offset, size)?);
        let (name, desc, kind) = (note.int(0, 4)?, note.int(4, 4)?, note.int(8, 4)?);
        if kind != 32 || note.at(12, name)? != b"AMDGPU\0" {
            continue;
        }
        let bytes = note.at(12 + name.next_multiple_of(4), desc)?;
        let root = Reader { bytes }.value(0)?;
        return Ok(root.list("amdhsa.kernels").iter().map(kernel).collect());
    }
    Err(bad("it has no metadata note"))
}

fn kernel(k: &Value) -> Kernel {
    Kernel {
        name: k.text(".name").into(),
        vgprs: k.int(".vgpr_count"),
        agprs: k.int(".agpr_count"),
        sgprs: k.int(".sgpr_count"),
        spills: k.int(".vgpr_spill_count") + k.int(".sgpr_spill_count"),
        shared_bytes: k.int(".group_segment_fixed_size"),
        private_bytes: k.int(".private_segment_fixed_size"),
        kernarg_bytes: k.int(".kernarg_segment_size"),
        wave: k.int(".wavefront_size"),
        block: k.int(".max_flat_workgroup_size"),
        hidden_args: u64::try_from(
            k.list(".args").iter().filter(|a| a.text(".value_kind").starts_with("hidden_")).count(),
        )
        .unwrap_or(0),
    }
}
