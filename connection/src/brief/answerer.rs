//! Who answers.

use std::{collections::HashMap, future::poll_fn, io, sync::Arc};

use bytes::{BufMut as _, Bytes};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::{AbortHandle, JoinSet},
};
use tonic::Status;

use super::wire::{Frame, GREETING, Kind, Wire, malformed};
use crate::kept::ByteStream;

/// The calls of one connection.
struct Calls<H> {
    wire: Arc<Wire>,
    handle: H,
    /// Each gives its number. Dropped with this, they end where they are.
    tasks: JoinSet<u32>,
    under_way: HashMap<u32, AbortHandle>,
}

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
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await?;
    if greeting != GREETING {
        return Err(malformed("another greeting"));
    }
    stream.write_all(&GREETING).await?;
    stream.flush().await?;
    let mut calls = Calls {
        wire: Arc::new(Wire::new(stream)),
        handle,
        tasks: JoinSet::new(),
        under_way: HashMap::new(),
    };
    tokio::select! {
        left = calls.take_all() => return left,
        () = over => {}
    }
    calls.finish().await
}

// === impl Calls ===

impl<H, F> Calls<H>
where
    H: Fn(Bytes, Bytes) -> F,
    F: Future<Output = Result<Bytes, Status>> + Send + 'static,
{
    async fn take_all(&mut self) -> io::Result<()> {
        while let Some(frame) = poll_fn(|cx| self.wire.poll_next(cx)).await? {
            while let Some(done) = self.tasks.try_join_next() {
                self.forget(done);
            }
            match frame.kind {
                Kind::Call => self.begin(frame)?,
                Kind::Cancel => {
                    if let Some(task) = self.under_way.get(&frame.call) {
                        task.abort();
                    }
                }
                Kind::Ping => self.wire.send(Kind::Pong, 0, &[], Bytes::new())?,
                Kind::Answer | Kind::Refusal | Kind::Pong => return Err(malformed("a frame that callers do not send")),
            }
        }
        Ok(())
    }

    fn begin(&mut self, frame: Frame) -> io::Result<()> {
        let Frame { call, mut body, .. } = frame;
        let name = body.first().map_or(0, |length| usize::from(*length));
        if body.len() <= name {
            return Err(malformed("a call without a method"));
        }
        let message = body.split_off(1 + name);
        let answering = (self.handle)(body.slice(1..), message);
        let wire = Arc::clone(&self.wire);
        let task = self.tasks.spawn(async move {
            let sent = match answering.await {
                Ok(message) => wire.send(Kind::Answer, call, &[], message),
                Err(status) => wire.send(Kind::Refusal, call, &[], refusal(&status)),
            };
            if sent.is_err() {
                let status = Status::out_of_range("the answer is larger than any message may be");
                let _ = wire.send(Kind::Refusal, call, &[], refusal(&status));
            }
            call
        });
        self.under_way.insert(call, task);
        Ok(())
    }

    fn forget(&mut self, done: Result<u32, tokio::task::JoinError>) {
        match done {
            Ok(call) => _ = self.under_way.remove(&call),
            // Cancelled, and not told which it was.
            Err(_) => self.under_way.retain(|_, task| !task.is_finished()),
        }
    }

    /// Waits for the answers to what was called, and until they are taken.
    async fn finish(&mut self) -> io::Result<()> {
        loop {
            tokio::select! {
                biased;
                done = self.tasks.join_next() => if done.is_none() { break },
                broken = poll_fn(|cx| self.wire.poll_broken(cx)) => return Err(broken),
            }
        }
        poll_fn(|cx| self.wire.poll_flushed(cx)).await
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
