//! HTTP/2 to one peer.

use std::time::Duration;

use http::{
    Request, Response, Uri,
    uri::{Authority, Scheme},
};
use tonic::{ConnectError, body::Body};

use crate::{
    connection::Connection,
    keepalive::Keepalive,
    kept::{Kept, Opening},
};

/// A way to one peer. All clones share its connection.
#[derive(Debug, Clone)]
pub struct Line {
    authority: Authority,
    kept: Kept<Connection>,
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
    /// A connection for brief calls broke.
    #[error("the connection broke: {0}")]
    Cut(#[source] std::io::Error),
    /// The path of the call is none.
    #[error(transparent)]
    Path(#[from] http::Error),
}

// === impl Line ===

impl Line {
    /// A line to whom calls name as `authority`. Nothing is opened yet.
    #[must_use]
    pub fn new(authority: Authority, keepalive: Keepalive) -> Self {
        Self {
            authority,
            kept: Kept::new(keepalive),
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
        Ok(self.kept.connection(open).await?.call(request).await?)
    }

    /// Sees to it that there is a connection.
    ///
    /// # Errors
    /// When there is none to be had.
    pub async fn connect<F: Opening>(&self, open: impl FnOnce() -> F) -> Result<(), LineError> {
        self.kept.connection(open).await.map(drop)
    }

    /// Lets go of a connection that nobody asked for during `span`. Calls under way go on.
    pub fn rest(&self, span: Duration) {
        self.kept.rest(span);
    }
}
