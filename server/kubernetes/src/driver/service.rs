//! `sandgate.runtime.v1.RuntimeService` for what does not speak it: execs by the engine, files by commands.

mod interactive;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{
    Stream, StreamExt as _,
    stream::{SelectAll, unfold},
};
use sandgate_errors::Refusal;
use sandgate_exec::{Budget, check_env, span, task};
use sandgate_output::Store;
use sandgate_proto::{
    runtime::v1::{self as proto, Heartbeat, exec_event::Event, runtime_service_server::RuntimeService},
    v1::ErrorReason,
};
use tonic::{Request, Response, Status, Streaming};

use super::{
    capabilities,
    engine::{Caller, Events, Exec, Execs},
    files::Files,
    inside::Inside,
    stream::{Answers, Source, answers},
};

/// One pod behind a driver, for every connection to it.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) inside: Arc<dyn Inside>,
    incarnation: String,
    started_at: SystemTime,
    execs: Execs,
    files: Files,
}

const GENERATION: u32 = 1;
const MAX_TARGETS: usize = 100;
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;
const DEFAULT_WAIT: Duration = Duration::from_secs(50);
const MAX_WAIT: Duration = Duration::from_secs(3_600);
const DEFAULT_STDIN_WAIT: Duration = Duration::from_secs(10);
const MAX_STDIN_WAIT: Duration = Duration::from_secs(50);

type Answer<T> = Result<Response<T>, Status>;

// === impl Service ===

impl Service {
    pub(crate) fn new(inside: Arc<dyn Inside>, incarnation: String, started_at: SystemTime, store: Store) -> Self {
        Self {
            execs: Execs::new(Arc::clone(&inside), incarnation.clone(), store),
            files: Files::new(Arc::clone(&inside)),
            inside,
            incarnation,
            started_at,
        }
    }

    /// Sets the environment that later execs get beside their own.
    pub(crate) fn set_env(&self, env: Vec<proto::EnvVar>) {
        self.execs.set_env(env);
    }

    /// Whether an exec is alive.
    pub(crate) fn is_busy(&self) -> bool {
        self.execs.list().iter().any(|exec| exec.is_alive())
    }

    /// Refuses a request that was meant for another start of the pod.
    fn expect(&self, expected: &str) -> Result<(), Refusal> {
        if expected.is_empty() || expected == self.incarnation {
            return Ok(());
        }
        let message = "the sandbox was restarted; what ran before is gone and was not run again";
        Err(Refusal::new(ErrorReason::SandboxRestarted, message).with("incarnation", expected))
    }

    fn missing<T>(&self, name: &str) -> Answer<T> {
        Err(capabilities::missing(self.inside.driver(), name).into())
    }

    async fn run_to_end(&self, request: proto::RunRequest) -> Result<proto::RunResponse, Refusal> {
        self.expect(&request.expected_incarnation)?;
        let budget = Budget::check(request.budget)?;
        let wait = span("max_wait", request.max_wait)?.unwrap_or(DEFAULT_WAIT);
        if wait > MAX_WAIT {
            return Err(Refusal::invalid("max_wait", "at most 1 hour"));
        }
        let grace = span("caller_grace", request.caller_grace)?.unwrap_or_default();
        let kill = request.on_caller_gone() == proto::OnCallerGone::Kill;
        let spec = request.spec.unwrap_or_default();
        if spec.stdin() == proto::StdinMode::Open || spec.pty.is_some() {
            let message = "Run can't write stdin: use Exec or StartExec";
            return Err(Refusal::invalid("spec.stdin", message));
        }
        if kill && !capabilities::has(self.inside.driver(), "exec.signal") {
            return Err(capabilities::missing(self.inside.driver(), "exec.signal").with_field("on_caller_gone"));
        }
        let attach = |exec: &Arc<Exec>| Waiting {
            exec: Arc::clone(exec),
            caller: Some(exec.caller()),
            kill: kill.then_some(grace),
            number: exec.calls(),
        };
        let (exec, _, mut waiting) = self.execs.start(&request.exec_id, spec, attach).await?;
        let _ = tokio::time::timeout(wait, exec.exited()).await;
        let (stdout, stderr) = exec.output(budget).await;
        waiting.kill = None;
        Ok(proto::RunResponse {
            exec: Some(exec.info()),
            stdout: Some(stdout),
            stderr: Some(stderr),
        })
    }

    async fn follow(&self, request: proto::FollowExecRequest) -> Result<Answers<proto::FollowExecResponse>, Refusal> {
        self.expect(&request.expected_incarnation)?;
        if request.targets.is_empty() || request.targets.len() > MAX_TARGETS {
            return Err(Refusal::invalid("targets", "name 1 to 100 execs"));
        }
        let mut execs = SelectAll::new();
        for target in &request.targets {
            let exec = self.execs.get(&target.exec_id)?;
            let events = Events::new(Arc::clone(&exec), target.from.as_ref(), !request.no_wait);
            exec.settled().await?;
            execs.push(unfold(events, |mut events| async move { Some((events.next().await?, events)) }).boxed());
        }
        Ok(answers(Followed(execs), || proto::FollowExecResponse {
            event: Some(heartbeat()),
        }))
    }

    fn list(&self, request: &proto::ListExecsRequest) -> Result<proto::ListExecsResponse, Refusal> {
        let size = match usize::try_from(request.page_size).unwrap_or(usize::MAX) {
            0 => DEFAULT_PAGE,
            size if size <= MAX_PAGE => size,
            _ => return Err(Refusal::invalid("page_size", "at most 1,000")),
        };
        let wrong = |_| Refusal::invalid("page_token", "not a token that this call gave");
        let after = match request.page_token.as_str() {
            "" => 0,
            token => token.parse::<u64>().map_err(wrong)?,
        };
        let wanted = |exec: &Arc<Exec>| exec.number > after && (!request.only_alive || exec.is_alive());
        let mut page: Vec<_> = self.execs.list().into_iter().filter(wanted).take(size + 1).collect();
        let more = page.len() > size;
        page.truncate(size);
        let last = page.last().filter(|_| more).map(|exec| exec.number.to_string());
        Ok(proto::ListExecsResponse {
            execs: page.iter().map(|exec| exec.info()).collect(),
            next_page_token: last.unwrap_or_default(),
        })
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    type ExecStream = Answers<proto::ExecResponse>;
    type FollowExecStream = Answers<proto::FollowExecResponse>;
    type DownloadStream = Answers<proto::DownloadResponse>;
    type WatchFilesStream = Answers<proto::WatchFilesResponse>;

    async fn hello(&self, _request: Request<proto::HelloRequest>) -> Answer<proto::HelloResponse> {
        self.inside.greet().await?;
        Ok(Response::new(proto::HelloResponse {
            generation: GENERATION,
            capabilities: capabilities::names(self.inside.driver()),
            incarnation: self.incarnation.clone(),
            version: self.inside.driver().as_str().to_owned(),
            started_at: Some(self.started_at.into()),
            ..proto::HelloResponse::default()
        }))
    }

    async fn configure(&self, request: Request<proto::ConfigureRequest>) -> Answer<proto::ConfigureResponse> {
        let request = request.into_inner();
        self.expect(&request.expected_incarnation)?;
        if request.deadline.is_some() || request.idle_limit.is_some() {
            return Err(not_its_own("limits").into());
        }
        if let Some(env) = request.env {
            if !self.inside.driver().takes_env() {
                return self.missing("env.warm");
            }
            check_env(&env.vars)?;
            self.set_env(env.vars);
        }
        Ok(Response::new(proto::ConfigureResponse::default()))
    }

    async fn stop(&self, _request: Request<proto::StopRequest>) -> Answer<proto::StopResponse> {
        Err(not_its_own("end").into())
    }

    async fn start_exec(&self, request: Request<proto::StartExecRequest>) -> Answer<proto::StartExecResponse> {
        let request = request.into_inner();
        self.expect(&request.expected_incarnation)?;
        let spec = request.spec.unwrap_or_default();
        let (exec, started, ()) = self.execs.start(&request.exec_id, spec, |_| ()).await?;
        Ok(Response::new(proto::StartExecResponse {
            exec: Some(exec.info()),
            started,
        }))
    }

    async fn exec(&self, request: Request<Streaming<proto::ExecRequest>>) -> Answer<Self::ExecStream> {
        interactive::exec(self, request.into_inner()).await.map(Response::new)
    }

    async fn follow_exec(&self, request: Request<proto::FollowExecRequest>) -> Answer<Self::FollowExecStream> {
        Ok(Response::new(self.follow(request.into_inner()).await?))
    }

    async fn write_exec(&self, request: Request<proto::WriteExecRequest>) -> Answer<proto::WriteExecResponse> {
        let request = request.into_inner();
        self.expect(&request.expected_incarnation)?;
        let wait = span("max_wait", request.max_wait)?.unwrap_or(DEFAULT_STDIN_WAIT);
        if wait > MAX_STDIN_WAIT {
            return Err(Refusal::invalid("max_wait", "at most 50 s").into());
        }
        let exec = self.execs.get(&request.exec_id)?;
        exec.settled().await?;
        let stdin = request.stdin.unwrap_or_default();
        let stdin = exec.write(&request.writer, &stdin, wait).await?;
        Ok(Response::new(proto::WriteExecResponse { stdin: Some(stdin) }))
    }

    async fn signal_exec(&self, request: Request<proto::SignalExecRequest>) -> Answer<proto::SignalExecResponse> {
        let request = request.into_inner();
        self.expect(&request.expected_incarnation)?;
        let exec = self.execs.get(&request.exec_id)?;
        exec.settled().await?;
        let processes = exec.signal(request.signal.unwrap_or_default().signal).await?;
        Ok(Response::new(proto::SignalExecResponse { processes }))
    }

    async fn resize_exec(&self, request: Request<proto::ResizeExecRequest>) -> Answer<proto::ResizeExecResponse> {
        let request = request.into_inner();
        self.expect(&request.expected_incarnation)?;
        if !capabilities::has(self.inside.driver(), "exec.pty") {
            return self.missing("exec.pty");
        }
        let exec = self.execs.get(&request.exec_id)?;
        exec.resize(&request.size.unwrap_or_default()).await?;
        Ok(Response::new(proto::ResizeExecResponse {}))
    }

    async fn get_exec(&self, request: Request<proto::GetExecRequest>) -> Answer<proto::GetExecResponse> {
        let exec = self.execs.get(&request.into_inner().exec_id)?;
        Ok(Response::new(proto::GetExecResponse {
            exec: Some(exec.info()),
        }))
    }

    async fn list_execs(&self, request: Request<proto::ListExecsRequest>) -> Answer<proto::ListExecsResponse> {
        Ok(Response::new(self.list(&request.into_inner())?))
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Answer<proto::RunResponse> {
        Ok(Response::new(self.run_to_end(request.into_inner()).await?))
    }

    async fn file_ops(&self, request: Request<proto::FileOpsRequest>) -> Answer<proto::FileOpsResponse> {
        let request = request.into_inner();
        self.expect(&request.expected_incarnation)?;
        Ok(Response::new(self.files.batch(request).await?))
    }

    async fn upload(&self, request: Request<Streaming<proto::UploadRequest>>) -> Answer<proto::UploadResponse> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|request| request.message);
        let Some(proto::upload_request::Message::Start(start)) = first else {
            return Err(Refusal::invalid("message", "the first message is start").into());
        };
        self.expect(&start.expected_incarnation)?;
        self.files.upload(&start, requests).await.map(Response::new)
    }

    async fn download(&self, request: Request<proto::DownloadRequest>) -> Answer<Self::DownloadStream> {
        Ok(Response::new(self.files.download(request.into_inner())?))
    }

    async fn write_chunk(&self, _request: Request<proto::WriteChunkRequest>) -> Answer<proto::WriteChunkResponse> {
        self.missing("files.chunks")
    }

    async fn watch_files(&self, _request: Request<proto::WatchFilesRequest>) -> Answer<Self::WatchFilesStream> {
        self.missing("files.watch")
    }
}

/// The events of several execs, as they come.
struct Followed(SelectAll<Pin<Box<dyn Stream<Item = proto::ExecEvent> + Send>>>);

impl Source for Followed {
    type Item = proto::FollowExecResponse;

    async fn next(&mut self) -> Option<Result<Self::Item, Status>> {
        let event = self.0.next().await?;
        Some(Ok(proto::FollowExecResponse { event: Some(event) }))
    }
}

/// Only the provider can do that, by the claim.
fn not_its_own(what: &str) -> Refusal {
    let message = format!("what runs in this sandbox does not know of its {what}: its claim does");
    Refusal::new(ErrorReason::NotImplemented, message)
}

fn heartbeat() -> proto::ExecEvent {
    proto::ExecEvent {
        event: Some(Event::Heartbeat(Heartbeat {})),
        ..Default::default()
    }
}

/// A `Run` under way. Dropped with `kill` set, its caller has gone away.
struct Waiting {
    exec: Arc<Exec>,
    caller: Option<Caller>,
    kill: Option<Duration>,
    /// Its number among the callers of the exec: a later one has come back.
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.caller = None;
        let Some(grace) = self.kill.take() else { return };
        let (exec, own) = (Arc::clone(&self.exec), self.number);
        task::spawn("caller gone", &self.exec.id, async move {
            tokio::time::sleep(grace).await;
            let _ = exec.settled().await;
            if !exec.has_callers() && exec.calls() == own {
                let _ = exec.signal(9).await;
            }
        });
    }
}
