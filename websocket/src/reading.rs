//! The half that reads: bytes in, payload out.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, ReadBuf};

use crate::frame::{Header, Kind, MAX_CONTROL, Mask, apply_mask, invalid};

/// What was received and not yet handed on.
#[derive(Debug)]
pub(crate) struct Reading {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the other side masks: clients do, servers do not.
    masked: bool,
    payload: Option<Payload>,
    /// Between two frames of one message.
    unfinished: bool,
    closed: bool,
}

/// The payload of a data frame that is not all read yet.
#[derive(Debug)]
struct Payload {
    left: u64,
    mask: Option<Mask>,
    at: u64,
}

/// The payload of a control frame.
#[derive(Debug)]
pub(crate) struct Control {
    bytes: [u8; MAX_CONTROL],
    length: usize,
}

/// What became of the bytes that are there.
#[derive(Debug)]
pub(crate) enum Step {
    /// Some payload was handed on.
    Data,
    Ping(Control),
    /// The other side ended properly, now or before.
    Closed,
    /// More bytes are needed.
    More,
}

/// As much as the kernel gives at once.
const BUFFER: usize = 64 << 10;
const NORMAL: u16 = 1000;
const GOING_AWAY: u16 = 1001;

// === impl Reading ===

impl Reading {
    /// Begins with bytes that were read already.
    pub(crate) fn new(masked: bool, received: &[u8]) -> Self {
        let mut buffer = vec![0; BUFFER.max(received.len())];
        buffer[..received.len()].copy_from_slice(received);
        Self {
            buffer,
            start: 0,
            end: received.len(),
            masked,
            payload: None,
            unfinished: false,
            closed: false,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Hands payload on, as much as is there and fits.
    pub(crate) fn step(&mut self, out: &mut ReadBuf<'_>) -> io::Result<Step> {
        loop {
            if self.closed {
                return Ok(Step::Closed);
            }
            if let Some(payload) = &mut self.payload {
                let there = &self.buffer[self.start..self.end];
                if there.is_empty() {
                    return Ok(Step::More);
                }
                let taken = payload.take(there, out);
                self.start += taken;
                if payload.left == 0 {
                    self.payload = None;
                }
                return Ok(Step::Data);
            }
            let Some((header, length)) = Header::parse(&self.buffer[self.start..self.end])? else {
                return Ok(Step::More);
            };
            if header.mask.is_some() != self.masked {
                return Err(invalid("a WebSocket frame is masked, or not, against the rules"));
            }
            if header.kind.is_control() {
                match self.control(&header, length)? {
                    Some(step) => return Ok(step),
                    None => continue,
                }
            }
            self.begin(&header)?;
            self.start += length;
        }
    }

    /// Begins a data frame.
    fn begin(&mut self, header: &Header) -> io::Result<()> {
        if self.unfinished != (header.kind == Kind::Continuation) {
            return Err(invalid("a WebSocket message was begun twice or not at all"));
        }
        self.unfinished = !header.last;
        self.payload = (header.length > 0).then_some(Payload {
            left: header.length,
            mask: header.mask,
            at: 0,
        });
        Ok(())
    }

    /// Takes a control frame, if it is all there. A pong asks for nothing.
    fn control(&mut self, header: &Header, header_length: usize) -> io::Result<Option<Step>> {
        let from = self.start + header_length;
        let to = from + header.length as usize;
        if to > self.end {
            return Ok(Some(Step::More));
        }
        let payload = &mut self.buffer[from..to];
        apply_mask(payload, header.mask.unwrap_or_default(), 0);
        self.start = to;
        match header.kind {
            Kind::Ping => Ok(Some(Step::Ping(Control::new(&self.buffer[from..to])))),
            Kind::Close => {
                check_close(&self.buffer[from..to])?;
                self.closed = true;
                Ok(Some(Step::Closed))
            }
            _ => Ok(None),
        }
    }

    /// Receives more bytes. The stream must not end before a Close: then it was cut.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>, io: Pin<&mut impl AsyncRead>) -> Poll<io::Result<()>> {
        // What is left is less than a header or a control frame.
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut free = ReadBuf::new(&mut self.buffer[self.end..]);
        ready!(io.poll_read(cx, &mut free))?;
        match free.filled().len() {
            0 => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the WebSocket was cut: the connection ended without a Close",
            ))),
            received => {
                self.end += received;
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// A Close says why. Only a proper end may look like one.
fn check_close(payload: &[u8]) -> io::Result<()> {
    let code = match payload {
        [] => return Ok(()),
        [high, low, ..] => u16::from_be_bytes([*high, *low]),
        [_] => return Err(invalid("a WebSocket Close with half a code")),
    };
    match code {
        NORMAL | GOING_AWAY => Ok(()),
        code => Err(io::Error::new(
            io::ErrorKind::ConnectionReset,
            format!("the WebSocket was closed with code {code}"),
        )),
    }
}

// === impl Payload ===

impl Payload {
    fn take(&mut self, there: &[u8], out: &mut ReadBuf<'_>) -> usize {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = there.len().min(left).min(out.remaining());
        let before = out.filled().len();
        out.put_slice(&there[..length]);
        if let Some(mask) = self.mask {
            apply_mask(&mut out.filled_mut()[before..], mask, self.at);
        }
        self.at += length as u64;
        self.left -= length as u64;
        length
    }
}

// === impl Control ===

impl Control {
    fn new(payload: &[u8]) -> Self {
        let mut bytes = [0; MAX_CONTROL];
        bytes[..payload.len()].copy_from_slice(payload);
        Self {
            bytes,
            length: payload.len(),
        }
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
