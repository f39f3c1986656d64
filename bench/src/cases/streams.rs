//! Output: much of it, to many, and past one who does not read.

use std::time::Instant;

use futures_util::future::join_all;
use sandgate::{Command, Event, Exec, Sandbox, v1::OnFull};
use sandgate_bench::measure::{Entrant, take_turns};

use super::{Bench, Entry};
use crate::work;

const STDOUT: &str = "stdout to a client (`on_full` HOLD, 4 MiB retained)";
const FOLLOWERS: &str = "One command, many followers";
const STOPPED: &str = "A reader that stops";

pub(crate) async fn stdout(bench: &mut Bench) {
    let size = bench.scale.bytes(1 << 30);
    let (sandbox, floor) = (&bench.ours.sandbox, &bench.floor);
    let entrants = [
        Entrant::new("sandgate", || work::stdout(sandbox, size)),
        Entrant::new("floor", || work::stdout_of_floor(&floor.two_hops, size)),
    ];
    let costs = take_turns(bench.scale.rounds(7), &entrants).await;
    bench.report.add(
        Entry::speed(STDOUT, "1 GiB", "the floor's stream, messages of 64 KiB")
            .at_least(0.7)
            .is(costs.ratio("floor", "sandgate")),
    );
}

pub(crate) async fn followers(bench: &mut Bench) {
    let size = bench.scale.bytes(64 << 20);
    let sandbox = &bench.ours.sandbox;
    // Seconds for each byte that any of them gets.
    let followed = move |by: usize| {
        move || async move {
            let begun = Instant::now();
            let seen = follow(sandbox, size, by).await;
            begun.elapsed().as_secs_f64() / seen as f64
        }
    };
    let entrants = [
        Entrant::telling("1", followed(1)),
        Entrant::telling("10", followed(10)),
        Entrant::telling("100", followed(100)),
    ];
    let costs = take_turns(bench.scale.rounds(7), &entrants).await;
    let speed = |name| Entry::speed(FOLLOWERS, name, "one");
    bench.report.add(
        speed("bytes per second to 10 together")
            .at_least(0.9)
            .is(costs.ratio("1", "10")),
    );
    bench
        .report
        .add(speed("bytes per second to 100 together").is(costs.ratio("1", "100")));
}

/// Has one command followed by several from its first byte; answers how many bytes they got together.
async fn follow(sandbox: &Sandbox, size: usize, by: usize) -> usize {
    let (id, followers) = gather(sandbox, work::gated_zeros(size, OnFull::Hold), by).await;
    work::open_gate(sandbox, &id).await;
    join_all(followers.into_iter().map(work::drain)).await.into_iter().sum()
}

/// Starts a command and has it followed by several, who have all arrived.
async fn gather(sandbox: &Sandbox, command: Command, by: usize) -> (String, Vec<Exec>) {
    let info = sandbox.start(command).await.unwrap();
    let arrived = (0..by).map(|_| async {
        let mut exec = sandbox.attach_exec(info.exec_id.clone()).follow();
        let first = exec.next().await;
        assert!(matches!(first, Some(Ok(Event::Started(_)))), "{first:?}");
        exec
    });
    let followers = join_all(arrived).await;
    (info.exec_id, followers)
}

pub(crate) async fn stopped(bench: &mut Bench) {
    let size = bench.scale.bytes(512 << 20);
    let sandbox = &bench.ours.sandbox;
    let seven = move |beside: bool| {
        move || async move {
            let command = work::gated_zeros(size, OnFull::DropOldest);
            let (id, mut followers) = gather(sandbox, command, 7 + usize::from(beside)).await;
            // It is there, and reads nothing until the others are done: for longer than ten seconds if they take that.
            let stopped = followers.split_off(7);
            work::open_gate(sandbox, &id).await;
            let begun = Instant::now();
            let seen: usize = join_all(followers.into_iter().map(work::drain)).await.into_iter().sum();
            drop(stopped);
            begun.elapsed().as_secs_f64() / seen as f64
        }
    };
    let entrants = [
        Entrant::telling("alone", seven(false)),
        Entrant::telling("beside", seven(true)),
    ];
    let costs = take_turns(bench.scale.rounds(9), &entrants).await;
    bench.report.add(
        Entry::speed(STOPPED, "7 beside one that reads nothing", "the 7 without it")
            .at_least(0.95)
            .is(costs.ratio("alone", "beside")),
    );
}
