//! Templates of cases: operands and attributes that must fit one another, with names for what is free.
//!
//! ```text
//! template   definitions, then a case (language: crate::cases), with these in it:
//! (a|b|)     one of these texts, or nothing; may be nested
//! (r:a|b)    as well, the same one for every group of the template that begins with r:
//! h:1..3     a definition: h is a number from 1 to 3. Letters without a definition are numbers from 1 to 4
//! n:h*d      n is this number. Numbers have * / ^ (rounded down, up) before + -, no brackets
//! [b,h*d]    numbers are extents, values of integer attributes, and filled in:
//! {0..s-1}   a random number each: of integers, or with a point in them of floats
//! {1..s#b,7} b random numbers, then 7. The last range goes on until the tensor is full; numbers begin again
//! {tokens:s:2:0:3}  places of 3 rows of s tokens, those of the first 2, 0 and 3 of each before the others
//! ```

use crate::cases::Random;
use crate::op::{AttrKind, OpDef};
use std::collections::BTreeMap;

/// A case by a template; `None` where what was drawn does not fit (a range without numbers, an extent below 0).
pub fn fill(def: &OpDef, template: &str, random: &mut Random) -> Option<String> {
    let text = choose(template.to_string(), random)?;
    let mut names = Names(BTreeMap::new());
    let mut case = vec![];
    for word in text.split_whitespace() {
        match (word.split_once(':'), word.split_once('=')) {
            (Some((name, value)), _) if !name.contains(['[', '=', '{', ';', '_']) => {
                let v = names.draw(value, random)?;
                names.0.insert(name.into(), v);
            }
            (_, Some((name, value))) if !word.contains(';') => {
                case.push(format!("{name}={}", attribute(def, name, value, &mut names, random)?));
            }
            _ => {
                let all: Option<Vec<String>> = word.split(';').map(|o| operand(o, &mut names, random)).collect();
                case.push(all?.join(";"));
            }
        }
    }
    Some(case.join(" "))
}

/// Takes one text of each group, the innermost first.
fn choose(mut text: String, random: &mut Random) -> Option<String> {
    let mut tags: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(end) = text.find(')') {
        let start = text[..end].rfind('(')?;
        let mut inside = &text[start + 1..end];
        let mut n = random.below(1 << 20);
        if let Some((tag, rest)) = inside.split_once(':')
            && tag.len() == 1
        {
            n = *tags.entry(tag.into()).or_insert(n);
            inside = rest;
        }
        let all: Vec<&str> = inside.split('|').collect();
        let one = all[usize::try_from(n).ok()? % all.len()].to_string();
        text.replace_range(start..=end, &one);
    }
    Some(text)
}

struct Names(BTreeMap<String, f64>);

impl Names {
    /// A number from a range, or what an expression gives.
    fn draw(&mut self, text: &str, random: &mut Random) -> Option<f64> {
        let Some((lo, hi)) = text.split_once("..") else { return self.value(text, random) };
        let whole = !text.replace("..", "").contains('.');
        let (lo, hi) = (self.value(lo, random)?, self.value(hi, random)?);
        if lo > hi {
            return None;
        }
        Some(match whole {
            true => lo + random.below((hi - lo) as u64 + 1) as f64,
            false => lo + (hi - lo) * (random.unit() + 2.0) / 4.0,
        })
    }
    fn value(&mut self, text: &str, random: &mut Random) -> Option<f64> {
        // The last operator of the lowest rank; a sign at the front is none.
        let at = |ops: &[char]| text.char_indices().skip(1).filter(|(_, c)| ops.contains(c)).map(|(i, _)| i).last();
        if let Some(i) = at(&['+', '-']).or_else(|| at(&['*', '/', '^'])) {
            let (a, b) = (self.value(&text[..i], random)?, self.value(&text[i + 1..], random)?);
            return match &text[i..=i] {
                "+" => Some(a + b),
                "-" => Some(a - b),
                "*" => Some(a * b),
                "/" => Some((a / b).floor()).filter(|v| v.is_finite()),
                _ => Some((a / b).ceil()).filter(|v| v.is_finite()),
            };
        }
        if let Ok(v) = text.parse() {
            return Some(v);
        }
        if let Some(rest) = text.strip_prefix('-') {
            return self.value(rest, random).map(|v| -v);
        }
        let letter = text.len() == 1 && text.starts_with(|c: char| c.is_ascii_lowercase());
        match self.0.get(text) {
            None if letter => {
                let v = 1.0 + random.below(4) as f64;
                self.0.insert(text.into(), v);
                Some(v)
            }
            known => known.copied(),
        }
    }
}

fn attribute(def: &OpDef, name: &str, text: &str, names: &mut Names, random: &mut Random) -> Option<String> {
    let kind = def.attrs.iter().find(|a| a.name == name).map(|a| a.kind);
    let text = match kind {
        _ if name == "outs" => text,
        Some(AttrKind::Int(_) | AttrKind::IntOpt | AttrKind::IntReq | AttrKind::Ints) => text,
        Some(AttrKind::Float(_) | AttrKind::FloatOpt | AttrKind::Floats) => text,
        _ => return Some(text.into()),
    };
    match text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        Some(list) => {
            let all: Option<Vec<String>> =
                list.split(',').filter(|t| !t.is_empty()).map(|t| Some(names.draw(t, random)?.to_string())).collect();
            Some(format!("[{}]", all?.join(",")))
        }
        None => Some(names.draw(text, random)?.to_string()),
    }
}

fn operand(text: &str, names: &mut Names, random: &mut Random) -> Option<String> {
    let Some((dtype, rest)) = text.split_once('[') else { return Some(text.into()) };
    let (inside, fill) = rest.split_once(']')?;
    let mut shape = vec![];
    for extent in inside.split(',').filter(|e| !e.is_empty()) {
        let v = names.value(extent, random)?;
        if v < 0.0 || v.fract() != 0.0 {
            return None;
        }
        shape.push(v as usize);
    }
    let extents = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let fill = match fill.strip_prefix('{').and_then(|f| f.strip_suffix('}')) {
        Some(fill) => {
            let v = numbers(fill, shape.iter().product(), names, random)?;
            format!("{{{}}}", v.iter().map(f64::to_string).collect::<Vec<_>>().join(","))
        }
        None => fill.into(),
    };
    Some(format!("{dtype}[{extents}]{fill}"))
}

/// The values that fill a tensor of `n` elements.
fn numbers(fill: &str, n: usize, names: &mut Names, random: &mut Random) -> Option<Vec<f64>> {
    if let Some(list) = fill.strip_prefix("tokens:") {
        let all: Option<Vec<f64>> = list.split(':').map(|t| names.value(t, random)).collect();
        let (row, lengths) = all?.split_first().map(|(&s, l)| (s as usize, l.to_vec()))?;
        let is_token = |i: &usize| ((i % row) as f64) < lengths[i / row];
        let places = 0..row * lengths.len();
        let (first, last): (Vec<usize>, Vec<usize>) = places.partition(is_token);
        return Some(first.into_iter().chain(last).map(|i| i as f64).collect());
    }
    let (mut v, mut goes_on) = (vec![], None);
    for item in fill.split(',').filter(|t| !t.is_empty()) {
        let (range, count) = item.split_once('#').unwrap_or((item, "1"));
        for _ in 0..names.value(count, random)? as usize {
            v.push(names.draw(range, random)?);
        }
        goes_on = range.contains("..").then_some(range);
    }
    while let Some(range) = goes_on.filter(|_| v.len() < n) {
        v.push(names.draw(range, random)?);
    }
    Some(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_give_cases_that_fit() {
        let registry = crate::Registry::builtin();
        let def = &registry[registry.newest("", "Gather")];
        let mut random = Random::new(3);
        let mut all = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let t = "n:2..3 m:n*2+1 [(a:n|m),5^2];i64[(a:n|m)]{0..n-1#2,9} axis=(a:0|1-n)";
            all.insert(fill(def, t, &mut random).unwrap());
        }
        let first = |s: &str| all.iter().any(|c| c.starts_with(s));
        assert!(first("[2,3];i64[2]{0,0,9} axis=0") && first("[7,3];i64[7]{2,1,9} axis=-2"), "{all:?}");
        assert_eq!(all.len(), 2 * (4 + 9), "{all:?}");
        assert_eq!(fill(def, "[2,2];i64[4]{tokens:2:1:2}", &mut random).unwrap(), "[2,2];i64[4]{0,2,3,1}");
        assert_eq!(fill(def, "[2];i64[1]{1..0}", &mut random), None);
        assert_eq!(fill(def, "[2];i64[3-4]", &mut random), None);
    }
}
