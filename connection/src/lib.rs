//! HTTP/2 to one peer: what a client says to the server, and the server to a runtime.
//!
//! The usual clients send the headers of a call and its message in two writes, each of which wakes the peer, and take a
//! call through several tasks. A [`Line`] sends what is known of a call at once, by the task that drives its connection.
//! What the bytes travel over is its owner's business. On the other side, [`Corked`] makes one write of an answer.
#![forbid(unsafe_code)]

mod connection;
mod corked;
mod line;
#[cfg(test)]
mod tests;

pub use self::{
    connection::Keepalive,
    corked::Corked,
    line::{ByteStream, CONNECT_TIMEOUT, Line, LineError, Opening, innermost},
};
