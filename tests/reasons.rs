//! Every error reason: those that the runtime sends are made to happen here, the others say where they come from.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "reasons/calls.rs"]
mod calls;
#[path = "reasons/common.rs"]
mod common;

use std::{collections::BTreeSet, fs, future::Future, path::Path, pin::Pin, time::Duration};

use sandgate_errors::{Refusal, code, from_name, name};
use sandgate_proto::{
    runtime::v1::{
        FileError, FileOp, FileOpsRequest, FileVersion, FileView, GlobOp, ListOp, MkdirOp, ReadlinkOp, RemoveOp,
        WriteMode, WriteOp, file_op::Op, file_op_result::Result as Outcome, file_version::Version,
    },
    v1::ErrorReason,
};
use sandgate_tests::Runtime;
use tonic::Status;

use self::common::{edit, op, read, run, stat, write};

const PATIENCE: Duration = Duration::from_secs(60);
const ERRORS_PAGE: &str = include_str!("../docs/errors.md");

/// Why a call failed, or one part of a call that did not.
#[derive(Debug)]
enum Refused {
    Call(Status),
    Part(FileError),
}

type Operation = fn() -> FileOp;
type Case = fn() -> Pin<Box<dyn Future<Output = Refused>>>;

macro_rules! calls {
    ($($reason:ident: $case:ident),* $(,)?) => {
        &[$((ErrorReason::$reason, || Box::pin(calls::$case()))),*]
    };
}

/// Reasons of whole calls, and of what takes more than one operation.
const CALLS: &[(ErrorReason, Case)] = calls![
    InvalidArgument: an_id_that_is_none,
    Stopping: a_start_while_stopping,
    LimitReached: one_exec_too_many,
    LimitReached: one_upload_too_many,
    SandboxRestarted: another_incarnation,
    ExecNotFound: an_unknown_exec,
    ExecAlreadyExists: another_request_of_the_same_id,
    ExecExpired: a_record_that_was_dropped,
    ExecNotRunning: a_signal_after_the_end,
    StdinNotOpen: stdin_that_was_not_asked_for,
    StdinClosed: stdin_after_its_close,
    StdinTaken: a_second_writer,
    StdinGap: stdin_that_leaves_bytes_out,
    PtyMissing: a_resize_without_a_terminal,
    PathInvalid: a_relative_root,
    FileNotFound: a_watch_on_nothing,
    DiskFull: no_room_for_records,
    HashMismatch: a_chunk_with_another_hash,
    HashMismatch: an_entry_with_another_hash,
    ArchiveInvalid: a_tar_that_is_none,
    BatchConflict: another_batch_of_the_same_id,
    BatchExpired: a_batch_long_ago,
    UploadNotFound: a_chunk_of_no_upload,
    UploadGap: a_chunk_that_leaves_bytes_out,
    WatchLimit: no_more_watches,
    UserNotFound: nobody_of_that_name,
    UserNotPermitted: another_user_without_the_right,
];

/// Reasons of single file operations, in the directory that [`PREPARE`] makes.
const OPERATIONS: &[(ErrorReason, Operation)] = &[
    (ErrorReason::InvalidArgument, || FileOp { op: None }),
    (ErrorReason::PathInvalid, || stat("")),
    (ErrorReason::PathInvalid, || stat(&"x".repeat(256))),
    (ErrorReason::PathOutsideRoot, || read("/proc/self/root/etc/passwd")),
    (ErrorReason::PathOutsideRoot, || read("ring")),
    (ErrorReason::FileNotFound, || read("missing")),
    (ErrorReason::FileAlreadyExists, || write("file", WriteMode::CreateOnly)),
    (ErrorReason::FileAlreadyExists, || {
        op(Op::Mkdir(MkdirOp {
            path: "full".into(),
            ..Default::default()
        }))
    }),
    (ErrorReason::FilePermissionDenied, || read("secret")),
    (ErrorReason::FileIsDirectory, || read("full")),
    (ErrorReason::FileNotDirectory, || {
        op(Op::List(ListOp {
            path: "file".into(),
            ..Default::default()
        }))
    }),
    (ErrorReason::FileNotDirectory, || stat("file/beneath")),
    (ErrorReason::FileDirectoryNotEmpty, || {
        op(Op::Remove(RemoveOp {
            path: "full".into(),
            ..Default::default()
        }))
    }),
    (ErrorReason::FileNotRegular, || read("fifo")),
    (ErrorReason::FileVersionMismatch, || {
        let expected = FileVersion {
            version: Some(Version::Sha256(vec![0; 32].into())),
        };
        op(Op::Write(WriteOp {
            path: "file".into(),
            expected: Some(expected),
            ..Default::default()
        }))
    }),
    (ErrorReason::FileTooLarge, || edit("large", "a")),
    (ErrorReason::DiskFull, || write("/dev/full", WriteMode::Overwrite)),
    (ErrorReason::FileIo, || {
        op(Op::Readlink(ReadlinkOp {
            path: "file".into(),
            ..Default::default()
        }))
    }),
    (ErrorReason::EditNoMatch, || edit("file", "not in it")),
    (ErrorReason::EditAmbiguous, || edit("file", "twice")),
    (ErrorReason::PatternInvalid, || {
        op(Op::Glob(GlobOp {
            pattern: "[".into(),
            ..Default::default()
        }))
    }),
];
const PREPARE: &str = "printf 'twice twice' > file; mkdir full; touch full/x; mkfifo fifo; ln -s ring ring; \
                       truncate -s 65M large; chmod 666 file large; chmod 777 .; echo > secret; chmod 600 secret";
/// Not root, who may do everything.
const SOMEBODY: &str = "65534";

/// Reasons that the runtime does not send on purpose, and what the page says they come from.
const ELSEWHERE: &[(ErrorReason, &str, &str)] = &[
    (
        ErrorReason::Internal,
        "runtime",
        "a fault; nothing makes it happen on purpose",
    ),
    (
        ErrorReason::NotImplemented,
        "server",
        "the server's own tests call every method",
    ),
    (
        ErrorReason::CapabilityMissing,
        "server, later",
        "a sandbox whose runtime is older than the call",
    ),
    (ErrorReason::Unauthenticated, "server, later", "identity"),
    (ErrorReason::SandboxNotFound, "server, later", "lifecycle"),
    (ErrorReason::SandboxAlreadyExists, "server, later", "lifecycle"),
    (ErrorReason::SandboxSuspended, "server, later", "lifecycle"),
    (
        ErrorReason::SandboxUnreachable,
        "server, later",
        "the way from the server to a runtime",
    ),
    (ErrorReason::SandboxFailed, "server, later", "providers"),
    (ErrorReason::EtagMismatch, "server, later", "lifecycle"),
    (ErrorReason::TemplateNotFound, "server, later", "providers"),
    (ErrorReason::IsolationUnavailable, "server, later", "providers"),
];

#[tokio::test]
async fn calls_fail_for_the_reason_that_the_contract_names() {
    for (expected, case) in CALLS {
        let refused = tokio::time::timeout(PATIENCE, case()).await;
        check(
            *expected,
            &refused.unwrap_or_else(|_| panic!("{expected:?} takes too long")),
        );
    }
}

#[tokio::test]
async fn operations_fail_for_the_reason_that_the_contract_names() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    run(&mut client, "prepare", PREPARE).await;
    for (expected, op) in OPERATIONS {
        let view = Some(FileView {
            user: SOMEBODY.into(),
            ..Default::default()
        });
        let request = FileOpsRequest {
            view,
            ops: vec![op()],
            ..Default::default()
        };
        let mut results = client.file_ops(request).await.unwrap().into_inner().results;
        let Some(Outcome::Error(error)) = results.remove(0).result else {
            panic!("{expected:?} did not happen")
        };
        assert_eq!(error.count, if *expected == ErrorReason::EditAmbiguous { 2 } else { 0 });
        check(*expected, &Refused::Part(error));
    }
}

#[test]
fn every_reason_is_made_to_happen_or_says_where_it_comes_from() {
    let all: BTreeSet<&str> = reasons().map(name).collect();
    assert!(all.len() > 40, "only {} reasons found", all.len());
    let (here, elsewhere) = (produced(), ELSEWHERE.iter().map(|(reason, ..)| name(*reason)).collect());
    assert!(here.is_disjoint(&elsewhere), "in both tables: {:?}", &here & &elsewhere);
    assert_eq!(&here | &elsewhere, all);
}

#[test]
fn the_page_says_where_each_reason_comes_from() {
    for line in ERRORS_PAGE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let reason = from_name(cells[0].trim_matches('`')).unwrap();
        let elsewhere = ELSEWHERE.iter().find(|(other, ..)| *other == reason);
        assert_eq!(cells[2], elsewhere.map_or("runtime", |(_, from, _)| from), "{reason:?}");
    }
}

/// So that a reason that is new in the code is not forgotten here.
#[test]
fn every_reason_in_the_runtimes_code_is_made_to_happen() {
    let mut named = BTreeSet::new();
    let root = Path::new("../runtime");
    for member in ["src", "exec/src", "files/src", "output/src", "sys/src"] {
        scan(&root.join(member), &mut named);
    }
    let mut expected: BTreeSet<String> = produced().into_iter().map(str::to_owned).collect();
    expected.insert(name(ErrorReason::Internal).to_owned());
    assert_eq!(named, expected);
}

fn scan(directory: &Path, named: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scan(&path, named);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for rest in text.split("ErrorReason::").skip(1) {
                let variant: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                let reason = reasons().find(|reason| format!("{reason:?}") == variant);
                named.extend(reason.map(|reason| name(reason).to_owned()));
            }
        }
    }
}

fn reasons() -> impl Iterator<Item = ErrorReason> {
    (1..10_000).filter_map(|number| ErrorReason::try_from(number).ok())
}

fn produced() -> BTreeSet<&'static str> {
    let calls = CALLS.iter().map(|(reason, _)| *reason);
    calls
        .chain(OPERATIONS.iter().map(|(reason, _)| *reason))
        .map(name)
        .collect()
}

fn check(expected: ErrorReason, refused: &Refused) {
    match refused {
        Refused::Call(status) => {
            let refusal = Refusal::from_status(status).unwrap_or_else(|| panic!("{expected:?}: no reason: {status:?}"));
            assert_eq!(
                (refusal.reason, status.code()),
                (expected, code(expected)),
                "{status:?}"
            );
            assert!(!status.message().is_empty(), "{expected:?}");
        }
        Refused::Part(error) => {
            assert_eq!(error.reason(), expected, "{error:?}");
            assert!(!error.message.is_empty(), "{expected:?}");
        }
    }
}
