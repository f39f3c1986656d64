//! Small writes that wait for those that follow.
//!
//! HTTP/2 as we have it sends a message of 256 bytes and more before it looks at what comes behind it. So each answer left in
//! two writes, the second with the few bytes of its trailers, and woke whoever reads twice; and so did the answers of many
//! calls at once, one by one. Here what is small is held until the task that writes has its next turn, which it asks for
//! itself, and then goes out together. It waits for no time and for nobody's answer, only for those whose turn comes first.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that speaks HTTP/2, of which each turn of whoever drives it begins with a read: that is where what was held
/// goes out. Of a stream that begins with anything else nothing is held.
#[derive(Debug)]
pub struct Corked<T> {
    inner: T,
    held: Vec<u8>,
    /// What was held is written, and not flushed yet.
    is_unflushed: bool,
    speaks: Speaks,
}

/// What is known of the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    /// Nothing but that so many of its first bytes are those of HTTP/2.
    Unknown(usize),
    Http2,
    Other,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What is larger is written as it is: it is worth a write of its own, and not a copy.
const ROOM: usize = 16 << 10;

// === impl Corked ===

impl<T: AsyncRead + AsyncWrite + Unpin> Corked<T> {
    /// Looks after the writes to `inner`.
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            held: Vec::new(),
            is_unflushed: false,
            speaks: Speaks::Unknown(0),
        }
    }

    /// Holds these bytes if they are few and may wait.
    fn hold(&mut self, cx: &Context<'_>, parts: &[IoSlice<'_>]) -> Option<usize> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        if self.speaks != Speaks::Http2 || self.held.len() + length > ROOM {
            return None;
        }
        if self.held.is_empty() && length > 0 {
            cx.waker().wake_by_ref();
        }
        parts.iter().for_each(|part| self.held.extend_from_slice(part));
        Some(length)
    }

    /// Writes what was held.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.drain(..written);
            self.is_unflushed = true;
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

// === impl Speaks ===

impl Speaks {
    fn after(self, bytes: &[u8]) -> Self {
        let Self::Unknown(seen) = self else { return self };
        let expected = PREFACE.get(seen..).unwrap_or_default();
        let length = bytes.len().min(expected.len());
        match bytes.get(..length) == expected.get(..length) {
            false => Self::Other,
            true if length == expected.len() => Self::Http2,
            true => Self::Unknown(seen + length),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Corked<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Poll::Ready(Err(error)) = this.poll_release(cx) {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buffer))?;
        this.speaks = this.speaks.after(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Corked<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(length) = self.hold(cx, parts) {
            return Poll::Ready(Ok(length));
        }
        ready!(self.poll_release(cx))?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.held.is_empty() {
            true => Pin::new(&mut self.inner).poll_flush(cx),
            // It goes out in the turn that was asked for.
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_release(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
