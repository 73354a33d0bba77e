//! Native libraries: objects become a shared library without a system linker.
//!
//! What is linked is closed (no undefined symbol), position-independent and free of unwind tables, so the linker is small: it lays the
//! sections out in three segments, applies relocations, and writes the dynamic section, the symbols of the ABI and their hash table.

use crate::elf::{self, ALLOC, EXEC, NOBITS, Object, WRITE};
use crate::host::EXPORTS;
use artifact::gpu::{SYM_GPU, SYM_GPU_LEN};
use rustc_hash::FxHashMap;
use std::path::Path;
use tensor::{Diagnostic, ErrorKind, Result};

const PAGE: u64 = 4096;

fn fail(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("cannot link a native library: {}", why.into()))
}

/// Writes the shared library made from `object` (an object file or the archive of a compiled model) to `out`. `gpu` is packed GPU code
/// ([`artifact::gpu::pack`]), which the library carries as data.
///
/// # Errors
/// `Io` when the file cannot be written; `Malformed` and `Internal` for objects that code generation does not make.
pub fn link_shared(object: &[u8], gpu: &[u8], out: &Path) -> Result<()> {
    let library = link(object, gpu)?;
    let io = |e: std::io::Error| {
        Diagnostic::new(ErrorKind::Io, format!("cannot write {}: {e}", out.display()))
            .help("choose a writable place for the native library")
    };
    // Written beside and renamed: a process that has the old library loaded keeps it.
    let mut beside = out.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, library).map_err(io)?;
    std::fs::rename(&beside, out).map_err(io)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    Text,
    Rodata,
    Data,
    Bss,
}

struct Placed {
    object: usize,
    section: usize,
    part: Part,
    offset: u64,
}

fn round_up(v: u64, align: u64) -> u64 {
    v.div_ceil(align) * align
}
fn put(out: &mut [u8], at: u64, bytes: &[u8]) -> Result<()> {
    let from = usize::try_from(at).map_err(|_| fail("an offset is too large"))?;
    let to = from.checked_add(bytes.len()).ok_or_else(|| fail("an offset is too large"))?;
    out.get_mut(from..to).ok_or_else(|| fail("a relocation lies outside its section"))?.copy_from_slice(bytes);
    Ok(())
}
fn len(v: &[u8]) -> u64 {
    v.len() as u64
}

/// The bytes of the shared library.
///
/// # Errors
/// As [`link_shared`].
pub fn link(object: &[u8], gpu: &[u8]) -> Result<Vec<u8>> {
    let objects: Vec<Object> = elf::members(object)?.into_iter().map(Object::parse).collect::<Result<_>>()?;
    let missing = elf::undefined(&objects);
    if !missing.is_empty() {
        return Err(fail(format!("undefined symbols {}", missing.join(", "))));
    }

    // Sections by part, in order of input.
    let mut sizes: FxHashMap<u8, u64> = FxHashMap::default();
    let mut placed = Vec::new();
    for (o, obj) in objects.iter().enumerate() {
        for (i, s) in obj.sections.iter().enumerate() {
            if s.flags & ALLOC == 0 || s.size == 0 || s.name.starts_with(".eh_frame") || s.name.starts_with(".note") {
                continue;
            }
            if s.flags & 0x400 != 0 {
                return Err(fail(format!("section {} is thread-local", s.name)));
            }
            if !s.align.is_power_of_two() || s.align > PAGE || s.size > 1 << 40 {
                return Err(fail(format!("section {} has size {} and alignment {}", s.name, s.size, s.align)));
            }
            let part = match (s.flags & EXEC != 0, s.flags & WRITE != 0, s.kind == NOBITS) {
                (true, ..) => Part::Text,
                (_, true, true) => Part::Bss,
                (_, true, false) => Part::Data,
                _ => Part::Rodata,
            };
            let size = sizes.entry(part as u8).or_default();
            let offset = round_up(*size, s.align);
            *size = offset + s.size;
            placed.push(Placed { object: o, section: i, part, offset });
        }
    }
    // GPU code after the other read-only data: its length, then the bytes.
    let read_only = sizes.entry(Part::Rodata as u8).or_default();
    let gpu_len_at = round_up(*read_only, 64);
    let gpu_at = gpu_len_at + 64;
    *read_only = gpu_at + len(gpu);
    let size = |p: Part| sizes.get(&(p as u8)).copied().unwrap_or(0);

    // Global offset table: one word for each symbol that is reached through it.
    let mut got: Vec<(usize, usize)> = Vec::new();
    let mut absolute = 0u64;
    let place: FxHashMap<(usize, usize), usize> =
        placed.iter().enumerate().map(|(k, p)| ((p.object, p.section), k)).collect();
    for p in &placed {
        for r in &objects[p.object].sections[p.section].relocations {
            match r.kind {
                9 | 41 | 42 if !got.contains(&(p.object, r.symbol)) => got.push((p.object, r.symbol)),
                1 => absolute += 1,
                _ => {}
            }
        }
    }

    let exports: Vec<&str> = EXPORTS.iter().copied().chain([SYM_GPU, SYM_GPU_LEN]).collect();
    let mut names = vec![0u8];
    let mut name_at = Vec::new();
    for n in &exports {
        name_at.push(u32::try_from(names.len()).unwrap_or(0));
        names.extend_from_slice(n.as_bytes());
        names.push(0);
    }
    let n_sym = exports.len() as u64 + 1;
    let n_rela = absolute + got.len() as u64;
    // File and memory layout; file offsets equal addresses.
    let dynsym = 64 + 56 * 5;
    let hash = dynsym + 24 * n_sym;
    let dynstr = hash + 4 * (2 + n_sym + n_sym);
    let rela = round_up(dynstr + len(&names), 8);
    let rodata = round_up(rela + 24 * n_rela, 64);
    let text = round_up(rodata + size(Part::Rodata), PAGE);
    let data = round_up(text + size(Part::Text), PAGE);
    let got_at = round_up(data + size(Part::Data), 8);
    let dynamic = got_at + 8 * got.len() as u64;
    let n_dyn = 9;
    let data_end = dynamic + 16 * n_dyn;
    let bss = round_up(data_end, PAGE);
    let base = |p: Part| match p {
        Part::Rodata => rodata,
        Part::Text => text,
        Part::Data => data,
        Part::Bss => bss,
    };

    let mut globals: FxHashMap<&str, (u64, u64, u8)> = FxHashMap::default();
    let local = |o: usize, sym: usize| -> Result<Option<u64>> {
        let s = objects[o].symbols.get(sym).ok_or_else(|| fail("a relocation names no symbol"))?;
        let Some(section) = s.section else { return Ok(None) };
        match place.get(&(o, section)) {
            Some(k) => Ok(Some(base(placed[*k].part) + placed[*k].offset + s.value)),
            None => Ok(None),
        }
    };
    for (o, obj) in objects.iter().enumerate() {
        for (i, s) in obj.symbols.iter().enumerate() {
            if s.global && !s.undefined {
                let Some(a) = local(o, i)? else { continue };
                if globals.insert(&s.name, (a, s.size, s.kind)).is_some() {
                    return Err(fail(format!("{} is defined twice", s.name)));
                }
            }
        }
    }
    // Type 1: data.
    globals.insert(SYM_GPU, (rodata + gpu_at, len(gpu), 1));
    globals.insert(SYM_GPU_LEN, (rodata + gpu_len_at, 8, 1));
    let address = |o: usize, sym: usize| -> Result<u64> {
        if let Some(a) = local(o, sym)? {
            return Ok(a);
        }
        let name = &objects[o].symbols[sym].name;
        globals.get(name.as_str()).map(|g| g.0).ok_or_else(|| fail(format!("no address for symbol \"{name}\"")))
    };

    let mut out = vec![0u8; usize::try_from(data_end).map_err(|_| fail("it is too large"))?];
    for p in placed.iter().filter(|p| p.part != Part::Bss) {
        let s = &objects[p.object].sections[p.section];
        put(&mut out, base(p.part) + p.offset, &s.data)?;
    }
    put(&mut out, rodata + gpu_len_at, &len(gpu).to_le_bytes())?;
    put(&mut out, rodata + gpu_at, gpu)?;
    let mut relative: Vec<(u64, u64)> = Vec::new();
    for p in &placed {
        let s = &objects[p.object].sections[p.section];
        for r in &s.relocations {
            if r.offset > s.size {
                return Err(fail("a relocation lies outside its section"));
            }
            let at = base(p.part) + p.offset + r.offset;
            let plus = |a: u64| a.wrapping_add(r.addend.cast_unsigned());
            match r.kind {
                0 => {}
                1 => {
                    let v = plus(address(p.object, r.symbol)?);
                    if p.part != Part::Data {
                        return Err(fail(format!("section {} is read-only but needs an address", s.name)));
                    }
                    put(&mut out, at, &v.to_le_bytes())?;
                    relative.push((at, v));
                }
                24 => put(&mut out, at, &plus(address(p.object, r.symbol)?).wrapping_sub(at).to_le_bytes())?,
                2 | 4 | 9 | 41 | 42 => {
                    let target = if matches!(r.kind, 2 | 4) {
                        address(p.object, r.symbol)?
                    } else {
                        let k = got.iter().position(|g| *g == (p.object, r.symbol)).unwrap_or(0);
                        got_at + 8 * k as u64
                    };
                    let v = plus(target).wrapping_sub(at).cast_signed();
                    let v = i32::try_from(v).map_err(|_| fail("a reference is farther than 2 GB"))?;
                    put(&mut out, at, &v.to_le_bytes())?;
                }
                k => return Err(fail(format!("relocation type {k} in {} is not handled", s.name))),
            }
        }
    }
    for (k, (o, sym)) in (0u64..).zip(&got) {
        let v = address(*o, *sym)?;
        put(&mut out, got_at + 8 * k, &v.to_le_bytes())?;
        relative.push((got_at + 8 * k, v));
    }

    // Dynamic symbols, their SysV hash table, relocations.
    let mut buckets = vec![0u32; exports.len() + 1];
    let mut chains = vec![0u32; exports.len() + 1];
    for (i, n) in (1u32..).zip(exports) {
        let (value, size, kind) =
            *globals.get(n).ok_or_else(|| fail(format!("the object does not define {n}, which the ABI needs")))?;
        let at = dynsym + 24 * u64::from(i);
        let name = name_at[usize::try_from(i - 1).unwrap_or(0)];
        put(&mut out, at, &name.to_le_bytes())?;
        // Section numbers other than 0 mean "defined"; the exact one is not looked at.
        put(&mut out, at + 4, &[0x10 | (kind & 15), 0, 1, 0])?;
        put(&mut out, at + 8, &value.to_le_bytes())?;
        put(&mut out, at + 16, &size.to_le_bytes())?;
        let h = n.bytes().fold(0u32, |h, c| {
            let h = (h << 4).wrapping_add(u32::from(c));
            let g = h & 0xf000_0000;
            (h ^ (g >> 24)) & !g
        });
        let b = usize::try_from(h).unwrap_or(0) % buckets.len();
        chains[usize::try_from(i).unwrap_or(0)] = buckets[b];
        buckets[b] = i;
    }
    let n32 = u32::try_from(n_sym).unwrap_or(0);
    let words: Vec<u8> = [n32, n32].iter().chain(&buckets).chain(&chains).flat_map(|w| w.to_le_bytes()).collect();
    put(&mut out, hash, &words)?;
    put(&mut out, dynstr, &names)?;
    for (i, (at, v)) in (0u64..).zip(&relative) {
        let entry: Vec<u8> = [*at, 8, *v].iter().flat_map(|w| w.to_le_bytes()).collect();
        put(&mut out, rela + 24 * i, &entry)?;
    }
    let mut entries = vec![(4, hash), (5, dynstr), (6, dynsym), (10, len(&names)), (11, 24)];
    if n_rela > 0 {
        entries.extend([(7, rela), (8, 24 * n_rela), (9, 24)]);
    }
    entries.push((0, 0));
    let words: Vec<u8> =
        entries.iter().flat_map(|(t, v): &(u64, u64)| [*t, *v]).flat_map(|w| w.to_le_bytes()).collect();
    put(&mut out, dynamic, &words)?;

    // Headers.
    let mem_end = bss + size(Part::Bss);
    let segments: [[u64; 7]; 5] = [
        // type | flags << 32, offset, address, file size, memory size, alignment
        [1 | 4 << 32, 0, 0, 0, rodata + size(Part::Rodata), rodata + size(Part::Rodata), PAGE],
        [1 | 5 << 32, text, text, 0, size(Part::Text), size(Part::Text), PAGE],
        [1 | 6 << 32, data, data, 0, data_end - data, mem_end - data, PAGE],
        [2 | 6 << 32, dynamic, dynamic, 0, 16 * n_dyn, 16 * n_dyn, 8],
        [0x6474_e551 | 6 << 32, 0, 0, 0, 0, 0, 16],
    ];
    for (i, s) in (0u64..).zip(segments) {
        let fields: Vec<u8> = [s[0], s[1], s[2], s[2], s[4], s[5], s[6]].iter().flat_map(|w| w.to_le_bytes()).collect();
        put(&mut out, 64 + 56 * i, &fields)?;
    }
    let ident = [0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    put(&mut out, 0, &ident)?;
    put(&mut out, 16, &[3, 0, 62, 0, 1, 0, 0, 0])?;
    put(&mut out, 32, &64u64.to_le_bytes())?;

    // Section headers, for objdump and debuggers.
    let table_names = b"\0.dynsym\0.dynstr\0.hash\0.rela.dyn\0.rodata\0.text\0.data\0.dynamic\0.bss\0.shstrtab\0";
    let names_at = data_end;
    out.extend_from_slice(table_names);
    out.resize(out.len().div_ceil(8) * 8, 0);
    let table_at = len(&out);
    let find = |n: &str| -> u32 {
        let n = format!("\0{n}\0");
        let at = table_names.windows(n.len()).position(|w| w == n.as_bytes()).unwrap_or(0);
        u32::try_from(at + 1).unwrap_or(0)
    };
    // name, type, flags, address, size, link, info, entry size
    let sections: [(&str, u32, u64, u64, u64, u32, u32, u64); 10] = [
        (".dynsym", 11, 2, dynsym, 24 * n_sym, 2, 1, 24),
        (".dynstr", 3, 2, dynstr, len(&names), 0, 0, 0),
        (".hash", 5, 2, hash, 4 * (2 + 2 * n_sym), 1, 0, 4),
        (".rela.dyn", 4, 2, rela, 24 * n_rela, 1, 0, 24),
        (".rodata", 1, 2, rodata, size(Part::Rodata), 0, 0, 0),
        (".text", 1, 6, text, size(Part::Text), 0, 0, 0),
        (".data", 1, 3, data, dynamic - data, 0, 0, 0),
        (".dynamic", 6, 3, dynamic, 16 * n_dyn, 2, 0, 16),
        (".bss", 8, 3, bss, size(Part::Bss), 0, 0, 0),
        (".shstrtab", 3, 0, names_at, len(table_names), 0, 0, 0),
    ];
    out.extend_from_slice(&[0; 64]);
    for (n, kind, flags, at, size, link, info, entry) in sections {
        let address = if flags == 0 { 0 } else { at };
        for w in [u64::from(find(n)) | u64::from(kind) << 32, flags, address, at.min(data_end.max(names_at)), size] {
            out.extend_from_slice(&w.to_le_bytes());
        }
        for w in [u64::from(link) | u64::from(info) << 32, if kind == 1 || kind == 8 { 64 } else { 8 }, entry] {
            out.extend_from_slice(&w.to_le_bytes());
        }
    }
    put(&mut out, 40, &table_at.to_le_bytes())?;
    put(&mut out, 52, &[64, 0, 56, 0, 5, 0, 64, 0, 11, 0, 10, 0])?;
    Ok(out)
}
