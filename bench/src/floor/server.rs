//! A server that answers what is measured with the least that can be done for it.

use std::{path::Path, pin::Pin, process::Stdio};

use bytes::Bytes;
use futures_util::{Stream, stream};
use sandgate_proto::runtime::v1::{
    self as proto,
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::work::CHUNK;

struct Bare;

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub(super) async fn serve(socket: &Path) {
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(RuntimeServiceServer::new(Bare))
        .serve_with_incoming(incoming)
        .await
        .unwrap();
}

/// As many bytes as the caller asked for, in chunks of the size that Sandgate sends.
fn chunks(size: usize) -> impl Iterator<Item = Bytes> {
    let chunk = Bytes::from(vec![0; CHUNK]);
    (0..size / CHUNK).map(move |_| chunk.clone())
}

/// Callers say how much they want where Sandgate's callers name what to run or to read.
fn wanted(text: &str) -> Result<usize, Status> {
    text.parse().map_err(|_| Status::invalid_argument("a number of bytes"))
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
        let output = tokio::process::Command::new("/bin/sh")
            .args(["-c", "true"])
            .stdin(Stdio::null())
            .output()
            .await?;
        assert!(output.status.success());
        Ok(Response::new(proto::RunResponse::default()))
    }

    async fn file_ops(&self, request: Request<proto::FileOpsRequest>) -> Answer<proto::FileOpsResponse> {
        let read = || proto::ReadResult {
            content: Bytes::from(vec![0; 4096]),
            ..Default::default()
        };
        let result = |_| proto::FileOpResult {
            result: Some(proto::file_op_result::Result::Read(read())),
        };
        // To whom asks for nothing too: one answer is what there is least.
        let results = (0..request.get_ref().ops.len().max(1)).map(result).collect();
        Ok(Response::new(proto::FileOpsResponse { results }))
    }

    async fn exec(&self, request: Request<Streaming<proto::ExecRequest>>) -> Answer<Self::ExecStream> {
        let first = request.into_inner().message().await?.and_then(|first| first.request);
        let Some(proto::exec_request::Request::Start(start)) = first else {
            return not_measured();
        };
        let event = |data| proto::ExecEvent {
            event: Some(proto::exec_event::Event::Output(proto::ExecOutput {
                data,
                ..Default::default()
            })),
            ..Default::default()
        };
        let response = move |data| Some(proto::exec_response::Response::Event(event(data)));
        let answers = chunks(wanted(&start.exec_id)?).map(move |data| {
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

    async fn download(&self, request: Request<proto::DownloadRequest>) -> Answer<Self::DownloadStream> {
        let paths = &request.get_ref().paths;
        let size = wanted(paths.first().map_or("", |first| &first.path))?;
        let message = |chunk| Some(proto::download_response::Message::Chunk(chunk));
        let answers = chunks(size).map(move |chunk| {
            Ok(proto::DownloadResponse {
                message: message(chunk),
            })
        });
        Ok(Response::new(Box::pin(stream::iter(answers))))
    }

    async fn follow_exec(&self, _: Request<proto::FollowExecRequest>) -> Answer<Self::FollowExecStream> {
        not_measured()
    }
    async fn watch_files(&self, _: Request<proto::WatchFilesRequest>) -> Answer<Self::WatchFilesStream> {
        not_measured()
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
}
