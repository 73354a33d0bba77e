//! Einsum: sums of products over named axes, as the matrix products, sums and transposes that they are.

use super::loops::{Builder, outer};
use super::row::{ANY, MOVES, NUMS, ROW};
use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::Value;
use crate::lowering::{Candidate, NodeCtx, Plan};
use crate::nest::{Coord, Nest};
use crate::op::{AttrKind, HIP_DOMAIN, InferCtx, OpDef, RefCtx, Tol, attr, req, var};
use crate::ty::Shape;
use reference::einsum;
use tensor::DType::{self, F32, I8, I16, I32, U8, U16, U32};
use tensor::{Diagnostic, DimId, ErrorKind, Result};

/// What is wrong, as a sentence.
type Read<T> = std::result::Result<T, String>;

const T: (&str, &[DType]) = ("T", NUMS);

/// Rows of this family.
pub static ROWS: &[OpDef] = &[
    OpDef {
        name: "Einsum",
        since: 12,
        inputs: &[var("Inputs", "T")],
        outputs: &[req("Output", "T")],
        attrs: &[attr("equation", AttrKind::StrOpt)],
        dtypes: &[T],
        infer: infer_einsum,
        reference: Some(|c| {
            let eq = of_ref(c)?;
            let (labels, out) = eq.numbered();
            let operands = (0..c.ins.len()).map(|i| c.input(i)).collect::<Result<Vec<_>>>()?;
            Ok(vec![einsum::einsum(&operands, &labels, &out)?])
        }),
        lower: &[Candidate::Expand(expand_einsum)],
        tolerance: Tol::Rel(1e-5),
        cases: &[
            "[3,4];[4,5] equation=ij,jk->ik",
            "[3,4];[4,5] equation=ij,jk",
            "[2,3,4];[2,5,4] equation=bij,bkj->kbi",
            "[2,3,4,5];[5,4,6,2] equation=abcd,dcea->be",
            "[3,3] equation=ii",
            "[3,3,2] equation=iij->ji",
            "[2,3,4] equation=...j->...",
            "[5,3,4];[4,2] equation=...ij,jk->k...i",
            "[2,3,4];[1,4,3] equation=...ij,...ji->...",
            "[3];[4] equation=i,j->ij",
            "[3];[3];[3] equation=i,i,i->",
            "[2,3];[3,4];[4,2] equation=ab,bc,ca->ac",
            "[2,3];[1,3] equation=ab,ab->a",
            "[2,0];[0,3] equation=ab,bc->ac",
            "[] equation=->",
        ],
        ..ROW
    },
    OpDef {
        name: "Diagonal",
        domain: HIP_DOMAIN,
        traits: MOVES,
        inputs: &[req("x", "T")],
        outputs: &[req("y", "T")],
        attrs: &[attr("axes", AttrKind::Ints)],
        dtypes: &[("T", ANY)],
        infer: |c| {
            let (axes, dtype) = (axes(c.attrs.ints(0)), c.dtype(0)?);
            let Some(s) = c.shape(0) else {
                c.set_unranked(0, dtype);
                return Ok(());
            };
            let mut shape: Vec<Option<DimId>> = vec![None; axes.iter().map(|a| a + 1).max().unwrap_or(0)];
            for (&d, &a) in s.iter().zip(&axes) {
                if let Some(other) = shape[a] {
                    c.require_eq(other, d, "axes of a diagonal have one extent")?;
                }
                shape[a] = shape[a].filter(|&o| c.dims.as_const(o).is_some()).or(Some(d));
            }
            c.set(0, dtype, shape.into_iter().flatten().collect::<Shape>());
            Ok(())
        },
        reference: Some(|c| Ok(vec![einsum::diagonal(c.input(0)?, &axes(c.attrs.ints(0)))?])),
        lower: &[Candidate::Loops(diagonal_loops)],
        cases: &["[3,3] axes=[0,0]", "[2,3,2] axes=[1,0,1]"],
        ..ROW
    },
];

fn axes(ints: Option<&[i64]>) -> Vec<usize> {
    ints.unwrap_or(&[]).iter().map(|&a| usize::try_from(a).unwrap_or(0)).collect()
}

fn diagonal_loops(c: &mut NodeCtx) -> Plan<Nest> {
    let axes = axes(c.attrs.ints(0));
    let mut b = Builder::over_result(c)?;
    let at: Vec<Coord> = axes.into_iter().map(|a| b.along(outer(a))).collect();
    let e = b.load(0, at)?;
    Ok(b.store(e))
}

/// The name of an axis: a letter, or the position from the right among those that an ellipsis stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Rest(usize),
    Letter(char),
}

/// An equation with its ellipses spelled out.
#[derive(Debug, PartialEq)]
struct Equation {
    ins: Vec<Vec<Label>>,
    out: Vec<Label>,
}

impl Equation {
    /// Reads an equation for operands of these ranks.
    fn read(text: &str, ranks: &[usize]) -> Read<Equation> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((l, r)) => (l, Some(r)),
            None => (text.as_str(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != ranks.len() {
            return Err(format!("{} terms for {} operands", terms.len(), ranks.len()));
        }
        let mut ins = Vec::new();
        for (i, (term, &rank)) in terms.iter().zip(ranks).enumerate() {
            let (before, after) = halves(term)?;
            let letters = before.len() + after.as_ref().map_or(0, Vec::len);
            let rest = match &after {
                Some(_) if letters <= rank => rank - letters,
                None if letters == rank => 0,
                _ => return Err(format!("term {term:?} does not fit operand {i} of {rank} axes")),
            };
            ins.push(spelled(before, rest, after));
        }
        let rest = ins.iter().flatten().filter_map(|l| if let Label::Rest(k) = l { Some(k + 1) } else { None });
        let rest = rest.max().unwrap_or(0);
        let out = match right {
            Some(r) => {
                let (before, after) = halves(r)?;
                if after.is_none() && rest > 0 {
                    return Err("the result leaves out the axes of the ellipsis".into());
                }
                spelled(before, rest, after)
            }
            None => {
                let count = |l: &Label| ins.iter().flatten().filter(|&k| k == l).count();
                let letters = ins.iter().flatten().filter(|l| matches!(l, Label::Letter(_)) && count(l) == 1);
                let mut letters: Vec<Label> = letters.copied().collect();
                letters.sort();
                spelled(vec![], rest, Some(letters))
            }
        };
        for (i, l) in out.iter().enumerate() {
            if out[..i].contains(l) || !ins.iter().flatten().any(|k| k == l) {
                return Err(format!("an axis of the result is named twice or by no operand: {}", right.unwrap_or("")));
            }
        }
        Ok(Equation { ins, out })
    }
    /// Labels as numbers from 0 on.
    fn numbered(&self) -> (Vec<Vec<usize>>, Vec<usize>) {
        let mut all: Vec<Label> = self.ins.iter().flatten().copied().collect();
        all.sort();
        all.dedup();
        let number = |l: &Vec<Label>| l.iter().filter_map(|l| all.binary_search(l).ok()).collect();
        (self.ins.iter().map(number).collect(), number(&self.out))
    }
}

/// The letters before an ellipsis and those after it, if there is one.
fn halves(term: &str) -> Read<(Vec<Label>, Option<Vec<Label>>)> {
    let letters = |s: &str| {
        let bad = s.chars().find(|c| !c.is_ascii_alphabetic());
        bad.map_or(Ok(s.chars().map(Label::Letter).collect()), |c| Err(format!("{c:?} is not a letter")))
    };
    match term.split_once("...") {
        Some((a, b)) => Ok((letters(a)?, Some(letters(b)?))),
        None => Ok((letters(term)?, None)),
    }
}

fn spelled(before: Vec<Label>, rest: usize, after: Option<Vec<Label>>) -> Vec<Label> {
    before.into_iter().chain((0..rest).rev().map(Label::Rest)).chain(after.into_iter().flatten()).collect()
}

fn of_ref(c: &RefCtx) -> Result<Equation> {
    let ranks: Vec<usize> = c.ins.iter().flatten().map(|x| x.shape().len()).collect();
    let text = c.attrs.str(0).unwrap_or("");
    Equation::read(text, &ranks).map_err(|e| Diagnostic::new(ErrorKind::Shape, format!("Einsum {text:?}: {e}")))
}

fn infer_einsum(c: &mut InferCtx) -> Result<()> {
    let dtype = c.dtype(0)?;
    let shapes: Option<Vec<Shape>> = (0..c.ins.len()).map(|i| c.shape(i)).collect();
    let Some(text) = c.attrs.str(0) else {
        return Err(c.error(ErrorKind::Malformed, "Einsum needs an equation"));
    };
    let Some(shapes) = shapes else {
        c.set_unranked(0, dtype);
        return Ok(());
    };
    let ranks: Vec<usize> = shapes.iter().map(|s| s.len()).collect();
    let eq = Equation::read(text, &ranks);
    let eq = eq.map_err(|e| c.error(ErrorKind::Shape, format!("Einsum {text:?}: {e}")))?;
    let (labels, out) = eq.numbered();
    let one = c.dims.constant(1);
    let mut extents = vec![one; labels.iter().flatten().map(|l| l + 1).max().unwrap_or(0)];
    for (s, labels) in shapes.iter().zip(&labels) {
        for (i, (&d, &l)) in s.iter().zip(labels).enumerate() {
            // A diagonal does not repeat an extent of 1.
            if let Some(k) = labels[..i].iter().position(|&k| k == l) {
                c.require_eq(s[k], d, "axes of one operand with one label")?;
            }
            extents[l] = super::broadcast::join(c, extents[l], d, "axes with one label")?;
        }
    }
    c.set(0, dtype, out.into_iter().map(|l| extents[l]).collect::<Shape>());
    Ok(())
}

/// A factor: a value with the labels of its axes, none of them twice.
#[derive(Clone)]
struct Factor {
    v: Value,
    labels: Vec<Label>,
}

/// Operands are multiplied from left to right; a label is summed as soon as nothing else has it.
fn expand_einsum(x: &mut Expansion) -> Result<Vec<Value>> {
    let operands: Vec<Value> = (0..x.node().ins.len()).map(|i| x.need(i)).collect::<Result<_>>()?;
    let types = operands.iter().map(|&v| x.tensor(v)).collect::<Result<Vec<_>>>()?;
    let ranks: Vec<usize> = types.iter().map(|t| t.1.len()).collect();
    let text = x.attrs().str(0).unwrap_or("").to_string();
    let eq = Equation::read(&text, &ranks)
        .map_err(|e| Diagnostic::new(ErrorKind::Shape, format!("Einsum {text:?}: {e}")))?;
    let dtype = types.first().map_or(F32, |t| t.0);
    // Products and sums of narrow integers wrap alike in 32 bits; floats of 16 bits are rounded once, not after each product.
    let wide = match dtype {
        I8 | I16 => I32,
        U8 | U16 => U32,
        DType::F16 | DType::BF16 if operands.len() > 2 => F32,
        d => d,
    };
    let is_one = |x: &Expansion, i: usize, a: usize| x.as_const(types[i].1[a]) == Some(1);
    let mut factors = Vec::new();
    for (i, (&v, labels)) in operands.iter().zip(&eq.ins).enumerate() {
        let v = if wide == dtype { v } else { x.cast(v, wide) };
        let f = diagonal(x, Factor { v, labels: labels.clone() });
        // An extent of 1 that repeats is no axis of this factor.
        let repeats = |l: &Label| {
            let at = |i: usize| eq.ins[i].iter().position(|k| k == l);
            at(i).is_some_and(|a| is_one(x, i, a)) && (0..ranks.len()).any(|k| at(k).is_some_and(|a| !is_one(x, k, a)))
        };
        let gone: Vec<Label> = f.labels.iter().copied().filter(repeats).collect();
        let f = without(x, f, &gone, false);
        // Neither is one that has one element or none and is summed: the sum is the element, or 0 as that of the product is.
        let may_repeat = |l: &Label| {
            let few = |k: usize, a: usize| x.is_at_most_one(types[k].1[a]);
            let at = |i: usize| eq.ins[i].iter().position(|k| k == l);
            !eq.out.contains(l)
                && at(i).is_some_and(|a| few(i, a))
                && (0..ranks.len()).any(|k| at(k).is_some_and(|a| !few(k, a)))
        };
        let summed: Vec<Label> = f.labels.iter().copied().filter(may_repeat).collect();
        factors.push(without(x, f, &summed, true));
    }
    let mut rest = factors.into_iter();
    let Some(mut all) = rest.next() else {
        return Err(Diagnostic::new(ErrorKind::Malformed, "Einsum has no operand"));
    };
    while let Some(next) = rest.next() {
        let later: Vec<Label> = rest.as_slice().iter().flat_map(|f| f.labels.clone()).chain(eq.out.clone()).collect();
        all = product(x, all, next, &later);
    }
    let gone: Vec<Label> = all.labels.iter().copied().filter(|l| !eq.out.contains(l)).collect();
    let all = without(x, all, &gone, true);
    let y = arranged(x, &all, &eq.out);
    Ok(vec![if wide == dtype { y } else { x.cast(y, dtype) }])
}

/// Axes with the same label become one.
fn diagonal(x: &mut Expansion, f: Factor) -> Factor {
    let mut labels: Vec<Label> = Vec::new();
    for l in &f.labels {
        if !labels.contains(l) {
            labels.push(*l);
        }
    }
    if labels.len() == f.labels.len() {
        return f;
    }
    let axes: Vec<i64> = f.labels.iter().filter_map(|l| position(&labels, *l)).collect();
    Factor { v: x.own("Diagonal", &[Some(f.v)], &[("axes", Attr::Ints(axes.as_slice().into()))]), labels }
}

fn position(labels: &[Label], l: Label) -> Option<i64> {
    labels.iter().position(|&k| k == l).and_then(|p| i64::try_from(p).ok())
}

/// Without some axes: summed, or of extent 1.
fn without(x: &mut Expansion, f: Factor, gone: &[Label], sum: bool) -> Factor {
    if gone.is_empty() {
        return f;
    }
    let axes: Vec<i64> = gone.iter().filter_map(|&l| position(&f.labels, l)).collect();
    let v = if sum {
        let axes = x.ints(&axes);
        x.op("ReduceSum", &[f.v, axes], &[("keepdims", Attr::Int(0))])
    } else {
        x.squeeze(f.v, &axes)
    };
    Factor { v, labels: f.labels.into_iter().filter(|l| !gone.contains(l)).collect() }
}

/// The axes in this order.
fn arranged(x: &mut Expansion, f: &Factor, order: &[Label]) -> Value {
    if f.labels == order {
        return f.v;
    }
    let perm: Vec<i64> = order.iter().filter_map(|&l| position(&f.labels, l)).collect();
    x.transpose(f.v, &perm)
}

/// The product of two factors; labels that only they have are summed.
fn product(x: &mut Expansion, a: Factor, b: Factor, later: &[Label]) -> Factor {
    let only = |a: &Factor, b: &Factor| -> Vec<Label> {
        a.labels.iter().copied().filter(|l| !b.labels.contains(l) && !later.contains(l)).collect()
    };
    let (gone_a, gone_b) = (only(&a, &b), only(&b, &a));
    let (a, b) = (without(x, a, &gone_a, true), without(x, b, &gone_b, true));
    let (both, m): (Vec<Label>, Vec<Label>) = a.labels.iter().copied().partition(|l| b.labels.contains(l));
    let (batch, k): (Vec<Label>, Vec<Label>) = both.into_iter().partition(|l| later.contains(l));
    let n: Vec<Label> = b.labels.iter().copied().filter(|l| !a.labels.contains(l)).collect();
    let labels = [batch.clone(), m.clone(), n.clone()].concat();
    if k.is_empty() {
        let count = |from: usize, n: usize| (from..from + n).map(|i| i as i64).collect::<Vec<_>>();
        let mut a = arranged(x, &a, &[batch.clone(), m.clone()].concat());
        let mut b = arranged(x, &b, &[batch.clone(), n.clone()].concat());
        if !m.is_empty() && !n.is_empty() {
            a = x.unsqueeze(a, &count(batch.len() + m.len(), n.len()));
        }
        if !m.is_empty() {
            b = x.unsqueeze(b, &count(batch.len(), m.len()));
        } else if !n.is_empty() {
            a = x.unsqueeze(a, &count(batch.len(), n.len()));
        }
        return Factor { v: x.op("Mul", &[a, b], &[]), labels };
    }
    let left = arranged(x, &a, &[batch.clone(), m.clone(), k.clone()].concat());
    let right = arranged(x, &b, &[batch.clone(), k.clone(), n.clone()].concat());
    let at = |x: &mut Expansion, v: Value, from: usize, n: usize| -> Vec<Value> {
        (from..from + n).map(|i| x.extent(v, i as i64)).collect()
    };
    let n_batch = batch.len();
    let (flat_left, flat_right) =
        (matrices(x, left, n_batch, m.len(), k.len()), matrices(x, right, n_batch, k.len(), n.len()));
    let mut y = x.op("MatMul", &[flat_left, flat_right], &[]);
    if m.len() != 1 || n.len() != 1 {
        let mut extents = at(x, y, 0, n_batch);
        extents.extend(at(x, left, n_batch, m.len()));
        extents.extend(at(x, right, n_batch + k.len(), n.len()));
        y = if extents.is_empty() { x.reshape(y, &[]) } else { x.reshape_to(y, &extents) };
    }
    Factor { v: y, labels }
}

/// Matrices whose rows and columns are each several axes, or none.
fn matrices(x: &mut Expansion, v: Value, batch: usize, rows: usize, columns: usize) -> Value {
    if rows == 1 && columns == 1 {
        return v;
    }
    let mut shape: Vec<Value> = (0..batch).map(|i| x.extent(v, i as i64)).collect();
    for (from, n) in [(batch, rows), (batch + rows, columns)] {
        let mut product = if n == 0 { x.ints(&[1]) } else { x.extent(v, from as i64) };
        for i in from + 1..from + n {
            let next = x.extent(v, i as i64);
            product = x.op("Mul", &[product, next], &[]);
        }
        shape.push(product);
    }
    x.reshape_to(v, &shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_read() {
        let read = |text: &str, ranks: &[usize]| Equation::read(text, ranks).map(|e| e.numbered());
        assert_eq!(read(" ij , jk -> ik", &[2, 2]).unwrap(), (vec![vec![0, 1], vec![1, 2]], vec![0, 2]));
        // Without a result: the ellipsis, then letters that occur once, capitals first.
        assert_eq!(read("b...Aa,c", &[4, 1]).unwrap(), (vec![vec![3, 0, 1, 2], vec![4]], vec![0, 1, 2, 3, 4]));
        assert_eq!(read("...,i...", &[2, 2]).unwrap().1, [1, 0, 2]);
        for (text, ranks, part) in [
            ("ij->i", vec![3], "does not fit"),
            ("i,j", vec![1], "2 terms for 1 operands"),
            ("i1->i", vec![2], "'1' is not a letter"),
            ("ij->ii", vec![2], "named twice"),
            ("ij->k", vec![2], "by no operand"),
            ("...i->i", vec![2], "leaves out"),
        ] {
            let e = Equation::read(text, &ranks).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
