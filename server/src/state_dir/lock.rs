//! One server a state directory: two would both look after the same sandboxes.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    path::Path,
    process, thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::StateError;

/// The directory is ours until this is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

// A server that was just killed may not be quite gone.
const WAIT: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);

// === impl Lock ===

impl Lock {
    pub(super) fn take(dir: &Path) -> Result<Self, StateError> {
        let unusable = |error| StateError::Unusable(dir.to_owned(), error);
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(dir.join("lock")).map_err(unusable)?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if begun.elapsed() < WAIT => thread::sleep(POLL),
                Err(Errno::WOULDBLOCK) => {
                    return Err(StateError::Taken {
                        path: dir.to_owned(),
                        holder: holder(&mut file),
                    });
                }
                Err(error) => return Err(unusable(error.into())),
            }
        }
        sign(&mut file).map_err(unusable)?;
        Ok(Self { _file: file })
    }
}

/// For whoever comes second.
fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", process::id())
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // Best effort: the holder may be about to write it.
    _ = file.read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) => format!("pid {pid}"),
        Err(_) => "its pid is not known".to_owned(),
    }
}
