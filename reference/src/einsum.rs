//! Sums of products over named axes.

use crate::movement::{each_coord, strides};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// `Einsum`: axis `a` of operand `i` is label `labels[i][a]`; the result has the labels `out`; over all others the products are summed. A
/// label has one extent in every operand, or 1, which repeats.
///
/// # Errors
/// `Shape` for other extents.
pub fn einsum(operands: &[&Tensor], labels: &[Vec<usize>], out: &[usize]) -> Result<Tensor> {
    let n_labels = labels.iter().flatten().map(|l| l + 1).max().unwrap_or(0);
    let mut extents = vec![1usize; n_labels];
    for (x, labels) in operands.iter().zip(labels) {
        for (&n, &l) in x.shape().iter().zip(labels) {
            if n != 1 && extents[l] != 1 && extents[l] != n {
                let text = format!("Einsum: one label has the extents {} and {n}", extents[l]);
                return Err(Diagnostic::new(ErrorKind::Shape, text));
            }
            if n != 1 {
                extents[l] = n;
            }
        }
    }
    // Where a step along each label leads in each operand and in the result.
    let steps: Vec<Vec<usize>> = operands.iter().zip(labels).map(|(x, l)| along(x.shape(), l, n_labels)).collect();
    let shape: Vec<usize> = out.iter().map(|&l| extents[l]).collect();
    let to = along(&shape, out, n_labels);
    let at = |steps: &[usize], c: &[usize]| c.iter().zip(steps).map(|(c, s)| c * s).sum::<usize>();
    let n: usize = shape.iter().product();
    let dtype = operands.first().map_or(tensor::DType::F32, |x| x.dtype());
    if dtype.is_float() {
        let values: Vec<Vec<f64>> = operands.iter().map(|x| x.to_f64_vec()).collect();
        let mut y = vec![0f64; n];
        each_coord(&extents, |c| {
            y[at(&to, c)] += values.iter().zip(&steps).map(|(v, s)| v[at(s, c)]).product::<f64>();
        });
        return Ok(Tensor::from_f64_as(dtype, &shape, &y));
    }
    let values: Vec<Vec<i64>> = operands.iter().map(|x| x.to_i64_vec()).collect();
    let mut y = vec![0i64; n];
    each_coord(&extents, |c| {
        let product = values.iter().zip(&steps).fold(1i64, |p, (v, s)| p.wrapping_mul(v[at(s, c)]));
        let sum = &mut y[at(&to, c)];
        *sum = sum.wrapping_add(product);
    });
    Ok(Tensor::from_i64_as(dtype, &shape, &y))
}

fn along(shape: &[usize], labels: &[usize], n_labels: usize) -> Vec<usize> {
    let mut steps = vec![0; n_labels];
    for ((&n, &l), s) in shape.iter().zip(labels).zip(strides(shape)) {
        steps[l] += if n == 1 { 0 } else { s };
    }
    steps
}

/// Axis `a` of `x` is axis `axes[a]` of the result: where two are the same, their diagonal.
///
/// # Errors
/// `Shape` when the two have different extents.
pub fn diagonal(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let mut shape = vec![None; axes.iter().map(|a| a + 1).max().unwrap_or(0)];
    for (&n, &a) in x.shape().iter().zip(axes) {
        if shape[a].is_some_and(|m| m != n) {
            return Err(Diagnostic::new(ErrorKind::Shape, "a diagonal of axes with different extents"));
        }
        shape[a] = Some(n);
    }
    let shape: Vec<usize> = shape.into_iter().map(|n| n.unwrap_or(1)).collect();
    let steps = along(x.shape(), axes, shape.len());
    let mut at = Vec::new();
    each_coord(&shape, |c| at.push(c.iter().zip(&steps).map(|(c, s)| c * s).sum::<usize>() as i64));
    let flat = x.reshaped(&[x.n_elems()]);
    crate::movement::gather(&flat, &Tensor::from_i64(&shape, &at), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_traces_and_transposes() {
        let a = Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let run = |ops: &[&Tensor], labels: &[&[usize]], out: &[usize]| {
            einsum(ops, &labels.iter().map(|l| l.to_vec()).collect::<Vec<_>>(), out).unwrap().to_f64_vec()
        };
        assert_eq!(run(&[&a, &a], &[&[0, 1], &[1, 2]], &[0, 2]), [7.0, 10.0, 15.0, 22.0]);
        assert_eq!(run(&[&a], &[&[0, 0]], &[]), [5.0]);
        assert_eq!(run(&[&a], &[&[0, 0]], &[0]), [1.0, 4.0]);
        assert_eq!(run(&[&a], &[&[0, 1]], &[1, 0]), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(diagonal(&a, &[0, 0]).unwrap().to_f64_vec(), [1.0, 4.0]);
    }
}
