//! Finding where messages end in a gRPC stream, so that bytes can be passed on without being decoded or copied.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};
use sandgate_connection::brief::PREFIX;
use tonic::Status;

/// Bytes of a stream as they come, given out as whole messages: a stream that breaks must not end within one.
#[derive(Debug)]
pub(super) struct Messages {
    /// What came and was not taken yet. What is whole and what is not are never in one piece.
    pieces: VecDeque<Bytes>,
    /// How many of them, from the front, make up whole messages.
    whole: usize,
    prefix: [u8; PREFIX],
    prefix_seen: usize,
    payload_left: usize,
    limit: usize,
}

// === impl Messages ===

impl Messages {
    /// For messages of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            whole: 0,
            prefix: [0; PREFIX],
            prefix_seen: 0,
            payload_left: 0,
            limit,
        }
    }

    /// Takes what came next.
    ///
    /// # Errors
    /// A message is compressed, or larger than the limit.
    pub(super) fn push(&mut self, mut data: Bytes) -> Result<(), Status> {
        let end = self.last_end(&data)?;
        if end > 0 {
            self.pieces.push_back(data.split_to(end));
            self.whole = self.pieces.len();
        }
        if !data.is_empty() {
            self.pieces.push_back(data);
        }
        Ok(())
    }

    /// Gives the next piece of what is whole by now. Once one piece of a message was given, the others are there too.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        self.whole = self.whole.checked_sub(1)?;
        self.pieces.pop_front()
    }

    /// Takes the first message off, if it is whole; gives its payload.
    pub(super) fn pop_first(&mut self) -> Option<Bytes> {
        let mut whole = self.pop()?;
        if self.whole > 0 {
            let mut joined = BytesMut::from(whole);
            while let Some(piece) = self.pop() {
                joined.extend_from_slice(&piece);
            }
            whole = joined.freeze();
        }
        let payload = first(&mut whole);
        if !whole.is_empty() {
            self.pieces.push_front(whole);
            self.whole = 1;
        }
        Some(payload)
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether the stream may end here.
    pub(super) fn is_whole(&self) -> bool {
        self.whole == self.pieces.len()
    }

    /// Where in `data` the last message ends; 0 if none does.
    fn last_end(&mut self, data: &[u8]) -> Result<usize, Status> {
        let (mut at, mut end) = (0, 0);
        while at < data.len() {
            if self.prefix_seen < PREFIX {
                self.prefix[self.prefix_seen] = data[at];
                self.prefix_seen += 1;
                at += 1;
                if self.prefix_seen == PREFIX {
                    self.payload_left = self.length()?;
                }
            } else {
                let step = self.payload_left.min(data.len() - at);
                self.payload_left -= step;
                at += step;
            }
            if self.prefix_seen == PREFIX && self.payload_left == 0 {
                self.prefix_seen = 0;
                end = at;
            }
        }
        Ok(end)
    }

    fn length(&self) -> Result<usize, Status> {
        if self.prefix[0] != 0 {
            return Err(Status::unimplemented("compressed messages are not taken"));
        }
        let length = (&self.prefix[1..]).get_u32() as usize;
        if length > self.limit {
            let message = format!("a message of {length} bytes; at most {} are taken", self.limit);
            return Err(Status::out_of_range(message));
        }
        Ok(length)
    }
}

/// Takes the first of the whole messages off; gives its payload.
fn first(whole: &mut Bytes) -> Bytes {
    let length = (&whole[1..]).get_u32() as usize;
    whole.advance(PREFIX);
    whole.split_to(length)
}

#[cfg(test)]
mod tests {
    use sandgate_connection::brief::framed;

    use super::*;

    fn message(size: u8) -> Vec<u8> {
        let mut message = vec![0, 0, 0, 0, size];
        message.extend(std::iter::repeat_n(size, usize::from(size)));
        message
    }

    #[test]
    fn however_it_is_cut_messages_come_out_whole_and_in_order() {
        let stream: Vec<u8> = [3, 0, 200, 1, 0].into_iter().flat_map(message).collect();
        for size in 1..=stream.len() {
            let mut messages = Messages::new(200);
            let mut out = Vec::new();
            for piece in stream.chunks(size) {
                messages.push(Bytes::copy_from_slice(piece)).unwrap();
                while let Some(whole) = messages.pop() {
                    out.extend_from_slice(&whole);
                }
                // Each time it stops at the end of one.
                assert_eq!(Messages::new(200).last_end(&out).unwrap(), out.len());
            }
            assert_eq!(
                (out == stream, messages.is_whole()),
                (true, true),
                "in pieces of {size}"
            );
        }
    }

    #[test]
    fn nothing_is_copied() {
        let data = Bytes::from([message(9), message(7)[..6].to_vec()].concat());
        let rest = Bytes::from(message(7)[6..].to_vec());
        let mut messages = Messages::new(200);
        messages.push(data.clone()).unwrap();
        let whole = messages.pop().unwrap();
        assert_eq!((whole.as_ptr(), whole.len()), (data.as_ptr(), 14));
        assert!(messages.pop().is_none() && !messages.is_whole());
        messages.push(rest.clone()).unwrap();
        assert_eq!(messages.pop().unwrap().as_ptr(), data[14..].as_ptr());
        assert_eq!(messages.pop().unwrap().as_ptr(), rest.as_ptr());
        assert!(messages.is_whole());
    }

    #[test]
    fn too_large_and_compressed_are_refused() {
        let refused = |data: &'static [u8]| Messages::new(10).push(Bytes::from_static(data)).unwrap_err().code();
        assert_eq!(refused(&[0, 0, 0, 0, 11]), tonic::Code::OutOfRange);
        assert_eq!(refused(&[1, 0, 0, 0, 1]), tonic::Code::Unimplemented);
    }

    #[test]
    fn the_first_is_taken_off() {
        let mut messages = Messages::new(200);
        let stream = [message(2), message(1), message(9)[..3].to_vec()].concat();
        for piece in stream.chunks(4) {
            assert!(messages.whole > 0 || messages.pop_first().is_none());
            messages.push(Bytes::copy_from_slice(piece)).unwrap();
        }
        assert_eq!(messages.pop_first().unwrap().as_ref(), [2, 2]);
        assert_eq!(messages.pop().unwrap().as_ref(), message(1));
        assert!(messages.pop().is_none() && !messages.is_whole());
        let framed = framed(&"x".to_owned());
        assert_eq!(framed.as_ref(), [0, 0, 0, 0, 3, 10, 1, b'x']);
    }
}
