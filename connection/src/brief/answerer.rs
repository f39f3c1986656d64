//! Who answers.

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{BufMut as _, Bytes};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
    task::AbortHandle,
    time,
};
use tonic::Status;
use tracing::Instrument as _;

use super::wire::{Frame, GREETING, Kind, Wire, malformed};
use crate::kept::ByteStream;

/// The calls of one connection. Dropped, they end where they are.
struct Calls<H> {
    shared: Arc<Shared>,
    handle: H,
}

struct Shared {
    wire: Wire,
    under_way: Mutex<HashMap<u32, AbortHandle>>,
    /// Of calls that have ended.
    ended: Notify,
}

/// How long a caller may take to greet.
const PATIENCE: Duration = Duration::from_secs(10);
/// Calls are not read while so much of the answers is not taken.
const MOST_UNREAD: usize = 4 << 20;

/// Whether a connection that begins with this byte is for brief calls.
#[must_use]
pub fn is_spoken_by(first: u8) -> bool {
    first == GREETING[0]
}

/// Answers calls until the caller leaves, or until it is `over` and what was called by then is answered. Messages are as in a
/// stream of gRPC. What the caller does not wait for any more is dropped.
///
/// # Errors
/// When the connection breaks, or the other side does not speak as it should.
pub async fn answer<H, F>(mut stream: Box<dyn ByteStream>, over: impl Future<Output = ()>, handle: H) -> io::Result<()>
where
    H: Fn(Bytes, Bytes) -> F,
    F: Future<Output = Result<Bytes, Status>> + Send + 'static,
{
    let mut over = pin!(over);
    tokio::select! {
        greeted = time::timeout(PATIENCE, greet(&mut stream)) => greeted??,
        () = &mut over => return Ok(()),
    }
    let calls = Calls {
        shared: Arc::new(Shared {
            wire: Wire::new(stream, MOST_UNREAD),
            under_way: Mutex::default(),
            ended: Notify::new(),
        }),
        handle,
    };
    tokio::select! {
        left = calls.take_all() => return left,
        () = &mut over => {}
    }
    calls.finish().await
}

/// Says what we speak, also to one who speaks something newer: it then knows.
async fn greet(stream: &mut Box<dyn ByteStream>) -> io::Result<()> {
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await?;
    stream.write_all(&GREETING).await?;
    stream.flush().await?;
    match greeting == GREETING {
        true => Ok(()),
        false => Err(malformed("another greeting")),
    }
}

// === impl Calls ===

impl<H, F> Calls<H>
where
    H: Fn(Bytes, Bytes) -> F,
    F: Future<Output = Result<Bytes, Status>> + Send + 'static,
{
    async fn take_all(&self) -> io::Result<()> {
        let wire = &self.shared.wire;
        while let Some(frame) = poll_fn(|cx| wire.poll_next(cx)).await? {
            match frame.kind {
                Kind::Call => self.begin(frame)?,
                Kind::Cancel => {
                    if let Some(task) = self.shared.end(frame.call) {
                        task.abort();
                    }
                }
                Kind::Ping => wire.send(Kind::Pong, 0, &[], Bytes::new(), None, false)?,
                Kind::Answer | Kind::Refusal | Kind::Pong => return Err(malformed("a frame that callers do not send")),
            }
        }
        Ok(())
    }

    fn begin(&self, frame: Frame) -> io::Result<()> {
        let Frame { call, mut body, .. } = frame;
        let name = body.first().map_or(0, |length| usize::from(*length));
        if body.len() <= name {
            return Err(malformed("a call without a method"));
        }
        let message = body.split_off(1 + name);
        let answering = (self.handle)(body.slice(1..), message);
        let shared = Arc::clone(&self.shared);
        let answered = async move {
            shared.say(call, answering.await);
            shared.end(call);
        };
        // Held, so that it is noted before it can end.
        let mut under_way = self.shared.under_way();
        let task = tokio::spawn(answered.in_current_span());
        under_way.insert(call, task.abort_handle());
        Ok(())
    }

    /// Waits for the answers to what was called, and until they are taken.
    async fn finish(&self) -> io::Result<()> {
        let Shared { wire, ended, .. } = &*self.shared;
        while !self.shared.under_way().is_empty() {
            tokio::select! {
                () = ended.notified() => {}
                broken = poll_fn(|cx| wire.poll_broken(cx)) => return Err(broken),
            }
        }
        poll_fn(|cx| wire.poll_flushed(cx)).await
    }
}

impl<H> Drop for Calls<H> {
    fn drop(&mut self) {
        self.shared.under_way().drain().for_each(|(_, task)| task.abort());
    }
}

// === impl Shared ===

impl Shared {
    fn say(&self, call: u32, answer: Result<Bytes, Status>) {
        let is_busy = self.under_way().len() > 1;
        let say = |kind, body| self.wire.send(kind, call, &[], body, None, is_busy);
        let sent = match answer {
            Ok(message) => say(Kind::Answer, message),
            Err(status) => say(Kind::Refusal, refusal(&status)),
        };
        if sent.is_err() {
            let status = Status::out_of_range("the answer is larger than any message may be");
            let _ = say(Kind::Refusal, refusal(&status));
        }
    }

    /// Notes that a call is over.
    fn end(&self, call: u32) -> Option<AbortHandle> {
        let task = self.under_way().remove(&call);
        self.ended.notify_one();
        task
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<u32, AbortHandle>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of the status, but for headers: those say something of a connection, and this is another one.
fn refusal(status: &Status) -> Bytes {
    let (text, details) = (status.message().as_bytes(), status.details());
    let mut body = Vec::with_capacity(5 + text.len() + details.len());
    body.put_u8(u8::try_from(i32::from(status.code())).unwrap_or(u8::MAX));
    body.put_u32_le(u32::try_from(text.len()).unwrap_or(u32::MAX));
    body.put_slice(text);
    body.put_slice(details);
    body.into()
}
