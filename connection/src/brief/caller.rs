//! Who calls.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Notify, Semaphore, oneshot},
};
use tonic::{Code, Status};

use super::wire::{Frame, GREETING, Kind, Room, Wire};
use crate::{
    keepalive::{Keepalive, Traffic, Underway},
    kept::{ByteStream, Kept, Opening, Spoken},
    line::LineError,
};

/// A way to one peer for brief calls. All clones share its connection.
#[derive(Debug, Clone)]
pub struct BriefLine(Kept<Speech>);

/// What became of a call.
#[derive(Debug)]
pub enum Outcome {
    /// Its answer's message.
    Answer(Bytes),
    /// Why there is none.
    Refusal(Status),
    /// The peer speaks something else. The call was not made, and this is its message.
    NotSpoken(Bytes),
}

/// What the peer speaks, as its first bytes tell.
#[derive(Debug, Clone)]
enum Speech {
    Brief(Caller),
    Other,
}

/// A connection. It is closed when this and all of its calls are gone.
#[derive(Debug, Clone)]
struct Caller(Arc<Open>);

/// Held by whoever calls, or may.
#[derive(Debug)]
struct Open(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    wire: Wire,
    calls: Mutex<Calls>,
    traffic: Arc<Traffic>,
    pong: Notify,
    /// Bytes of calls that may wait to be written.
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Calls {
    last: u32,
    waiting: HashMap<u32, oneshot::Sender<Frame>>,
    is_over: bool,
}

/// A call that was made. Dropped before its answer has come, it is cancelled.
struct Made {
    open: Arc<Open>,
    number: u32,
    answer: oneshot::Receiver<Frame>,
    is_sent: bool,
    _underway: Underway,
}

/// Two of the largest calls. The others wait where their callers can leave with them.
const ROOM: usize = 9 << 20;
/// What a call takes beside its message.
const BESIDES: usize = 256;

// === impl BriefLine ===

impl BriefLine {
    /// Nothing is opened yet.
    #[must_use]
    pub fn new(keepalive: Keepalive) -> Self {
        Self(Kept::new(keepalive))
    }

    /// Makes a call with a message as gRPC has it in a stream, and waits for what becomes of it. `open` opens the stream that
    /// a connection needs, if there is none.
    ///
    /// # Errors
    /// When there is no connection, or it breaks. Whether the call was made is not known then.
    pub async fn call<F: Opening>(
        &self,
        method: &str,
        message: Bytes,
        open: impl FnOnce() -> F,
    ) -> Result<Outcome, LineError> {
        match self.0.connection(open).await? {
            Speech::Brief(caller) => caller.call(method, message).await.map_err(LineError::Cut),
            Speech::Other => Ok(Outcome::NotSpoken(message)),
        }
    }

    /// Lets go of a connection that nobody asked for during `span`. Calls under way go on.
    pub fn rest(&self, span: Duration) {
        self.0.rest(span);
    }
}

// === impl Speech ===

impl Spoken for Speech {
    type Error = io::Error;

    async fn begin(mut stream: Box<dyn ByteStream>, keepalive: Keepalive) -> io::Result<Self> {
        stream.write_all(&GREETING).await?;
        stream.flush().await?;
        let mut greeted = [0; GREETING.len()];
        let mut seen = 0;
        while seen < greeted.len() {
            let read = stream.read(&mut greeted[seen..]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            seen += read;
            if greeted[..seen] != GREETING[..seen] {
                return Ok(Self::Other);
            }
        }
        Ok(Self::Brief(Caller::new(stream, keepalive)))
    }

    async fn ready(&self) -> Option<Self> {
        match self {
            Self::Brief(caller) if caller.0.0.calls().is_over => None,
            speech => Some(speech.clone()),
        }
    }
}

// === impl Caller ===

impl Caller {
    fn new(stream: Box<dyn ByteStream>, keepalive: Keepalive) -> Self {
        let shared = Arc::new(Shared {
            // All is read: what comes has been asked for.
            wire: Wire::new(stream, usize::MAX),
            calls: Mutex::default(),
            traffic: Arc::default(),
            pong: Notify::new(),
            room: Arc::new(Semaphore::new(ROOM)),
        });
        tokio::spawn(drive(Arc::clone(&shared), keepalive));
        Self(Arc::new(Open(shared)))
    }

    async fn call(self, method: &str, message: Bytes) -> io::Result<Outcome> {
        let mut made = self.make()?;
        let shared = &made.open.0;
        let name = u8::try_from(method.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let head = [&[name], method.as_bytes()].concat();
        let size = u32::try_from(message.len().saturating_add(BESIDES)).unwrap_or(u32::MAX);
        let too_large = || Status::out_of_range("the request is larger than any message may be");
        if size as usize > ROOM / 2 {
            return Ok(Outcome::Refusal(too_large()));
        }
        let room = Room::take(&shared.room, size).await;
        let room = room.ok_or(io::ErrorKind::ConnectionReset)?;
        let is_busy = shared.calls().waiting.len() > 1;
        let sent = shared
            .wire
            .send(Kind::Call, made.number, &head, message, Some(room), is_busy);
        if sent.is_err() {
            return Ok(Outcome::Refusal(too_large()));
        }
        made.is_sent = true;
        let Ok(Frame { kind, body, .. }) = (&mut made.answer).await else {
            return Err(io::ErrorKind::ConnectionReset.into());
        };
        match kind {
            Kind::Answer => Ok(Outcome::Answer(body)),
            _ => Ok(Outcome::Refusal(refusal(body))),
        }
    }

    fn make(self) -> io::Result<Made> {
        let shared = &self.0.0;
        let (answer_in, answer) = oneshot::channel();
        let mut calls = shared.calls();
        if calls.is_over {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // Long-lived calls keep their numbers while the others go round.
        loop {
            calls.last = calls.last.wrapping_add(1);
            if !calls.waiting.contains_key(&calls.last) {
                break;
            }
        }
        let number = calls.last;
        calls.waiting.insert(number, answer_in);
        drop(calls);
        Ok(Made {
            number,
            answer,
            is_sent: false,
            _underway: Underway::begin(Arc::clone(&shared.traffic)),
            open: self.0,
        })
    }
}

// === impl Made ===

impl Drop for Made {
    fn drop(&mut self) {
        let shared = &self.open.0;
        // Answered, it does not wait any more.
        let was_waiting = shared.calls().waiting.remove(&self.number).is_some();
        if was_waiting && self.is_sent && !shared.wire.withdraw(self.number) {
            shared.tell(Kind::Cancel, self.number);
        }
    }
}

// === impl Open ===

impl Drop for Open {
    fn drop(&mut self) {
        self.0.wire.close();
    }
}

// === impl Shared ===

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame that has no body.
    fn tell(&self, kind: Kind, call: u32) {
        // Only large ones are refused.
        let _ = self.wire.send(kind, call, &[], Bytes::new(), None, false);
    }

    fn take(&self, frame: Frame) {
        self.traffic.hear();
        match frame.kind {
            Kind::Answer | Kind::Refusal => {
                let waiting = self.calls().waiting.remove(&frame.call);
                // Whoever has left meanwhile is not told.
                waiting.map(|waiting| waiting.send(frame));
            }
            Kind::Pong => self.pong.notify_one(),
            Kind::Call | Kind::Cancel | Kind::Ping => {}
        }
    }
}

/// Reads a connection until its end, which is also when nothing answers any more.
async fn drive(shared: Arc<Shared>, keepalive: Keepalive) {
    let reading = async {
        loop {
            match poll_fn(|cx| shared.wire.poll_next(cx)).await {
                Ok(Some(frame)) => shared.take(frame),
                Ok(None) => return,
                Err(error) => return tracing::debug!(%error, "a connection broke"),
            }
        }
    };
    let ask = || async {
        shared.tell(Kind::Ping, 0);
        shared.pong.notified().await;
        true
    };
    tokio::select! {
        () = reading => {}
        () = keepalive.silence(&shared.traffic, ask) => tracing::debug!("a connection is silent"),
    }
    // The peer learns that nobody waits any more, and so does whoever waits.
    shared.wire.close();
    shared.room.close();
    let mut calls = shared.calls();
    calls.is_over = true;
    calls.waiting.clear();
}

/// A refusal that is not one is told as what it is: the peer may be anybody's program.
fn refusal(mut body: Bytes) -> Status {
    let read = || {
        let code = Code::from(i32::from(body.try_get_u8().ok()?));
        let length = usize::try_from(body.try_get_u32_le().ok()?).ok()?;
        let text = (length <= body.len()).then(|| body.split_to(length))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        (code != Code::Ok).then(|| Status::with_details(code, text, body))
    };
    read().unwrap_or_else(|| Status::unknown("a refusal that can't be read"))
}
