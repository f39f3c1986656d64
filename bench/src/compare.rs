//! Two kinds of work, measured in turns.

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Does both in turns and prints how the first compares with the second.
pub(crate) async fn compare<A: Future<Output = ()>, B: Future<Output = ()>>(
    name: &str,
    rounds: usize,
    ours: impl Fn() -> A,
    limit: impl Fn() -> B,
) {
    // The first of each is paid for by what it finds cold.
    timed(ours()).await;
    timed(limit()).await;
    let mut ratios = Vec::with_capacity(rounds);
    for round in 0..rounds {
        // Each goes first as often as the other.
        let (ours, limit) = if round % 2 == 0 {
            let ours = timed(ours()).await;
            (ours, timed(limit()).await)
        } else {
            let limit = timed(limit()).await;
            (timed(ours()).await, limit)
        };
        ratios.push(ours.as_secs_f64() / limit.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios[(rounds * part / 4).min(rounds - 1)];
    println!("{name}: {:.2} [{:.2} to {:.2}] of {rounds}", at(2), at(1), at(3));
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let begun = Instant::now();
    work.await;
    begun.elapsed()
}
