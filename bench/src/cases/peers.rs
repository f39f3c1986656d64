//! What users would pick instead, doing the same work.

use std::time::Duration;

use bytes::Bytes;
use sandgate_bench::measure::{Entrant, take_rows, take_turns};
use sandgate_tests::{Runtime, RuntimeOptions, link_to};

use super::{Bench, Entry, commands::ROW};
use crate::{
    peers::{
        bwrap,
        python_runtime::{self, PythonRuntime},
        runc::Runc,
        sandboxd::Sandboxd,
        ssh::Ssh,
    },
    work,
};

const COMMANDS: &str = "One command (`sh -c true`), and what others take for it";
const FILES: &str = "Files, and what others take for them";
const SMALL: usize = 4096;
/// As long as the kernel takes for what bwrap and runc leave.
const SETTLE: Duration = Duration::from_millis(20);

pub(crate) async fn commands(bench: &mut Bench) {
    // A process of this machine, as the daemons of others are; and the same in a sandbox.
    let runtime = Runtime::start_with(RuntimeOptions {
        cgroups: true,
        ..Default::default()
    });
    let runtime = runtime.await;
    let alone = link_to(runtime.socket());
    let confined = link_to(bench.ours.runtime_socket());
    let (sandboxd, python_runtime) = (Sandboxd::start().await, PythonRuntime::start().await);
    let runc = Runc::start().await;
    // A smoke run is one of the tests, which should not put an sshd on anybody's machine.
    let ssh = match bench.scale.is_smoke() {
        true => None,
        false => Some(Ssh::start().await),
    };
    let (sandbox, nearby, floor) = (&bench.ours.sandbox, &bench.ours.nearby, &bench.floor);
    let mut entrants = vec![
        Entrant::new("bare", work::spawn_bare),
        Entrant::new("runtime", || work::run_next_door(&alone)),
        Entrant::new("confined", || work::run_next_door(&confined)),
        Entrant::new("sandgate", || work::run(sandbox)),
        Entrant::new("nearby", || work::run(nearby)),
        Entrant::new("floor", || work::run_at(&floor.two_hops)),
        Entrant::new("one hop", || work::run_at(&floor.one_hop)),
        Entrant::new("sandboxd", || sandboxd.run()),
        Entrant::new("python-runtime", || python_runtime.run()),
        Entrant::new("runc exec", || runc.exec()).settling(SETTLE),
        Entrant::new("runc run", || runc.run()).settling(SETTLE),
        Entrant::new("bwrap", bwrap::run_one).settling(SETTLE),
    ];
    entrants.extend(ssh.iter().map(|ssh| Entrant::new("ssh", || ssh.run())));
    let rows = take_rows(bench.scale.rounds(80), ROW, &entrants).await;
    let costs = &rows.all;
    let cost = |name, against| Entry::cost(COMMANDS, name, against);
    let (run, alone) = ("Run, above a bare spawn", "the runtime alone, above a bare spawn");
    let above = |one, other| costs.ratio_above("bare", one, other);
    let report = &mut bench.report;
    report.add(cost(alone, "sandboxd's").at_most(0.5).is(above("runtime", "sandboxd")));
    report.add(cost(run, "sandboxd's").at_most(1.0).is(above("sandgate", "sandboxd")));
    let by_socket = cost("Run by the server's Unix socket, above a bare spawn", "sandboxd's");
    report.add(by_socket.is(above("nearby", "sandboxd")));
    let first = cost("Run, the first of a row, above a bare spawn", "sandboxd's");
    report.add(first.is(rows.first.ratio_above("bare", "sandgate", "sandboxd")));
    let confined = cost("the runtime in a sandbox, above a bare spawn", "sandboxd's");
    report.add(confined.is(above("confined", "sandboxd")));
    for (peer, against) in [
        ("python-runtime", "python-runtime's"),
        ("runc exec", "`runc exec`'s"),
        ("runc run", "`runc run`'s"),
    ] {
        report.add(cost(run, against).at_most(0.25).is(above("sandgate", peer)));
    }
    if ssh.is_some() {
        let ssh = cost(run, "ssh's, on a connection that is there").at_most(0.25);
        report.add(ssh.is(above("sandgate", "ssh")));
    }
    report.add(cost(run, "`bwrap`'s").is(above("sandgate", "bwrap")));
    // What one hop and two can't go below.
    let hop = cost("one tonic hop, above a bare spawn", "sandboxd's");
    report.add(hop.is(above("one hop", "sandboxd")));
    for (peer, against) in [("sandboxd", "sandboxd's"), ("python-runtime", "python-runtime's")] {
        report.add(cost("the floor, above a bare spawn", against).is(above("floor", peer)));
    }
}

pub(crate) async fn files(bench: &mut Bench) {
    let (sandboxd, python_runtime) = (Sandboxd::start().await, PythonRuntime::start().await);
    let sandbox = &bench.ours.sandbox;
    let small = vec![b'x'; SMALL];
    sandbox.upload(work::SMALL_FILE, small.clone()).await.unwrap();
    sandboxd.give("small", &small);
    python_runtime.give("small", &small);
    let reads = [
        Entrant::new("sandgate", || work::read(sandbox, 1)),
        Entrant::new("sandboxd", || sandboxd.download("small", SMALL)),
        Entrant::new("python-runtime", || python_runtime.download("small", SMALL)),
    ];
    let reads = take_rows(bench.scale.rounds(200), ROW, &reads).await.all;

    let size = bench.scale.bytes(64 << 20);
    let content = &Bytes::from(vec![7; size]);
    let form = &python_runtime::form("large", content);
    let rounds = bench.scale.rounds(9);
    let up = [
        Entrant::new("sandgate", || work::upload(sandbox, size)),
        Entrant::new("sandboxd", || sandboxd.upload("large", content.clone())),
        Entrant::new("python-runtime", || python_runtime.upload(form.clone())),
    ];
    let up = take_turns(rounds, &up).await;
    let down = [
        Entrant::new("sandgate", || work::download(sandbox, size)),
        Entrant::new("sandboxd", || sandboxd.download("large", size)),
        Entrant::new("python-runtime", || python_runtime.download("large", size)),
    ];
    let down = take_turns(rounds, &down).await;
    let report = &mut bench.report;
    for (peer, against) in [
        ("sandboxd", "sandboxd's REST"),
        ("python-runtime", "python-runtime's HTTP"),
    ] {
        let cost = |name| Entry::cost(FILES, name, against);
        report.add(cost("FileOps, a read of 4 KiB").is(reads.ratio("sandgate", peer)));
        report.add(cost("Upload of 64 MiB").is(up.ratio("sandgate", peer)));
        report.add(cost("Download of 64 MiB").is(down.ratio("sandgate", peer)));
    }
}
