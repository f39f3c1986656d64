//! Files in and out, one after the other.

use bytes::Bytes;
use sandgate_errors::Refusal;
use sandgate_exec::task;
use sandgate_output::Stream;
use sandgate_proto::{
    runtime::v1::{
        self as proto, DownloadEntry, DownloadEntryEnd, DownloadPath, DownloadSummary, FileType, Heartbeat,
        TransferFailure, TransferFormat, UploadEntry, UploadResponse, UploadStart, download_response,
        upload_request::Message,
    },
    v1::ErrorReason,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};

use super::{Files, Place, file_error, flag, scripts};
use crate::driver::{
    inside::{CHUNK, Ending, Event, NotStarted, Program, QUEUE},
    stream::{Answers, Source, answers},
    wrap::script,
};

const MAX_PATHS: usize = 1_000;
const MAX_FAILURES: usize = 1_000;
/// CONTENT PATH OFFSET COUNT
const CONTENT: &str = "tail -c +$(($2 + 1)) \"$1\" | head -c \"$3\"";

impl Files {
    pub(crate) async fn upload(
        &self,
        start: &UploadStart,
        mut requests: Streaming<proto::UploadRequest>,
    ) -> Result<UploadResponse, Status> {
        self.check_view(start.view.as_ref())?;
        if start.format() == TransferFormat::Tar {
            return Err(self.missing("files.tar").into());
        }
        let mut answer = UploadResponse::default();
        while let Some(request) = requests.message().await? {
            let Some(Message::Entry(entry)) = request.message else {
                return Err(Refusal::invalid("message", "an entry begins with `entry`").into());
            };
            match self.upload_one(&entry, &mut requests).await? {
                Ok(bytes) => {
                    answer.entries += 1;
                    answer.bytes += bytes;
                }
                Err(refusal) => {
                    answer.failures_total += 1;
                    if answer.failures.len() < MAX_FAILURES {
                        let error = file_error(refusal.with("path", &entry.path));
                        answer.failures.push(TransferFailure { error: Some(error) });
                    }
                }
            }
        }
        Ok(answer)
    }

    /// Takes one entry to its end, whatever becomes of it.
    async fn upload_one(
        &self,
        entry: &UploadEntry,
        requests: &mut Streaming<proto::UploadRequest>,
    ) -> Result<Result<u64, Refusal>, Status> {
        let (content, received) = mpsc::channel(QUEUE);
        let (decide, decision) = oneshot::channel();
        let (files, wanted) = (self.clone(), entry.clone());
        // In a task of its own: a caller that goes away must not leave half a file.
        let writing = task::spawn(
            "upload",
            "",
            async move { files.take(&wanted, received, decision).await },
        );
        let (mut hash, mut size) = (Sha256::new(), 0u64);
        let expected = loop {
            let message = requests.message().await?.and_then(|request| request.message);
            match message {
                Some(Message::Chunk(chunk)) => {
                    hash.update(&chunk);
                    size += chunk.len() as u64;
                    // If it failed, the rest is taken and thrown away: others follow.
                    let _ = content.send(chunk).await;
                }
                Some(Message::EntryEnd(end)) => break end.sha256,
                _ => return Err(Refusal::invalid("message", "an entry ends with `entry_end`").into()),
            }
        };
        drop(content);
        let verdict = if entry.size.is_some_and(|told| told != size) {
            Err(Refusal::new(
                ErrorReason::InvalidArgument,
                "its size is not what was told",
            ))
        } else if !expected.is_empty() && *expected != *hash.finalize() {
            Err(Refusal::new(
                ErrorReason::HashMismatch,
                "its SHA-256 is not what was told",
            ))
        } else {
            Ok(size)
        };
        let _ = decide.send(verdict.clone().ok());
        let written = writing.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(verdict.and_then(|size| written.map(|()| size)))
    }

    /// Takes an entry, and puts it in its place if that is the decision.
    async fn take(
        &self,
        entry: &UploadEntry,
        mut content: mpsc::Receiver<Bytes>,
        decision: oneshot::Receiver<Option<u64>>,
    ) -> Result<(), Refusal> {
        let path = self.path(&entry.path, &entry.path_raw).await?;
        match entry.r#type() {
            FileType::Directory | FileType::Symlink => {
                while content.recv().await.is_some() {}
                if !matches!(decision.await, Ok(Some(_))) {
                    return Ok(());
                }
                return self.make(entry, &path).await;
            }
            FileType::Regular | FileType::Unspecified => {}
            _ => {
                return Err(Refusal::invalid(
                    "entry.type",
                    "a regular file, a directory or a symlink",
                ));
            }
        }
        let place = Place {
            path: &path,
            parents: true,
            mode: entry.mode,
            how: "replace",
            modified: entry.modified.map(|time| time.seconds),
        };
        let temporary = self.receive(&place, content).await?;
        match decision.await {
            Ok(Some(size)) => self.commit(&place, &temporary, size).await,
            _ => self.done("rm -f \"$1\"", &[&temporary.lies], &path).await.map(drop),
        }
    }

    async fn make(&self, entry: &UploadEntry, path: &str) -> Result<(), Refusal> {
        let mode = entry.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let made = match entry.r#type() {
            FileType::Directory => self.done(scripts::MKDIR, &[path, flag(true), &mode], path).await,
            _ => self.done(scripts::SYMLINK, &[&entry.symlink_target, path], path).await,
        };
        made.map(drop)
    }

    pub(crate) fn download(
        &self,
        request: proto::DownloadRequest,
    ) -> Result<Answers<proto::DownloadResponse>, Refusal> {
        self.check_view(request.view.as_ref())?;
        if request.format() == TransferFormat::Tar {
            return Err(self.missing("files.tar"));
        }
        if request.paths.len() > MAX_PATHS {
            return Err(Refusal::invalid("paths", "at most 1,000"));
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let files = self.clone();
        task::spawn("download", "", async move {
            let mut summary = DownloadSummary::default();
            for path in &request.paths {
                match files.download_one(path, &sender).await {
                    Ok(Some(bytes)) => {
                        summary.entries += 1;
                        summary.bytes += bytes;
                    }
                    // Nobody listens any more.
                    Ok(None) => return,
                    Err(refusal) => {
                        summary.failures += 1;
                        let error = file_error(refusal.with("path", &path.path));
                        let failure = TransferFailure { error: Some(error) };
                        let _ = sender.send(download_response::Message::Failure(failure)).await;
                    }
                }
            }
            let _ = sender.send(download_response::Message::Summary(summary)).await;
        });
        let heartbeat = || proto::DownloadResponse {
            message: Some(download_response::Message::Heartbeat(Heartbeat {})),
        };
        Ok(answers(Downloaded(receiver), heartbeat))
    }

    async fn download_one(
        &self,
        wanted: &DownloadPath,
        sender: &mpsc::Sender<download_response::Message>,
    ) -> Result<Option<u64>, Refusal> {
        if wanted.expected.is_some() {
            return Err(self.missing("files.transfer").with_field("expected"));
        }
        let path = self.path(&wanted.path, &wanted.path_raw).await?;
        let info = self.regular(&path).await?;
        let count = info.size.saturating_sub(wanted.offset);
        let entry = DownloadEntry {
            offset: wanted.offset,
            info: Some(info),
        };
        if sender.send(download_response::Message::Entry(entry)).await.is_err() {
            return Ok(None);
        }
        let (mut hash, mut sent) = (Sha256::new(), 0);
        while sent < count {
            let piece = (count - sent).min(self.inside.most_output());
            let mut events = self.content(&path, wanted.offset + sent, piece).await?;
            let (begun, mut ending) = (sent, None);
            while let Some(event) = events.recv().await {
                match event {
                    Event::Output(Stream::Stdout, mut bytes) => {
                        hash.update(&bytes);
                        sent += bytes.len() as u64;
                        while !bytes.is_empty() {
                            let chunk = bytes.split_to(bytes.len().min(CHUNK));
                            if sender.send(download_response::Message::Chunk(chunk)).await.is_err() {
                                return Ok(None);
                            }
                        }
                    }
                    Event::Output(Stream::Stderr, _) => {}
                    Event::Exited(end) => {
                        ending = Some(end);
                        break;
                    }
                }
            }
            if ending != Some(Ending::Code(0)) || sent - begun != piece {
                return Err(Refusal::new(ErrorReason::FileIo, "it was cut, or has shrunk meanwhile"));
            }
        }
        let end = DownloadEntryEnd {
            sha256: Bytes::copy_from_slice(&hash.finalize()),
            size: sent,
        };
        let told = sender.send(download_response::Message::EntryEnd(end)).await;
        Ok(told.is_ok().then_some(sent))
    }

    async fn content(&self, path: &str, offset: u64, count: u64) -> Result<mpsc::Receiver<Event>, Refusal> {
        let program = Program {
            args: script(CONTENT, &[path, &offset.to_string(), &count.to_string()]),
            ..Program::default()
        };
        let started = self.inside.start(program).await.map_err(NotStarted::into_refusal)?;
        Ok(started.events)
    }
}

/// What is read for a download.
struct Downloaded(mpsc::Receiver<download_response::Message>);

impl Source for Downloaded {
    type Item = proto::DownloadResponse;

    async fn next(&mut self) -> Option<Result<Self::Item, Status>> {
        let message = self.0.recv().await?;
        Some(Ok(proto::DownloadResponse { message: Some(message) }))
    }
}
