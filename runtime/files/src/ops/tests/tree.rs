//! Directories: made, listed, moved, copied and removed; and links.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use sandgate_proto::runtime::v1::{
    ChmodOp, CopyOp, FileType, ListOp, MkdirOp, MoveOp, ReadlinkOp, RemoveOp, SymlinkOp,
};

use super::*;

fn list_all(sandbox: &Sandbox, depth: u32, page_size: u32) -> (Vec<String>, usize) {
    let (mut paths, mut pages, mut page_token) = (Vec::new(), 0, String::new());
    loop {
        let op = Op::List(ListOp {
            path: "/".into(),
            depth,
            page_size,
            page_token,
            ..ListOp::default()
        });
        let Outcome::List(list) = sandbox.run(op).unwrap() else {
            panic!()
        };
        paths.extend(list.entries.into_iter().map(|entry| entry.path));
        pages += 1;
        page_token = list.next_page_token;
        if page_token.is_empty() {
            return (paths, pages);
        }
    }
}

fn remove(path: &str, recursive: bool) -> RemoveOp {
    RemoveOp {
        path: path.into(),
        recursive,
        ..RemoveOp::default()
    }
}

fn removed(sandbox: &Sandbox, op: RemoveOp) -> u64 {
    match sandbox.run(Op::Remove(op)).unwrap() {
        Outcome::Remove(done) => done.removed,
        other => panic!("{other:?}"),
    }
}

fn relocate(from: &str, to: &str) -> MoveOp {
    MoveOp {
        from: from.into(),
        to: to.into(),
        ..MoveOp::default()
    }
}

fn copy(from: &str, to: &str) -> CopyOp {
    CopyOp {
        from: from.into(),
        to: to.into(),
        ..CopyOp::default()
    }
}

#[test]
fn pages_hold_every_entry_once_in_order() {
    let sandbox = Sandbox::new();
    for path in ["a/b/c", "a/x", "d", "z/y"] {
        fs::create_dir_all(sandbox.at(path)).unwrap();
    }
    for path in ["a.c", "a/b.c", "a/b/c/deep", "d/1", "d/2", "a0", "zz"] {
        fs::write(sandbox.at(path), "").unwrap();
    }
    symlink("/a", sandbox.at("link")).unwrap();
    let (all, pages) = list_all(&sandbox, 9, 0);
    let mut sorted = all.clone();
    sorted.sort();
    assert_eq!((all.len(), pages), (15, 1));
    assert_eq!(all, sorted);
    assert_eq!(&all[..6], ["/a", "/a.c", "/a/b", "/a/b.c", "/a/b/c", "/a/b/c/deep"]);
    for page_size in 1..=16 {
        let (paged, pages) = list_all(&sandbox, 9, page_size);
        assert_eq!(paged, all, "pages of {page_size}");
        assert_eq!(pages, 15_usize.div_ceil(page_size as usize));
    }
    assert_eq!(list_all(&sandbox, 0, 0), list_all(&sandbox, 1, 0));
    assert_eq!(
        list_all(&sandbox, 1, 2).0,
        ["/a", "/a.c", "/a0", "/d", "/link", "/z", "/zz"]
    );
    assert!(!list_all(&sandbox, 2, 0).0.contains(&"/a/b/c".to_owned()));
    let op = |path: &str, page_token: &str| {
        Op::List(ListOp {
            path: path.into(),
            page_token: page_token.into(),
            ..ListOp::default()
        })
    };
    assert_eq!(sandbox.reason(op("/zz", "")), ErrorReason::FileNotDirectory);
    assert_eq!(sandbox.reason(op("/no", "")), ErrorReason::FileNotFound);
    assert_eq!(sandbox.reason(op("/", "?")), ErrorReason::InvalidArgument);
}

#[test]
fn directories_are_made() {
    let sandbox = Sandbox::new();
    let mkdir = |path: &str, parents, mode| {
        Op::Mkdir(MkdirOp {
            path: path.into(),
            parents,
            mode,
            ..MkdirOp::default()
        })
    };
    assert_eq!(sandbox.info(mkdir("/a", false, None)).mode, 0o755);
    assert_eq!(sandbox.info(mkdir("/b/", false, Some(0o2070))).mode, 0o2070);
    assert_eq!(sandbox.reason(mkdir("/a", false, None)), ErrorReason::FileAlreadyExists);
    assert_eq!(sandbox.reason(mkdir("/x/y", false, None)), ErrorReason::FileNotFound);
    assert_eq!(sandbox.info(mkdir("/x/y", true, Some(0o700))).mode, 0o700);
    assert_eq!(sandbox.info(stat("/x")).mode, 0o755);
    assert_eq!(sandbox.info(mkdir("/a", true, Some(0o700))).mode, 0o755);
    assert_eq!(sandbox.info(mkdir("/", true, None)).r#type(), FileType::Directory);
    assert_eq!(sandbox.reason(mkdir("/", false, None)), ErrorReason::FileAlreadyExists);
    fs::write(sandbox.at("f"), "").unwrap();
    assert_eq!(sandbox.reason(mkdir("/f", true, None)), ErrorReason::FileAlreadyExists);
    assert_eq!(sandbox.reason(mkdir("/f/x", true, None)), ErrorReason::FileNotDirectory);
}

#[test]
fn moving() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.at("d/e")).unwrap();
    fs::create_dir(sandbox.at("empty")).unwrap();
    fs::write(sandbox.at("f"), "f").unwrap();
    fs::write(sandbox.at("g"), "g").unwrap();
    symlink("nowhere", sandbox.at("link")).unwrap();
    let overwrite = |from, to| {
        Op::Move(MoveOp {
            overwrite: true,
            ..relocate(from, to)
        })
    };
    assert_eq!(
        sandbox.reason(Op::Move(relocate("/f", "/g"))),
        ErrorReason::FileAlreadyExists
    );
    assert_eq!(
        sandbox.reason(Op::Move(relocate("/no", "/x/y"))),
        ErrorReason::FileNotFound
    );
    assert_eq!(
        sandbox.reason(Op::Move(relocate("/f", "/x/y"))),
        ErrorReason::FileNotFound
    );
    assert_eq!(
        sandbox.reason(Op::Move(relocate("/d", "/d/e/x"))),
        ErrorReason::PathInvalid
    );
    assert_eq!(sandbox.reason(Op::Move(relocate("/", "/x"))), ErrorReason::PathInvalid);
    assert_eq!(sandbox.reason(overwrite("/f", "/d")), ErrorReason::FileIsDirectory);
    assert_eq!(
        sandbox.reason(overwrite("/empty", "/d")),
        ErrorReason::FileDirectoryNotEmpty
    );
    assert_eq!(sandbox.info(overwrite("/f", "/g")).path, "/g");
    assert_eq!(sandbox.content("g"), "f");
    sandbox.info(overwrite("/d", "/empty"));
    let with_parents = MoveOp {
        make_parents: true,
        ..relocate("/link", "/p/q/link")
    };
    assert_eq!(sandbox.info(Op::Move(with_parents)).symlink_target, "nowhere");
    sandbox.info(Op::Move(relocate("/empty", "/renamed/")));
    assert_eq!(sandbox.names(""), ["g", "p", "renamed"]);
}

#[test]
fn moving_between_file_systems() {
    let sandbox = Sandbox::new();
    let Ok(shm) = TempDir::new_in("/dev/shm") else { return };
    let device = |path: &Path| rustix::fs::stat(path).unwrap().st_dev;
    if device(shm.path()) == device(sandbox.directory.path()) {
        return;
    }
    let both = Sandbox {
        view: view(Path::new("/"), ""),
        ..Sandbox::new()
    };
    fs::create_dir_all(sandbox.at("d/e")).unwrap();
    fs::write(sandbox.at("d/e/f"), "f").unwrap();
    fs::set_permissions(sandbox.at("d"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("e/f", sandbox.at("d/link")).unwrap();
    let (from, to) = (sandbox.at("d"), shm.path().join("d"));
    let op = || relocate(from.to_str().unwrap(), to.to_str().unwrap());
    assert_eq!(both.info(Op::Move(op())).mode, 0o750);
    assert!(!from.exists());
    assert_eq!(fs::read_to_string(to.join("link")).unwrap(), "f");

    // What is there is kept, and what can't be copied stays.
    fs::create_dir(&from).unwrap();
    assert_eq!(both.reason(Op::Move(op())), ErrorReason::FileAlreadyExists);
    assert!(to.join("e/f").exists());
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, from.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::write(from.join("file"), "").unwrap();
    fs::remove_dir_all(&to).unwrap();
    assert_eq!(both.reason(Op::Move(op())), ErrorReason::FileNotRegular);
    assert!(from.join("file").exists() && from.join("fifo").exists());
    assert!(!to.exists());
}

#[test]
fn copying() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.at("d/e")).unwrap();
    fs::write(sandbox.at("d/e/f"), "f").unwrap();
    fs::write(sandbox.at("d/g"), "g").unwrap();
    symlink("/etc", sandbox.at("d/link")).unwrap();
    fs::set_permissions(sandbox.at("d/g"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(sandbox.at("d/e"), fs::Permissions::from_mode(0o500)).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    for path in ["d/g", "d/e"] {
        fs::File::open(sandbox.at(path)).unwrap().set_modified(time).unwrap();
    }
    assert_eq!(sandbox.reason(Op::Copy(copy("/d", "/c"))), ErrorReason::FileIsDirectory);
    let recursive = |from, to, overwrite| {
        Op::Copy(CopyOp {
            recursive: true,
            overwrite,
            ..copy(from, to)
        })
    };
    sandbox.info(recursive("/d", "/c", false));
    assert_eq!(sandbox.names("c"), ["e", "g", "link"]);
    assert_eq!(sandbox.content("c/e/f"), "f");
    for path in ["c/g", "c/e"] {
        assert_eq!(
            fs::metadata(sandbox.at(path)).unwrap().modified().unwrap(),
            time,
            "{path}"
        );
    }
    assert_eq!(sandbox.info(stat("/c/g")).mode, 0o4711);
    assert_eq!(sandbox.info(stat("/c/e")).mode, 0o500);
    assert_eq!(fs::read_link(sandbox.at("c/link")).unwrap(), Path::new("/etc"));
    assert_eq!(
        sandbox.reason(recursive("/d", "/c", false)),
        ErrorReason::FileAlreadyExists
    );
    fs::write(sandbox.at("d/g"), "changed").unwrap();
    fs::write(sandbox.at("c/kept"), "").unwrap();
    sandbox.info(recursive("/d", "/c", true));
    assert_eq!(sandbox.content("c/g"), "changed");
    assert_eq!(sandbox.names("c"), ["e", "g", "kept", "link"]);
    for to in ["/d", "/d/e/x", "/d/x"] {
        assert_eq!(
            sandbox.reason(recursive("/d", to, true)),
            ErrorReason::PathInvalid,
            "{to}"
        );
    }
    sandbox.info(recursive("/d", "/dd", false));
    assert_eq!(
        sandbox.reason(Op::Copy(copy("/d/g", "/c/g"))),
        ErrorReason::FileAlreadyExists
    );
    assert_eq!(sandbox.reason(Op::Copy(copy("/no", "/x"))), ErrorReason::FileNotFound);
    let overwrite = CopyOp {
        overwrite: true,
        ..copy("/d/g", "/c")
    };
    assert_eq!(sandbox.reason(Op::Copy(overwrite)), ErrorReason::FileIsDirectory);
}

#[test]
fn removing() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.at("d/e")).unwrap();
    fs::write(sandbox.at("d/e/f"), "").unwrap();
    fs::write(sandbox.at("f"), "").unwrap();
    symlink("/d", sandbox.at("link")).unwrap();
    symlink("../..", sandbox.at("d/out")).unwrap();
    assert_eq!(
        sandbox.reason(Op::Remove(remove("/d", false))),
        ErrorReason::FileDirectoryNotEmpty
    );
    assert_eq!(
        sandbox.reason(Op::Remove(remove("/no", true))),
        ErrorReason::FileNotFound
    );
    assert_eq!(
        sandbox.reason(Op::Remove(remove("/no/no", false))),
        ErrorReason::FileNotFound
    );
    for path in ["/no", "/no/no"] {
        let missing = RemoveOp {
            missing_ok: true,
            ..remove(path, false)
        };
        assert_eq!(removed(&sandbox, missing), 0);
    }
    assert_eq!(removed(&sandbox, remove("/f", false)), 1);
    assert_eq!(removed(&sandbox, remove("/link", true)), 1);
    assert!(sandbox.at("d/e/f").exists());
    assert_eq!(removed(&sandbox, remove("/d", true)), 4);
    assert!(sandbox.names("").is_empty());
    assert!(sandbox.directory.path().join("secret").exists());
}

#[test]
fn removing_trees_that_are_wide_and_deep() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.at("t")).unwrap();
    for number in 0..3000 {
        fs::write(sandbox.at(format!("t/{number}")), "").unwrap();
    }
    // Deeper than the descriptors that are held, and than any path can say.
    let mut directory: std::os::fd::OwnedFd = fs::File::open(sandbox.at("t")).unwrap().into();
    let name = "d".repeat(100);
    let flags = rustix::fs::OFlags::DIRECTORY;
    for _ in 0..200 {
        rustix::fs::mkdirat(&directory, &name, rustix::fs::Mode::from_raw_mode(0o700)).unwrap();
        directory = rustix::fs::openat(&directory, &name, flags, rustix::fs::Mode::empty()).unwrap();
    }
    assert_eq!(removed(&sandbox, remove("/t", true)), 3201);
    assert!(sandbox.names("").is_empty());
}

#[test]
fn removing_what_others_remove_too() {
    let sandbox = Sandbox::new();
    for directory in 0..20 {
        fs::create_dir_all(sandbox.at(format!("t/{directory}/x"))).unwrap();
        for file in 0..50 {
            fs::write(sandbox.at(format!("t/{directory}/{file}")), "").unwrap();
        }
    }
    let all = || {
        let missing_ok = RemoveOp {
            missing_ok: true,
            ..remove("/t", true)
        };
        removed(&sandbox, missing_ok)
    };
    let views: Vec<_> = (0..4)
        .map(|_| Sandbox {
            view: view(&sandbox.at(""), ""),
            ..Sandbox::new()
        })
        .collect();
    let others = std::thread::scope(|scope| {
        let threads: Vec<_> = views
            .iter()
            .map(|other| {
                scope.spawn(|| {
                    removed(
                        other,
                        RemoveOp {
                            missing_ok: true,
                            ..remove("/t", true)
                        },
                    )
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    assert_eq!(others + all(), 1 + 20 * 52);
    assert!(sandbox.names("").is_empty());
}

#[test]
fn links_and_modes() {
    let sandbox = Sandbox::new();
    let link = |path: &str, target: &str, overwrite| {
        Op::Symlink(SymlinkOp {
            path: path.into(),
            target: target.into(),
            overwrite,
            ..SymlinkOp::default()
        })
    };
    let readlink = |path: &str| {
        Op::Readlink(ReadlinkOp {
            path: path.into(),
            ..ReadlinkOp::default()
        })
    };
    let info = sandbox.info(link("/l", "/../../etc", false));
    assert_eq!(
        (info.r#type(), info.symlink_target.as_str()),
        (FileType::Symlink, "/../../etc")
    );
    assert_eq!(sandbox.reason(link("/l", "x", false)), ErrorReason::FileAlreadyExists);
    sandbox.info(link("/l", "f", true));
    let Outcome::Readlink(read) = sandbox.run(readlink("/l")).unwrap() else {
        panic!()
    };
    assert_eq!(read.target, "f");
    for target in ["", "a\0"] {
        assert_eq!(sandbox.reason(link("/m", target, false)), ErrorReason::PathInvalid);
    }
    fs::create_dir(sandbox.at("d")).unwrap();
    assert_eq!(sandbox.reason(link("/d", "x", true)), ErrorReason::FileIsDirectory);
    assert_eq!(sandbox.reason(readlink("/d")), ErrorReason::FileIo);
    assert_eq!(sandbox.names(""), ["d", "l"]);

    fs::write(sandbox.at("f"), "").unwrap();
    let chmod = |path: &str, mode| {
        Op::Chmod(ChmodOp {
            path: path.into(),
            mode,
            ..ChmodOp::default()
        })
    };
    // Through the link to the file.
    let info = sandbox.info(chmod("/l", 0o4000));
    assert_eq!((info.r#type(), info.mode), (FileType::Regular, 0o4000));
    assert_eq!(
        fs::metadata(sandbox.at("f")).unwrap().permissions().mode() & 0o7777,
        0o4000
    );
    assert_eq!(sandbox.info(chmod("/d", 0o1777)).mode, 0o1777);
    assert_eq!(sandbox.reason(chmod("/f", 0o10000)), ErrorReason::InvalidArgument);
    assert_eq!(sandbox.reason(chmod("/no", 0o700)), ErrorReason::FileNotFound);
}
