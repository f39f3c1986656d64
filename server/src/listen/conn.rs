//! One connection, of whatever kind.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use sandgate_connection::Corked;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tonic::transport::server::Connected;

/// Where a request came in. It is in the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// By a TCP listener: from any user of this machine, or from a web page in its browser.
    Tcp {
        /// Our end.
        local: SocketAddr,
        /// The caller's end.
        remote: SocketAddr,
    },
    /// By the Unix socket: from whoever may open it.
    Unix,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    stream: Stream,
    peer: Peer,
}

#[derive(Debug)]
enum Stream {
    Tcp(Corked<TcpStream>),
    Unix(Corked<UnixStream>),
}

// === impl Conn ===

impl Conn {
    pub(super) fn tcp(stream: TcpStream, local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            stream: Stream::Tcp(Corked::new(stream)),
            peer: Peer::Tcp { local, remote },
        }
    }

    pub(super) fn unix(stream: UnixStream) -> Self {
        Self {
            stream: Stream::Unix(Corked::new(stream)),
            peer: Peer::Unix,
        }
    }
}

impl Connected for Conn {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Conn {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
