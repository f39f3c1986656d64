//! What lies in the state directory and should not: set aside or removed, and nobody else's trouble.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use sandgate::v1::{ErrorReason, SandboxState};
use sandgate_tests::{
    new_id, procs,
    server::{Server, server_binary},
};

use super::{delete_all, endless, in_time, sh};

/// A server whose log is kept. Killed when dropped.
struct Logged(Child);

// === impl Logged ===

impl Logged {
    fn start(server: &Server, log: &Path) -> Self {
        let log = fs::File::create(log).unwrap();
        let mut command = server.command();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        Self(child.unwrap())
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Puts all kinds of damage into a state directory, and gives the names of what can't be taken for a sandbox.
fn damage(state: &Path, precious: &Path) -> Vec<&'static str> {
    let (sandboxes, new, trash) = (state.join("sandboxes"), state.join("new"), state.join("trash"));
    let record = fs::read_to_string(sandboxes.join("good/sandbox.json")).unwrap();
    let status = fs::read_to_string(sandboxes.join("good/status.json")).unwrap();
    fs::create_dir(sandboxes.join("empty")).unwrap();
    file(&sandboxes.join("garbage/sandbox.json"), "\0\0\0");
    file(&sandboxes.join("cut/sandbox.json"), &record[..record.len() / 2]);
    file(&sandboxes.join("file"), "no directory");
    file(&sandboxes.join("another/sandbox.json"), &record);
    file(
        &sandboxes.join("No Name/sandbox.json"),
        &record.replace("good", "No Name"),
    );
    file(
        &sandboxes.join("status/sandbox.json"),
        &record.replace("\"good\"", "\"status\""),
    );
    file(&sandboxes.join("status/status.json"), &status[..status.len() / 2]);
    fs::create_dir_all(sandboxes.join("directory/sandbox.json")).unwrap();
    symlink(precious, sandboxes.join("link")).unwrap();
    symlink("nowhere", sandboxes.join("dangling")).unwrap();

    fs::create_dir(new.join("empty")).unwrap();
    file(&new.join("file"), "");
    file(&new.join("garbage/sandbox.json"), "{");
    file(&new.join("half/sandbox.json"), &record);
    file(&new.join("half/disk/upper/file"), "");
    symlink(precious, new.join("link")).unwrap();
    file(&trash.join("file"), "");
    file(&trash.join("tree/disk/work/work/file"), "");
    fs::set_permissions(trash.join("tree/disk/work/work"), fs::Permissions::from_mode(0o000)).unwrap();
    symlink(precious, trash.join("link")).unwrap();
    symlink(precious, trash.join("tree/link")).unwrap();
    [
        "No Name",
        "another",
        "cut",
        "dangling",
        "directory",
        "empty",
        "file",
        "garbage",
        "link",
        "status",
    ]
    .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_damaged_is_set_aside_and_harms_nobody() {
    in_time(async {
        let mut server = Server::start().await;
        let (state, mark) = (server.state_dir(), new_id("damaged"));
        let good = server.client().await.create().name("good").send().await.unwrap();
        sh(&good.sandbox, "echo kept > /workspace/file").await;
        server.kill();
        let precious = server.dir().join("precious");
        file(&precious.join("file"), "precious");
        let aside = damage(&state, &precious);
        let log = server.dir().join("log");
        let logged = Logged::start(&server, &log);

        let client = server.client().await;
        let found: Vec<_> = client
            .list("")
            .await
            .unwrap()
            .into_iter()
            .map(|found| found.name)
            .collect();
        assert_eq!(found, ["good"]);
        assert_eq!(good.sandbox.get().await.unwrap().incarnation, good.info.incarnation);
        assert_eq!(sh(&good.sandbox, "cat /workspace/file").await, "kept\n");
        procs::until("what was half made is left", || names(&state.join("new")).is_empty()).await;
        procs::until("what was half removed is left", || {
            names(&state.join("trash")).is_empty()
        })
        .await;
        assert_eq!(names(&state.join("sandboxes")), ["good"]);
        let kept = names(&state.join("damaged"));
        let stems: Vec<_> = kept.iter().map(|name| name.rsplit_once('.').unwrap().0).collect();
        assert_eq!(stems, aside);
        let warnings = fs::read_to_string(&log).unwrap();
        for name in &aside {
            let told = |line: &str| line.contains("set aside") && line.contains(&format!("/sandboxes/{name}\""));
            assert!(warnings.lines().any(told), "nobody was told of {name}: {warnings}");
        }
        assert_eq!(fs::read_to_string(precious.join("file")).unwrap(), "precious");

        // Their names are free.
        for name in ["empty", "file", "status"] {
            let made = client.create().name(name).send().await.unwrap();
            assert!(made.created && made.info.state() == SandboxState::Ready);
            sh(&made.sandbox, "true").await;
        }
        drop(logged);
        fs::remove_dir_all(state.join("damaged")).unwrap();
        server.restart().await;
        delete_all(&server, &mark).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_damaged_while_it_runs_ends_without_harm_to_its_successor() {
    in_time(async {
        let mut server = Server::start().await;
        let mark = new_id("torn");
        let client = server.client().await;
        let ttl = Duration::from_secs(4);
        let torn = client.create().name("torn").ttl(ttl).send().await.unwrap();
        torn.sandbox.start(endless(&mark)).await.unwrap();
        server.kill();
        file(&server.sandbox_dir("torn").join("sandbox.json"), "{");
        server.restart().await;
        let gone = torn.sandbox.get().await.unwrap_err();
        assert_eq!(gone.reason(), Some(ErrorReason::SandboxNotFound));
        let successor = client.create().name("torn").send().await.unwrap();
        assert!(successor.created && successor.info.uid != torn.info.uid);
        sh(&successor.sandbox, "echo kept > /workspace/file").await;
        procs::until("it outlives its deadline", || procs::marked(&mark).is_empty()).await;
        let monitor = server.monitor_pid(&server.sandbox_dir("torn"));
        let damaged = server.state_dir().join("damaged");
        procs::until("its files outlive it", || names(&damaged).is_empty()).await;
        assert_eq!(server.monitor_pid(&server.sandbox_dir("torn")), monitor);
        assert_eq!(sh(&successor.sandbox, "cat /workspace/file").await, "kept\n");
        assert_eq!(
            successor.sandbox.get().await.unwrap().incarnation,
            successor.info.incarnation
        );
        delete_all(&server, &mark).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_server_on_the_same_directory_refuses_and_harms_nobody() {
    in_time(async {
        let server = Server::start().await;
        let mark = new_id("second");
        let made = server.client().await.create().name("first").send().await.unwrap();
        made.sandbox.start(endless(&mark)).await.unwrap();
        // Also one that would listen elsewhere, and one that comes by another path.
        let link = server.dir().join("link");
        symlink(server.state_dir(), &link).unwrap();
        let (same, mut elsewhere, mut linked) = (server.command(), server.command(), Command::new(server_binary()));
        elsewhere.args(["--listen", "127.0.0.1:0"]);
        linked.arg("--config").arg(server.config()).arg("--state-dir").arg(link);
        for mut second in [same, elsewhere, linked] {
            let refused = second.stdin(Stdio::null()).output().unwrap();
            let message = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success(), "{second:?}: {message}");
            assert!(message.contains("another server"), "{second:?}: {message}");
            assert!(message.contains(&server.pid().to_string()), "{second:?}: {message}");
        }
        assert_eq!(made.sandbox.get().await.unwrap().incarnation, made.info.incarnation);
        assert_eq!(server.client().await.list("").await.unwrap().len(), 1);
        assert_eq!(procs::marked(&mark).len(), 1);
        delete_all(&server, &mark).await;
    })
    .await;
}
