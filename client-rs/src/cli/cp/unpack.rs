//! A tar stream into a directory of this machine. The stream comes from a sandbox and is not trusted.
//!
//! Of the `tar` crate only the parser is used. A name is taken beneath the destination: an absolute one or one with `..`
//! fails the entry. Directories on the way are opened one by one, and a symlink is never followed, whoever made it, so
//! nothing is written elsewhere, also while others change the destination. Symlinks that lead out of the destination are
//! not made unless asked for. Set-id bits, owners, devices and hard links are not taken over. A file appears whole, by
//! renaming.

mod directory;
mod names;

use std::{
    cell::Cell,
    ffi::OsString,
    io::{self, Read, Write as _},
    path::Path,
    rc::Rc,
};

use rustix::fs::{AtFlags, Timespec, Timestamps};
use tar::{Archive, Entry, EntryType};

use self::{
    directory::Directories,
    names::{Name, stays_inside},
};
use super::Trouble;
use crate::cli::failure::plain;

/// What names, links and attributes of one entry may take in memory.
const MAX_EXTENSIONS: u64 = 1 << 20;
/// Entries that failed and are listed; others are counted.
const MAX_TROUBLES: usize = 1_000;
const CHUNK: usize = 64 << 10;

/// What became of an archive.
#[derive(Debug, Default)]
pub(super) struct Unpacked {
    /// Entries made.
    pub(super) entries: u64,
    /// Bytes of content written.
    pub(super) bytes: u64,
    /// Entries that were not, the first of them.
    pub(super) troubles: Vec<Trouble>,
    /// How many those are in all.
    pub(super) failed: u64,
}

/// Unpacks into `root`, which exists.
///
/// # Errors
/// The stream is cut or no tar, or `root` can't be opened. Entries that were whole by then are in place.
pub(super) fn unpack(stream: impl Read, root: &Path, keep_links: bool) -> io::Result<Unpacked> {
    let left = Rc::new(Cell::new(Some(MAX_EXTENSIONS)));
    let mut archive = Archive::new(Metered {
        stream,
        left: Rc::clone(&left),
    });
    let mut unpack = Unpack {
        directories: Directories::open(root)?,
        keep_links,
        outcome: Unpacked::default(),
        buffer: vec![0; CHUNK],
    };
    for entry in archive.entries()? {
        let mut entry = entry?;
        left.set(None);
        unpack.entry(&mut entry)?;
        // What the parser would pass over is read here, so that behind it only headers are left to be metered.
        io::copy(&mut entry, &mut io::sink())?;
        left.set(Some(MAX_EXTENSIONS));
    }
    left.set(None);
    // Without this a stream that was cut behind the archive's end would pass for whole.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    for (name, error) in unpack.directories.finish() {
        unpack.outcome.trouble(&name, &plain(&error));
    }
    Ok(unpack.outcome)
}

struct Unpack {
    directories: Directories,
    keep_links: bool,
    outcome: Unpacked,
    buffer: Vec<u8>,
}

/// Bounds what the parser reads for itself: it keeps long names and attributes in memory.
struct Metered<R> {
    stream: R,
    left: Rc<Cell<Option<u64>>>,
}

/// Why an entry was not made.
enum Fault {
    /// Others go on.
    Entry(String),
    /// The stream can't be read on.
    Stream(io::Error),
}

// === impl Unpack ===

impl Unpack {
    /// Makes one entry. An error is of the stream.
    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> io::Result<()> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        if kind.is_gnu_sparse() {
            // It may be of any size and take a few bytes of the stream.
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the archive has sparse entries",
            ));
        }
        let raw = entry.path_bytes().into_owned();
        let made = Name::new(&raw)
            .map_err(|why| Fault::Entry(why.into()))
            .and_then(|name| match name {
                None if kind.is_dir() => Ok(None),
                None => Err(Fault::Entry("the entry has no name".into())),
                Some(name) => self.make(entry, &name, kind).map(Some),
            });
        match made {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                self.outcome.entries += 1;
                self.outcome.bytes += bytes;
            }
            Err(Fault::Entry(why)) => self.outcome.trouble(&raw, &why),
            Err(Fault::Stream(error)) => return Err(error),
        }
        Ok(())
    }

    fn make<R: Read>(&mut self, entry: &mut Entry<'_, R>, name: &Name, kind: EntryType) -> Result<u64, Fault> {
        let times = modified(entry);
        match kind {
            EntryType::Regular | EntryType::Continuous => self.file(entry, name, times),
            EntryType::Directory => {
                let mode = entry.header().mode().unwrap_or(0o755);
                self.directories.make(name, mode, times)?;
                Ok(0)
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.symlink(name, &target, times)?;
                Ok(0)
            }
            EntryType::Link => Err(Fault::Entry("hard links are not made".into())),
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                Err(Fault::Entry("devices and FIFOs are not made".into()))
            }
            _ => Err(Fault::Entry("the entry is of a type that is not known".into())),
        }
    }

    fn file<R: Read>(&mut self, entry: &mut Entry<'_, R>, name: &Name, times: Timestamps) -> Result<u64, Fault> {
        let mode = entry.header().mode().unwrap_or(0o644);
        let parent = self.directories.parent(name)?;
        let (mut file, unfinished) = parent.temporary_file(mode)?;
        let mut written = 0;
        loop {
            let read = match entry.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::Stream(error)),
            };
            file.write_all(&self.buffer[..read])?;
            written += read as u64;
        }
        if written != entry.size() {
            return Err(Fault::Stream(io::ErrorKind::UnexpectedEof.into()));
        }
        rustix::fs::futimens(&file, &times).map_err(io::Error::from)?;
        unfinished.finish(name.last())?;
        Ok(written)
    }

    fn symlink(&mut self, name: &Name, target: &[u8], times: Timestamps) -> Result<(), Fault> {
        if !self.keep_links && !stays_inside(name, target) {
            return Err(Fault::Entry(format!(
                "the link to {} leads out of the destination: make it with --keep-links",
                String::from_utf8_lossy(target)
            )));
        }
        let parent = self.directories.parent(name)?;
        let unfinished = parent.temporary_link(target)?;
        rustix::fs::utimensat(
            unfinished.directory(),
            unfinished.name(),
            &times,
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_err(io::Error::from)?;
        unfinished.finish(name.last())?;
        Ok(())
    }
}

fn modified<R: Read>(entry: &mut Entry<'_, R>) -> Timestamps {
    let seconds = entry
        .header()
        .mtime()
        .ok()
        .and_then(|seconds| i64::try_from(seconds).ok());
    let exact = entry.pax_extensions().ok().flatten().and_then(|extensions| {
        let found = extensions
            .flatten()
            .filter(|extension| extension.key_bytes() == b"mtime")
            .last()?;
        names::time(found.value().ok()?)
    });
    let (tv_sec, tv_nsec) = exact.unwrap_or((seconds.unwrap_or_default(), 0));
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

// === impl Unpacked ===

impl Unpacked {
    fn trouble(&mut self, name: &[u8], why: &str) {
        self.failed += 1;
        if self.troubles.len() < MAX_TROUBLES {
            let name: OsString = std::os::unix::ffi::OsStringExt::from_vec(name.to_vec());
            self.troubles.push(Trouble::here(Path::new(&name), why));
        }
    }
}

// === impl Metered ===

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        if let Some(left) = self.left.get() {
            let left = left.checked_sub(read as u64).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    "names or attributes in the archive are too large",
                )
            })?;
            self.left.set(Some(left));
        }
        Ok(read)
    }
}

// === impl Fault ===

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Entry(plain(&error))
    }
}

#[cfg(test)]
mod tests;
