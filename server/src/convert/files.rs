//! Files: requests lose what is the server's.

use sandgate_proto::{
    runtime::v1::{self as runtime, upload_request::Message as Runtime},
    v1::{self as public, upload_request::Message as Public},
};

use super::{ConvertError, IntoRuntime, requests, same_wire};

requests! {
    FileOpsRequest {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [batch_id, stop_on_error],
        twins: [view, ops],
    }
    UploadStart {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [format, directory, directory_raw],
        twins: [view],
    }
    DownloadRequest {
        resumes: auto_resume,
        moves: [format],
        twins: [view, paths],
    }
    WriteChunkRequest {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [upload_id, offset, data, finish, sha256],
        twins: [view, entry],
    }
    WatchFilesRequest {
        resumes: auto_resume,
        moves: [path, path_raw, recursive],
        twins: [view],
    }
}

impl IntoRuntime for public::UploadRequest {
    type Runtime = runtime::UploadRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let message = match self.message.ok_or(ConvertError::Missing("message"))? {
            // First, because it is nearly all of an upload: its bytes move and are not copied.
            Public::Chunk(chunk) => Runtime::Chunk(chunk),
            Public::Start(start) => Runtime::Start(start.into_runtime()?),
            Public::Entry(entry) => Runtime::Entry(same_wire(&entry)?),
            Public::EntryEnd(end) => Runtime::EntryEnd(same_wire(&end)?),
        };
        Ok(runtime::UploadRequest { message: Some(message) })
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
            message: Some(Public::Start(start)),
        };
        let Some(Runtime::Start(start)) = message.into_runtime().unwrap().message else {
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
        let chunk = public::UploadRequest {
            message: Some(Public::Chunk(data.clone())),
        };
        let Some(Runtime::Chunk(chunk)) = chunk.into_runtime().unwrap().message else {
            panic!("not a chunk")
        };
        assert_eq!(chunk.as_ptr(), data.as_ptr());
    }
}
