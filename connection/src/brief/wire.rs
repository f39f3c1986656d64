//! What both ends of a connection have: frames in, frames out.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, ReadBuf},
    sync::Semaphore,
};

use crate::kept::ByteStream;

/// What each end says first.
pub(super) const GREETING: [u8; 16] = *b"SANDGATE BRIEF 1";

/// A connection. Whoever alone has something to say writes it at once. What many say is left to the next turn of the task that
/// reads, and leaves together; and so is what the peer does not take at once.
pub(super) struct Wire(Mutex<State>);

struct State {
    /// `None`: it is closed.
    stream: Option<Box<dyn ByteStream>>,
    inbox: BytesMut,
    outbox: VecDeque<Piece>,
    /// Bytes in the outbox.
    unread: usize,
    /// With more than that nothing is read.
    most_unread: usize,
    /// The peer takes nothing any more. What it had said is still to be read.
    broken: Option<io::Error>,
    /// The task that reads.
    reader: Option<Waker>,
}

/// A frame, or a part of one.
struct Piece {
    bytes: Bytes,
    call: u32,
    /// The frame begins with it, and nothing of it is written yet.
    is_fresh: bool,
    _room: Option<Arc<Room>>,
}

/// So many bytes of those that may wait to be written. Given back when it is dropped.
pub(super) struct Room {
    of: Arc<Semaphore>,
    size: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Call = 1,
    Answer = 2,
    Refusal = 3,
    Cancel = 4,
    Ping = 5,
    Pong = 6,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) call: u32,
    pub(super) body: Bytes,
}

const HEADER: usize = 9;
/// No message is over 4 MiB; the rest is room for what is around it.
const MAX_BODY: usize = (4 << 20) + (64 << 10);
/// What is larger is written from where it is.
const COPIED: usize = 16 << 10;
/// What is read at a time, where it is not known how much comes. Not into memory of the connection's own: most of a thousand
/// are idle.
const READ: usize = 16 << 10;
const PARTS: usize = 8;

// === impl Wire ===

impl Wire {
    /// Speaks over `stream`, and reads nothing while more than `most_unread` bytes are not taken: only one of the two ends may
    /// have such a bound, or each could wait for the other.
    pub(super) fn new(stream: Box<dyn ByteStream>, most_unread: usize) -> Self {
        Self(Mutex::new(State {
            stream: Some(stream),
            inbox: BytesMut::new(),
            outbox: VecDeque::new(),
            unread: 0,
            most_unread,
            broken: None,
            reader: None,
        }))
    }

    /// Sends a frame, at once if nobody else `is_busy` here. That it could not be is noticed by the task that reads. `room` is
    /// held until it is written.
    ///
    /// # Errors
    /// The body is larger than any frame's. Nothing was sent.
    pub(super) fn send(
        &self,
        kind: Kind,
        call: u32,
        head: &[u8],
        body: Bytes,
        room: Option<Room>,
        is_busy: bool,
    ) -> io::Result<()> {
        let length = head.len() + body.len();
        let is_copied = body.len() <= COPIED;
        let mut first = BytesMut::with_capacity(HEADER + head.len() + if is_copied { body.len() } else { 0 });
        match u32::try_from(length) {
            Ok(length) if length as usize <= MAX_BODY => first.put_u32_le(length),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        first.put_u32_le(call);
        first.put_u8(kind as u8);
        first.put_slice(head);
        if is_copied {
            first.put_slice(&body);
        }
        let room = room.map(Arc::new);
        let piece = |bytes, is_fresh| Piece {
            bytes,
            call,
            is_fresh,
            _room: room.clone(),
        };
        let mut state = self.state();
        let was_behind = !state.outbox.is_empty();
        state.push(piece(first.freeze(), true));
        if !is_copied {
            state.push(piece(body, false));
        }
        let mut nobody = Context::from_waker(Waker::noop());
        let is_flushed = !is_busy && matches!(state.poll_flush(&mut nobody), Poll::Ready(Ok(())));
        // Whoever waited for what was behind is told, too: nobody else would.
        if was_behind || !is_flushed {
            state.wake_reader();
        }
        Ok(())
    }

    /// Takes a call back of which nothing was written. Answers whether that could be.
    pub(super) fn withdraw(&self, call: u32) -> bool {
        let mut state = self.state();
        let Some(at) = state
            .outbox
            .iter()
            .position(|piece| piece.call == call && piece.is_fresh)
        else {
            return false;
        };
        let parts = state
            .outbox
            .iter()
            .skip(at)
            .take_while(|piece| piece.call == call)
            .count();
        let withdrawn: usize = state.outbox.drain(at..at + parts).map(|piece| piece.bytes.len()).sum();
        state.unread -= withdrawn;
        true
    }

    /// Waits for the next frame, and meanwhile for the peer to take what it was sent. `None`: it is over.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame>>> {
        let mut state = self.state();
        state.stay(cx);
        if let Poll::Ready(Err(error)) = state.poll_flush(cx) {
            state.clear_outbox();
            state.broken = Some(error);
        }
        loop {
            if let Some(frame) = state.take_frame()? {
                return Poll::Ready(Ok(Some(frame)));
            }
            // It is being written, or it would not be so much.
            if state.unread > state.most_unread {
                return Poll::Pending;
            }
            if ready!(state.poll_read(cx))? == 0 {
                return Poll::Ready(match (state.inbox.is_empty(), state.broken.take()) {
                    (_, Some(broken)) => Err(broken),
                    (true, None) => Ok(None),
                    (false, None) => Err(io::ErrorKind::UnexpectedEof.into()),
                });
            }
        }
    }

    /// Has the peer take what it was sent, and waits until that fails.
    pub(super) fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self.poll_flushed(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            _ => Poll::Pending,
        }
    }

    /// Waits until the peer has taken all that it was sent.
    pub(super) fn poll_flushed(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        state.stay(cx);
        state.poll_flush(cx)
    }

    /// Ends it on this side.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.stream = None;
        state.clear_outbox();
        state.wake_reader();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

// === impl Room ===

impl Room {
    /// Waits for it. `None`: the connection is over.
    pub(super) async fn take(of: &Arc<Semaphore>, size: u32) -> Option<Self> {
        of.acquire_many(size).await.ok()?.forget();
        Some(Self {
            of: Arc::clone(of),
            size,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.add_permits(self.size as usize);
    }
}

// === impl State ===

impl State {
    /// Notes who reads.
    fn stay(&mut self, cx: &Context<'_>) {
        if !self.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            self.reader = Some(cx.waker().clone());
        }
    }

    fn wake_reader(&self) {
        if let Some(reader) = &self.reader {
            reader.wake_by_ref();
        }
    }

    fn push(&mut self, piece: Piece) {
        if self.stream.is_some() && self.broken.is_none() {
            self.unread += piece.bytes.len();
            self.outbox.push_back(piece);
        }
    }

    fn clear_outbox(&mut self) {
        self.outbox.clear();
        self.unread = 0;
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Ok(()));
        };
        while !self.outbox.is_empty() {
            let mut parts = [IoSlice::new(&[]); PARTS];
            let mut count = 0;
            for (part, piece) in parts.iter_mut().zip(&self.outbox) {
                *part = IoSlice::new(&piece.bytes);
                count += 1;
            }
            let mut written = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unread -= written;
            while let Some(first) = self.outbox.front_mut() {
                if written < first.bytes.len() {
                    first.is_fresh &= written == 0;
                    first.bytes.advance(written);
                    break;
                }
                written -= first.bytes.len();
                self.outbox.pop_front();
            }
        }
        Pin::new(stream).poll_flush(cx)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Self {
            stream: Some(stream),
            inbox,
            ..
        } = self
        else {
            // What was said so far is of no use to anybody.
            self.inbox.clear();
            return Poll::Ready(Ok(0));
        };
        if inbox.capacity() - inbox.len() > READ {
            return pin!(stream.read_buf(inbox)).poll(cx);
        }
        let mut space = [MaybeUninit::uninit(); READ];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(stream).poll_read(cx, &mut space))?;
        inbox.extend_from_slice(space.filled());
        Poll::Ready(Ok(space.filled().len()))
    }

    /// The next frame, if it is whole. If it is large, there is room for the rest of it.
    fn take_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some(mut header) = self.inbox.get(..HEADER) else {
            // Nothing is kept for what does not come.
            if self.inbox.is_empty() {
                self.inbox = BytesMut::new();
            }
            return Ok(None);
        };
        let (length, call, kind) = (header.get_u32_le() as usize, header.get_u32_le(), header.get_u8());
        if length > MAX_BODY {
            return Err(malformed("a frame that is too large"));
        }
        let missing = (HEADER + length).saturating_sub(self.inbox.len());
        if missing > 0 {
            self.inbox.reserve(missing);
            return Ok(None);
        }
        let kind = Kind::of(kind).ok_or_else(|| malformed("a frame of no known kind"))?;
        let mut body = self.inbox.split_to(HEADER + length).freeze();
        body.advance(HEADER);
        Ok(Some(Frame { kind, call, body }))
    }
}

// === impl Kind ===

impl Kind {
    fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Call,
            2 => Self::Answer,
            3 => Self::Refusal,
            4 => Self::Cancel,
            5 => Self::Ping,
            6 => Self::Pong,
            _ => return None,
        })
    }
}

pub(super) fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
