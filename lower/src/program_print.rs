//! Prints a host program, one statement a line: `--emit host` and tests.

use crate::host::*;
use ir::hip::Space;
use std::fmt::{self, Write};

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
fn space(s: Space) -> &'static str {
    match s {
        Space::Device => "device",
        Space::Host => "host",
        Space::HostMapped => "mapped",
    }
}
fn op(o: IntOp) -> &'static str {
    match o {
        IntOp::Add => "+",
        IntOp::Sub => "-",
        IntOp::Mul => "*",
        IntOp::FloorDiv => "floordiv",
        IntOp::CeilDiv => "ceildiv",
        IntOp::Mod => "mod",
        IntOp::Min => "min",
        IntOp::Max => "max",
        IntOp::Eq => "==",
        IntOp::Le => "<=",
        IntOp::Lt => "<",
        IntOp::And => "and",
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}[{}]", self.name, self.dtype, list(&self.dims))
    }
}

impl HostProgram {
    fn at(&self, node: u32) -> &str {
        self.debug.get(node as usize).map_or("?", |d| &d.path)
    }

    /// Prints one statement without indentation.
    pub fn stmt(&self, s: &Stmt) -> String {
        let mut o = String::new();
        let w = &mut o;
        // Writing to a string does not fail.
        let _ = match s {
            Stmt::Const(r, v) => write!(w, "{r} = {v}"),
            Stmt::Int(r, i, a, b) => write!(w, "{r} = {a} {} {b}", op(*i)),
            Stmt::InputDim(r, i, axis) => write!(w, "{r} = dim input {i} axis {axis}"),
            Stmt::InputPtr(r, i) => write!(w, "{r} = input {i}"),
            Stmt::ConstPtr(r, i) => write!(w, "{r} = const {i}"),
            Stmt::Reserve { base, domain, bytes } => write!(w, "{base} = reserve {domain}, {bytes}"),
            Stmt::Output { ptr, index, dims } => write!(w, "{ptr} = output {index} [{}]", list(dims)),
            Stmt::Guard { cond, sides, what, node } => {
                let text = self.guards.get(*what as usize).map_or("?", |s| s.as_str());
                write!(w, "guard {cond} ({}, {}) {text:?}", sides.0, sides.1).and_then(|()| self.origin(w, *node))
            }
            Stmt::Launch { kernel, buffers, params, points, work, node } => {
                let name = self.kernels.get(*kernel as usize).map_or("?", |k| &k.name);
                let args = format!("({}; {})", list(buffers), list(params));
                write!(w, "launch {name}{args} points {points} work {work}").and_then(|()| self.origin(w, *node))
            }
            Stmt::Kernel { id, buffers, ints, scalars, node } => {
                let name = kernels::catalog::CATALOG.get(*id as usize).map_or("?", |k| k.name);
                let scalars: Vec<String> = scalars.iter().map(|x| format!("{x:?}")).collect();
                write!(w, "kernel {name}({}; {}; {})", list(buffers), list(ints), scalars.join(", "))
                    .and_then(|()| self.origin(w, *node))
            }
            Stmt::HostOp { op, tensors, n_reads, node } => {
                let text = self.host_ops.get(*op as usize).map_or("?", |s| s.as_str());
                let desc = |d: &Option<Desc>| match d {
                    None => "none".to_string(),
                    Some(d) => format!("{} {}[{}] {}", d.ptr, d.dtype, list(&d.dims), space(d.space)),
                };
                let (reads, writes) = tensors.split_at((*n_reads as usize).min(tensors.len()));
                let all = |t: &[Option<Desc>]| t.iter().map(desc).collect::<Vec<_>>().join(", ");
                write!(w, "host {text:?}({}) -> ({})", all(reads), all(writes)).and_then(|()| self.origin(w, *node))
            }
            Stmt::Copy { dst, src, bytes, node } => {
                write!(w, "copy {} {} <- {} {}, {bytes} bytes", dst.0, space(dst.1), src.0, space(src.1))
                    .and_then(|()| self.origin(w, *node))
            }
            Stmt::StoreInts { ptr, dtype, values } => write!(w, "store {dtype} {ptr} <- [{}]", list(values)),
            Stmt::Readback { reg, ptr, space: s, dtype, index, node } => {
                write!(w, "{reg} = readback {dtype} {ptr}[{index}] {}", space(*s)).and_then(|()| self.origin(w, *node))
            }
            Stmt::Call(f) => write!(w, "call {}", self.func_name(*f)),
            Stmt::If { cond, then, els, merges } => {
                let m: Vec<String> = merges.iter().map(|(r, a, b)| format!("{r} = {a} | {b}")).collect();
                write!(w, "if {cond} {} else {} [{}]", self.func_name(*then), self.func_name(*els), m.join(", "))
            }
            Stmt::Loop { carried, go, body } => {
                let m: Vec<String> = carried.iter().map(|(r, a, b)| format!("{r} = {a} then {b}")).collect();
                write!(w, "while {go} {} [{}]", self.func_name(*body), m.join(", "))
            }
        };
        o
    }
    fn origin(&self, w: &mut String, node: u32) -> fmt::Result {
        match self.at(node) {
            "" => Ok(()),
            path => write!(w, "  ; {path}"),
        }
    }
    fn func_name(&self, f: FuncId) -> &str {
        self.funcs.get(tensor::Entity::index(f)).map_or("?", |f| &f.name)
    }

    /// Number of statements that are calls, by kind: launches, catalog kernels, host ops, copies, readbacks.
    pub fn n_calls(&self) -> [usize; 5] {
        let mut n = [0; 5];
        for s in self.funcs.iter().flat_map(|f| &f.body) {
            match s {
                Stmt::Launch { .. } => n[0] += 1,
                Stmt::Kernel { .. } => n[1] += 1,
                Stmt::HostOp { .. } => n[2] += 1,
                Stmt::Copy { .. } => n[3] += 1,
                Stmt::Readback { .. } => n[4] += 1,
                _ => {}
            }
        }
        n
    }
}

impl fmt::Display for HostProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in &self.inputs {
            writeln!(f, "input {p}")?;
        }
        for p in &self.outputs {
            writeln!(f, "output {p}")?;
        }
        for (i, d) in self.domains.iter().enumerate() {
            writeln!(f, "domain {i} {}: {} bytes", space(d.space), d.peak)?;
        }
        for (i, c) in self.constants.iter().enumerate() {
            writeln!(f, "const {i} = {}", c.konst)?;
        }
        for k in &self.kernels {
            let dims: Vec<String> = k
                .dims
                .iter()
                .map(|(_, s)| match s {
                    DimSource::Const(c) => c.to_string(),
                    DimSource::Param(p) => format!("p{p}"),
                })
                .collect();
            writeln!(
                f,
                "kernel {}({} buffers; {} ints) dims [{}]",
                k.name,
                k.nest.operands.len(),
                k.n_params,
                dims.join(", ")
            )?;
        }
        for func in &self.funcs {
            writeln!(f, "func {} {{", func.name)?;
            for s in &func.body {
                writeln!(f, "  {}", self.stmt(s))?;
            }
            writeln!(f, "}}")?;
        }
        Ok(())
    }
}
