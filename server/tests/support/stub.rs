//! A service that does nothing, so that what is around it can be tested.

use std::sync::Arc;

use sandgate_errors::Refusal;
use sandgate_proto::v1::{
    self as pb, ErrorReason,
    sandbox_service_server::{SandboxService, SandboxServiceServer},
};
use sandgate_server::{Caller, RequestId, Stopping};
use tokio::sync::Semaphore;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

/// `Get` answers when it is let, with who asked; `Watch` is a stream that ends when the server stops, `FollowExec` one
/// that never does, and `Download` one that never pauses either. The rest is not implemented.
#[derive(Clone)]
pub(crate) struct Stub {
    pub(crate) stopping: Stopping,
    /// One permit for each `Get` that may be answered.
    pub(crate) gate: Arc<Semaphore>,
    /// One permit for each `Get` that came in.
    pub(crate) taken: Arc<Semaphore>,
}

impl Stub {
    pub(crate) fn new(stopping: Stopping) -> Self {
        let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let taken = Arc::new(Semaphore::new(0));
        Self { stopping, gate, taken }
    }

    /// As a server serves it.
    pub(crate) fn served(stopping: Stopping) -> SandboxServiceServer<Self> {
        SandboxServiceServer::new(Self::new(stopping))
    }

    async fn answer_get(&self, request: Request<pb::GetRequest>) -> Result<Response<pb::GetResponse>, Status> {
        self.taken.add_permits(1);
        let _permit = self.gate.acquire().await.unwrap();
        let caller = Caller::of(request.extensions()).expect("every request has a caller");
        let id: &RequestId = request.extensions().get().expect("every request has an id");
        let sandbox = pb::Sandbox {
            name: format!("{caller:?}"),
            uid: id.to_string(),
            ..pb::Sandbox::default()
        };
        Ok(Response::new(pb::GetResponse { sandbox: Some(sandbox) }))
    }

    fn watching(&self) -> BoxStream<pb::WatchResponse> {
        let stopping = self.stopping.clone();
        let end = async move {
            stopping.begun().await;
            Err(Refusal::new(ErrorReason::Stopping, "the stub is stopping").into())
        };
        let first = tokio_stream::once(Ok(pb::WatchResponse::default()));
        Box::pin(first.chain(futures_util::stream::once(end)))
    }
}

macro_rules! service {
    ($($name:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl SandboxService for Stub {
            type WatchStream = BoxStream<pb::WatchResponse>;
            type ExecStream = BoxStream<pb::ExecResponse>;
            type FollowExecStream = BoxStream<pb::FollowExecResponse>;
            type DownloadStream = BoxStream<pb::DownloadResponse>;
            type WatchFilesStream = BoxStream<pb::WatchFilesResponse>;
            type ForwardStream = BoxStream<pb::ForwardResponse>;

            async fn get(&self, request: Request<pb::GetRequest>) -> Result<Response<pb::GetResponse>, Status> {
                self.answer_get(request).await
            }

            async fn watch(&self, _: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
                Ok(Response::new(self.watching()))
            }

            async fn follow_exec(
                &self,
                _: Request<pb::FollowExecRequest>,
            ) -> Result<Response<Self::FollowExecStream>, Status> {
                let first = tokio_stream::once(Ok(pb::FollowExecResponse::default()));
                Ok(Response::new(Box::pin(first.chain(tokio_stream::pending()))))
            }

            async fn download(&self, _: Request<pb::DownloadRequest>) -> Result<Response<Self::DownloadStream>, Status> {
                let all = tokio_stream::iter(std::iter::repeat_with(|| Ok(pb::DownloadResponse::default())));
                Ok(Response::new(Box::pin(all)))
            }

            $(async fn $name(&self, _: Request<$request>) -> Result<Response<$response>, Status> {
                Err(Refusal::new(ErrorReason::NotImplemented, stringify!($name)).into())
            })*
        }
    };
}

service! {
    create: pb::CreateRequest => pb::CreateResponse;
    attach: pb::AttachRequest => pb::AttachResponse;
    list: pb::ListRequest => pb::ListResponse;
    update: pb::UpdateRequest => pb::UpdateResponse;
    suspend: pb::SuspendRequest => pb::SuspendResponse;
    resume: pb::ResumeRequest => pb::ResumeResponse;
    delete: pb::DeleteRequest => pb::DeleteResponse;
    exec: Streaming<pb::ExecRequest> => Self::ExecStream;
    start_exec: pb::StartExecRequest => pb::StartExecResponse;
    write_exec: pb::WriteExecRequest => pb::WriteExecResponse;
    signal_exec: pb::SignalExecRequest => pb::SignalExecResponse;
    resize_exec: pb::ResizeExecRequest => pb::ResizeExecResponse;
    get_exec: pb::GetExecRequest => pb::GetExecResponse;
    list_execs: pb::ListExecsRequest => pb::ListExecsResponse;
    run: pb::RunRequest => pb::RunResponse;
    file_ops: pb::FileOpsRequest => pb::FileOpsResponse;
    upload: Streaming<pb::UploadRequest> => pb::UploadResponse;
    write_chunk: pb::WriteChunkRequest => pb::WriteChunkResponse;
    watch_files: pb::WatchFilesRequest => Self::WatchFilesStream;
    forward: Streaming<pb::ForwardRequest> => Self::ForwardStream;
}
