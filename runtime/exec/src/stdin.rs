//! stdin of an exec: bytes with offsets, so that a write repeated after a lost answer arrives once.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{
    io::Errno,
    termios::{LocalModes, SpecialCodeIndex, tcgetattr},
};
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{StdinAccepted, StdinWrite},
    v1::ErrorReason,
};
use tokio::{io::unix::AsyncFd, sync::Mutex as AsyncMutex, time::timeout};

/// The writing side of an exec's stdin.
pub(crate) struct Stdin {
    writer: Mutex<Option<String>>,
    // Held while writing, so that writes are one after the other. `None` once it is closed.
    end: AsyncMutex<Option<AsyncFd<OwnedFd>>>,
    accepted: AtomicU64,
    closed: AtomicBool,
    terminal: bool,
    /// The last byte did not end a line.
    in_line: AtomicBool,
}

/// What a terminal takes for the end of input, at the start of a line, unless it was told otherwise.
const CTRL_D: u8 = 4;
/// Keys after which a terminal is at the start of a line: Ctrl-C and Ctrl-\ throw away what was typed.
const LINE_ENDS: &[u8] = &[b'\n', b'\r', CTRL_D, 3, 28];

// === impl Stdin ===

impl Stdin {
    pub(crate) fn new(end: OwnedFd, terminal: bool) -> io::Result<Self> {
        Ok(Self {
            writer: Mutex::new(None),
            end: AsyncMutex::new(Some(sandgate_sys::readiness(end)?)),
            accepted: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            terminal,
            in_line: AtomicBool::new(false),
        })
    }

    pub(crate) fn offset(&self) -> u64 {
        self.accepted.load(Ordering::Acquire)
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Writes, waiting at most `max_wait` for the program to read. The answer says how far it came.
    pub(crate) async fn write(
        &self,
        writer: &str,
        write: &StdinWrite,
        max_wait: Duration,
    ) -> Result<StdinAccepted, Refusal> {
        self.claim(writer)?;
        // On time-out what was accepted stays accepted: the counter moves with each write of the pipe.
        match timeout(max_wait, self.write_all(write)).await {
            Ok(outcome) => outcome?,
            Err(_) => tracing::debug!("the program does not read its stdin"),
        }
        Ok(StdinAccepted {
            offset: self.offset(),
            closed: !self.is_open(),
        })
    }

    /// Closes it for good, when the exec is over.
    pub(crate) fn shut(&self) {
        self.closed.store(true, Ordering::Release);
        if let Ok(mut end) = self.end.try_lock() {
            *end = None;
        }
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
        let mut end = self.end.lock().await;
        let accepted = self.offset();
        let Some(repeated) = accepted.checked_sub(write.offset) else {
            // Callers send ahead: behind a write that the program did not want, the next one is no gap of theirs.
            if end.is_none() || !self.is_open() {
                return Err(self.closed_refusal());
            }
            let message = format!(
                "the write begins at {}, and {accepted} bytes were accepted",
                write.offset
            );
            return Err(Refusal::new(ErrorReason::StdinGap, message).with("accepted", accepted));
        };
        let data = usize::try_from(repeated)
            .ok()
            .and_then(|skip| write.data.get(skip..))
            .unwrap_or_default();
        if end.is_none() && data.is_empty() {
            return Ok(());
        }
        let Some(fd) = end.as_ref().filter(|_| self.is_open()) else {
            return Err(self.closed_refusal());
        };
        if self.write_bytes(fd, data).await.is_err() {
            self.closed.store(true, Ordering::Release);
            *end = None;
            return Err(self.closed_refusal());
        }
        // A close that was sent with a repeated write counts only if all before it is there.
        if write.close && self.offset() == write.offset + write.data.len() as u64 {
            if self.terminal {
                // The terminal stays: it is also where output comes from.
                for key in self.end_of_file(fd.get_ref()) {
                    let _ = self.push(fd, &[key]).await;
                }
            }
            self.closed.store(true, Ordering::Release);
            *end = None;
        }
        Ok(())
    }

    async fn write_bytes(&self, fd: &AsyncFd<OwnedFd>, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = self.push(fd, data).await?;
            self.accepted.fetch_add(written as u64, Ordering::AcqRel);
            let last = data[..written].last();
            self.in_line
                .store(last.is_some_and(|key| !LINE_ENDS.contains(key)), Ordering::Release);
            data = &data[written..];
        }
        Ok(())
    }

    /// The keys that end the input. In the midst of a line the first one only ends the line.
    fn end_of_file(&self, terminal: &OwnedFd) -> Vec<u8> {
        let lines = tcgetattr(terminal)
            .ok()
            .filter(|modes| modes.local_modes.contains(LocalModes::ICANON));
        match lines {
            Some(modes) => {
                let presses = if self.in_line.load(Ordering::Acquire) { 2 } else { 1 };
                vec![modes.special_codes[SpecialCodeIndex::VEOF]; presses]
            }
            None => vec![CTRL_D],
        }
    }

    async fn push(&self, fd: &AsyncFd<OwnedFd>, data: &[u8]) -> io::Result<usize> {
        loop {
            let mut ready = fd.writable().await?;
            match ready.try_io(|fd| rustix::io::write(fd, data).map_err(io::Error::from)) {
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    fn closed_refusal(&self) -> Refusal {
        let accepted = self.offset();
        let message = format!("stdin is closed after {accepted} bytes");
        Refusal::new(ErrorReason::StdinClosed, message).with("accepted", accepted)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _};

    use rustix::pipe::{PipeFlags, pipe_with};

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
        let (read, end) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&end, true).unwrap();
        let stdin = Stdin::new(end, false).unwrap();
        let wait = Duration::from_millis(50);
        for (offset, data, accepted) in [(0, "abc", 3), (0, "abc", 3), (1, "bcde", 5), (5, "", 5)] {
            assert_eq!(
                stdin
                    .write("w", &write(offset, data, false), wait)
                    .await
                    .unwrap()
                    .offset,
                accepted
            );
        }
        assert_eq!(
            stdin.write("w", &write(9, "x", false), wait).await.unwrap_err().reason,
            ErrorReason::StdinGap
        );
        assert_eq!(
            stdin.write("v", &write(5, "x", false), wait).await.unwrap_err().reason,
            ErrorReason::StdinTaken
        );
        for _ in 0..2 {
            assert!(stdin.write("w", &write(5, "f", true), wait).await.unwrap().closed);
        }
        // Also what was sent ahead of that answer.
        for offset in [6, 7] {
            assert_eq!(
                stdin
                    .write("w", &write(offset, "x", false), wait)
                    .await
                    .unwrap_err()
                    .reason,
                ErrorReason::StdinClosed
            );
        }
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "abcdef");
    }

    #[tokio::test]
    async fn a_program_that_does_not_read_holds_the_writer_back() {
        let (_read, end) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&end, true).unwrap();
        let stdin = Stdin::new(end, false).unwrap();
        let data = "x".repeat(1 << 20);
        let answer = stdin
            .write("", &write(0, &data, true), Duration::from_millis(20))
            .await
            .unwrap();
        assert!(answer.offset > 0 && answer.offset < 1 << 20 && !answer.closed);
    }
}
