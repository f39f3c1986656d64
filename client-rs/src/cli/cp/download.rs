//! From a sandbox to this machine, or on to another sandbox.

use std::{
    fs::{self, File, Permissions},
    io::{self, IsTerminal as _, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rustix::fs::{Timespec, Timestamps, futimens};
use sandgate::v1::{
    DownloadPath, DownloadRequest, DownloadResponse, FileInfo, FileType, FileView, TransferFormat, UploadEntry,
    UploadEntryEnd, UploadRequest, download_response::Message, upload_request,
};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    Copy, Failure, Remote, Report, Trouble,
    bridge::{Cut, Piece, Reader, WAITING},
    is_special,
    progress::Progress,
    regular_size, resolved, shown, unpack, upload,
};
use crate::cli::place;

/// Takes in a download.
struct Pump {
    stream: Streaming<DownloadResponse>,
    pieces: mpsc::Sender<Piece>,
    progress: Progress,
    /// A file's failure is the whole download's; one in a tree is one of many.
    single: bool,
    hash: Sha256,
    report: Report,
}

/// Why a download stopped.
enum Stop {
    /// Whoever takes the pieces has ended, and has the reason.
    Taker,
    /// This.
    Failed(Failure),
}

/// Downloads a file.
pub(super) async fn file(
    copy: &Copy<'_>,
    source: &Remote,
    info: &FileInfo,
    target: PathBuf,
) -> Result<Report, Failure> {
    let (mode, times) = (info.mode & 0o777, times(info));
    let (pump, reader) = begin(copy, source, info, false).await?;
    let taker = spawn_blocking(move || {
        let name = shown(&target);
        let written = match is_special(&target) {
            true => File::options()
                .write(true)
                .open(&target)
                .and_then(|file| take(reader, file)),
            false => replace(reader, &resolved(target), mode, times),
        };
        written.map_err(Failure::local(name))
    });
    let (report, ()) = finish(pump, taker).await?;
    Ok(report)
}

/// Downloads to stdout: a file as it is, a directory as a tar stream.
pub(super) async fn to_stdout(copy: &Copy<'_>, source: &Remote, info: &FileInfo) -> Result<Report, Failure> {
    let tree = info.r#type() == FileType::Directory;
    let (mut pump, reader) = begin(copy, source, info, tree).await?;
    if io::stdout().is_terminal() {
        pump.progress = Progress::hidden();
    }
    let taker = spawn_blocking(move || take(reader, io::stdout().lock()).map_err(Failure::Stdout));
    let (report, ()) = finish(pump, taker).await?;
    Ok(report)
}

/// Downloads a directory, into `target` itself.
pub(super) async fn directory(
    copy: &Copy<'_>,
    source: &Remote,
    info: &FileInfo,
    target: PathBuf,
) -> Result<Report, Failure> {
    let keep_links = copy.keep_links;
    let (pump, reader) = begin(copy, source, info, true).await?;
    let taker = spawn_blocking(move || {
        let unpacked = make_directory(&target).and_then(|()| unpack::unpack(reader, &target, keep_links));
        unpacked.map_err(Failure::local(shown(&target)))
    });
    let (mut report, unpacked) = finish(pump, taker).await?;
    report.entries = unpacked.entries;
    report.bytes = unpacked.bytes;
    report.failed += unpacked.failed;
    report.failures.extend(unpacked.troubles);
    Ok(report)
}

/// Passes a file or directory on to another sandbox.
pub(super) async fn across(
    copy: &Copy<'_>,
    source: &Remote,
    info: &FileInfo,
    target: &Remote,
) -> Result<Report, Failure> {
    let tree = info.r#type() == FileType::Directory;
    let (pump, mut reader) = begin_pieces(copy, source, info, tree).await?;
    let format = if tree {
        TransferFormat::Tar
    } else {
        TransferFormat::Files
    };
    let (messages, sent) = mpsc::channel(WAITING);
    let first = upload::start(copy, target, format);
    let entry = (!tree).then(|| entry(info, target));
    let pass_on = async move {
        use upload_request::Message as Up;
        let send = async |message| messages.send(UploadRequest { message: Some(message) }).await.is_ok();
        let mut wanted = send(Up::Start(first)).await;
        if let Some(entry) = entry.clone() {
            wanted = wanted && send(Up::Entry(entry)).await;
        }
        while wanted {
            match reader.recv().await {
                Some(Some(bytes)) => wanted = send(Up::Chunk(bytes)).await,
                Some(None) if entry.is_some() => {
                    send(Up::EntryEnd(UploadEntryEnd::default())).await;
                    break;
                }
                // At the end, or cut: then the entry that is under way stays without its end.
                Some(None) | None => break,
            }
        }
    };
    let mut client = copy.client.raw();
    let (pumped, (), answer) = tokio::join!(pump.run(), pass_on, client.upload(ReceiverStream::new(sent)));
    let failed = match pumped {
        Err(Stop::Failed(failure)) => return Err(failure),
        Err(Stop::Taker) => Report::default(),
        Ok(report) => report,
    };
    let mut report = upload::report(answer?.into_inner(), Vec::new());
    report.failed += failed.failed;
    report.failures.extend(failed.failures);
    Ok(report)
}

fn entry(info: &FileInfo, target: &Remote) -> UploadEntry {
    let (path, path_raw) = target.wire();
    UploadEntry {
        path,
        path_raw,
        mode: Some(info.mode & 0o777),
        modified: info.modified,
        ..UploadEntry::default()
    }
}

async fn begin(copy: &Copy<'_>, source: &Remote, info: &FileInfo, tree: bool) -> Result<(Pump, Reader), Failure> {
    let (pump, pieces) = begin_pieces(copy, source, info, tree).await?;
    Ok((pump, Reader::new(pieces)))
}

async fn begin_pieces(
    copy: &Copy<'_>,
    source: &Remote,
    info: &FileInfo,
    tree: bool,
) -> Result<(Pump, mpsc::Receiver<Piece>), Failure> {
    let (view, path, format) = match tree {
        // The directory as the root of the view, so that names in the archive are relative to it.
        true => (root_view(copy, info), b"/".to_vec(), TransferFormat::Tar),
        false => (copy.acting.view(), source.path.clone(), TransferFormat::Files),
    };
    let (path, path_raw) = place::wire(&path);
    let request = DownloadRequest {
        sandbox: source.sandbox.clone(),
        auto_resume: copy.acting.resume,
        view: Some(view),
        paths: vec![DownloadPath {
            path,
            path_raw,
            ..DownloadPath::default()
        }],
        format: format.into(),
    };
    let stream = copy.client.raw().download(request).await?.into_inner();
    let (pieces, taken) = mpsc::channel(WAITING);
    let pump = Pump {
        stream,
        pieces,
        progress: Progress::new(&source.to_string(), (!tree).then(|| regular_size(info))),
        single: !tree,
        hash: Sha256::new(),
        report: Report::default(),
    };
    Ok((pump, taken))
}

fn root_view(copy: &Copy<'_>, info: &FileInfo) -> FileView {
    copy.acting
        .view_of(place::wire(&place::unwire(&info.path, &info.path_raw)))
}

/// Takes all in, and waits until it has been put where it belongs.
async fn finish<T>(pump: Pump, taker: JoinHandle<Result<T, Failure>>) -> Result<(Report, T), Failure> {
    let pumped = pump.run().await;
    let taken = taker.await.map_err(|error| Failure::Other(error.to_string()))?;
    match (pumped, taken) {
        (Err(Stop::Failed(failure)), _) => Err(failure),
        (_, Err(failure)) => Err(failure),
        (Ok(report), Ok(taken)) => Ok((report, taken)),
        (Err(Stop::Taker), Ok(_)) => Err(Failure::Other("the download was not taken to its end".into())),
    }
}

// === impl Pump ===

impl Pump {
    /// Until the summary, without which a download is cut.
    async fn run(mut self) -> Result<Report, Stop> {
        let outcome = self.messages().await;
        self.progress.end();
        outcome.map(|()| self.report)
    }

    async fn messages(&mut self) -> Result<(), Stop> {
        loop {
            let message = self
                .stream
                .message()
                .await
                .map_err(|status| Stop::Failed(status.into()))?;
            let Some(message) = message else {
                return Err(Stop::Failed(Failure::incomplete("end: the download was cut")));
            };
            match message.message {
                Some(Message::Chunk(bytes)) => self.chunk(bytes).await?,
                Some(Message::EntryEnd(end)) => self.check(&end.sha256)?,
                Some(Message::Failure(failure)) => self.failure(failure.error.unwrap_or_default())?,
                Some(Message::Summary(summary)) => {
                    self.report.entries = summary.entries;
                    self.report.bytes = summary.bytes;
                    return self.pieces.send(None).await.map_err(|_| Stop::Taker);
                }
                Some(Message::Entry(_) | Message::Heartbeat(_)) | None => {}
            }
        }
    }

    async fn chunk(&mut self, bytes: Bytes) -> Result<(), Stop> {
        self.progress.add(bytes.len() as u64);
        if self.single {
            self.hash.update(&bytes);
        }
        self.pieces.send(Some(bytes)).await.map_err(|_| Stop::Taker)
    }

    fn check(&mut self, sent: &[u8]) -> Result<(), Stop> {
        let received = self.hash.finalize_reset();
        match sent.is_empty() || sent == received.as_slice() {
            true => Ok(()),
            false => Err(Stop::Failed(Failure::Other(
                "the bytes that came are not those that were sent".into(),
            ))),
        }
    }

    fn failure(&mut self, error: sandgate::v1::FileError) -> Result<(), Stop> {
        if self.single {
            return Err(Stop::Failed(Failure::File(error)));
        }
        self.report.failed += 1;
        self.report.failures.push(Trouble::from(error));
        Ok(())
    }
}

/// Writes all that comes.
fn take(mut reader: Reader, mut out: impl Write) -> io::Result<()> {
    loop {
        match reader.piece() {
            Ok(Some(bytes)) => out.write_all(&bytes)?,
            Ok(None) => return out.flush(),
            // The pump has the reason.
            Err(error) if error.get_ref().is_some_and(|inner| inner.is::<Cut>()) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Writes a file beside the target, and renames it when it is whole.
fn replace(mut reader: Reader, target: &Path, mode: u32, times: Timestamps) -> io::Result<()> {
    let directory = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".sandgate-")
        .suffix(".part")
        // The umask has a say in it.
        .permissions(Permissions::from_mode(mode | 0o200))
        .tempfile_in(directory)?;
    while let Some(bytes) = reader.piece()? {
        file.write_all(&bytes)?;
    }
    if mode & 0o200 == 0 {
        let now = file.as_file().metadata()?.permissions().mode();
        file.as_file().set_permissions(Permissions::from_mode(now & mode))?;
    }
    futimens(file.as_file(), &times)?;
    file.persist(target).map_err(|error| error.error)?;
    Ok(())
}

fn times(info: &FileInfo) -> Timestamps {
    let modified = info.modified.unwrap_or_default();
    let time = Timespec {
        tv_sec: modified.seconds,
        tv_nsec: modified.nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn reader(pieces: Vec<Piece>) -> Reader {
        let (tx, rx) = mpsc::channel(8);
        pieces.into_iter().for_each(|piece| tx.try_send(piece).unwrap());
        Reader::new(rx)
    }

    fn whole(text: &'static str) -> Reader {
        reader(vec![Some(Bytes::from_static(text.as_bytes())), None])
    }

    fn old() -> Timestamps {
        times(&FileInfo {
            modified: Some(prost_types::Timestamp {
                seconds: 1_000,
                nanos: 0,
            }),
            ..FileInfo::default()
        })
    }

    #[test]
    fn a_file_is_replaced_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old").unwrap();
        replace(whole("new"), &path, 0o444, old()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.mtime()), (0o444, 1_000));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_cut_leaves_the_old_file_and_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old").unwrap();
        let cut = reader(vec![Some(Bytes::from_static(b"half"))]);
        replace(cut, &path, 0o644, old()).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_of_the_caller_stays_and_its_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "old").unwrap();
        symlink("f", dir.path().join("l")).unwrap();
        replace(whole("new"), &resolved(dir.path().join("l")), 0o644, old()).unwrap();
        assert!(fs::symlink_metadata(dir.path().join("l")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(dir.path().join("f")).unwrap(), "new");
    }

    #[test]
    fn a_missing_directory_is_made_but_not_those_above() {
        let dir = tempfile::tempdir().unwrap();
        make_directory(&dir.path().join("new")).unwrap();
        make_directory(&dir.path().join("new")).unwrap();
        assert!(make_directory(&dir.path().join("a/b")).is_err());
        fs::write(dir.path().join("f"), "").unwrap();
        assert!(make_directory(&dir.path().join("f")).is_err());
    }
}
