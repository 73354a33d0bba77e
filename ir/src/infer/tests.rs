//! Shape values through exporters' chains, joins of bodies, declared outputs, linear time.

use super::{Info, infer};
use crate::attrs::Attr;
use crate::consts::Const;
use crate::graph::{Graph, Module, Onnx, Origin, RegionId, Rel, Value};
use crate::op::Registry;
use crate::ty::Type;
use tensor::dims::Origin as From;
use tensor::{DType, ErrorKind, Tensor};

struct Model(Module<Onnx>);

impl Model {
    fn new() -> Model {
        Model(Module::new(Registry::builtin()))
    }
    fn input(&mut self, dtype: DType, dims: &[&str]) -> Value {
        let index = u32::try_from(self.0.graph().inputs.len()).unwrap();
        let mut shape = vec![];
        for (axis, d) in (0..).zip(dims) {
            shape.push(match (d.parse(), self.0.dims.find_symbol(d)) {
                (Ok(k), _) => self.0.dims.constant(k),
                (_, Some(s)) => self.0.dims.sym_dim(s),
                _ => self.0.dims.symbol(d, From::Input { input: index, axis }),
            });
        }
        self.0.graph_mut().add_input(Type::tensor(dtype, shape), format!("x{index}"))
    }
    fn ints(&mut self, r: RegionId, shape: &[usize], v: &[i64]) -> Value {
        let t = Tensor::from_i64(shape, v);
        let dims: Vec<_> = shape.iter().map(|&d| self.0.dims.constant(d as i64)).collect();
        let c = self.0.consts.push(Const::from_tensor("", &t));
        self.0.graphs[r].add_const(c, Type::tensor(DType::I64, dims), "")
    }
    fn node(&mut self, r: RegionId, op: &str, ins: &[Value], attrs: &[(&str, Attr)]) -> Value {
        let id = self.0.registry.newest("", op);
        let attrs = self.0.attrs.intern(self.0.registry[id].attrs_with(attrs));
        let outs = [(Type::Unknown, format!("{op}_out").into())];
        let origin = Origin(format!("/{op}").into());
        let n = self.0.graphs[r].add_node(id, attrs, ins.iter().map(|&v| Some(v)), outs, [], origin);
        self.0.graphs[r].nodes[n].outs[0]
    }
    /// Infers twice: the second time changes nothing.
    fn infer(&mut self) -> Info {
        let info = infer(&mut self.0).unwrap();
        let types = |m: &Module<Onnx>| -> Vec<Type> {
            m.graphs.values().flat_map(|g| g.values.values().map(|v| v.ty.clone())).collect()
        };
        let (before, guards) = (types(&self.0), self.0.guards.len());
        infer(&mut self.0).unwrap();
        assert_eq!((before, guards), (types(&self.0), self.0.guards.len()));
        info
    }
    fn show(&self, v: Value) -> String {
        self.0.graph().values[v].ty.display(&self.0.dims)
    }
}

#[test]
fn an_exporters_reshape_chain_is_known_at_compile_time() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["b", "s", "768"]);
    let shape = m.node(main, "Shape", &[x], &[]);
    let (zero, one) = (m.ints(main, &[], &[0]), m.ints(main, &[], &[1]));
    let (b, s) = (m.node(main, "Gather", &[shape, zero], &[]), m.node(main, "Gather", &[shape, one], &[]));
    let axis = m.ints(main, &[1], &[0]);
    let (b, s) = (m.node(main, "Unsqueeze", &[b, axis], &[]), m.node(main, "Unsqueeze", &[s, axis], &[]));
    let rest = m.ints(main, &[2], &[12, -1]);
    let target = m.node(main, "Concat", &[b, s, rest], &[("axis", Attr::Int(0))]);
    let y = m.node(main, "Reshape", &[x, target], &[]);
    m.0.graph_mut().outputs = vec![y];
    let info = m.infer();
    assert_eq!(m.show(y), "f32[b, s, 12, 64]");
    assert_eq!(info.values(main, target).map(|v| v.len()), Some(4));
    assert!(info.unknown.is_empty() && m.0.guards.is_empty(), "{:?}", m.0.guards);
}

/// The bounds of a window's extent reach below 0; an extent it is all the same, never the -1 of what is left.
#[test]
fn a_reshape_to_the_extents_of_its_operand_changes_nothing() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["b", "4", "n"]);
    let window = [("kernel_shape", Attr::Ints([3].into())), ("strides", Attr::Ints([2].into()))];
    let pooled = m.node(main, "MaxPool", &[x], &window);
    let shape = m.node(main, "Shape", &[pooled], &[]);
    let y = m.node(main, "Reshape", &[pooled, shape], &[]);
    m.0.graph_mut().outputs = vec![y];
    m.infer();
    assert_eq!(m.show(y), m.show(pooled));
}

/// Bounds at the ends of i64 stand for the ends of the axis: no extent holds a number that its text could not say.
#[test]
fn slices_to_the_ends_of_i64_have_plain_extents() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["n"]);
    let mut check = |start: i64, end: i64, step: i64, want: &str| {
        let [start, end, axis, step] = [start, end, 0, step].map(|v| m.ints(main, &[1], &[v]));
        let y = m.node(main, "Slice", &[x, start, end, axis, step], &[]);
        m.0.graph_mut().outputs = vec![y];
        m.infer();
        assert_eq!(m.show(y), want);
        let text = crate::text::print_onnx(&m.0);
        let again = crate::text::parse_onnx(&text, &m.0.registry).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(crate::text::print_onnx(&again), text);
    };
    check(0, i64::MIN, 1, "f32[0]");
    check(i64::MIN, i64::MAX, 1, "f32[n]");
    check(i64::MIN + 1, i64::MAX, 1, "f32[n]");
    check(-1, i64::MIN, -1, "f32[n]");
    check(i64::MAX, i64::MIN, -1, "f32[n]");
    check(i64::MAX, i64::MAX, 1, "f32[0]");
}

#[test]
fn elements_that_only_the_run_knows_become_symbols_of_their_own() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["1", "4"]);
    let n = m.input(DType::I64, &["1"]);
    let four = m.ints(main, &[1], &[4]);
    let target = m.node(main, "Concat", &[n, four], &[("axis", Attr::Int(0))]);
    let y = m.node(main, "Expand", &[x, target], &[]);
    m.0.graph_mut().outputs = vec![y];
    let info = m.infer();
    // The symbol is the input's element; what the Concat adds stays a number.
    assert_eq!(m.show(y), "f32[x1_value0, 4]");
    let sym = info.values(main, n).and_then(|v| m.0.dims.as_symbol(v[0])).unwrap();
    assert_eq!(m.0.dims.sym(sym).origin, From::ShapeValue);
    assert!(info.unknown.is_empty());
}

#[test]
fn a_loop_that_grows_its_value_reaches_a_fixpoint() {
    let mut m = Model::new();
    let main = m.0.main;
    let trips = m.ints(main, &[], &[5]);
    let x = m.input(DType::F32, &["2", "d"]);
    let row = m.input(DType::F32, &["1", "d"]);
    let body = m.0.graphs.push(Graph::default());
    let scalar = |dtype| Type::tensor(dtype, []);
    let g = &mut m.0.graphs[body];
    let (_, cond) = (g.add_input(scalar(DType::I64), "i"), g.add_input(scalar(DType::Bool), "go"));
    let (carried, captured) = (g.add_input(Type::Unknown, "acc"), g.add_input(Type::Unknown, "row"));
    let grown = m.node(body, "Concat", &[carried, captured], &[("axis", Attr::Int(0))]);
    let squares = m.node(body, "Mul", &[captured, captured], &[]);
    m.0.graphs[body].outputs = vec![cond, grown, squares];
    let id = m.0.registry.newest("", "Loop");
    let attrs = m.0.attrs.intern(m.0.registry[id].attrs_with(&[]));
    let outs = ["final", "scan"].map(|n| (Type::Unknown, n.into()));
    let origin = Origin("/loop".into());
    let n = m.0.graph_mut().add_node(id, attrs, [Some(trips), None, Some(x), Some(row)], outs, [body], origin);
    m.0.graph_mut().nodes[n].n_captures = 1;
    let outs = m.0.graph().nodes[n].outs.clone();
    m.0.graph_mut().outputs = outs.to_vec();
    let info = m.infer();
    assert_eq!((m.show(outs[0]).as_str(), m.show(outs[1]).as_str()), ("f32[final_d0, d]", "f32[5, 1, d]"));
    assert_eq!(m.0.graphs[body].values[carried].ty.display(&m.0.dims), "f32[acc_d0, d]");
    assert!(info.unknown.is_empty(), "{:?}", info.unknown);
}

#[test]
fn branches_keep_what_they_agree_on() {
    let mut m = Model::new();
    let main = m.0.main;
    let cond = m.input(DType::Bool, &[]);
    let (a, b) = (m.input(DType::F32, &["n", "3"]), m.input(DType::F32, &["k", "3"]));
    let bodies: Vec<RegionId> = (0..2)
        .map(|i| {
            let r = m.0.graphs.push(Graph::default());
            let g = &mut m.0.graphs[r];
            let ps = [g.add_input(Type::Unknown, "a"), g.add_input(Type::Unknown, "b")];
            let y = m.node(r, "Identity", &[ps[i]], &[]);
            m.0.graphs[r].outputs = vec![y];
            r
        })
        .collect();
    let id = m.0.registry.newest("", "If");
    let attrs = m.0.attrs.intern(m.0.registry[id].attrs_with(&[]));
    let ins = [cond, a, b].map(Some);
    let n = m.0.graph_mut().add_node(id, attrs, ins, [(Type::Unknown, "y".into())], bodies, Origin("/if".into()));
    m.0.graph_mut().nodes[n].n_captures = 2;
    let y = m.0.graph().nodes[n].outs[0];
    m.0.graph_mut().outputs = vec![y];
    let info = m.infer();
    assert_eq!(m.show(y), "f32[y_d0, 3]");
    assert!(info.values(main, y).is_none());
}

#[test]
fn a_declared_output_that_contradicts_is_an_error() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["n", "3"]);
    let y = m.node(main, "Transpose", &[x], &[]);
    let (four, n) = (m.0.dims.constant(4), m.0.dims.find_symbol("n").unwrap());
    let n = m.0.dims.sym_dim(n);
    m.0.graph_mut().values[y].ty = Type::tensor(DType::F32, [four, n]);
    m.0.graph_mut().outputs = vec![y];
    let e = infer(&mut m.0).unwrap_err();
    assert_eq!((e.kind(), e.node_path()), (ErrorKind::Shape, Some("/Transpose")));
    assert!(e.to_string().contains("f32[3, n]"), "{e}");
}

/// Exporters that do not know a shape write another rank, and onnxruntime goes by what it infers.
#[test]
fn a_declared_output_of_another_rank_binds_nothing() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["n", "3"]);
    let y = m.node(main, "Relu", &[x], &[]);
    let one = m.0.dims.constant(1);
    m.0.graph_mut().values[y].ty = Type::tensor(DType::F32, [one]);
    m.0.graph_mut().outputs = vec![y];
    m.infer();
    assert_eq!(m.show(y), "f32[n, 3]");
}

#[test]
fn time_grows_with_nodes_not_with_their_square() {
    // Time on the processor, the least of several runs, and a wide bound: ten times the nodes would be a hundred times the time if it were quadratic.
    let time = |n_pairs: usize| {
        let mut m = Model::new();
        let main = m.0.main;
        let mut v = m.input(DType::F32, &["n", "3"]);
        for _ in 0..n_pairs {
            let w = m.node(main, "Transpose", &[v], &[]);
            v = m.node(main, "Relu", &[w], &[]);
        }
        m.0.graph_mut().outputs = vec![v];
        let runs = (0..3).map(|_| {
            let start = tensor::clock::thread_seconds();
            infer(&mut m.0).unwrap();
            tensor::clock::thread_seconds() - start
        });
        let least = runs.fold(f64::INFINITY, f64::min);
        assert_eq!(m.show(v), "f32[n, 3]");
        least
    };
    let (small, large) = (time(1_000), time(10_000));
    assert!(large < 50.0 * small, "2000 nodes took {small} s, 20000 took {large} s");
}

/// Arithmetic on i32 elements that only the run knows may wrap: such an element is a symbol of its own, never the exact result.
#[test]
fn i32_elements_that_may_wrap_are_read_from_their_own_tensor() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["n"]);
    let e = m.input(DType::I64, &["1"]);
    let (z, w) = (m.input(DType::I32, &["1"]), m.input(DType::I32, &["1"]));
    let to = |d: DType| [("to", Attr::Int(d.onnx().into()))];
    let narrow = m.node(main, "Cast", &[e], &to(DType::I32));
    let product = m.node(main, "Mul", &[z, w], &[]);
    let less = m.node(main, "Min", &[z, w], &[]);
    let ends = [narrow, product, less].map(|v| m.node(main, "Cast", &[v], &to(DType::I64)));
    let zero = m.ints(main, &[1], &[0]);
    m.0.graph_mut().outputs = ends.map(|end| m.node(main, "Slice", &[x, zero, end], &[])).to_vec();
    let info = m.infer();
    let text = |v| m.0.dims.display(info.values(main, v).unwrap()[0]).to_string();
    assert_eq!(ends.map(text), ["Cast_out_value0", "Mul_out_value0", "min(x2_value0, x3_value0)"]);
    let range = |v| m.0.dims.range(info.values(main, v).unwrap()[0]);
    assert_eq!(ends.map(range), [(i32::MIN.into(), i32::MAX.into()); 3]);
    assert!(m.0.guards.is_empty(), "{:?}", m.0.guards);
}

/// Constants wrap as the tensor does, extents in i32 are required to fit, and one element that is not known leaves the others.
#[test]
fn i32_elements_that_are_constants_or_extents_stay_known() {
    let mut m = Model::new();
    let main = m.0.main;
    let x = m.input(DType::F32, &["n", "12"]);
    let e = m.input(DType::I64, &["1"]);
    let shape = m.node(main, "Shape", &[x], &[]);
    let wide = m.ints(main, &[1], &[(1 << 32) + 3]);
    let all = m.node(main, "Concat", &[shape, e, wide], &[("axis", Attr::Int(0))]);
    let to = |d: DType| [("to", Attr::Int(d.onnx().into()))];
    let narrow = m.node(main, "Cast", &[all], &to(DType::I32));
    let target = m.node(main, "Cast", &[narrow], &to(DType::I64));
    let y = m.node(main, "ConstantOfShape", &[target], &[]);
    m.0.graph_mut().outputs = vec![y];
    m.infer();
    assert_eq!(m.show(y), "f32[n, 12, Cast_out_value2, 3]");
    let guards: Vec<_> = m.0.guards.iter().map(|g| (g.rel, m.0.dims.display(g.lhs).to_string())).collect();
    assert!(guards.contains(&(Rel::Le, "n".into())), "{guards:?}");
}

/// A model's dim may have the name that inference gives to an element of a tensor.
#[test]
fn names_that_are_taken_are_found_again() {
    let mut m = Model::new();
    let x = m.input(DType::F32, &["x1_value0", "1"]);
    let n = m.input(DType::I64, &["2"]);
    let main = m.0.main;
    let y = m.node(main, "Expand", &[x, n], &[]);
    m.0.graph_mut().outputs = vec![y];
    let info = m.infer();
    let first = info.values(main, n).and_then(|v| m.0.dims.as_symbol(v[0]));
    assert_eq!(first.map(|s| m.0.dims.sym(s).name.clone()).as_deref(), Some("x1_value0_3"));
    assert_eq!(m.show(y), "f32[x1_value0, x1_value1]");
    assert_eq!(m.0.dims.symbols().filter(|(_, s)| s.origin == From::ShapeValue).count(), 2);
}

/// A condition on extents is known when compiled: the other branch, which would be wrong, counts for nothing.
#[test]
fn branches_that_are_never_taken_need_not_be_right() {
    let text = "onnx module \"m\"\nopset \"\" 18\nconst @c0 : i64[] = [5]\n\
        graph(%v0 \"x\" : i64[5]) {\n\
          %v1 = Size-1 %v0 : i64[]\n\
          %v2 = Equal-13 %v1, @c0 : bool[]\n\
          %v3 = Not-1 %v2 : bool[]\n\
          %v4 = If-1 %v3 captures [%v0] : i64[1]\n\
            region then_branch(%v0 : i64[5]) {\n\
              %v1, %v2, %v3, %v4 = Split-18 %v0 {num_outputs = 4} : i64[2], i64[2], i64[2], i64[?]\n\
              return %v4\n\
            }\n\
            region else_branch(%v0 : i64[5]) {\n\
              %v1, %v2, %v3, %v4, %v5 = Split-18 %v0 {num_outputs = 5} : i64[1], i64[1], i64[1], i64[1], i64[1]\n\
              return %v5\n\
            }\n\
          return %v4 \"y\"\n}";
    let mut m = crate::text::parse_onnx(
        &text.replace("i64[?]", "i64[*]").replace("Equal-13", "Equal-7"),
        &crate::Registry::builtin(),
    )
    .unwrap();
    infer(&mut m).unwrap();
    let g = m.graph();
    let node = g.order.iter().map(|&n| &g.nodes[n]).find(|n| !n.regions.is_empty()).unwrap();
    assert_eq!(m.consts[g.as_const(node.ins[0].unwrap()).unwrap()].splat_f64(), Some(0.0));
    assert_eq!(g.values[g.outputs[0]].ty.display(&m.dims).to_string(), "i64[1]");
    let before = crate::text::print_onnx(&m);
    infer(&mut m).unwrap();
    assert_eq!(crate::text::print_onnx(&m), before);
}
