//! agent-sandbox's own daemon: commands by gRPC, files by REST.

use bytes::Bytes;
use prost::Message;
use sandgate_bench::worker::tool;
use tempfile::TempDir;
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{Daemon, free_port, http::Http};
use crate::work::NOTHING;

pub(crate) struct Sandboxd {
    _daemon: Daemon,
    root: TempDir,
    processes: Grpc<Channel>,
    files: Http,
}

// Of its `process.v1`, what is needed here: names and numbers are agent-sandbox's.

#[derive(Clone, PartialEq, Message)]
struct ProcessConfig {
    #[prost(string, repeated, tag = "1")]
    command: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ExecuteRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<ProcessConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct ExecuteResponse {
    #[prost(int32, tag = "1")]
    exit_code: i32,
    #[prost(bytes = "bytes", tag = "2")]
    stdout: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    stderr: Bytes,
}

const EXECUTE: &str = "/process.v1.ProcessService/Execute";

// === impl Sandboxd ===

impl Sandboxd {
    pub(crate) async fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (grpc, rest) = (free_port(), free_port());
        let mut daemon = Daemon::start(tool("agent-sandbox", "sandboxd"), |command| {
            command
                .arg("--listen-host=127.0.0.1")
                .arg(format!("--grpc-port={grpc}"))
                .arg(format!("--rest-port={rest}"))
                .arg(format!("--root-dir={}", root.path().display()))
                .args(["--http-idle-timeout=1h", "--zap-log-level=error"])
        });
        daemon.until_it_listens(rest).await;
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{grpc}")).unwrap();
        let channel = endpoint.tcp_nodelay(true).connect().await.unwrap();
        Self {
            _daemon: daemon,
            root,
            processes: Grpc::new(channel),
            files: Http::connect(rest).await,
        }
    }

    /// The call for a command that ends soon: one message there, one back.
    pub(crate) async fn run(&self) {
        let request = ExecuteRequest {
            config: Some(ProcessConfig {
                command: NOTHING.map(str::to_owned).to_vec(),
            }),
        };
        let mut processes = self.processes.clone();
        processes.ready().await.unwrap();
        let codec = ProstCodec::<ExecuteRequest, ExecuteResponse>::default();
        let answer = processes.unary(Request::new(request), PathAndQuery::from_static(EXECUTE), codec);
        assert_eq!(answer.await.unwrap().into_inner().exit_code, 0);
    }

    /// Puts a file where it is read from.
    pub(crate) fn give(&self, name: &str, content: &[u8]) {
        std::fs::write(self.root.path().join(name), content).unwrap();
    }

    pub(crate) async fn download(&self, name: &str, size: usize) {
        assert_eq!(self.files.get(&format!("/v1/files/{name}")).await, size);
    }

    pub(crate) async fn upload(&self, name: &str, content: Bytes) {
        self.files.put(&format!("/v1/files/{name}"), content).await;
    }
}
