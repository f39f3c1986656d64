//! Unpacking a tar stream. Of the `tar` crate only the parser is used; what an entry does to the file system is here.
//!
//! A name is taken beneath the destination: leading `/` go, a `..` fails the entry, and directories on the way are opened
//! beneath the destination by the kernel, so that a symlink that was unpacked before leads nowhere else. Files are owned
//! by the call's user, whoever the archive says; permission bits are kept, set-id bits too, which give nothing but that
//! user's own rights. The destination's own mode and time are left alone (`./`).

mod destination;
mod reader;

use std::{io::Read as _, path::Path};

use rustix::fs::Timespec;
use sandgate_proto::{
    runtime::v1::{UploadResponse, upload_request::Message},
    v1::ErrorReason,
};
use tar::{Archive, Entry, EntryType};

use self::{
    destination::Destination,
    reader::{ChunkReader, Meter},
};
use super::{
    CHUNK,
    directories::Directories,
    incoming::{Incoming, set_link_modified},
    upload::{Tally, outside, path_of, unfit},
};
use crate::{
    atomic::{self, Shared},
    error::{Error, Result},
    path::{self, PathArg},
    view::View,
};

struct Unpack<'a> {
    shared: &'a Shared,
    start: &'a PathArg,
    destination: Destination,
    directories: Directories,
    tally: Tally,
    buffer: Vec<u8>,
}

/// What an entry's header says.
struct Member {
    /// Relative to the destination, without `.` and empty components. Empty: the destination itself.
    name: Vec<u8>,
    kind: EntryType,
    size: u64,
    mode: Option<u32>,
    modified: Option<Timespec>,
    link: Vec<u8>,
}

/// Why an entry was not unpacked.
enum Fault {
    /// Others go on.
    Entry(Error),
    /// The stream itself can't be read on.
    Stream(std::io::Error),
}

type Unpacked<T> = std::result::Result<T, Fault>;

/// Unpacks the chunks of `messages` in `directory`, which is made if it is missing. The thread acts as the user already.
pub(super) fn unpack(
    view: &View,
    directory: &PathArg,
    shared: &Shared,
    messages: impl Iterator<Item = Result<Message>>,
) -> Result<UploadResponse> {
    let destination =
        Destination::new(view.make_directories(directory.as_path())?).map_err(|error| Error::io(error, directory))?;
    let mut unpack = Unpack {
        shared,
        start: directory,
        destination,
        directories: Directories::default(),
        tally: Tally::default(),
        buffer: vec![0; CHUNK],
    };
    let meter = Meter::default();
    let mut archive = Archive::new(ChunkReader::new(messages, &meter));
    let outcome = unpack.run(&mut archive, &meter);
    let whole = meter.end();
    let mut reader = archive.into_inner();
    // Padding behind the end is read so that the sender is not held up.
    let outcome = outcome.and_then(|()| std::io::copy(&mut reader, &mut std::io::sink()).map(drop));
    let outcome = outcome.map_err(|error| reader.cause(error)).and(whole);
    unpack.directories.finish(view, |error| unpack.tally.failed(error));
    unpack.tally.finish(outcome)
}

// === impl Unpack ===

impl Unpack<'_> {
    fn run<R: std::io::Read>(&mut self, archive: &mut Archive<R>, meter: &Meter) -> std::io::Result<()> {
        meter.allow(0);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let stored = entry.raw_file_position().saturating_add(stored_size(&mut entry)?);
            meter.unlimited();
            let outcome = self.entry(&mut entry);
            drop(entry);
            match outcome {
                Ok(()) => {}
                Err(Fault::Entry(error)) => self.tally.failed(error),
                Err(Fault::Stream(error)) => return Err(error),
            }
            // The parser passes over the rest of the entry, and then holds the next extension headers in memory.
            meter.allow(stored);
        }
        meter.unlimited();
        Ok(())
    }

    fn entry<R: std::io::Read>(&mut self, entry: &mut Entry<'_, R>) -> Unpacked<()> {
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            return Ok(());
        }
        let raw = entry.path_bytes().into_owned();
        let shown = |unpack: &Self| {
            let mut name = raw.as_slice();
            while let [b'/', rest @ ..] = name {
                name = rest;
            }
            unpack.start.join(&name[..name.len().min(path::MAX_PATH)])
        };
        let member = Member::read(entry, &raw).map_err(|fault| fault.or_at(shown(self)))?;
        if member.name.is_empty() {
            return if member.kind == EntryType::Directory {
                Ok(())
            } else {
                Err(Fault::Entry(unfit("the entry has no name").at(self.start)))
            };
        }
        self.member(entry, &member)
            .map_err(|fault| fault.or_at(self.start.join(&member.name)))
    }

    fn member<R: std::io::Read>(&mut self, entry: &mut Entry<'_, R>, member: &Member) -> Unpacked<()> {
        match member.kind {
            EntryType::Regular | EntryType::Continuous => return self.file(entry, member),
            EntryType::Directory => self.directory(member)?,
            EntryType::Symlink => self.symlink(member)?,
            EntryType::Link => {
                let target = self.destination.target(&member.name)?;
                let _held = self.shared.locks.hold(&[target.key()?]);
                let linked = normalise(&member.link)?;
                self.destination.hard_link(&linked, &target, &self.shared.litter)?;
            }
            EntryType::GNUSparse => return Err(unfit("sparse entries are not taken").into()),
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                return Err(unfit("devices and FIFOs are not made").into());
            }
            _ => return Err(unfit("the entry is of a type that is not known").into()),
        }
        self.tally.done(0);
        Ok(())
    }

    fn file<R: std::io::Read>(&mut self, entry: &mut Entry<'_, R>, member: &Member) -> Unpacked<()> {
        let target = self.destination.target(&member.name)?;
        let mut incoming = Incoming::begin(target, Some(member.size), member.mode, member.modified, self.shared)?;
        loop {
            let read = entry.read(&mut self.buffer).map_err(Fault::Stream)?;
            if read == 0 {
                break;
            }
            incoming.write(&self.buffer[..read])?;
        }
        if incoming.received() < member.size {
            return Err(Fault::Stream(std::io::ErrorKind::UnexpectedEof.into()));
        }
        incoming.end(&[], self.shared)?;
        self.tally.done(member.size);
        Ok(())
    }

    fn directory(&mut self, member: &Member) -> Unpacked<()> {
        let directory = self.destination.make_directory(&member.name)?;
        let path = self.start.join(&member.name);
        self.directories.add(&directory, path, member.mode, member.modified)?;
        Ok(())
    }

    fn symlink(&mut self, member: &Member) -> Unpacked<()> {
        path::check(&member.link)?;
        let target = self.destination.target(&member.name)?;
        let _held = self.shared.locks.hold(&[target.key()?]);
        self.destination.forget();
        atomic::symlink(&target, path_of(&member.link), true, &self.shared.litter)?;
        set_link_modified(&target, member.modified)?;
        Ok(())
    }
}

// === impl Member ===

impl Member {
    fn read<R: std::io::Read>(entry: &mut Entry<'_, R>, raw: &[u8]) -> Unpacked<Self> {
        let mut kind = entry.header().entry_type();
        // Before ustar a directory was told by its name.
        if kind == EntryType::Regular && raw.ends_with(b"/") {
            kind = EntryType::Directory;
        }
        let modified = modified(entry);
        Ok(Self {
            name: normalise(raw)?,
            kind,
            size: entry.size(),
            mode: entry.header().mode().ok().map(|mode| mode & 0o7777),
            modified,
            link: entry
                .link_name_bytes()
                .map(|link| link.into_owned())
                .unwrap_or_default(),
        })
    }
}

// === impl Fault ===

impl Fault {
    fn or_at(self, path: impl AsRef<Path>) -> Self {
        match self {
            Self::Entry(error) => Self::Entry(error.or_at(path)),
            Self::Stream(_) => self,
        }
    }
}

impl<E: Into<Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Entry(error.into())
    }
}

/// A name as it is beneath the destination.
fn normalise(name: &[u8]) -> Result<Vec<u8>> {
    if name.is_empty() {
        return Err(Error::new(ErrorReason::PathInvalid, "the entry has an empty name"));
    }
    path::check(name)?;
    let mut normal = Vec::with_capacity(name.len());
    for component in name.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(outside()),
            component => {
                if !normal.is_empty() {
                    normal.push(b'/');
                }
                normal.extend_from_slice(component);
            }
        }
    }
    Ok(normal)
}

/// Bytes that the entry takes in the archive, which a PAX record may say instead of the header.
fn stored_size<R: std::io::Read>(entry: &mut Entry<'_, R>) -> std::io::Result<u64> {
    let size = entry.header().entry_size()?;
    Ok(pax(entry, "size").and_then(|value| value.parse().ok()).unwrap_or(size))
}

/// The header has whole seconds; a PAX record may have more.
fn modified<R: std::io::Read>(entry: &mut Entry<'_, R>) -> Option<Timespec> {
    if let Some(modified) = pax(entry, "mtime").and_then(|value| fractional(&value)) {
        return Some(modified);
    }
    let seconds = i64::try_from(entry.header().mtime().ok()?).ok()?;
    Some(Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    })
}

fn pax<R: std::io::Read>(entry: &mut Entry<'_, R>, key: &str) -> Option<String> {
    let records = entry.pax_extensions().ok()??;
    let record = records.flatten().find(|record| record.key_bytes() == key.as_bytes())?;
    record.value().ok().map(str::to_owned)
}

/// `-12.5` is twelve and a half seconds before 1970.
fn fractional(text: &str) -> Option<Timespec> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let nanos: i64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some(if whole.starts_with('-') && nanos > 0 {
        Timespec {
            tv_sec: seconds.checked_sub(1)?,
            tv_nsec: 1_000_000_000 - nanos,
        }
    } else {
        Timespec {
            tv_sec: seconds,
            tv_nsec: nanos,
        }
    })
}

#[cfg(test)]
mod tests;
