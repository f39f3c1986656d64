//! The public service. Each call is one short function; what it does lives beside it.

mod check;
mod exec;
mod files;
mod lifecycle;
mod list;
mod messages;
mod reach;
mod relay;
mod requests;
mod streams;
mod tokens;
mod watch;

use std::sync::Arc;

use sandgate_errors::Refusal;
use sandgate_proto::v1::{self as pb, ErrorReason, sandbox_service_server::SandboxService};
use sandgate_provider::{Provider, Selector};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

pub use self::streams::{GrpcService, Service};
use crate::stopping::Stopping;

/// The sandboxes of this server. It keeps nothing: all that is known of them is the provider's and the runtimes'.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    provider: Arc<dyn Provider>,
    stopping: Stopping,
}

type Answer<T> = Result<Response<T>, Status>;

// === impl Sandboxes ===

impl Sandboxes {
    /// Serves what `provider` has, until `stopping` begins.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>, stopping: Stopping) -> Self {
        Self { provider, stopping }
    }
}

#[tonic::async_trait]
impl SandboxService for Sandboxes {
    type WatchStream = BoxStream<pb::WatchResponse>;
    type ExecStream = BoxStream<pb::ExecResponse>;
    type FollowExecStream = BoxStream<pb::FollowExecResponse>;
    type DownloadStream = BoxStream<pb::DownloadResponse>;
    type WatchFilesStream = BoxStream<pb::WatchFilesResponse>;
    type ForwardStream = BoxStream<pb::ForwardResponse>;

    async fn create(&self, request: Request<pb::CreateRequest>) -> Answer<pb::CreateResponse> {
        Ok(Response::new(self.make(request.into_inner()).await?))
    }

    async fn attach(&self, request: Request<pb::AttachRequest>) -> Answer<pb::AttachResponse> {
        let pb::AttachRequest {
            sandbox,
            no_wait,
            max_wait,
        } = request.into_inner();
        let (sandbox, resumed) = self.bring_back(&sandbox, no_wait, max_wait).await?;
        let sandbox = Some(Arc::unwrap_or_clone(sandbox));
        Ok(Response::new(pb::AttachResponse { sandbox, resumed }))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Answer<pb::GetResponse> {
        let sandbox = Some(self.one(request.get_ref()).await?);
        Ok(Response::new(pb::GetResponse { sandbox }))
    }

    async fn list(&self, request: Request<pb::ListRequest>) -> Answer<pb::ListResponse> {
        let request = request.get_ref();
        // Further pages go on with what the first one found.
        if request.page_token.is_empty() {
            let selector = Selector::parse("label_selector", &request.label_selector)?;
            self.provider.refresh(&selector).await?;
        }
        Ok(Response::new(list::list(self.provider.table(), request)?))
    }

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Answer<Self::WatchStream> {
        let request = request.get_ref();
        let selector = Selector::parse("label_selector", &request.label_selector)?;
        let (table, stopping) = (self.provider.table(), self.stopping.clone());
        let watching = watch::watch(table, selector, &request.resume_token, stopping);
        Ok(Response::new(watching))
    }

    async fn update(&self, request: Request<pb::UpdateRequest>) -> Answer<pb::UpdateResponse> {
        let sandbox = self.change(request.into_inner()).await?;
        let sandbox = Some(Arc::unwrap_or_clone(sandbox));
        Ok(Response::new(pb::UpdateResponse { sandbox }))
    }

    async fn suspend(&self, request: Request<pb::SuspendRequest>) -> Answer<pb::SuspendResponse> {
        let sandbox = self.put_to_sleep(request.into_inner()).await?;
        let sandbox = Some(Arc::unwrap_or_clone(sandbox));
        Ok(Response::new(pb::SuspendResponse { sandbox }))
    }

    async fn resume(&self, request: Request<pb::ResumeRequest>) -> Answer<pb::ResumeResponse> {
        let pb::ResumeRequest {
            sandbox,
            no_wait,
            max_wait,
        } = request.into_inner();
        let (sandbox, resumed) = self.bring_back(&sandbox, no_wait, max_wait).await?;
        let sandbox = Some(Arc::unwrap_or_clone(sandbox));
        Ok(Response::new(pb::ResumeResponse { sandbox, resumed }))
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> Answer<pb::DeleteResponse> {
        Ok(Response::new(self.remove(request.into_inner()).await?))
    }

    async fn exec(&self, _: Request<Streaming<pb::ExecRequest>>) -> Answer<Self::ExecStream> {
        passed_on()
    }

    async fn start_exec(&self, _: Request<pb::StartExecRequest>) -> Answer<pb::StartExecResponse> {
        passed_on()
    }

    async fn follow_exec(&self, _: Request<pb::FollowExecRequest>) -> Answer<Self::FollowExecStream> {
        passed_on()
    }

    async fn write_exec(&self, _: Request<pb::WriteExecRequest>) -> Answer<pb::WriteExecResponse> {
        passed_on()
    }

    async fn signal_exec(&self, _: Request<pb::SignalExecRequest>) -> Answer<pb::SignalExecResponse> {
        passed_on()
    }

    async fn resize_exec(&self, _: Request<pb::ResizeExecRequest>) -> Answer<pb::ResizeExecResponse> {
        passed_on()
    }

    async fn get_exec(&self, _: Request<pb::GetExecRequest>) -> Answer<pb::GetExecResponse> {
        passed_on()
    }

    async fn list_execs(&self, _: Request<pb::ListExecsRequest>) -> Answer<pb::ListExecsResponse> {
        passed_on()
    }

    async fn run(&self, _: Request<pb::RunRequest>) -> Answer<pb::RunResponse> {
        passed_on()
    }

    async fn file_ops(&self, _: Request<pb::FileOpsRequest>) -> Answer<pb::FileOpsResponse> {
        passed_on()
    }

    async fn upload(&self, _: Request<Streaming<pb::UploadRequest>>) -> Answer<pb::UploadResponse> {
        passed_on()
    }

    async fn download(&self, _: Request<pb::DownloadRequest>) -> Answer<Self::DownloadStream> {
        passed_on()
    }

    async fn write_chunk(&self, _: Request<pb::WriteChunkRequest>) -> Answer<pb::WriteChunkResponse> {
        passed_on()
    }

    async fn watch_files(&self, _: Request<pb::WatchFilesRequest>) -> Answer<Self::WatchFilesStream> {
        passed_on()
    }

    async fn forward(&self, _: Request<Streaming<pb::ForwardRequest>>) -> Answer<Self::ForwardStream> {
        let rpc = "Forward";
        let message = format!("{rpc} is not implemented by this version of the server yet");
        let refusal = Refusal::new(ErrorReason::NotImplemented, message);
        Err(refusal.with("rpc", rpc).into())
    }
}

/// Calls to a runtime never become messages here: [`Service`] passes them on before.
fn passed_on<T>() -> Answer<T> {
    Err(Status::internal("this call is passed on by the service"))
}

/// What a call that ends early because the server stops answers.
fn stopping() -> Refusal {
    let message = "the server is stopping and its sandboxes go on: connect again, and resume at the offsets or the token that you have, or repeat the call";
    Refusal::new(ErrorReason::Stopping, message)
}
