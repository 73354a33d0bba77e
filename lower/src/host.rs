//! The host program: SSA of integers and addresses that orchestrates one run. Code generation translates it one to one.
//!
//! A register is an i64: an extent, a byte offset or an address. Each function is straight-line but for structured `If` and `Loop`,
//! whose arms are functions of their own. A register defined in one function and used in another lives in the run frame. Every
//! call's status is checked; a failure carries its node, an index into the artifact's debug table.

use ir::hip::Space;
use ir::nest::Nest;
use std::sync::Arc;
use tensor::DType;

tensor::entity! {
    /// An i64 register of a [`HostProgram`]; defined once.
    pub struct Reg, "%"
}
tensor::entity! {
    /// A function of a [`HostProgram`].
    pub struct FuncId, "f"
}

/// One model's host code.
#[derive(Clone, Debug, Default)]
pub struct HostProgram {
    /// Functions; the first is the entry and calls the others in order through [`Stmt::Call`].
    pub funcs: Vec<Func>,
    /// Number of registers in use.
    pub n_regs: u32,
    /// Generated kernels; equal nests appear once.
    pub kernels: Vec<KernelDef>,
    /// Constants in the order of the constants file.
    pub constants: Vec<ConstUse>,
    /// Graph inputs.
    pub inputs: Vec<Port>,
    /// Graph outputs.
    pub outputs: Vec<Port>,
    /// Positions of inputs and outputs that may be in the same memory.
    pub aliases: Vec<(u32, u32)>,
    /// Pool domains.
    pub domains: Vec<Domain>,
    /// Node paths that statements refer to.
    pub debug: Vec<DebugNode>,
    /// Guard sentences that [`Stmt::Guard`] refers to.
    pub guards: Vec<String>,
    /// Host ops that [`Stmt::HostOp`] refers to: row name, version and attributes in the text form.
    pub host_ops: Vec<String>,
}

/// A function.
#[derive(Clone, Debug, Default)]
pub struct Func {
    /// For dumps: `run`, `run_1`, `if_3_then`.
    pub name: String,
    /// Statements in order. At most about 50 calls, so that code generation stays linear.
    pub body: Vec<Stmt>,
}

/// A generated kernel. Its arguments are buffers in the nest's operand order, then `params` (dims the nest's dims are given by).
#[derive(Clone, Debug)]
pub struct KernelDef {
    /// Unique symbol: `k0_add_relu`.
    pub name: String,
    /// The nest, over the dims of `dims`.
    pub nest: Arc<Nest>,
    /// Value of each dim the nest mentions: a constant, or the position among the i64 arguments. Keyed by position of first use.
    pub dims: Vec<(tensor::DimId, DimSource)>,
    /// Number of i64 arguments.
    pub n_params: u32,
}

/// Where a kernel gets a dim from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DimSource {
    /// Known at compile time.
    Const(i64),
    /// The i-th i64 argument.
    Param(u32),
}

/// A constant the program uses.
#[derive(Clone, Debug)]
pub struct ConstUse {
    /// Which constant of the module.
    pub konst: ir::consts::ConstId,
    /// Layout in the constants file.
    pub layout: ConstLayout,
}

/// How a constant lies in the constants file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConstLayout {
    /// Contiguous, row-major, little-endian.
    Plain,
}

/// An input or output of the program.
#[derive(Clone, Debug)]
pub struct Port {
    /// The model's name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents as printed dims: a number, a symbol's name, or an expression.
    pub dims: Vec<String>,
    /// The same where constant.
    pub fixed: Vec<Option<i64>>,
    /// What an input is where the caller gives nothing: position among the constants.
    pub default: Option<u32>,
}

/// A pool domain: one growing allocation per run context.
#[derive(Clone, Debug)]
pub struct Domain {
    /// Memory space.
    pub space: Space,
    /// Peak bytes as an expression over input dims, for `--memory` and the artifact.
    pub peak: String,
}

/// A node in errors and profiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DebugNode {
    /// The model node's path.
    pub path: String,
    /// What runs: `loops k3`, `kernel gemm.f32`, `host NonMaxSuppression`.
    pub what: String,
}

/// A binary operation on registers; see [`tensor::dims::DimOp`] for the first seven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum IntOp {
    Add,
    Sub,
    Mul,
    FloorDiv,
    CeilDiv,
    Mod,
    Min,
    Max,
    Eq,
    Le,
    Lt,
    And,
}

/// A statement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Stmt {
    /// `reg = value`
    Const(Reg, i64),
    /// `reg = a op b`; comparisons give 0 or 1; division by zero fails the run.
    Int(Reg, IntOp, Reg, Reg),
    /// `reg = extent of graph input's axis` (checked against declared rank and dtype before the program starts).
    InputDim(Reg, u32, u32),
    /// `reg = address of graph input`, contiguous, in the device's memory (the runtime copied it there if it was elsewhere).
    InputPtr(Reg, u32),
    /// `reg = address of constant` (position in `constants`).
    ConstPtr(Reg, u32),
    /// `reg = base address of the domain, at least `bytes` long`. Growth may lose the content: the domain's earlier content is dead here.
    /// Runs once per run, before the first use; in a loop's body once an iteration, for extents that change from one to the next.
    Reserve {
        /// Result.
        base: Reg,
        /// Position in `domains`.
        domain: u32,
        /// Bytes needed.
        bytes: Reg,
    },
    /// `reg = address of graph output` got from the caller, contiguous.
    Output {
        /// Result.
        ptr: Reg,
        /// Position in `outputs`.
        index: u32,
        /// Extents.
        dims: Vec<Reg>,
    },
    /// Fails the run with guard sentence `what` unless `cond` is not 0.
    Guard {
        /// Condition.
        cond: Reg,
        /// The two sides, for the message.
        sides: (Reg, Reg),
        /// Position in `guards`.
        what: u32,
        /// Position in `debug`.
        node: u32,
    },
    /// Runs a generated kernel over `points` outer points.
    Launch {
        /// Position in `kernels`.
        kernel: u32,
        /// Addresses in operand order.
        buffers: Vec<Reg>,
        /// i64 arguments.
        params: Vec<Reg>,
        /// Number of outer points.
        points: Reg,
        /// About how much work a point is, in elements touched: the runtime's grain.
        work: Reg,
        /// Position in `debug`.
        node: u32,
    },
    /// Calls a catalog kernel.
    Kernel {
        /// Call id in the catalog.
        id: u32,
        /// Addresses (reads then writes then scratch); a missing operand is a register that holds 0.
        buffers: Vec<Reg>,
        /// Integer arguments.
        ints: Vec<Reg>,
        /// Scalar arguments.
        scalars: Vec<f64>,
        /// Position in `debug`.
        node: u32,
    },
    /// Calls a host op's reference function on host copies.
    HostOp {
        /// Position in `host_ops`.
        op: u32,
        /// Operands, reads then writes; `None` where absent.
        tensors: Vec<Option<Desc>>,
        /// How many are read.
        n_reads: u32,
        /// Position in `debug`.
        node: u32,
    },
    /// Copies bytes between spaces.
    Copy {
        /// Destination address and space.
        dst: (Reg, Space),
        /// Source address and space.
        src: (Reg, Space),
        /// Bytes.
        bytes: Reg,
        /// Position in `debug`.
        node: u32,
    },
    /// Writes integer registers one after the other to host-mapped memory.
    StoreInts {
        /// Address.
        ptr: Reg,
        /// i32 or i64.
        dtype: DType,
        /// Values.
        values: Vec<Reg>,
    },
    /// `reg = integer or bool element `index` at `ptr``; waits for the stream.
    Readback {
        /// Result.
        reg: Reg,
        /// Address.
        ptr: Reg,
        /// Space.
        space: Space,
        /// Element type.
        dtype: DType,
        /// Position.
        index: u32,
        /// Position in `debug`.
        node: u32,
    },
    /// Runs a function.
    Call(FuncId),
    /// Runs one of two functions.
    If {
        /// Condition, not 0 for `then`.
        cond: Reg,
        /// Taken.
        then: FuncId,
        /// Not taken.
        els: FuncId,
        /// `(result, value after then, value after els)`: registers that are merged.
        merges: Vec<(Reg, Reg, Reg)>,
    },
    /// While `go`, runs `body`.
    Loop {
        /// Carried registers: `(in the body, initial value, value after the body)`; after the loop the first holds the last value.
        carried: Vec<(Reg, Reg, Reg)>,
        /// A carried register: runs while it is not 0.
        go: Reg,
        /// The body.
        body: FuncId,
    },
}

/// A tensor passed to a host op.
#[derive(Clone, Debug)]
pub struct Desc {
    /// Address.
    pub ptr: Reg,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub dims: Vec<Reg>,
    /// Space.
    pub space: Space,
}
