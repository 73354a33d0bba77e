//! What a run takes at given extents, from what the artifact says of itself.

use artifact::{Metadata, Port};
use tensor::dims::{DimPool, Origin};
use tensor::{DType, Diagnostic, ErrorKind, Result, SymId};

/// Extents of a run: sizes of the model's symbols.
#[derive(Clone, Debug)]
pub struct Extents {
    dims: DimPool,
    sizes: std::collections::BTreeMap<SymId, i64>,
}

impl Extents {
    /// From `batch=8,seq=512`.
    ///
    /// # Errors
    /// `Argument` when it is something else, or the model has no such dim.
    pub fn parse(m: &Metadata, text: &str) -> Result<Extents> {
        let mut dims = DimPool::new();
        for s in &m.symbols {
            dims.symbol(&s.name, Origin::Unknown);
        }
        let mut sizes = std::collections::BTreeMap::new();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (name, n) = super::named(part)?;
            let bad = || {
                Diagnostic::new(ErrorKind::Argument, format!("{part:?} is not SYMBOL=SIZE"))
                    .help("a size is a number of elements, 0 or more: --memory batch=8")
            };
            let sym = dims.find_symbol(name).ok_or_else(|| {
                let names: Vec<&str> = m.symbols.iter().map(|s| s.name.as_str()).collect();
                Diagnostic::new(ErrorKind::Argument, format!("the model has no dim {name:?}"))
                    .help(format!("its dims are {}", names.join(", ")))
            })?;
            let size = n.parse::<i64>().ok().filter(|&n| n >= 0).ok_or_else(bad)?;
            sizes.insert(sym, size);
        }
        Ok(Extents { dims, sizes })
    }
    /// The value of an expression over the symbols.
    ///
    /// # Errors
    /// `Shape` when a symbol in it has no size.
    pub fn eval(&self, text: &str) -> Result<i64> {
        lower::plan::eval_peak(&self.dims, text, &|s| self.sizes.get(&s).copied())
    }
    /// Bytes of a tensor.
    fn bytes(&self, p: &Port) -> Result<i64> {
        let large = || Diagnostic::new(ErrorKind::Limit, format!("{:?} has too many bytes", p.name));
        let mut n = 1i64;
        for d in &p.dims {
            n = n.checked_mul(self.eval(d)?).ok_or_else(large)?;
        }
        let n = usize::try_from(n).map_err(|_| large())?;
        let bytes = DType::from_onnx(p.dtype).and_then(|d| d.size_bytes(n)).ok_or_else(large)?;
        i64::try_from(bytes).map_err(|_| large())
    }
}

/// Bytes of a run, but for constants, which are mapped or uploaded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Of pools.
    pub pools: i64,
    /// Of inputs, which the caller holds.
    pub inputs: i64,
    /// Of outputs, which the caller holds.
    pub outputs: i64,
    /// Of outputs that may be in the memory of inputs.
    pub shared: i64,
}

impl Need {
    /// What a run takes at these extents.
    ///
    /// # Errors
    /// `Shape` when a symbol has no size here.
    pub fn at(m: &Metadata, e: &Extents) -> Result<Need> {
        fn sum(mut all: impl Iterator<Item = Result<i64>>) -> Result<i64> {
            all.try_fold(0i64, |a, b| Ok(a.saturating_add(b?)))
        }
        Ok(Need {
            pools: sum(m.domains.iter().map(|d| e.eval(&d.peak)))?,
            inputs: sum(m.inputs.iter().map(|p| e.bytes(p)))?,
            outputs: sum(m.outputs.iter().map(|p| e.bytes(p)))?,
            shared: sum(super::caches::pairs(m).iter().map(|(_, p)| e.bytes(p)))?,
        })
    }
    /// All of it, with every output in memory of its own.
    pub fn total(&self) -> i64 {
        self.pools.saturating_add(self.inputs).saturating_add(self.outputs)
    }
    /// All of it, with outputs in the memory of inputs where they may be.
    pub fn in_place(&self) -> i64 {
        self.total() - self.shared
    }
}
