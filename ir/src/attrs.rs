//! Attributes: slots in the order of the operator's row, defaults filled in, interned.

use crate::consts::ConstId;
use crate::ty::Type;
use indexmap::IndexSet;
use std::sync::Arc;
use tensor::Entity;

tensor::entity! {
    /// An interned attribute list in an [`AttrPool`].
    pub struct AttrsId, "a"
}

/// A float compared and hashed by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct F32(u32);

impl F32 {
    /// From a value.
    pub fn new(v: f32) -> F32 {
        F32(v.to_bits())
    }
    /// The value.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}
impl std::fmt::Debug for F32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attr {
    /// Absent, and the row has no default.
    Absent,
    /// An integer.
    Int(i64),
    /// A float.
    Float(F32),
    /// A string (bytes that are not UTF-8 are refused at import).
    Str(Arc<str>),
    /// Integers.
    Ints(Arc<[i64]>),
    /// Floats.
    Floats(Arc<[F32]>),
    /// Strings.
    Strs(Arc<[Arc<str>]>),
    /// A tensor.
    Tensor(ConstId),
    /// A type (`Optional`, `SequenceEmpty`).
    Type(Box<Type>),
}

/// One attribute list: slots in the order of the row's `attrs`. Graph attributes are the node's regions instead.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Attrs(Arc<[Attr]>);

impl Attrs {
    /// From slots.
    pub fn new(slots: impl IntoIterator<Item = Attr>) -> Attrs {
        Attrs(slots.into_iter().collect())
    }
    /// All slots.
    pub fn slots(&self) -> &[Attr] {
        &self.0
    }
    /// Slot `i`; absent beyond the end.
    pub fn get(&self, i: usize) -> &Attr {
        self.0.get(i).unwrap_or(&Attr::Absent)
    }
    /// Slot `i` as an integer, if it is one.
    pub fn int(&self, i: usize) -> Option<i64> {
        match self.get(i) {
            Attr::Int(v) => Some(*v),
            _ => None,
        }
    }
    /// Slot `i` as a float, if it is one.
    pub fn float(&self, i: usize) -> Option<f32> {
        match self.get(i) {
            Attr::Float(v) => Some(v.get()),
            _ => None,
        }
    }
    /// Slot `i` as a string, if it is one.
    pub fn str(&self, i: usize) -> Option<&str> {
        match self.get(i) {
            Attr::Str(v) => Some(v),
            _ => None,
        }
    }
    /// Slot `i` as integers, if it is a list of them.
    pub fn ints(&self, i: usize) -> Option<&[i64]> {
        match self.get(i) {
            Attr::Ints(v) => Some(v),
            _ => None,
        }
    }
    /// Slot `i` as floats, if it is a list of them.
    pub fn floats(&self, i: usize) -> Option<Vec<f32>> {
        match self.get(i) {
            Attr::Floats(v) => Some(v.iter().map(|x| x.get()).collect()),
            _ => None,
        }
    }
    /// Slot `i` as a tensor constant, if it is one.
    pub fn tensor(&self, i: usize) -> Option<ConstId> {
        match self.get(i) {
            Attr::Tensor(c) => Some(*c),
            _ => None,
        }
    }
}

/// Every attribute list of a module once.
#[derive(Clone, Debug, Default)]
pub struct AttrPool(IndexSet<Attrs>);

impl AttrPool {
    /// The id of `attrs`.
    pub fn intern(&mut self, attrs: Attrs) -> AttrsId {
        AttrsId::new(self.0.insert_full(attrs).0)
    }
}

impl std::ops::Index<AttrsId> for AttrPool {
    type Output = Attrs;
    fn index(&self, id: AttrsId) -> &Attrs {
        &self.0[id.index()]
    }
}
