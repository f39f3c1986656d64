//! The half that writes: payload in, bytes out.

use std::{
    io,
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::AsyncWrite;

use crate::{
    frame::{Header, Kind, MAX_CONTROL, MAX_HEADER, Mask, apply_mask},
    reading::Control,
};

/// What is to be sent. It always ends where a frame ends.
#[derive(Debug)]
pub(crate) struct Writing {
    buffer: Vec<u8>,
    sent: usize,
    /// Only clients mask.
    masks: Option<Masks>,
    /// The answer to the last ping. Earlier ones need none.
    pong: Option<Control>,
    /// A pong is not sent yet, and perhaps in the buffer: the reader must go on with it.
    pong_owed: bool,
    closed: bool,
    /// Who waits until the bytes are sent. A socket wakes one writer only, and the reader writes pongs.
    waiting: Option<Waker>,
}

/// Masks that nobody can foresee, many from one system call.
#[derive(Debug)]
struct Masks {
    pool: [u8; 256],
    used: usize,
}

/// The largest payload that is sent in one frame.
const MAX_PAYLOAD: usize = 64 << 10;
/// Two frames: one can be made while the other is sent.
const BUFFER: usize = 2 * (MAX_PAYLOAD + MAX_HEADER);
const NORMAL: [u8; 2] = 1000_u16.to_be_bytes();

// === impl Writing ===

impl Writing {
    pub(crate) fn new(masked: bool) -> Self {
        Self {
            buffer: Vec::new(),
            sent: 0,
            masks: masked.then_some(Masks {
                pool: [0; 256],
                used: 256,
            }),
            pong: None,
            pong_owed: false,
            closed: false,
            waiting: None,
        }
    }

    /// Puts bytes into a frame. They are sent when the buffer is full, or with a flush.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        io: Pin<&mut impl AsyncWrite>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = parts.iter().map(|part| part.len()).sum::<usize>().min(MAX_PAYLOAD);
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        if self.buffer.len() + MAX_HEADER + length > BUFFER {
            ready!(self.poll_send(cx, io))?;
        }
        self.frame(Kind::Binary, length, parts)?;
        Poll::Ready(Ok(length))
    }

    /// Sends everything.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        mut io: Pin<&mut impl AsyncWrite>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx, io.as_mut()))?;
        io.poll_flush(cx)
    }

    /// Says that no more comes, and sends everything.
    pub(crate) fn poll_close(&mut self, cx: &mut Context<'_>, io: Pin<&mut impl AsyncWrite>) -> Poll<io::Result<()>> {
        if !self.closed {
            self.frame(Kind::Close, NORMAL.len(), &[IoSlice::new(&NORMAL)])?;
            self.closed = true;
        }
        self.poll_flush(cx, io)
    }

    pub(crate) fn answer(&mut self, ping: Control) {
        self.pong = Some(ping);
        self.pong_owed = true;
    }

    /// Sends a pong if one is due and can be sent now, without getting in the way of who writes.
    pub(crate) fn send_pong(&mut self, cx: &mut Context<'_>, mut io: Pin<&mut impl AsyncWrite>) -> io::Result<()> {
        if !self.pong_owed {
            return Ok(());
        }
        let waiting = self.waiting.clone();
        let mut cx = match &waiting {
            Some(waker) => Context::from_waker(waker),
            None => Context::from_waker(cx.waker()),
        };
        match self.send(&mut cx, io.as_mut()) {
            Poll::Ready(sent) => {
                sent?;
                let _ = io.poll_flush(&mut cx)?;
                Ok(())
            }
            Poll::Pending => Ok(()),
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, io: Pin<&mut impl AsyncWrite>) -> Poll<io::Result<()>> {
        let outcome = self.send(cx, io);
        self.waiting = outcome.is_pending().then(|| cx.waker().clone());
        outcome
    }

    fn send(&mut self, cx: &mut Context<'_>, mut io: Pin<&mut impl AsyncWrite>) -> Poll<io::Result<()>> {
        loop {
            while self.sent < self.buffer.len() {
                match ready!(io.as_mut().poll_write(cx, &self.buffer[self.sent..]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    sent => self.sent += sent,
                }
            }
            self.buffer.clear();
            self.sent = 0;
            // After a Close nothing may be sent.
            match self.pong.take().filter(|_| !self.closed) {
                Some(pong) => self.frame(Kind::Pong, pong.payload().len(), &[IoSlice::new(pong.payload())])?,
                None => {
                    self.pong_owed = false;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Appends a frame with the first `length` bytes of the parts.
    fn frame(&mut self, kind: Kind, length: usize, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let mask = self.masks.as_mut().map(Masks::next).transpose()?;
        let header = Header {
            last: true,
            kind,
            mask,
            length: length as u64,
        };
        header.write(&mut self.buffer);
        let from = self.buffer.len();
        let mut left = length;
        for part in parts {
            let part = &part[..part.len().min(left)];
            self.buffer.extend_from_slice(part);
            left -= part.len();
        }
        if let Some(mask) = mask {
            apply_mask(&mut self.buffer[from..], mask, 0);
        }
        debug_assert!(self.buffer.len() <= BUFFER + MAX_HEADER + MAX_CONTROL);
        Ok(())
    }
}

// === impl Masks ===

impl Masks {
    fn next(&mut self) -> io::Result<Mask> {
        if self.used == self.pool.len() {
            getrandom(&mut self.pool, GetRandomFlags::empty())?;
            self.used = 0;
        }
        let mut mask = Mask::default();
        mask.copy_from_slice(&self.pool[self.used..self.used + size_of::<Mask>()]);
        self.used += size_of::<Mask>();
        Ok(mask)
    }
}
