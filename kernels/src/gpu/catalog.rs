//! Which kernel a call of the catalog launches and with what grid: from its integers and the architecture alone, so that equal calls
//! give equal bits.
//!
//! A kernel's arguments are the call's words in catalog order: addresses (0 for an optional buffer that is missing), integers as i64,
//! scalars as f64. There are no others.

use super::arch::{Arch, MatrixUnit};
use crate::catalog::CATALOG;
use crate::cpu::KernelError;

/// A launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Symbol of the kernel.
    pub entry: &'static str,
    /// Blocks along x, y, z. One of them is 0 when there is nothing to compute and nothing must be launched.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Shared memory to ask for at launch, besides what the kernel declares; bytes.
    pub shared_bytes: u32,
}

/// A kernel symbol and the catalog kernel it is for; `None` for those that the runtime launches itself.
pub type Entry = (&'static str, Option<&'static str>);

/// All kernel symbols.
pub static ENTRIES: &[Entry] = &[
    ("hip_ep_gemm_f32_128", Some("gemm.f32")),
    ("hip_ep_gemm_f32_64", Some("gemm.f32")),
    ("hip_ep_gemm_f32_skinny", Some("gemm.f32")),
    ("hip_ep_gemm_f32_dots", Some("gemm.f32")),
    ("hip_ep_gemm_f16_128", Some("gemm.f16")),
    ("hip_ep_gemm_f16_64", Some("gemm.f16")),
    ("hip_ep_gemm_f16_skinny", Some("gemm.f16")),
    ("hip_ep_gemm_f16_dots", Some("gemm.f16")),
    ("hip_ep_conv2d_f32_128", Some("conv2d.f32")),
    ("hip_ep_conv2d_f32_64", Some("conv2d.f32")),
    ("hip_ep_conv2d_f32_depthwise", Some("conv2d.f32")),
    ("hip_ep_conv2d_f16_128", Some("conv2d.f16")),
    ("hip_ep_conv2d_f16_64", Some("conv2d.f16")),
    ("hip_ep_conv2d_f16_depthwise", Some("conv2d.f16")),
    ("hip_ep_pool2d_f32", Some("pool2d.f32")),
    ("hip_ep_pool2d_f16", Some("pool2d.f16")),
    ("hip_ep_attention_f32_64", Some("attention.f32")),
    ("hip_ep_attention_f32_128", Some("attention.f32")),
    ("hip_ep_attention_f32_any", Some("attention.f32")),
    ("hip_ep_attention_f16_64", Some("attention.f16")),
    ("hip_ep_attention_f16_128", Some("attention.f16")),
    ("hip_ep_attention_f16_any", Some("attention.f16")),
    ("hip_ep_nonzero_count_bool", Some("nonzero_count.bool")),
    ("hip_ep_nonzero_count_f32", Some("nonzero_count.f32")),
    ("hip_ep_nonzero_count_i64", Some("nonzero_count.i64")),
    ("hip_ep_nonzero_count_i32", Some("nonzero_count.i32")),
    ("hip_ep_nonzero_fill_bool", Some("nonzero_fill.bool")),
    ("hip_ep_nonzero_fill_f32", Some("nonzero_fill.f32")),
    ("hip_ep_nonzero_fill_i64", Some("nonzero_fill.i64")),
    ("hip_ep_nonzero_fill_i32", Some("nonzero_fill.i32")),
    ("hip_ep_argsort_u64", Some("argsort.u64")),
    ("hip_ep_argsort_u64_few", Some("argsort.u64")),
    ("hip_ep_draw_i64", Some("draw.i64")),
    ("hip_ep_nms_f32", Some("nms.f32")),
    ("hip_ep_dft_f32", Some("dft.f32")),
    ("hip_ep_dft_f64", Some("dft.f64")),
    ("hip_ep_nbits_f32", Some("nbits.f32")),
    ("hip_ep_nbits_f16", Some("nbits.f16")),
    (STORE_INTS, None),
    (FILL, None),
];

/// Kernel that stores integers in stream order. Arguments: address, ONNX's number of the element type (i32 or i64), count n ≤ 16, 16
/// values of which the first n count; all as 64-bit words.
pub const STORE_INTS: &str = "hip_ep_store_ints";
/// Kernel that fills memory. Arguments: address, element size in bytes (1, 2, 4, 8), count, value; all as 64-bit words.
pub const FILL: &str = "hip_ep_fill";

/// The launch of [`STORE_INTS`].
pub fn store_ints() -> LaunchPlan {
    LaunchPlan { entry: STORE_INTS, grid: [1, 1, 1], block: 64, shared_bytes: 0 }
}

/// The launch of [`FILL`] for `n` elements.
///
/// # Errors
/// When there are more elements than a grid has threads.
pub fn fill(n: u64) -> Result<LaunchPlan, KernelError> {
    linear(FILL, u128::from(n))
}

/// Extents that kernels hold in 32 bits, with room for a tile.
const INT_LIMIT: u64 = 1 << 30;
/// Blocks along x: AMD counts threads in 32 bits, and blocks have up to 256.
const X_LIMIT: u64 = (1 << 24) - 1;
/// Blocks along y before z is used; kernels know this number.
const Y_STEP: u64 = 32_768;
/// Blocks along x before y is used where a thread makes one result; kernels know this number.
const LINEAR_X: u64 = 1 << 23;
/// Blocks along y and z.
const YZ_LIMIT: u64 = 65_535;
/// Tiles of 128 x 128 that keep a large GPU busy; below, smaller tiles give more blocks.
const MANY_TILES: u64 = 96;
/// Rows up to which `b` is streamed instead of cut in tiles.
const SKINNY_ROWS: u64 = 4;
/// Sorted keys that fit half of a block's shared memory.
const FEW_KEYS: u64 = 512;

struct Call<'a> {
    name: &'static str,
    names: &'static [&'static str],
    ints: &'a [i64],
}

impl Call<'_> {
    fn error(&self, why: String) -> KernelError {
        KernelError(format!("{}: {why}", self.name))
    }
    fn raw(&self, name: &str) -> Result<i64, KernelError> {
        let i = self.names.iter().position(|n| *n == name);
        i.and_then(|i| self.ints.get(i)).copied().ok_or_else(|| self.error(format!("there is no argument {name}")))
    }
    /// An extent, stride or pad that the kernel holds in 32 bits.
    fn int(&self, name: &str) -> Result<u64, KernelError> {
        let v = self.raw(name)?;
        match u64::try_from(v) {
            Ok(u) if u < INT_LIMIT => Ok(u),
            _ => Err(self.error(format!("{name} is {v}; the GPU kernel takes 0 to {}", INT_LIMIT - 1))),
        }
    }
    /// A product that the kernel holds in 32 bits.
    fn product(&self, what: &str, of: &[u64]) -> Result<u64, KernelError> {
        let p = of.iter().try_fold(1u64, |p, &x| p.checked_mul(x)).filter(|p| *p < INT_LIMIT);
        p.ok_or_else(|| self.error(format!("{what} is above {}, the GPU kernel's limit", INT_LIMIT - 1)))
    }
    /// `x` blocks for each of `yz` problems.
    fn grid(&self, entry: &'static str, x: u64, yz: u64, block: u32) -> Result<LaunchPlan, KernelError> {
        let (y, z) = (yz.min(Y_STEP), yz.div_ceil(Y_STEP));
        if x == 0 || yz == 0 {
            return Ok(LaunchPlan { entry, grid: [0, 1, 1], block, shared_bytes: 0 });
        }
        match (u32::try_from(x), u32::try_from(y), u32::try_from(z)) {
            (Ok(x32), Ok(y), Ok(z)) if x <= X_LIMIT && u64::from(z) <= YZ_LIMIT => {
                Ok(LaunchPlan { entry, grid: [x32, y, z], block, shared_bytes: 0 })
            }
            _ => Err(self.error(format!("{x} x {yz} blocks are more than a GPU takes in one launch"))),
        }
    }
}

/// One thread a result, 256 a block.
fn linear(entry: &'static str, n: u128) -> Result<LaunchPlan, KernelError> {
    let blocks = n.div_ceil(256);
    let (x, y) = (blocks.min(u128::from(LINEAR_X)), blocks.div_ceil(u128::from(LINEAR_X)));
    match (u32::try_from(x), u32::try_from(y)) {
        (Ok(x), Ok(y)) if u64::from(y) <= YZ_LIMIT => {
            Ok(LaunchPlan { entry, grid: [x, y.max(1), 1], block: 256, shared_bytes: 0 })
        }
        _ => Err(KernelError(format!("{entry}: {n} elements are more than a GPU takes in one launch"))),
    }
}

/// The launch of catalog kernel `id` with these integers on `arch`.
///
/// # Errors
/// When the kernel is unknown, the number of integers is not that of its signature, or an extent is negative or beyond what the GPU
/// kernel holds; the message names the argument.
pub fn plan(id: u32, ints: &[i64], arch: &Arch) -> Result<LaunchPlan, KernelError> {
    let def = usize::try_from(id).ok().and_then(|i| CATALOG.get(i));
    let def = def.ok_or_else(|| KernelError(format!("no kernel with id {id}")))?;
    if ints.len() != def.ints.len() {
        return Err(KernelError(format!("{} takes {} integers, got {}", def.name, def.ints.len(), ints.len())));
    }
    let c = Call { name: def.name, names: def.ints, ints };
    match def.name {
        "gemm.f32" => gemm(&c, &GEMM_F32, arch),
        "gemm.f16" => gemm(&c, &GEMM_F16, arch),
        "conv2d.f32" => conv(&c, ["hip_ep_conv2d_f32_128", "hip_ep_conv2d_f32_64", "hip_ep_conv2d_f32_depthwise"]),
        "conv2d.f16" => conv(&c, ["hip_ep_conv2d_f16_128", "hip_ep_conv2d_f16_64", "hip_ep_conv2d_f16_depthwise"]),
        "pool2d.f32" => pool(&c, "hip_ep_pool2d_f32"),
        "pool2d.f16" => pool(&c, "hip_ep_pool2d_f16"),
        "attention.f32" => attention(&c, &ATTENTION_F32, None),
        "attention.f16" => attention(&c, &ATTENTION_F16, (arch.matrix != MatrixUnit::None).then_some(arch.wave)),
        "nonzero_count.bool" => count(&c, "hip_ep_nonzero_count_bool"),
        "nonzero_count.f32" => count(&c, "hip_ep_nonzero_count_f32"),
        "nonzero_count.i64" => count(&c, "hip_ep_nonzero_count_i64"),
        "nonzero_count.i32" => count(&c, "hip_ep_nonzero_count_i32"),
        "nonzero_fill.bool" => list(&c, "hip_ep_nonzero_fill_bool"),
        "nonzero_fill.f32" => list(&c, "hip_ep_nonzero_fill_f32"),
        "nonzero_fill.i64" => list(&c, "hip_ep_nonzero_fill_i64"),
        "nonzero_fill.i32" => list(&c, "hip_ep_nonzero_fill_i32"),
        "argsort.u64" => argsort(&c),
        "nms.f32" => nms(&c),
        crate::catalog::DRAW => {
            Ok(LaunchPlan { entry: "hip_ep_draw_i64", grid: [1, 1, 1], block: 64, shared_bytes: 0 })
        }
        "dft.f32" => dft(&c, "hip_ep_dft_f32"),
        "dft.f64" => dft(&c, "hip_ep_dft_f64"),
        "nbits.f32" => nbits(&c, "hip_ep_nbits_f32", arch),
        "nbits.f16" => nbits(&c, "hip_ep_nbits_f16", arch),
        name => Err(KernelError(format!("{name} has no GPU implementation"))),
    }
}

/// Large tile, small tile, few rows, few rows of products with k side by side.
type GemmEntries = [&'static str; 4];
const GEMM_F32: GemmEntries =
    ["hip_ep_gemm_f32_128", "hip_ep_gemm_f32_64", "hip_ep_gemm_f32_skinny", "hip_ep_gemm_f32_dots"];
const GEMM_F16: GemmEntries =
    ["hip_ep_gemm_f16_128", "hip_ep_gemm_f16_64", "hip_ep_gemm_f16_skinny", "hip_ep_gemm_f16_dots"];

/// Tiles of `rows` x `cols`: edge of the tile and their number.
fn tiles(rows: u64, cols: u64, problems: u64) -> (bool, u64) {
    let n = |edge: u64| rows.div_ceil(edge) * cols.div_ceil(edge);
    let large = rows > 64 && cols > 64 && n(128).saturating_mul(problems) >= MANY_TILES;
    (large, n(if large { 128 } else { 64 }))
}

fn gemm(c: &Call<'_>, entries: &GemmEntries, arch: &Arch) -> Result<LaunchPlan, KernelError> {
    let (m, n) = (c.int("m")?, c.int("n")?);
    c.int("k")?;
    let batch = c.int("batch")?;
    if m <= SKINNY_ROWS {
        // A wave a column where k is side by side, else a thread a column and four parts of k.
        return if c.raw("b_row_stride")? == 1 {
            c.grid(entries[3], n.div_ceil(u64::from(256 / arch.wave)) * m.min(1), batch, 256)
        } else {
            c.grid(entries[2], n.div_ceil(64) * m.min(1), batch, 256)
        };
    }
    let (large, x) = tiles(m, n, batch);
    c.grid(if large { entries[0] } else { entries[1] }, x, batch, 256)
}

fn conv(c: &Call<'_>, entries: [&'static str; 3]) -> Result<LaunchPlan, KernelError> {
    let names = ["n", "c", "h", "w", "m", "kh", "kw", "group", "oh", "ow", "pad_top", "pad_left"];
    let mut v = [0u64; 12];
    for (v, name) in v.iter_mut().zip(names) {
        *v = c.int(name)?;
    }
    let [n, ch, _, _, m, kh, kw, group, oh, ow, _, _] = v;
    if group == 0 || ch % group != 0 || m % group != 0 {
        return Err(c.error(format!("{ch} input and {m} output channels do not divide into {group} groups")));
    }
    let (cg, mg) = (ch / group, m / group);
    reach(c)?;
    c.product("a channel's window count", &[cg, kh, kw])?;
    let pixels = c.product("the number of output pixels", &[n, oh, ow])?;
    if cg == 1 {
        return linear(entries[2], u128::from(pixels) * u128::from(m));
    }
    let (large, x) = tiles(mg, pixels, group);
    c.grid(if large { entries[0] } else { entries[1] }, x, group, 256)
}

/// Coordinates of windows must fit 32 bits.
fn reach(c: &Call<'_>) -> Result<(), KernelError> {
    for (stride, out, dil, k) in [("stride_h", "oh", "dil_h", "kh"), ("stride_w", "ow", "dil_w", "kw")] {
        c.product("the reach of windows", &[c.int(stride)?, c.int(out)?])?;
        c.product("the reach of a window", &[c.int(dil)?, c.int(k)?])?;
    }
    Ok(())
}

fn pool(c: &Call<'_>, entry: &'static str) -> Result<LaunchPlan, KernelError> {
    for name in ["h", "w", "pad_top", "pad_left", "pad_bottom", "pad_right"] {
        c.int(name)?;
    }
    reach(c)?;
    c.product("a window", &[c.int("kh")?, c.int("kw")?])?;
    if c.int("dil_h")? == 0 || c.int("dil_w")? == 0 {
        return Err(c.error("a dilation is 0".into()));
    }
    if c.int("kind")? > 2 {
        return Err(c.error(format!("kind {} is not 0, 1 or 2", c.raw("kind")?)));
    }
    let n = [c.int("nc")?, c.int("oh")?, c.int("ow")?];
    linear(entry, n.iter().map(|&x| u128::from(x)).product())
}

/// d and e up to 64, up to 128, any.
type AttentionEntries = [&'static str; 3];
const ATTENTION_F32: AttentionEntries =
    ["hip_ep_attention_f32_64", "hip_ep_attention_f32_128", "hip_ep_attention_f32_any"];
const ATTENTION_F16: AttentionEntries =
    ["hip_ep_attention_f16_64", "hip_ep_attention_f16_128", "hip_ep_attention_f16_any"];

/// `matrix`: the wave size where matrix units do it.
fn attention(c: &Call<'_>, entries: &AttentionEntries, matrix: Option<u32>) -> Result<LaunchPlan, KernelError> {
    let (batch, heads, s, d, e) = (c.int("batch")?, c.int("heads")?, c.int("s")?, c.int("d")?, c.int("e")?);
    c.int("t")?;
    let (entry, rows, block) = match (d.max(e), matrix) {
        (0..=64, None) => (entries[0], 32, 256),
        (0..=64, Some(wave)) => (entries[0], 64, 4 * wave),
        (65..=128, None) => (entries[1], 32, 256),
        (65..=128, Some(wave)) => (entries[1], 64, 4 * wave),
        _ => (entries[2], 1, 256),
    };
    let heads = c.product("batch times heads", &[batch, heads])?;
    let x = s.div_ceil(rows).checked_mul(heads).ok_or_else(|| c.error("there are too many query rows".into()))?;
    c.grid(entry, if e == 0 { 0 } else { x }, 1, block)
}

fn count(c: &Call<'_>, entry: &'static str) -> Result<LaunchPlan, KernelError> {
    if c.raw("n")? < 0 {
        return Err(c.error(format!("n is {}", c.raw("n")?)));
    }
    // Also for n = 0: the count is written.
    Ok(LaunchPlan { entry, grid: [1, 1, 1], block: 1024, shared_bytes: 0 })
}

fn list(c: &Call<'_>, entry: &'static str) -> Result<LaunchPlan, KernelError> {
    let (rank, count) = (c.int("rank")?, c.raw("count")?);
    if rank > 8 || count < 0 {
        return Err(c.error(format!("rank {rank} is above 8, or count {count} below 0")));
    }
    let used = usize::try_from(rank).unwrap_or(8);
    let dims = c.ints.get(2..2 + used).unwrap_or(&[]);
    let n = dims.iter().try_fold(1i64, |p, &d| if d < 0 { None } else { p.checked_mul(d) });
    let n = n.ok_or_else(|| c.error(format!("extents {dims:?} are negative or overflow")))?;
    let grid = [u32::from(n > 0 && count > 0 && rank > 0), 1, 1];
    Ok(LaunchPlan { entry, grid, block: 1024, shared_bytes: 0 })
}

/// A wave for a column of up to [`SKINNY_ROWS`] rows.
fn nbits(c: &Call<'_>, entry: &'static str, arch: &Arch) -> Result<LaunchPlan, KernelError> {
    let (m, n) = (c.int("m")?, c.int("n")?);
    let (bits, block) = (c.int("bits")?, c.int("block")?);
    c.product("the bits of a row", &[c.int("k")?.next_multiple_of(block.max(1)), bits])?;
    c.grid(entry, n.div_ceil(u64::from(256 / arch.wave)), m.div_ceil(SKINNY_ROWS), 256)
}

/// A block for a row.
fn argsort(c: &Call<'_>) -> Result<LaunchPlan, KernelError> {
    let (rows, n, k) = (c.int("rows")?, c.int("n")?, c.int("k")?);
    if k > n {
        return Err(c.error(format!("k is {k} of {n} keys")));
    }
    let entry = if k <= FEW_KEYS && n > 2 * FEW_KEYS { "hip_ep_argsort_u64_few" } else { "hip_ep_argsort_u64" };
    c.grid(entry, k.min(1), rows, 512)
}

/// A block for a signal, up to as many as have scratch memory.
fn dft(c: &Call<'_>, entry: &'static str) -> Result<LaunchPlan, KernelError> {
    let (n, bins) = (c.int("n")?, c.int("bins")?);
    for (name, most) in [("parts", 2), ("out_parts", 2), ("bins", n)] {
        if !(1..=most).contains(&c.int(name)?) {
            return Err(c.error(format!("{name} is {}, not 1 to {most}", c.raw(name)?)));
        }
    }
    let signals = c.product("the number of signals", &[c.int("outer")?, c.int("inner")?])?;
    c.int("t")?;
    c.grid(entry, signals.min(256) * bins.min(1), 1, 256)
}

/// A block for a batch and class.
fn nms(c: &Call<'_>) -> Result<LaunchPlan, KernelError> {
    let rows = c.product("batch times classes", &[c.int("batch")?, c.int("classes")?])?;
    c.grid("hip_ep_nms_f32", c.int("n")?.min(1), rows, 256)
}

#[cfg(test)]
mod tests {
    use super::super::arch::ARCHS;
    use super::*;
    use crate::catalog::find;
    use std::collections::BTreeSet;

    fn arch(name: &str) -> &'static Arch {
        Arch::find(name).unwrap()
    }
    /// Ones, and what is named.
    fn ints(kernel: &str, set: &[(&str, i64)]) -> (u32, Vec<i64>) {
        let id = find(kernel).unwrap();
        let names = CATALOG[id as usize].ints;
        let mut v = vec![1; names.len()];
        for (n, x) in set {
            v[names.iter().position(|k| k == n).unwrap()] = *x;
        }
        (id, v)
    }
    fn on(kernel: &str, set: &[(&str, i64)], a: &str) -> Result<LaunchPlan, KernelError> {
        let (id, v) = ints(kernel, set);
        plan(id, &v, arch(a))
    }

    #[test]
    fn every_catalog_kernel_has_a_launch_on_every_architecture() {
        let mut seen = BTreeSet::new();
        for a in ARCHS {
            for (id, def) in CATALOG.iter().enumerate() {
                let p = plan(id as u32, &vec![1; def.ints.len()], a).unwrap();
                assert!(p.grid.iter().all(|&g| g > 0) && p.block.is_multiple_of(a.wave), "{} {p:?}", def.name);
                assert!(ENTRIES.contains(&(p.entry, Some(def.name))), "{}", p.entry);
                seen.insert(def.name);
            }
        }
        assert_eq!(seen.len(), CATALOG.len());
        let symbols: BTreeSet<_> = ENTRIES.iter().map(|e| e.0).collect();
        assert_eq!(symbols.len(), ENTRIES.len());
    }

    #[test]
    fn gemm_takes_tiles_by_size() {
        let p =
            |m, n, b_row| on("gemm.f16", &[("m", m), ("n", n), ("k", 64), ("b_row_stride", b_row)], "gfx942").unwrap();
        assert_eq!((p(4096, 4096, 4096).entry, p(4096, 4096, 4096).grid), ("hip_ep_gemm_f16_128", [1024, 1, 1]));
        assert_eq!((p(65, 130, 130).entry, p(65, 130, 130).grid), ("hip_ep_gemm_f16_64", [6, 1, 1]));
        assert_eq!((p(1, 130, 130).entry, p(1, 130, 130).grid), ("hip_ep_gemm_f16_skinny", [3, 1, 1]));
        assert_eq!((p(1, 130, 1).entry, p(1, 130, 1).grid), ("hip_ep_gemm_f16_dots", [33, 1, 1]));
        assert_eq!(p(0, 130, 1).grid[0], 0);
        let batched = on("gemm.f32", &[("m", 64), ("n", 64), ("batch", 40_000)], "sm_90").unwrap();
        assert_eq!(batched.grid, [1, 32_768, 2]);
    }

    #[test]
    fn attention_takes_its_width() {
        let p =
            |d, e, a| on("attention.f16", &[("s", 100), ("batch", 2), ("heads", 3), ("d", d), ("e", e)], a).unwrap();
        assert_eq!((p(64, 64, "gfx942").grid[0], p(64, 64, "gfx942").block), (12, 256));
        assert_eq!((p(64, 65, "gfx1100").entry, p(64, 65, "gfx1100").block), ("hip_ep_attention_f16_128", 128));
        assert_eq!((p(64, 64, "gfx1030").grid[0], p(64, 64, "gfx1030").block), (24, 256));
        assert_eq!((p(200, 8, "sm_80").entry, p(200, 8, "sm_80").grid[0]), ("hip_ep_attention_f16_any", 600));
    }

    #[test]
    fn what_a_kernel_cannot_hold_is_refused() {
        let e = on("gemm.f32", &[("n", 1 << 31)], "gfx942").unwrap_err();
        assert!(e.0.contains("n is 2147483648"), "{}", e.0);
        assert!(on("gemm.f32", &[("m", -1)], "gfx942").is_err());
        assert!(on("gemm.f32", &[("m", 1 << 29), ("n", 1 << 29)], "gfx942").is_err());
        assert!(on("conv2d.f32", &[("n", 1 << 20), ("oh", 1 << 10), ("ow", 1 << 10)], "gfx942").is_err());
        assert!(on("conv2d.f32", &[("c", 3), ("group", 2)], "gfx942").unwrap_err().0.contains("2 groups"));
        assert!(on("pool2d.f32", &[("kind", 3)], "gfx942").is_err());
        assert!(on("nonzero_fill.f32", &[("rank", 9)], "gfx942").is_err());
        assert!(plan(999, &[], arch("gfx942")).is_err());
        assert!(plan(0, &[1], arch("gfx942")).unwrap_err().0.contains("15 integers"));
    }

    #[test]
    fn large_results_use_the_second_axis() {
        assert_eq!(fill(0).unwrap().grid, [0, 1, 1]);
        assert_eq!(fill(257).unwrap().grid, [2, 1, 1]);
        assert_eq!(fill((1 << 31) + 1).unwrap().grid, [1 << 23, 2, 1]);
        assert!(fill(u64::MAX).is_err());
    }
}
