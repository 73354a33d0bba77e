//! The e-graph language: one node kind for every operator, and leaves.

use egg::Id;
use ir::OpId;
use ir::attrs::AttrsId;
use ir::consts::ConstId;
use smallvec::SmallVec;

/// What an e-node is, without its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Head {
    /// A value that comes from outside: a parameter of the region, or a value of another cut of the same graph.
    Leaf(u32),
    /// A constant of the module.
    Const(ConstId),
    /// An absent operand.
    Absent,
    /// An operator. With one result the class stands for it; with several, [`Head::Proj`] picks one.
    Op {
        /// The row.
        op: OpId,
        /// Its attributes.
        attrs: AttrsId,
        /// Results.
        n_outs: u16,
        /// 0 for pure operators; otherwise the position of the one source node it stands for, so that it never merges
        /// with another (random numbers, control flow whose bodies are opaque).
        unique: u32,
    },
    /// Result `i` of the operator that is the only child.
    Proj(u16),
}

/// An e-node: a head over e-classes. Trailing absent operands are not stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ENode {
    /// What it is.
    pub head: Head,
    /// Operands.
    pub kids: SmallVec<[Id; 4]>,
}

impl ENode {
    /// A leaf.
    pub fn leaf(head: Head) -> ENode {
        ENode { head, kids: SmallVec::new() }
    }
    /// The operator's row, if it is one.
    pub fn op(&self) -> Option<OpId> {
        match self.head {
            Head::Op { op, .. } => Some(op),
            _ => None,
        }
    }
    /// The operator's attributes, if it is one.
    pub fn attrs(&self) -> Option<AttrsId> {
        match self.head {
            Head::Op { attrs, .. } => Some(attrs),
            _ => None,
        }
    }
}

/// What the index of the e-graph looks nodes up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// See [`Head::Leaf`].
    Leaf,
    /// See [`Head::Const`].
    Const,
    /// See [`Head::Absent`].
    Absent,
    /// See [`Head::Op`].
    Op(OpId),
    /// See [`Head::Proj`].
    Proj,
}

impl egg::Language for ENode {
    type Discriminant = Kind;
    fn discriminant(&self) -> Kind {
        match self.head {
            Head::Leaf(_) => Kind::Leaf,
            Head::Const(_) => Kind::Const,
            Head::Absent => Kind::Absent,
            Head::Op { op, .. } => Kind::Op(op),
            Head::Proj(_) => Kind::Proj,
        }
    }
    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.kids.len() == other.kids.len()
    }
    fn children(&self) -> &[Id] {
        &self.kids
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.kids
    }
}
