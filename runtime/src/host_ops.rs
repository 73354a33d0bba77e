//! The one table of host ops: reference functions for irregular operators that need no speed. A compiled model names the ones it
//! calls; a name that is not in the table is refused when the model is loaded.

use std::collections::BTreeMap;
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// A host op's function: operands in order, `None` where absent; gives all results.
pub type HostFn = fn(&HostCall, &[Option<Tensor>]) -> Result<Vec<Tensor>>;

/// The host ops of this build, sorted by name. Empty: no operator needs one yet.
pub static HOST_OPS: &[(&str, HostFn)] = &[];

/// A call of a host op: its row and its attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCall {
    /// Row name, as `NonMaxSuppression` or `hip:Name`.
    pub name: String,
    /// Version of the row; 0 where none is given.
    pub version: u32,
    /// Attributes.
    pub attrs: BTreeMap<String, Attr>,
}

/// An attribute of a host op.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Attr {
    Int(i64),
    Float(f64),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
}

impl HostCall {
    /// Reads `Name-11 {axis = 1, mode = "linear", sizes = [1, 2]}`; version and attributes may be missing.
    ///
    /// # Errors
    /// `Malformed` when the text is not of that form.
    pub fn parse(text: &str) -> Result<HostCall> {
        let bad = |why: &str| Diagnostic::new(ErrorKind::Malformed, format!("host op {text:?}: {why}"));
        let (head, attrs) = match text.split_once('{') {
            Some((h, a)) => (h.trim(), a.trim().strip_suffix('}').ok_or_else(|| bad("`}` is missing"))?),
            None => (text.trim(), ""),
        };
        let (name, version) = match head.rsplit_once('-') {
            Some((n, v)) => (n, v.parse().map_err(|_| bad("the version is no number"))?),
            None => (head, 0),
        };
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(bad("the name is missing"));
        }
        let mut call = HostCall { name: name.into(), version, attrs: BTreeMap::new() };
        for part in split(attrs) {
            let (key, value) = part.split_once('=').ok_or_else(|| bad("an attribute has no value"))?;
            let value = value_of(value.trim()).ok_or_else(|| bad("an attribute's value cannot be read"))?;
            call.attrs.insert(key.trim().into(), value);
        }
        Ok(call)
    }

    /// An integer attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attrs.get(name) {
            Some(Attr::Int(v)) => Some(*v),
            _ => None,
        }
    }
}

/// Splits at commas outside brackets and quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut quoted, mut escaped, mut start) = (Vec::new(), 0i32, false, false, 0);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '[' if !quoted => depth += 1,
            ']' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.extend(text.get(start..i));
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(start..));
    parts.retain(|p| !p.trim().is_empty());
    parts
}

fn value_of(v: &str) -> Option<Attr> {
    if v.starts_with('"') {
        return unquote(v).map(Attr::Text);
    }
    if let Some(list) = v.strip_prefix('[') {
        let items: Vec<&str> = split(list.strip_suffix(']')?).into_iter().map(str::trim).collect();
        if items.first().is_some_and(|s| s.starts_with('"')) {
            return items.iter().map(|s| unquote(s)).collect::<Option<_>>().map(Attr::Texts);
        }
        let ints: Option<Vec<i64>> = items.iter().map(|s| s.parse().ok()).collect();
        return match ints {
            Some(ints) => Some(Attr::Ints(ints)),
            None => items.iter().map(|s| s.parse().ok()).collect::<Option<Vec<f64>>>().map(Attr::Floats),
        };
    }
    v.parse().map(Attr::Int).ok().or_else(|| v.parse().map(Attr::Float).ok())
}

/// Reads a string as `{:?}` writes it.
fn unquote(v: &str) -> Option<String> {
    let mut chars = v.strip_prefix('"')?.strip_suffix('"')?.chars();
    let mut out = String::new();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            '0' => '\0',
            'u' => {
                let digits: String = chars.by_ref().skip_while(|&c| c == '{').take_while(|&c| c != '}').collect();
                char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
            }
            c => c,
        });
    }
    Some(out)
}

/// A host op of a model, ready to be called.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) call: HostCall,
    pub(crate) func: HostFn,
}

/// Finds the functions of a model's host ops, or names all that are missing.
pub(crate) fn resolve(texts: &[String], table: &[(&str, HostFn)]) -> Result<Vec<Resolved>> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for text in texts {
        let call = HostCall::parse(text)?;
        match table.iter().find(|(n, _)| *n == call.name) {
            Some(&(_, func)) => found.push(Resolved { call, func }),
            None => missing.push(call.name),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    let known: Vec<&str> = table.iter().map(|(n, _)| *n).collect();
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    Err(Diagnostic::new(
        ErrorKind::Unsupported,
        format!("the model calls host ops this build does not have: {}", missing.join(", ")),
    )
    .note("known", known)
    .help("use the version of the library that compiled the model"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let c =
            HostCall::parse("hip:Odd-11 {axis = -1, mode = \"a, b\", sizes = [1, 2], scale = [0.5, 1], eps = 1e-5, tags = [\"a]\", \"\\\"b, \\u{7}\"]}")
                .unwrap();
        assert_eq!((c.name.as_str(), c.version, c.int("axis")), ("hip:Odd", 11, Some(-1)));
        assert_eq!(c.attrs["mode"], Attr::Text("a, b".into()));
        assert_eq!(c.attrs["sizes"], Attr::Ints(vec![1, 2]));
        assert_eq!(c.attrs["scale"], Attr::Floats(vec![0.5, 1.0]));
        assert_eq!(c.attrs["eps"], Attr::Float(1e-5));
        assert_eq!(c.attrs["tags"], Attr::Texts(vec!["a]".into(), "\"b, \u{7}".into()]));
        assert_eq!(HostCall::parse("Unique").unwrap().version, 0);
        for bad in ["", "A-x", "A {axis}", "A {axis = ?}", "A {axis = 1", "A B"] {
            assert!(HostCall::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn missing_ops_are_named_together() {
        let e = resolve(&["A-1".into(), "B-2 {x = 1}".into()], HOST_OPS).unwrap_err();
        assert!(e.to_string().contains("A, B") && e.kind() == ErrorKind::Unsupported, "{e}");
    }
}
