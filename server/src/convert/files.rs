//! Files: requests lose what is the server's, answers pass as they are.

use sandgate_proto::{
    runtime::v1::{self as runtime, upload_request::Message as RuntimeUpload},
    v1::{self as public, upload_request::Message as PublicUpload},
};

use super::{ConvertError, IntoPublic, IntoRuntime, same_wire, same_wire_all, same_wire_option};

impl IntoRuntime for public::FileOpsRequest {
    type Runtime = runtime::FileOpsRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            expected_incarnation,
            auto_resume: _,
            batch_id,
            view,
            ops,
            stop_on_error,
        } = self;
        Ok(runtime::FileOpsRequest {
            expected_incarnation,
            batch_id,
            view: same_wire_option(view.as_ref())?,
            ops: same_wire_all(&ops)?,
            stop_on_error,
        })
    }
}

impl IntoRuntime for public::UploadRequest {
    type Runtime = runtime::UploadRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let message = match self.message.ok_or(ConvertError::Missing("message"))? {
            PublicUpload::Start(start) => RuntimeUpload::Start(start.into_runtime()?),
            PublicUpload::Entry(entry) => RuntimeUpload::Entry(same_wire(&entry)?),
            PublicUpload::Chunk(chunk) => RuntimeUpload::Chunk(chunk),
            PublicUpload::EntryEnd(end) => RuntimeUpload::EntryEnd(same_wire(&end)?),
        };
        Ok(runtime::UploadRequest { message: Some(message) })
    }
}

impl IntoRuntime for public::UploadStart {
    type Runtime = runtime::UploadStart;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            expected_incarnation,
            auto_resume: _,
            view,
            format,
            directory,
            directory_raw,
        } = self;
        let view = same_wire_option(view.as_ref())?;
        Ok(runtime::UploadStart {
            view,
            format,
            directory,
            directory_raw,
            expected_incarnation,
        })
    }
}

impl IntoRuntime for public::DownloadRequest {
    type Runtime = runtime::DownloadRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            auto_resume: _,
            view,
            paths,
            format,
        } = self;
        let view = same_wire_option(view.as_ref())?;
        Ok(runtime::DownloadRequest {
            view,
            paths: same_wire_all(&paths)?,
            format,
        })
    }
}

impl IntoRuntime for public::WriteChunkRequest {
    type Runtime = runtime::WriteChunkRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            expected_incarnation,
            auto_resume: _,
            upload_id,
            view,
            entry,
            offset,
            data,
            finish,
            sha256,
        } = self;
        Ok(runtime::WriteChunkRequest {
            expected_incarnation,
            upload_id,
            view: same_wire_option(view.as_ref())?,
            entry: same_wire_option(entry.as_ref())?,
            offset,
            data,
            finish,
            sha256,
        })
    }
}

impl IntoRuntime for public::WatchFilesRequest {
    type Runtime = runtime::WatchFilesRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            auto_resume: _,
            view,
            path,
            path_raw,
            recursive,
        } = self;
        Ok(runtime::WatchFilesRequest {
            view: same_wire_option(view.as_ref())?,
            path,
            path_raw,
            recursive,
        })
    }
}

/// Written out for chunks, which are nearly all of a download: their bytes move and are not copied.
impl IntoPublic for runtime::DownloadResponse {
    type Public = public::DownloadResponse;

    fn into_public(self) -> Result<Self::Public, ConvertError> {
        use public::download_response::Message as Public;
        use runtime::download_response::Message as Runtime;
        match self.message {
            Some(Runtime::Chunk(chunk)) => Ok(public::DownloadResponse {
                message: Some(Public::Chunk(chunk)),
            }),
            _ => same_wire(&self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_keeps_all_but_what_is_the_servers() {
        let start = public::UploadStart {
            sandbox: "box".into(),
            expected_incarnation: "i1".into(),
            auto_resume: true,
            view: Some(public::FileView {
                root_dir: "/w".into(),
                root_dir_raw: vec![].into(),
                user: "agent".into(),
            }),
            format: public::TransferFormat::Tar.into(),
            directory: "d".into(),
            directory_raw: vec![].into(),
        };
        let message = public::UploadRequest {
            message: Some(PublicUpload::Start(start)),
        };
        let Some(RuntimeUpload::Start(start)) = message.into_runtime().unwrap().message else {
            panic!("not a start")
        };
        assert_eq!(start.expected_incarnation, "i1");
        assert_eq!(start.format(), runtime::TransferFormat::Tar);
        assert_eq!(start.directory, "d");
        assert_eq!(start.view.unwrap().user, "agent");
        assert_eq!(
            public::UploadRequest { message: None }.into_runtime(),
            Err(ConvertError::Missing("message"))
        );
    }

    #[test]
    fn chunks_move() {
        let data = prost::bytes::Bytes::from(vec![7; 100]);
        let chunk = runtime::download_response::Message::Chunk(data.clone());
        let public = runtime::DownloadResponse { message: Some(chunk) }
            .into_public()
            .unwrap();
        let Some(public::download_response::Message::Chunk(chunk)) = public.message else {
            panic!("not a chunk")
        };
        assert_eq!(chunk.as_ptr(), data.as_ptr());
    }
}
