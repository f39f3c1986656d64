//! Between calls, which are async, and files, which block: bounded channels that hold either side back.

use std::io::{self, Read, Write};

use bytes::Bytes;
use sandgate::v1::{UploadRequest, upload_request::Message};
use tokio::sync::mpsc;

/// What a chunk holds.
pub(super) const CHUNK: usize = 64 << 10;
/// Chunks that may wait: half a megabyte.
pub(super) const WAITING: usize = 8;

/// A piece of what is received; nothing: it was all, and whole. A channel that closes without is a cut.
pub(super) type Piece = Option<Bytes>;

/// Received pieces, to be read by a thread.
pub(super) struct Reader {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    whole: bool,
}

/// Chunks of an upload, to be written by a thread.
pub(super) struct Writer {
    messages: mpsc::Sender<UploadRequest>,
    chunk: Vec<u8>,
    count: Box<dyn Fn(u64) + Send>,
}

/// The call ended before all was sent: it has the reason.
#[derive(Debug, thiserror::Error)]
#[error("the call has ended")]
pub(super) struct CallEnded;

/// The sender stopped before all was received: it has the reason.
#[derive(Debug, thiserror::Error)]
#[error("it was cut")]
pub(super) struct Cut;

// === impl Reader ===

impl Reader {
    pub(super) fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self {
            pieces,
            current: Bytes::new(),
            whole: false,
        }
    }

    /// The next piece; nothing at the end.
    pub(super) fn piece(&mut self) -> io::Result<Option<Bytes>> {
        if self.whole {
            return Ok(None);
        }
        match self.pieces.blocking_recv() {
            Some(Some(bytes)) => Ok(Some(bytes)),
            Some(None) => {
                self.whole = true;
                Ok(None)
            }
            None => Err(io::Error::other(Cut)),
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.piece()? {
                Some(bytes) => self.current = bytes,
                None => return Ok(0),
            }
        }
        let count = self.current.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.current.split_to(count));
        Ok(count)
    }
}

// === impl Writer ===

impl Writer {
    /// `count` is told how many bytes were sent.
    pub(super) fn new(messages: mpsc::Sender<UploadRequest>, count: impl Fn(u64) + Send + 'static) -> Self {
        Self {
            messages,
            chunk: Vec::with_capacity(CHUNK),
            count: Box::new(count),
        }
    }

    /// Sends a message that is not content.
    pub(super) fn message(&mut self, message: Message) -> io::Result<()> {
        self.flush()?;
        self.send(message)
    }

    fn send(&self, message: Message) -> io::Result<()> {
        let request = UploadRequest { message: Some(message) };
        self.messages
            .blocking_send(request)
            .map_err(|_| io::Error::other(CallEnded))
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..count]);
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK));
        (self.count)(chunk.len() as u64);
        self.send(Message::Chunk(chunk.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_in_order_and_a_cut_is_no_end() {
        let (tx, rx) = mpsc::channel(8);
        for piece in [
            Some(Bytes::from_static(b"ab")),
            Some(Bytes::new()),
            Some(Bytes::from_static(b"c")),
            None,
        ] {
            tx.try_send(piece).unwrap();
        }
        let mut text = String::new();
        Reader::new(rx).read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");

        let (tx, rx) = mpsc::channel(8);
        tx.try_send(Some(Bytes::from_static(b"ab"))).unwrap();
        drop(tx);
        let error = Reader::new(rx).read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.get_ref().unwrap().is::<Cut>());
    }

    #[test]
    fn writes_become_chunks_of_at_most_their_size() {
        let (tx, mut rx) = mpsc::channel(8);
        let mut writer = Writer::new(tx, |_| {});
        writer.write_all(&vec![7; CHUNK + 1]).unwrap();
        writer.flush().unwrap();
        drop(writer);
        let mut sizes = Vec::new();
        while let Some(UploadRequest {
            message: Some(Message::Chunk(chunk)),
        }) = rx.blocking_recv()
        {
            sizes.push(chunk.len());
        }
        assert_eq!(sizes, [CHUNK, 1]);
    }

    #[test]
    fn a_call_that_ended_stops_the_writer() {
        let (tx, rx) = mpsc::channel(8);
        drop(rx);
        let mut writer = Writer::new(tx, |_| {});
        let error = writer.write_all(&vec![7; CHUNK]).unwrap_err();
        assert!(error.get_ref().unwrap().is::<CallEnded>());
    }
}
