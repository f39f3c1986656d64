//! `sandgate.runtime.v1.RuntimeService`: what arrives is checked here and handed to whoever does it.

mod exec;
pub(crate) mod files;
mod interactive;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use sandgate_errors::Refusal;
use sandgate_exec::{Execs, check_env, span};
use sandgate_files::{Defaults, Shared, litter::Litter, transfer::ChunkedUploads, watch::Watches};
use sandgate_proto::runtime::v1::{self as proto, runtime_service_server::RuntimeService};
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    batches::Batches,
    clock::{Call, Clock},
    hands::Hands,
    identity::{GENERATION, Identity},
    stream::Answers,
};

/// Everything that a call may need.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) identity: Identity,
    pub(crate) clock: Clock,
    pub(crate) execs: Execs,
    pub(crate) files: Arc<Files>,
    /// Where a call asks for the runtime's end, with the grace time.
    pub(crate) stop: mpsc::Sender<Option<Duration>>,
}

/// What file calls share.
pub(crate) struct Files {
    pub(crate) defaults: Defaults,
    pub(crate) shared: Shared,
    pub(crate) uploads: ChunkedUploads,
    pub(crate) transfers: Arc<Semaphore>,
    pub(crate) operations: Semaphore,
    pub(crate) batches: Arc<Batches>,
    pub(crate) watches: Watches,
    pub(crate) hands: Hands,
}

const MAX_GRACE: Duration = Duration::from_secs(300);

type Answer<T> = Result<Response<T>, Status>;

// === impl Files ===

impl Files {
    pub(crate) fn new(defaults: Defaults, litter: Litter) -> Self {
        Self {
            defaults,
            shared: Shared {
                litter,
                ..Shared::default()
            },
            uploads: ChunkedUploads::default(),
            transfers: Arc::new(Semaphore::new(files::MAX_TRANSFERS)),
            operations: Semaphore::new(files::MAX_BATCHES),
            batches: Arc::default(),
            watches: Watches::default(),
            hands: Hands::default(),
        }
    }
}

// === impl Service ===

impl Service {
    fn limits(&self) -> (Option<prost_types::Timestamp>, Option<prost_types::Duration>) {
        let limits = self.clock.limits();
        (
            limits.deadline.map(Into::into),
            limits.idle.and_then(|idle| idle.try_into().ok()),
        )
    }

    fn configure_all(&self, request: proto::ConfigureRequest) -> Result<proto::ConfigureResponse, Refusal> {
        self.identity.expect(&request.expected_incarnation)?;
        let idle = span("idle_limit", request.idle_limit)?;
        let wrong = |_| Refusal::invalid("deadline", "out of range");
        let deadline = request.deadline.map(SystemTime::try_from).transpose().map_err(wrong)?;
        let env = request.env.map(|env| check_env(&env.vars)).transpose()?;
        self.clock.set(|limits| {
            limits.deadline = deadline.or(limits.deadline);
            if let Some(idle) = idle {
                limits.idle = (!idle.is_zero()).then_some(idle);
            }
        });
        if let Some(env) = env {
            self.execs.set_env(env);
        }
        let (deadline, idle_limit) = self.limits();
        Ok(proto::ConfigureResponse { deadline, idle_limit })
    }

    pub(crate) fn call(&self) -> Call {
        self.clock.call()
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    type ExecStream = Answers<proto::ExecResponse>;
    type FollowExecStream = Answers<proto::FollowExecResponse>;
    type DownloadStream = Answers<proto::DownloadResponse>;
    type WatchFilesStream = Answers<proto::WatchFilesResponse>;

    async fn hello(&self, _request: Request<proto::HelloRequest>) -> Answer<proto::HelloResponse> {
        let _call = self.call();
        let (deadline, idle_limit) = self.limits();
        Ok(Response::new(proto::HelloResponse {
            generation: GENERATION,
            capabilities: self.identity.capabilities(),
            incarnation: self.identity.incarnation.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Some(self.identity.started_at.into()),
            deadline,
            idle_limit,
            cgroups: self.execs.has_cgroups(),
        }))
    }

    async fn configure(&self, request: Request<proto::ConfigureRequest>) -> Answer<proto::ConfigureResponse> {
        let _call = self.call();
        Ok(Response::new(self.configure_all(request.into_inner())?))
    }

    async fn stop(&self, request: Request<proto::StopRequest>) -> Answer<proto::StopResponse> {
        let request = request.into_inner();
        self.identity.expect(&request.expected_incarnation)?;
        let grace = span("grace", request.grace)?;
        if grace.is_some_and(|grace| grace > MAX_GRACE) {
            return Err(Refusal::invalid("grace", "at most 5 minutes").into());
        }
        // Full or closed: it is stopping already.
        let _ = self.stop.try_send(grace);
        Ok(Response::new(proto::StopResponse {}))
    }

    async fn start_exec(&self, request: Request<proto::StartExecRequest>) -> Answer<proto::StartExecResponse> {
        let _call = self.call();
        Ok(Response::new(exec::start(self, request.into_inner()).await?))
    }

    async fn exec(&self, request: Request<Streaming<proto::ExecRequest>>) -> Answer<Self::ExecStream> {
        interactive::exec(self, request.into_inner()).await.map(Response::new)
    }

    async fn follow_exec(&self, request: Request<proto::FollowExecRequest>) -> Answer<Self::FollowExecStream> {
        Ok(Response::new(exec::follow(self, request.into_inner()).await?))
    }

    async fn write_exec(&self, request: Request<proto::WriteExecRequest>) -> Answer<proto::WriteExecResponse> {
        let _call = self.call();
        Ok(Response::new(exec::write(self, request.into_inner()).await?))
    }

    async fn signal_exec(&self, request: Request<proto::SignalExecRequest>) -> Answer<proto::SignalExecResponse> {
        let _call = self.call();
        Ok(Response::new(exec::signal(self, request.into_inner()).await?))
    }

    async fn resize_exec(&self, request: Request<proto::ResizeExecRequest>) -> Answer<proto::ResizeExecResponse> {
        let _call = self.call();
        let request = request.into_inner();
        self.identity.expect(&request.expected_incarnation)?;
        self.execs
            .get(&request.exec_id)?
            .resize(&request.size.unwrap_or_default())?;
        Ok(Response::new(proto::ResizeExecResponse {}))
    }

    async fn get_exec(&self, request: Request<proto::GetExecRequest>) -> Answer<proto::GetExecResponse> {
        let _call = self.call();
        let exec = self.execs.get(&request.into_inner().exec_id)?;
        Ok(Response::new(proto::GetExecResponse {
            exec: Some(exec.info()),
        }))
    }

    async fn list_execs(&self, request: Request<proto::ListExecsRequest>) -> Answer<proto::ListExecsResponse> {
        let _call = self.call();
        Ok(Response::new(exec::list(self, &request.into_inner())?))
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Answer<proto::RunResponse> {
        let _call = self.call();
        Ok(Response::new(exec::run(self, request.into_inner()).await?))
    }

    async fn file_ops(&self, request: Request<proto::FileOpsRequest>) -> Answer<proto::FileOpsResponse> {
        let _call = self.call();
        Ok(Response::new(files::batch(self, request.into_inner()).await?))
    }

    async fn upload(&self, request: Request<Streaming<proto::UploadRequest>>) -> Answer<proto::UploadResponse> {
        let _call = self.call();
        files::upload(self, request.into_inner()).await.map(Response::new)
    }

    async fn download(&self, request: Request<proto::DownloadRequest>) -> Answer<Self::DownloadStream> {
        files::download(self, request.into_inner()).await.map(Response::new)
    }

    async fn write_chunk(&self, request: Request<proto::WriteChunkRequest>) -> Answer<proto::WriteChunkResponse> {
        let _call = self.call();
        Ok(Response::new(files::write_chunk(self, request.into_inner()).await?))
    }

    async fn watch_files(&self, request: Request<proto::WatchFilesRequest>) -> Answer<Self::WatchFilesStream> {
        files::watch(self, request.into_inner()).await.map(Response::new)
    }
}
