//! What is special about sandboxes on this machine: templates, roots, limits, and what an ordinary user gets.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _, process::Command as Program, time::Duration};

use sandgate::{Command, Sandbox, v1};
use sandgate_proto::v1::{ErrorReason, exec_exit::Status};
use sandgate_tests::server::{Server, ServerOptions};

/// An ordinary user, who owns nothing.
const NOBODY: u32 = 65_534;

/// Runs a script and gives its exit code with what it printed.
async fn sh(sandbox: &Sandbox, script: &str) -> (Status, String) {
    let done = sandbox.run(Command::shell(script).merge_stderr()).send().await.unwrap();
    let output = done.stdout.unwrap_or_default().head;
    (
        done.exec.unwrap().exit.unwrap().status.unwrap(),
        String::from_utf8_lossy(&output).into_owned(),
    )
}

async fn ok(sandbox: &Sandbox, script: &str) -> String {
    let (status, output) = sh(sandbox, script).await;
    assert_eq!(status, Status::Code(0), "{script}: {output}");
    output
}

fn mechanism<'a>(info: &'a v1::Sandbox, name: &str) -> &'a v1::IsolationMechanism {
    info.isolation.iter().find(|each| each.mechanism == name).unwrap()
}

#[tokio::test]
async fn programs_of_the_machine_work_inside() {
    let server = Server::start().await;
    let made = server.client().await.create().send().await.unwrap();
    let mut tried = 0;
    for (program, check) in [
        ("python3", "python3 -c 'import ssl, json, subprocess; print(6 * 7)'"),
        ("python", "python -c 'print(6 * 7)'"),
        (
            "node",
            "node -e 'require(\"child_process\").execSync(\"true\"); console.log(6 * 7)'",
        ),
        (
            "git",
            "git init -q repo && cd repo && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l | sed s/1/42/",
        ),
        ("perl", "perl -e 'print 6 * 7, \"\\n\"'"),
    ] {
        if Program::new("/usr/bin/env")
            .args(["-i", "PATH=/usr/bin:/bin", "which", program])
            .output()
            .unwrap()
            .status
            .success()
        {
            tried += 1;
            assert_eq!(ok(&made.sandbox, check).await, "42\n", "{program}");
        }
    }
    assert!(tried > 0, "this machine has none of the programs");
    assert_eq!(
        ok(&made.sandbox, "id -un; pwd; echo $HOME; hostname").await,
        format!("sandbox\n/workspace\n/home/sandbox\n{}\n", made.info.name)
    );
    ok(
        &made.sandbox,
        "touch /tmp/a /var/tmp/a ~/a /workspace/a; echo x > /dev/shm/a; getent hosts $(hostname)",
    )
    .await;
    let (status, _) = sh(&made.sandbox, "touch /usr/a").await;
    assert_ne!(status, Status::Code(0));
    made.sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn directories_in_unusual_places_are_shown() {
    // As where a version manager keeps its programs: in a home that is closed to others.
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let tools = home.path().join("tools/bin");
    fs::create_dir_all(&tools).unwrap();
    let tool = tools.join("tool");
    fs::write(&tool, "#!/bin/sh\necho from the tool\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(home.path().join("secret"), "secret").unwrap();
    let (shown, bin) = (home.path().join("tools"), tools.display());
    let config = format!("[template.default]\nhost_paths = [{shown:?}]\nenv = {{ PATH = \"{bin}:/usr/bin:/bin\" }}\n");
    let server = Server::with_config(&config).await;
    let made = server.client().await.create().send().await.unwrap();
    assert_eq!(ok(&made.sandbox, "tool").await, "from the tool\n");
    let (status, _) = sh(&made.sandbox, &format!("echo x > {bin}/tool")).await;
    assert_ne!(status, Status::Code(0));
    let (status, _) = sh(&made.sandbox, &format!("cat {}/secret", home.path().display())).await;
    assert_ne!(status, Status::Code(0));
    made.sandbox.delete().await.unwrap();
}

#[tokio::test]
async fn a_disk_has_its_size_over_a_suspension() {
    let server = Server::with_config("[template.default]\ndisk = \"64MiB\"\n").await;
    let made = server.client().await.create().send().await.unwrap();
    assert!(mechanism(&made.info, "disk.size").in_force, "{:?}", made.info.isolation);
    let (status, output) = sh(&made.sandbox, "dd if=/dev/zero of=big bs=1M count=100").await;
    assert!(
        status != Status::Code(0) && output.contains("No space left"),
        "{output}"
    );
    ok(&made.sandbox, "rm big; echo kept > file").await;
    let usage = made.sandbox.get().await.unwrap().usage.unwrap();
    assert_eq!(usage.disk_limit_bytes, Some(64 << 20));
    made.sandbox.suspend(None).await.unwrap();
    let resumed = made.sandbox.resume().await.unwrap();
    assert!(mechanism(&resumed, "disk.size").in_force);
    assert_eq!(ok(&made.sandbox, "cat file").await, "kept\n");
    made.sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn the_hosts_network_is_only_there_when_asked_for() {
    let server = Server::with_config("[template.open]\nnetwork = \"host\"\n").await;
    let client = server.client().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
    let (closed, open) = (
        client.create().send().await.unwrap(),
        client.create().template("open").send().await.unwrap(),
    );
    assert_ne!(sh(&closed.sandbox, &connect).await.0, Status::Code(0));
    assert_eq!(sh(&open.sandbox, &connect).await.0, Status::Code(0));
    assert!(mechanism(&closed.info, "namespace.network").in_force);
    let network = mechanism(&open.info, "namespace.network");
    assert!(!network.in_force && !network.why_not.is_empty());
    // Its own loopback works, on low ports too.
    ok(
        &closed.sandbox,
        "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1:80\") or die \"$!\"'",
    )
    .await;
    closed.sandbox.delete().await.unwrap();
    open.sandbox.delete().await.unwrap();
}

#[tokio::test]
async fn a_whole_system_is_writable_and_stays_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let script = "set -e; cd \"$1\"; mkdir -p bin etc tmp lib lib64 proc; chmod 1777 tmp; \
        for program in sh cat chown ls mkdir touch stat rm; do path=$(command -v $program); cp -L $path bin/; \
        for lib in $(ldd $path | grep -o '/[^ ]*'); do mkdir -p .$(dirname $lib); cp -Lu $lib .$lib; done; done; \
        echo root:x:0:0::/root:/bin/sh > etc/passwd; chmod -R a+rX .";
    let built = Program::new("bash")
        .args(["-c", script, "-"])
        .arg(root.path())
        .status()
        .unwrap();
    assert!(built.success());
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!("[template.system]\nroot = \"rootfs\"\nrootfs = {:?}\n", root.path());
    let server = Server::with_config(&config).await;
    let made = server.client().await.create().template("system").send().await.unwrap();
    let made_inside = ok(
        &made.sandbox,
        "touch /bin/new /etc/new; mkdir /opt; chown 33:44 /etc/new; rm /etc/passwd; stat -c %u:%g /etc/new /bin/cat",
    )
    .await;
    assert_eq!(made_inside, "33:44\n0:0\n");
    assert!(root.path().join("etc/passwd").exists() && !root.path().join("bin/new").exists());
    made.sandbox.suspend(None).await.unwrap();
    made.sandbox.resume().await.unwrap();
    ok(&made.sandbox, "ls /bin/new && ! ls /etc/passwd").await;
    made.sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn plain_processes_only_when_asked_for_and_they_end() {
    let server = Server::with_config("[template.plain]\nisolation = \"none\"\n").await;
    let made = server.client().await.create().template("plain").send().await.unwrap();
    assert!(
        made.info
            .isolation
            .iter()
            .all(|each| !each.in_force && !each.why_not.is_empty())
    );
    let script = "echo kept > file; setsid sleep 600 > /dev/null 2>&1 & echo $!";
    let pid: i32 = ok(&made.sandbox, script).await.trim().parse().unwrap();
    let alive = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "sleep");
    sandgate_tests::procs::until("it is a process of this machine", || alive(pid)).await;
    made.sandbox.suspend(Some(Duration::ZERO)).await.unwrap();
    assert!(!alive(pid));
    assert_eq!(
        made.sandbox.get().await.unwrap().last_end.unwrap().cause(),
        v1::EndCause::Suspended
    );
    made.sandbox.resume().await.unwrap();
    assert_eq!(ok(&made.sandbox, "cat file").await, "kept\n");
    made.sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn an_ordinary_user_has_sandboxes_too() {
    let server = Server::start_with(ServerOptions {
        uid: Some(NOBODY),
        ..ServerOptions::default()
    })
    .await;
    let made = server.client().await.create().name("mine").send().await.unwrap();
    for name in [
        "namespace.user",
        "namespace.mount",
        "namespace.pid",
        "namespace.network",
        "seccomp",
        "capabilities",
        "root.overlay",
        "no_new_privs",
    ] {
        assert!(mechanism(&made.info, name).in_force, "{name}");
    }
    for name in ["uid.range", "cgroup.memory", "disk.size"] {
        let lacking = mechanism(&made.info, name);
        assert!(!lacking.in_force && !lacking.why_not.is_empty(), "{name}");
    }
    assert_eq!(
        ok(
            &made.sandbox,
            "id -u; pwd; echo x > /etc/new; cat /etc/new; echo kept > file"
        )
        .await,
        "0\n/workspace\nx\n"
    );
    made.sandbox.suspend(None).await.unwrap();
    made.sandbox.resume().await.unwrap();
    assert_eq!(ok(&made.sandbox, "cat file").await, "kept\n");
    made.sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn what_a_template_requires_must_be_there() {
    let config = "[limits]\nsandboxes = 2\n[template.strict]\nrequire = [\"disk.size\"]\n[template.sized]\nrequire = [\"disk.size\"]\ndisk = \"16MiB\"\n";
    let server = Server::with_config(config).await;
    let client = server.client().await;
    let error = client.create().name("a").template("strict").send().await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::IsolationUnavailable));
    assert!(error.to_string().contains("disk.size"), "{error}");
    assert!(client.list("").await.unwrap().is_empty());
    server.until_nothing_is_left().await;
    let sized = client.create().template("sized").send().await.unwrap();
    assert!(mechanism(&sized.info, "disk.size").required);
    // Two may live at once; one that is suspended does not count.
    let second = client.create().send().await.unwrap();
    let error = client.create().send().await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::LimitReached));
    assert!(error.refused().unwrap().retry_after.is_some());
    second.sandbox.suspend(None).await.unwrap();
    let third = client.create().send().await.unwrap();
    for sandbox in [sized.sandbox, second.sandbox, third.sandbox] {
        sandbox.delete().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_used_is_measured() {
    let server = Server::with_config("[template.default]\nmemory = \"256MiB\"\npids = 100\ncpus = 1.5\n").await;
    let made = server.client().await.create().send().await.unwrap();
    ok(
        &made.sandbox,
        "dd if=/dev/urandom of=file bs=1M count=8; sha256sum file",
    )
    .await;
    made.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    let usage = made.sandbox.get().await.unwrap().usage.unwrap();
    assert!(usage.cpu_time.is_some_and(|time| time.nanos > 0 || time.seconds > 0));
    assert!(usage.memory_bytes.unwrap() > 0);
    assert_eq!(usage.memory_limit_bytes, Some(256 << 20));
    assert!(usage.disk_bytes.unwrap() >= 8 << 20);
    assert!(usage.processes.unwrap() >= 2);
    assert_eq!(
        (usage.processes_limit, usage.cpu_limit_millis),
        (Some(100), Some(1_500))
    );
    made.sandbox.delete().await.unwrap();
}

/// A machine can't be restarted by a test. What is left of it can be had: nothing runs, and the disk tells of another boot.
#[tokio::test]
async fn after_a_restart_of_the_machine_all_are_suspended() {
    let mut server = Server::start().await;
    let client = server.client().await;
    let made = client.create().name("kept").label("a", "b").send().await.unwrap();
    let done = made
        .sandbox
        .run(Command::shell("echo before > file; echo output").id("before"))
        .send()
        .await
        .unwrap();
    assert_eq!(done.exec.unwrap().exit.unwrap().status, Some(Status::Code(0)));
    made.sandbox
        .start(Command::shell("echo alive; sleep 600").id("alive"))
        .await
        .unwrap();
    drop(client);
    server.kill();
    let dir = server.sandbox_dir("kept");
    let pid = server.sandbox_pid("kept");
    let before = sandgate_monitor::Status::read(&dir).unwrap();
    let monitor = server.monitor_pid(&dir).unwrap();
    // As a machine does that is shut down in order.
    rustix::process::kill_process(monitor, rustix::process::Signal::TERM).unwrap();
    let gone = || !fs::exists(format!("/proc/{pid}")).unwrap() && server.monitor_pid(&dir).is_none();
    sandgate_tests::procs::until("the sandbox ends with its monitor", gone).await;
    let mut status = sandgate_monitor::Status::read(&dir).unwrap();
    assert_eq!(status.running, None, "the monitor has seen to it");
    let mut running = before.running.unwrap();
    running.boot_id = "an earlier boot".to_owned();
    running.cgroups = sandgate_monitor::Cgroups::default();
    status.running = Some(running);
    status.write(&dir).unwrap();
    server.restart().await;
    let client = server.client().await;
    let found = client.sandbox("kept").get().await.unwrap();
    assert_eq!(
        (found.state(), &found.uid),
        (v1::SandboxState::Suspended, &made.info.uid)
    );
    assert_eq!(found.labels.len(), 1);
    let end = found.last_end.unwrap();
    assert_eq!(
        (end.cause(), &end.incarnation),
        (v1::EndCause::MachineLost, &made.info.incarnation)
    );
    let sandbox = client.sandbox("kept");
    sandbox.resume().await.unwrap();
    assert_eq!(ok(&sandbox, "cat file").await, "before\n");
    let output = sandbox.attach_exec("before").follow().output().await.unwrap();
    assert_eq!(&output.stdout[..], b"output\n");
    let alive = sandbox.exec_info("alive").await.unwrap();
    assert_eq!(
        alive.exit.unwrap().status,
        Some(Status::Signal(15)),
        "it was ended in order, and not run again"
    );
    sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}
