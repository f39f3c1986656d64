//! A way to what runs inside a sandbox, as a stream of bytes: above it gRPC is the same everywhere.

use std::{fmt, io};

use async_trait::async_trait;
use http::HeaderValue;
use sandgate_connection::ByteStream;
use sandgate_proto::v1::ConnectionMode;

/// Opens byte streams to one sandbox.
#[async_trait]
pub trait Carrier: fmt::Debug + Send + Sync {
    /// What kind of way it is.
    fn mode(&self) -> ConnectionMode;

    /// Opens a stream. May be called again and again: a stream that was lost is only a pause.
    ///
    /// # Errors
    /// When nothing answers there now.
    async fn open(&self) -> io::Result<Box<dyn ByteStream>>;

    /// Whether commands run inside that only this process knows of: nothing inside keeps such a sandbox from idling.
    fn is_busy(&self) -> bool {
        false
    }

    /// Whether our own runtime is at the other end, on this machine and with no credential to show, so that calls with one
    /// message there and one back may go without HTTP/2 around them.
    fn is_next_door(&self) -> bool {
        false
    }

    /// What each call has to show: the value of its `authorization` header. `None`: whoever gets there may call.
    fn credential(&self) -> Option<HeaderValue> {
        None
    }
}
