//! The spill files of one log.
//!
//! Segments are appended to numbered files of limited size, so that dropping old segments frees disk space by
//! deleting whole files. Everything here blocks; it runs on blocking threads. There is one [`Disk`] per log, and who
//! holds it is the only writer. Readers need no more than a [`Location`].

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use crate::{
    format::{self, HEADER},
    segment::{Body, Span},
};

const HEADS: &str = "heads";
const EXTENSION: &str = "seg";

/// Where a segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) file: u64,
    pub(crate) at: u64,
}

#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    rotate_bytes: u64,
    current: Option<Current>,
    next: u64,
    /// Whether the directory is ours already: before that it may hold what a former log of the same id left.
    claimed: bool,
}

#[derive(Debug)]
struct Current {
    number: u64,
    file: File,
    len: u64,
}

/// Work that dropping segments leaves behind.
#[derive(Debug, Default)]
pub(crate) struct Chores {
    pub(crate) delete: Vec<u64>,
    pub(crate) heads: Option<Vec<u8>>,
}

// === impl Disk ===

impl Disk {
    pub(crate) fn new(dir: PathBuf, rotate_bytes: u64) -> Self {
        Disk {
            dir,
            rotate_bytes,
            current: None,
            next: 0,
            claimed: false,
        }
    }

    /// For a directory whose files are to be kept; new ones are numbered from `next`.
    pub(crate) fn recovered(dir: PathBuf, rotate_bytes: u64, next: u64) -> Self {
        Disk {
            next,
            claimed: true,
            ..Disk::new(dir, rotate_bytes)
        }
    }

    pub(crate) fn write(&mut self, span: &Span, body: &Body) -> io::Result<Location> {
        let bytes = format::encode(span, body);
        if self
            .current
            .as_ref()
            .is_some_and(|current| current.len + bytes.len() as u64 > self.rotate_bytes)
        {
            self.current = None;
        }
        let current = match &mut self.current {
            Some(current) => current,
            None => {
                let opened = self.open()?;
                self.current.insert(opened)
            }
        };
        let (file, at) = (current.number, current.len);
        if let Err(error) = current.file.write_all_at(&bytes, at) {
            // A torn segment would end a later recovery before its time. What cannot be cut off is left to that.
            let _ = current.file.set_len(at);
            self.current = None;
            return Err(error);
        }
        current.len += bytes.len() as u64;
        Ok(Location { file, at })
    }

    fn open(&mut self) -> io::Result<Current> {
        self.claim()?;
        let number = self.next;
        self.next += 1;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(segment_path(&self.dir, number))?;
        Ok(Current { number, file, len: 0 })
    }

    fn claim(&mut self) -> io::Result<()> {
        if !self.claimed {
            self.remove()?;
            self.claimed = true;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)
    }

    /// The next segment begins a new file if the current one is `number`.
    pub(crate) fn leave(&mut self, number: u64) {
        self.current.take_if(|current| current.number == number);
    }

    /// Gives the file descriptor back. The next segment begins a new file.
    pub(crate) fn close(&mut self) {
        self.current = None;
    }

    pub(crate) fn perform(&mut self, chores: Chores) {
        if let Some(bytes) = chores.heads
            && let Err(error) = self.write_heads(&bytes)
        {
            tracing::debug!(dir = %self.dir.display(), %error, "heads not saved");
        }
        for number in chores.delete {
            if let Err(error) = std::fs::remove_file(segment_path(&self.dir, number)) {
                tracing::debug!(dir = %self.dir.display(), number, %error, "spill file not deleted");
            }
        }
    }

    /// Whether files of this log may be in its directory.
    pub(crate) fn claimed(&self) -> bool {
        self.claimed
    }

    fn write_heads(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.claim()?;
        let temporary = self.dir.join("heads.new");
        std::fs::write(&temporary, bytes)?;
        std::fs::rename(temporary, self.dir.join(HEADS))
    }

    /// Deletes everything.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        self.current = None;
        remove_dir(&self.dir)
    }
}

pub(crate) fn remove_dir(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:08}.{EXTENSION}"))
}

/// Numbers of the segment files in a directory, in order. A missing directory has none.
pub(crate) fn segment_files(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let path = PathBuf::from(entry?.file_name());
        if path.extension().is_some_and(|extension| extension == EXTENSION)
            && let Some(number) = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

pub(crate) fn read_heads(dir: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(dir.join(HEADS))
}

/// Reads a segment back. An error also if another one lies there.
pub(crate) fn read(dir: &Path, location: Location, span: &Span) -> io::Result<Body> {
    let file = File::open(segment_path(dir, location.file))?;
    let header = read_header(&file, location.at)?;
    if header.span != *span {
        return Err(format::damaged("place"));
    }
    read_body(&file, location.at, &header)
}

pub(crate) fn read_header(file: &File, at: u64) -> io::Result<format::Header> {
    let mut bytes = [0; HEADER];
    file.read_exact_at(&mut bytes, at)?;
    format::decode_header(&bytes)
}

pub(crate) fn read_body(file: &File, at: u64, header: &format::Header) -> io::Result<Body> {
    let mut bytes = vec![0; format::body_len(&header.span) as usize];
    file.read_exact_at(&mut bytes, at + HEADER as u64)?;
    format::decode_body(header, Bytes::from(bytes))
}
