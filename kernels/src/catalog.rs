//! Names, signatures and limits of hand-written kernels. Generated code calls them by id: the position in [`CATALOG`].

use tensor::DType;

/// A kernel of the catalog.
#[derive(Clone, Copy, Debug)]
pub struct KernelDef {
    /// `family.dtype`, as `gemm.f32`.
    pub name: &'static str,
    /// Buffers: reads, then writes, then scratch.
    pub buffers: &'static [BufferDef],
    /// Integer arguments by name.
    pub ints: &'static [&'static str],
    /// Scalar arguments by name.
    pub scalars: &'static [&'static str],
    /// One sentence with the formula.
    pub doc: &'static str,
}

/// A buffer of a kernel's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferDef {
    /// Name.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Direction.
    pub access: Access,
    /// What strides it takes.
    pub contract: Contract,
    /// Whether it may be null.
    pub optional: bool,
}

/// Direction of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
    Scratch,
}

/// Strides a buffer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// Row-major without gaps.
    Contiguous,
    /// Any strides on the axes whose strides are integer arguments, innermost contiguous.
    InnerContiguous,
    /// Any strides; all are integer arguments.
    Strided,
}

/// The kernels. A new one goes at the end: ids are positions and stand in artifacts.
pub static CATALOG: &[KernelDef] = &[];

/// The id of a kernel.
pub fn find(name: &str) -> Option<u32> {
    CATALOG.iter().position(|k| k.name == name).and_then(|i| u32::try_from(i).ok())
}
