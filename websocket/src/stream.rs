//! A WebSocket as the stream of bytes inside it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    reading::{Reading, Step},
    writing::Writing,
};

/// The bytes inside a WebSocket, after its handshake.
///
/// A side that is shut down sends a Close, and the other then reads to the end of the stream; the other direction goes on
/// until it is shut down too. A connection that ends without a Close was cut: that is an error and not the end. Pings are
/// answered while somebody reads.
///
/// # Caveats
/// What is written stays in a buffer until it is flushed or the buffer is full.
#[derive(Debug)]
pub struct WebSocket<S> {
    io: S,
    reading: Reading,
    writing: Writing,
}

// === impl WebSocket ===

impl<S> WebSocket<S> {
    /// The side that answered the upgrade, after its answer was sent ([`crate::answer`]).
    pub fn server(io: S) -> Self {
        Self {
            io,
            reading: Reading::new(true, &[]),
            writing: Writing::new(false),
        }
    }

    /// The side that asked for the upgrade, with what was read behind the answer.
    pub(crate) fn client(io: S, received: &[u8]) -> Self {
        Self {
            io,
            reading: Reading::new(false, received),
            writing: Writing::new(true),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let this = &mut *self;
        loop {
            this.writing.send_pong(cx, Pin::new(&mut this.io))?;
            match this.reading.step(out)? {
                Step::Data | Step::Closed => return Poll::Ready(Ok(())),
                Step::Ping(ping) => this.writing.answer(ping),
                Step::More => ready!(this.reading.poll_fill(cx, Pin::new(&mut this.io)))?,
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.writing.poll_write(cx, Pin::new(&mut this.io), parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.writing.poll_flush(cx, Pin::new(&mut this.io))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.writing.poll_close(cx, Pin::new(&mut this.io)))?;
        // Proxies take the end of one direction for the end of both, so the connection itself ends after both Closes.
        if this.reading.is_closed() {
            return Pin::new(&mut this.io).poll_shutdown(cx);
        }
        Poll::Ready(Ok(()))
    }
}
