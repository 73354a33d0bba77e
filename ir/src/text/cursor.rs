//! A position in text with the small moves that the parsers are made of.

use tensor::dims::unquote;
use tensor::{DType, Diagnostic, DimId, DimPool, ErrorKind, Result};

/// Where a parser is.
pub(super) struct Cursor<'a> {
    pub text: &'a str,
    pub at: usize,
    /// How many more values the graphs of the text may have, gaps in their numbering included.
    pub budget: usize,
}

fn word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text, at: 0, budget: 1 << 21 }
    }
    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
    /// Skips white space and comments.
    pub fn space(&mut self) {
        loop {
            self.at = self.text.len() - self.rest().trim_start().len();
            if !self.rest().starts_with(';') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }
    /// An error at byte `at`.
    pub fn error(&self, at: usize, what: impl std::fmt::Display) -> Diagnostic {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        let column = before[start..].chars().count() + 1;
        let source: String = self.text[start..].lines().next().unwrap_or("").chars().take(160).collect();
        Diagnostic::new(ErrorKind::Malformed, format!("line {line}, column {column}: {what}"))
            .note("line", source.trim())
            .help("the grammar of the text form is in docs/IR.md")
    }
    /// An error here: something else was expected.
    pub fn expected(&mut self, what: &str) -> Diagnostic {
        self.space();
        let found: String = match self.rest().chars().next() {
            None => "the end of the text".into(),
            Some(c) if word_char(c) => format!("{:?}", self.rest().split(|c| !word_char(c)).next().unwrap_or("")),
            Some(c) => format!("{:?}", c.to_string()),
        };
        self.error(self.at, format!("expected {what}, found {found}"))
    }
    /// Takes `token` if it is next; a word only when it ends there.
    pub fn eat(&mut self, token: &str) -> bool {
        let before = self.at;
        self.space();
        let found = self.rest().starts_with(token);
        let word = token.ends_with(word_char) && self.rest()[token.len() * usize::from(found)..].starts_with(word_char);
        if found && !word {
            self.at += token.len();
            return true;
        }
        self.at = before;
        false
    }
    pub fn peek(&mut self, token: &str) -> bool {
        let before = self.at;
        let found = self.eat(token);
        self.at = before;
        found
    }
    pub fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("{token:?}"))) }
    }
    /// A word: letters, digits, `_` and `.`.
    pub fn word(&mut self, what: &str) -> Result<&'a str> {
        let before = self.at;
        self.space();
        let len = self.rest().find(|c| !word_char(c)).unwrap_or(self.rest().len());
        if len == 0 {
            self.at = before;
            return Err(self.expected(what));
        }
        let w = &self.rest()[..len];
        self.at += len;
        Ok(w)
    }
    /// A string in quotes, if one is next.
    pub fn string_opt(&mut self) -> Result<Option<String>> {
        let before = self.at;
        self.space();
        if !self.rest().starts_with('"') {
            self.at = before;
            return Ok(None);
        }
        let (s, len) = unquote(self.rest())
            .ok_or_else(|| self.error(self.at, "a string that does not end or has a wrong escape"))?;
        self.at += len;
        Ok(Some(s))
    }
    pub fn string(&mut self) -> Result<String> {
        self.string_opt()?.ok_or_else(|| self.expected("a string"))
    }
    pub fn int(&mut self) -> Result<i64> {
        let (at, negative) = (self.at, self.eat("-"));
        let w = self.word("a number")?;
        let n = if negative { format!("-{w}").parse() } else { w.parse() };
        n.map_err(|_| self.error(at, format!("{w:?} is not a 64-bit integer")))
    }
    pub fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        self.space();
        let at = self.at;
        let w = self.element()?;
        w.parse().map_err(|_| self.error(at, format!("{w:?} is not {what}")))
    }
    /// The text of a number, of `true`, `NaN` and the like.
    pub fn element(&mut self) -> Result<String> {
        let negative = self.eat("-");
        let mut w = self.word("a number")?.to_string();
        // The sign of an exponent.
        if w.ends_with(['e', 'E']) && w.starts_with(|c: char| c.is_ascii_digit()) && self.rest().starts_with(['-', '+'])
        {
            w.push_str(&self.rest()[..1]);
            self.at += 1;
            w.push_str(self.word("an exponent")?);
        }
        Ok(if negative { format!("-{w}") } else { w })
    }
    /// The number after a prefix: `%v7`.
    pub fn prefixed(&mut self, prefix: &str) -> Result<Option<u32>> {
        let before = self.at;
        self.space();
        if let Some(r) = self.rest().strip_prefix(prefix) {
            let len = r.find(|c: char| !c.is_ascii_digit()).unwrap_or(r.len());
            if len > 0 && !r[len..].starts_with(word_char) {
                let n = r[..len].parse().map_err(|_| self.error(self.at, "a number that is too large"))?;
                self.at += prefix.len() + len;
                return Ok(Some(n));
            }
        }
        self.at = before;
        Ok(None)
    }
    /// `open x, x, … close`.
    pub fn list<T>(&mut self, open: &str, close: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut out = Vec::new();
        if self.eat(close) {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.eat(close) {
                return Ok(out);
            }
            if !self.eat(",") {
                return Err(self.expected(&format!("\",\" or {close:?}")));
            }
        }
    }
    /// The rest of the line when it is a comment: the origin of a node.
    pub fn origin(&mut self) -> Result<String> {
        let line = self.rest().split('\n').next().unwrap_or("");
        let Some(comment) = line.trim_start_matches([' ', '\t']).strip_prefix(';') else { return Ok(String::new()) };
        let at = self.at;
        self.at += line.len();
        let comment = comment.trim();
        if comment.starts_with('"') {
            return unquote(comment).map(|(s, _)| s).ok_or_else(|| self.error(at, "an origin with a wrong escape"));
        }
        Ok(comment.into())
    }
    /// An extent, up to the comma or bracket after it.
    pub fn dim(&mut self, pool: &mut DimPool) -> Result<DimId> {
        self.space();
        let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
        let end = self.rest().find(|c: char| {
            if quoted {
                quoted = escaped || c != '"';
                escaped = !escaped && c == '\\';
                return false;
            }
            match c {
                '"' => quoted = true,
                '(' => depth += 1,
                ')' if depth > 0 => depth -= 1,
                ',' if depth > 0 => {}
                ',' | ')' | ']' | '}' | '=' | '<' | ':' | '\n' | ';' => return true,
                _ => {}
            }
            false
        });
        let text = &self.rest()[..end.unwrap_or(self.rest().len())];
        let d = pool.parse(text).map_err(|(i, e)| self.error(self.at + i, e.message()))?;
        self.at += text.len();
        Ok(d)
    }
    pub fn dims(&mut self, open: &str, close: &str, pool: &mut DimPool) -> Result<Vec<DimId>> {
        self.list(open, close, |c| c.dim(pool))
    }
    pub fn dtype(&mut self) -> Result<DType> {
        self.space();
        let at = self.at;
        let w = self.word("an element type")?;
        DType::from_name(w).ok_or_else(|| self.error(at, format!("{w:?} is not an element type")))
    }
    /// The name of a symbol: a word or a string.
    pub fn symbol(&mut self) -> Result<String> {
        match self.string_opt()? {
            Some(s) => Ok(s),
            None => Ok(self.word("a dim's name")?.to_string()),
        }
    }
}
