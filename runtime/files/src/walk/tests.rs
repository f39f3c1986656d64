use std::{
    fs as stdfs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use super::*;

fn open(path: &Path) -> OwnedFd {
    fs::open(path, OPEN_DIR, Mode::empty()).unwrap()
}

fn paths(root: &Path, options: Options) -> Vec<String> {
    let mut walker = Walker::new(open(root), options).unwrap();
    let mut found = Vec::new();
    while let Some(step) = walker.next() {
        if let Step::Entry(entry) = step {
            assert!(entry.path.ends_with(entry.name.to_bytes()));
            found.push(String::from_utf8_lossy(entry.path).into_owned());
        }
    }
    found
}

#[test]
fn sorted_is_the_order_of_whole_paths() {
    let root = tempfile::tempdir().unwrap();
    for dir in ["a/b/c", "a.d", "z"] {
        stdfs::create_dir_all(root.path().join(dir)).unwrap();
    }
    for file in ["a/b.c", "a/b/c/f", "a.c", "a-", "a0", "z/1", "z/10", "z/2"] {
        stdfs::write(root.path().join(file), "").unwrap();
    }
    symlink("/", root.path().join("z/root")).unwrap();
    let found = paths(
        root.path(),
        Options {
            sorted: true,
            max_depth: 0,
        },
    );
    let mut sorted = found.clone();
    sorted.sort();
    assert_eq!(found, sorted);
    assert_eq!(found.len(), 14);
    let mut unsorted = paths(root.path(), Options::default());
    unsorted.sort();
    assert_eq!(unsorted, sorted);
    let shallow = paths(
        root.path(),
        Options {
            sorted: true,
            max_depth: 1,
        },
    );
    assert_eq!(shallow, ["a", "a-", "a.c", "a.d", "a0", "z"]);
}

#[test]
fn skips_what_it_is_told_to() {
    let root = tempfile::tempdir().unwrap();
    stdfs::create_dir_all(root.path().join("a/b")).unwrap();
    stdfs::create_dir_all(root.path().join("c/d")).unwrap();
    let mut walker = Walker::new(
        open(root.path()),
        Options {
            sorted: true,
            max_depth: 0,
        },
    )
    .unwrap();
    let mut found = Vec::new();
    loop {
        match walker.next() {
            Some(Step::Entry(entry)) => found.push(entry.path.to_vec()),
            Some(Step::Enter(entry)) => {
                if entry.path == b"a" {
                    walker.skip();
                }
            }
            Some(Step::Unreadable { .. }) => unreachable!(),
            None => break,
        }
    }
    assert_eq!(found, [b"a".to_vec(), b"c".to_vec(), b"c/d".to_vec()]);
}

#[test]
fn a_deep_tree_needs_few_descriptors_and_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    let depth = 400;
    let mut dir = open(root.path());
    // Long names: the path is longer than the kernel takes at once. A sibling at each level is found on the way back.
    let name = "d".repeat(40);
    for level in 0..depth {
        fs::mkdirat(&dir, &name, Mode::from_raw_mode(0o755)).unwrap();
        fs::mkdirat(&dir, format!("z{level}"), Mode::from_raw_mode(0o755)).unwrap();
        dir = fs::openat(&dir, &name, OPEN_DIR, Mode::empty()).unwrap();
    }
    let mut walker = Walker::new(
        open(root.path()),
        Options {
            sorted: true,
            max_depth: 0,
        },
    )
    .unwrap();
    let (mut siblings, mut open_levels) = (0, 0);
    loop {
        match walker.next() {
            Some(Step::Entry(entry)) => {
                siblings += usize::from(entry.name.to_bytes()[0] == b'z');
                fs::statat(entry.dir, entry.name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            }
            Some(Step::Enter(_)) => {}
            Some(Step::Unreadable { error, .. }) => unreachable!("{error}"),
            None => break,
        }
        open_levels = open_levels.max(walker.levels.iter().filter(|level| level.dir.is_some()).count());
    }
    assert_eq!(siblings, depth);
    assert!(open_levels <= MAX_OPEN + 1, "{open_levels}");
}

#[test]
fn does_not_enter_proc_but_may_start_there() {
    let mut walker = Walker::new(
        open(Path::new("/")),
        Options {
            sorted: true,
            max_depth: 2,
        },
    )
    .unwrap();
    while let Some(step) = walker.next() {
        let (Step::Entry(entry) | Step::Enter(entry)) = step else {
            continue;
        };
        assert!(!entry.path.starts_with(b"proc/") && !entry.path.starts_with(b"sys/"));
    }
    let proc = paths(
        Path::new("/proc"),
        Options {
            sorted: false,
            max_depth: 2,
        },
    );
    assert!(proc.contains(&"meminfo".to_owned()) && proc.contains(&"sys/kernel".to_owned()));
    assert!(
        !proc
            .iter()
            .any(|path| path.starts_with(|first: char| first.is_ascii_digit()) && path.contains('/'))
    );
}

#[test]
fn non_utf8_names_come_as_they_are() {
    let root = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    stdfs::create_dir(root.path().join(name)).unwrap();
    stdfs::write(root.path().join(name).join("x"), "").unwrap();
    let mut walker = Walker::new(open(root.path()), Options::default()).unwrap();
    let mut found = Vec::new();
    while let Some(step) = walker.next() {
        if let Step::Entry(entry) = step {
            found.push(entry.path.to_vec());
        }
    }
    assert_eq!(found, [b"\xff\xfe".to_vec(), b"\xff\xfe/x".to_vec()]);
}

#[test]
fn a_directory_swapped_for_a_symlink_never_leads_out() {
    let outside = tempfile::tempdir().unwrap();
    stdfs::create_dir(outside.path().join("deep")).unwrap();
    stdfs::write(outside.path().join("canary"), "").unwrap();
    stdfs::write(outside.path().join("deep/canary"), "").unwrap();
    let root = tempfile::tempdir().unwrap();
    stdfs::create_dir_all(root.path().join("d/deep")).unwrap();
    stdfs::write(root.path().join("d/deep/inner"), "").unwrap();
    symlink(outside.path(), root.path().join("l")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = thread::spawn({
        let (dir, stop) = (open(root.path()), stop.clone());
        move || {
            while !stop.load(Relaxed) {
                fs::renameat_with(&dir, "d", &dir, "l", fs::RenameFlags::EXCHANGE).unwrap();
            }
        }
    });
    let mut inner = 0;
    for _ in 0..5_000 {
        let mut walker = Walker::new(open(root.path()), Options::default()).unwrap();
        while let Some(step) = walker.next() {
            if let Step::Entry(entry) = step {
                assert!(!entry.path.ends_with(b"canary"));
                inner += usize::from(entry.path.ends_with(b"inner"));
            }
        }
    }
    stop.store(true, Relaxed);
    swapper.join().unwrap();
    assert!(inner > 0, "the tree was never seen as it should be");
}
