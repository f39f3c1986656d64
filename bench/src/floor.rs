//! The floor: the same calls on a tonic server that does nothing but what the call itself takes.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    process::{Child, Command},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use sandgate_proto::runtime::v1::{
    self as proto,
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};
use sandgate_tests::{Client, connect_to};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use crate::work::{CHUNK, SIZE};

/// The floor as a process of its own. It ends with the value.
pub(crate) struct Floor {
    dir: TempDir,
    child: Child,
}

struct Bare;

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

// === impl Floor ===

impl Floor {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("floor");
        let child = Command::new(std::env::current_exe().unwrap())
            .arg(&socket)
            .arg("floor")
            .spawn()
            .unwrap();
        while connect_to(socket.clone()).await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self { dir, child }
    }

    pub(crate) async fn connect(&self) -> Client {
        connect_to(self.dir.path().join("floor")).await.unwrap()
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until it is killed.
pub(crate) async fn serve(socket: &Path) {
    let incoming = UnixListenerStream::new(UnixListener::bind(PathBuf::from(socket)).unwrap());
    let server = Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size((1 << 31) - 1);
    let mut server = server;
    server
        .add_service(RuntimeServiceServer::new(Bare))
        .serve_with_incoming(incoming)
        .await
        .unwrap();
}

fn chunks() -> impl Iterator<Item = Bytes> {
    let chunk = Bytes::from(vec![0; CHUNK]);
    (0..SIZE / CHUNK).map(move |_| chunk.clone())
}

fn not_measured<T>() -> Answer<T> {
    Err(Status::unimplemented("the floor only has what is measured"))
}

#[tonic::async_trait]
impl RuntimeService for Bare {
    type ExecStream = Answers<proto::ExecResponse>;
    type FollowExecStream = Answers<proto::FollowExecResponse>;
    type DownloadStream = Answers<proto::DownloadResponse>;
    type WatchFilesStream = Answers<proto::WatchFilesResponse>;

    async fn run(&self, _: Request<proto::RunRequest>) -> Answer<proto::RunResponse> {
        let status = tokio::process::Command::new("/bin/sh")
            .args(["-c", "true"])
            .output()
            .await?;
        assert!(status.status.success());
        Ok(Response::new(proto::RunResponse::default()))
    }

    async fn file_ops(&self, _: Request<proto::FileOpsRequest>) -> Answer<proto::FileOpsResponse> {
        let read = proto::ReadResult {
            content: Bytes::from(vec![0; 4096]),
            ..Default::default()
        };
        let result = proto::FileOpResult {
            result: Some(proto::file_op_result::Result::Read(read)),
        };
        Ok(Response::new(proto::FileOpsResponse { results: vec![result] }))
    }

    async fn exec(&self, _: Request<Streaming<proto::ExecRequest>>) -> Answer<Self::ExecStream> {
        let event = |data| proto::ExecEvent {
            event: Some(proto::exec_event::Event::Output(proto::ExecOutput {
                data,
                ..Default::default()
            })),
            ..Default::default()
        };
        let response = move |data| Some(proto::exec_response::Response::Event(event(data)));
        let answers = chunks().map(move |data| {
            Ok(proto::ExecResponse {
                response: response(data),
            })
        });
        Ok(Response::new(Box::pin(stream::iter(answers))))
    }

    async fn upload(&self, request: Request<Streaming<proto::UploadRequest>>) -> Answer<proto::UploadResponse> {
        let mut messages = request.into_inner();
        while messages.message().await?.is_some() {}
        Ok(Response::new(proto::UploadResponse::default()))
    }

    async fn download(&self, _: Request<proto::DownloadRequest>) -> Answer<Self::DownloadStream> {
        let message = |chunk| Some(proto::download_response::Message::Chunk(chunk));
        let answers = chunks().map(move |chunk| {
            Ok(proto::DownloadResponse {
                message: message(chunk),
            })
        });
        Ok(Response::new(Box::pin(stream::iter(answers))))
    }

    async fn hello(&self, _: Request<proto::HelloRequest>) -> Answer<proto::HelloResponse> {
        not_measured()
    }
    async fn configure(&self, _: Request<proto::ConfigureRequest>) -> Answer<proto::ConfigureResponse> {
        not_measured()
    }
    async fn stop(&self, _: Request<proto::StopRequest>) -> Answer<proto::StopResponse> {
        not_measured()
    }
    async fn start_exec(&self, _: Request<proto::StartExecRequest>) -> Answer<proto::StartExecResponse> {
        not_measured()
    }
    async fn follow_exec(&self, _: Request<proto::FollowExecRequest>) -> Answer<Self::FollowExecStream> {
        not_measured()
    }
    async fn write_exec(&self, _: Request<proto::WriteExecRequest>) -> Answer<proto::WriteExecResponse> {
        not_measured()
    }
    async fn signal_exec(&self, _: Request<proto::SignalExecRequest>) -> Answer<proto::SignalExecResponse> {
        not_measured()
    }
    async fn resize_exec(&self, _: Request<proto::ResizeExecRequest>) -> Answer<proto::ResizeExecResponse> {
        not_measured()
    }
    async fn get_exec(&self, _: Request<proto::GetExecRequest>) -> Answer<proto::GetExecResponse> {
        not_measured()
    }
    async fn list_execs(&self, _: Request<proto::ListExecsRequest>) -> Answer<proto::ListExecsResponse> {
        not_measured()
    }
    async fn write_chunk(&self, _: Request<proto::WriteChunkRequest>) -> Answer<proto::WriteChunkResponse> {
        not_measured()
    }
    async fn watch_files(&self, _: Request<proto::WatchFilesRequest>) -> Answer<Self::WatchFilesStream> {
        not_measured()
    }
}
