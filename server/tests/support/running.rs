//! A real server in this process, on a free port and in a directory of its own.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use sandgate_proto::v1::sandbox_service_client::SandboxServiceClient;
use sandgate_server::{
    Bound, Config, GrpcService, Process, ServeError, Sources, Stopping,
    config::{ConfigErrors, ConfigFile},
};
use tempfile::TempDir;
use tokio::{net::UnixStream, task::JoinHandle};
use tonic::{
    Request, Status,
    metadata::MetadataValue,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint, Uri},
};

/// A server that ends with the test.
pub(crate) struct Running {
    pub(crate) dir: TempDir,
    pub(crate) addr: SocketAddr,
    pub(crate) socket: PathBuf,
    pub(crate) token: String,
    pub(crate) stopping: Stopping,
    served: JoinHandle<Result<(), ServeError>>,
}

/// Puts metadata on every call.
pub(crate) type WithMetadata = Box<dyn FnMut(Request<()>) -> Result<Request<()>, Status> + Send>;

/// The configuration of a server in `dir`, with `text` as its file.
pub(crate) fn config(dir: &Path, text: &str) -> Result<Config, ConfigErrors> {
    let mut sources = Sources {
        file: Some(ConfigFile {
            path: dir.join("server.toml"),
            text: text.to_owned(),
        }),
        process: Process {
            root: false,
            cwd: dir.to_owned(),
            program_dir: dir.to_owned(),
        },
        ..Sources::default()
    };
    for (flag, value) in [("listen", "127.0.0.1:0"), ("state-dir", "state")] {
        sources.flags.insert(flag.to_owned(), value.to_owned());
    }
    Config::resolve(&sources)
}

impl Running {
    /// Serves what `service` makes.
    pub(crate) async fn start<S: GrpcService>(text: &str, service: impl FnOnce(Stopping) -> S) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bound = Bound::bind(&config(dir.path(), text).unwrap()).await.unwrap();
        let stopping = Stopping::new();
        let token = fs::read_to_string(bound.token_file()).unwrap().trim().to_owned();
        Self {
            addr: bound.tcp_addrs()[0],
            socket: bound.socket().to_owned(),
            token,
            served: tokio::spawn(bound.serve(service(stopping.clone()), stopping.clone())),
            stopping,
            dir,
        }
    }

    /// A connection by TCP.
    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.addr)).unwrap();
        endpoint.connect_lazy()
    }

    /// A connection by the Unix socket.
    pub(crate) async fn local_channel(&self) -> Channel {
        let path = self.socket.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://anything.example");
        endpoint.connect_with_connector(connect).await.unwrap()
    }

    /// The bearer of the server's token.
    pub(crate) fn bearer(&self) -> WithMetadata {
        with("authorization", &format!("Bearer {}", self.token))
    }

    /// A client on TCP that shows the token.
    pub(crate) fn client(&self) -> SandboxServiceClient<InterceptedService<Channel, WithMetadata>> {
        SandboxServiceClient::with_interceptor(self.channel(), self.bearer())
    }

    pub(crate) async fn stop(self) {
        self.stopping.begin();
        self.ended().await;
    }

    pub(crate) async fn ended(self) {
        self.served.await.unwrap().unwrap();
        assert!(!self.socket.exists(), "the socket is gone with the server");
    }
}

/// Puts one metadata entry on every call.
pub(crate) fn with(key: &'static str, value: &str) -> WithMetadata {
    let value: MetadataValue<_> = value.parse().unwrap();
    Box::new(move |mut request| {
        request.metadata_mut().insert(key, value.clone());
        Ok(request)
    })
}
