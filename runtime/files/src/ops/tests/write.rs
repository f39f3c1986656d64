//! Writing and editing.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use sandgate_proto::runtime::v1::{
    EditOp, FileVersion, HashOp, ModifiedAndSize, TouchOp, WriteMode, file_version::Version,
};
use sha2::{Digest as _, Sha256};

use super::*;

fn mode(sandbox: &Sandbox, path: &str) -> u32 {
    fs::symlink_metadata(sandbox.at(path)).unwrap().permissions().mode() & 0o7777
}

fn sha256(content: &str) -> FileVersion {
    FileVersion {
        version: Some(Version::Sha256(Sha256::digest(content).to_vec().into())),
    }
}

fn how(mode: WriteMode, path: &str, content: &str) -> WriteOp {
    WriteOp {
        write_mode: mode.into(),
        ..write(path, content)
    }
}

fn edit(path: &str, old: &str, new: &str) -> EditOp {
    EditOp {
        path: path.into(),
        old_text: old.to_owned().into(),
        new_text: new.to_owned().into(),
        ..EditOp::default()
    }
}

#[test]
fn files_are_made_replaced_and_extended() {
    let sandbox = Sandbox::new();
    let info = sandbox.info(Op::Write(write("/f", "one")));
    assert_eq!(
        (info.path.as_str(), info.size, info.mode, info.links),
        ("/f", 3, 0o644, 1)
    );
    assert_eq!(sandbox.content("f"), "one");
    sandbox.info(Op::Write(write("/f", "2")));
    assert_eq!(sandbox.content("f"), "2");
    sandbox.info(Op::Write(how(WriteMode::Append, "/f", "34")));
    assert_eq!(sandbox.content("f"), "234");
    sandbox.info(Op::Write(how(WriteMode::Append, "/new", "a")));
    assert_eq!((sandbox.content("new").as_str(), mode(&sandbox, "new")), ("a", 0o644));
    assert_eq!(
        sandbox.reason(Op::Write(how(WriteMode::CreateOnly, "/f", "x"))),
        ErrorReason::FileAlreadyExists
    );
    sandbox.info(Op::Write(how(WriteMode::CreateOnly, "/only", "x")));
    assert_eq!(sandbox.content("f"), "234");
    let unknown = WriteOp {
        write_mode: 99,
        ..write("/f", "x")
    };
    assert_eq!(sandbox.reason(Op::Write(unknown)), ErrorReason::InvalidArgument);
    assert_eq!(sandbox.names(""), ["f", "new", "only"]);
}

#[test]
fn modes_and_parents() {
    let sandbox = Sandbox::new();
    assert_eq!(
        sandbox.reason(Op::Write(write("/a/b/f", "x"))),
        ErrorReason::FileNotFound
    );
    let with_parents = WriteOp {
        make_parents: true,
        mode: Some(0o640),
        ..write("/a/b/f", "x")
    };
    assert_eq!(sandbox.info(Op::Write(with_parents)).mode, 0o640);
    assert_eq!((mode(&sandbox, "a"), mode(&sandbox, "a/b")), (0o755, 0o755));
    // The mode of the old file is kept unless another is given.
    sandbox.info(Op::Write(write("/a/b/f", "y")));
    assert_eq!(mode(&sandbox, "a/b/f"), 0o640);
    let given = WriteOp {
        mode: Some(0o600),
        ..write("/a/b/f", "z")
    };
    sandbox.info(Op::Write(given));
    assert_eq!(mode(&sandbox, "a/b/f"), 0o600);
    let wrong = WriteOp {
        mode: Some(0o10000),
        ..write("/g", "z")
    };
    assert_eq!(sandbox.reason(Op::Write(wrong)), ErrorReason::InvalidArgument);
    for path in ["/a", "/a/", "/new/", "/", "/a/.."] {
        assert_eq!(
            sandbox.reason(Op::Write(write(path, "x"))),
            ErrorReason::FileIsDirectory,
            "{path}"
        );
    }
}

#[test]
fn replacing_keeps_the_owner_and_breaks_hard_links() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.at("f"), "old").unwrap();
    fs::hard_link(sandbox.at("f"), sandbox.at("other")).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(sandbox.at("f"), Some(1234), Some(2345)).unwrap();
    }
    sandbox.info(Op::Write(write("/f", "new")));
    assert_eq!(
        (sandbox.content("f").as_str(), sandbox.content("other").as_str()),
        ("new", "old")
    );
    if is_root {
        let metadata = fs::metadata(sandbox.at("f")).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (1234, 2345));
    }
    assert_eq!(sandbox.names(""), ["f", "other"]);
}

#[test]
fn symlinks_are_followed_to_what_is_replaced() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.at("d/e")).unwrap();
    fs::write(sandbox.at("d/f"), "old").unwrap();
    symlink("/d/f", sandbox.at("absolute")).unwrap();
    symlink("../f", sandbox.at("d/e/relative")).unwrap();
    symlink("d/e/relative", sandbox.at("chain")).unwrap();
    symlink("d/dangling-target", sandbox.at("dangling")).unwrap();
    symlink("d", sandbox.at("directory")).unwrap();
    for (link, content) in [("absolute", "1"), ("d/e/relative", "2"), ("chain", "3")] {
        let info = sandbox.info(Op::Write(write(link, content)));
        assert_eq!(info.path, format!("/{link}"));
        assert_eq!(sandbox.content("d/f"), content);
        assert!(fs::symlink_metadata(sandbox.at(link)).unwrap().is_symlink());
    }
    assert_eq!(
        sandbox.reason(Op::Write(how(WriteMode::CreateOnly, "dangling", "x"))),
        ErrorReason::FileAlreadyExists
    );
    sandbox.info(Op::Write(write("dangling", "made")));
    assert_eq!(sandbox.content("d/dangling-target"), "made");
    assert_eq!(
        sandbox.reason(Op::Write(write("directory", "x"))),
        ErrorReason::FileIsDirectory
    );
    sandbox.run(Op::Edit(edit("chain", "3", "4"))).unwrap();
    assert_eq!(sandbox.content("d/f"), "4");
}

#[test]
fn special_files_are_written_in_place() {
    let sandbox = Sandbox::new();
    let fifo = sandbox.at("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // Nobody reads it: an error, and no wait.
    assert_eq!(sandbox.reason(Op::Write(write("fifo", "x"))), ErrorReason::FileIo);
    assert_eq!(
        sandbox.reason(Op::Edit(edit("fifo", "x", "y"))),
        ErrorReason::FileNotRegular
    );
    let mut reader = fs::File::options().read(true).write(true).open(&fifo).unwrap();
    sandbox.info(Op::Write(write("fifo", "through")));
    let mut received = [0; 7];
    std::io::Read::read_exact(&mut reader, &mut received).unwrap();
    assert_eq!(&received, b"through");
    let real = Sandbox {
        view: view(Path::new("/"), ""),
        ..Sandbox::new()
    };
    real.info(Op::Write(write("/dev/null", "x")));
}

#[test]
fn a_write_expects_a_version() {
    let sandbox = Sandbox::new();
    let expecting = |content: &str, expected| {
        Op::Write(WriteOp {
            expected: Some(expected),
            ..write("/f", content)
        })
    };
    assert_eq!(
        sandbox.reason(expecting("x", sha256(""))),
        ErrorReason::FileVersionMismatch
    );
    let info = sandbox.info(Op::Write(write("/f", "one")));
    assert_eq!(
        sandbox.reason(expecting("x", sha256("two"))),
        ErrorReason::FileVersionMismatch
    );
    assert_eq!(sandbox.content("f"), "one");
    sandbox.info(expecting("two", sha256("one")));
    let facts = |info: &FileInfo| FileVersion {
        version: Some(Version::ModifiedAndSize(ModifiedAndSize {
            modified: info.modified,
            size: info.size,
        })),
    };
    let old = FileInfo {
        modified: Some(prost_types::Timestamp { seconds: 5, nanos: 0 }),
        ..info
    };
    assert_eq!(
        sandbox.reason(expecting("x", facts(&old))),
        ErrorReason::FileVersionMismatch
    );
    let now = sandbox.info(stat("/f"));
    sandbox.info(expecting("three", facts(&now)));
    assert_eq!(sandbox.content("f"), "three");
    assert_eq!(
        sandbox.reason(expecting("x", FileVersion::default())),
        ErrorReason::InvalidArgument
    );
}

#[test]
fn of_many_edits_of_one_version_one_wins() {
    let sandbox = Sandbox::new();
    for round in 0..20 {
        fs::write(sandbox.at("f"), "start 0").unwrap();
        let start = std::sync::Barrier::new(16);
        let run = |number: usize| {
            start.wait();
            let op = if number.is_multiple_of(2) {
                Op::Edit(EditOp {
                    expected: Some(sha256("start 0")),
                    ..edit("/f", "start 0", &format!("edit {number}"))
                })
            } else {
                Op::Write(WriteOp {
                    expected: Some(sha256("start 0")),
                    ..write("/f", &format!("edit {number}"))
                })
            };
            sandbox.run(op)
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = (0..16).map(|number| scope.spawn(move || run(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<usize> = (0..16).filter(|number| results[*number].is_ok()).collect();
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(sandbox.content("f"), format!("edit {}", winners[0]));
        for error in results.into_iter().filter_map(Result::err) {
            assert_eq!(error.reason(), ErrorReason::FileVersionMismatch);
        }
    }
    assert_eq!(sandbox.names(""), ["f"]);
}

#[test]
fn readers_see_the_old_content_or_the_new() {
    let sandbox = Sandbox::new();
    let (old, new) = ("a".repeat(100_000), "b".repeat(100_000));
    fs::write(sandbox.at("f"), &old).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..200 {
                sandbox.info(Op::Write(write("/f", if round % 2 == 0 { &new } else { &old })));
            }
        });
        while !writer.is_finished() {
            let seen = sandbox.content("f");
            assert!(seen == old || seen == new);
        }
    });
    assert_eq!(sandbox.names(""), ["f"]);
}

#[test]
fn edits_say_what_went_wrong_and_change_nothing() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.at("f"), "a b a").unwrap();
    assert_eq!(sandbox.reason(Op::Edit(edit("/f", "x", "y"))), ErrorReason::EditNoMatch);
    let ambiguous = sandbox.run(Op::Edit(edit("/f", "a", "y"))).unwrap_err();
    assert_eq!((ambiguous.reason(), ambiguous.count), (ErrorReason::EditAmbiguous, 2));
    assert_eq!(
        sandbox.reason(Op::Edit(edit("/f", "", "y"))),
        ErrorReason::InvalidArgument
    );
    assert_eq!(
        sandbox.reason(Op::Edit(edit("/", "a", "y"))),
        ErrorReason::FileIsDirectory
    );
    assert_eq!(
        sandbox.reason(Op::Edit(edit("/g", "a", "y"))),
        ErrorReason::FileNotFound
    );
    assert_eq!(sandbox.content("f"), "a b a");
    let all = EditOp {
        replace_all: true,
        ..edit("/f", "a", "é")
    };
    let Outcome::Edit(done) = sandbox.run(Op::Edit(all)).unwrap() else {
        panic!()
    };
    assert_eq!((done.replacements, done.info.unwrap().size), (2, 7));
    assert_eq!(sandbox.content("f"), "é b é");

    let large = fs::File::create(sandbox.at("large")).unwrap();
    large.set_len((64 << 20) + 1).unwrap();
    assert_eq!(
        sandbox.reason(Op::Edit(edit("/large", "a", "b"))),
        ErrorReason::FileTooLarge
    );
}

#[test]
fn touch_and_hash() {
    let sandbox = Sandbox::new();
    let time = prost_types::Timestamp {
        seconds: 1_000_000,
        nanos: 5_000,
    };
    let touch = |path: &str, modified, make_parents| {
        Op::Touch(TouchOp {
            path: path.into(),
            modified,
            make_parents,
            ..TouchOp::default()
        })
    };
    assert_eq!(sandbox.reason(touch("/a/f", None, false)), ErrorReason::FileNotFound);
    let info = sandbox.info(touch("/a/f", Some(time), true));
    assert_eq!((info.modified, info.size, info.mode), (Some(time), 0, 0o644));
    assert!(sandbox.info(touch("/a/f", None, false)).modified.unwrap().seconds > time.seconds);
    assert_eq!(sandbox.info(touch("/a", Some(time), false)).modified, Some(time));
    let wrong = prost_types::Timestamp { seconds: 0, nanos: -1 };
    assert_eq!(
        sandbox.reason(touch("/a/f", Some(wrong), false)),
        ErrorReason::InvalidArgument
    );
    fs::write(sandbox.at("h"), "abc").unwrap();
    let hash = Op::Hash(HashOp {
        path: "h".into(),
        ..HashOp::default()
    });
    let Outcome::Hash(hash) = sandbox.run(hash).unwrap() else {
        panic!()
    };
    assert_eq!((hash.sha256.as_ref(), hash.size), (Sha256::digest("abc").as_slice(), 3));
}
