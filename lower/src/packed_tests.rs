//! Elements of 4 and 2 bits through movement, conversion and quantization.

use crate::lower_tests::{Builder, check};
use ir::attrs::Attr;
use tensor::{DType, Tensor};

const PACKED: [DType; 5] = [DType::U4, DType::I4, DType::U2, DType::I2, DType::F4E2M1];

/// Elements in some order, all of them when there are enough.
fn elements(dtype: DType, shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    if dtype.is_float() {
        let values = [0.0, 1.5, -6.0, 0.5, -0.5, 4.0, 2.0, -3.0, 1.0];
        return Tensor::from_f64_as(dtype, shape, &(0..n).map(|i| values[i % 9]).collect::<Vec<_>>());
    }
    Tensor::from_i64_as(dtype, shape, &(0..n).map(|i| (i * 7 % 16) as i64 - 8).collect::<Vec<_>>())
}

#[test]
fn packed_elements_move() {
    for d in PACKED {
        let mut b = Builder::new();
        let x = b.input(d, &["n", "3"]);
        let t = b.op("Transpose", &[("perm", Attr::Ints([1, 0].as_slice().into()))], &[x]);
        b.output(t);
        // From the middle of a byte on, backwards, and parts side by side.
        let (from, to, axes) = (b.ints(&[1]), b.ints(&[3]), b.ints(&[1]));
        let s = b.op("Slice", &[], &[x, from, to, axes]);
        b.output(s);
        let (from, to, axes, step) = (b.ints(&[-1]), b.ints(&[i64::MIN]), b.ints(&[0]), b.ints(&[-1]));
        let r = b.op("Slice", &[], &[x, from, to, axes, step]);
        b.output(r);
        let c = b.op("Concat", &[("axis", Attr::Int(1))], &[x, s, r]);
        b.output(c);
        let i = b.ints(&[2, 0]);
        let g = b.op("Gather", &[("axis", Attr::Int(1))], &[x, i]);
        b.output(g);
        // One row, which begins in the middle of a byte, and one column.
        let last = b.ints(&[-1]);
        for axis in [0, 1] {
            let g = b.op("Gather", &[("axis", Attr::Int(axis))], &[t, last]);
            b.output(g);
        }
        check(b, &[&[elements(d, &[5, 3])], &[elements(d, &[1, 3])], &[elements(d, &[4, 3])], &[elements(d, &[3, 3])]]);
    }
}

#[test]
fn packed_elements_convert() {
    for d in PACKED {
        let mut b = Builder::new();
        let to = |d: DType| [("to", Attr::Int(d.onnx().into()))];
        let (x, y) = (b.input(d, &["n", "3"]), b.input(DType::F32, &["n", "3"]));
        let wide = b.op("Cast", &to(DType::F32), &[x]);
        b.output(wide);
        let sum = b.op("Add", &[], &[wide, y]);
        let narrow = b.op("Cast", &to(d), &[sum]);
        b.output(narrow);
        let y = |n: usize| {
            let v: Vec<f32> = (0..3 * n).map(|i| (i as f32 - 4.0) * 0.25).collect();
            Tensor::from_f32(&[n, 3], &v)
        };
        check(b, &[&[elements(d, &[5, 3]), y(5)], &[elements(d, &[2, 3]), y(2)], &[elements(d, &[1, 3]), y(1)]]);
    }
}

#[test]
fn quantization_packs() {
    for d in [DType::U4, DType::I4] {
        let mut b = Builder::new();
        let x = b.input(DType::F32, &["n"]);
        let (scale, zero) = (b.konst(&Tensor::from_f32(&[], &[0.5])), b.konst(&Tensor::from_i64_as(d, &[], &[1])));
        let q = b.op("QuantizeLinear", &[], &[x, scale, zero]);
        b.output(q);
        let y = b.op("DequantizeLinear", &[], &[q, scale, zero]);
        b.output(y);
        let x = |n: usize| Tensor::from_f32(&[n], &(0..n).map(|i| i as f32 * 1.3 - 4.0).collect::<Vec<_>>());
        check(b, &[&[x(7)], &[x(1)], &[x(4)]]);
    }
}

/// An empty view may have any strides; whoever gets its bytes takes it for contiguous all the same.
#[test]
fn empty_packed_outputs_are_views() {
    for d in PACKED {
        let mut b = Builder::new();
        let x = b.input(d, &["n", "1"]);
        let shape = b.ints(&[3, 0]);
        let e = b.op("Expand", &[], &[x, shape]);
        b.output(e);
        check(b, &[&[elements(d, &[3, 1])]]);
    }
}
