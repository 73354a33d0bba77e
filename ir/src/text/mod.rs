//! The text form of modules: printing and reading. The grammar is in `docs/IR.md`.

mod cursor;
mod hip;
mod nest;
mod onnx;
mod parse;
mod print;

use crate::consts::Const;
use crate::graph::{Dialect, Graph, Module, NodeData, Onnx, RegionId, Value};
use crate::hip::Hip;
use crate::op::Registry;
use cursor::Cursor;
use parse::{Ids, RawNode};
use std::path::Path;
use std::sync::Arc;
use tensor::{DimPool, Result};

/// What printing shows of constants.
#[derive(Clone, Debug)]
pub struct PrintOptions {
    /// Constants with more elements are a digest, or go to the sidecar.
    pub max_inline: usize,
    /// A file to collect the bytes of larger constants, so that the text can be read back whole.
    pub sidecar: Option<Sidecar>,
}

impl Default for PrintOptions {
    fn default() -> Self {
        PrintOptions { max_inline: 64, sidecar: None }
    }
}

/// Bytes of constants beside a text; the caller writes them to the file.
#[derive(Clone, Debug)]
pub struct Sidecar {
    /// The path that the text names.
    pub path: String,
    /// What the file holds.
    pub bytes: Vec<u8>,
}

/// A dialect that has a text form.
trait TextDialect: Dialect {
    const NAME: &'static str;
    /// The type of values that nothing defines: gaps in the numbering of a text.
    fn gap() -> Self::Ty;
    fn print_type(ty: &Self::Ty, dims: &mut DimPool) -> String;
    fn print_operand(g: &Graph<Self>, v: Value) -> String;
    /// Constants that the body declares first.
    fn print_consts(m: &Module<Self>, g: &Graph<Self>, dims: &mut DimPool, indent: &str, out: &mut String);
    /// Everything between the results and the types.
    fn print_node(m: &Module<Self>, g: &Graph<Self>, n: &NodeData<Self>, dims: &mut DimPool, indent: &str) -> String;
    /// The name of region `i` in text, with a space before it.
    fn region_name(m: &Module<Self>, n: &NodeData<Self>, i: usize) -> String;
    /// The type of a constant's value.
    fn const_type(c: &Const, dims: &mut DimPool) -> Self::Ty;
    fn parse_type(c: &mut Cursor, dims: &mut DimPool) -> Result<Self::Ty>;
    /// A node after its results, up to the origin; `None` when it only declared a constant.
    fn parse_node(
        c: &mut Cursor,
        m: &mut Module<Self>,
        ids: &mut Ids<Self>,
        n_outs: &[u32],
    ) -> Result<Option<RawNode<Self>>>;
}

/// Prints a module of the ONNX dialect.
pub fn print_onnx(m: &Module<Onnx>) -> String {
    print::module(m, &mut PrintOptions::default())
}

/// [`print_onnx`] with options; fills the sidecar.
pub fn print_onnx_with(m: &Module<Onnx>, options: &mut PrintOptions) -> String {
    print::module(m, options)
}

/// Prints a module of the HIP dialect.
pub fn print_hip(m: &Module<Hip>) -> String {
    print::module(m, &mut PrintOptions::default())
}

/// [`print_hip`] with options; fills the sidecar.
pub fn print_hip_with(m: &Module<Hip>, options: &mut PrintOptions) -> String {
    print::module(m, options)
}

/// Reads a module of the ONNX dialect. Files of constants are looked for relative to the working directory.
///
/// # Errors
/// `Malformed` with line, column and what was expected; `Unsupported` for an operator that has no row.
pub fn parse_onnx(text: &str, registry: &Arc<Registry>) -> Result<Module<Onnx>> {
    parse::module(text, registry, Path::new(""))
}

/// Reads a module of the HIP dialect. Files of constants are looked for relative to the working directory.
///
/// # Errors
/// As [`parse_onnx`].
pub fn parse_hip(text: &str, registry: &Arc<Registry>) -> Result<Module<Hip>> {
    parse::module(text, registry, Path::new(""))
}

/// [`parse_onnx`] with the directory of files of constants.
///
/// # Errors
/// As [`parse_onnx`].
pub fn parse_onnx_in(text: &str, registry: &Arc<Registry>, base: &Path) -> Result<Module<Onnx>> {
    parse::module(text, registry, base)
}

/// [`parse_hip`] with the directory of files of constants.
///
/// # Errors
/// As [`parse_onnx`].
pub fn parse_hip_in(text: &str, registry: &Arc<Registry>, base: &Path) -> Result<Module<Hip>> {
    parse::module(text, registry, base)
}

/// Prints one graph of a module, for dumps.
pub fn print_region(m: &Module<Onnx>, region: RegionId) -> String {
    print::graph(m, region)
}
