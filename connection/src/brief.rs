//! Calls with one message there and one back, to a peer on the same machine.
//!
//! HTTP/2 is made for much that two programs of one build do not need of each other: headers and their compression, windows,
//! priorities. What a small call takes in it is most of what the call takes. Here a call is a frame, and so is its answer:
//!
//! ```text
//! length of the body (4 bytes, little-endian) · number of the call (4, likewise) · kind (1) · body
//! ```
//!
//! | kind | from | body |
//! |---|---|---|
//! | 1 call | caller | length of the method's name (1), the name, the message |
//! | 2 answer | answerer | the message |
//! | 3 refusal | answerer | gRPC code (1), length of the text (4), the text, the details |
//! | 4 cancel | caller | the call is not waited for any more |
//! | 5 ping, 6 pong | caller, answerer | |
//!
//! A message is as in a stream of gRPC, with its prefix of five bytes, so that it passes from one to the other as it is. The
//! caller begins with a greeting, and calls when it was greeted back; a peer that speaks HTTP/2 begins with something
//! else, and is to be spoken to in that. Answers come in any order. There are no windows. A caller reads all that comes, since
//! somebody waits for it; an answerer reads no more calls while it has some MiB of answers that are not taken; and calls that
//! an answerer does not read wait with whoever made them.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;

mod answerer;
mod caller;
#[cfg(test)]
mod tests;
mod wire;

pub use self::{
    answerer::{answer, is_spoken_by},
    caller::{BriefLine, Outcome},
};

/// What a message begins with in a stream of gRPC: a flag and its length.
pub const PREFIX: usize = 5;

/// A message as it goes into such a stream.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut framed);
    framed.freeze()
}
