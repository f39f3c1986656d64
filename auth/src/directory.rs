//! Has a directory of small files changed? Kubernetes replaces a whole mounted directory by turning one symlink, and
//! people write files in place; times and numbers of the files behind the names tell both, for a few system calls.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

/// How the files of a directory looked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look(Vec<(OsString, u64, i64, i64, u64)>);

/// Lets something happen only so often.
#[derive(Debug)]
pub(crate) struct Pace {
    last: Option<Instant>,
    every: Duration,
}

// === impl Look ===

impl Look {
    pub(crate) fn at(dir: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // Gone since it was listed: the next look is another one.
            let Ok(meta) = fs::metadata(entry.path()) else { continue };
            if meta.is_file() {
                files.push((
                    entry.file_name(),
                    meta.ino(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                    meta.len(),
                ));
            }
        }
        files.sort();
        Ok(Self(files))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &OsString> {
        self.0.iter().map(|(name, ..)| name)
    }
}

// === impl Pace ===

impl Pace {
    /// The first time is now.
    pub(crate) fn at_once(every: Duration) -> Self {
        Self { last: None, every }
    }

    /// The first time is `every` from now.
    pub(crate) fn begun(every: Duration) -> Self {
        Self {
            last: Some(Instant::now()),
            every,
        }
    }

    /// Whether it is time again. If so, the time begins anew.
    pub(crate) fn due(&mut self) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= self.every);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}
