//! Sandboxes: making and removing them, and how it is to have many.

use std::{
    fs,
    process::Command as Process,
    time::{Duration, Instant},
};

use sandgate::{Client, Command, Sandbox, v1};
use sandgate_bench::measure::{Entrant, Estimate, Samples, estimate, take_rows, take_turns};

use super::{Bench, Entry, commands::ROW};
use crate::work;

const ONE: &str = "One sandbox";
const MANY: &str = "Many sandboxes";
const MEMORY: &str = "Memory of idle sandboxes";
const COUNTS: [usize; 4] = [10, 100, 500, 1_000];
/// As long as the kernel takes for the namespaces that were left: a network namespace that goes holds up those that come.
const SETTLE: Duration = Duration::from_millis(20);
const MIB: f64 = (1 << 20) as f64;

pub(crate) async fn one(bench: &mut Bench) {
    let ours = &bench.ours;
    let create = || async {
        let begun = Instant::now();
        let sandbox = ours.client.create().send().await.unwrap().sandbox;
        hello(&sandbox).await;
        let cost = begun.elapsed().as_secs_f64();
        sandbox.delete().await.unwrap();
        cost
    };
    let entrants = [
        Entrant::telling("sandgate", create).settling(SETTLE),
        Entrant::new("unshare", unshare).settling(SETTLE),
    ];
    let costs = take_turns(bench.scale.rounds(60), &entrants).await;
    let entry = Entry::cost(ONE, "Create to first output", "`unshare` with the same namespaces").at_most(3.0);
    bench.report.add(entry.is(costs.ratio("sandgate", "unshare")));

    let create = || async {
        let begun = Instant::now();
        let sandbox = ours.client.create().send().await.unwrap().sandbox;
        let cost = begun.elapsed().as_secs_f64();
        sandbox.delete().await.unwrap();
        cost
    };
    let delete = || removed(ours, false);
    let gone = || removed(ours, true);
    let entrants = [
        Entrant::telling("create", create),
        Entrant::telling("delete", delete),
        Entrant::telling("gone", gone),
    ];
    let costs = take_turns(bench.scale.rounds(40), &entrants).await;
    let cost = |name| Entry::cost(ONE, name, "Create");
    bench.report.add(
        cost("Delete, to its answer")
            .at_most(1.0)
            .is(costs.ratio("delete", "create")),
    );
    bench
        .report
        .add(cost("Delete, until nothing is left").is(costs.ratio("gone", "create")));
}

/// Seconds that Delete takes; if `wholly`, until the sandbox's directory is gone.
async fn removed(ours: &crate::ours::Ours, wholly: bool) -> f64 {
    let sandbox = ours.client.create().send().await.unwrap().sandbox;
    let trash = ours.server.state_dir().join("trash");
    let is_empty = || fs::read_dir(&trash).is_ok_and(|mut left| left.next().is_none());
    while !is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let begun = Instant::now();
    sandbox.delete().await.unwrap();
    while wholly && !is_empty() {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    begun.elapsed().as_secs_f64()
}

async fn hello(sandbox: &Sandbox) {
    let answer = sandbox.run(Command::new(["/bin/echo", "hello"])).send().await.unwrap();
    assert_eq!(answer.stdout.unwrap_or_default().head, "hello\n");
}

/// Makes the same namespaces and runs the same command in them.
async fn unshare() {
    let arguments = [
        "-r",
        "-m",
        "-p",
        "-f",
        "-n",
        "-i",
        "-u",
        "--mount-proc",
        "/bin/echo",
        "hello",
    ];
    let output = Process::new("unshare").args(arguments).output().unwrap();
    assert_eq!(output.stdout, b"hello\n");
}

/// What is measured at each count.
struct AtCount {
    count: usize,
    create: Samples,
    list: Samples,
    run: Samples,
}

pub(crate) async fn many(bench: &mut Bench) {
    let ours = &bench.ours;
    let rounds = bench.scale.rounds(40);
    let mut made = vec![ours.sandbox.clone()];
    let mut measured = Vec::new();
    let memory = Memory::now(ours);
    for count in COUNTS.map(|count| bench.scale.count(count).max(2)) {
        while made.len() < count {
            made.push(ours.client.create().send().await.unwrap().sandbox);
        }
        let create = || async {
            let begun = Instant::now();
            let sandbox = ours.client.create().send().await.unwrap().sandbox;
            let cost = begun.elapsed().as_secs_f64();
            sandbox.delete().await.unwrap();
            cost
        };
        let create = [Entrant::telling("sandgate", create), Entrant::new("unshare", unshare)];
        let list = [
            Entrant::new("sandgate", || list(&ours.client)),
            Entrant::new("unshare", unshare),
        ];
        let run = [
            Entrant::new("sandgate", || work::run(&ours.sandbox)),
            Entrant::new("unshare", unshare),
        ];
        measured.push(AtCount {
            count,
            create: take_turns(rounds, &create).await,
            list: take_rows(rounds, ROW, &list).await.all,
            run: take_rows(rounds, ROW, &run).await.all,
        });
    }
    let grown = Memory::now(ours).since(&memory, made.len() - 1);
    let (first, later) = measured.split_first().unwrap();
    for at in later {
        for (what, now, then) in [
            ("the next Create", &at.create, &first.create),
            ("List, a page of 10", &at.list, &first.list),
            ("one Run", &at.run, &first.run),
        ] {
            let growth = estimate(&[now, then], |costs| {
                let against = |at: usize| costs[at].median("sandgate") / costs[at].median("unshare");
                against(0) / against(1)
            });
            let name = format!("{what} at {} sandboxes", at.count);
            let entry = Entry::cost(MANY, name, format!("at {}, both by `unshare`", first.count));
            bench.report.add(entry.at_most(1.3).is(growth));
        }
    }
    let entry = |name, goal| Entry::mebibytes(MEMORY, name).at_most(goal);
    let report = &mut bench.report;
    report.add(entry("of its processes (PSS), each", 2.0).is(Estimate::exact(grown.processes)));
    report.add(entry("of the machine (MemAvailable), each", 3.0).is(Estimate::exact(grown.machine)));
    report.add(entry("of the server in all", 64.0).is(Estimate::exact(grown.server)));
    for sandbox in made.drain(1..) {
        sandbox.delete().await.unwrap();
    }
}

async fn list(client: &Client) {
    let request = v1::ListRequest {
        page_size: 10,
        ..Default::default()
    };
    client.raw().list(request).await.unwrap();
}

/// Mebibytes.
#[derive(Debug)]
struct Memory {
    processes: f64,
    machine: f64,
    server: f64,
}

// === impl Memory ===

impl Memory {
    fn now(ours: &crate::ours::Ours) -> Self {
        let server = ours.server.pid();
        let state_dir = ours.server.state_dir().display().to_string();
        let mut processes = 0.0;
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            if pid != server && belongs(pid, &state_dir) {
                processes += field(&format!("/proc/{pid}/smaps_rollup"), "Pss:").unwrap_or_default();
            }
        }
        Self {
            processes,
            machine: field("/proc/meminfo", "MemAvailable:").unwrap(),
            server: field(&format!("/proc/{server}/status"), "VmRSS:").unwrap(),
        }
    }

    fn since(&self, before: &Self, sandboxes: usize) -> Self {
        let each = |growth: f64| growth / sandboxes as f64;
        Self {
            processes: each(self.processes - before.processes),
            machine: each(before.machine - self.machine),
            server: self.server,
        }
    }
}

/// Whether a process is a monitor of this server, or the runtime of one.
fn belongs(pid: u32, state_dir: &str) -> bool {
    let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_monitor = |pid: u32| String::from_utf8_lossy(&line(pid)).contains(state_dir);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
    is_monitor(pid) || parent.is_some_and(is_monitor)
}

/// A field of a file of the kernel's, in mebibytes.
fn field(path: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix(name))?.trim();
    let kilobytes: f64 = kilobytes.trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024.0 / MIB)
}
