//! Every error reason: what runtime and server send is made to happen here, the others say where they come from.
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
#[path = "reasons/server.rs"]
mod server;

use std::{collections::BTreeSet, fs, future::Future, path::Path, pin::Pin, time::Duration};

use sandgate_errors::{Refusal, code, name};
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
const RUNTIME: &[&str] = &[
    "runtime/src",
    "runtime/exec/src",
    "runtime/files/src",
    "runtime/output/src",
    "runtime/sys/src",
];
const SERVER_SOURCES: &[&str] = &["server/src", "server/provider/src", "server/local/src"];

/// Why a call failed, or one part of a call that did not.
#[derive(Debug)]
enum Refused {
    Call(Status),
    Part(FileError),
}

type Operation = fn() -> FileOp;
type Case = fn() -> Pin<Box<dyn Future<Output = Refused>>>;

macro_rules! cases {
    ($module:ident: $($reason:ident: $case:ident),* $(,)?) => {
        &[$((ErrorReason::$reason, || Box::pin($module::$case()))),*]
    };
}

/// Reasons that the runtime gives for whole calls, and for what takes more than one operation.
const CALLS: &[(ErrorReason, Case)] = cases![calls:
    InvalidArgument: an_id_that_is_none,
    Stopping: a_start_while_stopping,
    Unauthenticated: a_call_without_a_token,
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

/// Reasons that the server gives by itself.
const SERVER: &[(ErrorReason, Case)] = cases![server:
    InvalidArgument: a_name_that_is_none,
    NotImplemented: a_call_that_is_to_come,
    Stopping: a_stream_when_the_server_stops,
    Unauthenticated: no_token,
    LimitReached: one_sandbox_too_many,
    CallerRefused: a_web_page_that_is_not_listed,
    SandboxNotFound: a_name_that_nobody_has,
    SandboxAlreadyExists: a_name_of_another_template,
    SandboxSuspended: a_command_while_it_sleeps,
    SandboxRestarted: an_incarnation_that_is_gone,
    SandboxUnreachable: a_command_while_it_is_brought_back,
    EtagMismatch: a_change_of_what_was_changed,
    TemplateNotFound: a_template_that_nobody_has,
    IsolationUnavailable: a_mechanism_that_is_not_to_be_had,
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

/// Reasons that nothing makes happen here, what the page says they come from, and why.
const ELSEWHERE: &[(ErrorReason, &str, &str)] = &[
    (
        ErrorReason::Internal,
        "both",
        "a fault; nothing makes it happen on purpose",
    ),
    (
        ErrorReason::CapabilityMissing,
        "server",
        "a runtime that is older than the call; server/src/service/reach.rs has a test",
    ),
    (
        ErrorReason::SandboxFailed,
        "server, later",
        "the local provider removes what can't be made",
    ),
];

#[tokio::test]
async fn calls_fail_for_the_reason_that_the_contract_names() {
    all_happen(CALLS).await;
}

#[tokio::test]
async fn the_server_refuses_for_the_reason_that_the_contract_names() {
    all_happen(SERVER).await;
}

#[tokio::test]
async fn what_the_runtime_says_comes_through_the_server() {
    check(
        ErrorReason::ExecNotFound,
        &server::an_exec_that_was_never_started().await,
    );
}

async fn all_happen(cases: &[(ErrorReason, Case)]) {
    for (expected, case) in cases {
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
    let here = &by_runtime() | &by_server();
    let elsewhere = ELSEWHERE.iter().map(|(reason, ..)| name(*reason)).collect();
    assert!(here.is_disjoint(&elsewhere), "in both tables: {:?}", &here & &elsewhere);
    assert_eq!(&here | &elsewhere, all);
}

#[test]
fn the_page_says_where_each_reason_comes_from() {
    for line in ERRORS_PAGE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let reason = cells[0].trim_matches('`');
        let elsewhere = ELSEWHERE.iter().find(|(other, ..)| name(*other) == reason);
        let from = match (by_server().contains(reason), by_runtime().contains(reason)) {
            (true, true) => "both",
            (true, false) => "server",
            (false, true) => "runtime",
            (false, false) => elsewhere.unwrap_or_else(|| panic!("{reason} is nowhere")).1,
        };
        assert_eq!(cells[2], from, "{reason}");
    }
}

/// So that a reason that is new in the code is not forgotten here.
#[test]
fn every_reason_in_the_code_is_made_to_happen() {
    for (sources, happen) in [(RUNTIME, by_runtime()), (SERVER_SOURCES, by_server())] {
        let mut named = BTreeSet::new();
        each_source(sources, &mut |text| {
            for rest in text.split("ErrorReason::").skip(1) {
                let variant: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
                let reason = reasons().find(|reason| format!("{reason:?}") == variant);
                named.extend(reason.map(name));
            }
            if text.contains("Refusal::invalid(") {
                named.insert(name(ErrorReason::InvalidArgument));
            }
        });
        let elsewhere = ELSEWHERE.iter().map(|(reason, ..)| name(*reason)).collect();
        assert_eq!(&named - &elsewhere, happen.clone(), "{sources:?}");
        assert!(named.contains(name(ErrorReason::Internal)), "{sources:?}");
    }
}

#[test]
fn the_page_has_every_key_of_metadata() {
    let mut sent = BTreeSet::new();
    for sources in [RUNTIME, SERVER_SOURCES] {
        each_source(sources, &mut |text| {
            let keys = text.split(".with(\"").skip(1).filter_map(|rest| rest.split('"').next());
            sent.extend(keys.map(str::to_owned));
        });
    }
    let (_, list) = ERRORS_PAGE.split_once("**Metadata**").unwrap();
    let keys = list
        .lines()
        .filter_map(|line| line.strip_prefix("- `")?.split('`').next());
    assert_eq!(keys.map(str::to_owned).collect::<BTreeSet<_>>(), sent);
}

/// The text of every source beneath some directories, without the tests in it.
fn each_source(directories: &[&str], see: &mut dyn FnMut(&str)) {
    for directory in directories {
        scan(Path::new("..").join(directory).as_path(), see);
    }
}

fn scan(directory: &Path, see: &mut dyn FnMut(&str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scan(&path, see);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            see(text.split("#[cfg(test)]\nmod tests").next().unwrap());
        }
    }
}

fn reasons() -> impl Iterator<Item = ErrorReason> {
    (1..10_000).filter_map(|number| ErrorReason::try_from(number).ok())
}

fn by_runtime() -> BTreeSet<&'static str> {
    let calls = CALLS.iter().map(|(reason, _)| *reason);
    calls
        .chain(OPERATIONS.iter().map(|(reason, _)| *reason))
        .map(name)
        .collect()
}

fn by_server() -> BTreeSet<&'static str> {
    SERVER.iter().map(|(reason, _)| name(*reason)).collect()
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
