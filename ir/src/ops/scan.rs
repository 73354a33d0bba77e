//! Scan: what its attributes say, and the loop that it is.

use crate::attrs::Attr;
use crate::expand::Expansion;
use crate::graph::{Def, Module, NodeData, Onnx, RegionId, Value};
use crate::ty::Type;
use tensor::DType::{Bool, I64};
use tensor::{Diagnostic, ErrorKind, Result, Tensor};

/// A node that is a Scan, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Its body.
    pub body: RegionId,
    /// Lengths of the sequences of each sample (version 8).
    pub lengths: Option<Value>,
    /// Initial states.
    pub initial: Vec<Value>,
    /// What is gone through.
    pub sequences: Vec<Value>,
    /// Whether axis 0 of operands and results is a batch whose samples are scanned one by one (version 8).
    pub batched: bool,
    input_axes: Vec<i64>,
    output_axes: Vec<i64>,
    input_reversed: Vec<bool>,
    output_reversed: Vec<bool>,
}

impl Scan {
    /// Takes a node apart.
    ///
    /// # Errors
    /// `Malformed` when the body and the attributes do not fit the operands and results.
    pub fn new(m: &Module<Onnx>, node: &NodeData<Onnx>) -> Result<Scan> {
        let error = |text: String| Diagnostic::new(ErrorKind::Malformed, text);
        let malformed = |text: String| Err(error(text));
        let (def, attrs) = (&m.registry[node.op], m.attrs_of(node));
        let Some(&body) = node.regions.first() else { return malformed("Scan has no body".into()) };
        let batched = def.since < 9;
        let own = node.ins.len().saturating_sub(node.n_captures as usize);
        let first = usize::from(batched);
        let lengths = if batched { node.ins.first().copied().flatten() } else { None };
        let Some(all) = node.ins.get(first..own).and_then(|v| v.iter().copied().collect::<Option<Vec<_>>>()) else {
            return malformed("an operand of Scan is missing".into());
        };
        let count = def.slot("num_scan_inputs").and_then(|i| attrs.int(i)).unwrap_or(0);
        let n = usize::try_from(count).ok().filter(|&n| n >= 1 && n <= all.len());
        let Some(n) = n else {
            return malformed(format!("Scan has num_scan_inputs={count} and {} operands", all.len()));
        };
        let (initial, sequences) = all.split_at(all.len() - n);
        let g = &m.graphs[body];
        let n_given = g.outputs.len().saturating_sub(initial.len());
        let params = g.inputs.len().saturating_sub(node.n_captures as usize);
        if params != all.len() || g.outputs.len() < initial.len() || node.outs.len() > g.outputs.len() {
            return malformed(format!(
                "Scan has {} states and {n} sequences, but its body has {params} parameters and {} results for {} results of the node",
                initial.len(),
                g.outputs.len(),
                node.outs.len()
            ));
        }
        let list = |name: &str, n: usize| -> Result<Vec<i64>> {
            let given = def.slot(name).and_then(|i| attrs.ints(i)).unwrap_or(&[]);
            match given.len() {
                0 => Ok(vec![0; n]),
                k if k == n => Ok(given.to_vec()),
                k => Err(error(format!("Scan: {name} has {k} elements, not {n}"))),
            }
        };
        let reversed = |name: &str, n: usize| Ok::<_, Diagnostic>(list(name, n)?.into_iter().map(|d| d != 0).collect());
        Ok(Scan {
            body,
            lengths,
            initial: initial.to_vec(),
            sequences: sequences.to_vec(),
            batched,
            input_axes: list("scan_input_axes", n)?,
            output_axes: list("scan_output_axes", n_given)?,
            input_reversed: reversed(if batched { "directions" } else { "scan_input_directions" }, n)?,
            output_reversed: reversed("scan_output_directions", n_given)?,
        })
    }
    /// The axis of sequence `k`, of this rank (without the batch), that is gone along.
    ///
    /// # Errors
    /// `Shape` when it is out of range.
    pub fn input_axis(&self, k: usize, rank: usize) -> Result<usize> {
        axis(self.input_axes[k], rank)
    }
    /// The axis of result `k`, of this rank (without the batch), that iterations lie along.
    ///
    /// # Errors
    /// `Shape` when it is out of range.
    pub fn output_axis(&self, k: usize, rank: usize) -> Result<usize> {
        axis(self.output_axes[k], rank)
    }
    /// Whether sequence `k` is gone through backwards.
    pub fn input_reversed(&self, k: usize) -> bool {
        self.input_reversed[k]
    }
    /// Whether result `k` starts with the last iteration.
    pub fn output_reversed(&self, k: usize) -> bool {
        self.output_reversed[k]
    }
}

fn axis(axis: i64, rank: usize) -> Result<usize> {
    let r = i64::try_from(rank).unwrap_or(i64::MAX);
    let a = usize::try_from(if axis < 0 { axis + r } else { axis }).ok().filter(|&a| a < rank);
    a.ok_or_else(|| Diagnostic::new(ErrorKind::Shape, format!("Scan: axis {axis} is out of range for rank {rank}")))
}

/// A Loop over the elements; in version 8 within a Loop over the samples.
pub(crate) fn expand_scan(x: &mut Expansion) -> Result<Vec<Value>> {
    let scan = Scan::new(x.module(), &x.node().clone())?;
    let captured = x.captures();
    let n_states = scan.initial.len();
    if !scan.batched {
        let mut sequences = vec![];
        for (k, &v) in scan.sequences.iter().enumerate() {
            let rank = x.tensor(v)?.1.len();
            let axis = scan.input_axis(k, rank)?;
            sequences.push((if scan.input_reversed(k) { x.reverse(v, int(axis)) } else { v }, axis));
        }
        let trips = x.extent(sequences[0].0, int(sequences[0].1));
        let mut results = loop_over(x, scan.body, trips, &scan.initial, &sequences, None, &captured)?;
        for (k, v) in results.iter_mut().enumerate().skip(n_states) {
            *v = place(x, &scan, k - n_states, *v)?;
        }
        return Ok(results);
    }
    let sample = scan.sequences[0];
    let (n_samples, n_steps) = (x.extent(sample, 0), x.extent(sample, 1));
    let mut outer: Vec<Value> = scan.initial.iter().chain(&scan.sequences).copied().collect();
    outer.extend([n_steps]);
    outer.extend(scan.lengths);
    let n_own = outer.len();
    outer.extend(&captured);
    x.repeat(n_samples, &[], &outer, |x, sample, _, outer| {
        let (own, captured) = outer.split_at(n_own);
        let of_sample = |x: &mut Expansion, v: Value| x.op("Gather", &[v, sample], &[]);
        let initial: Vec<Value> = own[..n_states].iter().map(|&v| of_sample(x, v)).collect();
        let n_sequences = scan.sequences.len();
        let n_steps = own[n_states + n_sequences];
        let length = own.get(n_states + n_sequences + 1).copied().map(|l| of_sample(x, l));
        let mut sequences = vec![];
        for (k, &v) in own[n_states..n_states + n_sequences].iter().enumerate() {
            let v = of_sample(x, v);
            let v = match (scan.input_reversed(k), length) {
                (false, _) => v,
                (true, None) => x.reverse(v, 0),
                (true, Some(length)) => reverse_first(x, v, n_steps, length),
            };
            sequences.push((v, 0));
        }
        let results = loop_over(x, scan.body, n_steps, &initial, &sequences, length, captured)?;
        Ok((vec![], results))
    })
}

/// The first `length` elements backwards, the others where they are.
fn reverse_first(x: &mut Expansion, v: Value, n: Value, length: Value) -> Value {
    let (i, one) = (x.count_to(n), x.ints(&[1]));
    let last = x.op("Sub", &[length, one], &[]);
    let (back, inside) = (x.op("Sub", &[last, i], &[]), x.op("Less", &[i, length], &[]));
    let from = x.op("Where", &[inside, back, i], &[]);
    x.op("Gather", &[v, from], &[])
}

fn int(axis: usize) -> i64 {
    i64::try_from(axis).unwrap_or(i64::MAX)
}

/// The rank of result `k` of a body, which [`loop_over`] made that of a loop: its first result is the condition.
fn rank_given(x: &Expansion, body: RegionId, k: usize) -> Result<usize> {
    let g = x.graph(body);
    let rank = g.outputs.get(k + 1).and_then(|&v| Some(g.values[v].ty.shape()?.len()));
    rank.ok_or_else(|| Diagnostic::new(ErrorKind::Unsupported, "Scan: the rank of what its body gives is not known"))
}

/// What iterations gave, all along axis 0, in its order and along its axis.
fn place(x: &mut Expansion, scan: &Scan, k: usize, v: Value) -> Result<Value> {
    let v = if scan.output_reversed(k) { x.reverse(v, 0) } else { v };
    let rank = 1 + rank_given(x, scan.body, scan.initial.len() + k)?;
    let axis = scan.output_axis(k, rank)?;
    if axis == 0 {
        return Ok(v);
    }
    let mut perm: Vec<i64> = (1..rank).map(int).collect();
    perm.insert(axis, 0);
    Ok(x.transpose(v, &perm))
}

/// Makes the body of a Scan that of a Loop, which takes whole sequences and gathers its elements, and adds the Loop. From step `length` on
/// states stay and what is given is 0.
fn loop_over(
    x: &mut Expansion,
    body: RegionId,
    trips: Value,
    initial: &[Value],
    sequences: &[(Value, usize)],
    length: Option<Value>,
    captured: &[Value],
) -> Result<Vec<Value>> {
    let n_results = x.graph(body).outputs.len();
    let types: Vec<Type> = sequences.iter().map(|&(v, _)| x.type_of(v)).collect();
    x.within(body, |x| {
        let params = std::mem::take(&mut x.module_mut().graphs[body].inputs);
        let order = std::mem::take(&mut x.module_mut().graphs[body].order);
        let (states, rest) = params.split_at(initial.len());
        let (elements, captures) = rest.split_at(sequences.len());
        let g = &mut x.module_mut().graphs[body];
        let iter = g.add_input(Type::tensor(I64, []), "");
        let go_on = g.add_input(Type::tensor(Bool, []), "");
        g.inputs.extend(states);
        let whole: Vec<Value> = types.iter().map(|t| g.add_input(t.clone(), "")).collect();
        let end = length.map(|_| g.add_input(Type::tensor(I64, []), ""));
        g.inputs.extend(captures);
        for (i, v) in g.inputs.iter().enumerate() {
            g.values[*v].def = Def::Input(u32::try_from(i).unwrap_or(u32::MAX));
        }
        for ((&element, &v), &(_, axis)) in elements.iter().zip(&whole).zip(sequences) {
            let made = x.op("Gather", &[v, iter], &[("axis", Attr::Int(int(axis)))]);
            x.replace_result(made, element);
        }
        x.module_mut().graphs[body].order.extend(order);
        if let Some(length) = end {
            let running = x.op("Less", &[iter, length], &[]);
            for k in 0..n_results {
                let out = x.graph(body).outputs[k];
                let other = match states.get(k) {
                    Some(&state) => state,
                    None => zero_like(x, out)?,
                };
                let kept = x.op("Where", &[running, out, other], &[]);
                x.module_mut().graphs[body].outputs[k] = kept;
            }
        }
        x.module_mut().graphs[body].outputs.insert(0, go_on);
        Ok::<_, Diagnostic>(())
    })?;
    let all: Vec<Value> = sequences.iter().map(|s| s.0).chain(length).chain(captured.iter().copied()).collect();
    Ok(x.add_loop(body, (Some(trips), None), initial, &all, n_results))
}

/// A zero of a value's element type.
fn zero_like(x: &mut Expansion, v: Value) -> Result<Value> {
    let (dtype, _) = x.tensor(v)?;
    Ok(match dtype {
        d if d.is_float() => x.scalar(d, 0.0),
        d => x.constant(&Tensor::from_i64_as(d, &[], &[0])),
    })
}

#[cfg(test)]
mod tests {
    use crate::graph::Module;
    use crate::op::Registry;
    use crate::text::{parse_onnx, print_onnx};
    use crate::{Onnx, infer, interp};
    use tensor::Tensor;

    /// Runs a model as it is and as Loops; both give `expected`, the elements of all results in turn.
    fn check(text: &str, inputs: &[Tensor], expected: &[f64]) {
        let mut m: Module<Onnx> = parse_onnx(text, &Registry::builtin()).unwrap();
        infer::infer(&mut m).unwrap();
        let run = |m: &Module<Onnx>| -> Vec<f64> {
            let all = interp::run(m, inputs).unwrap_or_else(|e| panic!("{e}\n{}", print_onnx(m)));
            all.iter().flat_map(Tensor::to_f64_vec).collect()
        };
        let types = |m: &Module<Onnx>| {
            let g = m.graph();
            g.outputs.iter().map(|&v| g.values[v].ty.display(&m.dims)).collect::<Vec<_>>()
        };
        assert_eq!(run(&m), expected);
        let before = types(&m);
        assert!(crate::expand::expand(&mut m).unwrap());
        crate::verify::verify_onnx(&m).unwrap();
        assert_eq!(run(&m), expected, "{}", print_onnx(&m));
        assert_eq!(types(&m), before);
        let again = print_onnx(&m);
        assert!(!again.contains("Scan"), "{again}");
    }

    const SUM_BODY: &str = "region body(%v0 : f32[], %v1 : f32[]) {\n\
          %v2 = Add-7 %v0, %v1 : f32[]\n\
          return %v2, %v2\n\
        }\n";

    #[test]
    fn sums_along_a_sequence() {
        let text = |attrs: &str| {
            format!(
                "onnx module \"m\"\nopset \"\" 17\ndim n : input(1, 0)\n\
                 graph(%v0 \"s\" : f32[], %v1 \"x\" : f32[n]) {{\n\
                   %v2, %v3 = Scan-11 %v0, %v1 {{num_scan_inputs=1{attrs}}} : f32[], f32[n]\n{SUM_BODY}\
                   return %v2 \"last\", %v3 \"sums\"\n}}"
            )
        };
        let inputs = [Tensor::from_f32(&[], &[10.0]), Tensor::from_f32(&[3], &[1.0, 2.0, 4.0])];
        check(&text(""), &inputs, &[17.0, 11.0, 13.0, 17.0]);
        check(&text(", scan_input_directions=[1]"), &inputs, &[17.0, 14.0, 16.0, 17.0]);
        check(&text(", scan_output_directions=[1]"), &inputs, &[17.0, 17.0, 13.0, 11.0]);
        let none = [Tensor::from_f32(&[], &[10.0]), Tensor::from_f32(&[0], &[])];
        check(&text(""), &none, &[10.0]);
    }

    #[test]
    fn axes_of_sequences_and_of_what_is_given() {
        // Columns of x with rows of z: the products lie along the last axis, backwards.
        let text = "onnx module \"m\"\nopset \"\" 17\n\
            graph(%v0 \"x\" : f32[2, 3], %v1 \"z\" : f32[3, 2], %v2 \"c\" : f32[2]) {\n\
              %v3, %v4 = Scan-11 %v0, %v1 captures [%v2] \
                {num_scan_inputs=2, scan_input_axes=[-1, 0], scan_output_axes=[-1, 0], scan_output_directions=[1, 0]} \
                : f32[2, 3], f32[3, 2]\n\
              region body(%v0 : f32[2], %v1 : f32[2], %v2 : f32[2]) {\n\
                %v3 = Mul-7 %v0, %v1 : f32[2]\n\
                %v4 = Add-7 %v0, %v2 : f32[2]\n\
                return %v3, %v4\n\
              }\n\
              return %v3 \"p\", %v4 \"q\"\n}";
        let inputs = [
            Tensor::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Tensor::from_f32(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Tensor::from_f32(&[2], &[100.0, 200.0]),
        ];
        let expected = [15.0, 6.0, 1.0, 36.0, 20.0, 8.0, 101.0, 204.0, 102.0, 205.0, 103.0, 206.0];
        check(text, &inputs, &expected);
    }

    #[test]
    fn samples_of_a_batch_are_scanned_by_themselves() {
        let text = |lengths: &str, attrs: &str| {
            format!(
                "onnx module \"m\"\nopset \"\" 8\ndim b : input(0, 0)\ndim n : input(1, 1)\n\
                 graph(%v0 \"s\" : f32[b], %v1 \"x\" : f32[b, n], %v2 \"l\" : i64[b]) {{\n\
                   %v3, %v4 = Scan-8 {lengths}, %v0, %v1 {{num_scan_inputs=1{attrs}}} : f32[b], f32[b, n]\n{SUM_BODY}\
                   return %v3 \"last\", %v4 \"sums\"\n}}"
            )
        };
        let inputs = [
            Tensor::from_f32(&[2], &[10.0, 20.0]),
            Tensor::from_f32(&[2, 3], &[1.0, 2.0, 4.0, 1.0, 3.0, 5.0]),
            Tensor::from_i64(&[2], &[2, 3]),
        ];
        check(&text("_", ""), &inputs, &[17.0, 29.0, 11.0, 13.0, 17.0, 21.0, 24.0, 29.0]);
        check(&text("%v2", ""), &inputs, &[13.0, 29.0, 11.0, 13.0, 0.0, 21.0, 24.0, 29.0]);
        check(&text("%v2", ", directions=[1]"), &inputs, &[13.0, 29.0, 12.0, 13.0, 0.0, 25.0, 28.0, 29.0]);
    }

    #[test]
    fn a_scan_in_the_body_of_a_scan() {
        let text = "onnx module \"m\"\nopset \"\" 17\n\
            graph(%v0 \"s\" : f32[], %v1 \"x\" : f32[2, 3]) {\n\
              %v2, %v3 = Scan-11 %v0, %v1 {num_scan_inputs=1} : f32[], f32[2, 3]\n\
              region body(%v0 : f32[], %v1 : f32[3]) {\n\
                %v2, %v3 = Scan-11 %v0, %v1 {num_scan_inputs=1} : f32[], f32[3]\n\
                region body(%v0 : f32[], %v1 : f32[]) {\n\
                  %v2 = Add-7 %v0, %v1 : f32[]\n\
                  return %v2, %v2\n\
                }\n\
                return %v2, %v3\n\
              }\n\
              return %v2 \"last\", %v3 \"sums\"\n}";
        let inputs = [Tensor::from_f32(&[], &[0.0]), Tensor::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])];
        check(text, &inputs, &[21.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0]);
    }
}
