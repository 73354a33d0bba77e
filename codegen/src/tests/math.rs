//! Every function over dense sweeps of its arguments, against binary64 of the standard library.

use super::kit::{Kit, Loaded, tiers};
use crate::OptLevel;
use crate::gpu;
use crate::gpu::exec::{self, Executor, Order, Region};
use ir::nest::{Axis, BinOp, Expr, Phase, UnOp};
use kernels::gpu::Arch;
use lower::host::KernelDef;
use tensor::DType;

fn unary_kernel(op: UnOp, d: DType, n: i64) -> KernelDef {
    let mut k = Kit::default();
    let x = k.operand(d, &[n], &[1], false);
    let y = k.operand(d, &[n], &[1], true);
    let dn = k.d(n);
    k.nest.outer = vec![dn];
    let a = k.access(x, &[Axis::Outer(0)]);
    let l = k.nest.expr(Expr::Load(a));
    let v = k.nest.un(op, l);
    let s = k.access(y, &[Axis::Outer(0)]);
    k.nest.phases = vec![Phase::Store { over_inner: false, stores: vec![(s, v)] }];
    k.def(&format!("{op:?}_{d}"))
}

fn std_fn(op: UnOp) -> fn(f64) -> f64 {
    match op {
        UnOp::Exp => f64::exp,
        UnOp::Log => f64::ln,
        UnOp::Sin => f64::sin,
        UnOp::Cos => f64::cos,
        UnOp::Tan => f64::tan,
        UnOp::Asin => f64::asin,
        UnOp::Acos => f64::acos,
        UnOp::Atan => f64::atan,
        UnOp::Sinh => f64::sinh,
        UnOp::Cosh => f64::cosh,
        UnOp::Tanh => f64::tanh,
        UnOp::Asinh => |x: f64| libm_asinh(x),
        UnOp::Acosh => |x: f64| if x > 1e150 { x.ln() + std::f64::consts::LN_2 } else { x.acosh() },
        UnOp::Atanh => |x: f64| (0.5 * (2.0 * x.abs() / (1.0 - x.abs())).ln_1p()).copysign(x),
        UnOp::Erf => erf_series,
        UnOp::Floor => f64::floor,
        UnOp::Ceil => f64::ceil,
        UnOp::RoundEven => f64::round_ties_even,
        UnOp::Trunc => f64::trunc,
        UnOp::Sqrt => f64::sqrt,
        _ => panic!("no reference for {op:?}"),
    }
}

/// The standard library's loses digits for small arguments.
fn libm_asinh(x: f64) -> f64 {
    let a = x.abs();
    let r =
        if a > 1e150 { a.ln() + std::f64::consts::LN_2 } else { (a + a * a / (1.0 + (1.0 + a * a).sqrt())).ln_1p() };
    r.copysign(x)
}

/// erf by its series below 3 and a continued fraction of erfc above.
fn erf_series(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    let r = if a < 3.0 {
        let (mut term, mut sum, mut k) = (a, a, 0.0);
        while term.abs() > 1e-18 * sum.abs() && k < 200.0 {
            k += 1.0;
            // erf = 2/√π·e^(-x²)·Σ 2^k x^(2k+1) / (2k+1)!!: all terms have one sign.
            term *= 2.0 * a * a / (2.0 * k + 1.0);
            sum += term;
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp()
    } else {
        let mut f = 0.0;
        for k in (1..60).rev() {
            f = f64::from(k) / 2.0 / (a + f);
        }
        1.0 - (-a * a).exp() / (a + f) / std::f64::consts::PI.sqrt()
    };
    r.copysign(x)
}

/// Interesting f32 arguments: all exponents, and dense within ±100.
fn sweep_f32() -> Vec<f32> {
    let mut v: Vec<f32> = (0..=255u32)
        .flat_map(|e| (0..97u32).map(move |m| f32::from_bits((e << 23) | (m * 0x1_5555 % 0x80_0000))))
        .flat_map(|x| [x, -x])
        .collect();
    v.extend((-40_000..40_000).map(|i| i as f32 * 0.002_5));
    v.extend((-40_000..40_000).map(|i| i as f32 * 0.000_05));
    v.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45]);
    v.extend([1.570_796_4, 3.141_592_7, 16_367_173.0 * 2f32.powi(72)]);
    v
}

fn sweep_f64() -> Vec<f64> {
    let mut v: Vec<f64> = (0..=2047u64)
        .flat_map(|e| (0..11u64).map(move |m| f64::from_bits((e << 52) | (m * 0x1_7777_7777_7777 % (1 << 52)))))
        .flat_map(|x| [x, -x])
        .collect();
    v.extend((-20_000..20_000).map(|i| f64::from(i) * 0.005_1));
    v.extend((-20_000..20_000).map(|i| f64::from(i) * 0.000_1));
    // The last is the binary64 nearest to a multiple of π/2.
    v.extend([
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MAX,
        5e-324,
        6381956970095103.0 * 2f64.powi(797),
    ]);
    v
}

fn ulp_f32(x: f64) -> f64 {
    let f = (x as f32).abs();
    if f == 0.0 || f < f32::MIN_POSITIVE {
        return f64::from(f32::from_bits(1));
    }
    2f64.powi(((f.to_bits() >> 23) as i32) - 127 - 23)
}

const ALL: &[UnOp] = &[
    UnOp::Exp,
    UnOp::Log,
    UnOp::Sin,
    UnOp::Cos,
    UnOp::Tan,
    UnOp::Asin,
    UnOp::Acos,
    UnOp::Atan,
    UnOp::Sinh,
    UnOp::Cosh,
    UnOp::Tanh,
    UnOp::Asinh,
    UnOp::Acosh,
    UnOp::Atanh,
    UnOp::Erf,
    UnOp::Floor,
    UnOp::Ceil,
    UnOp::RoundEven,
    UnOp::Trunc,
    UnOp::Sqrt,
];

/// Greatest error in f32 ulp.
fn bound_f32(op: UnOp) -> f64 {
    match op {
        UnOp::Exp | UnOp::Log | UnOp::Sin | UnOp::Cos => 2.0,
        UnOp::Tanh => 3.0,
        UnOp::Erf => 6.0,
        UnOp::Floor | UnOp::Ceil | UnOp::RoundEven | UnOp::Trunc => 0.0,
        _ => 0.51,
    }
}

/// The greatest error of `ys` in ulp, with its argument and what came out.
fn worst_f32(op: UnOp, xs: &[f32], ys: &[f32]) -> (f64, f32, f32) {
    let f = std_fn(op);
    let mut worst = (0.0f64, 0.0f32, 0.0f32);
    for (x, y) in xs.iter().zip(ys) {
        let want = f(f64::from(*x));
        let w32 = want as f32;
        let bad = if w32.is_nan() || y.is_nan() || w32.is_infinite() {
            if w32.is_nan() == y.is_nan() && (w32.is_nan() || w32 == *y) {
                0.0
            } else if y.abs() == f32::MAX || (w32.is_infinite() && want.abs() < 3.5e38) {
                0.0
            } else {
                f64::INFINITY
            }
        } else {
            (f64::from(*y) - want).abs() / ulp_f32(want)
        };
        if bad > worst.0 {
            worst = (bad, *x, *y);
        }
    }
    worst
}

/// With instructions of limited accuracy in place of divisions and polynomials.
#[test]
fn f32_functions_of_gpus_stay_within_their_error() {
    let xs = sweep_f32();
    let n = xs.len() as i64;
    let ops = [(UnOp::Exp, 4.0), (UnOp::Log, 3.0), (UnOp::Tanh, 5.0), (UnOp::Erf, 8.0)];
    let defs: Vec<_> = ops.iter().map(|(op, _)| unary_kernel(*op, DType::F32, n)).collect();
    for arch in ["gfx942", "sm_90"].map(|a| Arch::find(a).unwrap()) {
        let ir = gpu::emit(&defs, &vec![None; defs.len()], arch, OptLevel::Full).unwrap();
        let x = Executor::load(&ir.bitcode, arch).unwrap();
        for ((op, bound), def) in ops.iter().zip(&defs) {
            let mut ys = vec![0f32; xs.len()];
            execute(&x, arch, def, &[&xs], &mut ys);
            let worst = worst_f32(*op, &xs, &ys);
            println!("{} {op:?} f32: {:.3} ulp at {:e} ({:e})", arch.name, worst.0, worst.1, worst.2);
            assert!(worst.0 <= *bound, "{} {op:?}: {} ulp at {:e} gives {:e}", arch.name, worst.0, worst.1, worst.2);
        }
    }
}

/// Runs a kernel over the points of `ys` on the host.
fn execute(x: &Executor, arch: &Arch, def: &KernelDef, ins: &[&[f32]], ys: &mut [f32]) {
    let region = |address: usize, n: usize, writable| Region { address, bytes: 4 * n, writable };
    let mut regions: Vec<Region> = ins.iter().map(|v| region(v.as_ptr() as usize, v.len(), false)).collect();
    regions.push(region(ys.as_mut_ptr() as usize, ys.len(), true));
    let words = regions.iter().map(|r| r.address as u64).chain([ys.len() as u64]);
    let launch = gpu::launch(def);
    let run = exec::Launch {
        kernel: &def.name,
        grid: [launch.grid(arch.wave, ys.len() as i64), 1, 1],
        block: launch.block,
        kernarg: &words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>(),
        regions: &regions,
        order: Order::Forward,
        skip_barrier: None,
    };
    // SAFETY: the regions are the caller's.
    unsafe { x.run(&run) }.unwrap();
}

/// A division whose divisor is the same for all points is done without one, with the same bits.
#[test]
fn quotients_by_one_number_are_those_of_a_division() {
    let xs: Vec<f32> = sweep_f32().into_iter().step_by(7).chain((1..2000).map(|i| i as f32)).collect();
    let n = xs.len() as i64;
    let mut k = Kit::default();
    let (x, d) = (k.operand(DType::F32, &[n], &[1], false), k.operand(DType::F32, &[], &[], false));
    let y = k.operand(DType::F32, &[n], &[1], true);
    k.nest.outer = vec![k.d(n)];
    let (a, b) = (k.load(x, &[Axis::Outer(0)]), k.load(d, &[]));
    let q = k.nest.bin(BinOp::Div, a, b);
    k.store(false, y, &[Axis::Outer(0)], q);
    let def = k.def("quotients");
    let divisors =
        [1.0, -3.0, 49.0, 0.1, 1.999_999_9, 7e-39, 1e-45, 3e38, 2e19, 1e-20, 0.0, -0.0, f32::INFINITY, f32::NAN];
    for arch in ["gfx942", "sm_90"].map(|a| Arch::find(a).unwrap()) {
        let ir = gpu::emit(std::slice::from_ref(&def), &[None], arch, OptLevel::Full).unwrap();
        let code = Executor::load(&ir.bitcode, arch).unwrap();
        assert_eq!(ir.text().unwrap().matches("fdiv").count(), 1, "one division, outside the loop");
        for d in divisors {
            let mut ys = vec![0f32; xs.len()];
            execute(&code, arch, &def, &[&xs, &[d]], &mut ys);
            for (x, y) in xs.iter().zip(&ys) {
                let want = x / d;
                let tiny = want.is_subnormal() || x.abs() < 2f32.powi(-36);
                let near = tiny && want.to_bits().abs_diff(y.to_bits()) <= 1;
                let same = y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan());
                assert!(same || near, "{} {x:e} / {d:e} = {y:e}, not {want:e}", arch.name);
            }
        }
    }
}

#[test]
fn f32_functions_stay_within_their_error() {
    let xs = sweep_f32();
    let n = xs.len() as i64;
    for tier in tiers() {
        let defs: Vec<_> = ALL.iter().map(|op| unary_kernel(*op, DType::F32, n)).collect();
        let code = Loaded::new(&defs, tier);
        let mut failures = Vec::new();
        for op in ALL {
            let mut ys = vec![0f32; xs.len()];
            code.call(&format!("{op:?}_f32"), &[xs.as_ptr() as u64, ys.as_mut_ptr() as u64], 0, n);
            let worst = worst_f32(*op, &xs, &ys);
            println!("{tier} {op:?} f32: {:.3} ulp at {:e} ({:e})", worst.0, worst.1, worst.2);
            if worst.0 > bound_f32(*op) + 1e-6 {
                failures.push(format!("{tier} {op:?}: {} ulp at {:e} gives {:e}", worst.0, worst.1, worst.2));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
    }
}

#[test]
fn f32_erf_is_one_where_one_is_nearest() {
    let mut xs = vec![3.92f32, 3.95, 3.999_999_8, 4.0, 4.000_000_5, 5.0, 9.0, 1e30, f32::MAX, f32::INFINITY];
    xs.extend((0..500).map(|i| 3.92 + i as f32 * 0.01));
    xs.extend(xs.clone().iter().map(|x| -x));
    let n = xs.len() as i64;
    for tier in tiers() {
        let code = Loaded::new(&[unary_kernel(UnOp::Erf, DType::F32, n)], tier);
        let mut ys = vec![0f32; xs.len()];
        code.call("Erf_f32", &[xs.as_ptr() as u64, ys.as_mut_ptr() as u64], 0, n);
        for (x, y) in xs.iter().zip(&ys) {
            assert_eq!(*y, x.signum(), "{tier} erf({x:e})");
        }
    }
}

#[test]
fn f64_functions_stay_within_their_error() {
    let xs = sweep_f64();
    let n = xs.len() as i64;
    for tier in tiers() {
        let defs: Vec<_> = ALL.iter().map(|op| unary_kernel(*op, DType::F64, n)).collect();
        let code = Loaded::new(&defs, tier);
        let mut failures = Vec::new();
        for op in ALL {
            let mut ys = vec![0f64; xs.len()];
            code.call(&format!("{op:?}_f64"), &[xs.as_ptr() as u64, ys.as_mut_ptr() as u64], 0, n);
            let f = std_fn(*op);
            let mut worst = (0.0f64, 0.0f64, 0.0f64);
            for (x, y) in xs.iter().zip(&ys) {
                let want = f(*x);
                let bad = if want.is_nan() || y.is_nan() || want.is_infinite() || y.is_infinite() {
                    if want.is_nan() == y.is_nan() && (want.is_nan() || want == *y) { 0.0 } else { f64::INFINITY }
                } else if want.abs() < f64::MIN_POSITIVE {
                    (y - want).abs() / f64::MIN_POSITIVE
                } else {
                    // The reduction of the hardest argument is good to 2^-103 absolutely.
                    ((y - want).abs() - 1e-31).max(0.0) / want.abs()
                };
                if bad > worst.0 {
                    worst = (bad, *x, *y);
                }
            }
            println!("{tier} {op:?} f64: {:e} at {:e} ({:e})", worst.0, worst.1, worst.2);
            // The tangent there is the reciprocal.
            let bound = if *op == UnOp::Tan { 1e-13 } else { 1e-14 };
            if worst.0 > bound {
                failures.push(format!("{tier} {op:?}: {:e} at {:e} gives {:e}", worst.0, worst.1, worst.2));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
    }
}

#[test]
fn pow_follows_c() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        2.5,
        -2.5,
        1e10,
        -1e10,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        0.1,
        10.0,
        1e-3,
    ];
    let mut pairs: Vec<(f64, f64)> = special.iter().flat_map(|x| special.iter().map(|y| (*x, *y))).collect();
    pairs.extend((1..4000).map(|i| (f64::from(i) * 0.01, f64::from(i % 37) * 0.3 - 5.0)));
    let n = pairs.len() as i64;
    for d in [DType::F32, DType::F64] {
        let mut k = Kit::default();
        let a = k.operand(d, &[n], &[1], false);
        let b = k.operand(d, &[n], &[1], false);
        let y = k.operand(d, &[n], &[1], true);
        let dn = k.d(n);
        k.nest.outer = vec![dn];
        let (a, b) = (k.access(a, &[Axis::Outer(0)]), k.access(b, &[Axis::Outer(0)]));
        let (a, b) = (k.nest.expr(Expr::Load(a)), k.nest.expr(Expr::Load(b)));
        let v = k.nest.bin(BinOp::Pow, a, b);
        let s = k.access(y, &[Axis::Outer(0)]);
        k.nest.phases = vec![Phase::Store { over_inner: false, stores: vec![(s, v)] }];
        for tier in tiers() {
            let code = Loaded::new(&[k.def("pow")], tier);
            let check = |x: f64, y: f64, got: f64, want: f64, eps: f64| {
                let same = got.is_nan() && want.is_nan() || got == want;
                let close = want.is_finite() && ((got - want) / want).abs() <= eps;
                assert!(same || close, "{tier} {d} pow({x}, {y}) = {got:e}, want {want:e}");
            };
            if d == DType::F64 {
                let (xs, ys): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
                let mut out = vec![0f64; xs.len()];
                code.call("pow", &[xs.as_ptr() as u64, ys.as_ptr() as u64, out.as_mut_ptr() as u64], 0, n);
                for ((x, y), o) in pairs.iter().zip(&out) {
                    let want = x.powf(*y);
                    check(*x, *y, *o, want, 4e-16 * (1.0 + (y * x.abs().ln()).abs()));
                }
            } else {
                let xs: Vec<f32> = pairs.iter().map(|p| p.0 as f32).collect();
                let ys: Vec<f32> = pairs.iter().map(|p| p.1 as f32).collect();
                let mut out = vec![0f32; xs.len()];
                code.call("pow", &[xs.as_ptr() as u64, ys.as_ptr() as u64, out.as_mut_ptr() as u64], 0, n);
                for ((x, y), o) in xs.iter().zip(&ys).zip(&out) {
                    let want = f64::from(*x).powf(f64::from(*y)) as f32;
                    check(f64::from(*x), f64::from(*y), f64::from(*o), f64::from(want), 1.2e-7);
                }
            }
        }
    }
}
