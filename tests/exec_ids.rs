//! An exec id runs once, whoever asks for it, however often, and whatever becomes of the runtime; and a byte of stdin
//! arrives once.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rand::{Rng as _, RngCore as _};
use sandgate_proto::{
    runtime::v1::{
        ConfigureRequest, EnvVar, ExecAttach, ExecDetach, ExecInfo, ExecOffsets, ExecRequest, ExecResponse, ExecSignal,
        ExecSpec, ExecStart, ExecState, FileOp, FileOpsRequest, FollowExecRequest, FollowFrom, FollowTarget,
        GetExecRequest, HelloRequest, ListExecsRequest, MkdirOp, Pty, PtySize, ResizeExecRequest, SignalExecRequest,
        StartExecRequest, StdinMode, StdinWrite, StopRequest, UploadRequest, UploadStart, WriteChunkRequest,
        WriteExecRequest, exec_exit::Status, exec_request::Request, exec_response::Response, file_op::Op,
        follow_from::Place, upload_request,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Output, Runtime, RuntimeOptions, argv, collect, connect_to, new_id,
    procs::{mark, marked, until},
    reason, run_request, seeded, shell, start_request,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

const CALLERS: usize = 50;
const ROUNDS: usize = 30;
const LIMIT: Duration = Duration::from_secs(120);

/// A command that leaves a trace each time it runs.
fn traced(trace: &Path) -> ExecSpec {
    shell(format!("echo ran >> {}", trace.display()))
}

fn runs(trace: &Path) -> usize {
    fs::read_to_string(trace).map_or(0, |text| text.lines().count())
}

async fn get(client: &mut Client, id: &str) -> ExecInfo {
    let request = GetExecRequest { exec_id: id.to_owned() };
    client.get_exec(request).await.unwrap().into_inner().exec.unwrap()
}

async fn exited(client: &mut Client, id: &str) -> ExecInfo {
    collect(client, id, ExecOffsets::default()).await;
    get(client, id).await
}

fn millis(millis: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 0,
        nanos: millis * 1_000_000,
    })
}

/// Starts it, again and again if the runtime goes away, until somebody answers.
async fn start_surely(socket: PathBuf, request: StartExecRequest) -> (ExecInfo, bool) {
    loop {
        if let Some(mut client) = connect_to(socket.clone()).await {
            match client.start_exec(request.clone()).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    return (answer.exec.unwrap(), answer.started);
                }
                // The runtime's own refusals carry a reason, and none is due here.
                Err(status) => assert!(
                    matches!(
                        status.code(),
                        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
                    ),
                    "{status:?}"
                ),
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn many_starts(runtime: &Runtime, request: &StartExecRequest) -> JoinSet<(ExecInfo, bool)> {
    (0..CALLERS)
        .map(|_| start_surely(runtime.socket(), request.clone()))
        .collect()
}

#[tokio::test]
async fn fifty_callers_start_it_once() {
    for cgroups in [false, true] {
        let runtime = Runtime::start_with(RuntimeOptions {
            cgroups,
            ..Default::default()
        })
        .await;
        let mut client = runtime.connect().await;
        for _ in 0..5 {
            let id = new_id("once");
            let trace = runtime.workspace().join(&id);
            let answers = many_starts(&runtime, &start_request(&id, traced(&trace)))
                .join_all()
                .await;
            assert_eq!(answers.iter().filter(|(_, started)| *started).count(), 1);
            let first = &answers[0].0;
            assert!(
                answers
                    .iter()
                    .all(|(exec, _)| exec.pid == first.pid && exec.started_at == first.started_at)
            );
            let exec = exited(&mut client, &id).await;
            assert_eq!((exec.exit.unwrap().status, runs(&trace)), (Some(Status::Code(0)), 1));
        }
    }
}

#[tokio::test]
async fn it_runs_once_though_the_runtime_is_killed() {
    let mut random = seeded();
    for cgroups in [false, true] {
        let mut runtime = Runtime::start_with(RuntimeOptions {
            cgroups,
            ..Default::default()
        })
        .await;
        let mut fates = [0; 2];
        for round in 0..ROUNDS / 2 {
            let id = new_id("once");
            let trace = runtime.workspace().join(&id);
            let callers = many_starts(&runtime, &start_request(&id, traced(&trace)));
            tokio::time::sleep(Duration::from_micros(random.random_range(0..20_000))).await;
            runtime.kill();
            runtime.restart().await;
            let answers = callers.join_all().await;
            let mut client = runtime.connect().await;
            let exec = exited(&mut client, &id).await;
            let started = answers.iter().filter(|(_, started)| *started).count();
            assert!(
                started <= 1,
                "round {round}: {started} callers were told that they had started it"
            );
            match exec.exit.unwrap().status {
                Some(Status::Code(0)) => {
                    assert_eq!(runs(&trace), 1, "round {round}");
                    fates[0] += 1;
                }
                Some(Status::Lost(_)) => {
                    assert!(runs(&trace) <= 1, "round {round}");
                    fates[1] += 1;
                }
                other => panic!("round {round}: {other:?}"),
            }
            // Neither does it run later.
            let (again, started) = start_surely(runtime.socket(), start_request(&id, traced(&trace))).await;
            assert!(!started && again.state() == ExecState::Exited && runs(&trace) <= 1);
        }
        println!("ended, lost: {fates:?}");
    }
}

#[tokio::test]
async fn what_counts_as_the_same_request() {
    let mut runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let var = |name: &str, value: &str| EnvVar {
        name: name.into(),
        value: value.into(),
        ..Default::default()
    };
    let size = |columns| Some(PtySize { columns, rows: 10 });
    let first = ExecSpec {
        env: vec![var("A", "1"), var("B", "2")],
        pty: Some(Pty {
            size: size(80),
            ..Default::default()
        }),
        ..argv(&["true"])
    };
    let same = ExecSpec {
        env: vec![var("B", "2"), var("A", "1")],
        pty: Some(Pty {
            size: size(99),
            ..Default::default()
        }),
        ..first.clone()
    };
    let others = [
        ExecSpec {
            env: vec![var("A", "1"), var("B", "3")],
            ..first.clone()
        },
        ExecSpec {
            env: vec![var("A", "1"), var("A", "2"), var("B", "2")],
            ..first.clone()
        },
        ExecSpec {
            cwd: "/".into(),
            ..first.clone()
        },
        ExecSpec {
            umask: Some(0),
            ..first.clone()
        },
        ExecSpec {
            timeout: millis(999),
            ..first.clone()
        },
        ExecSpec {
            pty: None,
            ..first.clone()
        },
        ExecSpec {
            user: "nobody".into(),
            ..first.clone()
        },
        ExecSpec {
            clear_env: true,
            ..first.clone()
        },
        ExecSpec {
            retain_bytes: 1 << 20,
            ..first.clone()
        },
        ExecSpec {
            env: first.env.clone(),
            pty: first.pty.clone(),
            ..argv(&["true", ""])
        },
        ExecSpec {
            env: first.env.clone(),
            pty: first.pty.clone(),
            ..shell("true")
        },
    ];
    let id = new_id("same");
    assert!(
        client
            .start_exec(start_request(&id, first.clone()))
            .await
            .unwrap()
            .into_inner()
            .started
    );
    for restarted in [false, true] {
        if restarted {
            runtime.kill();
            runtime.restart().await;
            client = runtime.connect().await;
        }
        for spec in [&first, &same] {
            assert!(
                !client
                    .start_exec(start_request(&id, spec.clone()))
                    .await
                    .unwrap()
                    .into_inner()
                    .started
            );
        }
        for other in &others {
            let refused = client.start_exec(start_request(&id, other.clone())).await.unwrap_err();
            assert_eq!(reason(&refused), ErrorReason::ExecAlreadyExists, "{other:?}");
            assert_eq!(refused.code(), Code::AlreadyExists);
        }
    }
}

#[tokio::test]
async fn an_expired_id_stays_taken() {
    for limit in ["--keep-finished=1", "--keep-for=1s"] {
        let mut runtime = Runtime::with_args(&[limit]).await;
        let mut client = runtime.connect().await;
        let id = new_id("old");
        let trace = runtime.workspace().join(&id);
        client.run(run_request(&id, traced(&trace))).await.unwrap();
        client.run(run_request(&new_id("new"), shell("true"))).await.unwrap();
        let asked = GetExecRequest { exec_id: id.clone() };
        let refused = loop {
            match client.get_exec(asked.clone()).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(refused) => break refused,
            }
        };
        assert_eq!(reason(&refused), ErrorReason::ExecExpired);
        for restarted in [false, true] {
            if restarted {
                runtime.kill();
                runtime.restart().await;
                client = runtime.connect().await;
            }
            let targets = vec![FollowTarget {
                exec_id: id.clone(),
                ..Default::default()
            }];
            let attach = ExecAttach {
                exec_id: id.clone(),
                ..Default::default()
            };
            let refusals = [
                client.get_exec(asked.clone()).await.unwrap_err(),
                client.start_exec(start_request(&id, traced(&trace))).await.unwrap_err(),
                client.start_exec(start_request(&id, shell("true"))).await.unwrap_err(),
                client.run(run_request(&id, traced(&trace))).await.unwrap_err(),
                client
                    .follow_exec(FollowExecRequest {
                        targets,
                        ..Default::default()
                    })
                    .await
                    .unwrap_err(),
                Bidi::open(&mut client, Request::Attach(attach)).await.unwrap_err(),
            ];
            for refused in refusals {
                assert_eq!(reason(&refused), ErrorReason::ExecExpired, "{restarted}");
            }
            let kept = client
                .list_execs(ListExecsRequest::default())
                .await
                .unwrap()
                .into_inner()
                .execs;
            assert!(kept.iter().all(|exec| exec.exec_id != id));
            assert_eq!(runs(&trace), 1);
        }
    }
}

fn write_request(id: &str, offset: u64, data: &[u8], close: bool) -> WriteExecRequest {
    let stdin = StdinWrite {
        offset,
        data: data.to_vec().into(),
        close,
    };
    WriteExecRequest {
        exec_id: id.to_owned(),
        stdin: Some(stdin),
        ..Default::default()
    }
}

fn with_stdin(spec: ExecSpec) -> ExecSpec {
    ExecSpec {
        stdin: StdinMode::Open.into(),
        ..spec
    }
}

#[tokio::test]
async fn stdin_repeated_after_a_lost_answer_arrives_once() {
    let mut random = seeded();
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    for terminal in [false, true] {
        let mut sent = vec![0; if terminal { 1 << 18 } else { 4 << 20 }];
        random.fill_bytes(&mut sent);
        let id = new_id("stdin");
        let spec = if terminal {
            // Raw, and no echo: every byte is passed on.
            ExecSpec {
                pty: Some(Pty::default()),
                ..shell("stty raw -echo; printf ready; head -c 262144")
            }
        } else {
            with_stdin(shell("printf ready; cat"))
        };
        client.start_exec(start_request(&id, spec)).await.unwrap();
        let follower = tokio::spawn({
            let (mut client, id) = (client.clone(), id.clone());
            async move { collect(&mut client, &id, ExecOffsets::default()).await }
        });
        while get(&mut client, &id).await.written.unwrap().stdout < 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (mut known, mut cuts) = (0, 0);
        while known < sent.len() {
            let end = (known + random.random_range(1..=256 << 10)).min(sent.len());
            let request = write_request(&id, known as u64, &sent[known..end], !terminal && end == sent.len());
            let patience = Duration::from_micros(random.random_range(0..6_000));
            match tokio::time::timeout(patience, client.write_exec(request)).await {
                Ok(answer) => known = usize::try_from(answer.unwrap().into_inner().stdin.unwrap().offset).unwrap(),
                // The answer is lost: nobody knows how much of it was written.
                Err(_) => cuts += 1,
            }
        }
        println!("{cuts} cuts");
        assert!(cuts > 0);
        if !terminal {
            // The last answer may have been lost, too: a close is repeated like any write.
            let close = client
                .write_exec(write_request(&id, sent.len() as u64, b"", true))
                .await
                .unwrap();
            assert!(close.into_inner().stdin.unwrap().closed);
        }
        let output = tokio::time::timeout(LIMIT, follower).await.unwrap().unwrap();
        assert_eq!(output.stdout.len(), 5 + sent.len());
        assert!(output.stdout[5..] == sent, "what arrived is not what was sent");
        assert_eq!(get(&mut client, &id).await.stdin_offset, sent.len() as u64);
    }
}

#[tokio::test]
async fn what_stdin_refuses() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let id = new_id("stdin");
    client
        .start_exec(start_request(
            &id,
            with_stdin(shell("read line; echo $line; exec sleep 1000")),
        ))
        .await
        .unwrap();
    let by = |writer: &str, offset, data: &[u8]| WriteExecRequest {
        writer: writer.to_owned(),
        max_wait: millis(300),
        ..write_request(&id, offset, data, false)
    };
    assert_eq!(
        client
            .write_exec(by("a", 0, b"one\n"))
            .await
            .unwrap()
            .into_inner()
            .stdin
            .unwrap()
            .offset,
        4
    );
    for (request, wanted) in [
        (by("b", 4, b"x"), ErrorReason::StdinTaken),
        (by("a", 5, b"x"), ErrorReason::StdinGap),
    ] {
        assert_eq!(reason(&client.write_exec(request).await.unwrap_err()), wanted);
    }
    // The program reads no more: the writer is held back and told how far it came.
    let much = vec![b'y'; 1 << 20];
    let part = client
        .write_exec(by("a", 4, &much))
        .await
        .unwrap()
        .into_inner()
        .stdin
        .unwrap();
    assert!(part.offset > 4 && part.offset < much.len() as u64 && !part.closed);
    assert_eq!(get(&mut client, &id).await.stdin_offset, part.offset);
    let close = write_request(&id, part.offset, b"", true);
    let closed = client
        .write_exec(WriteExecRequest {
            writer: "a".into(),
            ..close.clone()
        })
        .await
        .unwrap();
    assert!(closed.into_inner().stdin.unwrap().closed);
    let late = client.write_exec(by("a", part.offset, b"x")).await.unwrap_err();
    assert_eq!(reason(&late), ErrorReason::StdinClosed);

    // A program that has closed its side, or is gone.
    let deaf = new_id("deaf");
    client.run(run_request(&deaf, shell("true"))).await.unwrap();
    let refused = client
        .write_exec(write_request(&deaf, 0, b"x", false))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::StdinNotOpen);
    let gone = new_id("gone");
    client
        .start_exec(start_request(&gone, with_stdin(shell("exit 0"))))
        .await
        .unwrap();
    let exec = exited(&mut client, &gone).await;
    assert_eq!(exec.exit.unwrap().status, Some(Status::Code(0)));
    loop {
        // Until its end is noticed the pipe may take it.
        match client.write_exec(write_request(&gone, 0, b"x", false)).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(refused) => break assert_eq!(reason(&refused), ErrorReason::StdinClosed),
        }
    }
}

#[tokio::test]
async fn a_request_for_an_earlier_runtime_does_nothing() {
    let mut runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let before = client
        .hello(HelloRequest { generation: 1 })
        .await
        .unwrap()
        .into_inner()
        .incarnation;
    let old = new_id("before");
    client
        .start_exec(start_request(&old, with_stdin(shell("echo kept; exec cat"))))
        .await
        .unwrap();
    runtime.kill();
    runtime.restart().await;
    let mut client = runtime.connect().await;
    let id = new_id("after");
    client
        .start_exec(start_request(&id, with_stdin(shell("exec cat"))))
        .await
        .unwrap();
    let trace = runtime.workspace().join("trace");
    let (new, expected_incarnation) = (new_id("never"), before.clone());
    let spec = Some(traced(&trace));
    let start = ExecStart {
        exec_id: new.clone(),
        expected_incarnation: before.clone(),
        spec: spec.clone(),
        ..Default::default()
    };
    let attach = ExecAttach {
        exec_id: id.clone(),
        expected_incarnation: before.clone(),
        ..Default::default()
    };
    let mkdir = MkdirOp {
        path: "made".into(),
        ..Default::default()
    };
    let upload = UploadStart {
        expected_incarnation: before.clone(),
        ..Default::default()
    };
    let upload = UploadRequest {
        message: Some(upload_request::Message::Start(upload)),
    };
    let mut run = run_request(&new, traced(&trace));
    run.expected_incarnation = before.clone();
    let refusals = [
        client
            .start_exec(StartExecRequest {
                exec_id: new.clone(),
                expected_incarnation: before.clone(),
                spec,
            })
            .await
            .unwrap_err(),
        client.run(run).await.unwrap_err(),
        Bidi::open(&mut client, Request::Start(start)).await.unwrap_err(),
        Bidi::open(&mut client, Request::Attach(attach)).await.unwrap_err(),
        client
            .follow_exec(FollowExecRequest {
                targets: vec![FollowTarget {
                    exec_id: id.clone(),
                    ..Default::default()
                }],
                expected_incarnation: before.clone(),
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client
            .write_exec(WriteExecRequest {
                expected_incarnation: before.clone(),
                ..write_request(&id, 0, b"x", false)
            })
            .await
            .unwrap_err(),
        client
            .signal_exec(SignalExecRequest {
                exec_id: id.clone(),
                expected_incarnation: before.clone(),
                signal: Some(ExecSignal { signal: 9 }),
            })
            .await
            .unwrap_err(),
        client
            .resize_exec(ResizeExecRequest {
                exec_id: id.clone(),
                expected_incarnation: before.clone(),
                size: Some(PtySize { columns: 1, rows: 1 }),
            })
            .await
            .unwrap_err(),
        client
            .file_ops(FileOpsRequest {
                expected_incarnation: before.clone(),
                ops: vec![FileOp {
                    op: Some(Op::Mkdir(mkdir)),
                }],
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client.upload(tokio_stream::iter([upload])).await.unwrap_err(),
        client
            .write_chunk(WriteChunkRequest {
                expected_incarnation: before.clone(),
                upload_id: "up".into(),
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client
            .configure(ConfigureRequest {
                expected_incarnation: before.clone(),
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client
            .stop(StopRequest {
                expected_incarnation,
                ..Default::default()
            })
            .await
            .unwrap_err(),
    ];
    for (place, refused) in refusals.iter().enumerate() {
        assert_eq!(reason(refused), ErrorReason::SandboxRestarted, "request {place}");
    }
    assert_eq!((runs(&trace), runtime.workspace().join("made").exists()), (0, false));
    let exec = get(&mut client, &id).await;
    assert_eq!((exec.state(), exec.stdin_offset), (ExecState::Running, 0));
    let never = client.get_exec(GetExecRequest { exec_id: new }).await.unwrap_err();
    assert_eq!(reason(&never), ErrorReason::ExecNotFound);
    // What the earlier one ran can still be read, and says who ran it.
    let exec = get(&mut client, &old).await;
    assert!(exec.incarnation == before && matches!(exec.exit.unwrap().status, Some(Status::Lost(_))));
}

#[tokio::test]
async fn no_more_than_the_limit_are_alive() {
    let runtime = Runtime::with_args(&["--max-alive=1"]).await;
    let mut client = runtime.connect().await;
    let id = new_id("first");
    // Its program ends at once; what it leaves counts.
    client
        .run(run_request(&id, mark(shell("sleep 1000 & true"), &id)))
        .await
        .unwrap();
    until("it is left", || marked(&id).len() == 1).await;
    let second = new_id("second");
    let trace = runtime.workspace().join(&second);
    let refused = client
        .start_exec(start_request(&second, traced(&trace)))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::LimitReached);
    let signal = Some(ExecSignal { signal: 9 });
    client
        .signal_exec(SignalExecRequest {
            exec_id: id,
            signal,
            ..Default::default()
        })
        .await
        .unwrap();
    // The refusal took nothing: the id is free, and runs now.
    while client.start_exec(start_request(&second, traced(&trace))).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    exited(&mut client, &second).await;
    assert_eq!(runs(&trace), 1);
}

#[tokio::test]
async fn execs_are_listed_in_pages() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let mut ids = Vec::new();
    for number in 0..25 {
        let id = format!("page-{number}");
        let script = if number % 5 == 0 { "exec sleep 1000" } else { "true" };
        client.start_exec(start_request(&id, shell(script))).await.unwrap();
        if number % 5 != 0 {
            exited(&mut client, &id).await;
        }
        ids.push(id);
    }
    for (page_size, only_alive) in [(0, false), (7, false), (25, false), (1, false), (2, true)] {
        let mut found = Vec::new();
        let mut request = ListExecsRequest {
            page_size,
            only_alive,
            ..Default::default()
        };
        loop {
            let page = client.list_execs(request.clone()).await.unwrap().into_inner();
            assert!(page_size == 0 || page.execs.len() <= page_size as usize);
            found.extend(page.execs.into_iter().map(|exec| exec.exec_id));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        let wanted = ids
            .iter()
            .enumerate()
            .filter(|(number, _)| !only_alive || number % 5 == 0);
        assert_eq!(found, wanted.map(|(_, id)| id.clone()).collect::<Vec<_>>());
    }
    let too_many = ListExecsRequest {
        page_size: 1_001,
        ..Default::default()
    };
    assert_eq!(
        reason(&client.list_execs(too_many).await.unwrap_err()),
        ErrorReason::InvalidArgument
    );
}

/// Both directions of an `Exec`.
#[derive(Debug)]
struct Bidi {
    requests: mpsc::Sender<ExecRequest>,
    responses: Streaming<ExecResponse>,
    output: Output,
    accepted: u64,
    closed: bool,
}

impl Bidi {
    async fn open(client: &mut Client, first: Request) -> Result<Self, tonic::Status> {
        let (requests, queued) = mpsc::channel(16);
        requests.send(ExecRequest { request: Some(first) }).await.unwrap();
        let responses = client.exec(ReceiverStream::new(queued)).await?.into_inner();
        Ok(Self {
            requests,
            responses,
            output: Output::default(),
            accepted: 0,
            closed: false,
        })
    }

    async fn send(&self, request: Request) {
        self.requests
            .send(ExecRequest { request: Some(request) })
            .await
            .unwrap();
    }

    async fn stdin(&self, offset: u64, data: &str, close: bool) {
        self.send(Request::Stdin(StdinWrite {
            offset,
            data: data.to_owned().into(),
            close,
        }))
        .await;
    }

    /// Takes one response. False at the end.
    async fn next(&mut self) -> bool {
        let next = tokio::time::timeout(LIMIT, self.responses.message()).await.unwrap();
        match next.unwrap().map(|message| message.response.unwrap()) {
            Some(Response::Event(event)) => self.output.take(event),
            Some(Response::Stdin(stdin)) => (self.accepted, self.closed) = (stdin.offset, stdin.closed),
            None => return false,
        }
        true
    }

    async fn until(&mut self, so: impl Fn(&Self) -> bool) {
        while !so(self) {
            assert!(self.next().await, "the stream ended early");
        }
    }
}

#[tokio::test]
async fn a_stream_starts_writes_signals_and_detaches() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let id = new_id("bidi");
    let script = r#"$| = 1; $SIG{HUP} = sub { print "hup\n" }; print "got $_" while <STDIN>; print "end\n"; exit 5"#;
    let spec = with_stdin(mark(argv(&["perl", "-e", script]), &id));
    let start = ExecStart {
        exec_id: id.clone(),
        spec: Some(spec.clone()),
        writer: "me".into(),
        ..Default::default()
    };
    let mut stream = Bidi::open(&mut client, Request::Start(start.clone())).await.unwrap();
    stream.stdin(0, "one\n", false).await;
    stream.stdin(0, "one\n", false).await;
    stream
        .until(|stream| stream.accepted == 4 && stream.output.stdout == b"got one\n")
        .await;
    stream.send(Request::Detach(ExecDetach {})).await;
    while stream.next().await {}
    assert_eq!(marked(&id).len(), 1, "it runs on");

    // From where it left off, whatever came meanwhile.
    let seen = stream.output.next;
    let write = WriteExecRequest {
        writer: "me".into(),
        ..write_request(&id, 4, b"two\n", false)
    };
    client.write_exec(write).await.unwrap();
    let from = Some(FollowFrom {
        place: Some(Place::Offsets(seen)),
    });
    let attach = ExecAttach {
        exec_id: id.clone(),
        from,
        writer: "me".into(),
        ..Default::default()
    };
    let mut stream = Bidi::open(&mut client, Request::Attach(attach.clone())).await.unwrap();
    stream.output = Output::at(seen);
    stream.until(|stream| stream.output.stdout == b"got two\n").await;
    stream.send(Request::Signal(ExecSignal { signal: 1 })).await;
    stream.until(|stream| stream.output.stdout.ends_with(b"hup\n")).await;
    // A stream that breaks off detaches, too.
    drop(stream);
    let mut stream = Bidi::open(&mut client, Request::Start(start)).await.unwrap();
    stream.stdin(8, "three\n", true).await;
    while stream.next().await {}
    assert!(stream.closed && stream.accepted == 14);
    assert_eq!(
        String::from_utf8_lossy(&stream.output.stdout),
        "got one\ngot two\nhup\ngot three\nend\n"
    );
    assert_eq!(stream.output.exit.unwrap().status, Some(Status::Code(5)));
    assert!(stream.output.ended.is_some());

    // Attaching never starts.
    let nobody = ExecAttach {
        exec_id: new_id("nobody"),
        ..Default::default()
    };
    let refused = Bidi::open(&mut client, Request::Attach(nobody)).await.unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::ExecNotFound);
    let refused = Bidi::open(&mut client, Request::Detach(ExecDetach {}))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
    // A refusal of what comes later ends the stream, and leaves the exec alone.
    let other = new_id("other");
    let spec = Some(with_stdin(mark(shell("exec sleep 1000"), &other)));
    let start = ExecStart {
        exec_id: other.clone(),
        spec,
        ..Default::default()
    };
    let mut stream = Bidi::open(&mut client, Request::Start(start.clone())).await.unwrap();
    stream.stdin(7, "x", false).await;
    let refused = loop {
        match tokio::time::timeout(LIMIT, stream.responses.message()).await.unwrap() {
            Ok(response) => assert!(response.is_some(), "the stream ended well"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(reason(&refused), ErrorReason::StdinGap);
    assert_eq!(marked(&other).len(), 1);
    let mut stream = Bidi::open(&mut client, Request::Start(start)).await.unwrap();
    stream.send(Request::Signal(ExecSignal { signal: 9 })).await;
    while stream.next().await {}
    assert_eq!(stream.output.exit.unwrap().status, Some(Status::Signal(9)));
}
