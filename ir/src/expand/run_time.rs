//! Extents that only the run knows and that are no expression over the elements of an operand: those of a Range of floats, or with axes
//! as an operand where the expressions would not stay small.
//!
//! Nodes before the operator compute them, as a list of integers that the compiled program reads as it reads any shape value.

use super::{ExpandFn, Expansion};
use crate::attrs::Attr;
use crate::graph::{Module, NodeData, Onnx, RegionId, Value};
use crate::ops::dropout;
use tensor::dims::Origin;
use tensor::{DType, DimId, Result};

/// A Range of more elements than this has no end for any purpose; the reference draws the line here, too.
const NO_END: f64 = 1e12;

/// The expansion of a node whose shape rule left extents open that its operands decide.
pub(super) fn of(m: &Module<Onnx>, r: RegionId, node: &NodeData<Onnx>) -> Option<ExpandFn> {
    let def = &m.registry[node.op];
    if !def.domain.is_empty() {
        return None;
    }
    if def.name == "Dropout" {
        return dropout::may_drop(m, r, node).then_some(dropout::expand_training);
    }
    let f: ExpandFn = match def.name {
        "Range" => range,
        "OneHot" => one_hot,
        "Unsqueeze" => unsqueeze,
        "Pad" if has_axes(m, r, node, 3) => pad,
        "Slice" if has_axes(m, r, node, 3) => slice,
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceSumSquare" | "ReduceL1"
        | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp"
            if has_axes(m, r, node, 1) =>
        {
            reduce
        }
        _ => return None,
    };
    leaves_open(m, r, node).then_some(f)
}

/// Whether operand `i` is a list, and operand 0 a tensor of known rank with axes.
fn has_axes(m: &Module<Onnx>, r: RegionId, node: &NodeData<Onnx>, i: usize) -> bool {
    let rank = |i: usize| {
        let v = node.ins.get(i).copied().flatten()?;
        Some(m.graphs[r].values[v].ty.shape()?.len())
    };
    rank(i) == Some(1) && rank(0) > Some(0)
}

/// Whether an extent of the result is one that the shape rule named and could not derive.
fn leaves_open(m: &Module<Onnx>, r: RegionId, node: &NodeData<Onnx>) -> bool {
    let shape = |v: Value| m.graphs[r].values[v].ty.shape();
    let open = |d: &DimId| m.dims.as_symbol(*d).is_some_and(|s| m.dims.sym(s).origin == Origin::Unknown);
    let of_operand = |d: &DimId| node.ins.iter().flatten().filter_map(|&v| shape(v)).any(|s| s.contains(d));
    node.outs.first().and_then(|&v| shape(v)).is_some_and(|s| s.iter().any(|d| open(d) && !of_operand(d)))
}

/// `start + i·delta` for each `i` below `⌈(limit - start) / delta⌉`; a number of elements that is none becomes -1, which is refused.
fn range(x: &mut Expansion) -> Result<Vec<Value>> {
    let (start, limit, delta) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let dtype = x.type_of(start).dtype().unwrap_or(DType::F32);
    if !dtype.is_float() {
        let wide = [start, limit, delta].map(|v| scalar_as(x, v, DType::I64));
        let all = x.op("Range", &wide, &[]);
        return Ok(vec![x.cast(all, dtype)]);
    }
    let [s, l, d] = [start, limit, delta].map(|v| scalar_as(x, v, DType::F64));
    let span = x.op("Sub", &[l, s], &[]);
    let n = x.op("Div", &[span, d], &[]);
    let n = x.op("Ceil", &[n], &[]);
    let (zero, most, none) = (x.scalar(DType::F64, 0.0), x.scalar(DType::F64, NO_END), x.scalar(DType::F64, -1.0));
    // Not a number is below nothing.
    let ends = x.op("Less", &[n, most], &[]);
    let n = x.op("Max", &[n, zero], &[]);
    let n = x.op("Where", &[ends, n, none], &[]);
    let n = x.cast(n, DType::I64);
    Ok(vec![x.own("Progression", &[Some(start), Some(delta), Some(n)], &[])])
}

/// An operand that is one number, as rank 0.
fn scalar_as(x: &mut Expansion, v: Value, dtype: DType) -> Value {
    let v = x.cast(v, dtype);
    x.reshape(v, &[])
}

/// With the depth as an integer.
fn one_hot(x: &mut Expansion) -> Result<Vec<Value>> {
    let (indices, depth, values) = (x.need(0)?, x.need(1)?, x.need(2)?);
    let axis = x.attrs().int(0).unwrap_or(-1);
    let depth = x.cast(depth, DType::I64);
    Ok(vec![x.op("OneHot", &[indices, depth, values], &[("axis", Attr::Int(axis))])])
}

/// What an operand of axes names of a tensor's axes.
struct Named {
    /// By axis and element of the list, 1 where the element names the axis: `i64[rank, n]`.
    table: Value,
    /// By axis, how many elements name it: `i64[rank]`.
    counts: Value,
    /// Whether each element names an axis and none is named twice: `bool[1]`.
    valid: Value,
    /// How many elements there are: `i64[1]`.
    n: Value,
}

fn named(x: &mut Expansion, axes: Value, rank: usize) -> Named {
    let r = i64::try_from(rank).unwrap_or(i64::MAX);
    let axes = x.cast(axes, DType::I64);
    let (zero, one, extent) = (x.ints(&[0]), x.ints(&[1]), x.ints(&[r]));
    let negative = x.op("Less", &[axes, zero], &[]);
    let shifted = x.op("Add", &[axes, extent], &[]);
    let axes = x.op("Where", &[negative, shifted, axes], &[]);
    let all: Vec<i64> = (0..r).collect();
    let column = x.ints(&all);
    let column = x.reshape(column, &[r, 1]);
    let table = x.op("Equal", &[column, axes], &[]);
    let table = x.cast(table, DType::I64);
    let counts = sum_last(x, table);
    let total = x.op("ReduceSum", &[counts], &[]);
    let n = x.op("Shape", &[axes], &[]);
    let complete = x.op("Equal", &[total, n], &[]);
    let most = x.op("ReduceMax", &[counts], &[]);
    let once = x.op("LessOrEqual", &[most, one], &[]);
    let valid = x.op("And", &[complete, once], &[]);
    Named { table, counts, valid, n }
}

fn sum_last(x: &mut Expansion, v: Value) -> Value {
    let last = x.ints(&[-1]);
    x.op("ReduceSum", &[v, last], &[("keepdims", Attr::Int(0))])
}

/// For each axis, the element of `list` beside the one that names it, or 0.
fn by_axis(x: &mut Expansion, named: &Named, list: Value) -> Value {
    let list = x.cast(list, DType::I64);
    let picked = x.op("Mul", &[named.table, list], &[]);
    sum_last(x, picked)
}

/// `list` where the axes are what they must be, else `wrong` throughout, which the operator that follows refuses.
fn checked(x: &mut Expansion, named: &Named, list: Value, wrong: Value) -> Value {
    x.op("Where", &[named.valid, list, wrong], &[])
}

fn rank_of(x: &Expansion, v: Value) -> Result<usize> {
    Ok(x.tensor(v)?.1.len())
}

/// A Reshape: 1 where an axis is new, else the next extent of the operand.
fn unsqueeze(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, axes) = (x.need(0)?, x.need(1)?);
    let old = rank_of(x, data)?;
    let rank = x.result_shape(0).map_or(old, |s| s.len());
    let axes = x.reshape(axes, &[-1]);
    let named = named(x, axes, rank);
    let (zero, one) = (x.ints(&[0]), x.ints(&[1]));
    let is_new = x.op("Equal", &[named.counts, one], &[]);
    let ones = x.ints(&vec![1; rank]);
    let shape = if old == 0 {
        ones
    } else {
        let kept = x.op("Sub", &[one, named.counts], &[]);
        let axis = x.scalar(DType::I64, 0.0);
        let place = x.op("CumSum", &[kept, axis], &[("exclusive", Attr::Int(1))]);
        let last = x.ints(&[i64::try_from(old).unwrap_or(i64::MAX) - 1]);
        let place = x.op("Min", &[place, last], &[]);
        let place = x.op("Max", &[place, zero], &[]);
        let shape = x.op("Shape", &[data], &[]);
        let next = x.op("Gather", &[shape, place], &[]);
        x.op("Where", &[is_new, one, next], &[])
    };
    // Of another number of elements than the operand has.
    let n = x.op("Size", &[data], &[]);
    let none = x.scalar(DType::I64, 0.0);
    let empty = x.op("Equal", &[n, none], &[]);
    let wrong = x.cast(empty, DType::I64);
    let shape = checked(x, &named, shape, wrong);
    let shape = x.op("Max", &[shape, zero], &[]);
    Ok(vec![x.op("Reshape", &[data, shape], &[("allowzero", Attr::Int(1))])])
}

/// A Pad of all axes. Wrong axes take more from each than it has.
fn pad(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, pads, axes) = (x.need(0)?, x.need(1)?, x.need(3)?);
    let rank = rank_of(x, data)?;
    let named = named(x, axes, rank);
    let one = x.ints(&[1]);
    let two = x.ints(&[2]);
    let sides = x.concat(&[two, one, named.n], 0);
    let pads = x.op("Reshape", &[pads, sides], &[("allowzero", Attr::Int(1))]);
    let pads = by_axis(x, &named, pads);
    let wrong = x.ints(&[i64::MIN / 4]);
    let pads = checked(x, &named, pads, wrong);
    let pads = x.reshape(pads, &[2 * i64::try_from(rank).unwrap_or(i64::MAX)]);
    let mode = x.attrs().str(0).unwrap_or("constant").into();
    let mut ins = vec![data, pads];
    ins.extend(x.input(2));
    Ok(vec![x.op("Pad", &ins, &[("mode", Attr::Str(mode))])])
}

/// A Slice of all axes. Wrong axes give steps of 0.
fn slice(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, starts, ends, axes) = (x.need(0)?, x.need(1)?, x.need(2)?, x.need(3)?);
    let rank = rank_of(x, data)?;
    let named = named(x, axes, rank);
    let (zero, one, end) = (x.ints(&[0]), x.ints(&[1]), x.ints(&[i64::MAX]));
    let cut = x.op("Equal", &[named.counts, one], &[]);
    let starts = by_axis(x, &named, starts);
    let ends = by_axis(x, &named, ends);
    let ends = x.op("Where", &[cut, ends, end], &[]);
    let steps = match x.input(4) {
        Some(steps) => {
            let steps = by_axis(x, &named, steps);
            x.op("Where", &[cut, steps, one], &[])
        }
        None => x.ints(&vec![1; rank]),
    };
    let steps = checked(x, &named, steps, zero);
    let all: Vec<i64> = (0..i64::try_from(rank).unwrap_or(0)).collect();
    let all = x.ints(&all);
    Ok(vec![x.op("Slice", &[data, starts, ends, all, steps], &[])])
}

/// A reduction by marks. Wrong axes give marks that are none.
fn reduce(x: &mut Expansion) -> Result<Vec<Value>> {
    let (data, axes) = (x.need(0)?, x.need(1)?);
    let named = named(x, axes, rank_of(x, data)?);
    let (zero, one, wrong) = (x.ints(&[0]), x.ints(&[1]), x.ints(&[-1]));
    let mut marks = checked(x, &named, named.counts, wrong);
    let noop = x.def().slot("noop_with_empty_axes").and_then(|i| x.attrs().int(i)) == Some(1);
    if !noop {
        let none = x.op("Equal", &[named.n, zero], &[]);
        marks = x.op("Where", &[none, one, marks], &[]);
    }
    let name = x.def().name;
    Ok(vec![x.own(name, &[Some(data), Some(marks)], &[])])
}

#[cfg(test)]
mod tests;
