//! What a command has left in the sandbox's root for whoever starts the sandbox again: with more rights than commands have,
//! and with descriptors that lead out.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use sandgate::{Client, Command};
use sandgate_tests::server::Server;

use super::{NOBODY, host::Host, in_time, make, run, said, server, text};

/// Templates, and what is run there as root inside; then the sandbox is suspended and resumed. What names a descriptor is
/// tried for many.
const TRAPS: [(&str, &str); 10] = [
    ("default", "rm /etc/passwd && mkfifo /etc/passwd"),
    ("root", "rm /etc/passwd && mkfifo /etc/passwd"),
    ("default", "ln -sf /dev/zero /etc/passwd"),
    ("default", "rm -rf /run/sandgate && ln -s TARGET /run/sandgate"),
    (
        "default",
        "rm -f /run/sandgate/isolation.json && ln -s TARGET/file /run/sandgate/isolation.json",
    ),
    (
        "default",
        "rm -rf /run/sandgate && ln -s /proc/self/fd/FD/.. /run/sandgate",
    ),
    (
        "default",
        "rm -rf /run/sandgate && ln -s /proc/self/fd/FD/UP/TARGET /run/sandgate",
    ),
    ("default", "rm -rf /home && ln -s /proc/self/fd/FD/UP/TARGET /home"),
    (
        "deep",
        "rm -rf /workspace && ln -s /proc/self/fd/FD/UP/TARGET /workspace",
    ),
    ("deep", "rm -rf /workspace && ln -s /proc/1/fd/FD/.. /workspace"),
];
/// More than any path here is deep.
const UP: &str = "../../../../../../../../../..";
/// Where the descriptors are that the sandbox is started with.
const DESCRIPTORS: std::ops::Range<u32> = 3..20;

/// Modes and owners of all that is in the state directory, but what sandboxes have of their own.
fn picture(server: &Server) -> BTreeMap<PathBuf, (u32, u32)> {
    let mut seen = BTreeMap::new();
    let mut look = vec![server.state_dir()];
    while let Some(path) = look.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        seen.insert(path.clone(), (found.permissions().mode(), found.uid()));
        let own = path.parent().is_some_and(|parent| parent.ends_with("sandboxes"));
        let roots = path.ends_with("roots");
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let passing = ["status.json", "started.json"]
                .iter()
                .any(|name| entry.file_name() == *name);
            let inner = own
                && ["disk", "runtime", "root", "lower"]
                    .iter()
                    .any(|name| entry.file_name() == *name);
            if !passing && !inner && !roots {
                look.push(entry.path());
            }
        }
    }
    seen
}

async fn sprung(client: &Client, server: &Server, template: &str, trap: &str, target: &Path) {
    let sandbox = make(client, template, "trap").await;
    said(&sandbox, Command::shell(trap).cwd("/").user("root")).await;
    let before = picture(server);
    sandbox.suspend(None).await.unwrap();
    // It may well be that such a sandbox does not start any more. That is its own affair.
    let resumed = sandbox.resume().await;
    if let Ok(info) = &resumed
        && info.state() == sandgate::v1::SandboxState::Ready
    {
        let answer = run(&sandbox, Command::shell("echo alive").cwd("/").user("0")).await;
        assert_eq!(text(answer.stdout), "alive\n", "{trap}");
    }
    assert_eq!(picture(server), before, "{trap}: {resumed:?}");
    assert_eq!(fs::read_dir(target).unwrap().count(), 0, "{trap}");
    assert_eq!(
        fs::metadata(target).unwrap().permissions().mode() & 0o7777,
        0o777,
        "{trap}"
    );
    sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}

async fn traps(uid: Option<u32>) {
    let server = server(uid).await;
    let client = server.client().await;
    let host = Host::new();
    let target = tempfile::Builder::new().prefix("sandgate-").tempdir().unwrap();
    fs::set_permissions(target.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if uid.is_some() {
        std::os::unix::fs::chown(target.path(), uid, uid).unwrap();
    }
    for (index, (template, trap)) in TRAPS.into_iter().enumerate() {
        let trap = trap
            .replace("TARGET", target.path().to_str().unwrap())
            .replace("UP", UP);
        // Not each with each, which would take minutes: but every descriptor, and every trap.
        let numbers = DESCRIPTORS.filter(|number| *number as usize % 3 == index % 3);
        let traps: Vec<_> = numbers.map(|number| trap.replace("FD", &number.to_string())).collect();
        let tried = if trap.contains("FD") { traps.len() } else { 1 };
        for trap in &traps[..tried] {
            sprung(&client, &server, template, trap, target.path()).await;
        }
    }
    host.assert_alone();
}

#[tokio::test]
async fn a_trap_for_the_next_start_springs_inside() {
    in_time(traps(None)).await;
}

#[tokio::test]
async fn a_trap_for_the_next_start_springs_inside_where_the_server_is_an_ordinary_user() {
    in_time(traps(Some(NOBODY))).await;
}
