//! The kernels that models are compiled to: every architecture compiles them, and one of each wave size executes them at small extents
//! on random elements against the nest interpreter. What is executed is the module that the back end compiles.

use crate::exec::{Executor, Launch, Order, Region};
use codegen::OptLevel;
use codegen::gpu::{self, notes};
use ir::nest::{Expr, Nest, Term};
use kernels::gpu::arch::ARCHS;
use kernels::gpu::{Arch, Platform};
use lower::host::{DimSource, KernelDef};
use lower::pass::{Hooks, Lowered, Options};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::path::Path;
use tensor::{DType, DimId, Entity, SymId, Tensor};

/// Every symbol's extent, where its facts allow it: equal ones keep what a model's guards ask for.
const EXTENT: i64 = 4;
/// Kernels with more inner points in all are compiled but not executed: the interpreter is slow.
const MOST_POINTS: i64 = 1 << 17;
/// Most elements of a buffer.
const MOST_ELEMENTS: i64 = 1 << 22;

/// One model.
struct Model {
    name: String,
    executed: usize,
    /// Kernels that were not executed, with the reason.
    left: Vec<String>,
    problems: Vec<String>,
    kernels: usize,
}

/// Checks every `.onnx` file of a folder.
///
/// # Errors
/// When the folder cannot be read or a model cannot be compiled at all.
pub fn check(folder: &Path, only: Option<&str>) -> Result<Value, String> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}; run cargo xtask models", folder.display()))?
        .filter_map(|f| Some(f.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .collect();
    paths.sort();
    let mut text = String::from("model                          kernels  executed  left");
    let (mut rows, mut ok) = (vec![], !paths.is_empty());
    for path in paths {
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if only.is_some_and(|o| !name.contains(o)) {
            continue;
        }
        let m = model(&path, name)?;
        text += &format!("\n{:<30} {:>7}  {:>8}  {:>4}", m.name, m.kernels, m.executed, m.left.len());
        m.left.iter().chain(&m.problems).for_each(|p| text += &format!("\n  {p}"));
        // A model none of whose kernels ran was not checked.
        ok &= m.problems.is_empty() && (m.executed > 0 || m.kernels == 0);
        rows.push(json!({"model": m.name, "kernels": m.kernels, "executed": m.executed, "left": m.left, "problems": m.problems}));
    }
    text += "\n\nEvery kernel is compiled for every architecture; executed ones ran in waves of 64 and of 32.";
    Ok(json!({"ok": ok, "text": text, "rows": rows}))
}

fn model(path: &Path, name: String) -> Result<Model, String> {
    let fail = |e: tensor::Diagnostic| format!("{}: {e}", path.display());
    let module = ir::import::import_path(path, &ir::Registry::builtin()).map_err(fail)?;
    let lowered = lower::pass::compile(module, &Options::default(), &mut Hooks::default()).map_err(fail)?;
    let defs = &lowered.program.kernels;
    let mut m = Model { name, executed: 0, left: vec![], problems: vec![], kernels: defs.len() };
    let nodes = vec![None; defs.len()];
    let mut executors = vec![];
    for arch in ARCHS {
        let ir = gpu::emit(defs, &nodes, arch, OptLevel::Full).map_err(fail)?;
        let code = ir.code().map_err(fail)?;
        if arch.platform == Platform::Hip {
            let found = notes::kernels(&code).map_err(fail)?;
            for def in defs.iter().filter(|d| !found.iter().any(|k| k.name == d.name)) {
                m.problems.push(format!("{}: {} is missing", arch.name, def.name));
            }
            for k in found.iter().filter(|k| k.hidden_args > 0 || k.shared_bytes > u64::from(arch.lds_bytes)) {
                m.problems.push(format!("{}: {} needs what no launch gives", arch.name, k.name));
            }
        }
        if ["gfx942", "gfx1100"].contains(&arch.name) {
            executors.push((arch, Executor::load(&ir.bitcode, arch)?));
        }
    }
    let env = environment(&lowered);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for def in defs {
        match Run::new(&lowered, def, &env, &mut rng) {
            Err(why) => m.left.push(format!("{}: {why}", def.name)),
            Ok(run) => {
                m.executed += 1;
                for (arch, x) in &executors {
                    for order in [Order::Forward, Order::Reverse] {
                        if let Err(why) = run.on(x, arch, def, order) {
                            m.problems.push(format!("{} {} {order:?}: {why}", arch.name, def.name));
                        }
                    }
                }
            }
        }
    }
    Ok(m)
}

fn environment(l: &Lowered) -> Vec<(SymId, i64)> {
    let value = |s: &tensor::dims::Symbol| {
        let step = s.multiple_of.max(1);
        (EXTENT.max(s.lo).min(s.hi) + step - 1) / step * step
    };
    l.hip.dims.symbols().map(|(id, s)| (id, value(s))).collect()
}

/// A kernel with everything one run of it needs.
struct Run {
    params: Vec<i64>,
    points: i64,
    before: Vec<Vec<u8>>,
    want: Vec<Vec<u8>>,
}

impl Run {
    fn new(l: &Lowered, def: &KernelDef, env: &[(SymId, i64)], rng: &mut ChaCha8Rng) -> Result<Run, String> {
        let nest: &Nest = &def.nest;
        let symbol = |s: SymId| env.iter().find(|(x, _)| *x == s).map(|(_, v)| *v);
        let eval = |d: DimId| l.hip.dims.eval(d, &symbol).map_err(|e| e.message().to_string());
        let product = |axes: &[DimId]| axes.iter().try_fold(1i64, |n, d| Ok::<_, String>(n.saturating_mul(eval(*d)?)));
        let points = product(&nest.outer)?;
        let work = points.saturating_mul(product(&nest.inner)?.max(1));
        if work > MOST_POINTS {
            return Err(format!("{work} inner points are too many to interpret"));
        }
        let mut params = vec![0; usize::try_from(def.n_params).unwrap_or(0)];
        for (d, s) in &def.dims {
            if let DimSource::Param(i) = s {
                let slot = usize::try_from(*i).ok().and_then(|i| params.get_mut(i));
                *slot.ok_or("an argument that does not exist")? = eval(*d)?;
            }
        }
        let indices = index_operands(nest);
        let mut before = vec![];
        for (i, o) in nest.operands.iter().enumerate() {
            let mut last = 0i64;
            let mut empty = false;
            for (n, s) in o.shape.iter().zip(&o.strides) {
                let (n, s) = (eval(*n)?, eval(*s)?);
                empty |= n == 0;
                last = last.saturating_add((n - 1).saturating_mul(s.max(0)));
            }
            let n = if empty { 0 } else { last + 1 };
            if n > MOST_ELEMENTS {
                return Err(format!("a buffer of {n} elements"));
            }
            before.push(elements(o.dtype, usize::try_from(n).unwrap_or(0), indices[i] || o.written, rng));
        }
        let mut want = before.clone();
        lower::hip_interp::run_nest(&l.hip.dims, nest, env, &mut want)
            .map_err(|e| format!("does not run at these extents: {}", e.message()))?;
        Ok(Run { params, points, before, want })
    }

    fn on(&self, x: &Executor, arch: &Arch, def: &KernelDef, order: Order) -> Result<(), String> {
        let mut memory: Vec<Vec<u128>> = self.before.iter().map(|b| vec![0; b.len() / 16 + 1]).collect();
        let mut regions = vec![];
        for ((m, b), o) in memory.iter_mut().zip(&self.before).zip(&def.nest.operands) {
            // SAFETY: the words have room for the bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(m.as_mut_ptr().cast::<u8>(), 16 * m.len()) };
            bytes[..b.len()].copy_from_slice(b);
            regions.push(Region { address: bytes.as_ptr() as usize, bytes: b.len(), writable: o.written });
        }
        let launch = gpu::launch(def);
        let grid = launch.grid(arch.wave, self.points);
        let words = regions.iter().map(|r| r.address as u64).chain(self.params.iter().map(|p| p.cast_unsigned()));
        let kernarg: Vec<u8> = words.chain([self.points.cast_unsigned()]).flat_map(u64::to_ne_bytes).collect();
        if grid > 0 {
            let run = Launch {
                kernel: &def.name,
                grid: [grid, 1, 1],
                block: launch.block,
                kernarg: &kernarg,
                regions: &regions,
                order,
                skip_barrier: None,
            };
            // SAFETY: the regions are buffers of this function that nobody else uses.
            unsafe { x.run(&run) }?;
        }
        for ((o, r), want) in def.nest.operands.iter().zip(&regions).zip(&self.want) {
            // SAFETY: the buffer is alive and nobody writes to it now.
            let got = unsafe { std::slice::from_raw_parts(r.address as *const u8, r.bytes) };
            compare(o.dtype, got, want)?;
        }
        Ok(())
    }
}

/// Operands whose elements are, directly or not, places in other operands.
fn index_operands(nest: &Nest) -> Vec<bool> {
    let mut used = vec![false; nest.exprs.len()];
    let loads = nest.exprs.iter().filter_map(|x| match x {
        Expr::Load(a) | Expr::LoadIf { access: a, .. } => Some(a),
        _ => None,
    });
    for (t, _) in loads.flat_map(|a| &a.coords).flat_map(|c| &c.terms) {
        if let Term::Expr(x) = t {
            used[x.index()] = true;
        }
    }
    let mut out = vec![false; nest.operands.len()];
    for i in (0..nest.exprs.len()).rev().filter(|i| used[*i]).collect::<Vec<_>>() {
        let mut stack = vec![i];
        while let Some(i) = stack.pop() {
            match &nest.exprs[i] {
                Expr::Load(a) | Expr::LoadIf { access: a, .. } => out[usize::from(a.operand)] = true,
                x => lower::nests::children(x, &mut |c| stack.push(c.index())),
            }
        }
    }
    out
}

/// Random elements; zeros where they are places.
fn elements(d: DType, n: usize, zero: bool, rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..n {
        let (f, i) = if zero { (0.0, 0) } else { (rng.random_range(-3.0..3.0), rng.random_range(0..5)) };
        let t = match d {
            DType::Bool => Tensor::from_bool(&[], &[i > 2]),
            d if d.is_float() => Tensor::from_f64_as(d, &[], &[f]),
            d => Tensor::from_i64_as(d, &[], &[i]),
        };
        out.extend_from_slice(t.bytes());
    }
    out
}

fn compare(d: DType, got: &[u8], want: &[u8]) -> Result<(), String> {
    let size = d.size().unwrap_or(1);
    for (k, (g, w)) in got.chunks(size).zip(want.chunks(size)).enumerate().filter(|(_, (g, w))| g != w) {
        let number = |b: &[u8]| -> Option<f64> {
            Some(Tensor::new(d, &[], b.to_vec().into()).ok().filter(|_| d.is_float())?.view().f64_at(0))
        };
        // Sums in another order, polynomials; narrow floats may round the other way.
        let relative = if size == 2 { 1e-2 } else { 1e-4 };
        let near = matches!((number(g), number(w)), (Some(g), Some(w))
            if (g.is_nan() && w.is_nan()) || g == w || (g - w).abs() <= relative * w.abs() + 1e-4);
        if !near {
            return Err(format!("element {k} is {g:02x?}, not {w:02x?} ({d})"));
        }
    }
    Ok(())
}
