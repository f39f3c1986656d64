//! Transfers, shortly written.

use sandgate_proto::runtime::v1::{
    DownloadEntry, DownloadEntryEnd, DownloadPath, DownloadRequest, DownloadSummary, FileError, FileView,
    TransferFormat, UploadEntry, UploadEntryEnd, UploadRequest, UploadResponse, UploadStart, download_response,
    upload_request::Message,
};
use tonic::Status;

use crate::runtime::Client;

/// All that came of a download.
#[derive(Debug, Default)]
pub struct Downloaded {
    /// Each entry with its content and its end.
    pub entries: Vec<(DownloadEntry, Vec<u8>, Option<DownloadEntryEnd>)>,
    /// Bytes of the tar.
    pub tar: Vec<u8>,
    /// Entries that failed.
    pub failures: Vec<FileError>,
    /// The end. Without it the download was cut.
    pub summary: Option<DownloadSummary>,
}

/// The start of an upload of files.
#[must_use]
pub fn upload_start(view: &FileView) -> UploadStart {
    UploadStart {
        view: Some(view.clone()),
        ..Default::default()
    }
}

/// A regular file of which an upload says no more than its path.
#[must_use]
pub fn file_at(path: &str) -> UploadEntry {
    UploadEntry {
        path: path.to_owned(),
        ..Default::default()
    }
}

/// Uploads messages behind a start.
pub async fn upload(client: &mut Client, start: UploadStart, messages: Vec<Message>) -> Result<UploadResponse, Status> {
    let messages = std::iter::once(Message::Start(start)).chain(messages);
    let requests: Vec<_> = messages
        .map(|message| UploadRequest { message: Some(message) })
        .collect();
    Ok(client.upload(tokio_stream::iter(requests)).await?.into_inner())
}

/// Uploads a tar into a directory.
pub async fn upload_tar(
    client: &mut Client,
    view: &FileView,
    directory: &str,
    tar: &[u8],
) -> Result<UploadResponse, Status> {
    let start = UploadStart {
        directory: directory.to_owned(),
        format: TransferFormat::Tar.into(),
        ..upload_start(view)
    };
    upload(client, start, chunks(tar)).await
}

/// One entry of an upload: its start, its content and its end.
#[must_use]
pub fn upload_entry(entry: UploadEntry, content: &[u8]) -> Vec<Message> {
    let mut messages = vec![Message::Entry(entry)];
    messages.extend(chunks(content));
    messages.push(Message::EntryEnd(UploadEntryEnd::default()));
    messages
}

/// Bytes in chunks of 64 KiB.
#[must_use]
pub fn chunks(bytes: &[u8]) -> Vec<Message> {
    bytes
        .chunks(64 << 10)
        .map(|chunk| Message::Chunk(chunk.to_vec().into()))
        .collect()
}

/// Asks for paths.
#[must_use]
pub fn download_request(view: &FileView, paths: &[&str], format: TransferFormat) -> DownloadRequest {
    let paths = paths
        .iter()
        .map(|path| DownloadPath {
            path: (*path).to_owned(),
            ..Default::default()
        })
        .collect();
    DownloadRequest {
        view: Some(view.clone()),
        paths,
        format: format.into(),
    }
}

/// Downloads paths to the end.
pub async fn download(client: &mut Client, view: &FileView, paths: &[&str], format: TransferFormat) -> Downloaded {
    try_download(client, download_request(view, paths, format))
        .await
        .unwrap()
}

/// Downloads to the end.
pub async fn try_download(client: &mut Client, request: DownloadRequest) -> Result<Downloaded, Status> {
    let tar = request.format() == TransferFormat::Tar;
    let mut stream = client.download(request).await?.into_inner();
    let mut all = Downloaded::default();
    while let Some(answer) = stream.message().await? {
        assert!(all.summary.is_none(), "the summary is last");
        match answer.message.expect("a message") {
            download_response::Message::Entry(entry) => all.entries.push((entry, Vec::new(), None)),
            download_response::Message::Chunk(bytes) => {
                assert!(bytes.len() <= 64 << 10);
                if tar {
                    &mut all.tar
                } else {
                    &mut all.entries.last_mut().unwrap().1
                }
                .extend_from_slice(&bytes);
            }
            download_response::Message::EntryEnd(end) => all.entries.last_mut().unwrap().2 = Some(end),
            download_response::Message::Failure(failure) => all.failures.push(failure.error.unwrap()),
            download_response::Message::Summary(summary) => all.summary = Some(summary),
            download_response::Message::Heartbeat(_) => {}
        }
    }
    Ok(all)
}
