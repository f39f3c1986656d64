//! Execs and files as callers meet them: the service, and behind it a real runtime in a sandbox that only pretends.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/runtime.rs"]
mod runtime;
#[path = "support/serving.rs"]
mod serving;

use std::{collections::HashSet, sync::Arc, time::Duration};

use sandgate_proto::{
    runtime::v1::{GetExecRequest, HelloRequest, runtime_service_client::RuntimeServiceClient},
    v1::{
        self as pb, ErrorReason, ExecEvent, ExecRequest, ExecSpec, ExecStart, FollowExecRequest, FollowTarget,
        OnCallerGone, OutputStream, RunRequest, StdinMode, StdinWrite, UploadEntry, UploadEntryEnd, UploadRequest,
        UploadStart, download_response, exec_event::Event, exec_request, exec_response, exec_spec::Command,
        upload_request::Message,
    },
};
use tokio::{sync::mpsc, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};

use self::{
    fake::Fake,
    runtime::Runtime,
    serving::{Serving, reason, refusal},
};

/// Long enough for anything but a hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// The service, one sandbox `box`, and the runtime inside.
struct Setup {
    serving: Serving,
    fake: Arc<Fake>,
    runtime: Runtime,
    /// Past the service.
    inside: RuntimeServiceClient<Channel>,
    incarnation: String,
}

impl Setup {
    async fn new() -> Self {
        let (runtime, mut inside) = Runtime::start().await;
        let hello = inside.hello(HelloRequest { generation: 1 }).await.unwrap().into_inner();
        let fake = Fake::new();
        fake.add("box", &hello.incarnation, &runtime.socket());
        Self {
            serving: Serving::start(fake.clone()).await,
            fake,
            runtime,
            inside,
            incarnation: hello.incarnation,
        }
    }

    /// Starts a script, and leaves it alone.
    async fn start(&mut self, id: &str, script: &str) {
        let request = pb::StartExecRequest {
            sandbox: "box".into(),
            exec_id: id.to_owned(),
            spec: Some(shell(script)),
            ..Default::default()
        };
        self.serving.client.start_exec(request).await.unwrap();
    }

    /// Waits until processes of an exec are alive, or none is. It may not even have been started yet.
    async fn until_alive(&mut self, id: &str, alive: bool) {
        let request = || GetExecRequest { exec_id: id.to_owned() };
        soon(&format!("{id}: alive = {alive}"), async {
            loop {
                let exec = self.inside.get_exec(request()).await.ok();
                let exec = exec.and_then(|answer| answer.into_inner().exec);
                if exec.is_some_and(|exec| exec.processes_alive == alive) {
                    return;
                }
                time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

fn follow(id: &str) -> FollowExecRequest {
    FollowExecRequest {
        sandbox: "box".into(),
        targets: vec![FollowTarget {
            exec_id: id.to_owned(),
            from: None,
        }],
        ..FollowExecRequest::default()
    }
}

fn shell(script: &str) -> ExecSpec {
    ExecSpec {
        command: Some(Command::Shell(script.to_owned())),
        ..ExecSpec::default()
    }
}

fn run(id: &str, script: &str) -> RunRequest {
    RunRequest {
        sandbox: "box".into(),
        exec_id: id.to_owned(),
        spec: Some(shell(script)),
        ..RunRequest::default()
    }
}

fn start_cat(id: &str) -> ExecRequest {
    let spec = ExecSpec {
        stdin: StdinMode::Open.into(),
        ..shell("cat")
    };
    exec_message(exec_request::Request::Start(ExecStart {
        sandbox: "box".into(),
        exec_id: id.to_owned(),
        spec: Some(spec),
        ..ExecStart::default()
    }))
}

fn exec_message(request: exec_request::Request) -> ExecRequest {
    ExecRequest { request: Some(request) }
}

fn upload_message(message: Message) -> UploadRequest {
    UploadRequest { message: Some(message) }
}

fn upload_start() -> UploadRequest {
    upload_message(Message::Start(UploadStart {
        sandbox: "box".into(),
        ..UploadStart::default()
    }))
}

fn upload_entry(path: &str) -> UploadRequest {
    upload_message(Message::Entry(UploadEntry {
        path: path.to_owned(),
        ..UploadEntry::default()
    }))
}

/// Waits for something that must come.
async fn soon<T>(what: &str, awaited: impl Future<Output = T>) -> T {
    time::timeout(PATIENCE, awaited)
        .await
        .unwrap_or_else(|_| panic!("{what} never came"))
}

/// What a stream ends with, which must be a failure.
async fn failure<T>(stream: &mut Streaming<T>) -> Status {
    soon("the end of a stream", async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended well"),
                Err(status) => return status,
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_command_is_run_once_and_a_refusal_of_the_runtimes_passes() {
    let mut setup = Setup::new().await;
    let client = &mut setup.serving.client;
    for _ in 0..2 {
        let answer = client
            .run(run("r", "echo out; echo err >&2; echo >> ran; exit 3"))
            .await;
        let answer = answer.unwrap().into_inner();
        assert_eq!(answer.stdout.unwrap().head.as_ref(), b"out\n");
        assert_eq!(answer.stderr.unwrap().head.as_ref(), b"err\n");
        let exit = answer.exec.unwrap().exit.unwrap();
        assert_eq!(exit.status, Some(pb::exec_exit::Status::Code(3)));
    }
    let ran = std::fs::read(setup.runtime.workspace().join("ran")).unwrap();
    assert_eq!(ran, b"\n");
    let other = client.run(run("r", "echo other")).await.unwrap_err();
    assert_eq!(reason(&other), ErrorReason::ExecAlreadyExists);
    let restarted = RunRequest {
        expected_incarnation: "another".into(),
        ..run("s", "true")
    };
    let restarted = refusal(&client.run(restarted).await.unwrap_err());
    assert_eq!(restarted.reason, ErrorReason::SandboxRestarted);
    assert_eq!(restarted.metadata["incarnation"], "another");
}

#[tokio::test]
async fn a_stream_carries_stdin_in_and_output_back() {
    let mut setup = Setup::new().await;
    let data = prost::bytes::Bytes::from(vec![b'x'; 300_000]);
    let stdin = exec_request::Request::Stdin(StdinWrite {
        offset: 0,
        data: data.clone(),
        close: true,
    });
    let requests = tokio_stream::iter([start_cat("c"), exec_message(stdin)]);
    let mut answers = setup.serving.client.exec(requests).await.unwrap().into_inner();
    let (mut output, mut accepted, mut ended) = (Vec::new(), 0, false);
    while let Some(answer) = soon("an answer", answers.message()).await.unwrap() {
        match answer.response.unwrap() {
            exec_response::Response::Stdin(stdin) => accepted = stdin.offset,
            exec_response::Response::Event(ExecEvent { event, .. }) => match event.unwrap() {
                Event::Output(part) => {
                    assert_eq!(
                        (part.stream(), part.offset),
                        (OutputStream::Stdout, output.len() as u64)
                    );
                    output.extend_from_slice(&part.data);
                }
                Event::Ended(_) => ended = true,
                _ => {}
            },
        }
    }
    assert!(ended && output == data, "{} bytes", output.len());
    assert_eq!(accepted, data.len() as u64);
}

#[tokio::test]
async fn wrong_first_messages_are_refused() {
    let mut setup = Setup::new().await;
    let client = &mut setup.serving.client;
    let detach = exec_message(exec_request::Request::Detach(pb::ExecDetach {}));
    for first in [detach, ExecRequest { request: None }] {
        let status = client.exec(tokio_stream::once(first)).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::InvalidArgument);
    }
    let status = client.exec(tokio_stream::empty()).await.unwrap_err();
    assert_eq!(reason(&status), ErrorReason::InvalidArgument);
    let status = client.upload(tokio_stream::once(upload_entry("x"))).await.unwrap_err();
    assert_eq!(reason(&status), ErrorReason::InvalidArgument);
    // Not the first, and nothing that a runtime could be asked.
    let (sender, receiver) = mpsc::channel(4);
    sender.send(start_cat("c")).await.unwrap();
    let mut answers = client.exec(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    soon("the start", answers.message()).await.unwrap();
    sender.send(ExecRequest { request: None }).await.unwrap();
    let status = failure(&mut answers).await;
    assert_eq!(refusal(&status).field.as_deref(), Some("request"));
    setup.until_alive("c", true).await;
}

#[tokio::test]
async fn what_goes_up_comes_down() {
    let mut setup = Setup::new().await;
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let chunks = content
        .chunks(65_536)
        .map(|chunk| Message::Chunk(chunk.to_vec().into()));
    let mut messages = vec![upload_start(), upload_entry("file")];
    messages.extend(chunks.map(upload_message));
    messages.push(upload_message(Message::EntryEnd(UploadEntryEnd::default())));
    let client = &mut setup.serving.client;
    let answer = client.upload(tokio_stream::iter(messages)).await.unwrap().into_inner();
    assert_eq!((answer.entries, answer.bytes), (1, content.len() as u64));

    let request = pb::DownloadRequest {
        sandbox: "box".into(),
        paths: vec![pb::DownloadPath {
            path: "file".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut download = client.download(request).await.unwrap().into_inner();
    let (mut down, mut whole) = (Vec::new(), false);
    while let Some(message) = download.message().await.unwrap() {
        match message.message.unwrap() {
            download_response::Message::Chunk(chunk) => down.extend_from_slice(&chunk),
            download_response::Message::Summary(summary) => whole = summary.failures == 0,
            _ => {}
        }
    }
    assert!(whole && down == content);
}

#[tokio::test]
async fn an_upload_that_is_cut_leaves_nothing() {
    let mut setup = Setup::new().await;
    std::fs::write(setup.runtime.workspace().join("file"), "old").unwrap();
    let (sender, receiver) = mpsc::channel(4);
    let mut client = setup.serving.client.clone();
    let uploading = tokio::spawn(async move { client.upload(ReceiverStream::new(receiver)).await });
    let chunk = || upload_message(Message::Chunk(vec![7; 65_536].into()));
    for message in [upload_start(), upload_entry("file"), chunk(), chunk()] {
        sender.send(message).await.unwrap();
    }
    // A message that means nothing breaks the stream at our side.
    sender.send(UploadRequest { message: None }).await.unwrap();
    let status = soon("the refusal", uploading).await.unwrap().unwrap_err();
    assert_eq!(refusal(&status).field.as_deref(), Some("message"));
    // And a caller who leaves.
    let (sender, receiver) = mpsc::channel(4);
    let mut client = setup.serving.client.clone();
    let uploading = tokio::spawn(async move { client.upload(ReceiverStream::new(receiver)).await });
    for message in [upload_start(), upload_entry("file"), chunk(), chunk()] {
        sender.send(message).await.unwrap();
    }
    uploading.abort();
    _ = uploading.await;
    let names = || {
        let entries = std::fs::read_dir(setup.runtime.workspace()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<HashSet<_>>()
    };
    soon("the end of what was begun", async {
        while names().len() != 1 {
            time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(std::fs::read(setup.runtime.workspace().join("file")).unwrap(), b"old");
    assert!(setup.serving.client.run(run("r", "true")).await.is_ok());
}

#[tokio::test]
async fn a_runtime_that_dies_ends_streams_with_what_became_of_it() {
    let mut setup = Setup::new().await;
    setup.start("s", "echo begun; sleep 1000").await;
    let mut events = setup
        .serving
        .client
        .follow_exec(follow("s"))
        .await
        .unwrap()
        .into_inner();
    soon("the start", events.message()).await.unwrap();
    setup.runtime.kill();
    setup.fake.fall_asleep("box");
    let told = refusal(&failure(&mut events).await);
    assert_eq!(told.reason, ErrorReason::SandboxRestarted);
    assert_eq!(told.metadata["incarnation"], setup.incarnation);
    assert!(told.message.contains("it fell asleep"), "{}", told.message);
    let status = setup.serving.client.run(run("r", "true")).await.unwrap_err();
    assert_eq!(reason(&status), ErrorReason::SandboxSuspended);
}

#[tokio::test]
async fn a_runtime_that_is_gone_without_word_is_unreachable() {
    let mut setup = Setup::new().await;
    setup.runtime.kill();
    let status = setup.serving.client.run(run("r", "true")).await.unwrap_err();
    assert_eq!(
        (reason(&status), status.code()),
        (ErrorReason::SandboxUnreachable, Code::Unavailable)
    );
}

#[tokio::test]
async fn a_suspended_sandbox_is_woken_only_when_asked_and_expected() {
    let mut setup = Setup::new().await;
    let client = &mut setup.serving.client;
    setup.fake.fall_asleep("box");
    let status = client.run(run("r", "true")).await.unwrap_err();
    assert_eq!(reason(&status), ErrorReason::SandboxSuspended);
    for auto_resume in [false, true] {
        let request = RunRequest {
            expected_incarnation: setup.incarnation.clone(),
            auto_resume,
            ..run("r", "true")
        };
        let told = refusal(&client.run(request).await.unwrap_err());
        assert_eq!(told.reason, ErrorReason::SandboxRestarted);
        assert_eq!(told.metadata["incarnation"], setup.incarnation);
    }
    let request = RunRequest {
        auto_resume: true,
        ..run("r", "echo awake")
    };
    let answer = client.run(request).await.unwrap().into_inner();
    assert_eq!(answer.stdout.unwrap().head.as_ref(), b"awake\n");
}

#[tokio::test]
async fn a_caller_who_leaves_is_gone_for_the_runtime_too() {
    let mut setup = Setup::new().await;
    let request = RunRequest {
        on_caller_gone: OnCallerGone::Kill.into(),
        ..run("k", "sleep 1000")
    };
    let mut client = setup.serving.client.clone();
    let leaving = tokio::spawn(async move { client.run(request).await });
    setup.until_alive("k", true).await;
    leaving.abort();
    setup.until_alive("k", false).await;
}

#[tokio::test]
async fn a_server_that_stops_ends_streams_and_leaves_execs_alone() {
    let mut setup = Setup::new().await;
    setup.start("quiet", "sleep 1000").await;
    setup.start("loud", "yes").await;
    let (sender, receiver) = mpsc::channel(4);
    sender.send(start_cat("cat")).await.unwrap();
    let client = &mut setup.serving.client;
    let mut exec = client.exec(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let mut follows = Vec::new();
    for id in ["quiet", "loud"] {
        follows.push(client.follow_exec(follow(id)).await.unwrap().into_inner());
    }
    let mut waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.run(run("wait", "sleep 1000")).await });
    let mut uploading = client.clone();
    let (upload, receiver) = mpsc::channel(4);
    upload.send(upload_start()).await.unwrap();
    let uploading = tokio::spawn(async move { uploading.upload(ReceiverStream::new(receiver)).await });
    for id in ["cat", "wait"] {
        setup.until_alive(id, true).await;
    }

    setup.serving.stopping.begin();
    let stopped = |status: Status| assert_eq!(reason(&status), ErrorReason::Stopping, "{status:?}");
    for stream in &mut follows {
        stopped(failure(stream).await);
    }
    stopped(soon("the end of Run", waiting).await.unwrap().unwrap_err());
    stopped(soon("the end of Upload", uploading).await.unwrap().unwrap_err());
    stopped(failure(&mut exec).await);
    // A caller who says nothing more is let go of, too.
    soon("the end of the requests", sender.closed()).await;
    soon("the end of the upload's requests", upload.closed()).await;
    for id in ["quiet", "loud", "cat", "wait"] {
        setup.until_alive(id, true).await;
    }
}
