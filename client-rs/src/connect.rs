//! One connection to a server, which is made again by itself.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::{
    HeaderValue, Request, Response, Uri,
    header::{AUTHORIZATION, USER_AGENT},
    uri::Authority,
};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use sandgate_connection::{ByteStream, CONNECT_TIMEOUT, Keepalive, Line, LineError};
use tokio::net::UnixStream;
use tonic::{Status, body::Body};
use tower::{Service, ServiceExt as _};

use crate::{
    endpoint::{Address, Endpoint},
    error::{Error, Result},
};

const KEEPALIVE: Keepalive = Keepalive {
    every: Duration::from_secs(10),
    patience: Duration::from_secs(10),
    when_idle: false,
};
const AGENT: &str = concat!("sandgate-rust/", env!("CARGO_PKG_VERSION"));

/// What the generated client makes its calls on. All clones share a connection.
#[derive(Clone, Debug)]
pub struct Channel {
    endpoint: Arc<Endpoint>,
    line: Line,
}

// === impl Channel ===

impl Channel {
    /// Connects, so that a server that is not there is told at once.
    pub(crate) async fn connect(endpoint: Endpoint) -> Result<Self> {
        let authority = match &endpoint.address {
            Address::Http(uri) => uri.authority().cloned(),
            Address::Unix(_) => None,
        };
        let channel = Self {
            // Of a socket it means nothing, but the server checks it.
            line: Line::new(authority.unwrap_or(Authority::from_static("localhost")), KEEPALIVE),
            endpoint: Arc::new(endpoint),
        };
        match channel.line.connect(channel.opening()).await {
            Ok(()) => Ok(channel),
            Err(error) => Err(Error::unreachable(&channel.endpoint.address, error)),
        }
    }

    /// How to get to it.
    fn opening(&self) -> impl FnOnce() -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let endpoint = Arc::clone(&self.endpoint);
        move || async move { open(&endpoint.address).await }.boxed()
    }
}

async fn open(address: &Address) -> io::Result<Box<dyn ByteStream>> {
    match address {
        Address::Http(uri) => open_tcp(uri.clone()).await,
        Address::Unix(path) => open_unix(path).await,
    }
}

async fn open_tcp(uri: Uri) -> io::Result<Box<dyn ByteStream>> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    // Shared by all addresses of a name: one that is dead leaves time for the next.
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let stream = connector.oneshot(uri).await.map_err(io::Error::other)?;
    Ok(Box::new(TokioIo::into_inner(stream)))
}

async fn open_unix(path: &Path) -> io::Result<Box<dyn ByteStream>> {
    Ok(Box::new(UnixStream::connect(path).await?))
}

/// The status of a call that did not come back.
fn lost(error: LineError) -> Status {
    let mut status = Status::unavailable(error.to_string());
    status.set_source(Arc::new(error));
    status
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Response<Body>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let channel = self.clone();
        let headers = request.headers_mut();
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        if let Some(token) = &channel.endpoint.token {
            headers.insert(AUTHORIZATION, token.bearer());
        }
        Box::pin(async move { channel.line.call(request, channel.opening()).await.map_err(lost) })
    }
}
