//! Extents as text: printing in an order that depends on nothing but the symbols, and reading back.

use super::{Atom, AtomId, DimId, DimOp, DimPool};
use crate::{Diagnostic, Entity, ErrorKind, Result};
use std::cmp::Ordering;
use std::fmt;

/// See [`DimPool::display`].
pub struct DimDisplay<'a>(pub(super) &'a DimPool, pub(super) DimId);

impl fmt::Display for DimDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DimDisplay(pool, d) = *self;
        f.write_str(&pool.render(d))
    }
}

/// A symbol's name as expressions show it: as it is when it reads as one word, else in quotes.
pub fn symbol_text(name: &str) -> String {
    let plain = is_word(name) && !FUNCTIONS.iter().any(|(n, _)| *n == name);
    if plain { name.into() } else { format!("{name:?}") }
}

fn is_word(s: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && s.chars().all(word)
}

const FUNCTIONS: &[(&str, DimOp)] = &[
    ("floordiv", DimOp::FloorDiv),
    ("ceildiv", DimOp::CeilDiv),
    ("mod", DimOp::Mod),
    ("min", DimOp::Min),
    ("max", DimOp::Max),
];

impl DimPool {
    /// The text of an expression. It depends on the order in which symbols were made and on nothing else about the pool.
    fn render(&self, d: DimId) -> String {
        let mut terms: Vec<(Vec<(usize, String)>, i64)> = Vec::new();
        for (m, c) in &self.poly(d).0 {
            let mut factors: Vec<(usize, String)> = m.iter().map(|&t| self.render_atom(t)).collect();
            factors.sort();
            terms.push((factors, *c));
        }
        // Higher degrees first, the constant last.
        terms.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        let mut out = String::new();
        for (i, (factors, c)) in terms.iter().enumerate() {
            match (i, *c < 0) {
                (0, true) => out.push('-'),
                (0, false) => {}
                (_, true) => out.push_str(" - "),
                (_, false) => out.push_str(" + "),
            }
            let mag = c.unsigned_abs();
            if factors.is_empty() || mag != 1 {
                out.push_str(&mag.to_string());
            }
            for (k, (_, text)) in factors.iter().enumerate() {
                if k > 0 || mag != 1 {
                    out.push('*');
                }
                out.push_str(text);
            }
        }
        if terms.is_empty() { "0".into() } else { out }
    }
    /// Sort key and text of an atom: symbols in order of creation, then functions by their text.
    fn render_atom(&self, t: AtomId) -> (usize, String) {
        let call = |name: &str, a: DimId, b: DimId, sorted: bool| {
            let (mut a, mut b) = (self.render(a), self.render(b));
            if sorted && (a.len(), &a).cmp(&(b.len(), &b)) == Ordering::Greater {
                std::mem::swap(&mut a, &mut b);
            }
            (usize::MAX, format!("{name}({a}, {b})"))
        };
        match self.atoms[t.index()] {
            Atom::Sym(s) => (s.index(), symbol_text(&self.symbols[s].name)),
            Atom::FloorDiv(a, b) => call("floordiv", a, b, false),
            Atom::CeilDiv(a, b) => call("ceildiv", a, b, false),
            Atom::Mod(a, b) => call("mod", a, b, false),
            Atom::Min(a, b) => call("min", a, b, true),
            Atom::Max(a, b) => call("max", a, b, true),
        }
    }

    /// Reads an expression as [`DimPool::display`] writes it: `2*s + 1`, `floordiv(s, 4)`, `"odd name" - 1`, parentheses.
    ///
    /// # Errors
    /// `Malformed` with the byte offset in `text` for anything else; an unknown symbol is one such thing.
    ///
    /// ```
    /// # use tensor::dims::{DimPool, Origin};
    /// let mut p = DimPool::new();
    /// p.symbol("s", Origin::Unknown);
    /// let d = p.parse("2*(s + 1) - floordiv(s, 4)").unwrap();
    /// assert_eq!(p.display(d).to_string(), "2*s - floordiv(s, 4) + 2");
    /// assert!(p.parse("t").unwrap_err().1.message().contains("\"t\""));
    /// ```
    pub fn parse(&mut self, text: &str) -> Result<DimId, (usize, Diagnostic)> {
        let mut p = DimParser { pool: self, text, at: 0, depth: 0 };
        let d = p.sum()?;
        p.space();
        match p.at == text.len() {
            true => Ok(d),
            false => Err(p.fail("an operator or the end of the extent")),
        }
    }
}

struct DimParser<'a> {
    pool: &'a mut DimPool,
    text: &'a str,
    at: usize,
    depth: u32,
}

impl DimParser<'_> {
    const MAX_DEPTH: u32 = 64;

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }
    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }
    fn eat(&mut self, c: char) -> bool {
        self.space();
        let found = self.rest().starts_with(c);
        self.at += if found { c.len_utf8() } else { 0 };
        found
    }
    fn fail(&self, expected: &str) -> (usize, Diagnostic) {
        (self.at, Diagnostic::new(ErrorKind::Malformed, format!("expected {expected}")))
    }
    fn sum(&mut self) -> Result<DimId, (usize, Diagnostic)> {
        self.depth += 1;
        if self.depth > Self::MAX_DEPTH {
            return Err((self.at, Diagnostic::new(ErrorKind::Limit, "an extent nests too deep")));
        }
        let mut sum = self.pool.constant(0);
        let mut negative = self.eat('-');
        loop {
            let mut term = self.factor()?;
            while self.eat('*') {
                let f = self.factor()?;
                term = self.pool.mul(term, f);
            }
            sum = if negative { self.pool.sub(sum, term) } else { self.pool.add(sum, term) };
            negative = self.eat('-');
            if !negative && !self.eat('+') {
                self.depth -= 1;
                return Ok(sum);
            }
        }
    }
    fn factor(&mut self) -> Result<DimId, (usize, Diagnostic)> {
        self.space();
        let start = self.at;
        if self.eat('(') {
            let d = self.sum()?;
            return if self.eat(')') { Ok(d) } else { Err(self.fail("\")\"")) };
        }
        if self.rest().starts_with('"') {
            let name = self.quoted().ok_or_else(|| self.fail("a quoted name"))?;
            return self.named(&name, start);
        }
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let len = self.rest().find(|c| !word(c)).unwrap_or(self.rest().len());
        let token = self.rest()[..len].to_string();
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            let n = token.parse().map_err(|_| self.fail("a 64-bit number"))?;
            self.at += len;
            return Ok(self.pool.constant(n));
        }
        if token.is_empty() {
            return Err(self.fail("an extent"));
        }
        self.at += len;
        match FUNCTIONS.iter().find(|(n, _)| *n == token) {
            Some(&(_, op)) => {
                if !self.eat('(') {
                    return Err(self.fail("\"(\""));
                }
                let a = self.sum()?;
                if !self.eat(',') {
                    return Err(self.fail("\",\""));
                }
                let b = self.sum()?;
                if !self.eat(')') {
                    return Err(self.fail("\")\""));
                }
                Ok(self.pool.binary(op, a, b))
            }
            None => self.named(&token, start),
        }
    }
    fn named(&mut self, name: &str, start: usize) -> Result<DimId, (usize, Diagnostic)> {
        match self.pool.find_symbol(name) {
            Some(s) => Ok(self.pool.sym_dim(s)),
            None => Err((start, Diagnostic::new(ErrorKind::Malformed, format!("there is no dim {name:?}")))),
        }
    }
    fn quoted(&mut self) -> Option<String> {
        let (name, len) = unquote(self.rest())?;
        self.at += len;
        Some(name)
    }
}

/// Reads a string in quotes as `{:?}` writes it at the start of `text`; returns it with the bytes it took.
pub fn unquote(text: &str) -> Option<(String, usize)> {
    let mut out = String::new();
    let mut it = text.char_indices();
    if it.next()?.1 != '"' {
        return None;
    }
    while let Some((i, c)) = it.next() {
        match c {
            '"' => return Some((out, i + 1)),
            '\\' => match it.next()?.1 {
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                '0' => out.push('\0'),
                'u' => {
                    let hex: String =
                        it.by_ref().map(|(_, c)| c).skip_while(|&c| c == '{').take_while(|&c| c != '}').collect();
                    out.push(char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?);
                }
                c @ ('"' | '\'' | '\\') => out.push(c),
                _ => return None,
            },
            '\n' => return None,
            c => out.push(c),
        }
    }
    None
}
