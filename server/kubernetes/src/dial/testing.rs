//! What tests put in the place of pods and routers.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use sandgate_provider::ByteStream;
use sandgate_websocket::WebSocket;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::Gateway;

/// An address on this machine that no other test has, so that each "pod" can have the same ports.
pub(crate) fn loopback() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [high, low, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, high | 1, low, NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// Gateways without a cluster.
pub(crate) struct GatewayAt;

// === impl GatewayAt ===

impl GatewayAt {
    /// One that has no address.
    pub(crate) fn nowhere() -> Gateway {
        Gateway::fixed(&[], 80)
    }

    /// One that is here.
    pub(crate) fn address(address: SocketAddr) -> Gateway {
        Gateway::fixed(&[&address.ip().to_string()], address.port())
    }
}

/// An address where connections are neither taken nor refused, as behind a NetworkPolicy that drops: a listener whose
/// backlog is full.
pub(crate) struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

// === impl BlackHole ===

impl BlackHole {
    pub(crate) async fn new() -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        // The kernel takes one more than the backlog, and drops what comes then.
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            waiting.push(stream.unwrap());
        }
        Self {
            address,
            _listener: listener,
            _waiting: waiting,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A router whose only pod echoes what comes in its WebSocket.
pub(crate) struct FakeRouter {
    pub(crate) address: SocketAddr,
    state: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Request<()>>>,
    refuses: AtomicBool,
}

// === impl FakeRouter ===

impl FakeRouter {
    pub(crate) async fn new(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(Seen::default()));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, state) = (tls.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    match tls {
                        None => serve(Box::new(stream), state).await,
                        // Who does not believe us goes away.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(Box::new(stream), state).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, state }
    }

    /// TLS as `router.test`.
    pub(crate) fn certificate() -> TlsAcceptor {
        let certificate = CertificateDer::from_pem_slice(include_bytes!("testing/router.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("testing/router.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// From now on there is no pod.
    pub(crate) fn refuse(&self) {
        self.state.refuses.store(true, Ordering::Relaxed);
    }

    /// The requests so far, without their bodies.
    pub(crate) fn seen(&self) -> Vec<Request<()>> {
        self.state.requests.lock().unwrap().clone()
    }
}

async fn serve(stream: Box<dyn ByteStream>, state: Arc<Seen>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(upgrade(request, &state)) }
    });
    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    let _ = serving.with_upgrades().await;
}

fn upgrade(mut request: Request<Incoming>, state: &Seen) -> Response<Empty<Bytes>> {
    let mut head = Request::new(());
    head.headers_mut().clone_from(request.headers());
    head.uri_mut().clone_from(request.uri());
    state.requests.lock().unwrap().push(head);
    let mut answer = Response::new(Empty::new());
    if state.refuses.load(Ordering::Relaxed) {
        *answer.status_mut() = StatusCode::BAD_GATEWAY;
        return answer;
    }
    *answer.headers_mut() = sandgate_websocket::answer(request.headers()).unwrap();
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = WebSocket::server(TokioIo::new(upgraded.await.unwrap()));
        let mut bytes = vec![0; 64 << 10];
        loop {
            match stream.read(&mut bytes).await {
                Ok(0) | Err(_) => break,
                Ok(length) => stream.write_all(&bytes[..length]).await.unwrap(),
            }
            stream.flush().await.unwrap();
        }
        let _ = stream.shutdown().await;
    });
    answer
}
