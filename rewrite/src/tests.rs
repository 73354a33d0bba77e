//! Tests of the whole way of a graph, over the rows of [`crate::testing`].

use crate::testing::{infer, registry};
use crate::{Options, Report};
use ir::attrs::Attr;
use ir::generate::{Builder, decoder};
use ir::{Module, Onnx};
use std::collections::BTreeMap;
use tensor::DType;

/// Operators of the main graph, by name.
fn ops(m: &Module<Onnx>) -> BTreeMap<String, usize> {
    let mut out = BTreeMap::new();
    for &n in &m.graph().order {
        *out.entry(m.registry[m.graph().nodes[n].op].full_name()).or_default() += 1;
    }
    out
}

fn run(m: &mut Module<Onnx>, options: &Options) -> Report {
    infer(m);
    let (inputs, outputs) = (m.graph().inputs.len(), m.graph().outputs.len());
    let names: Vec<_> = m.graph().outputs.iter().map(|&v| m.graph().values[v].name.clone()).collect();
    let types: Vec<_> = m.graph().outputs.iter().map(|&v| m.graph().values[v].ty.clone()).collect();
    let r = crate::options::rewrite_with(m, options, |_| Ok(|_, _| None)).unwrap();
    assert_eq!(r.conflicts, Vec::<String>::new());
    let g = m.graph();
    assert_eq!((g.inputs.len(), g.outputs.len()), (inputs, outputs));
    assert_eq!(names, g.outputs.iter().map(|&v| g.values[v].name.clone()).collect::<Vec<_>>());
    assert_eq!(types, g.outputs.iter().map(|&v| g.values[v].ty.clone()).collect::<Vec<_>>());
    let mut defined: std::collections::HashSet<_> = g.inputs.iter().copied().collect();
    for &n in &g.order {
        for v in g.nodes[n].ins.iter().flatten() {
            assert!(defined.contains(v) || g.as_const(*v).is_some(), "{v} is used before it is defined");
        }
        defined.extend(&g.nodes[n].outs);
        assert!(g.nodes[n].outs.iter().all(|&v| g.values[v].ty.shape().is_some()), "untyped result");
    }
    r
}

/// Builds a graph over `x: f32[b, 8]`, rewrites it, gives the operators as text.
fn check(build: impl Fn(&mut Builder, ir::Value) -> Vec<ir::Value>, expected: &str) -> Module<Onnx> {
    let mut b = Builder::new(registry());
    let x = b.input("x", DType::F32, &["b", "8"]);
    for v in build(&mut b, x) {
        b.output(v);
    }
    let mut m = b.module;
    run(&mut m, &Options::default());
    let text: Vec<String> = ops(&m).iter().map(|(k, n)| if *n == 1 { k.clone() } else { format!("{k}*{n}") }).collect();
    assert_eq!(text.join(" "), expected);
    m
}

#[test]
fn an_idiom_becomes_one_node_with_the_origins_of_all() {
    let m = check(
        |b, x| {
            let e = b.node("Exp", &[], &[x]);
            let s = b.node("Sigmoid", &[], &[e]);
            vec![b.node("Mul", &[], &[s, e])]
        },
        "Exp hip:Silu",
    );
    let g = m.graph();
    let last = &g.nodes[*g.order.last().unwrap()];
    assert_eq!(last.origin.to_string(), "/Sigmoid_2 + /Mul_3");
}

#[test]
fn results_keep_their_names_when_values_merge() {
    // One value as two outputs with two names; an input passed through.
    check(
        |b, x| {
            let (p, q) = (b.node("Exp", &[], &[x]), b.node("Exp", &[], &[x]));
            let i = b.node("Identity", &[], &[x]);
            vec![p, q, i]
        },
        "Exp Identity*2",
    );
}

#[test]
fn work_used_twice_is_not_done_twice() {
    // The product is needed by itself: no epilogue takes it over.
    check(
        |b, x| {
            let w = b.weight(&[8, 8]);
            let p = b.node("MatMul", &[], &[x, w]);
            vec![b.node("Relu", &[], &[p]), b.node("Exp", &[], &[p])]
        },
        "Exp MatMul Relu",
    );
    check(
        |b, x| {
            let (w, c) = (b.weight(&[8, 8]), b.weight(&[8]));
            let p = b.node("MatMul", &[], &[x, w]);
            let p = b.node("Add", &[], &[c, p]);
            let p = b.node("Add", &[], &[x, p]);
            vec![b.node("Relu", &[], &[p])]
        },
        "hip:FusedMatMul",
    );
}

#[test]
fn random_nodes_and_several_results_stay_apart() {
    check(
        |b, x| {
            let (p, q) = (b.node("Noise", &[], &[x]), b.node("Noise", &[], &[x]));
            let h = b.node_opt("Halves", &[], &[Some(x)], 2);
            let s = b.node("Add", &[], &[h[1], h[0]]);
            let p = b.node("Sub", &[], &[p, q]);
            vec![s, p]
        },
        "Add Halves Noise*2 Sub",
    );
}

#[test]
fn products_of_integers_are_not_fused() {
    check(
        |b, _| {
            let i = b.input("i", DType::I32, &["b", "8"]);
            let t = b.node("Transpose", &[("perm", Attr::Ints([1, 0].as_slice().into()))], &[i]);
            vec![b.node("MatMul", &[], &[i, t])]
        },
        "MatMul Transpose",
    );
}

#[test]
fn transposes_meet_and_vanish_around_elementwise_work() {
    check(
        |b, x| {
            let t = b.node("Transpose", &[("perm", Attr::Ints([1, 0].as_slice().into()))], &[x]);
            let t = b.node("Exp", &[], &[t]);
            let c = b.splat(&[8, 1], 1.25);
            let t = b.node("Mul", &[], &[t, c]);
            vec![b.node("Transpose", &[("perm", Attr::Ints([1, 0].as_slice().into()))], &[t])]
        },
        "Exp Mul",
    );
}

#[test]
fn rules_can_be_switched_off_and_unknown_ones_are_named() {
    let build = || {
        let mut b = Builder::new(registry());
        let x = b.input("x", DType::F32, &["b", "8"]);
        let s = b.node("Sigmoid", &[], &[x]);
        let y = b.node("Mul", &[], &[x, s]);
        b.output(y);
        b.module
    };
    let mut m = build();
    run(&mut m, &Options { disabled: vec!["silu".into()], ..Options::default() });
    assert_eq!(ops(&m).len(), 2);
    let mut m = build();
    run(&mut m, &Options { rewrites: crate::rule::NumClass::Exact, ..Options::default() });
    assert_eq!(ops(&m).len(), 2);
    let e = crate::rewrite(&mut build(), &Options { disabled: vec!["silo".into()], ..Options::default() }).unwrap_err();
    assert!(e.to_string().contains("no rewrite rule \"silo\"") && e.to_string().contains("silu"), "{e}");
}

#[test]
fn every_idiom_of_a_deep_decoder_is_found_with_work_linear_in_depth() {
    for layers in [40, 400] {
        let mut m = decoder(registry(), layers);
        let n = m.graph().order.len();
        let r = run(&mut m, &Options::default());
        let ops = ops(&m);
        // Work is counted, not timed: e-nodes in proportion to nodes, the same few rounds at any depth.
        assert!(r.n_enodes < 3 * n && r.rounds <= 6, "{n} nodes\n{r}{ops:?}");
        assert_eq!(ops["hip:Attention"], layers, "{r}");
        assert_eq!(ops["LayerNormalization"] + ops["RMSNormalization"], 2 * layers + 1, "{r}");
        assert!(!ops.contains_key("Softmax") && !ops.contains_key("Erf") && !ops.contains_key("Tanh"), "{ops:?}");
    }
}

#[test]
fn near_misses_name_the_node_and_the_condition() {
    let mut b = Builder::new(registry());
    let x = b.input("x", DType::F32, &["b", "8"]);
    let c = b.scalar(1.5);
    let d = b.node("Div", &[], &[x, c]);
    let e = b.node("Erf", &[], &[d]);
    let one = b.scalar(1.0);
    let e = b.node("Add", &[], &[e, one]);
    let y = b.node("Mul", &[], &[x, e]);
    let half = b.scalar(0.5);
    let y = b.node("Mul", &[], &[y, half]);
    b.output(y);
    let mut m = b.module;
    let r = run(&mut m, &Options::default());
    let text: Vec<String> = r.misses.iter().map(|m| format!("{} at {}: {}", m.rule, m.node, m.why)).collect();
    assert_eq!(text, ["gelu-erf at /Mul_5: a constant is 1.5, not 1.4142135623730951"]);
    assert!(r.to_string().contains("near miss  gelu-erf at /Mul_5"));
}

#[test]
fn limits_stop_and_are_reported() {
    let mut m = decoder(registry(), 4);
    let r = run(&mut m, &Options { rounds: 1, ..Options::default() });
    assert_eq!(r.stops.keys().copied().collect::<Vec<_>>(), [crate::report::Stop::Rounds]);
    // Small cuts lose nothing here: few values cross between layers.
    let mut m = decoder(registry(), 12);
    let r = run(&mut m, &Options { cut_nodes: 128, ..Options::default() });
    assert!(r.stops[&crate::report::Stop::Saturated] > 4, "{r}");
    assert_eq!(ops(&m)["hip:Attention"], 12);
}

#[test]
fn the_same_module_gives_the_same_module() {
    let make = || {
        let mut m = decoder(registry(), 3);
        run(&mut m, &Options::default());
        format!("{:?} {:?}", m.graph(), m.consts)
    };
    assert_eq!(make(), make());
}

/// A random graph over `x, y: f32[n, n]` with idioms, identities and fan-out.
fn random_graph(seed: &[u16], n: usize) -> Module<Onnx> {
    let mut b = Builder::new(ir::Registry::builtin());
    let d = n.to_string();
    let mut vs = vec![b.input("x", DType::F32, &[&d, &d]), b.input("y", DType::F32, &[&d, &d])];
    for &s in seed {
        let (op, i) = (s % 24, usize::from(s / 24));
        let (v, w) = (vs[i % vs.len()], vs[i / vs.len() % vs.len()]);
        let c = |b: &mut Builder, x: f32| b.scalar(x);
        let swap = [("perm", Attr::Ints([1, 0].as_slice().into()))];
        let r = match op {
            0 => b.node("Relu", &[], &[v]),
            1 => {
                let s = b.node("Sigmoid", &[], &[v]);
                b.node("Mul", &[], &[s, v])
            }
            2 => b.node("Tanh", &[], &[v]),
            3 => b.node("Neg", &[], &[v]),
            4 => b.node("Add", &[], &[v, w]),
            5 => b.node("Sub", &[], &[v, w]),
            6 => b.node("Max", &[], &[v, w]),
            7 => b.node("Sum", &[], &[v, w]),
            8 => {
                let k = c(&mut b, 0.5);
                b.node("Mul", &[], &[k, v])
            }
            9 => {
                let k = c(&mut b, 3.0);
                b.node("Div", &[], &[v, k])
            }
            10 => {
                let k = c(&mut b, 0.0);
                b.node("Add", &[], &[v, k])
            }
            11 => {
                let k = c(&mut b, 1.0);
                b.node("Mul", &[], &[v, k])
            }
            12 => {
                let h = b.node("Tanh", &[], &[v]);
                let k = c(&mut b, 2.0);
                b.node("Pow", &[], &[h, k])
            }
            13 | 14 => b.node("Transpose", &swap, &[v]),
            15 => {
                let (flat, back) = (b.ints(&[-1]), b.ints(&[n as i64, n as i64]));
                let f = b.node("Reshape", &[], &[v, flat]);
                let f = b.node("Relu", &[], &[f]);
                b.node("Reshape", &[], &[f, back])
            }
            16 => {
                let a = b.ints(&[1]);
                let u = b.node("Unsqueeze", &[], &[v, a]);
                b.node("Squeeze", &[], &[u, a])
            }
            17 => b.node("Identity", &[], &[v]),
            18 => {
                let f = b.node("Cast", &[("to", Attr::Int(11))], &[v]);
                b.node("Cast", &[("to", Attr::Int(1))], &[f])
            }
            19 => {
                let (z, e, a) = (b.ints(&[0]), b.ints(&[1]), b.ints(&[1]));
                let s = b.node("Slice", &[], &[v, z, e, a]);
                b.node("Add", &[], &[s, w])
            }
            20 => {
                let k = c(&mut b, std::f32::consts::SQRT_2);
                let d = b.node("Div", &[], &[v, k]);
                let e = b.node("Erf", &[], &[d]);
                let one = c(&mut b, 1.0);
                let e = b.node("Add", &[], &[one, e]);
                let half = c(&mut b, 0.5);
                let h = b.node("Mul", &[], &[v, half]);
                b.node("Mul", &[], &[h, e])
            }
            21 => b.node("Softmax", &[("axis", Attr::Int(-1))], &[v]),
            22 => {
                let t = b.node("Tanh", &[], &[w]);
                b.node("MatMul", &[], &[v, t])
            }
            _ => {
                let s = b.node("Shape", &[], &[w]);
                let k = c(&mut b, 0.25);
                let e = b.node("Expand", &[], &[k, s]);
                b.node("Mul", &[], &[e, v])
            }
        };
        vs.push(r);
    }
    for &s in seed.iter().take(2) {
        let v = vs[vs.len() - 1 - usize::from(s) % vs.len().min(3)];
        b.output(v);
    }
    b.module
}

#[test]
fn random_graphs_mean_the_same_after_rewriting() {
    use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let input = (proptest::collection::vec(proptest::num::u16::ANY, 1..30), 1usize..5);
    let result = runner.run(&input, |(seed, n)| {
        let mut left = random_graph(&seed, n);
        let mut right = left.clone();
        ir::infer::infer(&mut left).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let report = crate::rewrite(&mut right, &Options::default()).map_err(|e| TestCaseError::fail(e.to_string()))?;
        if !report.conflicts.is_empty() {
            return Err(TestCaseError::fail(report.to_string()));
        }
        let data: Vec<f32> = (0..n * n).map(|i| ((i * 7919 + seed.len() * 13) % 17) as f32 / 8.0 - 1.0).collect();
        let other: Vec<f32> = data.iter().map(|v| 0.3 - v * v).collect();
        let ins = [tensor::Tensor::from_f32(&[n, n], &data), tensor::Tensor::from_f32(&[n, n], &other)];
        let run = |m: &Module<Onnx>| ir::interp::run(m, &ins).map_err(|e| TestCaseError::fail(e.to_string()));
        for (a, b) in run(&left)?.iter().zip(&run(&right)?) {
            let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
            let scale = a.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
            if a.len() != b.len() || a.iter().zip(&b).any(|(x, y)| (x - y).abs() > 1e-4 * scale) {
                return Err(TestCaseError::fail(format!("{a:?}\n{b:?}\n{report}")));
            }
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn the_checker_of_extractions_notices_what_is_wrong() {
    use crate::extract::{check, extract};
    use crate::facts::{Facts, Graph};
    use crate::lang::{ENode, Head};
    let r = registry();
    let mut eg = Graph::new(Facts::new(r.clone(), Default::default(), Default::default(), Default::default()));
    let op = |eg: &mut Graph, name: &str, kids: &[egg::Id]| {
        let row = r.newest("", name);
        let attrs = eg.analysis.attrs.intern(r[row].attrs_with(&[]));
        eg.add(ENode { head: Head::Op { op: row, attrs, n_outs: 1, unique: 0 }, kids: kids.into() })
    };
    let x = eg.add(ENode::leaf(Head::Leaf(0)));
    let (e, n) = (op(&mut eg, "Exp", &[x]), op(&mut eg, "Neg", &[x]));
    let s = op(&mut eg, "Add", &[e, n]);
    eg.rebuild();
    let price = |_: egg::Id, n: &ENode| if n.kids.is_empty() { 0 } else { 10 };
    let good = extract(&eg, &[s], &price, &|_, _| true, &|_| 1);
    assert_eq!((check(&eg, &[s], &good, &price), good.cost), (Ok(()), 30));
    let wrong = |f: &dyn Fn(&mut crate::extract::Extraction)| {
        let mut x = good.clone();
        f(&mut x);
        check(&eg, &[s], &x, &price).unwrap_err()
    };
    assert!(wrong(&|x| x.cost += 1).contains("the cost is 30, not 31"));
    assert!(wrong(&|x| x.order.reverse()).contains("does not come before"));
    assert!(wrong(&|x| x.order.truncate(3)).contains("not extracted"));
    let other = eg[e].nodes[0].clone();
    assert!(wrong(&|x| drop(x.choice.insert(n, other.clone()))).contains("not in class"));
}

#[test]
fn attention_that_no_kernel_computes_stays_as_it_is() {
    for (dtype, expected) in [(DType::F32, "hip:Attention"), (DType::BF16, "MatMul*2 Softmax")] {
        let mut b = Builder::new(registry());
        let mut input = |name, shape: [&str; 4]| b.input(name, dtype, &shape);
        let (q, k, v) =
            (input("q", ["b", "2", "s", "4"]), input("k", ["b", "2", "4", "t"]), input("v", ["b", "2", "t", "4"]));
        let z = b.node("MatMul", &[], &[q, k]);
        let z = b.node("Softmax", &[("axis", Attr::Int(-1))], &[z]);
        let y = b.node("MatMul", &[], &[z, v]);
        b.output(y);
        let mut m = b.module;
        run(&mut m, &Options::default());
        let text: Vec<String> =
            ops(&m).iter().map(|(k, n)| if *n == 1 { k.clone() } else { format!("{k}*{n}") }).collect();
        assert_eq!(text.join(" "), expected, "{dtype}");
    }
}
