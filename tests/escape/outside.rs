//! What a sandbox is, looked at from outside: what PID 1 holds, what it may do, where its mounts lead; and that the sandbox
//! itself can read how it is isolated.

use std::{
    collections::BTreeSet,
    fs,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
    process::Stdio,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, StatVfsMountFlags, flock, fstatvfs, open},
    io::{FdFlags, fcntl_setfd},
    pipe::pipe,
};
use sandgate::Command;
use sandgate_tests::server::{Server, monitor_binary};
use tokio::time::sleep;

use super::{NOBODY, in_time, lacking, make, python, said, server, works};

/// A descriptor that whoever starts a server has forgotten to close.
fn forgotten() -> (OwnedFd, String) {
    let (read, write) = pipe().unwrap();
    for end in [&read, &write] {
        fcntl_setfd(end, FdFlags::empty()).unwrap();
    }
    let name = fs::read_link(format!("/proc/self/fd/{}", write.as_raw_fd())).unwrap();
    // Both ends are one pipe.
    drop(read);
    (write, name.to_str().unwrap().to_owned())
}

fn descriptors(pid: i32) -> Vec<(u32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let named = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
    };
    entries.filter_map(named).collect()
}

fn status(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).trim().to_owned()
}

fn assert_holds_only_its_own(server: &Server, pid: i32, forgotten: &str) {
    let dir = server.sandbox_dir("watched");
    let (runtime, log) = (dir.join("runtime"), dir.join("log"));
    for (number, what) in descriptors(pid) {
        assert_ne!(what, forgotten, "PID 1 has what the server was left with");
        let path = Path::new(&what);
        let known = match number {
            0 | 1 => what == "/dev/null",
            2 => path == log,
            _ => {
                path.starts_with(&runtime)
                    || path.starts_with("/sys/fs/cgroup")
                    || what.starts_with("socket:")
                    || what.starts_with("anon_inode:")
                    || is_own_root(pid, number)
            }
        };
        assert!(known, "{number} is {what}");
    }
}

/// Whether a descriptor is the sandbox's own root. By its path it could also be the machine's.
fn is_own_root(pid: i32, number: u32) -> bool {
    let file = |path: String| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    let root = file(format!("/proc/{pid}/root/"));
    root.is_some() && root == file(format!("/proc/{pid}/fd/{number}")) && root != file("/".to_owned())
}

/// No event outside is seen inside, and none the other way.
fn assert_mounts_are_apart(pid: i32) {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    for line in mounts.lines() {
        let (head, _) = line.split_once(" - ").unwrap();
        let fields: Vec<_> = head.split(' ').collect();
        let optional = &fields[6..];
        assert!(optional.is_empty(), "{line}");
        let (at, options): (_, BTreeSet<_>) = (fields[4], fields[5].split(',').collect());
        let own = at.starts_with("/dev/") || at == "/" || at == "/proc" || at == "/dev";
        assert!(own || options.contains("ro"), "{line}");
        assert!(at != "/dev/shm" || options.contains("nodev"), "{line}");
        let device = at.starts_with("/dev/") && !["/dev/shm", "/dev/pts"].contains(&at);
        assert!(device || at == "/" || options.contains("nosuid"), "{line}");
    }
    assert!(mounts.lines().count() > 8, "{mounts}");
}

async fn looked_at(uid: Option<u32>) {
    let (_held, forgotten) = forgotten();
    let server = server(uid).await;
    let client = server.client().await;
    if uid.is_some() {
        // The usual way of one who has installed it for himself.
        for binary in ["sandgate-runtime", "sandgate-monitor"] {
            std::os::unix::fs::chown(server.dir().join(binary), uid, uid).unwrap();
        }
    }
    let held = descriptors(server.pid().try_into().unwrap());
    assert!(
        held.iter().any(|(_, what)| *what == forgotten),
        "the server was not left with it"
    );
    let sandbox = make(&client, "default", "watched").await;
    works(&sandbox).await;
    let pid = server.sandbox_pid("watched");
    assert_holds_only_its_own(&server, pid, &forgotten);
    assert_mounts_are_apart(pid);
    assert_eq!(
        (status(pid, "NoNewPrivs"), status(pid, "Seccomp")),
        ("1".into(), "2".into())
    );
    // Those that root inside has, and the one with which PID 1 can't be traced.
    assert_eq!(status(pid, "CapBnd"), "00000000800404fb");
    assert_eq!(status(pid, "CapPrm"), "00000000800405fb");
    let running = fs::File::open(format!("/proc/{pid}/exe")).unwrap();
    let flags = fstatvfs(&running).unwrap().f_flag;
    assert!(
        flags.contains(StatVfsMountFlags::RDONLY),
        "the runtime's own file can be written: {flags:?}"
    );
    let root = open(format!("/proc/{pid}/root"), OFlags::PATH, Mode::empty()).unwrap();
    let cwd = open(format!("/proc/{pid}/cwd"), OFlags::PATH, Mode::empty()).unwrap();
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).unwrap();
    assert_eq!(inode(&root), inode(&cwd));
    for (number, what) in exec_descriptors(&sandbox).await {
        assert!(
            number <= 2 && !what.contains("sandgate"),
            "a command has {number}: {what}"
        );
    }
    sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}

async fn exec_descriptors(sandbox: &sandgate::Sandbox) -> Vec<(u32, String)> {
    let listed = said(
        sandbox,
        Command::shell(
            "for f in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do \
        [ -e /proc/$$/fd/$f ] && echo $f $(readlink /proc/$$/fd/$f); done; true",
        ),
    );
    let listed = listed.await;
    let line = |line: &str| {
        line.split_once(' ')
            .map(|(n, what)| (n.parse().unwrap(), what.to_owned()))
    };
    listed.lines().filter_map(line).collect()
}

#[tokio::test]
async fn pid_1_has_nothing_that_it_does_not_need() {
    in_time(looked_at(None)).await;
}

#[tokio::test]
async fn pid_1_has_nothing_that_it_does_not_need_where_the_server_is_an_ordinary_user() {
    in_time(looked_at(Some(NOBODY))).await;
}

async fn told_inside(template: &str, uid: Option<u32>) {
    let server = server(uid).await;
    let client = server.client().await;
    let sandbox = make(&client, template, "curious").await;
    let script = "
import json
for each in json.load(open('/run/sandgate/isolation.json')):
    print(each['mechanism'], each['in_force'], each.get('why_not', ''))
";
    let inside = said(&sandbox, python(script)).await;
    let info = sandbox.get().await.unwrap();
    let line = |each: &sandgate::v1::IsolationMechanism| {
        let in_force = if each.in_force { "True" } else { "False" };
        format!("{} {in_force} {}\n", each.mechanism, each.why_not)
    };
    let outside: String = info.isolation.iter().map(line).collect();
    assert_eq!(inside, outside);
    assert_eq!(info.isolation.len(), sandgate_monitor::mechanism::ALL.len());
    assert_eq!(lacking(&info, "uid.range").is_some(), uid.is_some());
    sandbox.delete().await.unwrap();
}

#[tokio::test]
async fn the_isolation_can_be_read_inside() {
    in_time(told_inside("default", None)).await;
}

#[tokio::test]
async fn the_isolation_can_be_read_inside_where_the_server_is_an_ordinary_user() {
    in_time(told_inside("default", Some(NOBODY))).await;
}

/// The server does not hand it on. The monitor closes it by itself, too.
#[tokio::test]
async fn a_monitor_has_nothing_that_its_starter_forgot() {
    in_time(async {
        let (_held, forgotten) = forgotten();
        let dir = tempfile::tempdir().unwrap();
        // It waits until no other one has the directory.
        let lock = fs::File::open(dir.path()).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let mut monitor = std::process::Command::new(monitor_binary())
            .arg(dir.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(monitor.id()).unwrap();
        let has = |what: &str| descriptors(pid).iter().any(|(_, held)| held == what);
        let place = dir.path().canonicalize().unwrap();
        while !has(place.to_str().unwrap()) {
            assert_eq!(monitor.try_wait().unwrap(), None, "it ended at once");
            sleep(Duration::from_millis(5)).await;
        }
        assert!(!has(&forgotten), "the monitor has what its starter forgot");
        drop(lock);
        // There is no record.
        assert!(!monitor.wait().unwrap().success());
    })
    .await;
}
