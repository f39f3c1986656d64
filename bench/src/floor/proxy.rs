//! A proxy that decodes and encodes what it passes on, and does nothing else.

use std::{path::Path, pin::Pin};

use futures_util::{Stream, StreamExt as _};
use sandgate_proto::runtime::v1::{
    self as proto,
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};
use sandgate_tests::{Client, connect_to};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{CONNECTION_WINDOW, STREAM_WINDOW};

struct Proxy(Client);

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves on a port that it prints.
#[allow(clippy::print_stdout, reason = "its parent reads the address")]
pub(super) async fn serve(socket: &Path) {
    let client = connect_to(socket.to_owned()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    // The builder's own option is only for listeners that it makes.
    let incoming = TcpListenerStream::new(listener).inspect(|stream| {
        if let Ok(stream) = stream {
            stream.set_nodelay(true).unwrap();
        }
    });
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(RuntimeServiceServer::new(Proxy(client)))
        .serve_with_incoming(incoming)
        .await
        .unwrap();
}

fn not_measured<T>() -> Answer<T> {
    Err(Status::unimplemented("the floor only has what is measured"))
}

/// What can be read of a caller's stream.
fn readable<T: Send + 'static>(request: Request<Streaming<T>>) -> impl Stream<Item = T> + Send + 'static {
    request
        .into_inner()
        .filter_map(|message| std::future::ready(message.ok()))
}

fn relayed<T: Send + 'static>(answers: Response<Streaming<T>>) -> Response<Answers<T>> {
    Response::new(Box::pin(answers.into_inner()))
}

#[tonic::async_trait]
impl RuntimeService for Proxy {
    type ExecStream = Answers<proto::ExecResponse>;
    type FollowExecStream = Answers<proto::FollowExecResponse>;
    type DownloadStream = Answers<proto::DownloadResponse>;
    type WatchFilesStream = Answers<proto::WatchFilesResponse>;

    async fn run(&self, request: Request<proto::RunRequest>) -> Answer<proto::RunResponse> {
        self.0.clone().run(request.into_inner()).await
    }

    async fn file_ops(&self, request: Request<proto::FileOpsRequest>) -> Answer<proto::FileOpsResponse> {
        self.0.clone().file_ops(request.into_inner()).await
    }

    async fn exec(&self, request: Request<Streaming<proto::ExecRequest>>) -> Answer<Self::ExecStream> {
        self.0.clone().exec(readable(request)).await.map(relayed)
    }

    async fn upload(&self, request: Request<Streaming<proto::UploadRequest>>) -> Answer<proto::UploadResponse> {
        self.0.clone().upload(readable(request)).await
    }

    async fn download(&self, request: Request<proto::DownloadRequest>) -> Answer<Self::DownloadStream> {
        self.0.clone().download(request.into_inner()).await.map(relayed)
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
