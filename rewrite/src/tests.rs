//! Tests of the whole way of a graph, over the rows of [`crate::testing`].

use crate::bench::{Builder, decoder};
use crate::testing::{infer, registry};
use crate::{Options, Report};
use ir::attrs::Attr;
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
fn transposes_meet_and_vanish_around_elementwise_work() {
    check(
        |b, x| {
            let t = b.node("Transpose", &[("perm", Attr::Ints([1, 0].as_slice().into()))], &[x]);
            let t = b.node("Exp", &[], &[t]);
            let c = b.weight(&[8, 1]);
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
fn every_idiom_of_a_deep_decoder_is_found_in_linear_time() {
    let mut per_node = vec![];
    for layers in [40, 400] {
        let mut m = decoder(registry(), layers);
        let n = m.graph().order.len();
        let t = std::time::Instant::now();
        let r = run(&mut m, &Options::default());
        per_node.push(t.elapsed().as_secs_f64() / n as f64);
        let ops = ops(&m);
        eprintln!("{n} nodes\n{r}{ops:?}");
        assert_eq!(ops["hip:Attention"], layers, "{r}");
        assert_eq!(ops["LayerNormalization"] + ops["RMSNormalization"], 2 * layers + 1, "{r}");
        assert!(!ops.contains_key("Softmax") && !ops.contains_key("Erf") && !ops.contains_key("Tanh"), "{ops:?}");
    }
    assert!(per_node[1] < 4.0 * per_node[0], "time per node grew: {per_node:?}");
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
