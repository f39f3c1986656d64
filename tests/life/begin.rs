//! What the runtime is, what it needs, and how it starts.

use super::*;

/// A little-endian number of that many bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    bytes[at..at + length]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

#[test]
fn the_binary_is_static_stripped_and_small() {
    const INTERPRETER: usize = 3;
    const SYMBOLS: usize = 2;
    let elf = fs::read(binary()).unwrap();
    assert_eq!((&elf[..4], elf[4]), (&b"\x7fELF"[..], 2), "an ELF file of 64 bits");
    assert!(elf.len() < 8_000_000, "{} bytes", elf.len());
    let kinds = |table: usize, size: usize, count: usize, field: usize| {
        let (start, size, count) = (number(&elf, table, 8), number(&elf, size, 2), number(&elf, count, 2));
        (0..count)
            .map(|place| number(&elf, start + place * size + field, 4))
            .collect::<Vec<_>>()
    };
    let segments = kinds(32, 54, 56, 0);
    let sections = kinds(40, 58, 60, 4);
    assert!(
        !segments.is_empty() && !segments.contains(&INTERPRETER),
        "it needs a dynamic loader"
    );
    assert!(!sections.contains(&SYMBOLS), "it has symbols");
}

#[tokio::test]
async fn it_needs_little_memory_when_idle() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let memory = runtime.own_memory();
        println!("{} KiB", memory / 1024);
        assert!(memory < 2 << 20, "{memory} bytes");
    }
}

#[tokio::test]
async fn a_second_runtime_on_the_same_state_refuses_to_start() {
    let runtime = Runtime::start().await;
    let mut second = Command::new(binary());
    second.arg("--socket").arg(runtime.workspace().join("other"));
    second.arg("--state-dir").arg(runtime.state_dir());
    let output = tokio::task::spawn_blocking(move || second.output().unwrap())
        .await
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && message.contains("another runtime uses it"),
        "{message}"
    );
    let mut client = runtime.connect().await;
    assert_eq!(stdout(&mut client, "echo well").await, "well\n");
}

#[test]
fn wrong_arguments_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
    let (socket, state) = (
        format!("--socket={}", path("socket")),
        format!("--state-dir={}", path("state")),
    );
    let all = |more: &'static str| vec![socket.clone(), state.clone(), more.to_owned()];
    for (args, named) in [
        (vec![], "--state-dir"),
        (vec![state.clone()], "--socket"),
        (all("--no-such-flag"), "--no-such-flag"),
        (all("--deadline=soon"), "--deadline"),
        (all("--idle-limit=5"), "--idle-limit"),
        (all("--max-alive=0"), "--max-alive"),
        (all("--retain-bytes=much"), "--retain-bytes"),
        (all("--user=no-such-user"), "--user"),
        (all("--log=loud"), "--log"),
        (all("--memory-cgroup=/x"), "--cgroup"),
        (all("--socket-fd=5"), "--socket-fd"),
        (vec![state.clone(), "--socket-fd=77".into()], "--socket-fd"),
        (
            vec![state.clone(), format!("--socket={}", path("no/such/socket"))],
            "--socket",
        ),
        (
            vec![socket.clone(), "--state-dir=/dev/null/state".into()],
            "--state-dir",
        ),
    ] {
        let output = Command::new(binary())
            .args(&args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && output.status.code().is_some(),
            "{args:?}: {}",
            output.status
        );
        assert!(message.contains(named), "{args:?}: {message}");
    }
}

#[tokio::test]
async fn it_serves_on_an_inherited_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    fcntl_setfd(&listener, FdFlags::empty()).unwrap();
    let mut command = Command::new(binary());
    command.arg(format!("--socket-fd={}", listener.as_raw_fd()));
    command
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .arg("--cwd")
        .arg(dir.path());
    let mut runtime = command.stdin(Stdio::null()).spawn().unwrap();
    // Before it serves, callers wait in the listener's queue: nobody is turned away.
    let mut client = connect_to(socket).await.unwrap();
    let number = listener.as_raw_fd();
    drop(listener);
    let list = stdout(&mut client, "ls /proc/self/fd").await;
    assert!(
        !list.lines().any(|fd| fd == number.to_string() && number > 3),
        "the command got the socket: {list}"
    );
    client.stop(StopRequest::default()).await.unwrap();
    let status = tokio::task::spawn_blocking(move || runtime.wait().unwrap())
        .await
        .unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn as_pid_1_it_runs_commands_and_reaps_orphans() {
    for cgroups in [false, true] {
        let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
            .map(Into::into)
            .to_vec();
        let runtime = Runtime::start_with(RuntimeOptions {
            cgroups,
            wrapper,
            ..Default::default()
        })
        .await;
        let mut client = runtime.connect().await;
        assert_eq!(
            stdout(&mut client, "tr '\\0' ' ' < /proc/1/cmdline | grep -c state-dir").await,
            "1\n"
        );
        let script = "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.1; exit 3' &); (sleep 0.05 &); done; echo ran";
        for _ in 0..5 {
            assert_eq!(stdout(&mut client, script).await, "ran\n");
        }
        let first = children(runtime.pid());
        assert_eq!(first.len(), 1, "unshare has one child");
        let first = u32::try_from(first[0].pid).unwrap();
        until("no child of PID 1 is left", || children(first).is_empty()).await;
        let id = start(&mut client, "(setsid sleep 1000 &); exec sleep 1000").await;
        until("both run", || marked(&id).len() == 2).await;
        client.stop(StopRequest::default()).await.unwrap();
        until("all are gone", || marked(&id).is_empty()).await;
    }
}
