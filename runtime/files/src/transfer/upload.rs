//! An upload: many entries in one stream, each with its own fate, or a tar (`tar_in`).

use std::path::Path;

use prost::Message as _;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use sandgate_proto::{
    runtime::v1::{
        FileType, TransferFailure, TransferFormat, UploadEntry, UploadResponse, UploadStart, upload_request::Message,
    },
    v1::ErrorReason,
};

use super::{
    directories::{self, Directories},
    incoming::{Facts, Incoming, set_link_modified},
    tar_in,
};
use crate::{
    atomic::{self, Shared},
    beneath,
    error::{Error, Result},
    path::{self, PathArg},
    target::Target,
    view::View,
};

/// Failures that are listed, and their bytes; others are only counted.
const MAX_FAILURES: u64 = 1_000;
const MAX_FAILURE_BYTES: usize = 2 << 20;

/// The outcome as it grows.
#[derive(Debug, Default)]
pub(super) struct Tally {
    response: UploadResponse,
    failure_bytes: usize,
}

struct Files<'a> {
    view: &'a View,
    shared: &'a Shared,
    current: Option<Current>,
    directories: Directories,
    tally: Tally,
}

/// The entry whose end has not come yet.
struct Current {
    path: Option<PathArg>,
    entry: UploadEntry,
    body: Body,
}

enum Body {
    File(Box<Incoming>),
    /// A directory or a symlink.
    Empty,
    /// It failed, and that was noted: what still comes of it is thrown away.
    Failed,
}

/// Takes an upload, whose first message was `start`. An error among the messages is a stream that was cut: the entry that
/// was under way is void, those before it stay.
///
/// # Errors
/// What cut the stream, messages in a wrong order, or `ArchiveInvalid` for a damaged tar. Entries that were whole by then
/// are in place.
pub fn upload(
    view: &View,
    start: &UploadStart,
    shared: &Shared,
    messages: impl Iterator<Item = Result<Message>>,
) -> Result<UploadResponse> {
    let _acting = view.act()?;
    match start.format() {
        TransferFormat::Tar => {
            let directory = view.path_or_start(&start.directory, &start.directory_raw)?;
            tar_in::unpack(view, &directory, shared, messages)
        }
        TransferFormat::Files | TransferFormat::Unspecified => {
            let mut files = Files {
                view,
                shared,
                current: None,
                directories: Directories::default(),
                tally: Tally::default(),
            };
            let mut outcome = Ok(());
            for message in messages {
                outcome = message.and_then(|message| files.message(message));
                if outcome.is_err() {
                    break;
                }
            }
            files.finish(outcome)
        }
    }
}

// === impl Tally ===

impl Tally {
    /// An entry is in place.
    pub(super) fn done(&mut self, bytes: u64) {
        self.response.entries += 1;
        self.response.bytes += bytes;
    }

    /// An entry failed.
    pub(super) fn failed(&mut self, error: Error) {
        self.response.failures_total += 1;
        let failure = TransferFailure {
            error: Some(error.into()),
        };
        self.failure_bytes += failure.encoded_len() + 4;
        if self.response.failures_total <= MAX_FAILURES && self.failure_bytes <= MAX_FAILURE_BYTES {
            self.response.failures.push(failure);
        }
    }

    /// The answer, or the error of the whole call with how far it came.
    pub(super) fn finish(self, outcome: Result<()>) -> Result<UploadResponse> {
        match outcome {
            Ok(()) => Ok(self.response),
            Err(mut error) => {
                error.message = format!(
                    "{}; entries written before that: {}",
                    error.message, self.response.entries
                );
                Err(error)
            }
        }
    }
}

// === impl Files ===

impl Files<'_> {
    fn message(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Start(_) => Err(Error::invalid("an upload starts once")),
            Message::Entry(_) if self.current.is_some() => Err(Error::invalid("an entry has no end")),
            Message::Entry(entry) => {
                self.begin(entry);
                Ok(())
            }
            Message::Chunk(bytes) => self.chunk(&bytes),
            Message::EntryEnd(end) => self.end(&end.sha256),
        }
    }

    fn begin(&mut self, entry: UploadEntry) {
        let path = self.view.path(&entry.path, &entry.path_raw);
        let body = path
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|path| self.body(path, &entry));
        let path = path.ok();
        let body = body.unwrap_or_else(|error| {
            self.tally.failed(about(error, path.as_ref(), &entry));
            Body::Failed
        });
        self.current = Some(Current { path, entry, body });
    }

    fn body(&self, path: &PathArg, entry: &UploadEntry) -> Result<Body> {
        let facts = Facts::of(entry)?;
        match entry.r#type() {
            FileType::Unspecified | FileType::Regular => {
                let target = Target::follow(self.view, path, true)?;
                let incoming = Incoming::begin(target, entry.size, facts.mode, facts.modified, self.shared)?;
                Ok(Body::File(Box::new(incoming)))
            }
            FileType::Directory | FileType::Symlink => Ok(Body::Empty),
            _ => Err(Error::invalid("only files, directories and symlinks can be uploaded")),
        }
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let current = self
            .current
            .as_mut()
            .ok_or_else(|| Error::invalid("a chunk belongs to no entry"))?;
        let written = match &mut current.body {
            Body::File(incoming) => incoming.write(bytes),
            Body::Empty if !bytes.is_empty() => Err(Error::invalid("only a file has content")),
            Body::Empty | Body::Failed => Ok(()),
        };
        if let Err(error) = written {
            self.tally.failed(about(error, current.path.as_ref(), &current.entry));
            current.body = Body::Failed;
        }
        Ok(())
    }

    fn end(&mut self, sha256: &[u8]) -> Result<()> {
        let current = self
            .current
            .take()
            .ok_or_else(|| Error::invalid("an end belongs to no entry"))?;
        let outcome = match (current.body, &current.path) {
            (Body::File(incoming), _) => {
                let bytes = incoming.received();
                incoming.end(sha256, self.shared).map(|_| bytes)
            }
            (Body::Empty, Some(path)) => self.make(path, &current.entry).map(|()| 0),
            (Body::Empty, None) | (Body::Failed, _) => return Ok(()),
        };
        match outcome {
            Ok(bytes) => self.tally.done(bytes),
            Err(error) => self.tally.failed(about(error, current.path.as_ref(), &current.entry)),
        }
        Ok(())
    }

    fn make(&mut self, path: &PathArg, entry: &UploadEntry) -> Result<()> {
        let facts = Facts::of(entry)?;
        if entry.r#type() == FileType::Directory {
            return self.make_directory(path, &facts);
        }
        let text = path::one_of(&entry.symlink_target, &entry.symlink_target_raw)?;
        path::check(text)?;
        let target = Target::exact(self.view, path, true)?;
        let _held = self.shared.locks.hold(&[target.key()?]);
        atomic::symlink(&target, path_of(text), true, &self.shared.litter)?;
        Ok(set_link_modified(&target, facts.modified)?)
    }

    fn make_directory(&mut self, path: &PathArg, facts: &Facts) -> Result<()> {
        let open = || {
            self.view
                .root()
                .open(path.as_path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        };
        let directory = match beneath::split(path.as_path()) {
            Ok((parent, name)) => {
                let parent = self.view.make_directories(parent)?;
                beneath::refuse_procfs(&parent)?;
                directories::open_or_make(&parent, Path::new(name), open)?.0
            }
            // The root, or something that ends in `..`: it is there, or can't be made.
            Err(_) => open()?,
        };
        Ok(self
            .directories
            .add(&directory, path.as_path().to_owned(), facts.mode, facts.modified)?)
    }

    fn finish(mut self, mut outcome: Result<()>) -> Result<UploadResponse> {
        if outcome.is_ok() && self.current.is_some() {
            outcome = Err(Error::invalid("the last entry has no end"));
        }
        self.current = None;
        self.directories.finish(self.view, |error| self.tally.failed(error));
        self.tally.finish(outcome)
    }
}

/// The error with the entry's path, as far as one can be told.
fn about(error: Error, path: Option<&PathArg>, entry: &UploadEntry) -> Error {
    let Some(path) = path else {
        let sent = if entry.path.is_empty() {
            &entry.path_raw
        } else {
            entry.path.as_bytes()
        };
        return error.or_at(path_of(&sent[..sent.len().min(path::MAX_PATH)]));
    };
    error.or_at(path)
}

pub(super) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes))
}

/// The error of an entry that an archive may not hold.
pub(super) fn unfit(message: &str) -> Error {
    Error::new(ErrorReason::ArchiveInvalid, message)
}

/// What can't be anything else than a way out.
pub(super) fn outside() -> Error {
    Errno::XDEV.into()
}

#[cfg(test)]
mod tests;
