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
    sync::{Notify, oneshot},
};
use tonic::{Code, Status};

use super::wire::{Frame, GREETING, Kind, Wire};
use crate::{
    keepalive::{Keepalive, Traffic, Underway},
    kept::{ByteStream, Kept, Opening, Spoken},
    line::LineError,
};

/// A way to one peer for brief calls. All clones share its connection.
#[derive(Debug, Clone)]
pub struct BriefLine(Kept<Speech>);

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
    is_answered: bool,
    _underway: Underway,
}

// === impl BriefLine ===

impl BriefLine {
    /// Nothing is opened yet.
    #[must_use]
    pub fn new(keepalive: Keepalive) -> Self {
        Self(Kept::new(keepalive))
    }

    /// Makes a call with a message as gRPC has it in a stream, and waits for the answer's. `open` opens the stream that a
    /// connection needs, if there is none. `None`: the peer speaks something else, and the call was not made.
    ///
    /// # Errors
    /// When there is no connection, or it breaks. Whether the call was made is not known then.
    pub async fn call<F: Opening>(
        &self,
        method: &str,
        message: Bytes,
        open: impl FnOnce() -> F,
    ) -> Result<Option<Result<Bytes, Status>>, LineError> {
        match self.0.connection(open).await? {
            Speech::Brief(caller) => caller.call(method, message).await.map(Some).map_err(LineError::Cut),
            Speech::Other => Ok(None),
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
            wire: Wire::new(stream),
            calls: Mutex::default(),
            traffic: Arc::default(),
            pong: Notify::new(),
        });
        tokio::spawn(drive(Arc::clone(&shared), keepalive));
        Self(Arc::new(Open(shared)))
    }

    async fn call(self, method: &str, message: Bytes) -> io::Result<Result<Bytes, Status>> {
        let mut made = self.make()?;
        let wire = &made.open.0.wire;
        let name = u8::try_from(method.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let head = [&[name], method.as_bytes()].concat();
        if wire.send(Kind::Call, made.number, &head, message).is_err() {
            made.is_answered = true;
            return Ok(Err(Status::out_of_range(
                "the request is larger than any message may be",
            )));
        }
        let Ok(Frame { kind, body, .. }) = (&mut made.answer).await else {
            return Err(io::ErrorKind::ConnectionReset.into());
        };
        made.is_answered = true;
        match kind {
            Kind::Answer => Ok(Ok(body)),
            _ => Ok(Err(refusal(body))),
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
            is_answered: false,
            _underway: Underway::begin(Arc::clone(&shared.traffic)),
            open: self.0,
        })
    }
}

// === impl Made ===

impl Drop for Made {
    fn drop(&mut self) {
        let shared = &self.open.0;
        let was_waiting = shared.calls().waiting.remove(&self.number).is_some();
        if was_waiting && !self.is_answered {
            // It is small.
            let _ = shared.wire.send(Kind::Cancel, self.number, &[], Bytes::new());
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
        // It is small.
        let _ = shared.wire.send(Kind::Ping, 0, &[], Bytes::new());
        shared.pong.notified().await;
        true
    };
    tokio::select! {
        () = reading => {}
        () = keepalive.silence(&shared.traffic, ask) => tracing::debug!("a connection is silent"),
    }
    let mut calls = shared.calls();
    calls.is_over = true;
    // Whoever waits learns of it.
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
    let status = { read }();
    status.unwrap_or_else(|| Status::unknown("a refusal that can't be read"))
}
