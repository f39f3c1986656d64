//! The calls on files: upload, download, list, exists.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::unfold};
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sandgate_errors::Refusal;
use sandgate_files::path::twins;
use sandgate_proto::{
    runtime::v1::{
        DownloadPath, DownloadRequest, FileError, FileInfo, FileOp, FileOpsRequest, FileType, ListOp, ListResult,
        StatOp, UploadEntry, UploadEntryEnd, UploadRequest, UploadStart, download_response, file_op, file_op_result,
        upload_request,
    },
    v1::ErrorReason,
};
use serde_json::{Value, json};
use tonic::{Status, body::Body};

use super::{
    PythonApi, detail, message,
    multipart::{FormError, Multipart},
    path::{Outside, meanings, relative},
    typed, with_json,
};
use crate::{service::files, stream::Answers};

/// Why a call on a file fails.
#[derive(Debug)]
struct Failure {
    reason: ErrorReason,
    message: String,
}

/// The bytes of a file on their way to a caller.
struct Content {
    messages: Answers<sandgate_proto::runtime::v1::DownloadResponse>,
    left: u64,
}

/// What stays as it is in the name of a downloaded file.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'~');
const PAGE: u32 = 1_000;

pub(super) async fn upload(api: &PythonApi, request: Request<Incoming>) -> Response<Body> {
    let _call = api.service.call();
    let kind = request.headers().get(CONTENT_TYPE).cloned();
    let kind = kind.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut form = match Multipart::new(request.into_body(), kind) {
        Ok(form) => form,
        Err(error) => return detail(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
    };
    let name = loop {
        match form.part().await {
            Ok(Some(part)) if part.name == "file" => break part.file_name.unwrap_or_default(),
            Ok(Some(_)) => {}
            Ok(None) => return detail(StatusCode::UNPROCESSABLE_ENTITY, "the form has no part named file"),
            Err(error) => return detail(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        }
    };
    match store(api, &name, form).await {
        Ok(()) => message(StatusCode::OK, format!("File '{name}' uploaded successfully.")),
        Err(failure) if failure.is_outside() => denied(),
        Err(failure) => message(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("File upload failed: {}", failure.message),
        ),
    }
}

/// Writes the part at hand to a file, which appears when the whole form has come.
async fn store(api: &PythonApi, name: &str, form: Multipart<Incoming>) -> Result<(), Failure> {
    let path = relative(name.as_bytes())?;
    let (path, path_raw) = twins(path);
    let start = UploadStart {
        view: Some(api.base.clone()),
        ..Default::default()
    };
    let entry = UploadEntry {
        path,
        path_raw,
        ..Default::default()
    };
    let first = [
        Ok(request(upload_request::Message::Start(start))),
        Ok(request(upload_request::Message::Entry(entry))),
    ];
    let content = unfold(Some(form), |form| async move {
        let mut form = form?;
        match next_of(&mut form).await {
            Ok(Some(chunk)) => Some((Ok(request(upload_request::Message::Chunk(chunk))), Some(form))),
            Ok(None) => Some((
                Ok(request(upload_request::Message::EntryEnd(UploadEntryEnd::default()))),
                None,
            )),
            Err(error) => Some((Err(Status::cancelled(error.to_string())), None)),
        }
    });
    let requests = Box::pin(futures_util::stream::iter(first).chain(content));
    let answer = files::upload(&api.service, requests).await?;
    match answer.failures.into_iter().next() {
        None => Ok(()),
        Some(failure) => Err(failure.error.unwrap_or_default().into()),
    }
}

/// The next bytes of a part; nothing when the form was read to its end.
async fn next_of(form: &mut Multipart<Incoming>) -> Result<Option<Bytes>, FormError> {
    if let Some(chunk) = form.chunk().await? {
        return Ok(Some(chunk));
    }
    while form.part().await?.is_some() {}
    Ok(None)
}

fn request(message: upload_request::Message) -> UploadRequest {
    UploadRequest { message: Some(message) }
}

pub(super) async fn download(api: &PythonApi, encoded: &str) -> Response<Body> {
    let _call = api.service.call();
    let outcome = async {
        let (path, info) = find(api, encoded).await?;
        if info.r#type() != FileType::Regular {
            return Err(Failure::new(ErrorReason::FileNotRegular, "not a file"));
        }
        open(api, &path).await
    };
    match outcome.await {
        Ok((info, content)) => {
            let frames = unfold(Some(content), |content| async move {
                let mut content = content?;
                match content.next().await {
                    Some(Err(status)) => Some((Err(status), None)),
                    Some(Ok(bytes)) => Some((Ok(Frame::data(bytes)), Some(content))),
                    None => None,
                }
            });
            let body = Body::new(StreamBody::new(frames));
            let mut response = typed(StatusCode::OK, "application/octet-stream", body);
            let headers = response.headers_mut();
            headers.insert(CONTENT_LENGTH, HeaderValue::from(info.size));
            headers.extend(disposition(&info).map(|value| (CONTENT_DISPOSITION, value)));
            response
        }
        Err(failure) if failure.is_outside() => denied(),
        Err(failure) if failure.is_missing() => message(StatusCode::NOT_FOUND, "File not found"),
        Err(failure) => message(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("File download failed: {}", failure.message),
        ),
    }
}

async fn open(api: &PythonApi, path: &[u8]) -> Result<(FileInfo, Content), Failure> {
    let (path, path_raw) = twins(path);
    let wanted = DownloadRequest {
        view: Some(api.base.clone()),
        paths: vec![DownloadPath {
            path,
            path_raw,
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut messages = files::download(&api.service, wanted).await?;
    while let Some(message) = messages.next().await {
        match message?.message {
            Some(download_response::Message::Entry(entry)) => {
                let info = entry.info.unwrap_or_default();
                let left = info.size;
                return Ok((info, Content { messages, left }));
            }
            Some(download_response::Message::Failure(failure)) => return Err(failure.error.unwrap_or_default().into()),
            _ => {}
        }
    }
    Err(Failure::new(
        ErrorReason::Internal,
        "the download ended before it began",
    ))
}

fn disposition(info: &FileInfo) -> Option<HeaderValue> {
    let name = percent_encode(name_of(info), NAME);
    HeaderValue::try_from(format!("attachment; filename*=utf-8''{name}")).ok()
}

pub(super) async fn list(api: &PythonApi, encoded: &str) -> Response<Body> {
    let _call = api.service.call();
    let outcome = async {
        let (path, info) = find(api, encoded).await?;
        if info.r#type() != FileType::Directory {
            return Err(Failure::new(ErrorReason::FileNotDirectory, "not a directory"));
        }
        entries(api, &path).await
    };
    match outcome.await {
        Ok(entries) => with_json(StatusCode::OK, &Value::Array(entries)),
        Err(failure) if failure.is_outside() => denied(),
        Err(failure) if failure.is_missing() => message(StatusCode::NOT_FOUND, "Path is not a directory"),
        Err(failure) => message(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("List files failed: {}", failure.message),
        ),
    }
}

async fn entries(api: &PythonApi, path: &[u8]) -> Result<Vec<Value>, Failure> {
    let mut entries = Vec::new();
    let mut page_token = String::new();
    loop {
        let (path, path_raw) = twins(or_dot(path));
        let op = ListOp {
            path,
            path_raw,
            page_size: PAGE,
            page_token,
            ..Default::default()
        };
        let ListResult {
            entries: mut page,
            next_page_token,
        } = match ops(api, vec![file_op::Op::List(op)]).await?.pop() {
            Some(file_op_result::Result::List(page)) => page,
            other => return Err(other.into()),
        };
        follow(api, &mut page).await?;
        entries.extend(page.iter().map(entry));
        if next_page_token.is_empty() {
            return Ok(entries);
        }
        page_token = next_page_token;
    }
}

/// The API knows files and directories only, so a symlink is told as what it leads to, if that can be seen.
async fn follow(api: &PythonApi, page: &mut [FileInfo]) -> Result<(), Failure> {
    let (links, stats): (Vec<&mut FileInfo>, Vec<_>) = page
        .iter_mut()
        .filter(|info| info.r#type() == FileType::Symlink)
        .map(|info| {
            let op = StatOp {
                path: info.path.clone(),
                path_raw: info.path_raw.clone(),
                follow: true,
            };
            (info, file_op::Op::Stat(op))
        })
        .unzip();
    if stats.is_empty() {
        return Ok(());
    }
    for (link, result) in links.into_iter().zip(ops(api, stats).await?) {
        if let file_op_result::Result::Info(target) = result {
            (link.r#type, link.size, link.modified) = (target.r#type, target.size, target.modified);
        }
    }
    Ok(())
}

fn entry(info: &FileInfo) -> Value {
    let kind = if info.r#type() == FileType::Directory {
        "directory"
    } else {
        "file"
    };
    let modified = info.modified.unwrap_or_default();
    json!({
        "name": String::from_utf8_lossy(name_of(info)),
        "size": info.size,
        "type": kind,
        "mod_time": modified.seconds as f64 + f64::from(modified.nanos) / 1e9,
    })
}

pub(super) async fn exists(api: &PythonApi, encoded: &str) -> Response<Body> {
    let _call = api.service.call();
    let exists = match find(api, encoded).await {
        Ok(_) => true,
        Err(failure) if failure.is_outside() => return denied(),
        Err(_) => false,
    };
    let path = meanings(encoded).next().unwrap_or_default();
    with_json(
        StatusCode::OK,
        &json!({"path": String::from_utf8_lossy(&path), "exists": exists}),
    )
}

/// The file that a URL names, under the first of its meanings that there is.
async fn find(api: &PythonApi, encoded: &str) -> Result<(Vec<u8>, FileInfo), Failure> {
    let mut missing = Failure::new(ErrorReason::FileNotFound, "no such file");
    for meaning in meanings(encoded) {
        let meant = relative(&meaning)?;
        let (path, path_raw) = twins(or_dot(meant));
        let op = StatOp {
            path,
            path_raw,
            follow: true,
        };
        match ops(api, vec![file_op::Op::Stat(op)]).await?.pop() {
            Some(file_op_result::Result::Info(info)) => return Ok((meant.to_vec(), info)),
            other => missing = other.into(),
        }
        if !missing.is_missing() {
            break;
        }
    }
    Err(missing)
}

/// The base directory itself has no name.
fn or_dot(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

async fn ops(api: &PythonApi, ops: Vec<file_op::Op>) -> Result<Vec<file_op_result::Result>, Failure> {
    let request = FileOpsRequest {
        view: Some(api.base.clone()),
        ops: ops.into_iter().map(|op| FileOp { op: Some(op) }).collect(),
        ..Default::default()
    };
    let answer = files::batch(&api.service, request).await?;
    Ok(answer.results.into_iter().filter_map(|result| result.result).collect())
}

fn name_of(info: &FileInfo) -> &[u8] {
    let path = if info.path.is_empty() {
        &info.path_raw[..]
    } else {
        info.path.as_bytes()
    };
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn denied() -> Response<Body> {
    message(StatusCode::FORBIDDEN, "Access denied")
}

// === impl Content ===

impl Content {
    /// The next bytes. As many come as were told before: a file that grows is cut there, one that shrinks is an error.
    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        while self.left > 0 {
            let message = match self.messages.next().await {
                Some(Ok(message)) => message.message,
                Some(Err(status)) => return Some(Err(status)),
                None => return Some(Err(Status::aborted("the file ended early"))),
            };
            if let Some(download_response::Message::Chunk(mut bytes)) = message {
                bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= bytes.len() as u64;
                return Some(Ok(bytes));
            }
        }
        None
    }
}

// === impl Failure ===

impl Failure {
    fn new(reason: ErrorReason, message: &str) -> Self {
        Self {
            reason,
            message: message.to_owned(),
        }
    }

    fn is_outside(&self) -> bool {
        self.reason == ErrorReason::PathOutsideRoot
    }

    /// There is nothing of the kind that was asked for.
    fn is_missing(&self) -> bool {
        matches!(
            self.reason,
            ErrorReason::FileNotFound | ErrorReason::FileNotDirectory | ErrorReason::FileNotRegular
        )
    }
}

impl From<Outside> for Failure {
    fn from(Outside: Outside) -> Self {
        Self::new(ErrorReason::PathOutsideRoot, "the path leads out of the base directory")
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self {
            reason: error.reason(),
            message: error.message,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self {
            reason: refusal.reason,
            message: refusal.message,
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        match Refusal::from_status(&status) {
            Some(refusal) => refusal.into(),
            None => Self::new(ErrorReason::Internal, status.message()),
        }
    }
}

/// A result that is not the one that was asked for.
impl From<Option<file_op_result::Result>> for Failure {
    fn from(result: Option<file_op_result::Result>) -> Self {
        match result {
            Some(file_op_result::Result::Error(error)) => error.into(),
            _ => Self::new(ErrorReason::Internal, "the operation was not run"),
        }
    }
}
