//! What happens to a command, as its follower is told.

use bytes::Bytes;

use crate::v1;

/// Which of a command's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// stdout; also a terminal's only stream.
    Stdout,
    /// stderr.
    Stderr,
}

/// Something that happened to an exec. Each is told once, in order.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// It runs.
    Started(v1::ExecStarted),
    /// It could not be started. Nothing follows.
    StartFailed(v1::StartFailure),
    /// Bytes that it wrote, at most 64 KiB.
    Output {
        /// To which stream.
        stream: OutputStream,
        /// Where in the stream they begin.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Bytes of a stream that are gone. What follows goes on at `to`.
    Gap {
        /// Of which stream.
        stream: OutputStream,
        /// The first that is gone.
        from: u64,
        /// The first after them.
        to: u64,
    },
    /// The program ended. All that it wrote itself came before. What it left running may still write.
    Exited(v1::ExecExit),
    /// Both streams are at their end, with their sizes. Nothing follows.
    Ended(v1::ExecOffsets),
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It ran, and ended.
    Exited(v1::ExecExit),
    /// It could not be started.
    StartFailed(v1::StartFailure),
}

// === impl OutputStream ===

impl OutputStream {
    /// Nothing for a stream that this version does not know.
    pub(crate) fn from_wire(stream: i32) -> Option<Self> {
        match v1::OutputStream::try_from(stream) {
            Ok(v1::OutputStream::Stdout) => Some(Self::Stdout),
            Ok(v1::OutputStream::Stderr) => Some(Self::Stderr),
            Ok(v1::OutputStream::Unspecified) | Err(_) => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Its exit code, if it ended by itself.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Exited(v1::ExecExit {
                status: Some(v1::exec_exit::Status::Code(code)),
                ..
            }) => Some(*code),
            _ => None,
        }
    }

    /// It ended by itself with code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.code() == Some(0)
    }
}
