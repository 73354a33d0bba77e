//! A relocatable amdgcn object, as LLVM writes it, to a code object that a driver loads: the part of a linker that kernels need.
//!
//! What is linked is closed (no undefined symbol), so the work is to lay sections out in three segments (read-only, code, data), to
//! apply relocations, and to write the dynamic section with the symbols and their two hash tables. The layout is that of `ld.lld
//! -shared`; loaders find kernels by the symbols `NAME.kd` and the metadata note.

use tensor::{Diagnostic, ErrorKind, Result};

const MACHINE: u64 = 224;
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const RELA: u32 = 4;
const HASH: u32 = 5;
const DYNAMIC: u32 = 6;
const NOTE: u32 = 7;
const NOBITS: u32 = 8;
const DYNSYM: u32 = 11;
const GNU_HASH: u32 = 0x6fff_fff6;
const WRITE: u64 = 1;
const ALLOC: u64 = 2;
const EXEC: u64 = 4;
const TLS: u64 = 0x400;
const PAGE: u64 = 4096;
const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const N_SEGMENTS: u64 = 7;

fn bad(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(ErrorKind::Internal, format!("cannot make a code object: {}", why.into()))
}

/// Little-endian reads with bounds.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// `n` bytes from `offset` on.
    pub fn at(&self, offset: u64, n: u64) -> Result<&'a [u8]> {
        let from = usize::try_from(offset).map_err(|_| bad("an offset is too large"))?;
        let to = usize::try_from(n).ok().and_then(|n| from.checked_add(n));
        to.and_then(|to| self.0.get(from..to)).ok_or_else(|| bad("a range lies outside the object"))
    }
    /// An unsigned number of `n` bytes.
    pub fn int(&self, offset: u64, n: u64) -> Result<u64> {
        Ok(self.at(offset, n)?.iter().rev().fold(0, |v, b| (v << 8) | u64::from(*b)))
    }
    fn small(&self, offset: u64, n: u64) -> Result<u32> {
        u32::try_from(self.int(offset, n)?).map_err(|_| bad("a number is too large"))
    }
    fn text(&self, offset: u64) -> Result<String> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let tail = self.0.get(from..).ok_or_else(|| bad("a name lies outside its table"))?;
        let n = tail.iter().position(|b| *b == 0).ok_or_else(|| bad("a name has no end"))?;
        Ok(String::from_utf8_lossy(&tail[..n]).into_owned())
    }
}

#[derive(Clone, Default)]
struct Section {
    name: String,
    kind: u32,
    flags: u64,
    data: Vec<u8>,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
    address: u64,
    offset: u64,
}

#[derive(Clone)]
struct Symbol {
    name: String,
    info: u8,
    other: u8,
    section: usize,
    value: u64,
    size: u64,
}

impl Symbol {
    fn is_global(&self) -> bool {
        self.info >> 4 != 0
    }
    fn is_defined(&self) -> bool {
        self.section != 0 && self.section < 0xff00
    }
    /// Visible to loaders: neither hidden nor internal.
    fn is_exported(&self) -> bool {
        self.is_global() && self.is_defined() && !matches!(self.other & 3, 1 | 2)
    }
}

struct Relocation {
    offset: u64,
    kind: u64,
    symbol: usize,
    addend: u64,
}

/// A parsed object.
struct Object {
    /// OS, ABI version and flags (the processor) of the header are kept.
    header: [u8; 64],
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
    /// By the section they belong to.
    relocations: Vec<(usize, Vec<Relocation>)>,
}

pub(crate) fn at(v: u64) -> usize {
    usize::try_from(v).unwrap_or(usize::MAX)
}
fn len(v: &[u8]) -> u64 {
    u64::try_from(v.len()).unwrap_or(u64::MAX)
}
fn index(v: usize) -> u32 {
    u32::try_from(v).unwrap_or(u32::MAX)
}

/// Section headers of an amdgcn ELF file: name, type, flags, offset, size, link, info, alignment, entry size.
pub(crate) struct Headers {
    /// In order.
    pub sections: Vec<(String, u32, u64, u64, u64, u32, u32, u64, u64)>,
}

/// Reads the section headers.
pub(crate) fn headers(file: &[u8]) -> Result<Headers> {
    let b = Bytes(file);
    if b.at(0, 6)? != [0x7f, b'E', b'L', b'F', 2, 1] || b.int(18, 2)? != MACHINE {
        return Err(bad("it is no amdgcn ELF file"));
    }
    let (table, entry, n, names) = (b.int(40, 8)?, b.int(58, 2)?, b.int(60, 2)?, b.int(62, 2)?);
    if entry != 64 {
        return Err(bad("section headers have an unknown size"));
    }
    let header = |i: u64| -> Result<Bytes<'_>> {
        let at = i.checked_mul(64).and_then(|x| x.checked_add(table)).ok_or_else(|| bad("a header overflows"))?;
        Ok(Bytes(b.at(at, 64)?))
    };
    let strings = header(names)?;
    let strings = Bytes(b.at(strings.int(24, 8)?, strings.int(32, 8)?)?);
    let mut sections = Vec::new();
    for i in 0..n {
        let h = header(i)?;
        sections.push((
            strings.text(h.int(0, 4)?)?,
            h.small(4, 4)?,
            h.int(8, 8)?,
            h.int(24, 8)?,
            h.int(32, 8)?,
            h.small(40, 4)?,
            h.small(44, 4)?,
            h.int(48, 8)?,
            h.int(56, 8)?,
        ));
    }
    Ok(Headers { sections })
}

impl Object {
    fn parse(file: &[u8]) -> Result<Object> {
        let b = Bytes(file);
        let h = headers(file)?;
        if b.int(16, 2)? != 1 {
            return Err(bad("it is no relocatable object"));
        }
        let mut sections = Vec::new();
        for (name, kind, flags, offset, size, link, info, align, entry) in h.sections {
            let data = if kind == NOBITS { Vec::new() } else { b.at(offset, size)?.to_vec() };
            if size > 1 << 32 {
                return Err(bad(format!("section {name} has {size} bytes")));
            }
            let align = align.max(1);
            if !align.is_power_of_two() || align > PAGE {
                return Err(bad(format!("section {name} has alignment {align}")));
            }
            sections.push(Section { name, kind, flags, data, size, link, info, align, entry, address: 0, offset: 0 });
        }
        let mut symbols = Vec::new();
        let mut relocations = Vec::new();
        for s in &sections {
            match s.kind {
                SYMTAB => {
                    let strings = sections.get(s.link as usize).ok_or_else(|| bad("symbols without names"))?;
                    let strings = Bytes(&strings.data);
                    for c in s.data.chunks_exact(24) {
                        let c = Bytes(c);
                        symbols.push(Symbol {
                            name: strings.text(c.int(0, 4)?)?,
                            info: u8::try_from(c.int(4, 1)?).unwrap_or(0),
                            other: u8::try_from(c.int(5, 1)?).unwrap_or(0),
                            section: at(c.int(6, 2)?),
                            value: c.int(8, 8)?,
                            size: c.int(16, 8)?,
                        });
                    }
                }
                RELA => {
                    let target = s.info as usize;
                    if sections.get(target).is_none_or(|t| t.flags & ALLOC == 0) {
                        continue;
                    }
                    let mut list = Vec::new();
                    for c in s.data.chunks_exact(24) {
                        let c = Bytes(c);
                        list.push(Relocation {
                            offset: c.int(0, 8)?,
                            kind: c.int(8, 4)?,
                            symbol: at(c.int(12, 4)?),
                            addend: c.int(16, 8)?,
                        });
                    }
                    relocations.push((target, list));
                }
                _ => {}
            }
        }
        let n = sections.len();
        for s in symbols.iter().skip(1) {
            if s.is_global() && s.section == 0 {
                return Err(bad(format!("the symbol {} is not defined", s.name)));
            }
            if s.is_defined() && s.section >= n {
                return Err(bad(format!("the section of symbol {} does not exist", s.name)));
            }
        }
        let header = file.first_chunk::<64>().copied().ok_or_else(|| bad("it has no header"))?;
        Ok(Object { header, sections, symbols, relocations })
    }
}

fn gnu_hash(s: &str) -> u32 {
    s.bytes().fold(5381u32, |h, c| h.wrapping_mul(33).wrapping_add(u32::from(c)))
}
fn sysv_hash(s: &str) -> u32 {
    s.bytes().fold(0u32, |h, c| {
        let h = (h << 4).wrapping_add(u32::from(c));
        let g = h & 0xf000_0000;
        (h ^ (g >> 24)) & !g
    })
}

fn words(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
}
fn longs(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
}
fn put(out: &mut [u8], offset: u64, bytes: &[u8]) -> Result<()> {
    let from = at(offset);
    let to = from.checked_add(bytes.len()).ok_or_else(|| bad("an offset is too large"))?;
    out.get_mut(from..to).ok_or_else(|| bad("something lies outside its section"))?.copy_from_slice(bytes);
    Ok(())
}

/// Names, and both hash tables over exported symbols in the order of `exported`.
struct SymbolTables {
    names: Vec<u8>,
    name_at: Vec<u32>,
    gnu: Vec<u8>,
    sysv: Vec<u8>,
}

fn symbol_tables(exported: &[&Symbol], n_buckets: u32) -> SymbolTables {
    let mut names = vec![0u8];
    let mut name_at = vec![];
    for s in exported {
        name_at.push(index(names.len()));
        names.extend_from_slice(s.name.as_bytes());
        names.push(0);
    }
    // GNU: buckets over sorted symbols, a Bloom filter of one word, chains of hashes whose last bit ends them.
    let hashes: Vec<u32> = exported.iter().map(|s| gnu_hash(&s.name)).collect();
    let mut gnu = vec![];
    words(&mut gnu, &[n_buckets, 1, 1, 26]);
    let bloom = hashes.iter().fold(0u64, |b, h| b | 1 << (h % 64) | 1 << ((h >> 26) % 64));
    longs(&mut gnu, &[bloom]);
    for bucket in 0..n_buckets {
        let first = hashes.iter().position(|h| h % n_buckets == bucket).map_or(0, |p| index(p + 1));
        words(&mut gnu, &[first]);
    }
    for (i, h) in hashes.iter().enumerate() {
        let is_last = hashes.get(i + 1).is_none_or(|next| next % n_buckets != h % n_buckets);
        words(&mut gnu, &[(h & !1) | u32::from(is_last)]);
    }
    // SysV: as many buckets as symbols.
    let n = exported.len() + 1;
    let (mut buckets, mut chains) = (vec![0u32; n], vec![0u32; n]);
    for (i, s) in exported.iter().enumerate() {
        let b = sysv_hash(&s.name) as usize % n;
        chains[i + 1] = buckets[b];
        buckets[b] = index(i + 1);
    }
    let mut sysv = vec![];
    words(&mut sysv, &[index(n), index(n)]);
    words(&mut sysv, &buckets);
    words(&mut sysv, &chains);
    SymbolTables { names, name_at, gnu, sysv }
}

/// Where the sections of the file lie: positions in the order of the file, and the segments.
struct Layout {
    order: Vec<usize>,
    /// Offset, address, bytes in the file, bytes in memory; read-only, code, data.
    segments: [[u64; 4]; 3],
    end: u64,
}

/// Lays out sections: notes, dynamic tables and read-only data; code; data and the dynamic section.
fn lay_out(sections: &mut [Section], groups: [Vec<usize>; 3]) -> Layout {
    let mut layout = Layout { order: vec![], segments: [[0; 4]; 3], end: 0 };
    let mut offset = HEADER + PROGRAM_HEADER * N_SEGMENTS;
    let mut address = offset;
    for (g, group) in groups.into_iter().enumerate() {
        // The first segment has the headers, too.
        let (mut start, mut start_address) = (0, 0);
        if g > 0 {
            let align = group.first().map_or(1, |i| sections[*i].align);
            offset = offset.next_multiple_of(align);
            // Each segment has pages of its own; offset and address agree within the page.
            address = address.next_multiple_of(PAGE) + offset % PAGE;
            (start, start_address) = (offset, address);
        }
        for i in group {
            let s = &mut sections[i];
            let gap = address.next_multiple_of(s.align) - address;
            address += gap;
            offset += gap;
            s.address = address;
            s.offset = offset;
            address += s.size;
            // Zeroed data takes place in the file, too, so that offsets and addresses keep in step.
            offset += s.size;
            layout.order.push(i);
        }
        layout.segments[g] = [start, start_address, offset - start, address - start_address];
    }
    layout.end = offset;
    layout
}

/// Makes a code object of a relocatable object.
///
/// # Errors
/// `Internal` for what kernels never contain: undefined symbols, thread-local data, unknown relocations.
pub fn link(object: &[u8]) -> Result<Vec<u8>> {
    let Object { header, mut sections, symbols, relocations } = Object::parse(object)?;
    let mut exported: Vec<&Symbol> = symbols.iter().skip(1).filter(|s| s.is_exported()).collect();
    let n_buckets = index(exported.len().div_ceil(4).max(1));
    exported.sort_by_key(|s| gnu_hash(&s.name) % n_buckets);
    let tables = symbol_tables(&exported, n_buckets);

    let mut groups: [Vec<usize>; 3] = [vec![], vec![], vec![]];
    let mut read_only = vec![];
    for (i, s) in sections.iter().enumerate().filter(|(_, s)| s.flags & ALLOC != 0) {
        if !matches!(s.kind, PROGBITS | NOTE | NOBITS) || s.flags & TLS != 0 {
            return Err(bad(format!("section {} of type {} is not known", s.name, s.kind)));
        }
        match (s.flags & EXEC != 0, s.flags & WRITE != 0, s.kind) {
            (true, ..) => groups[1].push(i),
            (_, true, _) => groups[2].push(i),
            (.., NOTE) => groups[0].push(i),
            _ => read_only.push(i),
        }
    }
    let note = groups[0].first().copied().ok_or_else(|| bad("it has no metadata note"))?;
    let made = |name: &str, kind: u32, flags: u64, data: Vec<u8>, align: u64, entry: u64| Section {
        name: name.into(),
        kind,
        flags,
        size: len(&data),
        data,
        align,
        entry,
        ..Section::default()
    };
    let first = sections.len();
    let (dynsym, gnu, sysv, dynstr, dynamic) = (first, first + 1, first + 2, first + 3, first + 4);
    let n_symbols = exported.len() + 1;
    sections.push(made(".dynsym", DYNSYM, ALLOC, vec![0; 24 * n_symbols], 8, 24));
    sections.push(made(".gnu.hash", GNU_HASH, ALLOC, tables.gnu, 8, 0));
    sections.push(made(".hash", HASH, ALLOC, tables.sysv, 4, 4));
    sections.push(made(".dynstr", STRTAB, ALLOC, tables.names, 1, 0));
    sections.push(made(".dynamic", DYNAMIC, ALLOC | WRITE, vec![0; 7 * 16], 8, 16));
    groups[0].extend([dynsym, gnu, sysv, dynstr]);
    groups[0].extend(read_only);
    groups[2].push(dynamic);
    let layout = lay_out(&mut sections, groups);

    relocate(&mut sections, &symbols, &relocations)?;

    let number = |i: usize| layout.order.iter().position(|x| *x == i).map_or(0, |p| p + 1);
    let entry = |name: u32, s: &Symbol, sections: &[Section]| -> Vec<u8> {
        let mut out = name.to_le_bytes().to_vec();
        out.extend([s.info, s.other]);
        out.extend(u16::try_from(number(s.section)).unwrap_or(u16::MAX).to_le_bytes());
        longs(&mut out, &[sections[s.section].address + s.value, s.size]);
        out
    };
    let mut entries = vec![0u8; 24];
    for (name, s) in tables.name_at.iter().zip(&exported) {
        entries.extend(entry(*name, s, &sections));
    }
    let address = |i: usize| sections[i].address;
    let mut tags = vec![];
    for (tag, value) in [
        (6, address(dynsym)),
        (11, 24),
        (5, address(dynstr)),
        (10, sections[dynstr].size),
        (0x6fff_fef5, address(gnu)),
        (4, address(sysv)),
        (0, 0),
    ] {
        longs(&mut tags, &[tag, value]);
    }
    sections[dynsym].data = entries.clone();
    sections[dynamic].data = tags;
    let (symbols_at, names_at) = (index(number(dynsym)), index(number(dynstr)));
    (sections[dynsym].link, sections[dynsym].info) = (names_at, 1);
    (sections[gnu].link, sections[sysv].link, sections[dynamic].link) = (symbols_at, symbols_at, names_at);

    let mut out = vec![0u8; at(layout.end)];
    put(&mut out, 0, &header)?;
    for i in &layout.order {
        let s = &sections[*i];
        if s.kind != NOBITS {
            put(&mut out, s.offset, &s.data)?;
        }
    }
    let (d, n) = (&sections[dynamic], &sections[note]);
    let [ro, rx, rw] = layout.segments;
    let table = HEADER;
    let table_bytes = PROGRAM_HEADER * N_SEGMENTS;
    // Type, flags, then offset, address, file size, memory size, alignment.
    let program: [(u32, u32, [u64; 4], u64); 7] = [
        (6, 4, [table, table, table_bytes, table_bytes], 8),
        (1, 4, ro, PAGE),
        (1, 5, rx, PAGE),
        (1, 6, rw, PAGE),
        (2, 6, [d.offset, d.address, d.size, d.size], 8),
        (0x6474_e551, 6, [0; 4], 0),
        (4, 4, [n.offset, n.address, n.size, n.size], n.align),
    ];
    let mut p = vec![];
    for (kind, flags, [offset, address, file, memory], align) in program {
        words(&mut p, &[kind, flags]);
        longs(&mut p, &[offset, address, address, file, memory, align]);
    }
    put(&mut out, HEADER, &p)?;

    // The symbol table for tools: as the dynamic one.
    let strings = sections[dynstr].data.clone();
    tail(&mut out, &layout.order, &sections, entries, strings)?;
    // A shared object, no entry point.
    put(&mut out, 16, &3u16.to_le_bytes())?;
    put(&mut out, 24, &[0; 8])?;
    put(&mut out, 32, &HEADER.to_le_bytes())?;
    put(&mut out, 52, &[64, 0, 56, 0, 7, 0])?;
    Ok(out)
}

fn relocate(sections: &mut [Section], symbols: &[Symbol], relocations: &[(usize, Vec<Relocation>)]) -> Result<()> {
    for (target, list) in relocations {
        let base = sections[*target].address;
        for r in list {
            let s = symbols.get(r.symbol).ok_or_else(|| bad("a relocation names no symbol"))?;
            if !s.is_defined() {
                return Err(bad(format!("a relocation needs {}, which lies in no section", s.name)));
            }
            let v = (sections[s.section].address + s.value).wrapping_add(r.addend).wrapping_sub(base + r.offset);
            let bytes = v.to_le_bytes();
            let data = &mut sections[*target].data;
            match r.kind {
                // REL64
                5 => put(data, r.offset, &bytes)?,
                // REL32, REL32_LO
                4 | 10 => put(data, r.offset, &bytes[..4])?,
                // REL32_HI
                11 => put(data, r.offset, &bytes[4..])?,
                // REL16: a jump in instructions of 4 bytes from the next one.
                14 => {
                    let jump = v.wrapping_sub(4).cast_signed() / 4;
                    let jump = i16::try_from(jump).map_err(|_| bad("a jump is too far"))?;
                    put(data, r.offset, &jump.to_le_bytes())?;
                }
                k => return Err(bad(format!("relocation type {k} is not known"))),
            }
        }
    }
    Ok(())
}

/// Symbol table, names and section headers after the loaded part.
fn tail(out: &mut Vec<u8>, order: &[usize], sections: &[Section], symbols: Vec<u8>, strings: Vec<u8>) -> Result<()> {
    let mut names = vec![0u8];
    let mut name = |s: &str| {
        let at = index(names.len());
        names.extend_from_slice(s.as_bytes());
        names.push(0);
        at
    };
    let mut table = vec![0u8; 64];
    let mut line = |name: u32, s: &Section| {
        words(&mut table, &[name, s.kind]);
        longs(&mut table, &[s.flags, s.address, s.offset, s.size]);
        words(&mut table, &[s.link, s.info]);
        longs(&mut table, &[s.align, s.entry]);
    };
    for i in order {
        let s = &sections[*i];
        let is_made = matches!(s.kind, DYNSYM | GNU_HASH | HASH | DYNAMIC | STRTAB);
        let s = Section {
            data: vec![],
            link: if is_made { s.link } else { 0 },
            info: if is_made { s.info } else { 0 },
            ..s.clone()
        };
        line(name(&s.name), &s);
    }
    let n = index(order.len());
    for (what, kind, data, link, info, align, entry) in
        [(".symtab", SYMTAB, symbols, n + 2, 1, 8, 24), (".strtab", STRTAB, strings, 0, 0, 1, 0)]
    {
        out.resize(out.len().next_multiple_of(align), 0);
        let s = Section {
            kind,
            offset: len(out),
            size: len(&data),
            link,
            info,
            align: align as u64,
            entry,
            ..Section::default()
        };
        line(name(what), &s);
        out.extend_from_slice(&data);
    }
    let at_names = name(".shstrtab");
    let s = Section { kind: STRTAB, offset: len(out), size: len(&names), align: 1, ..Section::default() };
    line(at_names, &s);
    out.extend_from_slice(&names);
    out.resize(out.len().next_multiple_of(8), 0);
    let start = len(out);
    out.extend_from_slice(&table);
    let count = u16::try_from(n + 4).map_err(|_| bad("it has too many sections"))?;
    put(out, 40, &start.to_le_bytes())?;
    put(out, 58, &64u16.to_le_bytes())?;
    put(out, 60, &count.to_le_bytes())?;
    put(out, 62, &(count - 1).to_le_bytes())
}
