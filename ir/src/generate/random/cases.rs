//! Random cases of rows whose operands and attributes must fit one another, in the language of [`crate::cases`].

use crate::cases::Random;
use crate::op::{Arity, OpDef};

/// A random case of a row that has a generator here.
pub fn random_case(def: &OpDef, random: &mut Random) -> Option<String> {
    let rows = matches!(
        def.name,
        "Softmax"
            | "LogSoftmax"
            | "Hardmax"
            | "LpNormalization"
            | "LayerNormalization"
            | "RMSNormalization"
            | "BatchNormalization"
            | "InstanceNormalization"
            | "ArgMax"
            | "ArgMin"
    );
    if def.is_elementwise() || rows || def.name.starts_with("Reduce") {
        return elementwise_case(def, random);
    }
    movement_case(def, random).or_else(|| placing_case(def, random)).or_else(|| product_case(def, random))
}

/// A random case of an elementwise, reducing or normalizing row; `None` for rows that have too little freedom.
pub(crate) fn elementwise_case(def: &OpDef, random: &mut Random) -> Option<String> {
    let list = |s: &[u64]| s.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let rank = random.below(4) as usize + 1;
    let full: Vec<u64> =
        (0..rank).map(|_| [1, 2, 3, 5, 7, 0][random.below(if rank > 2 { 5 } else { 6 }) as usize]).collect();
    let axis = |random: &mut Random, rank: usize| {
        let a = random.below(rank as u64) as i64;
        if random.below(2) == 0 { a } else { a - rank as i64 }
    };
    let reducing = def.name.starts_with("Reduce") && def.domain.is_empty();
    Some(match def.name {
        _ if !reducing && def.attrs.is_empty() && def.inputs.len() <= 3 && def.name != "Clip" => {
            // One to three operands that broadcast: leading axes left out, some extents 1.
            let variadic = def.inputs.iter().any(|p| p.arity == Arity::Variadic);
            let n = if variadic { random.below(3) as usize + 1 } else { def.inputs.len() };
            let one_shape = def.until == 7 || n == 1;
            let operands: Vec<String> = (0..n)
                .map(|i| {
                    let keep = one_shape || (i == 0 && def.name == "PRelu");
                    let from = if keep { 0 } else { random.below(rank as u64 + 1) as usize };
                    let one = |&d: &u64, random: &mut Random| if !keep && random.below(3) == 0 { 1 } else { d };
                    let s: Vec<u64> = full[from..].iter().map(|d| one(d, random)).collect();
                    format!("[{}]", list(&s))
                })
                .collect();
            operands.join(";")
        }
        "ArgMax" | "ArgMin" => {
            let s: Vec<u64> = full.iter().map(|&d| d.max(1)).collect();
            let last =
                if def.attrs.len() > 2 { format!(" select_last_index={}", random.below(2)) } else { String::new() };
            format!("[{}] axis={} keepdims={}{last}", list(&s), axis(random, rank), random.below(2))
        }
        "Softmax" | "LogSoftmax" | "Hardmax" | "LpNormalization" => {
            format!("[{}] axis={}", list(&full), axis(random, rank))
        }
        _ if reducing => {
            let mut chosen = vec![];
            for a in 0..rank as i64 {
                match random.below(4) {
                    0 => chosen.push(a.to_string()),
                    1 => chosen.push((a - rank as i64).to_string()),
                    _ => {}
                }
            }
            let (axes, keep) = (chosen.join(","), random.below(2));
            match def.slot("axes") {
                Some(_) => format!("[{}] axes=[{axes}] keepdims={keep}", list(&full)),
                None => format!(
                    "[{}];i64[{}]{{{axes}}} keepdims={keep} noop_with_empty_axes={}",
                    list(&full),
                    chosen.len(),
                    random.below(2)
                ),
            }
        }
        "LayerNormalization" | "RMSNormalization" => {
            let a = random.below(rank as u64) as usize;
            let outs = if def.name == "LayerNormalization" { " outs=3" } else { "" };
            format!("[{}];[{}] axis={a}{outs}", list(&full), list(&full[a..]))
        }
        "BatchNormalization" => {
            let c = full.get(1).copied().unwrap_or(1);
            format!("[{}];[{c}];[{c}];[{c}];[{c}]{{0.5,1,2}}", list(&full))
        }
        "InstanceNormalization" if rank > 2 => format!("[{}];[{}];[{}]", list(&full), full[1], full[1]),
        _ => return None,
    })
}

fn list<T: ToString>(v: &[T]) -> String {
    v.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// A number from `lo` to `hi`.
fn number(random: &mut Random, lo: i64, hi: i64) -> i64 {
    lo + random.below((hi - lo + 1) as u64) as i64
}

/// A random case of a row that moves elements, multiplies matrices or slides windows; `None` for rows without a generator here.
pub(crate) fn movement_case(def: &OpDef, random: &mut Random) -> Option<String> {
    let rank = number(random, 1, 4);
    let full: Vec<i64> = (0..rank).map(|_| [1, 2, 3, 5, 0, 4][random.below(6) as usize]).collect();
    let some: Vec<i64> = full.iter().map(|&d| d.max(1)).collect();
    let axis = |random: &mut Random| {
        let a = random.below(rank as u64) as i64;
        if random.below(2) == 0 { a } else { a - rank }
    };
    let at = |a: i64| if a < 0 { a + rank } else { a } as usize;
    // A constant operand; a list of one when empty would print random values.
    let ints = |v: &[i64]| if v.is_empty() { "i64[0]".to_string() } else { format!("i64[{}]{{{}}}", v.len(), list(v)) };
    let since = def.since;
    Some(match def.name {
        "Transpose" => {
            let mut perm: Vec<i64> = (0..rank).collect();
            (1..perm.len()).for_each(|i| perm.swap(i, random.below(i as u64 + 1) as usize));
            format!("[{}] perm=[{}]", list(&full), list(&perm))
        }
        "Flatten" => format!("[{}] axis={}", list(&full), number(random, -rank, rank)),
        "Shape" if since >= 15 => {
            format!("[{}] start={} end={}", list(&full), number(random, -5, 5), number(random, -5, 5))
        }
        "Slice" if since >= 10 => {
            let axes: Vec<i64> = (0..rank).filter(|_| random.below(2) == 0).collect();
            let mut ends = || axes.iter().map(|_| number(random, -7, 7)).collect::<Vec<_>>();
            let (starts, ends) = (ends(), ends());
            let steps: Vec<i64> = axes.iter().map(|_| [1, 1, 2, 3, -1, -2][random.below(6) as usize]).collect();
            format!("[{}];{};{};{};{}", list(&full), ints(&starts), ints(&ends), ints(&axes), ints(&steps))
        }
        "Pad" if since >= 18 => {
            let mode = ["constant", "reflect", "edge", "wrap"][random.below(4) as usize];
            let shape = if mode == "constant" { &full } else { &some };
            let (mut begin, mut end) = (vec![], vec![]);
            for &d in shape {
                let mut b = number(random, -d.min(2), 3);
                let mut e = number(random, (-d - b).max(-2), 4);
                if mode != "constant" {
                    // Something is left to repeat, for reflect as much as is added beside the edge.
                    b = b.max(1 - d);
                    e = e.max(1 - d - b.min(0));
                    let most = if mode == "reflect" { d - 1 + b.min(0) + e.min(0) } else { i64::MAX };
                    (b, e) = (b.min(most), e.min(most));
                }
                begin.push(b);
                end.push(e);
            }
            format!("[{}];{} mode={mode}", list(shape), ints(&[begin, end].concat()))
        }
        "Concat" => {
            let a = axis(random);
            let one = |random: &mut Random| {
                let mut s = full.clone();
                s[at(a)] = number(random, 0, 3);
                format!("[{}]", list(&s))
            };
            let parts: Vec<String> = (0..number(random, 1, 4)).map(|_| one(random)).collect();
            format!("{} axis={a}", parts.join(";"))
        }
        "Split" if since >= 13 => {
            let (a, sizes) = (axis(random), [(); 3].map(|_| number(random, 0, 3)));
            let mut s = full.clone();
            s[at(a)] = sizes.iter().sum();
            format!("[{}];{} axis={a} outs=3", list(&s), ints(&sizes))
        }
        "Tile" => {
            let r: Vec<i64> = full.iter().map(|_| number(random, 0, 3)).collect();
            format!("[{}];{}", list(&full), ints(&r))
        }
        "Expand" => {
            let lead: Vec<i64> = (0..random.below(2)).map(|_| number(random, 1, 3)).collect();
            let own: Vec<i64> = full.iter().map(|&d| if random.below(2) == 0 { 1 } else { d }).collect();
            format!("[{}];{}", list(&own), ints(&[lead, full].concat()))
        }
        "Gather" | "GatherElements" => {
            let a = axis(random);
            let n = some[at(a)];
            let mut s = if def.name == "Gather" { vec![2] } else { some.clone() };
            if def.name != "Gather" {
                s[at(a)] = number(random, 1, 3);
            }
            let v: Vec<i64> = (0..s.iter().product()).map(|_| number(random, -n, n - 1)).collect();
            format!("[{}];i64[{}]{{{}}} axis={a}", list(&some), list(&s), list(&v))
        }
        "MatMul" => {
            let (m, k, n) = (number(random, 0, 3), number(random, 0, 4), number(random, 1, 3));
            let lead = random.below(3) as usize;
            let batch: Vec<i64> = (0..lead).map(|_| number(random, 1, 3)).collect();
            let side = |random: &mut Random, mat: [i64; 2]| {
                let from = random.below(lead as u64 + 1) as usize;
                let b: Vec<i64> = batch[from..].iter().map(|&d| if random.below(3) == 0 { 1 } else { d }).collect();
                format!("[{}]", list(&[b, mat.to_vec()].concat()))
            };
            format!("{};{}", side(random, [m, k]), side(random, [k, n]))
        }
        "Conv" | "MaxPool" | "AveragePool" if since >= 10 || def.name == "Conv" => {
            let spatial = number(random, 1, 2);
            let mut each = |lo, hi| (0..spatial).map(|_| number(random, lo, hi)).collect::<Vec<_>>();
            let (image, kernel, strides) = (each(5, 8), each(1, 3), each(1, 3));
            let (begin, end) = (each(0, 1), each(0, 1));
            let dilations = each(1, 2);
            let (n, c, m) = (number(random, 1, 2), number(random, 1, 2), number(random, 1, 3));
            let group = if def.name == "Conv" && random.below(2) == 0 { c } else { 1 };
            let mut text = format!("[{}]", list(&[vec![n, c], image].concat()));
            if def.name == "Conv" {
                let w = [vec![m * group, c / group], kernel.clone()].concat();
                text += &format!(";[{}] group={group}", list(&w));
            } else {
                text += &format!(" ceil_mode={}", random.below(2));
            }
            text += &format!(" kernel_shape=[{}] strides=[{}]", list(&kernel), list(&strides));
            // Pads below the kernel's extent, so that no window lies in padding alone.
            let below = |v: &[i64]| v.iter().zip(&kernel).map(|(&p, &k)| p.min(k - 1)).collect::<Vec<_>>();
            match random.below(3) {
                0 => text += " auto_pad=SAME_UPPER",
                1 => text += " auto_pad=SAME_LOWER",
                _ => text += &format!(" pads=[{}]", list(&[below(&begin), below(&end)].concat())),
            }
            if def.slot("dilations").is_some() {
                text += &format!(" dilations=[{}]", list(&dilations));
            }
            text
        }
        _ => return None,
    })
}

/// A constant operand.
fn ints(v: &[i64]) -> String {
    if v.is_empty() { "i64[0]".to_string() } else { format!("i64[{}]{{{}}}", v.len(), list(v)) }
}

/// An axis of `rank`, from either end.
fn axis(random: &mut Random, rank: i64) -> i64 {
    number(random, -rank, rank - 1)
}

/// Extents of 1 to 4 axes, none empty.
fn extents(random: &mut Random) -> Vec<i64> {
    (0..number(random, 1, 4)).map(|_| number(random, 1, 6)).collect()
}

/// A random case of a row that views, places or collects elements.
fn placing_case(def: &OpDef, random: &mut Random) -> Option<String> {
    let full = extents(random);
    let rank = full.len() as i64;
    let size: i64 = full.iter().product();
    let by_attribute = |what: &str| def.slot(what).is_some();
    Some(match def.name {
        "Reshape" => {
            // The factors regrouped: axes merged, an extent split off, one left open or kept.
            let (mut to, mut left) = (vec![], size);
            while left > 1 && to.len() < 3 {
                let divisors: Vec<i64> = (1..=left).filter(|d| left % d == 0).collect();
                let d = divisors[random.below(divisors.len() as u64) as usize];
                to.push(d);
                left /= d;
            }
            to.push(left);
            if random.below(2) == 0 {
                let i = random.below(to.len() as u64) as usize;
                to[i] = -1;
            }
            match by_attribute("shape") {
                true => format!("[{}] shape=[{}]", list(&full), list(&to)),
                false => format!("[{}];{}", list(&full), ints(&to)),
            }
        }
        "Squeeze" | "Unsqueeze" => {
            let ones: Vec<i64> = (0..rank).filter(|_| random.below(2) == 0).collect();
            let mut shape = full.clone();
            let mut axes: Vec<i64> = ones.clone();
            if def.name == "Squeeze" {
                ones.iter().for_each(|&a| shape[a as usize] = 1);
                axes.iter_mut().filter(|_| random.below(2) == 0).for_each(|a| *a -= rank);
            } else {
                let result = rank + axes.len() as i64;
                axes.iter_mut().filter(|_| random.below(2) == 0).for_each(|a| *a -= result);
            }
            if axes.is_empty() {
                return None;
            }
            match by_attribute("axes") {
                // The oldest meanings know no axes from the end.
                true if def.until < 11 => format!("[{}] axes=[{}]", list(&shape), list(&ones)),
                true => format!("[{}] axes=[{}]", list(&shape), list(&axes)),
                false => format!("[{}];{}", list(&shape), ints(&axes)),
            }
        }
        "GatherND" | "ScatterND" => {
            let k = number(random, 1, rank);
            let lead = number(random, 1, 3);
            let place =
                |random: &mut Random| full[..k as usize].iter().map(|&n| number(random, -n, n - 1)).collect::<Vec<_>>();
            let mut tuples: Vec<Vec<i64>> = (0..lead).map(|_| place(random)).collect();
            if def.name == "ScatterND" {
                // Distinct places: which of two updates wins is left open.
                tuples
                    .iter_mut()
                    .flatten()
                    .zip(full[..k as usize].iter().cycle())
                    .for_each(|(i, &n)| *i = i.rem_euclid(n));
                tuples.sort();
                tuples.dedup();
            }
            let (n, flat) = (tuples.len() as i64, tuples.concat());
            let index = format!("i64[{n},{k}]{{{}}}", list(&flat));
            match def.name {
                "GatherND" => format!("[{}];{index}", list(&full)),
                _ => format!("[{}];{index};[{}]", list(&full), list(&[vec![n], full[k as usize..].to_vec()].concat())),
            }
        }
        "ScatterElements" | "Scatter" => {
            let a = axis(random, rank);
            let at = a.rem_euclid(rank) as usize;
            let mut s: Vec<i64> = full.iter().map(|&n| number(random, 1, n)).collect();
            s[at] = number(random, 1, full[at]);
            // Along the axis every place once, shifted from line to line.
            let inner: i64 = s[at + 1..].iter().product();
            let n: i64 = s.iter().product();
            let v: Vec<i64> = (0..n).map(|p| (p / inner % s[at] + p % inner) % full[at]).collect();
            format!("[{}];i64[{}]{{{}}};[{}] axis={a}", list(&full), list(&s), list(&v), list(&s))
        }
        "OneHot" => {
            let depth = number(random, 1, 7);
            let v: Vec<i64> = (0..size).map(|_| number(random, -depth, depth - 1)).collect();
            format!("i64[{}]{{{}}};i64[]{{{depth}}};[2] axis={}", list(&full), list(&v), axis(random, rank + 1))
        }
        "Trilu" if rank > 1 => {
            format!("[{}];i64[]{{{}}} upper={}", list(&full), number(random, -4, 4), random.below(2))
        }
        "CumSum" | "CumProd" => {
            let a = axis(random, rank);
            format!("[{}];i64[]{{{a}}} exclusive={} reverse={}", list(&full), random.below(2), random.below(2))
        }
        "DepthToSpace" | "SpaceToDepth" => {
            let (b, c) = (number(random, 1, 3), number(random, 1, 3));
            let (h, w) = (number(random, 1, 3), number(random, 1, 4));
            match def.name {
                "DepthToSpace" => {
                    let mode =
                        if by_attribute("mode") { [" mode=CRD", " mode=DCR"][random.below(2) as usize] } else { "" };
                    format!("[2,{},{h},{w}] blocksize={b}{mode}", c * b * b)
                }
                _ => format!("[2,{c},{},{}] blocksize={b}", h * b, w * b),
            }
        }
        "TopK" => {
            let a = axis(random, rank);
            let k = number(random, 0, full[a.rem_euclid(rank) as usize]);
            match by_attribute("k") {
                true => format!("[{}] k={} axis={a} outs=2", list(&full), k.max(1)),
                false => {
                    let largest =
                        if by_attribute("largest") { format!(" largest={}", random.below(2)) } else { String::new() };
                    format!("[{}];i64[1]{{{k}}} axis={a}{largest} outs=2", list(&full))
                }
            }
        }
        _ => return None,
    })
}

/// A random case of a row that multiplies, recurs or quantises.
fn product_case(def: &OpDef, random: &mut Random) -> Option<String> {
    Some(match def.name {
        "Gemm" => {
            let [m, k, n] = [(); 3].map(|_| number(random, 1, 9));
            let (ta, tb) = (random.below(2), random.below(2));
            let a = if ta == 1 { [k, m] } else { [m, k] };
            let b = if tb == 1 { [n, k] } else { [k, n] };
            let c = [vec![m, n], vec![n], vec![m, 1], vec![1, n]];
            let c = &c[random.below(4) as usize];
            format!("[{}];[{}];[{}] transA={ta} transB={tb} alpha=0.5 beta=2", list(&a), list(&b), list(c))
        }
        "ConvTranspose" => {
            let [h, w, kh, kw] =
                [number(random, 1, 6), number(random, 1, 6), number(random, 1, 3), number(random, 1, 3)];
            let (c, m, group) = (number(random, 1, 2), number(random, 1, 3), number(random, 1, 2));
            let strides = [number(random, 1, 3), number(random, 1, 3)];
            let out: Vec<i64> = strides.iter().map(|&s| number(random, 0, s - 1)).collect();
            let bias = if random.below(2) == 0 { format!(";[{}]", m * group) } else { String::new() };
            format!(
                "[2,{},{h},{w}];[{},{m},{kh},{kw}]{bias} group={group} strides=[{}] output_padding=[{}] dilations=[{},{}]",
                c * group,
                c * group,
                list(&strides),
                list(&out),
                number(random, 1, 2),
                number(random, 1, 2),
            )
        }
        "RNN" | "GRU" | "LSTM" => {
            let gates = match def.name {
                "RNN" => 1,
                "GRU" => 3,
                _ => 4,
            };
            let [s, b, i, h] = [number(random, 1, 4), number(random, 1, 3), number(random, 1, 5), number(random, 1, 5)];
            let (direction, d) = [("forward", 1), ("reverse", 1), ("bidirectional", 2)][random.below(3) as usize];
            let bias = if random.below(3) > 0 { format!("[{d},{}]", 2 * gates * h) } else { "_".into() };
            let lengths: Vec<i64> = (0..b).map(|_| number(random, 1, s)).collect();
            let lengths = if random.below(2) == 0 { format!("i32[{b}]{{{}}}", list(&lengths)) } else { "_".into() };
            let state = if random.below(2) == 0 { format!("[{d},{b},{h}]") } else { "_".into() };
            let reset = if def.slot("linear_before_reset").is_some() {
                format!(" linear_before_reset={}", random.below(2))
            } else {
                String::new()
            };
            let cell = if def.name == "LSTM" && state != "_" { format!(";{state}") } else { String::new() };
            let outs = if def.name == "LSTM" { 3 } else { 2 };
            format!(
                "[{s},{b},{i}];[{d},{},{i}];[{d},{},{h}];{bias};{lengths};{state}{cell} hidden_size={h} direction={direction}{reset} outs={outs}",
                gates * h,
                gates * h
            )
        }
        _ => return None,
    })
}
