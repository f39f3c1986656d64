//! A download: files and trees in one stream, each entry with its own fate.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    os::fd::OwnedFd,
    path::PathBuf,
};

use bytes::Bytes;
use rustix::{
    fs::{self, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use sandgate_proto::{
    runtime::v1::{
        DownloadEntry, DownloadEntryEnd, DownloadPath, DownloadRequest, DownloadSummary, FileInfo, TransferFailure,
        TransferFormat, download_response::Message,
    },
    v1::ErrorReason,
};
use sha2::{Digest as _, Sha256};

use super::{CHUNK, tar_out::TarSink};
use crate::{
    error::{Error, Result},
    info,
    path::PathArg,
    version,
    view::{self, View},
    walk::{Entry, Options, Step, Walker},
};

const MAX_PATHS: usize = 1_000;

/// Nobody takes the messages any more.
#[derive(Debug)]
pub(super) struct Gone;

/// Sent, or not wanted any more.
pub(super) type Sent<T = ()> = std::result::Result<T, Gone>;

/// How a format puts entries into messages.
trait Format {
    /// A directory or a symlink.
    fn plain(&mut self, out: &mut Out<'_>, info: FileInfo) -> Sent;

    /// A regular file, open and at `offset`. The inner error fails the entry.
    fn file(&mut self, out: &mut Out<'_>, info: FileInfo, file: File, offset: u64) -> Sent<Result<()>>;

    /// All entries were sent.
    fn end(&mut self, out: &mut Out<'_>) -> Sent;
}

/// Where messages go.
pub(super) struct Out<'a> {
    send: &'a mut dyn FnMut(Message) -> bool,
    summary: DownloadSummary,
}

struct Files;

/// Sends what was asked for. `send` takes the messages, waiting for room as need be, and says `false` when nobody wants
/// them any more; the download then ends. Symlinks are followed beneath the root in the paths that were asked for, and
/// sent as such beneath those. In a tar, names are the paths in the view without their leading `/`.
///
/// # Errors
/// `InvalidArgument` before anything was sent. What can't be read later is a failure among the messages.
pub fn download(view: &View, request: &DownloadRequest, send: &mut dyn FnMut(Message) -> bool) -> Result<()> {
    if request.paths.len() > MAX_PATHS {
        return Err(Error::invalid(format!("more than {MAX_PATHS} paths")));
    }
    let tar = request.format() == TransferFormat::Tar;
    if tar && request.paths.iter().any(|path| path.offset > 0) {
        return Err(Error::invalid("a tar can't begin at an offset"));
    }
    let _acting = view.act()?;
    let mut out = Out {
        send,
        summary: DownloadSummary::default(),
    };
    let mut format: Box<dyn Format> = if tar {
        Box::new(TarSink::default())
    } else {
        Box::new(Files)
    };
    // If nobody listens any more, there is nobody to tell.
    let _sent_or_gone = all(view, request, format.as_mut(), &mut out);
    Ok(())
}

fn all(view: &View, request: &DownloadRequest, format: &mut dyn Format, out: &mut Out<'_>) -> Sent {
    for wanted in &request.paths {
        match view.path(&wanted.path, &wanted.path_raw) {
            Ok(path) => one(view, &path, wanted, format, out)?,
            Err(error) => out.failure(error.or_at(&wanted.path))?,
        }
    }
    format.end(out)?;
    let summary = out.summary;
    out.send(Message::Summary(summary))
}

fn one(view: &View, path: &PathArg, wanted: &DownloadPath, format: &mut dyn Format, out: &mut Out<'_>) -> Sent {
    let found = match look(view, path) {
        Ok(stat) => stat,
        Err(error) => return out.failure(error),
    };
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory && wanted.offset == 0 {
        return tree(view, path, format, out);
    }
    match open_wanted(view, path, wanted) {
        Ok((file, stat)) => {
            let info = info::of_stat(path, &stat);
            let sent = format.file(out, info, file, wanted.offset)?;
            out.count(sent.map_err(|error| error.or_at(path)))
        }
        Err(error) => out.failure(error),
    }
}

fn look(view: &View, path: &PathArg) -> Result<Stat> {
    let opened = view.root().open(path.as_path(), OFlags::PATH, Mode::empty());
    view::stat(&opened.map_err(|error| Error::io(error, path))?, path)
}

fn open_wanted(view: &View, path: &PathArg, wanted: &DownloadPath) -> Result<(File, Stat)> {
    let (file, stat) = view.open_regular(path)?;
    if let Some(expected) = &wanted.expected {
        version::check(expected, &file, path)?;
    }
    if wanted.offset > size(&stat) {
        return Err(Error::invalid("the offset is behind the end of the file").at(path));
    }
    let mut file = File::from(file);
    file.seek(SeekFrom::Start(wanted.offset))
        .map_err(|error| Error::io(error, path))?;
    Ok((file, stat))
}

fn tree(view: &View, path: &PathArg, format: &mut dyn Format, out: &mut Out<'_>) -> Sent {
    let opened = view.open_directory(path).and_then(|directory| {
        let info = info::of_file(path, &directory).map_err(|errno| Error::io(errno, path))?;
        let options = Options {
            sorted: true,
            max_depth: 0,
        };
        let walker = Walker::new(directory, options).map_err(|errno| Error::io(errno, path))?;
        Ok((info, walker))
    });
    let (info, mut walker) = match opened {
        Ok(opened) => opened,
        Err(error) => return out.failure(error),
    };
    format.plain(out, info)?;
    out.summary.entries += 1;
    while let Some(step) = walker.next() {
        match step {
            Step::Entry(found) => entry(&found, path.join(found.path), format, out)?,
            Step::Enter(_) => {}
            Step::Unreadable { path: at, error } => out.failure(Error::io(error, path.join(at)))?,
        }
    }
    Ok(())
}

fn entry(found: &Entry<'_>, path: PathBuf, format: &mut dyn Format, out: &mut Out<'_>) -> Sent {
    let sent = match found.kind {
        FileType::Directory | FileType::Symlink => match info::of_name(&path, found.dir, found.file_name()) {
            Ok(info) => format.plain(out, info).map(Ok)?,
            Err(errno) => Err(errno.into()),
        },
        FileType::RegularFile => match open_found(found) {
            Ok((file, stat)) => format.file(out, info::of_stat(&path, &stat), File::from(file), 0)?,
            Err(error) => Err(error),
        },
        _ => Err(not_regular()),
    };
    out.count(sent.map_err(|error| error.or_at(path)))
}

fn open_found(found: &Entry<'_>) -> Result<(OwnedFd, Stat)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match fs::openat(found.dir, found.name, flags, Mode::empty()) {
        // It was a file when the directory was read.
        Err(Errno::LOOP) => return Err(not_regular()),
        other => other?,
    };
    let stat = fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file, stat)),
        _ => Err(not_regular()),
    }
}

fn not_regular() -> Error {
    Error::new(ErrorReason::FileNotRegular, "sockets, FIFOs and devices are not sent")
}

/// The error of a file that has fewer bytes than it had.
pub(super) fn shrank() -> Error {
    Error::new(ErrorReason::FileIo, "the file became shorter while it was sent")
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

// === impl Out ===

impl Out<'_> {
    /// Sends one message.
    pub(super) fn send(&mut self, message: Message) -> Sent {
        if (self.send)(message) { Ok(()) } else { Err(Gone) }
    }

    /// Sends bytes of content.
    pub(super) fn content(&mut self, bytes: Bytes) -> Sent {
        self.summary.bytes += bytes.len() as u64;
        self.send(Message::Chunk(bytes))
    }

    /// Counts bytes of content that travel within others.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.summary.bytes += bytes;
    }

    fn count(&mut self, sent: Result<()>) -> Sent {
        match sent {
            Ok(()) => {
                self.summary.entries += 1;
                Ok(())
            }
            Err(error) => self.failure(error),
        }
    }

    fn failure(&mut self, error: Error) -> Sent {
        self.summary.failures += 1;
        self.send(Message::Failure(TransferFailure {
            error: Some(error.into()),
        }))
    }
}

// === impl Files ===

impl Format for Files {
    fn plain(&mut self, out: &mut Out<'_>, info: FileInfo) -> Sent {
        out.send(Message::Entry(DownloadEntry {
            info: Some(info),
            offset: 0,
        }))
    }

    fn file(&mut self, out: &mut Out<'_>, info: FileInfo, mut file: File, offset: u64) -> Sent<Result<()>> {
        let mut left = info.size.saturating_sub(offset);
        let size = left;
        out.send(Message::Entry(DownloadEntry {
            info: Some(info),
            offset,
        }))?;
        let mut hasher = Sha256::new();
        while left > 0 {
            let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
            let read = match file.read(&mut chunk) {
                Ok(0) => return Ok(Err(shrank())),
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Err(error.into())),
            };
            chunk.truncate(read);
            hasher.update(&chunk);
            left -= read as u64;
            out.content(Bytes::from(chunk))?;
        }
        out.send(Message::EntryEnd(DownloadEntryEnd {
            sha256: Bytes::copy_from_slice(&hasher.finalize()),
            size,
        }))?;
        Ok(Ok(()))
    }

    fn end(&mut self, _: &mut Out<'_>) -> Sent {
        Ok(())
    }
}

// === impl TarSink ===

impl Format for TarSink {
    fn plain(&mut self, out: &mut Out<'_>, info: FileInfo) -> Sent {
        self.header(out, &info)
    }

    fn file(&mut self, out: &mut Out<'_>, info: FileInfo, file: File, _: u64) -> Sent<Result<()>> {
        self.header(out, &info)?;
        self.body(out, file, info.size)
    }

    fn end(&mut self, out: &mut Out<'_>) -> Sent {
        self.finish(out)
    }
}

/// The bytes of a path or symlink target that a message holds in one of two fields.
pub(super) fn either<'a>(text: &'a str, raw: &'a Bytes) -> &'a [u8] {
    if raw.is_empty() { text.as_bytes() } else { raw }
}

#[cfg(test)]
mod tests;
