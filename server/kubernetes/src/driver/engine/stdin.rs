//! An exec's stdin: one writer, and each byte once, as our runtime does it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{StdinAccepted, StdinWrite},
    v1::ErrorReason,
};
use tokio::{
    sync::{Mutex as AsyncMutex, mpsc},
    time::timeout,
};

use crate::driver::inside::Input;

const MAX_WRITE: usize = 1 << 20;
const MAX_WRITER: usize = 64;
/// What is handed on at once. With the driver's queue this is as much as a pipe holds.
const PIECE: usize = 16 << 10;

/// A stdin that can be written. Bytes count as accepted once they are on their way to the pod.
#[derive(Debug)]
pub(super) struct Stdin {
    queue: AsyncMutex<Option<mpsc::Sender<Input>>>,
    writer: Mutex<Option<String>>,
    accepted: AtomicU64,
    open: AtomicBool,
}

// === impl Stdin ===

impl Stdin {
    pub(super) fn new(queue: mpsc::Sender<Input>) -> Self {
        Self {
            queue: AsyncMutex::new(Some(queue)),
            writer: Mutex::default(),
            accepted: AtomicU64::new(0),
            open: AtomicBool::new(true),
        }
    }

    pub(super) fn accepted(&self) -> StdinAccepted {
        StdinAccepted {
            offset: self.accepted.load(Ordering::Acquire),
            closed: !self.open.load(Ordering::Acquire),
        }
    }

    /// Nobody reads it any more.
    pub(super) fn shut(&self) {
        self.open.store(false, Ordering::Release);
    }

    pub(super) async fn write(
        &self,
        writer: &str,
        write: &StdinWrite,
        wait: Duration,
    ) -> Result<StdinAccepted, Refusal> {
        if write.data.len() > MAX_WRITE {
            return Err(Refusal::invalid("stdin.data", "at most 1 MiB a write"));
        }
        if writer.len() > MAX_WRITER {
            return Err(Refusal::invalid("writer", "at most 64 bytes"));
        }
        self.claim(writer)?;
        // On time-out what was accepted stays accepted: the counter moves with each piece.
        match timeout(wait, self.write_all(write)).await {
            Ok(outcome) => outcome?,
            Err(_) => tracing::debug!("the program does not read its stdin"),
        }
        Ok(self.accepted())
    }

    fn claim(&self, writer: &str) -> Result<(), Refusal> {
        let mut held = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_deref() {
            Some(holder) if holder != writer => Err(Refusal::new(
                ErrorReason::StdinTaken,
                "another writer holds the stdin of this exec",
            )),
            Some(_) => Ok(()),
            None => {
                *held = Some(writer.to_owned());
                Ok(())
            }
        }
    }

    async fn write_all(&self, write: &StdinWrite) -> Result<(), Refusal> {
        let mut queue = self.queue.lock().await;
        let accepted = self.accepted.load(Ordering::Acquire);
        let is_open = self.open.load(Ordering::Acquire) && queue.is_some();
        let Some(repeated) = accepted.checked_sub(write.offset) else {
            if !is_open {
                return Err(self.closed());
            }
            let message = format!(
                "the write begins at {}, and {accepted} bytes were accepted",
                write.offset
            );
            return Err(Refusal::new(ErrorReason::StdinGap, message).with("accepted", accepted));
        };
        let skip = usize::try_from(repeated).unwrap_or(usize::MAX).min(write.data.len());
        let mut data = write.data.slice(skip..);
        let Some(sender) = queue.as_ref().filter(|_| is_open) else {
            return if data.is_empty() { Ok(()) } else { Err(self.closed()) };
        };
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(PIECE));
            self.hand_on(sender, piece).await?;
        }
        // A close that was sent with a repeated write counts only if all before it is there.
        if write.close && self.accepted.load(Ordering::Acquire) == write.offset + write.data.len() as u64 {
            let _ = sender.send(Input::Close).await;
            self.shut();
            *queue = None;
        }
        Ok(())
    }

    async fn hand_on(&self, sender: &mpsc::Sender<Input>, piece: Bytes) -> Result<(), Refusal> {
        // Dropped while it waits, it has handed on nothing.
        let Ok(place) = sender.reserve().await else {
            self.shut();
            return Err(self.closed());
        };
        let length = piece.len() as u64;
        place.send(Input::Data(piece));
        self.accepted.fetch_add(length, Ordering::AcqRel);
        Ok(())
    }

    fn closed(&self) -> Refusal {
        let accepted = self.accepted.load(Ordering::Acquire);
        let message = format!("stdin is closed after {accepted} bytes");
        Refusal::new(ErrorReason::StdinClosed, message).with("accepted", accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, data: &str, close: bool) -> StdinWrite {
        StdinWrite {
            offset,
            data: data.to_owned().into(),
            close,
        }
    }

    #[tokio::test]
    async fn repeats_arrive_once_and_gaps_are_refused() {
        let (sender, mut received) = mpsc::channel(64);
        let stdin = Stdin::new(sender);
        let wait = Duration::from_secs(5);
        for (offset, data, accepted) in [(0, "abc", 3), (0, "abc", 3), (1, "bcde", 5), (5, "", 5)] {
            let answer = stdin.write("w", &write(offset, data, false), wait).await.unwrap();
            assert_eq!(answer.offset, accepted);
        }
        let reason = |answer: Result<StdinAccepted, Refusal>| answer.unwrap_err().reason;
        assert_eq!(
            reason(stdin.write("w", &write(9, "x", false), wait).await),
            ErrorReason::StdinGap
        );
        assert_eq!(
            reason(stdin.write("v", &write(5, "x", false), wait).await),
            ErrorReason::StdinTaken
        );
        for _ in 0..2 {
            assert!(stdin.write("w", &write(5, "f", true), wait).await.unwrap().closed);
        }
        assert_eq!(
            reason(stdin.write("w", &write(6, "x", false), wait).await),
            ErrorReason::StdinClosed
        );
        let mut text = Vec::new();
        while let Some(Input::Data(bytes)) = received.recv().await {
            text.extend_from_slice(&bytes);
        }
        assert_eq!(text, b"abcdef");
    }

    #[tokio::test]
    async fn a_program_that_does_not_read_holds_the_writer_back() {
        let (sender, _received) = mpsc::channel(1);
        let stdin = Stdin::new(sender);
        let data = "x".repeat(1 << 20);
        let answer = stdin
            .write("", &write(0, &data, true), Duration::from_millis(20))
            .await
            .unwrap();
        assert!(answer.offset > 0 && answer.offset < 1 << 20 && !answer.closed);
    }
}
