//! One connection for all calls, opened by the first of them and again when it was lost.

use std::{
    error::Error,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{
    Request, Response, Uri,
    uri::{Authority, Scheme},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, OwnedMutexGuard},
    time,
};
use tonic::{ConnectError, body::Body};

use crate::connection::{Connection, Keepalive};

/// Bytes both ways.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A stream that is being opened.
pub trait Opening: Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'static {}

impl<T: Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'static> Opening for T {}

/// A way to one peer. All clones share its connection.
#[derive(Debug, Clone)]
pub struct Line {
    authority: Authority,
    keepalive: Keepalive,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<Open>,
    /// When there was last none to be had, and why.
    failed: Option<(Instant, String)>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    used: Instant,
}

/// Why a call did not come back.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// There is no connection to be had.
    #[error("can't connect: {0}")]
    Connect(#[source] ConnectError),
    /// The connection broke.
    #[error(transparent)]
    Broken(#[from] h2::Error),
    /// The path of the call is none.
    #[error(transparent)]
    Path(#[from] http::Error),
}

/// How long a connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Line ===

impl Line {
    /// A line to whom calls name as `authority`. Nothing is opened yet.
    #[must_use]
    pub fn new(authority: Authority, keepalive: Keepalive) -> Self {
        Self {
            authority,
            keepalive,
            state: Arc::default(),
        }
    }

    /// Makes a call, of whose URI only the path is looked at, and waits for the beginning of the answer. `open` opens the
    /// stream that a connection needs, if there is none.
    ///
    /// # Errors
    /// When there is no connection, or it breaks. Whether the call was made is not known then.
    pub async fn call<F: Opening>(
        &self,
        mut request: Request<Body>,
        open: impl FnOnce() -> F,
    ) -> Result<Response<Body>, LineError> {
        let path = request.uri().path_and_query().cloned();
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone());
        *request.uri_mut() = path
            .into_iter()
            .fold(uri, |uri, path| uri.path_and_query(path))
            .build()?;
        Ok(self.connection(open).await?.call(request).await?)
    }

    /// Sees to it that there is a connection.
    ///
    /// # Errors
    /// When there is none to be had.
    pub async fn connect<F: Opening>(&self, open: impl FnOnce() -> F) -> Result<(), LineError> {
        self.connection(open).await.map(drop)
    }

    /// One that takes calls.
    async fn connection<F: Opening>(&self, open: impl FnOnce() -> F) -> Result<Connection, LineError> {
        let asked = Instant::now();
        let mut state = Arc::clone(&self.state).lock_owned().await;
        if let Some(open) = &mut state.open
            && let Ok(ready) = open.connection.ready().await
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
    pub fn rest(&self, span: Duration) {
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
async fn opened(
    stream: impl Opening,
    keepalive: Keepalive,
    mut state: OwnedMutexGuard<State>,
) -> Result<Connection, LineError> {
    let opening = async {
        let stream = stream.await.map_err(unreachable)?;
        Connection::new(stream, keepalive).await.map_err(unreachable)
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
