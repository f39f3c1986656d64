//! Paths and symlinks made to lead out of the root.

use std::os::unix::fs::symlink;

use bytes::Bytes;
use sandgate_proto::runtime::v1::{
    ChmodOp, CopyOp, EditOp, HashOp, ListOp, MkdirOp, MoveOp, ReadlinkOp, RemoveOp, SymlinkOp, TouchOp, WriteMode,
};

use super::*;

/// Every operation on a path, each of which would read, change or reveal what the path leads to.
fn all_ops(path: &str) -> Vec<Op> {
    let path = || path.to_owned();
    let appended = WriteOp {
        write_mode: WriteMode::Append.into(),
        ..write(&path(), "changed")
    };
    vec![
        read(&path()),
        Op::Stat(StatOp {
            path: path(),
            follow: true,
            ..StatOp::default()
        }),
        Op::List(ListOp {
            path: path(),
            depth: 9,
            ..ListOp::default()
        }),
        Op::Hash(HashOp {
            path: path(),
            ..HashOp::default()
        }),
        Op::Write(write(&path(), "changed")),
        Op::Write(appended),
        Op::Edit(EditOp {
            path: path(),
            old_text: "secret".into(),
            new_text: "changed".into(),
            ..EditOp::default()
        }),
        Op::Chmod(ChmodOp {
            path: path(),
            mode: 0o777,
            ..ChmodOp::default()
        }),
        Op::Touch(TouchOp {
            path: path(),
            modified: Some(prost_types::Timestamp { seconds: 1, nanos: 0 }),
            ..TouchOp::default()
        }),
        Op::Copy(CopyOp {
            from: path(),
            to: "/copied".into(),
            recursive: true,
            overwrite: true,
            ..CopyOp::default()
        }),
        Op::Copy(CopyOp {
            from: "/inside".into(),
            to: path(),
            overwrite: true,
            ..CopyOp::default()
        }),
        Op::Mkdir(MkdirOp {
            path: format!("{}/made", path()),
            parents: true,
            ..MkdirOp::default()
        }),
        Op::Symlink(SymlinkOp {
            path: path(),
            target: "x".into(),
            overwrite: true,
            ..SymlinkOp::default()
        }),
        Op::Move(MoveOp {
            from: path(),
            to: "/moved".into(),
            overwrite: true,
            ..MoveOp::default()
        }),
        Op::Move(MoveOp {
            from: "/inside".into(),
            to: path(),
            overwrite: true,
            ..MoveOp::default()
        }),
        Op::Remove(RemoveOp {
            path: path(),
            recursive: true,
            ..RemoveOp::default()
        }),
    ]
}

/// Everything outside of the root, with what is in it.
fn outside(sandbox: &Sandbox) -> Vec<(PathBuf, String, std::time::SystemTime)> {
    let mut found = Vec::new();
    let mut pending = vec![sandbox.directory.path().to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path == sandbox.at("") || path == sandbox.directory.path().join("root") {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = fs::read_to_string(&path).unwrap_or_default();
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            found.push((
                path,
                format!("{content} {:?}", metadata.permissions()),
                metadata.modified().unwrap(),
            ));
        }
    }
    found.sort();
    found
}

#[test]
fn nothing_outside_is_read_written_or_revealed() {
    let sandbox = Sandbox::new();
    let base = sandbox.directory.path().to_owned();
    let base = base.to_str().unwrap();
    fs::create_dir(sandbox.directory.path().join("other")).unwrap();
    fs::write(sandbox.directory.path().join("other/hidden"), "secret").unwrap();
    let links = [
        ("absolute", format!("{base}/secret")),
        ("relative", "../secret".to_owned()),
        ("directory", "../other".to_owned()),
        ("absolute-directory", format!("{base}/other")),
        ("up", "..".to_owned()),
        ("chain", "relative".to_owned()),
        ("loop", "loop".to_owned()),
        ("magic", format!("/proc/self/root{base}/other")),
        ("magic-root", "/proc/self/root".to_owned()),
        ("slash", "/".to_owned()),
    ];
    let paths = [
        "../secret",
        "/../secret",
        "/../../../../../../secret",
        "a/../../secret",
        "absolute",
        "relative",
        "directory",
        "directory/hidden",
        "absolute-directory/hidden",
        "up/secret",
        "up/other",
        "chain",
        "loop",
        "loop/x",
        "magic",
        "magic/hidden",
        "slash/../secret",
        "~/../secret",
    ];
    // Were these to lead out, they would lead to the secret and not to a file of the machine.
    let longer = ["", "/proc/self/root", "magic-root", "slash/.."].map(|start| format!("{start}{base}/secret"));
    let before = outside(&sandbox);
    for path in paths.into_iter().chain(longer.iter().map(String::as_str)) {
        // Each on fresh ground, since some of them succeed beneath the root.
        for op in all_ops(path) {
            fs::remove_dir_all(sandbox.at("")).unwrap();
            fs::create_dir_all(sandbox.at("a")).unwrap();
            fs::write(sandbox.at("inside"), "inside").unwrap();
            for (name, target) in &links {
                symlink(target, sandbox.at(name)).unwrap();
            }
            let view = view(&sandbox.at(""), "");
            let wanted = format!("{path} {op:?}");
            let mut results = run_batch(&view, vec![FileOp { op: Some(op) }], false, BUDGET, &sandbox.shared);
            let result = results.remove(0);
            if let Some(Outcome::Read(read)) = &result.result {
                assert_ne!(read.content, "secret", "{wanted}");
            }
            if let Some(Outcome::List(list)) = &result.result {
                assert!(
                    !list.entries.iter().any(|entry| entry.path.contains("hidden")),
                    "{wanted}"
                );
            }
            if let Some(Outcome::Hash(_)) = &result.result {
                panic!("{wanted}");
            }
            assert_eq!(outside(&sandbox), before, "{wanted}");
            // A symlink is copied as such.
            for copied in ["copied", "moved"].map(|name| sandbox.at(name)) {
                let Ok(metadata) = fs::symlink_metadata(&copied) else {
                    continue;
                };
                assert!(
                    !metadata.is_file() || fs::read_to_string(&copied).unwrap() != "secret",
                    "{wanted}"
                );
                assert!(
                    !metadata.is_dir() || fs::symlink_metadata(copied.join("hidden")).is_err(),
                    "{wanted}"
                );
            }
        }
    }
}

#[test]
fn the_reasons_are_those_of_the_contract() {
    let sandbox = Sandbox::new();
    symlink("/proc/self/root", sandbox.at("magic")).unwrap();
    symlink("loop", sandbox.at("loop")).unwrap();
    fs::write(sandbox.at("file"), "").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        sandbox.at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for (op, reason) in [
        (read("../secret"), ErrorReason::FileNotFound),
        (read("loop"), ErrorReason::PathOutsideRoot),
        (read(""), ErrorReason::PathInvalid),
        (read("a\0b"), ErrorReason::PathInvalid),
        (read(&"n".repeat(256)), ErrorReason::PathInvalid),
        (read(&"a/".repeat(2048)), ErrorReason::PathInvalid),
        (read("/"), ErrorReason::FileIsDirectory),
        (read("file/x"), ErrorReason::FileNotDirectory),
        (read("fifo"), ErrorReason::FileNotRegular),
        (read("missing"), ErrorReason::FileNotFound),
        (
            Op::Remove(RemoveOp {
                path: "/".into(),
                recursive: true,
                ..RemoveOp::default()
            }),
            ErrorReason::PathInvalid,
        ),
        (
            Op::Remove(RemoveOp {
                path: "x/..".into(),
                recursive: true,
                ..RemoveOp::default()
            }),
            ErrorReason::PathInvalid,
        ),
    ] {
        let wanted = format!("{op:?}");
        assert_eq!(sandbox.reason(op), reason, "{wanted}");
    }
    // Beneath a root without /proc the magic link leads nowhere; with one it is refused.
    assert_eq!(sandbox.reason(read("magic/x")), ErrorReason::FileNotFound);
    let real = Sandbox {
        view: view(Path::new("/"), ""),
        ..Sandbox::new()
    };
    let through_root = format!("/proc/self/root{}", real.directory.path().join("secret").display());
    for (path, reason) in [
        (through_root.as_str(), ErrorReason::PathOutsideRoot),
        ("/proc/self/exe", ErrorReason::PathOutsideRoot),
        ("/proc/self/mem", ErrorReason::FilePermissionDenied),
        ("/proc/self/environ", ErrorReason::FilePermissionDenied),
        ("/proc/1/cmdline", ErrorReason::FilePermissionDenied),
    ] {
        assert_eq!(real.reason(read(path)), reason, "{path}");
        let write = real.reason(Op::Write(write(path, "x")));
        assert!(
            matches!(write, ErrorReason::FilePermissionDenied | ErrorReason::PathOutsideRoot),
            "{path} {write:?}"
        );
    }
    assert!(real.run(read("/proc/version")).is_ok());
    let link = real.info(stat("/proc/self/exe"));
    assert_eq!(
        (link.symlink_target.as_str(), link.symlink_target_raw.as_ref()),
        ("", b"".as_slice())
    );
    let link = Op::Readlink(ReadlinkOp {
        path: "/proc/self/exe".into(),
        ..ReadlinkOp::default()
    });
    assert_eq!(real.reason(link), ErrorReason::FilePermissionDenied);
}

#[test]
fn names_that_are_not_utf8_come_back_as_they_are() {
    let sandbox = Sandbox::new();
    let raw = Bytes::from_static(b"/\xff\xfe name");
    let written = sandbox.info(Op::Write(WriteOp {
        path_raw: raw.clone(),
        content: "x".into(),
        ..WriteOp::default()
    }));
    assert_eq!((written.path.as_str(), &written.path_raw), ("", &raw));
    assert!(sandbox.at(os(b"\xff\xfe name")).exists());
    let list = Op::List(ListOp {
        path: "/".into(),
        ..ListOp::default()
    });
    let Outcome::List(list) = sandbox.run(list).unwrap() else {
        panic!()
    };
    assert_eq!(list.entries[0].path_raw, raw);
    let missing = sandbox.run(Op::Read(ReadOp {
        path_raw: Bytes::from_static(b"\xfd"),
        ..ReadOp::default()
    }));
    assert_eq!(missing.unwrap_err().path_raw.as_ref(), b"/\xfd");
    let both = Op::Read(ReadOp {
        path: "a".into(),
        path_raw: raw,
        ..ReadOp::default()
    });
    assert_eq!(sandbox.reason(both), ErrorReason::InvalidArgument);
}

#[test]
fn a_directory_swapped_for_a_symlink_leads_nowhere() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.at("real")).unwrap();
    fs::create_dir(sandbox.directory.path().join("out")).unwrap();
    fs::write(sandbox.at("real/f"), "inside").unwrap();
    fs::write(sandbox.directory.path().join("out/f"), "secret").unwrap();
    symlink("../out", sandbox.at("link")).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (real, link) = (sandbox.at("real"), sandbox.at("link"));
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, &real, rustix::fs::CWD, &link, flags).unwrap();
            }
        });
        for _ in 0..1500 {
            if let Ok(Outcome::Read(read)) = sandbox.run(read("real/f")) {
                assert_ne!(read.content, "secret");
            }
            let _either = sandbox.run(Op::Write(write("real/new", "x")));
            let _either = sandbox.run(Op::Copy(CopyOp {
                from: "real".into(),
                to: "copy".into(),
                recursive: true,
                overwrite: true,
                ..CopyOp::default()
            }));
            let _either = sandbox.run(Op::Remove(RemoveOp {
                path: "real/new".into(),
                ..RemoveOp::default()
            }));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let out = fs::read_dir(sandbox.directory.path().join("out")).unwrap().count();
    assert_eq!(out, 1);
    assert_eq!(
        fs::read_to_string(sandbox.directory.path().join("out/f")).unwrap(),
        "secret"
    );
}
