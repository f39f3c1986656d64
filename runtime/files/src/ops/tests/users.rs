//! Acting as another user. Only root can, so these tests do nothing for others.

use std::{
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
};

use rustix::process::{getegid, geteuid};
use sandgate_proto::runtime::v1::{EditOp, MkdirOp, SymlinkOp};

use super::*;
use crate::{
    atomic::{Finish, Staged},
    target::Target,
};

const NOBODY: u32 = 65534;

/// A root directory that the user owns.
fn sandbox() -> Sandbox {
    assert!(geteuid().is_root(), "this test needs root, to act as others");
    let mut sandbox = Sandbox::new();
    fs::set_permissions(sandbox.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(sandbox.at(""), Some(NOBODY), Some(NOBODY)).unwrap();
    sandbox.view = view(&sandbox.at(""), "65534");
    sandbox
}

fn owner(path: PathBuf) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid())
}

fn file(sandbox: &Sandbox, path: &str, content: &str, mode: u32) {
    fs::write(sandbox.at(path), content).unwrap();
    fs::set_permissions(sandbox.at(path), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_a_user_makes_belongs_to_it() {
    let sandbox = sandbox();
    let gid = fs::metadata(sandbox.at("")).unwrap().gid();
    sandbox.info(Op::Write(WriteOp {
        make_parents: true,
        ..write("/a/f", "x")
    }));
    sandbox.info(Op::Write(write("/a/f", "replaced")));
    sandbox.info(Op::Mkdir(MkdirOp {
        path: "/d".into(),
        ..MkdirOp::default()
    }));
    sandbox.info(Op::Symlink(SymlinkOp {
        path: "/l".into(),
        target: "a".into(),
        ..SymlinkOp::default()
    }));
    for path in ["a", "a/f", "d", "l"] {
        assert_eq!(owner(sandbox.at(path)), (NOBODY, gid), "{path}");
    }
    assert_eq!(sandbox.names("a"), ["f"]);
    assert!(geteuid().is_root() && getegid().is_root());
}

#[test]
fn what_a_user_may_not_do_is_refused() {
    let sandbox = sandbox();
    file(&sandbox, "unreadable", "secret", 0o600);
    file(&sandbox, "readonly", "old", 0o644);
    file(&sandbox, "own", "old", 0o444);
    chown(sandbox.at("own"), Some(NOBODY), Some(NOBODY)).unwrap();
    fs::create_dir(sandbox.at("closed")).unwrap();
    fs::set_permissions(sandbox.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let edit = Op::Edit(EditOp {
        path: "/readonly".into(),
        old_text: "old".into(),
        new_text: "new".into(),
        ..EditOp::default()
    });
    for op in [
        read("/unreadable"),
        // It owns the directory and could replace these files, but may not write them.
        Op::Write(write("/readonly", "new")),
        Op::Write(write("/own", "new")),
        edit,
        stat("/closed/x"),
        Op::Write(write("/closed/x", "x")),
    ] {
        let wanted = format!("{op:?}");
        assert_eq!(sandbox.reason(op), ErrorReason::FilePermissionDenied, "{wanted}");
    }
    assert_eq!(sandbox.content("readonly"), "old");
    assert!(geteuid().is_root());
    let shadow = Sandbox {
        view: view(Path::new("/"), "65534"),
        ..Sandbox::new()
    };
    assert_eq!(shadow.reason(read("/etc/shadow")), ErrorReason::FilePermissionDenied);
    assert_eq!(
        shadow.reason(read("/proc/self/environ")),
        ErrorReason::FilePermissionDenied
    );
}

#[test]
fn a_file_of_another_owner_is_written_in_place() {
    let sandbox = sandbox();
    // The user may write it, and could not give a new one to its owner.
    file(&sandbox, "shared", "a long old content", 0o666);
    let before = fs::metadata(sandbox.at("shared")).unwrap();
    sandbox.info(Op::Write(write("/shared", "new")));
    assert_eq!(sandbox.content("shared"), "new");
    let after = fs::metadata(sandbox.at("shared")).unwrap();
    assert_eq!((after.uid(), after.ino()), (before.uid(), before.ino()));

    // The same in a directory that it may not write.
    fs::create_dir(sandbox.at("theirs")).unwrap();
    fs::set_permissions(sandbox.at("theirs"), fs::Permissions::from_mode(0o755)).unwrap();
    file(&sandbox, "theirs/shared", "a long old content", 0o666);
    sandbox.info(Op::Write(write("/theirs/shared", "new")));
    assert_eq!(sandbox.content("theirs/shared"), "new");
    assert_eq!(
        sandbox.reason(Op::Write(write("/theirs/x", "x"))),
        ErrorReason::FilePermissionDenied
    );
    assert_eq!(sandbox.names(""), ["shared", "theirs"]);
}

#[test]
fn content_may_be_staged_and_committed_at_different_times() {
    let sandbox = sandbox();
    let path = sandbox.view.path("/f", &bytes::Bytes::new()).unwrap();
    let finish = Finish {
        replace: true,
        ..Finish::default()
    };
    for content in ["first", "second"] {
        let acting = sandbox.view.act().unwrap();
        let target = Target::follow(&sandbox.view, &path, false).unwrap();
        let mut staged = Staged::begin(&target, &sandbox.shared.litter).unwrap();
        staged.file().write_all(content.as_bytes()).unwrap();
        drop(acting);
        // The credentials are others now, with the same ids: naming the file takes the way through /proc.
        let _acting = sandbox.view.act().unwrap();
        staged.commit(&target, &finish).unwrap();
    }
    assert_eq!(
        (sandbox.content("f").as_str(), owner(sandbox.at("f")).0),
        ("second", NOBODY)
    );
    assert_eq!(sandbox.names(""), ["f"]);
}

#[test]
fn a_root_that_the_user_may_not_enter_is_closed() {
    let sandbox = sandbox();
    fs::set_permissions(sandbox.directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let proto = FileView {
        root_dir: sandbox.at("").to_str().unwrap().to_owned(),
        user: "65534".into(),
        ..FileView::default()
    };
    let defaults = Defaults {
        user: None,
        cwd: PathBuf::from("/"),
    };
    let error = View::open(&proto, &defaults).unwrap_err();
    assert_eq!(error.reason, ErrorReason::FilePermissionDenied);
    assert!(geteuid().is_root());
}
