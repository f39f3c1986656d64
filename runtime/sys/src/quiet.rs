//! A Unix socket that wakes its owner only for what can be read.
//!
//! tokio waits for both directions of a stream. On a Unix socket the kernel tells the writer that there is room each time
//! that the other side has read something, so that every message wakes its sender once more, at the cost of whoever wants
//! the processor then. Here room is waited for only while there is none.

use std::{
    io::{self, IoSlice},
    os::fd::OwnedFd,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::{
    io::{Errno, write, writev},
    net::{Shutdown, shutdown, sockopt::set_socket_send_buffer_size},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd},
    net::UnixStream,
};

use crate::ready::register;

/// A connected Unix socket.
#[derive(Debug)]
pub struct QuietStream {
    socket: AsyncFd<OwnedFd>,
    /// Another descriptor of it, while there is no room to write.
    room: Option<AsyncFd<OwnedFd>>,
}

/// Bytes that the other side may have not read yet, if the system lets us.
const MOST_UNREAD: usize = 1 << 20;

// === impl QuietStream ===

impl QuietStream {
    /// Takes a stream over.
    ///
    /// # Errors
    /// When it can't be waited for.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        let socket = OwnedFd::from(stream.into_std()?);
        // As much as the system gives, which is twice what one has unasked: an answer that fits is written in one go.
        let _ = set_socket_send_buffer_size(&socket, MOST_UNREAD);
        Ok(Self {
            socket: register(socket, Interest::READABLE)?,
            room: None,
        })
    }

    /// Writes what there is room for, and waits for room if there is none.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: impl Fn(&OwnedFd) -> Result<usize, Errno>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match send(self.socket.get_ref()) {
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                done => {
                    self.room = None;
                    return Poll::Ready(done.map_err(io::Error::from));
                }
            }
            let room = match self.room.take() {
                Some(room) => room,
                None => register(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?,
            };
            // What has come since the last try is told, because it is asked for anew or was taken note of below.
            let waited = room.poll_write_ready(cx)?.map(|mut guard| guard.clear_ready());
            self.room = Some(room);
            ready!(waited);
        }
    }
}

impl AsyncRead for QuietStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.socket.poll_read_ready(cx))?;
            let wanted = buffer.remaining();
            // SAFETY: `rustix` writes to the spare part and says how much of it is filled.
            let spare = unsafe { buffer.unfilled_mut() };
            match rustix::io::read(guard.get_inner(), spare) {
                Ok((filled, _)) => {
                    let count = filled.len();
                    // Less than there was room for: there is no more, and whatever comes next is told.
                    if count > 0 && count < wanted {
                        guard.clear_ready();
                    }
                    // SAFETY: that many bytes were filled.
                    unsafe { buffer.assume_init(count) };
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for QuietStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |socket| write(socket, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |socket| writev(socket, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(self.socket.get_ref(), Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (QuietStream, QuietStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (QuietStream::new(one).unwrap(), QuietStream::new(other).unwrap())
    }

    #[tokio::test]
    async fn every_byte_passes_a_full_socket_once_and_in_order() {
        let (mut one, mut other) = pair();
        let sent: Vec<u8> = (0..8_000_000u32).map(|n| (n % 251) as u8).collect();
        let all = sent.clone();
        let writing = tokio::spawn(async move {
            for piece in all.chunks(70_001) {
                one.write_all(piece).await.unwrap();
            }
            assert!(one.room.is_none(), "nothing is waited for");
            one.shutdown().await.unwrap();
            one
        });
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let mut seen = Vec::new();
        other.read_to_end(&mut seen).await.unwrap();
        assert!(seen == sent);
        // The other way is open still.
        other.write_all(b"answer").await.unwrap();
        drop(other);
        let mut answer = String::new();
        writing.await.unwrap().read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    }

    #[tokio::test]
    async fn who_writes_to_nobody_is_told() {
        let (mut one, other) = pair();
        // Shut, not only dropped: a child that another test has just made holds a copy of it until exec.
        shutdown(other.socket.get_ref(), Shutdown::Both).unwrap();
        assert_eq!(one.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let mut full = pair();
        let filling = async {
            loop {
                full.0.write_all(&[0; 65536]).await?;
            }
        };
        let leaving = async {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            shutdown(full.1.socket.get_ref(), Shutdown::Both).unwrap();
            std::future::pending::<()>().await;
        };
        let end: io::Result<()> = tokio::select! { end = filling => end, () = leaving => unreachable!() };
        assert!(end.is_err());
    }
}
