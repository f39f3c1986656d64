//! Output: every byte once, in order, whoever follows and however often they are cut off.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::{fs, path::Path, sync::Arc, time::Duration};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use sandgate_proto::{
    runtime::v1::{
        ExecCaughtUp, ExecOffsets, ExecSignal, ExecSpec, ExecState, FollowEnd, FollowExecRequest, FollowStart,
        OutputStream, SignalExecRequest, StderrMode, exec_event::Event, exec_exit::Status, follow_from::Place,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Output, Runtime, argv, collect, follow, get, new_id, next_event, random_bytes, reason, seeded, shell,
    start, target, until,
};
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

const COMMANDS: usize = 200;
const AT_ONCE: usize = 8;
const CUTS: usize = 20;
const SLOW_UP_TO: usize = 256 << 10;
const START: Place = Place::Start(FollowStart {});
const PATIENCE: Duration = Duration::from_secs(240);

/// A command whose output is known.
struct Known {
    id: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    spec: ExecSpec,
}

// === impl Known ===

impl Known {
    /// Random bytes to both streams, in random pieces.
    fn new(rng: &mut StdRng, size: usize, workspace: &Path) -> Self {
        let id = new_id("known");
        let split = rng.random_range(0..=size);
        let (stdout, stderr) = (random_bytes(rng, split), random_bytes(rng, size - split));
        let (out, err) = (workspace.join(format!("{id}.out")), workspace.join(format!("{id}.err")));
        fs::write(&out, &stdout).unwrap();
        fs::write(&err, &stderr).unwrap();
        // `head` takes no more from a shared descriptor than it writes.
        let mut script = format!("exec 3<{} 4<{}\n", out.display(), err.display());
        for _ in 0..rng.random_range(0..8) {
            let piece = rng.random_range(1..=size / 4 + 1);
            script += &match rng.random_range(0..3) {
                0 => format!("head -c {piece} <&4 >&2\n"),
                _ => format!("head -c {piece} <&3\n"),
            };
        }
        // The rest of both, at the same time.
        script += "cat <&3 & cat <&4 >&2; wait\n";
        Self {
            id,
            stdout,
            stderr,
            spec: shell(script),
        }
    }

    fn check(&self, who: &str, output: &Output) {
        let id = &self.id;
        assert!(output.gaps.is_empty(), "{who} of {id}: {:?}", output.gaps);
        assert!(output.stdout == self.stdout, "{who} of {id}: stdout differs");
        assert!(output.stderr == self.stderr, "{who} of {id}: stderr differs");
        assert_eq!(output.exit.as_ref().unwrap().status, Some(Status::Code(0)));
        assert_eq!(output.ended.as_ref().unwrap().total, Some(output.next));
    }
}

/// How much a follower has of both streams.
fn total(output: &Output) -> usize {
    output.stdout.len() + output.stderr.len()
}

/// The interleaving as runs of one stream: how the runs were cut into pieces is nobody's business.
fn runs(output: &Output) -> Vec<(OutputStream, usize)> {
    let mut runs: Vec<(OutputStream, usize)> = vec![];
    for &(stream, length) in &output.order {
        match runs.last_mut() {
            Some(run) if run.0 == stream => run.1 += length,
            _ => runs.push((stream, length)),
        }
    }
    runs
}

/// Forgets the last bytes, as somebody who was cut off before they came.
fn cut(output: &mut Output, at: usize) {
    let excess = total(output) - at;
    if excess == 0 {
        return;
    }
    let (stream, length) = output.order.last_mut().unwrap();
    assert!(excess < *length);
    *length -= excess;
    let (bytes, next) = match stream {
        OutputStream::Stdout => (&mut output.stdout, &mut output.next.stdout),
        _ => (&mut output.stderr, &mut output.next.stderr),
    };
    bytes.truncate(bytes.len() - excess);
    *next -= excess as u64;
}

/// Follows to the end, cut off at each of the points, with the stream or with the connection.
async fn follow_cut(runtime: &Runtime, known: &Known, mut rng: StdRng) -> Output {
    let size = known.stdout.len() + known.stderr.len();
    let mut points: Vec<usize> = (0..CUTS).map(|_| rng.random_range(0..=size)).collect();
    points.sort_unstable_by(|a, b| b.cmp(a));
    let mut client = runtime.connect().await;
    let mut output = Output::default();
    let mut events = follow(&mut client, &known.id, START).await;
    loop {
        while let Some(point) = points.pop_if(|point| *point <= total(&output)) {
            cut(&mut output, point);
            drop(events);
            if rng.random() {
                client = runtime.connect().await;
            }
            events = follow(&mut client, &known.id, Place::Offsets(output.next)).await;
        }
        match next_event(&mut events).await {
            Some(event) => output.take(event),
            None => break,
        }
    }
    assert!(points.is_empty(), "{} cuts were not made", points.len());
    output
}

/// Follows at 1 KiB a millisecond.
async fn follow_slowly(client: &mut Client, known: &Known) -> Output {
    let mut output = Output::default();
    let mut events = follow(client, &known.id, START).await;
    while let Some(event) = next_event(&mut events).await {
        let before = total(&output);
        output.take(event);
        let kibibytes = (total(&output) - before).div_ceil(1 << 10) as u64;
        tokio::time::sleep(Duration::from_millis(kibibytes)).await;
    }
    output
}

/// One command with its three followers.
async fn three_followers(runtime: Arc<Runtime>, mut rng: StdRng, size: usize) {
    let known = Known::new(&mut rng, size, &runtime.workspace());
    let mut client = runtime.connect().await;
    start(&mut client, &known.id, known.spec.clone()).await;
    let slow = async {
        if size > SLOW_UP_TO {
            return None;
        }
        Some(follow_slowly(&mut runtime.connect().await, &known).await)
    };
    let (cut, slow) = tokio::join!(follow_cut(&runtime, &known, rng), slow);
    let late = collect(&mut client, &known.id, ExecOffsets::default()).await;
    known.check("the one that was cut off", &cut);
    known.check("the late one", &late);
    assert_eq!(late.at_exit, late.exit.as_ref().unwrap().offsets);
    assert_eq!(runs(&cut), runs(&late), "{}", known.id);
    if let Some(slow) = slow {
        known.check("the slow one", &slow);
        assert_eq!(runs(&slow), runs(&late), "{}", known.id);
    }
    for stream in ["out", "err"] {
        fs::remove_file(runtime.workspace().join(format!("{}.{stream}", known.id))).unwrap();
    }
}

/// Most outputs are small, a few are of 20 MB.
fn size(rng: &mut StdRng, index: usize) -> usize {
    match index {
        0 => 0,
        1 => 20_000_000,
        2..5 => rng.random_range(4 << 20..20_000_000),
        5..25 => rng.random_range(256 << 10..2 << 20),
        _ => {
            let most = 1_usize << rng.random_range(1..=18);
            rng.random_range(0..=most)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_once_and_in_order() {
    let mut rng = seeded();
    // Little memory, so that most of it is read back from files.
    let runtime = Arc::new(Runtime::with_args(&["--memory-bytes", "2097152"]).await);
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut commands = JoinSet::new();
    for index in 0..COMMANDS {
        let (size, own) = (size(&mut rng, index), StdRng::seed_from_u64(rng.random()));
        let (runtime, turns) = (runtime.clone(), turns.clone());
        commands.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            three_followers(runtime, own, size).await;
        });
    }
    let all = async {
        while let Some(done) = commands.join_next().await {
            done.unwrap();
        }
    };
    timeout(PATIENCE, all).await.unwrap();
}

/// What a shell waits for until the test goes on.
fn wait_for(file: &str) -> String {
    format!("while [ ! -e {file} ]; do sleep 0.02; done")
}

async fn kill(client: &mut Client, id: &str) {
    let signal = Some(ExecSignal { signal: 9 });
    let request = SignalExecRequest {
        exec_id: id.to_owned(),
        signal,
        ..Default::default()
    };
    client.signal_exec(request).await.unwrap();
}

#[tokio::test]
async fn merged_streams_keep_their_order() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let script = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let spec = ExecSpec {
        stderr: StderrMode::Merged.into(),
        ..shell(script)
    };
    start(&mut client, "merged", spec).await;
    let output = timeout(PATIENCE, collect(&mut client, "merged", ExecOffsets::default()))
        .await
        .unwrap();
    let expected: String = (0..500).map(|i| format!("out {i}\nerr {i}\n")).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert!(output.stderr.is_empty());
}

#[tokio::test]
async fn from_the_end_comes_only_what_is_new() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let script = format!("echo old; echo older >&2; {}; echo new; echo newer >&2", wait_for("go"));
    start(&mut client, "end", shell(script)).await;
    let at = ExecOffsets { stdout: 4, stderr: 6 };
    until(&mut client, "end", |exec| exec.written == Some(at)).await;
    let mut events = follow(&mut client, "end", Place::End(FollowEnd {})).await;
    fs::write(runtime.workspace().join("go"), "").unwrap();
    let mut output = Output::at(at);
    while let Some(event) = timeout(PATIENCE, next_event(&mut events)).await.unwrap() {
        output.take(event);
    }
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"new\n"[..], &b"newer\n"[..])
    );
    assert!(output.exit.is_some() && output.ended.is_some());

    // After the end there is nothing new but that it has ended.
    let mut events = follow(&mut client, "end", Place::End(FollowEnd {})).await;
    let mut output = Output::at(ExecOffsets { stdout: 8, stderr: 12 });
    while let Some(event) = timeout(PATIENCE, next_event(&mut events)).await.unwrap() {
        output.take(event);
    }
    assert!(output.order.is_empty() && output.exit.is_some() && output.ended.is_some());
}

/// What there is now, and where it ends.
async fn glance(client: &mut Client, id: &str, from: ExecOffsets) -> (Output, Option<ExecCaughtUp>) {
    let targets = vec![target(id, Place::Offsets(from))];
    let request = FollowExecRequest {
        targets,
        no_wait: true,
        ..Default::default()
    };
    let mut events = client.follow_exec(request).await.unwrap().into_inner();
    let (mut output, mut caught_up) = (Output::at(from), None);
    while let Some(event) = timeout(PATIENCE, next_event(&mut events)).await.unwrap() {
        assert!(caught_up.is_none(), "something came after caught_up: {event:?}");
        match event.event {
            Some(Event::CaughtUp(it)) => caught_up = Some(it),
            _ => output.take(event),
        }
    }
    (output, caught_up)
}

#[tokio::test]
async fn without_waiting_it_ends_where_the_output_is() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let script = format!("printf first; {}; printf second; printf err >&2", wait_for("go"));
    start(&mut client, "glance", shell(script)).await;
    until(&mut client, "glance", |exec| exec.written.unwrap().stdout == 5).await;
    let (output, caught_up) = glance(&mut client, "glance", ExecOffsets::default()).await;
    assert_eq!(output.stdout, b"first");
    let here = caught_up.unwrap().offsets.unwrap();
    assert_eq!(here, ExecOffsets { stdout: 5, stderr: 0 });
    assert!(output.exit.is_none() && output.ended.is_none());
    let (output, caught_up) = glance(&mut client, "glance", here).await;
    assert!(output.order.is_empty());
    assert_eq!(caught_up.unwrap().offsets, Some(here));

    fs::write(runtime.workspace().join("go"), "").unwrap();
    until(&mut client, "glance", |exec| exec.output_ended).await;
    let (output, _) = glance(&mut client, "glance", here).await;
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"second"[..], &b"err"[..]));
    assert_eq!(output.exit.unwrap().status, Some(Status::Code(0)));
    assert_eq!(output.ended.unwrap().total, Some(ExecOffsets { stdout: 11, stderr: 3 }));
}

#[tokio::test]
async fn one_stream_follows_several() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let ids: Vec<String> = (0..5).map(|index| format!("several-{index}")).collect();
    for id in &ids {
        start(
            &mut client,
            id,
            shell(format!("for i in 1 2 3; do echo {id} $i; done; sleep 0.05")),
        )
        .await;
    }
    let targets: Vec<_> = ids.iter().map(|id| target(id, START)).collect();
    let request = FollowExecRequest {
        targets: targets.clone(),
        ..Default::default()
    };
    let mut events = client.follow_exec(request).await.unwrap().into_inner();
    let mut outputs: Vec<Option<Output>> = ids.iter().map(|_| None).collect();
    while let Some(event) = timeout(PATIENCE, next_event(&mut events)).await.unwrap() {
        let place = ids.iter().position(|id| *id == event.exec_id).expect("a known exec");
        match &mut outputs[place] {
            Some(output) => output.take(event),
            first => {
                assert!(matches!(event.event, Some(Event::Started(_))), "{event:?}");
                *first = Some(Output::default());
            }
        }
    }
    for (id, output) in ids.iter().zip(outputs) {
        let output = output.unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("{id} 1\n{id} 2\n{id} 3\n")
        );
        assert!(output.exit.is_some() && output.ended.is_some());
    }

    let with_unknown = [&targets[..], &[target("unknown", START)]].concat();
    for (targets, expected) in [
        (with_unknown, ErrorReason::ExecNotFound),
        (vec![], ErrorReason::InvalidArgument),
        (vec![target(&ids[0], START); 101], ErrorReason::InvalidArgument),
    ] {
        let request = FollowExecRequest {
            targets,
            ..Default::default()
        };
        assert_eq!(reason(&client.follow_exec(request).await.unwrap_err()), expected);
    }
}

#[tokio::test]
async fn a_start_that_failed_is_all_there_is_to_follow() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let exec = start(&mut client, "failed", argv(&["/no/such/program"])).await;
    assert_eq!(exec.state(), ExecState::StartFailed);
    let output = timeout(PATIENCE, collect(&mut client, "failed", ExecOffsets::default()))
        .await
        .unwrap();
    assert_eq!(output.start_failure, exec.start_failure);
    assert!(output.exit.is_none() && output.ended.is_none() && output.order.is_empty());
}

#[tokio::test]
async fn exit_comes_after_the_last_byte_and_waits_for_no_child() {
    let mut rng = seeded();
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        let bytes = random_bytes(&mut rng, 60_000);
        fs::write(runtime.workspace().join("bytes"), &bytes).unwrap();
        for round in 0..20 {
            // A pipe holds all of it, so the program is gone before it is read.
            let id = format!("last-{round}");
            start(&mut client, &id, shell("sleep 1000 & exec cat bytes")).await;
            let mut events = follow(&mut client, &id, START).await;
            let mut output = Output::default();
            while output.exit.is_none() {
                output.take(timeout(PATIENCE, next_event(&mut events)).await.unwrap().unwrap());
            }
            assert!(
                output.stdout == bytes,
                "{} bytes came before the exit",
                output.stdout.len()
            );
            let exit = output.exit.unwrap();
            assert_eq!((exit.status, exit.offsets), (Some(Status::Code(0)), output.at_exit));
            let exec = get(&mut client, &id).await;
            assert_eq!(exec.state(), ExecState::Exited);
            assert!(!exec.output_ended && exec.processes_alive, "{exec:?}");

            kill(&mut client, &id).await;
            let ended = timeout(PATIENCE, next_event(&mut events)).await.unwrap().unwrap();
            assert!(matches!(ended.event, Some(Event::Ended(_))), "{ended:?}");
            until(&mut client, &id, |exec| exec.output_ended && !exec.processes_alive).await;
        }
    }
}

#[tokio::test]
async fn what_a_child_writes_after_the_exit_follows_it() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let script = format!("({}; printf late) & printf early", wait_for("go"));
    start(&mut client, "late", shell(script)).await;
    until(&mut client, "late", |exec| exec.state() == ExecState::Exited).await;
    fs::write(runtime.workspace().join("go"), "").unwrap();
    let output = timeout(PATIENCE, collect(&mut client, "late", ExecOffsets::default()))
        .await
        .unwrap();
    assert_eq!(output.stdout, b"earlylate");
    let early = ExecOffsets { stdout: 5, stderr: 0 };
    assert_eq!(
        (output.at_exit, output.exit.unwrap().offsets),
        (Some(early), Some(early))
    );
    assert_eq!(output.ended.unwrap().total, Some(ExecOffsets { stdout: 9, stderr: 0 }));
}
