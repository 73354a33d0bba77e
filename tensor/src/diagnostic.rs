//! The one error type: what went wrong, where in the model, what to do about it.

use std::fmt;

/// Result with a [`Diagnostic`].
pub type Result<T, E = Diagnostic> = std::result::Result<T, E>;

/// What kind of failure a [`Diagnostic`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file or message is not what it says it is: wrong magic, truncated, inconsistent.
    Malformed,
    /// Valid, but outside what is supported: an operator, an attribute value, a dtype.
    Unsupported,
    /// Element types do not fit the operator.
    Type,
    /// Ranks or extents do not fit the operator or the declared input.
    Shape,
    /// A file cannot be read or written.
    Io,
    /// A size, depth or count is beyond what is allowed.
    Limit,
    /// The caller passed something wrong: a missing input, an unknown name.
    Argument,
    /// A device call failed.
    Device,
    /// An assumption made at compile time does not hold for this run.
    Guard,
    /// The caller cancelled the run.
    Cancelled,
    /// An invariant of ours is broken: a bug in this project.
    Internal,
}

/// An error with its place in the model.
///
/// ```
/// use tensor::{Diagnostic, ErrorKind};
/// let e = Diagnostic::new(ErrorKind::Shape, "MatMul cannot multiply [8, 768] by [512, 768]")
///     .node("/encoder/q/MatMul")
///     .note("A", "f32 [8, 768]")
///     .help("B looks transposed");
/// assert!(e.to_string().starts_with("MatMul cannot multiply"));
/// assert_eq!(e.kind(), ErrorKind::Shape);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Diagnostic(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    node: Option<String>,
    notes: Vec<(String, String)>,
    help: Option<String>,
}

impl Diagnostic {
    /// A new error of `kind`; `message` is one sentence with numbers and names.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), node: None, notes: Vec::new(), help: None }))
    }

    /// Names the model node (its path) unless an inner layer already did.
    pub fn node(mut self, path: impl Into<String>) -> Self {
        self.0.node.get_or_insert_with(|| path.into());
        self
    }

    /// Adds a labelled line of context.
    pub fn note(mut self, label: impl Into<String>, text: impl Into<String>) -> Self {
        self.0.notes.push((label.into(), text.into()));
        self
    }

    /// Says what the reader can do.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.0.help = Some(text.into());
        self
    }

    /// Says what helps against this kind of failure in general, where nothing better was said. Public functions of the library and the
    /// tools do this last, so that every error that users see has a help line.
    pub fn or_help(self) -> Self {
        if self.0.help.is_some() {
            return self;
        }
        let text = match self.0.kind {
            ErrorKind::Malformed => "the file is damaged, or what wrote it is wrong: copy it or export it again",
            ErrorKind::Unsupported => "the operators and types that are supported are in docs/OPS.md",
            ErrorKind::Type => "insert a Cast before the node, or export the model with types that fit",
            ErrorKind::Shape => "correct the extents in the model, or those that its inputs declare",
            ErrorKind::Io => "check that the path is right and that you may read or write there",
            ErrorKind::Limit => "use smaller extents, or split the model",
            ErrorKind::Argument => "check what was passed against the names and types that are expected",
            ErrorKind::Device => "free memory, or run with smaller extents",
            ErrorKind::Guard => "change the inputs, or compile the model with other extents",
            ErrorKind::Cancelled => "the caller asked the run to end; start it again",
            ErrorKind::Internal => "this is a bug of hip-ep: please report it with the model",
        };
        self.help(text)
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sentence, without place and help.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The path of the node, when known.
    pub fn node_path(&self) -> Option<&str> {
        self.0.node.as_deref()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &*self.0;
        write!(f, "{}", d.message)?;
        let width =
            d.notes.iter().map(|(l, _)| l.len()).chain(d.node.iter().map(|_| 4)).chain(d.help.iter().map(|_| 4)).max();
        let width = width.unwrap_or(0);
        if let Some(node) = &d.node {
            write!(f, "\n  {:width$}  {node}", "node")?;
        }
        for (label, text) in &d.notes {
            write!(f, "\n  {label:width$}  {text}")?;
        }
        if let Some(help) = &d.help {
            write!(f, "\n  {:width$}  {help}", "help")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Diagnostic {}

impl From<std::io::Error> for Diagnostic {
    fn from(e: std::io::Error) -> Self {
        Diagnostic::new(ErrorKind::Io, e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn general_help_stands_only_where_there_is_none() {
        let e = || Diagnostic::new(ErrorKind::Shape, "no");
        assert!(e().or_help().to_string().contains("\n  help  correct the extents"));
        assert_eq!(e().help("do this").or_help(), e().help("do this"));
    }
}
