//! Uploads of one file, a chunk a call, for callers that have no client streams. A chunk that comes twice is written once.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sandgate_proto::{
    runtime::v1::{FileType, FileView, UploadEntry, WriteChunkRequest, WriteChunkResponse},
    v1::ErrorReason,
};

use super::incoming::{Facts, Incoming};
use crate::{
    atomic::Shared,
    error::{Error, Result},
    info,
    target::Target,
    view::View,
};

const MAX_OPEN: usize = 64;
const MAX_FINISHED: usize = 256;
const MAX_ID: usize = 64;
const MAX_DATA: usize = 2 << 20;
const IDLE: Duration = Duration::from_secs(10 * 60);

/// The uploads that are under way, and the last ones that ended.
#[derive(Debug, Default)]
pub struct ChunkedUploads {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<String, Open>,
    finished: VecDeque<Finished>,
}

#[derive(Debug)]
struct Open {
    request: Request,
    last_used: Instant,
    /// `None` once it has ended, for those who still wait for it.
    incoming: Arc<Mutex<Option<Incoming>>>,
}

#[derive(Debug)]
struct Finished {
    id: String,
    request: Request,
    answer: WriteChunkResponse,
}

/// What must be the same in every call of one upload.
#[derive(Clone, Debug, PartialEq)]
struct Request {
    view: FileView,
    entry: UploadEntry,
}

// === impl ChunkedUploads ===

impl ChunkedUploads {
    /// Takes one chunk. `view` is the view of the request, opened.
    ///
    /// # Errors
    /// `UploadNotFound`, `UploadGap`, `LimitReached`, `HashMismatch`, `InvalidArgument`, or what writing came to. After a
    /// full disk the upload goes on from where it was; a hash that differs ends it.
    pub fn write(&self, view: &View, request: &WriteChunkRequest, shared: &Shared) -> Result<WriteChunkResponse> {
        self.write_at(view, request, shared, Instant::now())
    }

    /// Drops the uploads that nobody has gone on with for 10 minutes. Every write does that too.
    pub fn sweep(&self) {
        self.lock().sweep(Instant::now());
    }

    fn write_at(
        &self,
        view: &View,
        request: &WriteChunkRequest,
        shared: &Shared,
        now: Instant,
    ) -> Result<WriteChunkResponse> {
        check(request)?;
        let same = Request {
            view: request.view.clone().unwrap_or_default(),
            entry: request.entry.clone().unwrap_or_default(),
        };
        let path = view.path(&same.entry.path, &same.entry.path_raw)?;
        let _acting = view.act()?;
        let incoming = {
            let mut table = self.lock();
            table.sweep(now);
            if let Some(finished) = table.finished.iter().find(|finished| finished.id == request.upload_id) {
                return finished.again(&same);
            }
            match table.open.get_mut(&request.upload_id) {
                Some(open) if open.request != same => return Err(differs()),
                Some(open) => {
                    open.last_used = now;
                    open.incoming.clone()
                }
                None if request.offset != 0 => {
                    return Err(Error::new(ErrorReason::UploadNotFound, "no upload of that id is open").at(&path));
                }
                None => table
                    .begin(view, request, same.clone(), now, shared)
                    .map_err(|error| error.or_at(&path))?,
            }
        };
        let mut held = incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = held.as_mut() else {
            drop(held);
            return self.ended(&request.upload_id, &same);
        };
        add(current, request).map_err(|error| error.or_at(&path))?;
        if !request.finish {
            return Ok(WriteChunkResponse {
                accepted: current.received(),
                info: None,
            });
        }
        let accepted = current.received();
        let ended = held.take().map(|incoming| incoming.end(&request.sha256, shared));
        let mut table = self.lock();
        table.open.remove(&request.upload_id);
        let stat = match ended {
            Some(stat) => stat.map_err(|error| error.or_at(&path))?,
            None => return Err(Error::new(ErrorReason::UploadNotFound, "the upload has ended")),
        };
        let answer = WriteChunkResponse {
            accepted,
            info: Some(info::of_stat(&path, &stat)),
        };
        table.finish(&request.upload_id, same, answer.clone());
        Ok(answer)
    }

    /// Another call ended the upload while this one waited for it.
    fn ended(&self, id: &str, same: &Request) -> Result<WriteChunkResponse> {
        let table = self.lock();
        let finished = table.finished.iter().find(|finished| finished.id == id);
        let lost = || Error::new(ErrorReason::UploadNotFound, "the upload has ended");
        finished.ok_or_else(lost)?.again(same)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Table ===

impl Table {
    fn begin(
        &mut self,
        view: &View,
        request: &WriteChunkRequest,
        same: Request,
        now: Instant,
        shared: &Shared,
    ) -> Result<Arc<Mutex<Option<Incoming>>>> {
        if self.open.len() >= MAX_OPEN {
            return Err(Error::new(
                ErrorReason::LimitReached,
                format!("{MAX_OPEN} uploads are open"),
            ));
        }
        let facts = Facts::of(&same.entry)?;
        let path = view.path(&same.entry.path, &same.entry.path_raw)?;
        let target = Target::follow(view, &path, true)?;
        let incoming = Incoming::begin(target, same.entry.size, facts.mode, facts.modified, shared)?;
        let incoming = Arc::new(Mutex::new(Some(incoming)));
        let open = Open {
            request: same,
            last_used: now,
            incoming: incoming.clone(),
        };
        self.open.insert(request.upload_id.clone(), open);
        Ok(incoming)
    }

    fn finish(&mut self, id: &str, request: Request, answer: WriteChunkResponse) {
        if self.finished.len() == MAX_FINISHED {
            self.finished.pop_front();
        }
        self.finished.push_back(Finished {
            id: id.to_owned(),
            request,
            answer,
        });
    }

    fn sweep(&mut self, now: Instant) {
        self.open
            .retain(|_, open| now.saturating_duration_since(open.last_used) < IDLE);
    }
}

// === impl Finished ===

impl Finished {
    fn again(&self, request: &Request) -> Result<WriteChunkResponse> {
        if self.request == *request {
            Ok(self.answer.clone())
        } else {
            Err(differs())
        }
    }
}

fn differs() -> Error {
    Error::invalid("the upload was begun with a different view or entry")
}

fn check(request: &WriteChunkRequest) -> Result<()> {
    let id = request.upload_id.as_bytes();
    let plain = id
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if id.is_empty() || id.len() > MAX_ID || !plain {
        return Err(Error::invalid("upload_id is not of the form [A-Za-z0-9_-]{1,64}"));
    }
    if request.data.len() > MAX_DATA {
        return Err(Error::invalid("data is more than 2 MiB"));
    }
    let kind = request.entry.as_ref().map(UploadEntry::r#type);
    if !matches!(kind, Some(FileType::Regular | FileType::Unspecified)) {
        return Err(Error::invalid("an upload in chunks is of a regular file"));
    }
    Ok(())
}

/// Writes what is new of the chunk.
fn add(incoming: &mut Incoming, request: &WriteChunkRequest) -> Result<()> {
    let accepted = incoming.received();
    if request.offset > accepted {
        return Err(Error::new(
            ErrorReason::UploadGap,
            format!("bytes up to {accepted} were accepted"),
        ));
    }
    let known = usize::try_from(accepted - request.offset).unwrap_or(usize::MAX);
    match request.data.get(known..) {
        Some(new) if !new.is_empty() => incoming.write(new),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
