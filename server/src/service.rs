//! The public service. Each call is one short function; what it does lives elsewhere.

use sandgate_errors::Refusal;
use sandgate_proto::v1::{self as pb, ErrorReason, sandbox_service_server::SandboxService};
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

/// The sandboxes of this server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sandboxes;

#[tonic::async_trait]
impl SandboxService for Sandboxes {
    type WatchStream = BoxStream<pb::WatchResponse>;
    type ExecStream = BoxStream<pb::ExecResponse>;
    type FollowExecStream = BoxStream<pb::FollowExecResponse>;
    type DownloadStream = BoxStream<pb::DownloadResponse>;
    type WatchFilesStream = BoxStream<pb::WatchFilesResponse>;
    type ForwardStream = BoxStream<pb::ForwardResponse>;

    async fn create(&self, _: Request<pb::CreateRequest>) -> Result<Response<pb::CreateResponse>, Status> {
        not_implemented("Create")
    }

    async fn attach(&self, _: Request<pb::AttachRequest>) -> Result<Response<pb::AttachResponse>, Status> {
        not_implemented("Attach")
    }

    async fn get(&self, _: Request<pb::GetRequest>) -> Result<Response<pb::GetResponse>, Status> {
        not_implemented("Get")
    }

    async fn list(&self, _: Request<pb::ListRequest>) -> Result<Response<pb::ListResponse>, Status> {
        not_implemented("List")
    }

    async fn watch(&self, _: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        not_implemented("Watch")
    }

    async fn update(&self, _: Request<pb::UpdateRequest>) -> Result<Response<pb::UpdateResponse>, Status> {
        not_implemented("Update")
    }

    async fn suspend(&self, _: Request<pb::SuspendRequest>) -> Result<Response<pb::SuspendResponse>, Status> {
        not_implemented("Suspend")
    }

    async fn resume(&self, _: Request<pb::ResumeRequest>) -> Result<Response<pb::ResumeResponse>, Status> {
        not_implemented("Resume")
    }

    async fn delete(&self, _: Request<pb::DeleteRequest>) -> Result<Response<pb::DeleteResponse>, Status> {
        not_implemented("Delete")
    }

    async fn exec(&self, _: Request<Streaming<pb::ExecRequest>>) -> Result<Response<Self::ExecStream>, Status> {
        not_implemented("Exec")
    }

    async fn start_exec(&self, _: Request<pb::StartExecRequest>) -> Result<Response<pb::StartExecResponse>, Status> {
        not_implemented("StartExec")
    }

    async fn follow_exec(&self, _: Request<pb::FollowExecRequest>) -> Result<Response<Self::FollowExecStream>, Status> {
        not_implemented("FollowExec")
    }

    async fn write_exec(&self, _: Request<pb::WriteExecRequest>) -> Result<Response<pb::WriteExecResponse>, Status> {
        not_implemented("WriteExec")
    }

    async fn signal_exec(&self, _: Request<pb::SignalExecRequest>) -> Result<Response<pb::SignalExecResponse>, Status> {
        not_implemented("SignalExec")
    }

    async fn resize_exec(&self, _: Request<pb::ResizeExecRequest>) -> Result<Response<pb::ResizeExecResponse>, Status> {
        not_implemented("ResizeExec")
    }

    async fn get_exec(&self, _: Request<pb::GetExecRequest>) -> Result<Response<pb::GetExecResponse>, Status> {
        not_implemented("GetExec")
    }

    async fn list_execs(&self, _: Request<pb::ListExecsRequest>) -> Result<Response<pb::ListExecsResponse>, Status> {
        not_implemented("ListExecs")
    }

    async fn run(&self, _: Request<pb::RunRequest>) -> Result<Response<pb::RunResponse>, Status> {
        not_implemented("Run")
    }

    async fn file_ops(&self, _: Request<pb::FileOpsRequest>) -> Result<Response<pb::FileOpsResponse>, Status> {
        not_implemented("FileOps")
    }

    async fn upload(&self, _: Request<Streaming<pb::UploadRequest>>) -> Result<Response<pb::UploadResponse>, Status> {
        not_implemented("Upload")
    }

    async fn download(&self, _: Request<pb::DownloadRequest>) -> Result<Response<Self::DownloadStream>, Status> {
        not_implemented("Download")
    }

    async fn write_chunk(&self, _: Request<pb::WriteChunkRequest>) -> Result<Response<pb::WriteChunkResponse>, Status> {
        not_implemented("WriteChunk")
    }

    async fn watch_files(&self, _: Request<pb::WatchFilesRequest>) -> Result<Response<Self::WatchFilesStream>, Status> {
        not_implemented("WatchFiles")
    }

    async fn forward(
        &self,
        _: Request<Streaming<pb::ForwardRequest>>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        not_implemented("Forward")
    }
}

fn not_implemented<T>(rpc: &'static str) -> Result<T, Status> {
    let message = format!("{rpc} is not implemented by this version of the server yet");
    Err(Refusal::new(ErrorReason::NotImplemented, message)
        .with("rpc", rpc)
        .into())
}
