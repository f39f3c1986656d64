//! Retention: what is gone is said exactly, what can be held is held, and nobody is held up by somebody else.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "exec_retention/full.rs"]
mod full;
#[path = "exec_retention/restart.rs"]
mod restart;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use sandgate_proto::{
    runtime::v1::{
        ExecGap, ExecInfo, ExecOffsets, ExecRequest, ExecResponse, ExecSignal, ExecSpec, ExecStart, ExecState,
        FollowStart, OnFull, OutputStream, SignalExecRequest, StopRequest, exec_event::Event, exec_exit::Status,
        exec_request::Request, exec_response::Response, follow_from::Place,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Output, Runtime, RuntimeOptions, collect, follow, get, new_id, next_event, random_bytes, reason, seeded,
    shell, start, start_request, until,
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

const MIB: usize = 1 << 20;
const START: Place = Place::Start(FollowStart {});
const PATIENCE: Duration = Duration::from_secs(100);

/// Random bytes in the workspace, one file for each stream.
struct Source {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

// === impl Source ===

impl Source {
    fn new(runtime: &Runtime, stdout: usize, stderr: usize) -> Self {
        let mut rng = seeded();
        let (stdout, stderr) = (random_bytes(&mut rng, stdout), random_bytes(&mut rng, stderr));
        fs::write(runtime.workspace().join("out"), &stdout).unwrap();
        fs::write(runtime.workspace().join("err"), &stderr).unwrap();
        Self { stdout, stderr }
    }

    fn total(&self) -> ExecOffsets {
        ExecOffsets {
            stdout: self.stdout.len() as u64,
            stderr: self.stderr.len() as u64,
        }
    }

    /// Every byte that came is right, in its place, and what did not come is in a gap.
    fn check(&self, output: &Output) {
        for (stream, all, got) in [
            (OutputStream::Stdout, &self.stdout, &output.stdout),
            (OutputStream::Stderr, &self.stderr, &output.stderr),
        ] {
            let mut expected = vec![];
            let mut at = 0;
            for gap in output.gaps.iter().filter(|gap| gap.stream() == stream) {
                expected.extend_from_slice(&all[at..gap.from as usize]);
                at = gap.to as usize;
            }
            expected.extend_from_slice(&all[at..]);
            assert!(*got == expected, "{stream:?} differs; gaps are {:?}", output.gaps);
        }
        assert_eq!(output.next, self.total());
        assert_eq!(output.ended.as_ref().unwrap().total, Some(self.total()));
    }
}

fn gap(stream: OutputStream, from: u64, to: u64) -> Option<ExecGap> {
    (from < to).then_some(ExecGap {
        stream: stream.into(),
        from,
        to,
    })
}

/// The gaps of a follower that wants all from these offsets, when this much of the start is gone.
fn gaps(from: ExecOffsets, oldest: ExecOffsets) -> Vec<ExecGap> {
    let stdout = gap(OutputStream::Stdout, from.stdout, oldest.stdout);
    stdout
        .into_iter()
        .chain(gap(OutputStream::Stderr, from.stderr, oldest.stderr))
        .collect()
}

fn succeeded(exec: &ExecInfo) -> bool {
    exec.exit
        .as_ref()
        .is_some_and(|exit| exit.status == Some(Status::Code(0)))
}

async fn ended(client: &mut Client, id: &str) -> ExecInfo {
    until(client, id, |exec| exec.output_ended && !exec.processes_alive).await
}

async fn rest(events: &mut Streaming<sandgate_proto::runtime::v1::FollowExecResponse>, output: &mut Output) {
    while let Some(event) = timeout(PATIENCE, next_event(events)).await.unwrap() {
        output.take(event);
    }
}

#[tokio::test]
async fn a_gap_is_what_the_oldest_offset_says() {
    for memory in ["65536", "67108864"] {
        let runtime = Runtime::with_args(&["--memory-bytes", memory]).await;
        let mut client = runtime.connect().await;
        let source = Source::new(&runtime, 5 * MIB, 3 * MIB);
        let spec = ExecSpec {
            retain_bytes: MIB as u64,
            ..shell("cat err >&2 & cat out; wait")
        };
        start(&mut client, "gap", spec).await;
        let exec = ended(&mut client, "gap").await;
        let oldest = exec.oldest.unwrap();
        assert!(succeeded(&exec) && exec.written == Some(source.total()), "{exec:?}");
        let kept = source.total().stdout + source.total().stderr - oldest.stdout - oldest.stderr;
        assert!((MIB as u64 / 2..=MIB as u64).contains(&kept), "{kept} bytes are kept");

        let output = collect(&mut client, "gap", ExecOffsets::default()).await;
        assert_eq!(output.gaps, gaps(ExecOffsets::default(), oldest));
        source.check(&output);
        // From within the gap, and from where it ends.
        let from = ExecOffsets {
            stdout: oldest.stdout / 2,
            stderr: oldest.stderr,
        };
        let output = collect(&mut client, "gap", from).await;
        assert_eq!(output.gaps, gaps(from, oldest));
        assert!(output.stdout == source.stdout[oldest.stdout as usize..]);
        assert!(collect(&mut client, "gap", oldest).await.gaps.is_empty());
    }
}

#[tokio::test]
async fn a_follower_that_falls_behind_is_told_of_the_gap() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let source = Source::new(&runtime, 16 * MIB, 0);
    start(
        &mut client,
        "behind",
        ExecSpec {
            retain_bytes: MIB as u64,
            ..shell("while [ ! -e go ]; do sleep 0.02; done; cat out")
        },
    )
    .await;
    let mut events = follow(&mut client, "behind", START).await;
    fs::write(runtime.workspace().join("go"), "").unwrap();
    let exec = ended(&mut client, "behind").await;
    let mut output = Output::default();
    rest(&mut events, &mut output).await;
    source.check(&output);
    assert_eq!(output.gaps.last().unwrap().to, exec.oldest.unwrap().stdout);
}

/// Starts an exec on a stream of its own and follows it there.
async fn exec_stream(
    client: &mut Client,
    id: &str,
    spec: ExecSpec,
) -> (mpsc::Sender<ExecRequest>, Streaming<ExecResponse>) {
    let (requests, stream) = mpsc::channel(4);
    let start = ExecStart {
        exec_id: id.to_owned(),
        spec: Some(spec),
        ..Default::default()
    };
    requests
        .send(ExecRequest {
            request: Some(Request::Start(start)),
        })
        .await
        .unwrap();
    let events = client.exec(ReceiverStream::new(stream)).await.unwrap().into_inner();
    (requests, events)
}

async fn next_on(events: &mut Streaming<ExecResponse>) -> Option<sandgate_proto::runtime::v1::ExecEvent> {
    match timeout(PATIENCE, events.message()).await.unwrap().unwrap()?.response {
        Some(Response::Event(event)) => Some(event),
        other => panic!("{other:?}"),
    }
}

/// Waits until an exec's output stands still.
async fn stand_still(client: &mut Client, id: &str) -> ExecInfo {
    let mut last = get(client, id).await;
    loop {
        sleep(Duration::from_millis(500)).await;
        let exec = get(client, id).await;
        // Which of the streams has filled the log is up to the two writers.
        let written = exec.written.unwrap();
        if exec.written == last.written && written.stdout + written.stderr > 0 {
            return exec;
        }
        last = exec;
    }
}

fn held() -> ExecSpec {
    ExecSpec {
        retain_bytes: 256 << 10,
        on_full: OnFull::Hold.into(),
        ..shell("cat err >&2 & cat out; wait")
    }
}

#[tokio::test]
async fn a_held_process_waits_for_its_slow_follower() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let source = Source::new(&runtime, 8 * MIB, 4 * MIB);
    let (_requests, mut events) = exec_stream(&mut client, "held", held()).await;
    // It can't finish: there is no room on its way for so much.
    let exec = stand_still(&mut client, "held").await;
    assert_eq!(exec.state(), ExecState::Running, "{exec:?}");
    let mut output = Output::default();
    let first = next_on(&mut events).await.unwrap();
    assert!(matches!(first.event, Some(Event::Started(_))), "{first:?}");
    while let Some(event) = next_on(&mut events).await {
        output.take(event);
        sleep(Duration::from_millis(1)).await;
    }
    assert!(output.gaps.is_empty(), "{:?}", output.gaps);
    source.check(&output);
    assert_eq!(output.exit.unwrap().status, Some(Status::Code(0)));
}

#[tokio::test]
async fn a_held_process_is_let_go_when_its_follower_goes() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    Source::new(&runtime, 8 * MIB, 4 * MIB);
    let stream = exec_stream(&mut client, "let-go", held()).await;
    let exec = stand_still(&mut client, "let-go").await;
    assert_eq!(exec.state(), ExecState::Running, "{exec:?}");
    drop(stream);
    assert!(succeeded(&ended(&mut client, "let-go").await));
}

#[tokio::test]
async fn a_held_process_that_is_killed_tells_its_exit() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        let source = Source::new(&runtime, 8 * MIB, 0);
        let spec = ExecSpec {
            command: shell("exec cat out").command,
            ..held()
        };
        let (_requests, mut events) = exec_stream(&mut client, "killed", spec).await;
        stand_still(&mut client, "killed").await;
        let signal = Some(ExecSignal { signal: 9 });
        let request = SignalExecRequest {
            exec_id: "killed".into(),
            signal,
            ..Default::default()
        };
        client.signal_exec(request).await.unwrap();
        let exec = until(&mut client, "killed", |exec| exec.exit.is_some()).await;
        assert_eq!(exec.exit.unwrap().status, Some(Status::Signal(9)));
        let mut output = Output::default();
        while let Some(event) = next_on(&mut events).await {
            output.take(event);
        }
        assert!(output.gaps.is_empty() && source.stdout.starts_with(&output.stdout));
        assert_eq!(output.at_exit, output.exit.unwrap().offsets);
        assert_eq!(output.ended.unwrap().total, Some(output.next));
    }
}

#[tokio::test]
async fn without_a_reader_a_process_finishes() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let size = 64 * MIB as u64;
    for on_full in [OnFull::Hold, OnFull::DropOldest] {
        let id = new_id("alone");
        let spec = shell(format!("head -c {size} /dev/zero"));
        start(
            &mut client,
            &id,
            ExecSpec {
                retain_bytes: MIB as u64,
                on_full: on_full.into(),
                ..spec
            },
        )
        .await;
        let exec = ended(&mut client, &id).await;
        assert!(succeeded(&exec), "{exec:?}");
        assert_eq!(
            exec.written,
            Some(ExecOffsets {
                stdout: size,
                stderr: 0
            })
        );
        assert!(exec.oldest.unwrap().stdout >= size - MIB as u64);
    }
}

#[tokio::test]
async fn eight_stopped_readers_hold_up_nobody() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let source = Source::new(&runtime, 16 * MIB, 8 * MIB);
    let script = "while [ ! -e go ]; do sleep 0.02; done; cat err >&2 & cat out; wait";
    start(&mut client, "eight", shell(script)).await;
    let mut stopped = vec![];
    for _ in 0..8 {
        stopped.push(follow(&mut client, "eight", START).await);
    }
    let mut events = follow(&mut client, "eight", START).await;
    fs::write(runtime.workspace().join("go"), "").unwrap();
    let mut output = Output::default();
    rest(&mut events, &mut output).await;
    source.check(&output);
    assert!(output.gaps.is_empty());
    // The stopped ones lost nothing either.
    for mut events in stopped {
        let mut output = Output::default();
        rest(&mut events, &mut output).await;
        source.check(&output);
        assert!(output.gaps.is_empty());
    }
}

#[tokio::test]
async fn the_sandbox_gives_up_the_output_of_the_finished_first() {
    for memory in ["65536", "67108864"] {
        let total = (4 * MIB).to_string();
        let runtime = Runtime::with_args(&["--memory-bytes", memory, "--retain-bytes-total", total.as_str()]).await;
        let mut client = runtime.connect().await;
        let source = Source::new(&runtime, 2 * MIB, 0);
        start(&mut client, "old", shell("cat out")).await;
        ended(&mut client, "old").await;
        start(&mut client, "newer", shell("cat out")).await;
        ended(&mut client, "newer").await;
        start(&mut client, "alive", shell("cat out; sleep 1000")).await;
        let alive = until(&mut client, "alive", |exec| exec.written == Some(source.total())).await;
        assert_eq!(alive.oldest, Some(ExecOffsets::default()));
        let old = get(&mut client, "old").await.oldest.unwrap();
        assert!(old.stdout >= MIB as u64, "{old:?}");
        let newer = get(&mut client, "newer").await.oldest.unwrap();
        assert!(newer.stdout == 0 || old == source.total(), "{old:?} {newer:?}");
        for (id, oldest) in [("old", old), ("newer", newer)] {
            let output = collect(&mut client, id, ExecOffsets::default()).await;
            assert_eq!(output.gaps, gaps(ExecOffsets::default(), oldest));
            source.check(&output);
            assert_eq!(output.exit.unwrap().status, Some(Status::Code(0)));
        }
    }
}
