//! A runtime on a network, the keys of its server, and ways to it.

use std::{
    ffi::OsString,
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use sandgate_auth::{Claims, JWKS_FILE, NewKey, Scope, Signer};
use sandgate_proto::runtime::v1::{HelloRequest, runtime_service_client::RuntimeServiceClient};
use sandgate_tests::{Client, Runtime, RuntimeOptions};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tonic::transport::Endpoint;
use tower::service_fn;

pub(crate) const AUDIENCE: &str = "cluster.test/default/pod-1";
pub(crate) const POD_UID: &str = "0b7e4d1c-uid";
pub(crate) const PORT: u16 = 8888;
const LIFE: Duration = Duration::from_secs(60);
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Private keys on one side, public ones on the other.
pub(crate) struct Keys {
    pub(crate) private: TempDir,
    pub(crate) public: TempDir,
}

/// A runtime that listens on an address of its own.
pub(crate) struct Networked {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) keys: Keys,
    pub(crate) incarnation: String,
}

/// What came of a request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An address that nobody else listens on: there are many on this machine, so the port can always be the same.
pub(crate) fn own_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let address = Ipv4Addr::new(127, 1 + high % 250, low, NEXT.fetch_add(1, Ordering::Relaxed) as u8);
    (address, PORT).into()
}

// === impl Keys ===

impl Keys {
    pub(crate) fn new() -> Self {
        let keys = Self {
            private: tempfile::tempdir().unwrap(),
            public: tempfile::tempdir().unwrap(),
        };
        keys.add("first");
        keys.publish();
        // A runtime that is not root reads them too.
        std::fs::set_permissions(keys.public.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        keys
    }

    /// A further key, which signs from now on.
    pub(crate) fn add(&self, name: &str) {
        let pem = NewKey::generate().unwrap().pem;
        fs::write(self.private.path().join(format!("{name}.pem")), pem).unwrap();
        fs::write(self.private.path().join("current"), name).unwrap();
    }

    pub(crate) fn publish(&self) {
        let jwks = self.signer().jwks().to_string();
        fs::write(self.public.path().join(JWKS_FILE), jwks).unwrap();
    }

    pub(crate) fn signer(&self) -> Signer {
        Signer::open(self.private.path()).unwrap()
    }

    pub(crate) fn args(&self, address: SocketAddr) -> Vec<OsString> {
        vec![
            "--listen".into(),
            address.to_string().into(),
            "--keys".into(),
            self.public.path().into(),
            "--audience".into(),
            AUDIENCE.into(),
            "--pod-uid".into(),
            POD_UID.into(),
        ]
    }
}

// === impl Networked ===

impl Networked {
    pub(crate) async fn start(further: &[&str]) -> Self {
        let (address, keys) = (own_address(), Keys::new());
        let mut args = keys.args(address);
        args.extend(further.iter().map(OsString::from));
        let runtime = Runtime::start_with(RuntimeOptions {
            args,
            ..Default::default()
        })
        .await;
        // Over the Unix socket, where no token is needed.
        let hello = runtime.connect().await.hello(HelloRequest { generation: 1 }).await;
        Self {
            runtime,
            address,
            keys,
            incarnation: hello.unwrap().into_inner().incarnation,
        }
    }

    pub(crate) fn claims(&self) -> Claims {
        Claims {
            pod_uid: Some(POD_UID.into()),
            incarnation: Some(self.incarnation.clone()),
            ..Claims::new(AUDIENCE, Scope::Runtime, LIFE)
        }
    }

    /// A request with a token that is good.
    pub(crate) fn good<T>(&self, message: T) -> tonic::Request<T> {
        with_token(message, &self.keys.signer().token(&self.claims()))
    }

    /// HTTP/2 on the connection itself.
    pub(crate) async fn tcp(&self) -> Client {
        tcp(self.address).await
    }

    /// HTTP/2 inside a WebSocket.
    pub(crate) async fn websocket(&self) -> Client {
        websocket(self.address).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        let request = Request::get(path).body(Full::default()).unwrap();
        send(self.address, request).await
    }

    pub(crate) async fn post(&self, path: &str, kind: &str, body: impl Into<Bytes>) -> Answer {
        let request = Request::post(path).header("content-type", kind);
        send(self.address, request.body(Full::new(body.into())).unwrap()).await
    }
}

pub(crate) fn with_token<T>(message: T, token: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let value = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

fn endpoint() -> Endpoint {
    Endpoint::from_static("http://runtime")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

pub(crate) async fn tcp(address: SocketAddr) -> Client {
    let connector = service_fn(move |_| async move { TcpStream::connect(address).await.map(TokioIo::new) });
    RuntimeServiceClient::new(endpoint().connect_with_connector(connector).await.unwrap())
}

pub(crate) async fn websocket(address: SocketAddr) -> Result<Client, tonic::transport::Error> {
    let connector = service_fn(move |_| async move {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let headers = HeaderMap::new();
        let inside = sandgate_websocket::client(stream, "runtime", sandgate_websocket::PATH, &headers).await;
        inside.map(TokioIo::new)
    });
    let channel = endpoint().connect_with_connector(connector).await?;
    Ok(RuntimeServiceClient::new(channel))
}

/// One request in HTTP/1.1.
pub(crate) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let response: Response<_> = sender.send_request(request).await.unwrap();
    let (head, body) = response.into_parts();
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}
