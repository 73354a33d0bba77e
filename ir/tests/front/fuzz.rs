//! A second of mutated models and texts: no panic, and what is accepted keeps its promises.

use crate::import::import;
use crate::model::{nested, small};
use prost::Message;
use std::time::{Duration, Instant};

/// A small generator of random numbers with a fixed seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

/// Flips, cuts, repeats and splices.
fn mutate(r: &mut Random, seed: &[u8]) -> Vec<u8> {
    let mut b = seed.to_vec();
    for _ in 0..1 + r.next(4) {
        let at = r.next(b.len());
        match r.next(6) {
            0 if !b.is_empty() => b[at] ^= 1 << r.next(8),
            1 if !b.is_empty() => b[at] = r.next(256) as u8,
            2 => b.truncate(at),
            3 => b.insert(at, r.next(256) as u8),
            4 if !b.is_empty() => {
                let end = (at + r.next(16)).min(b.len());
                let piece = b[at..end].to_vec();
                let to = r.next(b.len());
                b.splice(to..to, piece);
            }
            _ => {
                let end = (at + r.next(8)).min(b.len());
                b.drain(at..end);
            }
        }
    }
    b
}

fn run(seeds: &[Vec<u8>], check: impl Fn(&[u8]) -> bool) -> (usize, usize) {
    let (mut r, start) = (Random(0x9e3779b97f4a7c15), Instant::now());
    let (mut n, mut accepted) = (0, 0);
    for s in seeds {
        assert!(check(s), "the seeds themselves are accepted");
    }
    while start.elapsed() < Duration::from_millis(500) || n < 200 {
        let input = mutate(&mut r, &seeds[n % seeds.len()]);
        accepted += usize::from(check(&input));
        n += 1;
    }
    (n, accepted)
}

#[test]
fn mutated_models() {
    let seeds = [small().encode_to_vec(), nested().encode_to_vec()];
    let (n, accepted) = run(&seeds, ir::fuzz::import);
    assert!(accepted * 50 > n, "{accepted} of {n} mutants were models: too few to test anything");
}

#[test]
fn mutated_texts() {
    let mut seeds: Vec<Vec<u8>> = crate::text::SEEDS.iter().map(|s| s.as_bytes().to_vec()).collect();
    seeds.push(ir::text::print_onnx(&import(&small()).unwrap()).into_bytes());
    let (n, accepted) = run(&seeds, ir::fuzz::text);
    assert!(accepted * 200 > n, "{accepted} of {n} mutants were texts: too few to test anything");
}
