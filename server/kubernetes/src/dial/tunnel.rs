//! A port-forward through the API server.
//!
//! Each stream is a WebSocket of its own to the API server, and gRPC puts all its calls on one stream. The way needs
//! nothing but the right to it, and is the slowest: every byte passes the API server and the kubelet.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::Portforwarder};
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::ByteStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    runtime::Handle,
    time::sleep,
};

use super::{Dial, HttpWay, Target};

/// How long a stream that nobody holds any more has to say good-bye.
const LINGER: Duration = Duration::from_secs(2);

/// Port-forwards to one pod.
pub(crate) struct Tunnel {
    pods: Api<Pod>,
    pod: String,
}

/// A forwarded stream.
///
/// When the pod closes its side, the end comes about a second late: the kubelet waits for the other direction first.
/// There is no half of a close: who shuts down writing does not get what the pod still sends.
struct Forwarded {
    stream: DuplexStream,
    /// What the kubelet says is wrong with the port. It is then of no more use.
    error: Option<BoxFuture<'static, Option<String>>>,
    forwarder: Option<Portforwarder>,
}

// === impl Tunnel ===

impl Tunnel {
    pub(crate) fn new(client: Client, target: &Target) -> Self {
        Self {
            pods: Api::namespaced(client, &target.namespace),
            pod: target.pod.clone(),
        }
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("pod", &self.pod).finish_non_exhaustive()
    }
}

#[async_trait]
impl Dial for Tunnel {
    fn mode(&self) -> ConnectionMode {
        ConnectionMode::Tunnel
    }

    async fn open(&self, port: u16) -> io::Result<Box<dyn ByteStream>> {
        let forwarder = self.pods.portforward(&self.pod, &[port]).await;
        let mut forwarder = forwarder.map_err(|error| {
            let message = format!("the API server does not forward to pod {}: {error}", self.pod);
            io::Error::new(kind(&error), message)
        })?;
        let stream = forwarder.take_stream(port);
        let error = forwarder.take_error(port);
        let (Some(stream), Some(error)) = (stream, error) else {
            return Err(io::Error::other("the port-forward has no stream"));
        };
        Ok(Box::new(Forwarded {
            stream,
            error: Some(Box::pin(error)),
            forwarder: Some(forwarder),
        }))
    }

    async fn http(&self, port: u16) -> io::Result<HttpWay> {
        Ok(HttpWay::straight(self.open(port).await?))
    }
}

/// What kind of failure a refused port-forward is.
fn kind(error: &kube::Error) -> io::ErrorKind {
    use http::StatusCode;
    use kube::client::UpgradeConnectionError;
    let code = match error {
        kube::Error::Api(status) => StatusCode::from_u16(status.code).ok(),
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) => Some(*code),
        _ => None,
    };
    match code {
        Some(StatusCode::NOT_FOUND) => io::ErrorKind::NotFound,
        Some(StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED) => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::NotConnected,
    }
}

// === impl Forwarded ===

impl Forwarded {
    /// What the kubelet said, if it said something.
    fn poll_refused(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Error>> {
        let Some(error) = &mut self.error else {
            return Poll::Ready(None);
        };
        let said = ready!(error.as_mut().poll(cx));
        self.error = None;
        Poll::Ready(said.map(|said| io::Error::new(io::ErrorKind::ConnectionRefused, said.trim().to_owned())))
    }
}

impl AsyncRead for Forwarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf)?;
        if read.is_ready() && buf.filled().len() > before {
            return Poll::Ready(Ok(()));
        }
        // Nothing to read, for now or for ever: is that an end or an error? The word on it comes before the end, so it
        // is never waited for here.
        match self.poll_refused(cx) {
            Poll::Ready(Some(error)) => Poll::Ready(Err(error)),
            Poll::Ready(None) | Poll::Pending => read.map(Ok),
        }
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Forwarded {
    /// The forwarder ends by itself when the API server answers its good-bye. One that does not answer is cut, or its
    /// connection would stay for ever.
    fn drop(&mut self) {
        let Some(forwarder) = self.forwarder.take() else { return };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                sleep(LINGER).await;
                forwarder.abort();
            })),
            Err(_) => forwarder.abort(),
        }
    }
}
