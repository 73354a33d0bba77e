//! What the graph builder reads: a model as any source presents it. ONNX's protobuf is one source.

use crate::consts::Const;
use crate::graph::Meta;
use std::rc::Rc;
use std::sync::Arc;
use tensor::{DType, Result};

/// A model: a main graph and functions that its nodes may call.
pub trait ModelSource<'a> {
    /// Provenance and imported operator sets.
    fn meta(&self) -> Meta;
    /// Whether an initializer that is a graph input, too, is a default that callers may override. Else all initializers are inputs
    /// and constants (before version 4 of the file format).
    fn has_defaults(&self) -> bool;
    /// The main graph.
    fn graph(&self) -> GraphRef<'a>;
    /// Model-local functions.
    ///
    /// # Errors
    /// `Malformed` when a default value is broken.
    fn functions(&self) -> Result<Vec<FunctionSource<'a>>>;
}

/// A graph of any source; shared because a body may be visited more than once.
pub type GraphRef<'a> = Rc<dyn GraphSource<'a> + 'a>;

/// A graph: names, nodes in any order, constants.
pub trait GraphSource<'a> {
    /// Its name.
    fn name(&self) -> &'a str;
    /// Parameters, including those that are also initializers.
    fn inputs(&self) -> Result<Vec<SourceValue<'a>>>;
    /// Results.
    fn outputs(&self) -> Result<Vec<SourceValue<'a>>>;
    /// Names of the constants that are not nodes.
    fn initializers(&self) -> Vec<&'a str>;
    /// The `i`-th of them.
    ///
    /// # Errors
    /// What is wrong with its type, extents or data.
    fn initializer(&self, i: usize) -> Result<Const>;
    /// Number of nodes.
    fn n_nodes(&self) -> usize;
    /// The `i`-th node.
    fn node(&self, i: usize) -> SourceNode<'a>;
    /// The attributes of the `i`-th node.
    ///
    /// # Errors
    /// `Malformed` when one is broken.
    fn attrs(&self, i: usize) -> Result<Vec<(&'a str, SourceAttr<'a>)>>;
    /// The graphs among the attributes of the `i`-th node.
    fn bodies(&self, i: usize) -> Vec<GraphRef<'a>>;
}

/// A node without its attributes.
#[derive(Clone, Debug)]
pub struct SourceNode<'a> {
    /// Its name; may be empty.
    pub name: &'a str,
    /// Operator.
    pub op: &'a str,
    /// Domain; empty or `ai.onnx` for ONNX's own.
    pub domain: &'a str,
    /// Which of several functions of one name.
    pub overload: &'a str,
    /// Operands; empty where absent.
    pub inputs: &'a [String],
    /// Results; empty where absent.
    pub outputs: &'a [String],
}

/// A function that nodes call by domain and name.
pub struct FunctionSource<'a> {
    /// Domain.
    pub domain: &'a str,
    /// Name.
    pub name: &'a str,
    /// Overload.
    pub overload: &'a str,
    /// Parameters.
    pub inputs: Vec<&'a str>,
    /// Results.
    pub outputs: Vec<&'a str>,
    /// Attributes it takes, with their defaults.
    pub attrs: Vec<(&'a str, Option<SourceAttr<'a>>)>,
    /// Operator sets its nodes are in; those of the model where it names none.
    pub opsets: Vec<(String, i64)>,
    /// Nodes.
    pub body: GraphRef<'a>,
}

/// A declared parameter or result.
#[derive(Clone, Debug)]
pub struct SourceValue<'a> {
    /// Name.
    pub name: &'a str,
    /// Declared type.
    pub ty: SourceType<'a>,
}

/// A declared type.
#[derive(Clone, Debug)]
pub enum SourceType<'a> {
    /// A tensor; no extents mean unknown rank.
    Tensor(DType, Option<Vec<SourceDim<'a>>>),
    /// A list.
    Sequence(Box<SourceType<'a>>),
    /// A value or nothing.
    Optional(Box<SourceType<'a>>),
    /// A dictionary.
    Map(DType, Box<SourceType<'a>>),
    /// Not declared.
    Unknown,
}

/// A declared extent.
#[derive(Clone, Copy, Debug)]
pub enum SourceDim<'a> {
    /// A number as written; zero and below mean unknown.
    Known(i64),
    /// A name: equal names are equal extents.
    Named(&'a str),
    /// Not declared.
    Unknown,
}

/// An attribute's value.
#[derive(Clone)]
pub enum SourceAttr<'a> {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f32),
    /// A string.
    Str(Arc<str>),
    /// Integers.
    Ints(&'a [i64]),
    /// Floats.
    Floats(&'a [f32]),
    /// Strings.
    Strs(Vec<Arc<str>>),
    /// A tensor.
    Tensor(Const),
    /// A type.
    Type(SourceType<'a>),
    /// A body.
    Graph(GraphRef<'a>),
    /// The value of an attribute of the function this node is in.
    Ref(&'a str),
    /// A kind that no operator takes: lists of tensors, graphs or types.
    Other(&'static str),
}

impl SourceAttr<'_> {
    /// The kind, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            SourceAttr::Int(_) => "int",
            SourceAttr::Float(_) => "float",
            SourceAttr::Str(_) => "string",
            SourceAttr::Ints(_) => "ints",
            SourceAttr::Floats(_) => "floats",
            SourceAttr::Strs(_) => "strings",
            SourceAttr::Tensor(_) => "tensor",
            SourceAttr::Type(_) => "type",
            SourceAttr::Graph(_) => "graph",
            SourceAttr::Ref(_) => "reference",
            SourceAttr::Other(k) => k,
        }
    }
}
