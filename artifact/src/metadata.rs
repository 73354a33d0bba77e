//! What a compiled model says about itself: protobuf in the file, with a JSON mirror for people and tools.

use prost::Message;
use serde::{Deserialize, Serialize};
use tensor::{DType, Diagnostic, ErrorKind, Result};

/// Version of the container and of these messages.
pub const FORMAT_VERSION: u32 = 1;
/// Longest metadata section that is read.
pub const MAX_METADATA_BYTES: usize = 32 << 20;
/// Most entries of all tables together.
pub const MAX_ENTRIES: usize = 1 << 20;
/// Alignment of entries in the constants file.
pub const CONSTANT_ALIGN: u64 = 64;

/// Everything about a compiled model but its code and weights.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// [`FORMAT_VERSION`].
    #[prost(uint32, tag = "1")]
    pub format_version: u32,
    /// Version of the compiler that made it.
    #[prost(string, tag = "2")]
    pub compiler_version: String,
    /// `runtime::abi::abi_hash()` at compile time.
    #[prost(fixed64, tag = "3")]
    #[serde(with = "hex_u64")]
    pub abi_hash: u64,
    /// The model's name, for messages.
    #[prost(string, tag = "4")]
    pub model: String,
    /// What it was compiled for.
    #[prost(message, optional, tag = "5")]
    pub target: Option<Target>,
    /// Hash of model, options and everything else that changes the bytes, in hex.
    #[prost(string, tag = "6")]
    pub options_hash: String,
    /// Options that differ from the defaults, as `name=value`, sorted.
    #[prost(string, repeated, tag = "7")]
    pub options: Vec<String>,
    /// Number of u64 words of the run frame; 0 where the code alone says.
    #[prost(uint64, tag = "8")]
    pub frame_words: u64,
    /// Graph inputs in order.
    #[prost(message, repeated, tag = "9")]
    pub inputs: Vec<Port>,
    /// Graph outputs in order.
    #[prost(message, repeated, tag = "10")]
    pub outputs: Vec<Port>,
    /// Inputs and outputs that may share their buffers.
    #[prost(message, repeated, tag = "11")]
    pub aliases: Vec<Alias>,
    /// Constants, by the index generated code uses.
    #[prost(message, repeated, tag = "12")]
    pub constants: Vec<Constant>,
    /// The constants file, when there is one.
    #[prost(message, optional, tag = "13")]
    pub constants_file: Option<ConstantsFile>,
    /// Pool domains, by the index generated code uses.
    #[prost(message, repeated, tag = "14")]
    pub domains: Vec<Domain>,
    /// Generated kernels by position, then the catalog kernels that are called.
    #[prost(message, repeated, tag = "15")]
    pub kernels: Vec<Kernel>,
    /// Model nodes that errors and profiles refer to, by the index generated code uses.
    #[prost(message, repeated, tag = "16")]
    pub debug: Vec<DebugNode>,
    /// Sentences of guards, by the index generated code uses.
    #[prost(string, repeated, tag = "17")]
    pub guards: Vec<String>,
    /// Host ops: row name, version and attributes in the text form, by the index generated code uses.
    #[prost(string, repeated, tag = "18")]
    pub host_ops: Vec<String>,
    /// Symbolic dims of the model.
    #[prost(message, repeated, tag = "19")]
    pub symbols: Vec<Symbol>,
    /// Numbers of things at stages of the compiler (`onnx nodes`, `hip launches`), in order.
    #[prost(message, repeated, tag = "20")]
    pub counts: Vec<Count>,
}

/// What a model was compiled for.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// Devices with code in the artifact, separated by commas: `hip:gfx942,cuda:sm_90,cpu`.
    #[prost(string, tag = "1")]
    pub device: String,
    /// LLVM triple of the host code.
    #[prost(string, tag = "2")]
    pub triple: String,
    /// What the host code needs of the processor: levels and features, comma separated, as `x86-64-v3` or `+avx2,+fma`. Checked at load.
    #[prost(string, tag = "3")]
    pub features: String,
}

impl Target {
    /// The devices, each as a target's name.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.device.split(',')
    }
    /// Whether it holds kernels for the CPU.
    pub fn has_cpu(&self) -> bool {
        self.devices().any(|d| d == "cpu")
    }
}

/// A graph input or output.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Port {
    /// The model's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Element type, ONNX's number.
    #[prost(int32, tag = "2")]
    #[serde(with = "dtype_name")]
    pub dtype: i32,
    /// Extents as printed: a number, a symbol or an expression.
    #[prost(string, repeated, tag = "3")]
    pub dims: Vec<String>,
    /// Extents where known at compile time, -1 elsewhere.
    #[prost(sint64, repeated, tag = "4")]
    pub fixed: Vec<i64>,
    /// What an input is where the caller gives nothing: index of a constant.
    #[prost(uint32, optional, tag = "5")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<u32>,
}

impl Port {
    /// A port; `fixed` as the host program has it.
    pub fn new(name: impl Into<String>, dtype: DType, dims: Vec<String>, fixed: &[Option<i64>]) -> Port {
        let fixed = fixed.iter().map(|f| f.unwrap_or(-1)).collect();
        Port { name: name.into(), dtype: dtype.onnx(), dims, fixed, default: None }
    }
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }
    /// Element type.
    ///
    /// # Errors
    /// `Malformed` for a number that is no element type.
    pub fn dtype(&self) -> Result<DType> {
        known_dtype(self.dtype)
    }
    /// The extent of an axis when it is known at compile time.
    pub fn fixed_dim(&self, axis: usize) -> Option<i64> {
        self.fixed.get(axis).copied().filter(|&d| d >= 0)
    }
    /// As `f32[batch, 128]`.
    pub fn display(&self) -> String {
        let dtype = DType::from_onnx(self.dtype).map_or_else(|| format!("dtype {}", self.dtype), |d| d.to_string());
        format!("{dtype}[{}]", self.dims.join(", "))
    }
}

/// An input and an output that may be the same buffer.
#[derive(Clone, Copy, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Alias {
    /// Index of the input.
    #[prost(uint32, tag = "1")]
    pub input: u32,
    /// Index of the output.
    #[prost(uint32, tag = "2")]
    pub output: u32,
}

/// A constant.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Constant {
    /// The model's name, empty if it has none.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Element type, ONNX's number.
    #[prost(int32, tag = "2")]
    #[serde(with = "dtype_name")]
    pub dtype: i32,
    /// Extents.
    #[prost(uint64, repeated, tag = "3")]
    pub shape: Vec<u64>,
    /// Bytes it takes in memory.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
    /// How its elements lie: `plain` (contiguous, row-major, little-endian).
    #[prost(string, tag = "5")]
    pub layout: String,
    /// blake3 of the bytes where the compiler read them; empty for external ranges and splats.
    #[prost(bytes = "vec", tag = "6")]
    #[serde(with = "hex_bytes")]
    pub hash: Vec<u8>,
    /// Where they are.
    #[prost(oneof = "Source", tags = "10, 11, 12, 13")]
    pub source: Option<Source>,
}

impl Constant {
    /// Element type.
    ///
    /// # Errors
    /// `Malformed` for a number that is no element type.
    pub fn dtype(&self) -> Result<DType> {
        known_dtype(self.dtype)
    }
}

/// Where the bytes of a constant are.
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Offset in the constants file, a multiple of [`CONSTANT_ALIGN`].
    #[prost(uint64, tag = "10")]
    Offset(u64),
    /// A range of the model's own external data file.
    #[prost(message, tag = "11")]
    External(ExternalRange),
    /// One element repeated: the bytes of the element (for packed types one byte, already repeated within).
    #[prost(bytes, tag = "12")]
    #[serde(with = "hex_bytes")]
    Splat(Vec<u8>),
    /// Pseudo-random elements, made at load.
    #[prost(message, tag = "13")]
    Seeded(SeededElements),
}

/// The parameters of [`tensor::Seeded`].
#[derive(Clone, Copy, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SeededElements {
    /// The stream.
    #[prost(uint64, tag = "1")]
    pub seed: u64,
    /// Mean.
    #[prost(float, tag = "2")]
    pub middle: f32,
    /// Half the width.
    #[prost(float, tag = "3")]
    pub spread: f32,
}

impl SeededElements {
    /// What makes the elements.
    pub fn seeded(&self) -> tensor::Seeded {
        tensor::Seeded { seed: self.seed, middle: self.middle, spread: self.spread }
    }
}

/// A range of a file beside the model.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ExternalRange {
    /// Its path, relative to the artifact's folder. An absolute path is taken as it is, but ties the artifact to this machine.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Start in bytes; any alignment.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// The file that holds constants.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ConstantsFile {
    /// Its length in bytes, with the id at its end.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// blake3 over the hashes of its entries in order, also the last 32 bytes of the file: tells one file from another without
    /// reading it.
    #[prost(bytes = "vec", tag = "2")]
    #[serde(with = "hex_bytes")]
    pub id: Vec<u8>,
}

/// A pool domain.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Domain {
    /// 0 device, 1 host, 2 host-mapped.
    #[prost(uint32, tag = "1")]
    pub space: u32,
    /// Peak bytes as an expression over input dims.
    #[prost(string, tag = "2")]
    pub peak: String,
}

/// A kernel.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernel {
    /// Symbol of a generated kernel, name of a catalog kernel.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `loops` (generated) or `catalog`.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// Id of a catalog kernel.
    #[prost(uint32, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// How a generated kernel is launched on a GPU; the artifact holds code for GPUs then.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuLaunch>,
}

/// How a generated kernel is launched on a GPU: the fields of `kernels::gpu::Launch`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuLaunch {
    /// Name of the schedule.
    #[prost(string, tag = "1")]
    pub schedule: String,
    /// Threads per block.
    #[prost(uint32, tag = "2")]
    pub block: u32,
    /// Points per thread or block, as the schedule says.
    #[prost(uint32, tag = "3")]
    pub vector: u32,
}

/// A node in errors and profiles.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct DebugNode {
    /// The model node's path.
    #[prost(string, tag = "1")]
    pub path: String,
    /// What runs: `loops k3`, `kernel gemm.f32`, `host NonMaxSuppression`.
    #[prost(string, tag = "2")]
    pub what: String,
}

/// A symbolic dim.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Symbol {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Least value.
    #[prost(sint64, tag = "2")]
    pub lo: i64,
    /// Greatest value.
    #[prost(sint64, tag = "3")]
    pub hi: i64,
    /// Known divisor.
    #[prost(sint64, tag = "4")]
    pub multiple_of: i64,
    /// Where its value comes from: `input x axis 0`, `device result of /NonZero`.
    #[prost(string, tag = "5")]
    pub origin: String,
}

/// How many of something.
#[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Count {
    /// Of what.
    #[prost(string, tag = "1")]
    pub what: String,
    /// How many.
    #[prost(uint64, tag = "2")]
    pub n: u64,
}

fn known_dtype(n: i32) -> Result<DType> {
    DType::from_onnx(n).ok_or_else(|| malformed(format!("{n} is not an element type")))
}

fn malformed(message: String) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, message)
}

impl Metadata {
    /// Empty, of the current format.
    pub fn new() -> Metadata {
        Metadata { format_version: FORMAT_VERSION, ..Metadata::default() }
    }

    /// Reads and checks the metadata section.
    ///
    /// # Errors
    /// `Malformed` or `Limit` when the bytes are not metadata, or speak of things that cannot be.
    pub fn decode_checked(bytes: &[u8]) -> Result<Metadata> {
        if bytes.len() > MAX_METADATA_BYTES {
            let text = format!("metadata of {} bytes; at most {MAX_METADATA_BYTES} are read", bytes.len());
            return Err(Diagnostic::new(ErrorKind::Limit, text));
        }
        count_fields(bytes)?;
        let m = Metadata::decode(bytes).map_err(|e| malformed(format!("metadata cannot be decoded: {e}")))?;
        m.check()?;
        Ok(m)
    }

    /// The JSON mirror, with a newline at the end.
    ///
    /// # Errors
    /// `Internal` when it cannot be written.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
        let text = text.map_err(|e| Diagnostic::new(ErrorKind::Internal, format!("metadata as JSON: {e}")))?;
        Ok(text + "\n")
    }

    /// Reads the JSON mirror back.
    ///
    /// # Errors
    /// `Malformed` when it is not that.
    pub fn from_json(text: &str) -> Result<Metadata> {
        serde_json::from_str(text).map_err(|e| malformed(format!("metadata JSON: {e}")))
    }

    /// Checks that everything in it can be: dtypes exist, ranks agree, constants have the bytes their shape needs and lie in
    /// the constants file, spaces and indices exist.
    ///
    /// # Errors
    /// `Malformed` with the table and the entry.
    pub fn check(&self) -> Result<()> {
        if self.format_version != FORMAT_VERSION {
            return Err(malformed(format!("metadata of format {}, this is {FORMAT_VERSION}", self.format_version)));
        }
        for (what, ports) in [("input", &self.inputs), ("output", &self.outputs)] {
            for p in ports {
                p.dtype().map_err(|e| e.note(what, format!("{:?}", p.name)))?;
                if p.fixed.len() != p.dims.len() || p.fixed.iter().any(|&d| d < -1) {
                    let text = format!("{what} {:?} has {} dims but extents {:?}", p.name, p.dims.len(), p.fixed);
                    return Err(malformed(text));
                }
                if p.default.is_some_and(|c| usize::try_from(c).map_or(true, |c| c >= self.constants.len())) {
                    return Err(malformed(format!("{what} {:?} has a default that does not exist", p.name)));
                }
            }
        }
        for a in &self.aliases {
            let there = |i: u32, n: usize| usize::try_from(i).is_ok_and(|i| i < n);
            if !there(a.input, self.inputs.len()) || !there(a.output, self.outputs.len()) {
                return Err(malformed(format!("alias of input {} and output {} that do not exist", a.input, a.output)));
            }
        }
        for (i, c) in self.constants.iter().enumerate() {
            self.check_constant(c).map_err(|e| e.note("constant", format!("{i} {:?}", c.name)))?;
        }
        if let Some(d) = self.domains.iter().find(|d| d.space > 2) {
            return Err(malformed(format!("pool domain in space {}; there are 0 to 2", d.space)));
        }
        if let Some(k) =
            self.kernels.iter().find(|k| !matches!((k.kind.as_str(), k.id), ("loops", None) | ("catalog", Some(_))))
        {
            return Err(malformed(format!("kernel {:?} of kind {:?} with id {:?}", k.name, k.kind, k.id)));
        }
        // Which schedules there are is the runtime's to know.
        for (k, g) in self.kernels.iter().filter_map(|k| Some((k, k.gpu.as_ref()?))) {
            if k.id.is_some() || g.schedule.is_empty() || !(1..=1024).contains(&g.block) || g.vector == 0 {
                return Err(malformed(format!("kernel {:?} with a launch {g:?}", k.name)));
            }
        }
        Ok(())
    }

    fn check_constant(&self, c: &Constant) -> Result<()> {
        let dtype = c.dtype()?;
        let n = c.shape.iter().try_fold(1u64, |a, &d| a.checked_mul(d)).and_then(|n| usize::try_from(n).ok());
        let want = n.and_then(|n| dtype.size_bytes(n)).and_then(|b| u64::try_from(b).ok());
        if want != Some(c.bytes) {
            return Err(malformed(format!("{dtype}{:?} takes {want:?} bytes, the table says {}", c.shape, c.bytes)));
        }
        if c.layout != "plain" {
            return Err(malformed(format!("unknown layout {:?}; known: plain", c.layout)));
        }
        match &c.source {
            None => Err(malformed("a constant without a source".into())),
            Some(Source::Offset(offset)) => {
                let end = offset.checked_add(c.bytes);
                let len =
                    self.constants_file.as_ref().map_or(0, |f| f.bytes.saturating_sub(crate::constants::ID_BYTES));
                if end.is_none_or(|e| e > len) || !offset.is_multiple_of(CONSTANT_ALIGN) {
                    let text = format!("bytes {offset}..+{} of a constants file of {len} bytes", c.bytes);
                    return Err(malformed(text));
                }
                Ok(())
            }
            Some(Source::External(r)) => {
                if r.offset.checked_add(c.bytes).is_none() || r.path.is_empty() || r.path.contains('\0') {
                    return Err(malformed(format!("bytes {}..+{} of file {:?}", r.offset, c.bytes, r.path)));
                }
                Ok(())
            }
            Some(Source::Seeded(_)) => match tensor::Seeded::makes(dtype) {
                true => Ok(()),
                false => Err(malformed(format!("a seeded constant of {dtype}"))),
            },
            Some(Source::Splat(element)) => {
                if element.len() != dtype.size().unwrap_or(1) {
                    return Err(malformed(format!("a splat of {dtype} with an element of {} bytes", element.len())));
                }
                Ok(())
            }
        }
    }
}

/// Bounds memory before decoding: counts the fields of the top-level message, each of which becomes a struct.
fn count_fields(mut b: &[u8]) -> Result<()> {
    let bad = || malformed("metadata cannot be decoded: it is cut short".into());
    let mut n = 0usize;
    while !b.is_empty() {
        n += 1;
        if n > MAX_ENTRIES {
            return Err(Diagnostic::new(ErrorKind::Limit, format!("metadata with more than {MAX_ENTRIES} entries")));
        }
        let key = prost::encoding::decode_varint(&mut b).map_err(|_| bad())?;
        let skip = match key & 7 {
            0 => {
                prost::encoding::decode_varint(&mut b).map_err(|_| bad())?;
                0
            }
            1 => 8,
            2 => prost::encoding::decode_varint(&mut b).map_err(|_| bad())?,
            5 => 4,
            _ => return Err(malformed(format!("metadata cannot be decoded: wire type {}", key & 7))),
        };
        b = usize::try_from(skip).ok().and_then(|s| b.get(s..)).ok_or_else(bad)?;
    }
    Ok(())
}

/// A u64 as `0x` and 16 hex digits: JSON numbers lose bits beyond 2^53.
mod hex_u64 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    pub fn serialize<S: Serializer>(v: &u64, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{v:#018x}"))
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        let s = String::deserialize(d)?;
        u64::from_str_radix(s.strip_prefix("0x").unwrap_or(&s), 16).map_err(D::Error::custom)
    }
}

/// Bytes as hex digits.
mod hex_bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    pub fn serialize<S: Serializer>(v: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&super::hex(v))
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let s = String::deserialize(d)?;
        let digits: Option<Vec<u8>> = s.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
        let digits = digits.filter(|d| d.len().is_multiple_of(2)).ok_or_else(|| D::Error::custom("hex digits"))?;
        let (pairs, _) = digits.as_chunks::<2>();
        Ok(pairs.iter().map(|[a, b]| a << 4 | b).collect())
    }
}

/// An element type by name.
mod dtype_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use tensor::DType;
    pub fn serialize<S: Serializer>(v: &i32, s: S) -> Result<S::Ok, S::Error> {
        match DType::from_onnx(*v) {
            Some(d) => s.serialize_str(d.name()),
            None => s.serialize_str(&v.to_string()),
        }
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<i32, D::Error> {
        let s = String::deserialize(d)?;
        DType::from_name(&s)
            .map(DType::onnx)
            .or_else(|| s.parse().ok())
            .ok_or_else(|| D::Error::custom("an element type"))
    }
}

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}
