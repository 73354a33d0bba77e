//! Prints what a dispatch of the thread team costs: `cargo run --release -p hip-ep-runtime --example dispatch`.

use kernels::team::Team;
use runtime::Teams;
use std::time::{Duration, Instant};

fn busy(ns: u128) {
    let t = Instant::now();
    while t.elapsed().as_nanos() < ns {
        std::hint::spin_loop();
    }
}

fn median(mut f: impl FnMut()) -> f64 {
    let mut all: Vec<Duration> = (0..2001)
        .map(|_| {
            let t = Instant::now();
            f();
            t.elapsed()
        })
        .collect();
    all.sort();
    all[all.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    let teams = Teams::new(None);
    let n = teams.n_threads();
    let team = teams.enter(None);
    println!("{n} threads");
    println!("empty, back to back      {:8.2} us", median(|| team.run(n, 1, &|_, _| {})));
    println!("20 us a thread           {:8.2} us", median(|| team.run(n, 1, &|b, e| busy(20_000 * (e - b) as u128))));
    let paused = median(|| busy(200_000));
    let after = median(|| {
        busy(200_000);
        team.run(n, 1, &|b, e| busy(20_000 * (e - b) as u128));
    });
    println!("the same after 200 us    {:8.2} us", after - paused);
    drop(team);
    println!("enter, one dispatch      {:8.2} us", median(|| teams.enter(None).run(n, 1, &|_, _| {})));
}
