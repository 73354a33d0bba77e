//! Reads x86-64 ELF objects and archives of them, as LLVM writes them.

use tensor::{Diagnostic, ErrorKind, Result};

/// A section of an object.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub align: u64,
    pub size: u64,
    /// Empty for sections without bytes in the file.
    pub data: Vec<u8>,
    pub relocations: Vec<Relocation>,
}

/// A relocation with an addend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    pub offset: u64,
    pub kind: u32,
    pub symbol: usize,
    pub addend: i64,
}

/// A symbol.
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    pub name: String,
    /// Section it lies in; `None` when undefined or absolute.
    pub section: Option<usize>,
    pub value: u64,
    pub size: u64,
    pub global: bool,
    pub kind: u8,
    pub undefined: bool,
}

/// A relocatable object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub sections: Vec<Section>,
    pub symbols: Vec<Symbol>,
}

pub(crate) const ALLOC: u64 = 2;
pub(crate) const WRITE: u64 = 1;
pub(crate) const EXEC: u64 = 4;
pub(crate) const NOBITS: u32 = 8;
const RELA: u32 = 4;
const REL: u32 = 9;
const SYMTAB: u32 = 2;

fn bad(what: &str) -> Diagnostic {
    Diagnostic::new(ErrorKind::Malformed, format!("the object file is damaged: {what}")).help("compile the model again")
}

/// Little-endian reads with bounds.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn at(&self, offset: u64, n: u64) -> Result<&'a [u8]> {
        let from = usize::try_from(offset).map_err(|_| bad("an offset is too large"))?;
        let n = usize::try_from(n).map_err(|_| bad("a size is too large"))?;
        let to = from.checked_add(n).ok_or_else(|| bad("a range overflows"))?;
        self.0.get(from..to).ok_or_else(|| bad("a range lies outside the file"))
    }
    fn int(&self, offset: u64, n: u64) -> Result<u64> {
        Ok(self.at(offset, n)?.iter().rev().fold(0, |v, b| (v << 8) | u64::from(*b)))
    }
    fn small(&self, offset: u64, n: u64) -> Result<u32> {
        u32::try_from(self.int(offset, n)?).map_err(|_| bad("a number is too large"))
    }
    fn text(&self, offset: u64) -> Result<String> {
        let from = usize::try_from(offset).map_err(|_| bad("an offset is too large"))?;
        let tail = self.0.get(from..).ok_or_else(|| bad("a name lies outside its table"))?;
        let n = tail.iter().position(|b| *b == 0).ok_or_else(|| bad("a name has no end"))?;
        Ok(String::from_utf8_lossy(&tail[..n]).into_owned())
    }
}

impl Object {
    pub(crate) fn parse(file: &[u8]) -> Result<Object> {
        let b = Bytes(file);
        if b.at(0, 6)? != [0x7f, b'E', b'L', b'F', 2, 1] || b.int(16, 2)? != 1 || b.int(18, 2)? != 62 {
            return Err(bad("it is no relocatable x86-64 ELF file"));
        }
        let (table, entry, n, names) = (b.int(40, 8)?, b.int(58, 2)?, b.int(60, 2)?, b.int(62, 2)?);
        if entry != 64 {
            return Err(bad("section headers have an unknown size"));
        }
        let header = |i: u64| -> Result<Bytes<'_>> {
            let at = i.checked_mul(64).and_then(|x| x.checked_add(table)).ok_or_else(|| bad("a header overflows"))?;
            Ok(Bytes(b.at(at, 64)?))
        };
        // A count of 0 means that it did not fit and lies in the first header.
        let n = if n == 0 && table != 0 { header(0)?.int(32, 8)? } else { n };
        let names = if names == 0xffff { header(0)?.int(40, 4)? } else { names };
        let bytes_of = |h: &Bytes<'_>| b.at(h.int(24, 8)?, h.int(32, 8)?);
        let strings = Bytes(bytes_of(&header(names)?)?);
        let mut sections = Vec::new();
        for i in 0..n {
            let h = header(i)?;
            let kind = h.small(4, 4)?;
            sections.push(Section {
                name: strings.text(h.int(0, 4)?)?,
                kind,
                flags: h.int(8, 8)?,
                align: h.int(48, 8)?.max(1),
                size: h.int(32, 8)?,
                data: if kind == NOBITS { Vec::new() } else { bytes_of(&h)?.to_vec() },
                relocations: Vec::new(),
            });
        }
        let mut symbols = Vec::new();
        for i in 0..n {
            let h = header(i)?;
            let (kind, link, info) = (h.small(4, 4)?, h.int(40, 4)?, h.int(44, 4)?);
            let data = if kind == NOBITS { &[] } else { bytes_of(&h)? };
            match kind {
                SYMTAB => {
                    let strings = Bytes(bytes_of(&header(link)?)?);
                    for s in data.chunks_exact(24) {
                        let s = Bytes(s);
                        let section = s.int(6, 2)?;
                        let info = u8::try_from(s.int(4, 1)?).unwrap_or(0);
                        if section == 0xffff || section == 0xfff2 {
                            return Err(bad("symbols in far or common sections are not read"));
                        }
                        let named = (section != 0 && section < 0xff00).then(|| usize::try_from(section).unwrap_or(0));
                        if named.is_some_and(|s| s >= sections.len()) {
                            return Err(bad("a symbol's section does not exist"));
                        }
                        symbols.push(Symbol {
                            name: strings.text(s.int(0, 4)?)?,
                            section: named,
                            value: s.int(8, 8)?,
                            size: s.int(16, 8)?,
                            global: info >> 4 != 0,
                            kind: info & 15,
                            undefined: section == 0,
                        });
                    }
                }
                RELA => {
                    let mut list = Vec::new();
                    for r in data.chunks_exact(24) {
                        let r = Bytes(r);
                        let info = r.int(8, 8)?;
                        list.push(Relocation {
                            offset: r.int(0, 8)?,
                            kind: u32::try_from(info & 0xffff_ffff).unwrap_or(0),
                            symbol: usize::try_from(info >> 32).unwrap_or(usize::MAX),
                            addend: r.int(16, 8)?.cast_signed(),
                        });
                    }
                    let target = usize::try_from(info).unwrap_or(usize::MAX);
                    let s = sections.get_mut(target).ok_or_else(|| bad("relocations of no section"))?;
                    s.relocations = list;
                }
                REL => return Err(bad("relocations without addends are not read")),
                _ => {}
            }
        }
        Ok(Object { sections, symbols })
    }
}

/// Names that `objects` use and none of them defines, sorted.
pub(crate) fn undefined(objects: &[Object]) -> Vec<String> {
    let all = || objects.iter().flat_map(|o| o.symbols.iter().skip(1)).filter(|s| !s.name.is_empty());
    let defined: std::collections::BTreeSet<_> = all().filter(|s| !s.undefined).map(|s| s.name.as_str()).collect();
    let used: std::collections::BTreeSet<_> = all().filter(|s| s.undefined).map(|s| s.name.as_str()).collect();
    used.difference(&defined).map(|s| (*s).to_string()).collect()
}

const MAGIC: &[u8] = b"!<arch>\n";

/// An `ar` archive without times, owners or a symbol table.
pub(crate) fn archive(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for (name, data) in members {
        let head = format!("{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", format!("{name}/"), 0, 0, 0, 644, data.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(data);
        if data.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

/// The objects in an archive, or the one that `file` is.
pub(crate) fn members(file: &[u8]) -> Result<Vec<&[u8]>> {
    let Some(mut rest) = file.strip_prefix(MAGIC) else { return Ok(vec![file]) };
    let mut out = Vec::new();
    while !rest.is_empty() {
        let head = rest.get(..60).ok_or_else(|| bad("an archive member has no header"))?;
        let size = std::str::from_utf8(&head[48..58]).ok().and_then(|s| s.trim().parse::<usize>().ok());
        let size = size.ok_or_else(|| bad("an archive member has no size"))?;
        let data = size.checked_add(60).and_then(|n| rest.get(60..n));
        out.push(data.ok_or_else(|| bad("an archive member is cut off"))?);
        rest = rest.get(60 + size + size % 2..).unwrap_or(&[]);
    }
    Ok(out)
}
