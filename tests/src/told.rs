//! What a follower is told of one exec, checked as it comes.

use sandgate::{
    Event, Exec, OutputStream,
    v1::{ExecExit, ExecOffsets, exec_exit::Status},
};

/// All that one follower was told.
#[derive(Debug, Default)]
pub struct Told {
    /// Of stdout, without what is gone.
    pub stdout: Vec<u8>,
    /// Of stderr, without what is gone.
    pub stderr: Vec<u8>,
    /// Bytes that were said to be gone: stream, first, first after.
    pub gaps: Vec<(OutputStream, u64, u64)>,
    /// How often it was told that it runs.
    pub started: u32,
    /// How it ended.
    pub exit: Option<ExecExit>,
    /// How long its streams are, told at their end.
    pub total: Option<ExecOffsets>,
    next: ExecOffsets,
}

// === impl Told ===

impl Told {
    /// Follows to the end of events, and gives the error that ended them, if one did.
    pub async fn follow(exec: &mut Exec) -> (Self, Option<sandgate::Error>) {
        let mut told = Self::default();
        loop {
            match exec.next().await {
                Some(Ok(event)) => told.take(event),
                Some(Err(error)) => return (told, Some(error)),
                None => return (told, None),
            }
        }
    }

    /// Takes an event. Fails on a byte out of its place.
    pub fn take(&mut self, event: Event) {
        assert!(self.total.is_none(), "{event:?} after the end");
        match event {
            Event::Started(_) => self.started += 1,
            Event::Output { stream, offset, data } => {
                assert_eq!(offset, *self.next(stream), "{stream:?} is out of order");
                *self.next(stream) += data.len() as u64;
                self.bytes(stream).extend_from_slice(&data);
            }
            Event::Gap { stream, from, to } => {
                assert_eq!(from, *self.next(stream), "a gap begins where the last byte ended");
                *self.next(stream) = to;
                self.gaps.push((stream, from, to));
            }
            Event::Exited(exit) => {
                assert!(self.exit.is_none(), "it exited twice");
                self.exit = Some(exit);
            }
            Event::Ended(total) => self.total = Some(total),
            other => panic!("{other:?}"),
        }
    }

    /// It is all there was to tell: every byte, one start, one exit with that code, and the end.
    pub fn check_whole(&self, stdout: &[u8], stderr: &[u8], code: i32) {
        assert_same("stdout", &self.stdout, stdout);
        assert_same("stderr", &self.stderr, stderr);
        assert_eq!(self.gaps, [], "nothing is missing");
        assert_eq!(self.started, 1);
        assert_eq!(self.exit.as_ref().unwrap().status, Some(Status::Code(code)));
        assert_eq!(self.total, Some(self.next));
    }

    /// What there is of each stream is its beginning, and the rest is said to be gone.
    pub fn check_beginning(&self, stdout: &[u8], stderr: &[u8]) {
        assert!(stdout.starts_with(&self.stdout), "stdout is not what was written");
        assert!(stderr.starts_with(&self.stderr), "stderr is not what was written");
        let ends = [
            (OutputStream::Stdout, self.stdout.len()),
            (OutputStream::Stderr, self.stderr.len()),
        ];
        for (stream, from, to) in &self.gaps {
            assert!(
                ends.contains(&(*stream, usize::try_from(*from).unwrap())),
                "only the end may be gone"
            );
            assert!(to > from);
        }
    }

    /// How far each stream is, with what is gone.
    #[must_use]
    pub fn offsets(&self) -> ExecOffsets {
        self.next
    }

    fn next(&mut self, stream: OutputStream) -> &mut u64 {
        match stream {
            OutputStream::Stdout => &mut self.next.stdout,
            OutputStream::Stderr => &mut self.next.stderr,
        }
    }

    fn bytes(&mut self, stream: OutputStream) -> &mut Vec<u8> {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

/// As `assert_eq`, but shows only where two long texts part.
pub fn assert_same(what: &str, got: &[u8], wanted: &[u8]) {
    let parted = got.iter().zip(wanted).position(|(a, b)| a != b);
    let parted = parted.unwrap_or(got.len().min(wanted.len()));
    let near = |bytes: &[u8]| {
        String::from_utf8_lossy(&bytes[parted.min(bytes.len())..bytes.len().min(parted + 80)]).into_owned()
    };
    assert!(
        got == wanted,
        "{what}: {} bytes, not {}; at {parted} it is {:?}, not {:?}",
        got.len(),
        wanted.len(),
        near(got),
        near(wanted)
    );
}
