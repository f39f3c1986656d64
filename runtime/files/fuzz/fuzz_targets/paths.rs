//! Any operations with any paths: nothing outside of the root is changed, and nothing of it is told.
#![no_main]

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use sandgate_files::{run_batch, transfer};
use sandgate_files_fuzz::{FuzzPath, Run};
use sandgate_proto::runtime::v1::{
    ChmodOp, CopyOp, DownloadPath, DownloadRequest, EditOp, FileOp, FileType, GlobOp, GrepOp, HashOp, ListOp, MkdirOp,
    MoveOp, ReadOp, ReadlinkOp, RemoveOp, StatOp, SymlinkOp, TouchOp, TransferFormat, UploadEntry, UploadEntryEnd,
    UploadStart, WriteMode, WriteOp, download_response, file_op::Op, file_op_result::Result as Outcome,
    upload_request::Message,
};

const BUDGET: usize = 3 << 20;

#[derive(Arbitrary, Debug)]
struct Step {
    what: What,
    path: FuzzPath,
    other: FuzzPath,
    yes: bool,
    also: bool,
}

#[derive(Arbitrary, Debug)]
enum What {
    Stat,
    List,
    Read,
    Write,
    Append,
    Edit,
    Glob,
    Grep,
    Mkdir,
    Move,
    Copy,
    Remove,
    Touch,
    Chmod(u16),
    Symlink,
    Readlink,
    Hash,
    Upload,
    Download,
}

impl Step {
    fn op(&self, run: &Run) -> Option<Op> {
        let (path, path_raw) = (String::new(), run.path(&self.path));
        let (to, to_raw) = (String::new(), run.path(&self.other));
        let content = Bytes::from_static(b"written");
        let make_parents = self.also;
        Some(match self.what {
            What::Stat => Op::Stat(StatOp {
                path,
                path_raw,
                follow: self.yes,
            }),
            What::List => Op::List(ListOp {
                path,
                path_raw,
                depth: 9,
                ..ListOp::default()
            }),
            What::Read => Op::Read(ReadOp {
                path,
                path_raw,
                ..ReadOp::default()
            }),
            What::Write | What::Append => {
                let mode = if matches!(self.what, What::Append) {
                    WriteMode::Append
                } else {
                    WriteMode::Overwrite
                };
                let write_mode = if self.yes { WriteMode::CreateOnly } else { mode }.into();
                Op::Write(WriteOp {
                    path,
                    path_raw,
                    content,
                    write_mode,
                    make_parents,
                    ..WriteOp::default()
                })
            }
            What::Edit => {
                let (old_text, new_text) = (Bytes::from_static(b"r"), Bytes::from_static(b"rr"));
                Op::Edit(EditOp {
                    path,
                    path_raw,
                    old_text,
                    new_text,
                    replace_all: true,
                    expected: None,
                })
            }
            What::Glob => Op::Glob(GlobOp {
                path,
                path_raw,
                pattern: String::from_utf8(to_raw.to_vec()).unwrap_or_else(|_| "**".to_owned()),
                include_hidden: self.yes,
                include_directories: self.also,
                limit: 0,
            }),
            What::Grep => Op::Grep(GrepOp {
                path,
                path_raw,
                pattern: ".".to_owned(),
                honour_ignore_files: self.yes,
                ..GrepOp::default()
            }),
            What::Mkdir => Op::Mkdir(MkdirOp {
                path,
                path_raw,
                parents: self.yes,
                mode: None,
            }),
            What::Move => Op::Move(MoveOp {
                from: path,
                from_raw: path_raw,
                to,
                to_raw,
                overwrite: self.yes,
                make_parents,
            }),
            What::Copy => Op::Copy(CopyOp {
                from: path,
                from_raw: path_raw,
                to,
                to_raw,
                overwrite: self.yes,
                recursive: true,
                make_parents,
            }),
            What::Remove => Op::Remove(RemoveOp {
                path,
                path_raw,
                recursive: self.yes,
                missing_ok: self.also,
            }),
            What::Touch => Op::Touch(TouchOp {
                path,
                path_raw,
                modified: None,
                make_parents,
            }),
            // The owner keeps the right to clean up.
            What::Chmod(mode) => Op::Chmod(ChmodOp {
                path,
                path_raw,
                mode: u32::from(mode & 0o7777) | 0o700,
            }),
            What::Symlink => Op::Symlink(SymlinkOp {
                path,
                path_raw,
                target: to,
                target_raw: to_raw,
                overwrite: self.yes,
                make_parents,
            }),
            What::Readlink => Op::Readlink(ReadlinkOp { path, path_raw }),
            What::Hash => Op::Hash(HashOp { path, path_raw }),
            What::Upload | What::Download => return None,
        })
    }

    fn run(&self, run: &Run) {
        match self.what {
            What::Upload => self.upload(run),
            What::Download => self.download(run),
            _ => {
                let ops = vec![FileOp { op: self.op(run) }];
                for result in run_batch(&run.view, ops, false, BUDGET, &run.shared) {
                    run.check_answer(&result);
                    match &result.result {
                        Some(Outcome::Info(info)) => run.check_info(info),
                        Some(Outcome::List(list)) => list.entries.iter().for_each(|info| run.check_info(info)),
                        Some(Outcome::Glob(glob)) => glob.entries.iter().for_each(|info| run.check_info(info)),
                        _ => {}
                    }
                }
            }
        }
    }

    fn upload(&self, run: &Run) {
        let kind = match (self.yes, self.also) {
            (true, true) => FileType::Symlink,
            (true, false) => FileType::Directory,
            _ => FileType::Regular,
        };
        let entry = UploadEntry {
            path_raw: run.path(&self.path),
            r#type: kind.into(),
            mode: Some(0o755),
            symlink_target_raw: run.path(&self.other),
            ..UploadEntry::default()
        };
        let mut messages = vec![Ok(Message::Entry(entry))];
        if kind == FileType::Regular {
            messages.push(Ok(Message::Chunk(Bytes::from_static(b"uploaded"))));
        }
        messages.push(Ok(Message::EntryEnd(UploadEntryEnd::default())));
        let start = UploadStart::default();
        if let Ok(answer) = transfer::upload(&run.view, &start, &run.shared, messages.into_iter()) {
            run.check_answer(&answer);
        }
    }

    fn download(&self, run: &Run) {
        let format = if self.yes {
            TransferFormat::Tar
        } else {
            TransferFormat::Files
        };
        let request = DownloadRequest {
            view: None,
            paths: vec![DownloadPath {
                path_raw: run.path(&self.path),
                ..DownloadPath::default()
            }],
            format: format.into(),
        };
        let _ = transfer::download(&run.view, &request, &mut |message| {
            if let download_response::Message::Entry(entry) = &message {
                entry.info.iter().for_each(|info| run.check_info(info));
            }
            let message = Some(message);
            run.check_answer(&sandgate_proto::runtime::v1::DownloadResponse { message });
            true
        });
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let run = Run::new();
    for step in steps.iter().take(24) {
        step.run(&run);
    }
    run.check_outside();
});
