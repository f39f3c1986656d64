//! What every driver must do with files.

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

use bytes::Bytes;
use sandgate_proto::{
    runtime::v1::{
        self as proto, FileOp, FileOpsRequest, FileType, download_response, file_op::Op,
        file_op_result::Result as Outcome, upload_request,
    },
    v1::ErrorReason,
};

use super::{Client, Pod, reason};

impl Pod {
    pub(super) async fn works_on_files(&self) {
        let mut server = self.server();
        let (deep, copy, moved) = (self.path("d/e/file $x"), self.path("d/copy"), self.path("m/moved"));
        let content = Bytes::from(
            (0..200_000u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect::<Vec<_>>(),
        );
        let write = Op::Write(proto::WriteOp {
            path: deep.clone(),
            content: content.clone(),
            make_parents: true,
            mode: Some(0o640),
            ..Default::default()
        });
        let read = Op::Read(proto::ReadOp {
            path: deep.clone(),
            ..Default::default()
        });
        let outcomes = ops(&mut server, "w", vec![write, read]).await.unwrap();
        let Outcome::Info(info) = &outcomes[0] else {
            panic!("{:?}", outcomes[0])
        };
        assert_eq!(
            (info.size, info.mode, info.r#type()),
            (200_000, 0o640, FileType::Regular)
        );
        let Outcome::Read(read) = &outcomes[1] else {
            panic!("{:?}", outcomes[1])
        };
        assert!(read.content == content && !read.more_after && read.binary);
        let steps = vec![
            Op::Copy(proto::CopyOp {
                from: deep.clone(),
                to: copy.clone(),
                ..Default::default()
            }),
            Op::Move(proto::MoveOp {
                from: deep.clone(),
                to: moved.clone(),
                make_parents: true,
                ..Default::default()
            }),
            Op::Mkdir(proto::MkdirOp {
                path: self.path("d/.hidden"),
                ..Default::default()
            }),
            Op::List(proto::ListOp {
                path: self.path("d"),
                ..Default::default()
            }),
            Op::Remove(proto::RemoveOp {
                path: self.path("d"),
                recursive: true,
                ..Default::default()
            }),
            Op::Stat(proto::StatOp {
                path: copy.clone(),
                ..Default::default()
            }),
        ];
        let outcomes = ops(&mut server, "steps", steps.clone()).await.unwrap();
        let Outcome::List(list) = &outcomes[3] else {
            panic!("{:?}", outcomes[3])
        };
        let names: Vec<_> = list
            .entries
            .iter()
            .map(|entry| entry.path.rsplit('/').next().unwrap())
            .collect();
        assert_eq!(names, [".hidden", "copy", "e"]);
        let Outcome::Remove(removed) = &outcomes[4] else {
            panic!("{:?}", outcomes[4])
        };
        assert_eq!(removed.removed, 4);
        let Outcome::Error(error) = &outcomes[5] else {
            panic!("{:?}", outcomes[5])
        };
        assert_eq!((error.reason(), &error.path), (ErrorReason::FileNotFound, &copy));
        assert!(std::fs::read(&moved).unwrap() == content);
        // A repeat is answered as the first, and elsewhere refused.
        assert_eq!(ops(&mut server, "steps", steps.clone()).await.unwrap(), outcomes);
        assert_eq!(
            ops(&mut self.server(), "steps", steps).await.unwrap_err(),
            ErrorReason::BatchExpired
        );
        self.reads_lines(&mut server).await;
        self.keeps_what_is_there(&mut server).await;
    }

    async fn reads_lines(&self, server: &mut Client) {
        let path = self.path("lines");
        std::fs::write(&path, "one\ntwo\nthree\nfour").unwrap();
        let read = |first, count| {
            Op::Read(proto::ReadOp {
                path: path.clone(),
                window: Some(proto::read_op::Window::Lines(proto::LineWindow { first, count })),
                ..Default::default()
            })
        };
        let outcomes = ops(server, "", vec![read(1, 2), read(3, 0), read(9, 1)]).await.unwrap();
        let told: Vec<_> = outcomes
            .iter()
            .map(|outcome| match outcome {
                Outcome::Read(read) => (read.content.clone(), read.offset, read.line_count, read.total_lines),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(told[0], ("two\nthree\n".into(), 4, 2, 4));
        assert_eq!(told[1], ("four".into(), 14, 1, 4));
        assert_eq!((told[2].0.len(), told[2].3), (0, 4));
    }

    async fn keeps_what_is_there(&self, server: &mut Client) {
        let path = self.path("kept");
        std::fs::write(&path, "old").unwrap();
        // Whoever the pod runs as.
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let write = |mode: proto::WriteMode, path: &str| {
            Op::Write(proto::WriteOp {
                path: path.to_owned(),
                content: "new".into(),
                write_mode: mode.into(),
                ..Default::default()
            })
        };
        let steps = vec![
            write(proto::WriteMode::CreateOnly, &path),
            write(proto::WriteMode::Append, &path),
            write(proto::WriteMode::Overwrite, &self.path("no/such")),
            write(proto::WriteMode::Overwrite, self.directory.path().to_str().unwrap()),
            Op::Remove(proto::RemoveOp {
                path: "/proc/version".into(),
                ..Default::default()
            }),
        ];
        let outcomes = ops(server, "kept", steps).await.unwrap();
        let reasons: Vec<_> = outcomes
            .iter()
            .map(|outcome| match outcome {
                Outcome::Error(error) => error.reason(),
                _ => ErrorReason::Unspecified,
            })
            .collect();
        use ErrorReason as R;
        assert_eq!(
            reasons[..4],
            [
                R::FileAlreadyExists,
                R::Unspecified,
                R::FileNotFound,
                R::FileIsDirectory
            ]
        );
        assert!(
            matches!(reasons[4], R::FilePermissionDenied | R::FileIo),
            "{outcomes:?}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "oldnew");
        let left = std::fs::read_dir(self.directory.path()).unwrap().filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .ends_with(".sandgate")
        });
        assert_eq!(left.count(), 1, "only the claims are left");
    }

    pub(super) async fn transfers(&self) {
        let mut server = self.server();
        let content: Vec<u8> = (0..3_000_000u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let (path, link) = (self.path("up/load"), self.path("up/link"));
        let mut messages = vec![
            upload_request::Message::Start(proto::UploadStart::default()),
            upload_request::Message::Entry(proto::UploadEntry {
                path: path.clone(),
                mode: Some(0o600),
                ..Default::default()
            }),
        ];
        messages.extend(
            content
                .chunks(64 << 10)
                .map(|chunk| upload_request::Message::Chunk(Bytes::copy_from_slice(chunk))),
        );
        messages.push(upload_request::Message::EntryEnd(proto::UploadEntryEnd::default()));
        messages.push(upload_request::Message::Entry(proto::UploadEntry {
            path: link.clone(),
            r#type: FileType::Symlink.into(),
            symlink_target: "load".into(),
            ..Default::default()
        }));
        messages.push(upload_request::Message::EntryEnd(proto::UploadEntryEnd::default()));
        messages.push(upload_request::Message::Entry(proto::UploadEntry {
            path: self.path("up/cut"),
            ..Default::default()
        }));
        messages.push(upload_request::Message::EntryEnd(proto::UploadEntryEnd {
            sha256: vec![1; 32].into(),
        }));
        let messages = messages
            .into_iter()
            .map(|message| proto::UploadRequest { message: Some(message) });
        let answer = server
            .upload(futures_util::stream::iter(messages))
            .await
            .unwrap()
            .into_inner();
        assert_eq!((answer.entries, answer.bytes, answer.failures_total), (2, 3_000_000, 1));
        assert_eq!(
            answer.failures[0].error.as_ref().unwrap().reason(),
            ErrorReason::HashMismatch
        );
        assert!(std::fs::read(&path).unwrap() == content);
        let names: Vec<_> = std::fs::read_dir(self.path("up")).unwrap().collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let wanted = |path: &str, offset| proto::DownloadPath {
            path: path.to_owned(),
            offset,
            ..Default::default()
        };
        let request = proto::DownloadRequest {
            paths: vec![
                wanted(&link, 500_000),
                wanted(&self.path("up"), 0),
                wanted("/no/such", 0),
            ],
            ..Default::default()
        };
        let mut stream = server.download(request).await.unwrap().into_inner();
        let (mut got, mut failures, mut summary) = (Vec::new(), Vec::new(), None);
        while let Some(message) = stream.message().await.unwrap() {
            match message.message.unwrap() {
                download_response::Message::Chunk(bytes) => got.extend_from_slice(&bytes),
                download_response::Message::Failure(failure) => failures.push(failure.error.unwrap().reason()),
                download_response::Message::Summary(told) => summary = Some(told),
                _ => {}
            }
        }
        assert!(got == content[500_000..]);
        assert_eq!(failures, [ErrorReason::FileIsDirectory, ErrorReason::FileNotFound]);
        assert_eq!(summary.unwrap().entries, 1);
    }
}

async fn ops(server: &mut Client, id: &str, all: Vec<Op>) -> Result<Vec<Outcome>, ErrorReason> {
    let request = FileOpsRequest {
        batch_id: id.to_owned(),
        ops: all.into_iter().map(|op| FileOp { op: Some(op) }).collect(),
        ..Default::default()
    };
    match server.file_ops(request).await {
        Ok(answer) => Ok(answer
            .into_inner()
            .results
            .into_iter()
            .map(|result| result.result.unwrap())
            .collect()),
        Err(status) => Err(reason::<()>(Err(status))),
    }
}
