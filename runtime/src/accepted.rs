//! The bytes under HTTP/2: a connection itself, or what is inside a WebSocket.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sandgate_connection::Corked;
use sandgate_sys::QuietStream;
use sandgate_websocket::WebSocket;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::OwnedSemaphorePermit,
};
use tonic::transport::server::Connected;

/// A connection that speaks HTTP/2.
pub(crate) struct Accepted {
    bytes: Pin<Box<dyn Duplex>>,
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

// === impl Accepted ===

impl Accepted {
    pub(crate) fn unix(stream: UnixStream) -> io::Result<Self> {
        Ok(Self {
            bytes: Box::pin(Corked::new(QuietStream::new(stream)?)),
            _permit: None,
        })
    }

    pub(crate) fn tcp(stream: TcpStream, permit: Arc<OwnedSemaphorePermit>) -> Self {
        Self {
            bytes: Box::pin(Corked::new(stream)),
            _permit: Some(permit),
        }
    }

    pub(crate) fn websocket(upgraded: Upgraded, permit: Arc<OwnedSemaphorePermit>) -> Self {
        Self {
            bytes: Box::pin(Corked::new(WebSocket::server(TokioIo::new(upgraded)))),
            _permit: Some(permit),
        }
    }
}

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.bytes.as_mut().poll_read(cx, out)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.bytes.as_mut().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bytes.as_mut().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes.as_mut().poll_shutdown(cx)
    }
}
