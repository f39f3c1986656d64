//! A stream of bytes inside a WebSocket, for HTTP/2 behind proxies that carry none.
//!
//! Proxies in front of sandboxes speak HTTP/1.1 upstream, and let an upgraded connection through as it is. So HTTP/2 runs
//! inside: the bytes of one connection are the payload of binary frames (RFC 6455), and where a frame ends means nothing.
//!
//! The frames are written and read here rather than by a library of messages. A stream needs a side that can end before
//! the other, which such libraries do not offer; and bytes go from the caller's buffer to the socket with one copy and
//! without an allocation for each frame. The tests hold it against such a library.
#![forbid(unsafe_code)]

mod frame;
mod handshake;
mod reading;
mod stream;
mod writing;

pub use self::{
    handshake::{BadUpgrade, Refused, answer, client},
    stream::WebSocket,
};

/// Where a runtime offers the upgrade.
pub const PATH: &str = "/sandgate/v1/stream";
/// The subprotocol: HTTP/2 with prior knowledge in binary frames.
pub const PROTOCOL: &str = "sandgate.v1";
