//! Writing a command's stdin: bytes are kept until the server has accepted them, and sent again on the next stream.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::{
    error::{Error, Result},
    v1,
};

/// Bytes in one message.
const CHUNK: usize = 64 << 10;
/// Bytes that wait to be accepted, at most. More are taken when these are.
const WINDOW: u64 = 256 << 10;

/// The writing side of a command's stdin. What is written arrives once, also across lost connections.
/// Dropping it leaves stdin open: [`Stdin::close`] ends it.
#[derive(Debug)]
pub struct Stdin {
    input: mpsc::Sender<Input>,
    progress: watch::Receiver<Progress>,
    written: u64,
}

/// What a writer hands over.
#[derive(Debug)]
pub(crate) enum Input {
    Bytes(Bytes),
    Close,
}

/// How far the command's stdin is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    accepted: u64,
    closed: bool,
}

/// What is not accepted yet, and how much of it was sent on the current stream.
#[derive(Debug)]
pub(crate) struct Unaccepted {
    chunks: VecDeque<Bytes>,
    accepted: u64,
    /// End of `chunks`.
    end: u64,
    sent: u64,
    close: bool,
    close_sent: bool,
    closed: bool,
    progress: watch::Sender<Progress>,
}

/// A writer, what it hands over, and the queue for it. The first byte has this offset.
pub(crate) fn stdin(offset: u64) -> (Stdin, mpsc::Receiver<Input>, Unaccepted) {
    let (input, inputs) = mpsc::channel(1);
    let (sender, progress) = watch::channel(Progress {
        accepted: offset,
        closed: false,
    });
    let unaccepted = Unaccepted {
        chunks: VecDeque::new(),
        accepted: offset,
        end: offset,
        sent: offset,
        close: false,
        close_sent: false,
        closed: false,
        progress: sender,
    };
    let stdin = Stdin {
        input,
        progress,
        written: offset,
    };
    (stdin, inputs, unaccepted)
}

// === impl Stdin ===

impl Stdin {
    /// Writes. Waits while the command does not read, once some 256 KiB are on their way.
    ///
    /// # Errors
    /// [`Error::StdinClosed`] if the command wants no more: it ended, closed its stdin, or is no longer followed.
    pub async fn write(&mut self, data: impl Into<Bytes>) -> Result<()> {
        let mut data = data.into();
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(CHUNK));
            self.written += chunk.len() as u64;
            self.hand_over(Input::Bytes(chunk)).await?;
        }
        Ok(())
    }

    /// Says that no more will come, and waits until all that was written is accepted.
    ///
    /// # Errors
    /// As [`Stdin::write`], if bytes were left.
    pub async fn close(mut self) -> Result<()> {
        self.hand_over(Input::Close).await?;
        self.wait(|progress| progress.closed).await
    }

    /// Waits until all that was written is accepted.
    ///
    /// # Errors
    /// As [`Stdin::write`].
    pub async fn flush(&mut self) -> Result<()> {
        let written = self.written;
        self.wait(|progress| progress.closed || progress.accepted >= written)
            .await
    }

    async fn hand_over(&self, input: Input) -> Result<()> {
        if self.progress.borrow().closed || self.input.send(input).await.is_err() {
            return Err(self.closed());
        }
        Ok(())
    }

    async fn wait(&mut self, until: impl FnMut(&Progress) -> bool) -> Result<()> {
        // That the exec is over counts as closed.
        _ = self.progress.wait_for(until).await;
        let accepted = self.progress.borrow().accepted;
        match accepted < self.written {
            true => Err(self.closed()),
            false => Ok(()),
        }
    }

    fn closed(&self) -> Error {
        Error::StdinClosed {
            accepted: self.progress.borrow().accepted,
        }
    }
}

// === impl Unaccepted ===

impl Unaccepted {
    /// Whether more may be taken over.
    pub(crate) fn has_room(&self) -> bool {
        !self.close && (self.closed || self.end - self.accepted < WINDOW)
    }

    pub(crate) fn push(&mut self, input: Input) {
        match input {
            _ if self.closed => {}
            Input::Bytes(bytes) => {
                self.end += bytes.len() as u64;
                self.chunks.push_back(bytes);
            }
            Input::Close => self.close = true,
        }
    }

    /// Whether there is something to send on this stream.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.closed && (self.sent < self.end || self.close && !self.close_sent)
    }

    /// Whether something was handed over and not heard of since.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.closed && (self.accepted < self.end || self.close)
    }

    /// The next message, if there is one to send.
    pub(crate) fn next(&mut self) -> Option<v1::StdinWrite> {
        if !self.has_unsent() {
            return None;
        }
        let offset = self.sent;
        let data = self.unsent_chunk();
        self.sent += data.len() as u64;
        let close = self.close && self.sent == self.end;
        self.close_sent = close;
        Some(v1::StdinWrite { offset, data, close })
    }

    fn unsent_chunk(&self) -> Bytes {
        let mut begin = self.accepted;
        for chunk in &self.chunks {
            let end = begin + chunk.len() as u64;
            if self.sent < end {
                // `sent - begin` is below the chunk's length.
                return chunk.slice((self.sent - begin) as usize..);
            }
            begin = end;
        }
        Bytes::new()
    }

    /// The server has accepted this much.
    pub(crate) fn accepted(&mut self, answer: v1::StdinAccepted) {
        while self.accepted < answer.offset.min(self.end) {
            let Some(mut chunk) = self.chunks.pop_front() else {
                break;
            };
            let done = (answer.offset - self.accepted).min(chunk.len() as u64);
            self.accepted += done;
            drop(chunk.split_to(done as usize));
            if !chunk.is_empty() {
                self.chunks.push_front(chunk);
            }
        }
        self.sent = self.sent.max(self.accepted);
        if answer.closed {
            self.closed = true;
            self.chunks.clear();
        }
        self.progress.send_replace(Progress {
            accepted: self.accepted,
            closed: self.closed,
        });
    }

    /// A new stream begins: what was not accepted is sent again.
    pub(crate) fn rewind(&mut self) {
        self.sent = self.accepted;
        self.close_sent = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(queue: &mut Unaccepted, offset: u64, closed: bool) {
        queue.accepted(v1::StdinAccepted { offset, closed });
    }

    fn sent(queue: &mut Unaccepted) -> Vec<(u64, String, bool)> {
        let mut all = Vec::new();
        while let Some(write) = queue.next() {
            all.push((
                write.offset,
                String::from_utf8(write.data.to_vec()).unwrap(),
                write.close,
            ));
        }
        all
    }

    fn bytes(text: &'static str) -> Input {
        Input::Bytes(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn what_was_not_accepted_is_sent_again() {
        let (_stdin, _inputs, mut queue) = stdin(0);
        queue.push(bytes("abc"));
        queue.push(bytes("defg"));
        assert_eq!(sent(&mut queue), [(0, "abc".into(), false), (3, "defg".into(), false)]);
        accept(&mut queue, 5, false);
        assert_eq!(sent(&mut queue), []);
        queue.rewind();
        assert_eq!(sent(&mut queue), [(5, "fg".into(), false)]);
        queue.push(bytes("h"));
        queue.push(Input::Close);
        assert_eq!(sent(&mut queue), [(7, "h".into(), true)]);
        queue.rewind();
        assert_eq!(sent(&mut queue), [(5, "fg".into(), false), (7, "h".into(), true)]);
        accept(&mut queue, 8, true);
        queue.rewind();
        assert_eq!(sent(&mut queue), []);
    }

    #[test]
    fn a_late_answer_moves_nothing_back() {
        let (_stdin, _inputs, mut queue) = stdin(100);
        queue.push(bytes("abc"));
        queue.rewind();
        accept(&mut queue, 103, false);
        accept(&mut queue, 101, false);
        accept(&mut queue, 999, false);
        assert_eq!(sent(&mut queue), []);
        queue.push(Input::Close);
        assert_eq!(sent(&mut queue), [(103, String::new(), true)]);
    }

    #[test]
    fn the_window_is_kept() {
        let (_stdin, _inputs, mut queue) = stdin(0);
        while queue.has_room() {
            queue.push(Input::Bytes(Bytes::from(vec![0; CHUNK])));
        }
        assert_eq!(queue.end, WINDOW);
        accept(&mut queue, 1, false);
        assert!(queue.has_room());
    }

    #[tokio::test]
    async fn a_writer_is_told_when_no_more_is_wanted() {
        let (mut stdin, mut inputs, mut queue) = stdin(0);
        stdin.write("abc").await.unwrap();
        queue.push(inputs.recv().await.unwrap());
        assert_eq!(sent(&mut queue), [(0, "abc".into(), false)]);
        accept(&mut queue, 2, true);
        assert!(matches!(
            stdin.write("x").await,
            Err(Error::StdinClosed { accepted: 2 })
        ));
        assert!(matches!(stdin.flush().await, Err(Error::StdinClosed { accepted: 2 })));
    }
}
