//! `u32` entity keys and the maps they index: the arenas of every IR in this project.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A `u32` key made by [`entity!`](crate::entity).
pub trait Entity: Copy + Eq + std::hash::Hash + Ord {
    /// The key for position `i`. Panics beyond `u32::MAX` entries.
    fn new(i: usize) -> Self;
    /// The position.
    fn index(self) -> usize;
}

/// Declares an entity: a `u32` newtype that prints with a prefix (`Value(7)` prints `v7`).
#[macro_export]
macro_rules! entity {
    ($(#[$doc:meta])* $vis:vis struct $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis struct $name(u32);
        impl $crate::Entity for $name {
            #[inline]
            fn new(i: usize) -> Self {
                Self(u32::try_from(i).expect("more than u32::MAX entities"))
            }
            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

/// The owning map: only it makes keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryMap<K, V> {
    elems: Vec<V>,
    key: PhantomData<K>,
}

impl<K: Entity, V> Default for PrimaryMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Entity, V> PrimaryMap<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self { elems: Vec::new(), key: PhantomData }
    }
    /// Adds `v` and returns its key.
    pub fn push(&mut self, v: V) -> K {
        let k = K::new(self.elems.len());
        self.elems.push(v);
        k
    }
    /// Forgets all but the first `n`.
    pub fn truncate(&mut self, n: usize) {
        self.elems.truncate(n);
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.elems.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.elems.is_empty()
    }
    /// The element of `k`, or `None` when `k` is from another map.
    pub fn get(&self, k: K) -> Option<&V> {
        self.elems.get(k.index())
    }
    /// All keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.elems.len()).map(K::new)
    }
    /// All elements, in order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.elems.iter()
    }
    /// All elements, mutably.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.elems.iter_mut()
    }
    /// Keys with elements, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.elems.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
}

impl<K: Entity, V> Index<K> for PrimaryMap<K, V> {
    type Output = V;
    fn index(&self, k: K) -> &V {
        &self.elems[k.index()]
    }
}
impl<K: Entity, V> IndexMut<K> for PrimaryMap<K, V> {
    fn index_mut(&mut self, k: K) -> &mut V {
        &mut self.elems[k.index()]
    }
}

/// A side table over somebody else's keys; absent entries read as the default.
#[derive(Clone, Debug)]
pub struct SecondaryMap<K, V> {
    elems: Vec<V>,
    default: V,
    key: PhantomData<K>,
}

impl<K: Entity, V: Clone + Default> Default for SecondaryMap<K, V> {
    fn default() -> Self {
        Self::with_default(V::default())
    }
}

impl<K: Entity, V: Clone> SecondaryMap<K, V> {
    /// A table in which every entry is `default` until set.
    pub fn with_default(default: V) -> Self {
        Self { elems: Vec::new(), default, key: PhantomData }
    }
}

impl<K: Entity, V: Clone> Index<K> for SecondaryMap<K, V> {
    type Output = V;
    fn index(&self, k: K) -> &V {
        self.elems.get(k.index()).unwrap_or(&self.default)
    }
}
impl<K: Entity, V: Clone> IndexMut<K> for SecondaryMap<K, V> {
    fn index_mut(&mut self, k: K) -> &mut V {
        if k.index() >= self.elems.len() {
            self.elems.resize(k.index() + 1, self.default.clone());
        }
        &mut self.elems[k.index()]
    }
}
