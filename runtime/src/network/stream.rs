//! The bytes under HTTP/2: a connection itself, or what is inside a WebSocket.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sandgate_websocket::WebSocket;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
};
use tonic::transport::server::Connected;

/// A connection that speaks HTTP/2.
pub(crate) struct NetworkStream {
    bytes: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

enum Bytes {
    Tcp(TcpStream),
    WebSocket(Box<WebSocket<TokioIo<Upgraded>>>),
}

// === impl NetworkStream ===

impl NetworkStream {
    pub(crate) fn tcp(stream: TcpStream, permit: Arc<OwnedSemaphorePermit>) -> Self {
        Self {
            bytes: Bytes::Tcp(stream),
            _permit: permit,
        }
    }

    pub(crate) fn websocket(upgraded: Upgraded, permit: Arc<OwnedSemaphorePermit>) -> Self {
        Self {
            bytes: Bytes::WebSocket(Box::new(WebSocket::server(TokioIo::new(upgraded)))),
            _permit: permit,
        }
    }
}

impl Connected for NetworkStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for NetworkStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Tcp(stream) => Pin::new(stream).poll_read(cx, out),
            Bytes::WebSocket(stream) => Pin::new(stream).poll_read(cx, out),
        }
    }
}

impl AsyncWrite for NetworkStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.bytes {
            Bytes::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Bytes::WebSocket(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.bytes {
            Bytes::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Bytes::WebSocket(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Bytes::WebSocket(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Bytes::WebSocket(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
