//! One connection for all calls, opened by the first of them and again when it was lost.

use std::{
    error::Error,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, OwnedMutexGuard},
    time,
};
use tonic::ConnectError;

use crate::{keepalive::Keepalive, line::LineError};

/// Bytes both ways.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A stream that is being opened.
pub trait Opening: Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'static {}

impl<T: Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'static> Opening for T {}

/// What is spoken over a stream. All clones share it.
pub(crate) trait Spoken: Clone + Send + Sync + 'static {
    type Error: Error + Send + Sync + 'static;

    /// Begins to speak over `stream`.
    fn begin(
        stream: Box<dyn ByteStream>,
        keepalive: Keepalive,
    ) -> impl Future<Output = Result<Self, Self::Error>> + Send;

    /// The same, if it takes a call. Otherwise one may be tried on another.
    fn ready(&self) -> impl Future<Output = Option<Self>> + Send;
}

/// The connection to one peer, while there is one. All clones share it.
#[derive(Debug)]
pub(crate) struct Kept<C> {
    keepalive: Keepalive,
    state: Arc<Mutex<State<C>>>,
}

#[derive(Debug)]
struct State<C> {
    open: Option<Open<C>>,
    /// When there was last none to be had, and why.
    failed: Option<(Instant, String)>,
}

#[derive(Debug)]
struct Open<C> {
    connection: C,
    used: Instant,
}

/// How long a connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Kept ===

impl<C> Clone for Kept<C> {
    fn clone(&self) -> Self {
        Self {
            keepalive: self.keepalive,
            state: Arc::clone(&self.state),
        }
    }
}

impl<C: Spoken> Kept<C> {
    /// Nothing is opened yet.
    pub(crate) fn new(keepalive: Keepalive) -> Self {
        let state = State {
            open: None,
            failed: None,
        };
        Self {
            keepalive,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// One that takes calls. `open` opens the stream that it needs, if there is none.
    pub(crate) async fn connection<F: Opening>(&self, open: impl FnOnce() -> F) -> Result<C, LineError> {
        let asked = Instant::now();
        let mut state = Arc::clone(&self.state).lock_owned().await;
        if let Some(open) = &mut state.open
            && let Some(ready) = open.connection.ready().await
        {
            open.used = Instant::now();
            return Ok(ready);
        }
        // Whoever waited while another failed does not try again, or the last of many would wait for all of them.
        if let Some((at, why)) = &state.failed
            && *at >= asked
        {
            return Err(unreachable(why.clone()));
        }
        state.open = None;
        // By a task of its own: callers who have less time than it takes would begin again and again.
        let opening = tokio::spawn(opened(open(), self.keepalive, state));
        opening.await.map_err(unreachable).flatten()
    }

    /// Lets go of a connection that nobody asked for during `span`. Calls under way go on.
    pub(crate) fn rest(&self, span: Duration) {
        // One that is being opened, or asked for, is in use.
        if let Ok(mut state) = self.state.try_lock() {
            state.open.take_if(|open| open.used.elapsed() >= span);
        }
    }
}

fn unreachable(why: impl Into<Box<dyn Error + Send + Sync>>) -> LineError {
    LineError::Connect(ConnectError(why.into()))
}

/// Opens a connection for all, and notes how that went.
async fn opened<C: Spoken>(
    stream: impl Opening,
    keepalive: Keepalive,
    mut state: OwnedMutexGuard<State<C>>,
) -> Result<C, LineError> {
    let opening = async {
        let stream = stream.await.map_err(unreachable)?;
        C::begin(stream, keepalive).await.map_err(unreachable)
    };
    let opened = time::timeout(CONNECT_TIMEOUT, opening).await;
    match opened.map_err(unreachable).flatten() {
        Ok(connection) => {
            state.open = Some(Open {
                connection: connection.clone(),
                used: Instant::now(),
            });
            Ok(connection)
        }
        Err(error) => {
            state.failed = Some((Instant::now(), innermost(&error)));
            Err(error)
        }
    }
}

/// What is said by the last cause of an error, which knows most.
#[must_use]
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
