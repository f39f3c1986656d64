//! Files in and out of a sandbox. Nothing larger than a chunk is held, but where bytes are asked for.

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::StreamExt as _;

use crate::{
    error::{Error, Result},
    sandbox::Sandbox,
    v1::{self, download_response::Message as Down, upload_request::Message as Up},
};

const CHUNK: usize = 64 << 10;

// === impl Sandbox ===

impl Sandbox {
    /// Makes or replaces a file. Missing directories above it are made.
    ///
    /// # Errors
    /// The file can't be written, the server refused, or the connection was lost: then the old file is there, or the
    /// new one, whole.
    pub async fn upload(&self, path: &str, content: impl Into<Bytes>) -> Result<()> {
        let content = content.into();
        let entry = v1::UploadEntry {
            path: path.into(),
            size: Some(content.len() as u64),
            ..Default::default()
        };
        let chunks: Vec<Up> = content
            .chunks(CHUNK)
            .map(|chunk| Up::Chunk(content.slice_ref(chunk)))
            .collect();
        let messages = [
            Up::Start(self.upload_start(v1::TransferFormat::Files, "")),
            Up::Entry(entry),
        ]
        .into_iter()
        .chain(chunks)
        .chain([Up::EntryEnd(v1::UploadEntryEnd::default())]);
        self.send(tokio_stream::iter(messages)).await.map(drop)
    }

    /// Unpacks a tar stream in a directory, which is made if it is missing.
    ///
    /// # Errors
    /// An entry can't be made, the server refused, or the connection was lost. Entries before that are there.
    pub async fn upload_tar(
        &self,
        directory: &str,
        tar: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<v1::UploadResponse> {
        let start = Up::Start(self.upload_start(v1::TransferFormat::Tar, directory));
        self.send(tokio_stream::once(start).chain(tar.map(Up::Chunk))).await
    }

    /// A file's content, which must fit into memory.
    ///
    /// # Errors
    /// The file can't be read, the server refused, or the connection was lost.
    pub async fn download(&self, path: &str) -> Result<Bytes> {
        let mut content = BytesMut::new();
        let mut chunks = std::pin::pin!(self.chunks(path.into(), v1::TransferFormat::Files).await?);
        while let Some(chunk) = chunks.next().await {
            content.extend_from_slice(&chunk?);
        }
        Ok(content.freeze())
    }

    /// A file or directory as a tar stream. It is whole if it ends without an error.
    ///
    /// # Errors
    /// The server refused, or is out of reach. What goes wrong later is told by the stream.
    pub async fn download_tar(&self, path: &str) -> Result<impl Stream<Item = Result<Bytes>> + use<>> {
        self.chunks(path.into(), v1::TransferFormat::Tar).await
    }

    fn upload_start(&self, format: v1::TransferFormat, directory: &str) -> v1::UploadStart {
        v1::UploadStart {
            sandbox: self.name().into(),
            expected_incarnation: self.expected_incarnation().into(),
            auto_resume: self.auto_resumes(),
            format: format.into(),
            directory: directory.into(),
            ..Default::default()
        }
    }

    async fn send(&self, messages: impl Stream<Item = Up> + Send + 'static) -> Result<v1::UploadResponse> {
        let requests = messages.map(|message| v1::UploadRequest { message: Some(message) });
        let mut answer = self.client().raw().upload(requests).await?.into_inner();
        match answer.failures.pop() {
            Some(failure) => Err(failed(failure)),
            None => Ok(answer),
        }
    }

    async fn chunks(
        &self,
        path: String,
        format: v1::TransferFormat,
    ) -> Result<impl Stream<Item = Result<Bytes>> + use<>> {
        let request = v1::DownloadRequest {
            sandbox: self.name().into(),
            auto_resume: self.auto_resumes(),
            paths: vec![v1::DownloadPath {
                path,
                ..Default::default()
            }],
            format: format.into(),
            ..Default::default()
        };
        let messages = self.client().raw().download(request).await?.into_inner();
        Ok(futures_util::stream::try_unfold(Some(messages), async |messages| {
            let Some(mut messages) = messages else {
                return Ok(None);
            };
            loop {
                let message = messages.message().await?.and_then(|message| message.message);
                match message {
                    Some(Down::Chunk(chunk)) => return Ok(Some((chunk, Some(messages)))),
                    Some(Down::Failure(failure)) => return Err(failed(failure)),
                    Some(Down::Summary(_)) => return Ok(None),
                    Some(Down::Entry(_) | Down::EntryEnd(_) | Down::Heartbeat(_)) => {}
                    None => return Err(Error::Protocol("the download was cut".into())),
                }
            }
        }))
    }
}

fn failed(failure: v1::TransferFailure) -> Error {
    Error::File(Box::new(failure.error.unwrap_or_default()))
}
