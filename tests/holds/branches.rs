//! If and Loop: what depends on which branch is taken, and what iterations leave as it was.

use super::kit::*;
use hip_ep::{DType, Tensor};

fn number(v: i64) -> Tensor {
    Tensor::from_i64(&[], &[v])
}

fn branches(then: G, other: G) -> Vec<hip_ep::tensor::onnx_pb::AttributeProto> {
    vec![body("then_branch", then), body("else_branch", other)]
}

/// What one branch demands of the extents is not asked of runs that take the other.
#[test]
fn what_a_branch_demands_holds_where_it_is_taken() {
    let sum = || graph().node("Add", &["x", "y"], &["s"]).output("s");
    let negated = || graph().node("Neg", &["x"], &["n"]).output("n");
    let g = |compare: &str, swapped: bool| {
        let both = if swapped { branches(negated(), sum()) } else { branches(sum(), negated()) };
        graph()
            .input("x", DType::F32, &["n"])
            .input("y", DType::F32, &["m"])
            .input("rate", DType::I64, &[])
            .weight("fast", &number(16_000))
            .node(compare, &["rate", "fast"], &["c"])
            .node_with("If", &["c"], &["z"], both)
            .output("z")
    };
    let case = |n: usize, m: usize, rate: i64| vec![random(1, &[n]), random(2, &[m]), number(rate)];
    for (compare, takes, leaves) in
        [("Equal", 16_000, 8_000), ("Less", 1, 16_000), ("GreaterOrEqual", i64::MAX, i64::MIN)]
    {
        check(&g(compare, false), &[case(5, 5, takes), case(5, 5, leaves), case(5, 7, leaves), case(3, 1, leaves)]);
        refuses(&g(compare, false), &case(5, 7, takes), "broadcast along axis 0");
        check(&g(compare, true), &[case(5, 5, leaves), case(5, 7, takes)]);
        refuses(&g(compare, true), &case(5, 7, leaves), "broadcast along axis 0");
    }
}

/// A branch that is wrong whatever the input must not be taken; where it is not, the model runs.
#[test]
fn a_branch_that_is_wrong_is_never_taken() {
    let squeezed = graph().ints("last", &[-1]).node("Squeeze", &["x", "last"], &["s"]).output("s");
    // A matrix of rank 3 is no matrix for Gemm.
    let same = graph().node("Identity", &["x"], &["i"]).output("i");
    let g = graph()
        .input("x", DType::F32, &["b", "4", "frames"])
        .weight("w", &random(3, &[4, 2]))
        .node("Shape", &["x"], &["shape"])
        .weight("two", &number(2))
        .weight("one", &number(1))
        .node("Gather", &["shape", "two"], &["frames"])
        .node("Equal", &["frames", "one"], &["single"])
        .node_with("If", &["single"], &["r"], branches(squeezed, same))
        .node("Gemm", &["r", "w"], &["y"])
        .output("y");
    check(&g, &[vec![random(1, &[3, 4, 1])], vec![random(1, &[1, 4, 1])], vec![random(1, &[0, 4, 1])]]);
    refuses(&g, &[random(1, &[3, 4, 2])], "the else branch must not be taken");
}

/// Results of different ranks: what follows is computed for each.
#[test]
fn branches_may_give_different_ranks() {
    let flat =
        graph().ints("all", &[-1]).node("Reshape", &["x", "all"], &["f"]).node("Exp", &["x"], &["e"]).output("f");
    let same = graph().node("Abs", &["x"], &["a"]).node("Neg", &["x"], &["e"]).output("a");
    let g = graph()
        .input("x", DType::F32, &["n", "m"])
        .input("c", DType::Bool, &[])
        .node_with("If", &["c"], &["r", "e"], branches(flat.output("e"), same.output("e")))
        // Between the two uses of what the branches give.
        .node("Tanh", &["e"], &["t"])
        .node("Sigmoid", &["t"], &["t2"])
        .node("Neg", &["r"], &["q"])
        .ints("pair", &[-1, 1])
        .node("Reshape", &["q", "pair"], &["column"])
        .node("ReduceMean", &["q"], &["mean"])
        .node("Add", &["mean", "t2"], &["z"])
        .output("column")
        .output("z")
        .output("t");
    let case = |n: usize, m: usize, c: bool| vec![random(1, &[n, m]), Tensor::from_bool(&[], &[c])];
    check(&g, &[case(3, 4, true), case(3, 4, false), case(1, 1, true), case(0, 5, false)]);
}

/// Squeeze without axes drops what is always 1; an extent that might be must not.
#[test]
fn extents_that_may_be_one_are_not_squeezed() {
    let g = graph()
        .input("x", DType::F32, &["1", "n", "1", "3"])
        .node("Squeeze", &["x"], &["s"])
        .node("Neg", &["s"], &["y"])
        .output("y");
    check(&g, &[vec![random(1, &[1, 4, 1, 3])], vec![random(1, &[1, 0, 1, 3])]]);
    refuses(&g, &[random(1, &[1, 1, 1, 3])], "without axes, axis 1 must not have extent 1");
}

/// An extent that a loop's body gives back as it got it is the first one, also of what the iterations give.
#[test]
fn loops_leave_extents_as_they_were() {
    let step = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("v", DType::F32, &[])
        .node("Identity", &["go"], &["on"])
        .node("Add", &["v", "x"], &["sum"])
        .node("Identity", &["sum"], &["kept"])
        .output("on")
        .output("sum")
        .output("kept");
    let g = graph()
        .input("trips", DType::I64, &[])
        .input("first", DType::F32, &["1"])
        .input("x", DType::F32, &["n"])
        .node_with("Loop", &["trips", "", "first"], &["last", "all"], vec![body("body", step)])
        .output("last")
        .output("all");
    let case = |trips: i64, n: usize| vec![number(trips), random(1, &[1]), random(2, &[n])];
    check(&g, &[case(3, 1), case(1, 1), case(0, 1)]);
    refuses(&g, &case(2, 4), "broadcast along axis 0");
}

/// What a loop's body demands is not asked of runs in which it never runs.
#[test]
fn what_a_body_demands_holds_where_it_runs() {
    let step = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("v", DType::F32, &[])
        .node("Identity", &["go"], &["on"])
        .node("Add", &["v", "x"], &["sum"])
        .output("on")
        .output("sum");
    let g = graph()
        .input("first", DType::F32, &["m"])
        .input("x", DType::F32, &["n"])
        .input("trips", DType::I64, &[])
        .node_with("Loop", &["trips", "", "first"], &["last"], vec![body("body", step)])
        .node("Det", &["square"], &["d"])
        .input("square", DType::F32, &["k", "k"])
        .output("last")
        .output("d");
    let case = |m: usize, n: usize, trips: i64, k: usize| {
        vec![random(1, &[m]), random(2, &[n]), number(trips), random(3, &[k, k])]
    };
    check(&g, &[case(3, 3, 2, 2), case(3, 4, 0, 3), case(2, 5, -1, 0)]);
    refuses(&g, &case(3, 4, 1, 2), "broadcast along axis 0");
}

/// Nodes that nothing uses ask nothing of a run, wherever they stand and whatever they would be.
#[test]
fn what_nothing_uses_is_not_there() {
    let small = |g: G| {
        g.node("Reshape", &["i", "one"], &["steps"])
            .node_with("Concat", &["zero", "steps"], &["pads"], vec![int("axis", 0)])
            .node_with("Pad", &["x", "pads"], &["padded"], vec![text("mode", "reflect")])
            .node("Relu", &["padded"], &["unused"])
    };
    let same = || graph().node("Identity", &["x"], &["y"]).output("y");
    let other = || graph().node("Neg", &["x"], &["y"]).output("y");
    for (outer, inner) in [(true, false), (false, true)] {
        let step = graph().input("i", DType::I64, &[]).input("go", DType::Bool, &[]).input("c", DType::F32, &["n"]);
        let step = if outer { small(step) } else { step };
        let then = if inner { small(graph()).node("Identity", &["x"], &["y"]).output("y") } else { same() };
        let step = step
            .node("Identity", &["go"], &["again"])
            .node_with("If", &["b"], &["r"], branches(then, other()))
            .node("Add", &["c", "r"], &["next"])
            .output("again")
            .output("next");
        let g = graph()
            .input("x", DType::F32, &["n"])
            .input("w", DType::F32, &["k"])
            .input("b", DType::Bool, &[])
            .input("trips", DType::I64, &[])
            .ints("one", &[1])
            .ints("zero", &[0])
            .node_with("Loop", &["trips", "", "x"], &["last"], vec![body("body", step)])
            .node("Add", &["x", "w"], &["nothing"])
            .node("Relu", &["last"], &["z"])
            .output("z");
        let case = |n: usize, k: usize, b: bool, trips: i64| {
            vec![random(1, &[n]), random(2, &[k]), Tensor::from_bool(&[], &[b]), number(trips)]
        };
        check(&g, &[case(2, 5, true, 4), case(3, 2, false, 5), case(1, 1, true, 0)]);
    }
}

/// A loop over `trips` whose body carries `start` on by `next`, of the iteration `i`, the carried `c` and the input `k`, and gives `each`.
fn counting(start: &Tensor, next: impl Fn(G) -> G) -> G {
    let step = graph().input("i", DType::I64, &[]).input("go", DType::Bool, &[]).input("c", DType::I64, &[]);
    let step = next(step).node("Identity", &["go"], &["on"]).output("on").output("n").output("each");
    graph()
        .input("trips", DType::I64, &[])
        .input("k", DType::I64, &["1"])
        .weight("start", start)
        .weight("one", &Tensor::from_i64(&[1], &[1]))
        .node_with("Loop", &["trips", "", "start"], &["last", "all"], vec![body("body", step)])
        .output("last")
        .output("all")
}

/// Integers that a loop carries are not what they were in its first iteration, also where they become extents.
#[test]
fn what_a_loop_carries_changes() {
    let cases = || [(3, 2), (1, 5), (0, 4), (4, 1)].map(|(trips, k)| vec![number(trips), Tensor::from_i64(&[1], &[k])]);
    let zero = Tensor::from_i64(&[1], &[0]);
    let sized = |g: G| g.node("ConstantOfShape", &["n"], &["filled"]).node("Size", &["filled"], &["each"]);
    check(&counting(&zero, |g| sized(g.node("Add", &["c", "k"], &["n"]))), &cases());
    check(&counting(&zero, |g| sized(g.node("Add", &["c", "i"], &["n"]))), &cases());
    let one = Tensor::from_i64(&[1], &[1]);
    check(&counting(&one, |g| sized(g.node("Mul", &["c", "k"], &["n"]))), &cases());
    // Lists that are empty at first.
    let summed = |g: G| g.node("ReduceSum", &["n"], &["sum"]).node("Abs", &["sum"], &["each"]);
    let none = Tensor::from_i64(&[0], &[]);
    check(&counting(&none, |g| summed(g.node_with("Concat", &["c", "k"], &["n"], vec![int("axis", 0)]))), &cases());
    let ranged = |g: G| {
        let g = g.node("Add", &["c", "k"], &["n"]).node("ConstantOfShape", &["c"], &["filled"]);
        g.node("Cast", &["filled"], &["whole"]).node("Add", &["whole", "one"], &["ones"])
    };
    let cast = |mut g: G| {
        let at = g.0.node.iter().position(|n| n.op_type == "Cast").unwrap();
        g.0.node[at].attribute.push(int("to", i64::from(DType::I64.onnx())));
        g.node("ReduceSum", &["ones"], &["each"])
    };
    check(&counting(&zero, |g| cast(ranged(g))), &cases());
}

/// What only the extents of a result say is asked of the node that gives it; a result that nobody uses may be of any rank.
#[test]
fn results_of_branches_are_used_in_part() {
    let turned = graph().node("Transpose", &["x"], &["t"]).ints("flat", &[-1]).node("Reshape", &["x", "flat"], &["f"]);
    let same = graph().node("Neg", &["x"], &["t"]).node("Abs", &["x"], &["f"]);
    let g = |used: &str| {
        graph()
            .input("x", DType::F32, &["n", "m"])
            .input("c", DType::Bool, &[])
            .node_with(
                "If",
                &["c"],
                &["r", "q"],
                branches(turned.clone().output("t").output("f"), same.clone().output("t").output("f")),
            )
            .node(used, &["r"], &["y"])
            .output("y")
    };
    let case = |c: bool| vec![random(1, &[2, 5]), Tensor::from_bool(&[], &[c])];
    check(&g("Shape"), &[case(true), case(false)]);
    check(&g("Exp"), &[case(true), case(false)]);
}

/// A comparison of two extents is known when a run begins.
#[test]
fn conditions_compare_extents() {
    let square = graph().node("MatMul", &["x", "x"], &["p"]).output("p");
    let same = graph().node("Neg", &["x"], &["p"]).output("p");
    let g = graph()
        .input("x", DType::F32, &["n", "m"])
        .node("Shape", &["x"], &["shape"])
        .weight("first", &number(0))
        .weight("second", &number(1))
        .node("Gather", &["shape", "first"], &["rows"])
        .node("Gather", &["shape", "second"], &["columns"])
        .node("Equal", &["rows", "columns"], &["c"])
        .node_with("If", &["c"], &["y"], branches(square, same))
        .output("y");
    check(&g, &[vec![random(1, &[3, 3])], vec![random(1, &[2, 5])], vec![random(1, &[0, 4])]]);
}

/// What a loop inside another one hands on is what it was given this time, and what it collected may be less than there is room for.
#[test]
fn loops_within_loops_see_what_is_carried() {
    let handed = graph()
        .input("j", DType::I64, &[])
        .input("on", DType::Bool, &[])
        .input("a", DType::I64, &[])
        .node("Identity", &["a"], &["same"])
        .output("on")
        .output("same");
    let step = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("c", DType::I64, &[])
        .node_with("Loop", &["two", "", "c"], &["r"], vec![body("body", handed)])
        .node("Add", &["r", "one"], &["n"])
        .node("Identity", &["go"], &["still"])
        .output("still")
        .output("n");
    let g = graph()
        .input("trips", DType::I64, &[])
        .weight("start", &number(0))
        .weight("one", &number(1))
        .weight("two", &number(2))
        .node_with("Loop", &["trips", "", "start"], &["y"], vec![body("body", step)])
        .output("y");
    check(&g, &[vec![number(3)], vec![number(0)], vec![number(1)]]);

    let collected = graph()
        .input("j", DType::I64, &[])
        .input("on", DType::Bool, &[])
        .node("Identity", &["seven"], &["each"])
        .node("Identity", &["on"], &["still"])
        .output("still")
        .output("each");
    let step = graph()
        .input("i", DType::I64, &[])
        .input("go", DType::Bool, &[])
        .input("h", DType::F32, &[])
        .input("q", DType::I64, &[])
        .node("Equal", &["i", "two"], &["third"])
        .node_with("Loop", &["i", "third"], &["list"], vec![body("body", collected)])
        .ints("widths", &[0, 0, 0, 1])
        .node("Pad", &["h", "widths"], &["wide"])
        .node("Identity", &["go"], &["still2"])
        .output("still2")
        .output("wide")
        .output("list");
    let g = graph()
        .input("trips", DType::I64, &[])
        .input("x", DType::F32, &["n", "m"])
        .weight("seven", &number(7))
        .weight("two", &number(2))
        .ints("first", &[1])
        .node_with("Loop", &["trips", "", "x", "first"], &["y", "z"], vec![body("body", step)])
        .output("y");
    let g2 = g.clone().output("z");
    let cases = || [1, 2, 3, 4, 0].map(|trips| vec![number(trips), random(5, &[2, 5])]);
    check(&g, &cases());
    check(&g2, &cases());
}
