//! Connections to one peer: what a client says to the server, and the server to a runtime.
//!
//! The usual clients send the headers of a call and its message in two writes, each of which wakes the peer, and take a
//! call through several tasks. A [`Line`] sends what is known of a call at once, by the task that drives its connection.
//! What the bytes travel over is its owner's business. On the other side, [`Corked`] makes one write of an answer. To a peer
//! on the same machine, calls with one message there and one back need no HTTP/2: those are of a [`BriefLine`], and
//! [`brief::answer`] is the other side.
#![forbid(unsafe_code)]

pub mod brief;
mod connection;
mod corked;
mod keepalive;
mod kept;
mod line;
#[cfg(test)]
mod tests;

pub use self::{
    brief::BriefLine,
    corked::Corked,
    keepalive::Keepalive,
    kept::{ByteStream, CONNECT_TIMEOUT, Opening, innermost},
    line::{Line, LineError},
};
