//! Calls on files. File work blocks, so it runs on threads for that, joined to the transport by bounded channels.

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, TryStreamExt as _};
use sandgate_errors::Refusal;
use sandgate_exec::check_id;
use sandgate_files::{Error, View, run_batch, transfer, watch::Subscription};
use sandgate_proto::{
    runtime::v1::{
        self as proto, FileOpResult, FileOpsRequest, FileOpsResponse, FileView, Heartbeat, download_response,
        file_op_result, upload_request, watch_files_response,
    },
    v1::ErrorReason,
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::spawn_blocking,
};
use tonic::Status;

use super::{Files, Service};
use crate::{
    clock::Call,
    hands::Hands,
    stream::{Answers, Source, answers},
};

const MAX_OPS: usize = 1_000;
/// No answer is over 3 MiB; the rest is for what is around the results.
const ANSWER_BYTES: usize = (3 << 20) - 4096;
/// Batches that run at once; others wait.
pub(super) const MAX_BATCHES: usize = 128;
/// Transfers at once. Each holds a thread while it lasts, and there are 400 for everything.
pub(super) const MAX_TRANSFERS: usize = 128;
const RETRY: Duration = Duration::from_secs(1);
/// Messages of up to 64 KiB (a caller may send 1 MiB) between transport and disk.
const QUEUE: usize = 8;

pub(crate) async fn batch(service: &Service, request: FileOpsRequest) -> Result<FileOpsResponse, Refusal> {
    service.identity.expect(&request.expected_incarnation)?;
    if request.ops.len() > MAX_OPS {
        return Err(Refusal::invalid("ops", "at most 1,000 operations a batch"));
    }
    let files = service.files.clone();
    if request.batch_id.is_empty() {
        let _turn = service.files.operations.acquire().await;
        let hands = service.files.hands.clone();
        return blocking(&hands, move || run(&files, request)).await;
    }
    check_id("batch_id", &request.batch_id)?;
    // A view that can't be opened is refused before the batch is remembered; the whole sandbox needs no such look. What
    // became of the view since then does not matter to a repeat.
    let is_whole = request.view.as_ref().is_none_or(|view| *view == FileView::default());
    if !is_whole && !files.batches.knows(&request.batch_id) {
        let (view, checked) = (request.view.clone(), files.clone());
        blocking(&files.hands, move || open(&checked, view).map(drop)).await?;
    }
    let work = |request: FileOpsRequest| async move {
        let waiting = files.clone();
        let _turn = waiting.operations.acquire().await;
        let count = request.ops.len();
        // Removed since it was looked at: an answer too, so that a repeat gets it again.
        let work = move || Ok(run(&files, request).unwrap_or_else(|error| all_failed(count, &error)));
        blocking(&waiting.hands, work).await.unwrap_or_default()
    };
    service.files.batches.once(request, work).await
}

fn run(files: &Files, request: FileOpsRequest) -> Result<FileOpsResponse, Error> {
    let view = open(files, request.view)?;
    let results = run_batch(&view, request.ops, request.stop_on_error, ANSWER_BYTES, &files.shared);
    Ok(FileOpsResponse { results })
}

fn all_failed(count: usize, error: &Error) -> FileOpsResponse {
    let result = || FileOpResult {
        result: Some(file_op_result::Result::Error(error.clone().into())),
    };
    FileOpsResponse {
        results: (0..count).map(|_| result()).collect(),
    }
}

pub(super) async fn write_chunk(
    service: &Service,
    request: proto::WriteChunkRequest,
) -> Result<proto::WriteChunkResponse, Refusal> {
    service.identity.expect(&request.expected_incarnation)?;
    check_id("upload_id", &request.upload_id)?;
    let files = service.files.clone();
    blocking(&service.files.hands, move || {
        let view = open(&files, request.view.clone())?;
        files.uploads.write(&view, &request, &files.shared)
    })
    .await
}

/// A message of an upload, or its proper end: a channel that just closes was cut.
enum Incoming {
    Message(upload_request::Message),
    End,
}

pub(crate) async fn upload(
    service: &Service,
    mut requests: impl Stream<Item = Result<proto::UploadRequest, Status>> + Unpin,
) -> Result<proto::UploadResponse, Status> {
    let first = requests.try_next().await?.and_then(|request| request.message);
    let Some(upload_request::Message::Start(start)) = first else {
        return Err(Refusal::invalid("message", "the first message is start").into());
    };
    service.identity.expect(&start.expected_incarnation)?;
    let files = service.files.clone();
    let turn = turn(&files)?;
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    let writing = spawn_blocking(move || {
        let _turn = turn;
        let view = open(&files, start.view.clone())?;
        let messages = std::iter::from_fn(|| match receiver.blocking_recv() {
            Some(Incoming::Message(message)) => Some(Ok(message)),
            Some(Incoming::End) => None,
            None => Some(Err(Error::new(ErrorReason::Stopping, "the upload was cut"))),
        });
        transfer::upload(&view, &start, &files.shared, messages)
    });
    while let Some(request) = requests.try_next().await? {
        let unknown = || Refusal::invalid("message", "this runtime does not know that message");
        let message = request.message.ok_or_else(unknown)?;
        if sender.send(Incoming::Message(message)).await.is_err() {
            // It failed as a whole; the answer says how.
            break;
        }
    }
    let _ = sender.send(Incoming::End).await;
    Ok(done(writing.await.ok())?)
}

/// What a thread reads for a download.
struct Downloaded {
    receiver: mpsc::Receiver<Result<download_response::Message, Status>>,
    _call: Call,
}

impl Source for Downloaded {
    type Item = proto::DownloadResponse;

    async fn next(&mut self) -> Option<Result<Self::Item, Status>> {
        Some(
            self.receiver
                .recv()
                .await?
                .map(|message| proto::DownloadResponse { message: Some(message) }),
        )
    }
}

/// A directory that is watched.
struct Watched {
    subscription: Subscription,
    _call: Call,
}

impl Source for Watched {
    type Item = proto::WatchFilesResponse;

    async fn next(&mut self) -> Option<Result<Self::Item, Status>> {
        let event = self.subscription.next().await?;
        Some(Ok(watch_response(watch_files_response::Message::Event(event))))
    }
}

pub(crate) async fn download(
    service: &Service,
    request: proto::DownloadRequest,
) -> Result<Answers<proto::DownloadResponse>, Status> {
    let (files, call) = (service.files.clone(), service.call());
    let turn = turn(&files)?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    spawn_blocking(move || {
        let _turn = turn;
        let mut send = |message| sender.blocking_send(Ok(message)).is_ok();
        let outcome =
            open(&files, request.view.clone()).and_then(|view| transfer::download(&view, &request, &mut send));
        if let Err(error) = outcome {
            let _ = sender.blocking_send(Err(refusal(error).into()));
        }
    });
    let heartbeat = || proto::DownloadResponse {
        message: Some(download_response::Message::Heartbeat(Heartbeat {})),
    };
    Ok(answers(Downloaded { receiver, _call: call }, heartbeat))
}

pub(super) async fn watch(
    service: &Service,
    request: proto::WatchFilesRequest,
) -> Result<Answers<proto::WatchFilesResponse>, Status> {
    let (files, call) = (service.files.clone(), service.call());
    let subscription = blocking(&service.files.hands, move || {
        let view = Arc::new(open(&files, request.view.clone())?);
        files.watches.subscribe(view, &request)
    })
    .await?;
    let heartbeat = || watch_response(watch_files_response::Message::Heartbeat(Heartbeat {}));
    Ok(answers(
        Watched {
            subscription,
            _call: call,
        },
        heartbeat,
    ))
}

fn watch_response(message: watch_files_response::Message) -> proto::WatchFilesResponse {
    proto::WatchFilesResponse { message: Some(message) }
}

/// The right to a thread for a transfer.
fn turn(files: &Files) -> Result<OwnedSemaphorePermit, Refusal> {
    files.transfers.clone().try_acquire_owned().map_err(|_| {
        let message = format!("{MAX_TRANSFERS} uploads and downloads are under way, which is the most at once");
        Refusal::new(ErrorReason::LimitReached, message).with_retry_after(RETRY)
    })
}

fn open(files: &Files, view: Option<FileView>) -> Result<View, Error> {
    View::open(&view.unwrap_or_default(), &files.defaults)
}

async fn blocking<T: Send + 'static>(
    hands: &Hands,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Refusal> {
    done(hands.run(work).await)
}

fn done<T>(outcome: Option<Result<T, Error>>) -> Result<T, Refusal> {
    let panicked = || {
        Err(Refusal::new(
            ErrorReason::Internal,
            "the work on files did not come to its end",
        ))
    };
    outcome.map_or_else(panicked, |outcome| outcome.map_err(refusal))
}

/// An error of files as a refusal of the whole call.
fn refusal(error: Error) -> Refusal {
    let refusal = match error.reason {
        ErrorReason::LimitReached => Refusal::new(error.reason, error.message).with_retry_after(RETRY),
        ErrorReason::InvalidArgument => Refusal::invalid("request", error.message),
        reason => Refusal::new(reason, error.message),
    };
    match error.path {
        Some(path) => refusal.with("path", String::from_utf8_lossy(&path)),
        None => refusal,
    }
}
