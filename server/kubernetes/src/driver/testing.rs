//! What every driver must do, run against a pod that is a directory of this machine.

mod files;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sandgate_errors::Refusal;
use sandgate_output::Store;
use sandgate_proto::{
    runtime::v1::{
        self as proto, FileOpsRequest, RunRequest, RunResponse, exec_event::Event, exec_exit, exec_request,
        exec_response, exec_spec::Command, runtime_service_client::RuntimeServiceClient, start_failure::Reason,
    },
    v1::ErrorReason,
};
use sandgate_provider::{Conduit, Link};
use tonic::Status;

use super::{inside::Inside, pipe::Pipe, service::Service};

/// A pod behind a driver, and a directory that it can write.
pub(crate) struct Pod {
    pub(crate) inside: Box<dyn Fn() -> Arc<dyn Inside>>,
    pub(crate) directory: tempfile::TempDir,
}

type Client = RuntimeServiceClient<Conduit>;

// === impl Pod ===

impl Pod {
    /// A server that has heard of nothing yet.
    pub(crate) fn server(&self) -> Client {
        let now = std::time::SystemTime::now();
        let service = Service::new((self.inside)(), "one".into(), now, Store::in_memory(64 << 20));
        Link::new(Arc::new(Pipe::new(service))).client()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory.path().display())
    }

    /// Everything that all drivers can do.
    pub(crate) async fn check_all(&self) {
        self.greets().await;
        self.runs_once().await;
        self.tells_what_can_not_start().await;
        self.gives_environment().await;
        self.works_on_files().await;
        self.refuses_by_name().await;
        self.transfers().await;
    }

    async fn greets(&self) {
        let mut server = self.server();
        let hello = server
            .hello(proto::HelloRequest { generation: 1 })
            .await
            .unwrap()
            .into_inner();
        assert_eq!(hello.incarnation, "one");
        assert!(hello.capabilities.contains(&"exec.run".to_owned()), "{hello:?}");
        let mut wrong = run("greet", shell("true"));
        wrong.expected_incarnation = "two".into();
        assert_eq!(reason(server.run(wrong).await), ErrorReason::SandboxRestarted);
    }

    async fn runs_once(&self) {
        let counter = self.path("counter");
        let script = format!("echo x >>{counter}; printf 'a\\377b'; echo err >&2; exit 3");
        let (mut server, request) = (self.server(), run("once", shell(&script)));
        for _ in 0..3 {
            let answer = server.run(request.clone()).await.unwrap().into_inner();
            assert_eq!(code(&answer), 3);
            assert_eq!(answer.stdout.as_ref().unwrap().head, &b"a\xffb"[..]);
            assert_eq!(answer.stderr.as_ref().unwrap().head, &b"err\n"[..]);
        }
        let other = run("once", shell("true"));
        assert_eq!(reason(server.run(other).await), ErrorReason::ExecAlreadyExists);
        // Another server does not know of it, and does not run it again.
        let mut elsewhere = self.server();
        let get = proto::GetExecRequest { exec_id: "once".into() };
        assert_eq!(reason(elsewhere.get_exec(get).await), ErrorReason::ExecNotFound);
        match elsewhere.run(request).await {
            Err(status) => assert_eq!(reason::<()>(Err(status)), ErrorReason::ExecExpired),
            Ok(answer) => {
                let failure = answer.into_inner().exec.unwrap().start_failure.unwrap();
                assert!(failure.message.contains("not run again"), "{failure:?}");
            }
        }
        assert_eq!(std::fs::read_to_string(counter).unwrap(), "x\n");
        let listed = server
            .list_execs(proto::ListExecsRequest::default())
            .await
            .unwrap()
            .into_inner();
        assert!(
            listed
                .execs
                .iter()
                .any(|exec| exec.exec_id == "once" && exec.output_ended),
            "{listed:?}"
        );
    }

    async fn tells_what_can_not_start(&self) {
        let mut server = self.server();
        let missing = server
            .run(run("missing", argv(&["no-such-program"])))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(missing.exec.unwrap().start_failure.unwrap().reason(), Reason::NotFound);
        let mut request = run("nowhere", argv(&["true"]));
        request.spec.as_mut().unwrap().cwd = "/no/such".into();
        let nowhere = server.run(request).await.unwrap().into_inner();
        assert_eq!(nowhere.exec.unwrap().start_failure.unwrap().reason(), Reason::BadCwd);
    }

    async fn gives_environment(&self) {
        let mut server = self.server();
        let env = proto::ConfiguredEnv {
            vars: vec![var("GIVEN", "g"), var("BOTH", "g")],
        };
        let configure = proto::ConfigureRequest {
            env: Some(env),
            ..Default::default()
        };
        let configured = server.configure(configure).await;
        if !(self.inside)().driver().takes_env() {
            return assert_eq!(missing(configured), "env.warm");
        }
        configured.unwrap();
        let mut request = run("env", shell("echo $GIVEN $BOTH; pwd"));
        let spec = request.spec.as_mut().unwrap();
        spec.env = vec![var("BOTH", "own")];
        spec.cwd = "/proc".into();
        let answer = server.run(request).await.unwrap().into_inner();
        assert_eq!(answer.stdout.unwrap().head, "g own\n/proc\n");
    }

    async fn refuses_by_name(&self) {
        let mut server = self.server();
        let watch = server.watch_files(proto::WatchFilesRequest::default()).await.map(drop);
        assert_eq!(missing(watch), "files.watch");
        assert_eq!(
            missing(server.write_chunk(proto::WriteChunkRequest::default()).await),
            "files.chunks"
        );
        let mut request = run("user", shell("true"));
        request.spec.as_mut().unwrap().user = "nobody".into();
        assert_eq!(missing(server.run(request).await), "exec.user");
        let rooted = FileOpsRequest {
            view: Some(proto::FileView {
                root_dir: "/tmp".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(missing(server.file_ops(rooted).await), "files.root");
    }

    /// What drivers can do that hear of a program while it runs.
    pub(crate) async fn check_streams(&self) {
        self.echoes_stdin().await;
        self.ends_what_takes_too_long().await;
        self.signals().await;
        self.follows_from_offsets().await;
        self.keeps_within_the_budget().await;
    }

    async fn echoes_stdin(&self) {
        let mut server = self.server();
        let mut spec = proto::ExecSpec {
            command: Some(shell("cat; echo done >&2")),
            ..Default::default()
        };
        spec.stdin = proto::StdinMode::Open.into();
        let start = exec_request::Request::Start(proto::ExecStart {
            exec_id: "cat".into(),
            spec: Some(spec),
            ..Default::default()
        });
        let data = Bytes::from(vec![b'z'; 300_000]);
        let write =
            |offset, data: Bytes, close| exec_request::Request::Stdin(proto::StdinWrite { offset, data, close });
        let requests = [start, write(0, data.clone(), false), write(300_000, Bytes::new(), true)];
        let requests = requests.map(|request| proto::ExecRequest { request: Some(request) });
        let mut stream = server
            .exec(futures_util::stream::iter(requests))
            .await
            .unwrap()
            .into_inner();
        let (mut echoed, mut status) = (0, None);
        while let Some(message) = stream.message().await.unwrap() {
            let Some(exec_response::Response::Event(event)) = message.response else {
                continue;
            };
            match event.event.unwrap() {
                Event::Output(output) if output.stream() == proto::OutputStream::Stdout => echoed += output.data.len(),
                Event::Exited(exit) => status = exit.status,
                _ => {}
            }
        }
        assert_eq!((echoed, status), (300_000, Some(exec_exit::Status::Code(0))));
        self.takes_all_of_stdin(&mut server).await;
    }

    /// Also when the program has sent its own output elsewhere.
    async fn takes_all_of_stdin(&self, server: &mut Client) {
        let path = self.path("stdin");
        let mut spec = proto::ExecSpec {
            command: Some(shell(&format!("cat >{path}"))),
            ..Default::default()
        };
        spec.stdin = proto::StdinMode::Open.into();
        let request = proto::StartExecRequest {
            exec_id: "stdin".into(),
            spec: Some(spec),
            ..Default::default()
        };
        server.start_exec(request).await.unwrap();
        let (size, mut at) = (700_000, 0);
        while at < size {
            let write = proto::WriteExecRequest {
                exec_id: "stdin".into(),
                stdin: Some(proto::StdinWrite {
                    offset: at,
                    data: vec![b'y'; usize::try_from(size - at).unwrap()].into(),
                    close: true,
                }),
                ..Default::default()
            };
            at = server
                .write_exec(write)
                .await
                .unwrap()
                .into_inner()
                .stdin
                .unwrap()
                .offset;
        }
        let mut stream = server.follow_exec(follow("stdin", 0)).await.unwrap().into_inner();
        while stream.message().await.unwrap().is_some() {}
        assert_eq!(std::fs::metadata(path).unwrap().len(), size);
    }

    pub(crate) async fn ends_what_takes_too_long(&self) {
        let mut request = run("slow", shell("sleep 1000 & sleep 1000"));
        request.spec.as_mut().unwrap().timeout = Some(Duration::from_millis(300).try_into().unwrap());
        let answer = self.server().run(request).await.unwrap().into_inner();
        let exit = answer.exec.unwrap().exit.unwrap();
        assert!(exit.timed_out);
        assert_eq!(exit.status, Some(exec_exit::Status::Signal(15)));
    }

    async fn signals(&self) {
        let mut server = self.server();
        let request = proto::StartExecRequest {
            exec_id: "trap".into(),
            spec: Some(proto::ExecSpec {
                command: Some(shell(
                    "trap 'echo hup; exit 5' HUP; echo ready; while :; do sleep 0.1; done",
                )),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert!(server.start_exec(request.clone()).await.unwrap().into_inner().started);
        assert!(!server.start_exec(request).await.unwrap().into_inner().started);
        let mut stream = server.follow_exec(follow("trap", 0)).await.unwrap().into_inner();
        let mut seen = Vec::new();
        let mut status = None;
        while let Some(message) = stream.message().await.unwrap() {
            match message.event.unwrap().event.unwrap() {
                // Shells have words of their own for a signal, on stderr.
                Event::Output(output) if output.stream() == proto::OutputStream::Stdout => {
                    seen.extend_from_slice(&output.data);
                    if seen == b"ready\n" {
                        let signal = proto::SignalExecRequest {
                            exec_id: "trap".into(),
                            signal: Some(proto::ExecSignal { signal: 1 }),
                            ..Default::default()
                        };
                        server.signal_exec(signal).await.unwrap();
                    }
                }
                Event::Exited(exit) => status = exit.status,
                _ => {}
            }
        }
        assert_eq!(
            (seen.as_slice(), status),
            (&b"ready\nhup\n"[..], Some(exec_exit::Status::Code(5)))
        );
        let signal = proto::SignalExecRequest {
            exec_id: "trap".into(),
            signal: Some(proto::ExecSignal { signal: 9 }),
            ..Default::default()
        };
        assert_eq!(reason(server.signal_exec(signal).await), ErrorReason::ExecNotRunning);
    }

    async fn follows_from_offsets(&self) {
        let mut server = self.server();
        server.run(run("numbers", shell("printf 0123456789"))).await.unwrap();
        let mut stream = server.follow_exec(follow("numbers", 4)).await.unwrap().into_inner();
        let (mut seen, mut ended) = (Vec::new(), false);
        while let Some(message) = stream.message().await.unwrap() {
            match message.event.unwrap().event.unwrap() {
                Event::Output(output) => seen.extend_from_slice(&output.data),
                Event::Ended(_) => ended = true,
                _ => {}
            }
        }
        assert!(ended && seen == b"456789", "{seen:?}");
    }

    async fn keeps_within_the_budget(&self) {
        let mut request = run(
            "long",
            shell("i=0; while [ $i -lt 20000 ]; do echo \"line $i of many\"; i=$((i+1)); done"),
        );
        request.budget = Some(proto::OutputBudget {
            head_bytes: 100,
            tail_bytes: 100,
        });
        let answer = self.server().run(request).await.unwrap().into_inner();
        let stdout = answer.stdout.unwrap();
        assert!(stdout.head.starts_with(b"line 0 of many\n") && stdout.tail.ends_with(b"line 19999 of many\n"));
        assert!(
            stdout.omitted_bytes > 300_000 && stdout.omitted_lines > 19_000,
            "{stdout:?}"
        );
    }
}

pub(crate) fn shell(script: &str) -> Command {
    Command::Shell(script.to_owned())
}

fn argv(args: &[&str]) -> Command {
    Command::Argv(proto::Argv {
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        args_raw: Vec::new(),
    })
}

pub(crate) fn run(id: &str, command: Command) -> RunRequest {
    RunRequest {
        exec_id: id.to_owned(),
        spec: Some(proto::ExecSpec {
            command: Some(command),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn follow(id: &str, stdout: u64) -> proto::FollowExecRequest {
    let place = proto::follow_from::Place::Offsets(proto::ExecOffsets { stdout, stderr: 0 });
    proto::FollowExecRequest {
        targets: vec![proto::FollowTarget {
            exec_id: id.to_owned(),
            from: Some(proto::FollowFrom { place: Some(place) }),
        }],
        ..Default::default()
    }
}

fn var(name: &str, value: &str) -> proto::EnvVar {
    proto::EnvVar {
        name: name.into(),
        value: value.into(),
        ..Default::default()
    }
}

fn code(answer: &RunResponse) -> i32 {
    match answer
        .exec
        .as_ref()
        .unwrap()
        .exit
        .as_ref()
        .and_then(|exit| exit.status.as_ref())
    {
        Some(exec_exit::Status::Code(code)) => *code,
        other => panic!("{other:?} {answer:?}"),
    }
}

pub(crate) fn reason<T>(answer: Result<T, Status>) -> ErrorReason {
    let status = answer.err().expect("a refusal");
    Refusal::from_status(&status)
        .unwrap_or_else(|| panic!("{status:?}"))
        .reason
}

pub(crate) fn missing<T>(answer: Result<T, Status>) -> String {
    let status = answer.err().expect("a refusal");
    let refusal = Refusal::from_status(&status).unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!(
        (refusal.reason, status.code()),
        (ErrorReason::CapabilityMissing, tonic::Code::Unimplemented)
    );
    refusal.metadata["capability"].clone()
}
