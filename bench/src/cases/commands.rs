//! Commands: one after the other, and many at once.

use futures_util::future::join_all;
use sandgate_bench::measure::{Entrant, take_rows, take_turns};
use sandgate_tests::{Runtime, RuntimeOptions, link_to};

use super::{Bench, Entry};
use crate::work;

const ONE: &str = "One command (`sh -c true`)";
const MANY: &str = "64 commands at once";
const AT_ONCE: usize = 64;
/// How many commands an entrant runs when its turn comes.
pub(super) const ROW: usize = 5;

pub(crate) async fn one(bench: &mut Bench) {
    let runtime = Runtime::start_with(RuntimeOptions {
        cgroups: true,
        ..Default::default()
    })
    .await;
    let alone = link_to(runtime.socket());
    let (sandbox, floor) = (&bench.ours.sandbox, &bench.floor);
    let entrants = [
        Entrant::new("sandgate", || work::run(sandbox)),
        Entrant::new("runtime", || work::run_next_door(&alone)),
        Entrant::new("floor", || work::run_at(&floor.two_hops)),
        Entrant::new("one hop", || work::run_at(&floor.one_hop)),
        Entrant::new("bare", work::spawn_bare),
    ];
    let rows = take_rows(bench.scale.rounds(150), ROW, &entrants).await;
    let costs = &rows.all;
    let report = &mut bench.report;
    let cost = |name, against| Entry::cost(ONE, name, against);
    report.add(
        cost("Run, above a bare spawn", "the floor's")
            .at_most(1.3)
            .is(costs.ratio_above("bare", "sandgate", "floor")),
    );
    let p99 = costs.estimate(|costs| costs.quantile("sandgate", 0.99) / costs.quantile("floor", 0.99));
    report.add(cost("Run, p99", "the floor's").at_most(1.3).is(p99));
    report.add(
        cost("Run, the first of a row, above a bare spawn", "the floor's")
            .is(rows.first.ratio_above("bare", "sandgate", "floor")),
    );
    report.add(cost("Run", "a bare spawn").is(costs.ratio("sandgate", "bare")));
    report.add(cost("the floor", "a bare spawn").is(costs.ratio("floor", "bare")));
    report.add(
        cost("the runtime alone, above a bare spawn", "one tonic hop's")
            .is(costs.ratio_above("bare", "runtime", "one hop")),
    );
}

pub(crate) async fn many(bench: &mut Bench) {
    let sandbox = &bench.ours.sandbox;
    let bare = || async {
        let spawn = || tokio::task::spawn_blocking(|| futures_util::FutureExt::now_or_never(work::spawn_bare()));
        join_all((0..AT_ONCE).map(|_| spawn())).await;
    };
    let entrants = [
        Entrant::new("sandgate", || async {
            join_all((0..AT_ONCE).map(|_| work::run(sandbox))).await;
        }),
        Entrant::new("floor", || async {
            join_all((0..AT_ONCE).map(|_| work::run_at(&bench.floor.two_hops))).await;
        }),
        Entrant::new("bare", bare),
    ];
    let costs = take_turns(bench.scale.rounds(40), &entrants).await;
    let speed = |name, against| Entry::speed(MANY, name, against);
    bench.report.add(
        speed("commands per second", "bare spawns")
            .at_least(0.7)
            .is(costs.ratio("bare", "sandgate")),
    );
    bench
        .report
        .add(speed("commands per second", "the floor").is(costs.ratio("floor", "sandgate")));
}
