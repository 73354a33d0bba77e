//! Types of values in the ONNX dialect.

use smallvec::SmallVec;
use tensor::{DType, DimId, DimPool};

/// A list of extents, outermost first.
pub type Shape = SmallVec<[DimId; 4]>;

/// Elements of a small integer tensor as dims, `None` where one is not known.
pub type PartialShape = SmallVec<[Option<DimId>; 4]>;

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// A list of values of one type.
    Sequence(Box<Type>),
    /// A value or nothing.
    Optional(Box<Type>),
    /// A dictionary.
    Map {
        /// Key type: an integer or string.
        key: DType,
        /// Value type.
        value: Box<Type>,
    },
    /// Not inferred yet; refused at lowering.
    Unknown,
}

/// A tensor type; `shape` is `None` while the rank is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents, or `None` while even the rank is unknown.
    pub shape: Option<Shape>,
}

impl Type {
    /// A tensor of known rank.
    pub fn tensor(dtype: DType, shape: impl IntoIterator<Item = DimId>) -> Type {
        Type::Tensor(TensorType { dtype, shape: Some(shape.into_iter().collect()) })
    }
    /// The tensor type, when it is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }
    /// Element type of a tensor.
    pub fn dtype(&self) -> Option<DType> {
        self.as_tensor().map(|t| t.dtype)
    }
    /// Extents of a tensor of known rank.
    pub fn shape(&self) -> Option<&Shape> {
        self.as_tensor()?.shape.as_ref()
    }
    /// The type without an axis, where it has that.
    #[must_use]
    pub fn without(&self, axis: Option<usize>) -> Type {
        match (self, axis) {
            (Type::Tensor(TensorType { dtype, shape: Some(s) }), Some(axis)) if axis < s.len() => {
                Type::tensor(*dtype, s.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &d)| d))
            }
            _ => self.clone(),
        }
    }
    /// As in the text form: `f32[batch, 2*s]`, `f32[*]`, `seq<i64[]>`.
    pub fn display(&self, dims: &DimPool) -> String {
        match self {
            Type::Tensor(TensorType { dtype, shape: None }) => format!("{dtype}[*]"),
            Type::Tensor(TensorType { dtype, shape: Some(s) }) => {
                let dims: Vec<String> = s.iter().map(|&d| dims.display(d).to_string()).collect();
                format!("{dtype}[{}]", dims.join(", "))
            }
            Type::Sequence(t) => format!("seq<{}>", t.display(dims)),
            Type::Optional(t) => format!("opt<{}>", t.display(dims)),
            Type::Map { key, value } => format!("map<{key}, {}>", value.display(dims)),
            Type::Unknown => "?".into(),
        }
    }
}
