//! From this machine into a sandbox.

use std::{
    fs::File,
    io::{self, Read, Write as _},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    time::Duration,
};

use prost_types::Timestamp;
use sandgate::v1::{
    TransferFormat, UploadEntry, UploadEntryEnd, UploadRequest, UploadResponse, UploadStart, upload_request::Message,
};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Copy, Failure, Remote, Report, Trouble,
    bridge::{CHUNK, CallEnded, WAITING, Writer},
    pack,
    progress::Progress,
    shown,
};

/// How long the reading side may take to say what went wrong with it, when the call failed.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Uploads a file.
pub(super) async fn file(copy: &Copy<'_>, source: PathBuf, target: &Remote) -> Result<Report, Failure> {
    let name = shown(&source);
    let file = File::open(&source).map_err(Failure::local(&name))?;
    let found = file.metadata().map_err(Failure::local(&name))?;
    let (path, path_raw) = target.wire();
    let entry = UploadEntry {
        path,
        path_raw,
        mode: Some(found.mode() & 0o777),
        modified: Some(Timestamp {
            seconds: found.mtime(),
            nanos: i32::try_from(found.mtime_nsec()).unwrap_or_default(),
        }),
        // A FIFO or a device has no size to hold it to.
        size: found.is_file().then_some(found.len()),
        ..UploadEntry::default()
    };
    let progress = Progress::new(&name, entry.size);
    content(copy, target, entry, file, name, progress).await
}

/// Uploads stdin as a file.
pub(super) async fn stdin(copy: &Copy<'_>, target: &Remote) -> Result<Report, Failure> {
    let (path, path_raw) = target.wire();
    let entry = UploadEntry {
        path,
        path_raw,
        ..UploadEntry::default()
    };
    let progress = Progress::new("stdin", None);
    content(copy, target, entry, io::stdin(), "stdin".into(), progress).await
}

async fn content(
    copy: &Copy<'_>,
    target: &Remote,
    entry: UploadEntry,
    source: impl Read + Send + 'static,
    name: String,
    progress: Progress,
) -> Result<Report, Failure> {
    send(
        copy,
        start(copy, target, TransferFormat::Files),
        progress,
        move |writer| {
            send_file(writer, entry, source).map_err(Failure::local(name))?;
            Ok(Vec::new())
        },
    )
    .await
}

fn send_file(writer: &mut Writer, entry: UploadEntry, mut source: impl Read) -> io::Result<()> {
    writer.message(Message::Entry(entry))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hash.update(&buffer[..read]);
        writer.write_all(&buffer[..read])?;
    }
    let sha256 = hash.finalize().to_vec().into();
    writer.message(Message::EntryEnd(UploadEntryEnd { sha256 }))
}

/// Uploads a directory.
pub(super) async fn directory(copy: &Copy<'_>, source: PathBuf, target: &Remote) -> Result<Report, Failure> {
    let name = shown(&source);
    let progress = Progress::new(&name, None);
    send(
        copy,
        start(copy, target, TransferFormat::Tar),
        progress,
        move |writer| {
            let troubles = pack::pack(&source, writer).map_err(Failure::local(&name))?;
            writer.flush().map_err(Failure::local(name))?;
            Ok(troubles)
        },
    )
    .await
}

/// Uploads a tar stream from stdin, to be unpacked there.
pub(super) async fn tar_from_stdin(copy: &Copy<'_>, target: &Remote) -> Result<Report, Failure> {
    let progress = Progress::new("stdin", None);
    send(copy, start(copy, target, TransferFormat::Tar), progress, |writer| {
        io::copy(&mut io::stdin().lock(), writer)
            .and_then(|_| writer.flush())
            .map_err(Failure::local("stdin"))?;
        Ok(Vec::new())
    })
    .await
}

/// The first message of an upload.
pub(super) fn start(copy: &Copy<'_>, target: &Remote, format: TransferFormat) -> UploadStart {
    let (directory, directory_raw) = match format {
        TransferFormat::Tar => target.wire(),
        _ => Default::default(),
    };
    UploadStart {
        sandbox: target.sandbox.clone(),
        auto_resume: copy.acting.resume,
        view: Some(copy.acting.view()),
        format: format.into(),
        directory,
        directory_raw,
        ..UploadStart::default()
    }
}

/// Calls, while a thread produces the messages. What it says of files that it left out is added to the report.
async fn send(
    copy: &Copy<'_>,
    start: UploadStart,
    progress: Progress,
    produce: impl FnOnce(&mut Writer) -> Result<Vec<Trouble>, Failure> + Send + 'static,
) -> Result<Report, Failure> {
    let (messages, sent) = mpsc::channel::<UploadRequest>(WAITING);
    let shown = progress.clone();
    let producer = spawn_blocking(move || {
        let mut writer = Writer::new(messages, move |bytes| shown.add(bytes));
        writer
            .message(Message::Start(start))
            .map_err(Failure::local("upload"))?;
        produce(&mut writer)
    });
    let answer = copy.client.raw().upload(ReceiverStream::new(sent)).await;
    progress.end();
    match (answer, last_words(producer).await) {
        (_, Some(Err(failure))) if !is_call_ended(&failure) => Err(failure),
        (Err(status), _) => Err(status.into()),
        (Ok(answer), produced) => {
            let troubles = produced.and_then(Result::ok).unwrap_or_default();
            Ok(report(answer.into_inner(), troubles))
        }
    }
}

/// What the thread said. It may be blocked in a read of stdin when the call has failed: then there is nothing.
async fn last_words<T>(producer: JoinHandle<Result<T, Failure>>) -> Option<Result<T, Failure>> {
    timeout(LAST_WORDS, producer).await.ok()?.ok()
}

fn is_call_ended(failure: &Failure) -> bool {
    matches!(failure, Failure::Local { source, .. } if source.get_ref().is_some_and(|inner| inner.is::<CallEnded>()))
}

/// The report of an upload.
pub(super) fn report(answer: UploadResponse, troubles: Vec<Trouble>) -> Report {
    let failed = answer.failures_total + troubles.len() as u64;
    let there = answer
        .failures
        .into_iter()
        .filter_map(|failure| failure.error)
        .map(Trouble::from);
    Report {
        entries: answer.entries,
        bytes: answer.bytes,
        failed,
        failures: troubles.into_iter().chain(there).collect(),
    }
}
