//! Shape rules and nests on random nodes: extents with 0 and 1, axes from both ends, negative steps and pads.

use super::{Extents, assignments, check};
use crate::cases::{self, Random};
use crate::op::{Arity, OpDef};

/// A random case of an elementwise, reducing or normalizing row; `None` for rows that have too little freedom.
fn elementwise_case(def: &OpDef, random: &mut Random) -> Option<String> {
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
fn movement_case(def: &OpDef, random: &mut Random) -> Option<String> {
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

/// Checks `per_row` random nodes of each row for which `random_case` has cases.
fn check_random(
    rows: &[&'static [OpDef]],
    per_row: usize,
    random_case: fn(&OpDef, &mut Random) -> Option<String>,
) -> u64 {
    let mut random = Random::new(7);
    let (mut n, mut wrong) = (0, vec![]);
    for def in rows.iter().copied().flatten() {
        for _ in 0..per_row {
            let Some(text) = random_case(def, &mut random) else { continue };
            let case = cases::parse(def, &text).unwrap_or_else(|e| panic!("{}: {text}: {e}", def.full_name()));
            let types = assignments(def);
            let types = &types[random.below(types.len() as u64) as usize];
            for extents in [Extents::Constant, Extents::Symbolic] {
                n += 1;
                if let Err(e) = check(def, &case, types, extents, n) {
                    wrong.push(format!("{} {text} {types:?} {extents:?}: {e}", def.full_name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {n} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    n
}

#[test]
fn elementwise_and_reducing_rows_agree_with_the_reference() {
    use super::super::{activation, cast, elementwise, norm, reduce};
    let rows = [elementwise::ROWS, cast::ROWS, activation::ROWS, reduce::ROWS, norm::ROWS];
    let n = check_random(&rows, 24, elementwise_case);
    assert!(n > 3000, "only {n} nodes were checked");
}

#[test]
fn moving_and_sliding_rows_agree_with_the_reference() {
    use super::super::{conv, index, matmul, movement, pool, shape};
    let rows = [shape::ROWS, movement::ROWS, index::ROWS, matmul::ROWS, conv::ROWS, pool::ROWS];
    let n = check_random(&rows, 60, movement_case);
    assert!(n > 1500, "only {n} nodes were checked");
}
