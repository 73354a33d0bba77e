//! The mini-language of [`OpDef::cases`]: operands and attributes of one node in a line.
//!
//! ```text
//! case      operands, then attributes, separated by blanks
//! operands  operand ; operand ; …            without blanks
//! operand   _                                absent
//!           [2,3]                            of the row's element type, random values
//!           [4]{nan,-inf,0.5}                these values in turn, again from the first until the tensor is full
//!           i64[2]{0,-1}                     of a type of its own; such an operand is a constant of the model
//! attribute axis=1  alpha=0.5  approximate=tanh  axes=[0,-1]  scale=[0.5,2]  activations=[Tanh]  to=f16 (an element type's number)
//!           outs=3                           not an attribute: the number of results, else those that are not optional
//! ```
//!
//! ```
//! let registry = ir::Registry::builtin();
//! let def = &registry[registry.newest("", "Add")];
//! let case = ir::cases::parse(def, "[2,1];[3]{0,1}").unwrap();
//! assert_eq!(case.operands[1].as_ref().unwrap().fill, [0.0, 1.0]);
//! assert!(ir::cases::parse(def, "[2,x]").unwrap_err().contains("\"x\" is not an extent"));
//! ```

use crate::attrs::{Attr, Attrs, F32};
use crate::op::{Arity, AttrKind, OpDef};
use tensor::{DType, Tensor};

/// One node: operands, attributes, number of results.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Operands; `None` where absent.
    pub operands: Vec<Option<CaseOperand>>,
    /// Attributes, defaults filled in.
    pub attrs: Attrs,
    /// Number of results.
    pub n_outs: usize,
}

/// An operand of a [`Case`].
#[derive(Clone, Debug, PartialEq)]
pub struct CaseOperand {
    /// Its element type, when it does not follow the row's type variables.
    pub dtype: Option<DType>,
    /// Extents.
    pub shape: Vec<usize>,
    /// Values in turn; random ones when empty.
    pub fill: Vec<f64>,
}

/// Reads a case of a row.
///
/// # Errors
/// What cannot be read, as a sentence.
pub fn parse(def: &OpDef, text: &str) -> Result<Case, String> {
    let mut case = Case { operands: vec![], attrs: Attrs::default(), n_outs: 0 };
    let n_outs = def.outputs.iter().filter(|p| p.arity == Arity::Required).count();
    case.n_outs = n_outs;
    let mut slots = def.default_attrs();
    for word in text.split_whitespace() {
        let Some((name, value)) = word.split_once('=') else {
            case.operands = word.split(';').map(operand).collect::<Result<_, _>>()?;
            continue;
        };
        if name == "outs" {
            case.n_outs = value.parse().map_err(|_| format!("outs={value:?} is not a count"))?;
            continue;
        }
        let slot = def.slot(name).ok_or_else(|| format!("{} has no attribute {name:?}", def.full_name()))?;
        let kind = def.attrs.iter().filter(|a| a.kind != AttrKind::Graph).nth(slot).map(|a| a.kind);
        slots[slot] = attribute(kind.unwrap_or(AttrKind::IntOpt), value)?;
    }
    case.attrs = Attrs::new(slots);
    Ok(case)
}

fn operand(text: &str) -> Result<Option<CaseOperand>, String> {
    if text == "_" {
        return Ok(None);
    }
    let open = text.find('[').ok_or_else(|| format!("operand {text:?} has no extents"))?;
    let close = text.find(']').ok_or_else(|| format!("operand {text:?} has no ]"))?;
    let dtype = match &text[..open] {
        "" => None,
        name => Some(DType::from_name(name).ok_or_else(|| format!("{name:?} is not an element type"))?),
    };
    let inside = text.get(open + 1..close).unwrap_or("");
    let list = |s: &str| s.split(',').filter(|x| !x.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let extent = |s: String| s.parse().map_err(|_| format!("{s:?} is not an extent"));
    let shape = list(inside).into_iter().map(extent).collect::<Result<_, _>>()?;
    let fill = match &text[close + 1..] {
        "" => vec![],
        rest => {
            let inner = rest.strip_prefix('{').and_then(|r| r.strip_suffix('}'));
            let inner = inner.ok_or_else(|| format!("{rest:?} after the extents is not {{values}}"))?;
            let number = |s: String| s.parse().map_err(|_| format!("{s:?} is not a number"));
            list(inner).into_iter().map(number).collect::<Result<_, _>>()?
        }
    };
    Ok(Some(CaseOperand { dtype, shape, fill }))
}

fn attribute(kind: AttrKind, text: &str) -> Result<Attr, String> {
    let bad = || format!("{text:?} is not a value of the attribute");
    let int = |s: &str| match DType::from_name(s) {
        Some(d) => Ok(i64::from(d.onnx())),
        None => s.parse::<i64>().map_err(|_| bad()),
    };
    let float = |s: &str| s.parse::<f32>().map(F32::new).map_err(|_| bad());
    let list = || {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        inner.split(',').filter(|s| !s.is_empty()).collect::<Vec<_>>()
    };
    Ok(match kind {
        AttrKind::Float(_) | AttrKind::FloatOpt => Attr::Float(float(text)?),
        AttrKind::Str(_) | AttrKind::StrOpt => Attr::Str(text.into()),
        AttrKind::Ints => Attr::Ints(list().into_iter().map(int).collect::<Result<_, _>>()?),
        AttrKind::Strs => Attr::Strs(list().into_iter().map(Into::into).collect()),
        AttrKind::Floats => Attr::Floats(list().into_iter().map(float).collect::<Result<_, _>>()?),
        AttrKind::Int(_) | AttrKind::IntOpt | AttrKind::IntReq => Attr::Int(int(text)?),
        _ => return Err(bad()),
    })
}

/// A small generator of random numbers (an xorshift), so that cases are the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    /// A number below `n`; 0 for `n = 0`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
    /// A number in [-2, 2).
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 18) - 2.0
    }
}

impl CaseOperand {
    /// A tensor of element type `dtype` (unless the operand has its own): its values, or random ones: floats in [-2, 2),
    /// integers from -9 to 9, unsigned ones from 0 to 9.
    pub fn tensor(&self, dtype: DType, random: &mut Random) -> Tensor {
        let d = self.dtype.unwrap_or(dtype);
        let n: usize = self.shape.iter().product();
        let mut at = 0;
        let mut next = || -> f64 {
            if !self.fill.is_empty() {
                at += 1;
                return self.fill[(at - 1) % self.fill.len()];
            }
            match d {
                DType::Bool => random.below(2) as f64,
                d if d.is_float() => random.unit(),
                d if d.is_signed() => random.below(19) as f64 - 9.0,
                _ => random.below(10) as f64,
            }
        };
        let v: Vec<f64> = (0..n).map(|_| next()).collect();
        if d.is_float() {
            return Tensor::from_f64_as(d, &self.shape, &v);
        }
        // Truncated and wrapped, so that one list of values serves every type.
        Tensor::from_i64_as(d, &self.shape, &v.iter().map(|&x| x as i64).collect::<Vec<_>>())
    }
}
