//! Scales of a quantized cache whose extents only the run knows, those that are 1 as well.

use crate::cases::{self, Random};
use crate::graph::{Module, Onnx, Origin as Path};
use crate::op::{RefCtx, Registry};
use crate::ty::Type;
use tensor::dims::Origin;
use tensor::{DType, PrimaryMap, Tensor};

#[test]
fn scales_of_channels_are_over_channels_alone() {
    let registry = Registry::builtin();
    let op = registry.newest("com.microsoft", "GroupQueryAttention");
    let def = &registry[op];
    for scale in ["[1,2,1,4]{0.25,0.125}", "[8]{0.5,0.25}"] {
        let text = format!(
            "[2,1,16];[2,1,8];[2,1,8];i8[2,2,5,4];i8[2,2,5,4];i32[2]{{4,4}};i32[1]{{5}};_;_;_;_;_;{scale};{scale} \
             num_heads=4 kv_num_heads=2 k_quant_type=PER_CHANNEL v_quant_type=PER_CHANNEL kv_cache_bit_width=8 outs=3"
        );
        let case = cases::parse(def, &text).unwrap();
        let mut random = Random::new(9);
        let mut m: Module<Onnx> = Module::new(registry.clone());
        let (mut ins, mut given) = (vec![], vec![]);
        for (i, o) in case.operands.iter().enumerate() {
            let Some(o) = o else {
                ins.push(None);
                continue;
            };
            let t = o.tensor(DType::F32, &mut random);
            let extent = |(axis, n): (usize, &usize)| match i {
                12 | 13 => m.dims.symbol(&format!("s{i}_{axis}"), Origin::Input { input: i as u32, axis: axis as u32 }),
                _ => m.dims.constant(*n as i64),
            };
            let shape: Vec<_> = t.shape().iter().enumerate().map(extent).collect();
            ins.push(Some(m.graph_mut().add_input(Type::tensor(t.dtype(), shape), format!("x{i}"))));
            given.push(Some(t));
        }
        let attrs = m.attrs.intern(case.attrs.clone());
        let outs = (0..3).map(|i| (Type::Unknown, format!("y{i}").into()));
        let n = m.graph_mut().add_node(op, attrs, ins.clone(), outs, [], Path("/case".into()));
        m.graph_mut().outputs = m.graph().nodes[n].outs.to_vec();
        crate::infer::infer(&mut m).unwrap();
        assert!(crate::expand::expand(&mut m).unwrap());
        crate::infer::infer(&mut m).unwrap();
        let inputs: Vec<Tensor> = given.iter().flatten().cloned().collect();
        crate::interp::check_inputs(&m, &inputs).unwrap_or_else(|e| panic!("{scale}: {e}"));
        let got = crate::interp::run(&m, &inputs).unwrap();
        let mut all = given.into_iter();
        let operands: Vec<Option<Tensor>> = ins.iter().map(|v| v.and_then(|_| all.next().flatten())).collect();
        let consts = PrimaryMap::new();
        let want = RefCtx { def, attrs: &case.attrs, consts: &consts, ins: &operands, n_outs: 3 };
        for (got, want) in got.iter().zip((def.reference.unwrap())(&want).unwrap()) {
            let (got, want) = (got.to_f64_vec(), want.to_f64_vec());
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4), "{scale}: {got:?}, not {want:?}");
        }
    }
}
