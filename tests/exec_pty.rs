//! A terminal that behaves as one: size, keys, and every byte of a full screen.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

use std::{fs, time::Duration};

use rand::{Rng as _, RngCore as _};
use sandgate_proto::{
    runtime::v1::{
        ExecInfo, ExecOffsets, ExecSignal, ExecSpec, ExecState, GetExecRequest, Pty, PtySize, ResizeExecRequest,
        SignalExecRequest, StderrMode, StdinAccepted, StdinWrite, WriteExecRequest, exec_exit::Status,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Output, Runtime, argv, collect, new_id,
    procs::{mark, marked, until},
    reason, seeded, shell, start_request,
};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(60);
const CTRL_C: &[u8] = &[3];

/// A command on a terminal, and what it says.
struct Session {
    client: Client,
    id: String,
    offset: u64,
    output: JoinHandle<Output>,
}

impl Session {
    async fn start(runtime: &Runtime, spec: ExecSpec) -> Self {
        let client = runtime.connect().await;
        let id = new_id("pty");
        let started = client
            .clone()
            .start_exec(start_request(&id, mark(spec, &id)))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(started.exec.unwrap().state(), ExecState::Running);
        let output = tokio::spawn({
            let (mut client, id) = (client.clone(), id.clone());
            async move { collect(&mut client, &id, ExecOffsets::default()).await }
        });
        Self {
            client,
            id,
            offset: 0,
            output,
        }
    }

    async fn keys(&mut self, data: &[u8]) -> StdinAccepted {
        self.write(data, false).await
    }

    async fn write(&mut self, data: &[u8], close: bool) -> StdinAccepted {
        let stdin = StdinWrite {
            offset: self.offset,
            data: data.to_vec().into(),
            close,
        };
        let request = WriteExecRequest {
            exec_id: self.id.clone(),
            stdin: Some(stdin),
            ..Default::default()
        };
        let accepted = self
            .client
            .write_exec(request)
            .await
            .unwrap()
            .into_inner()
            .stdin
            .unwrap();
        assert_eq!(accepted.offset, self.offset + data.len() as u64);
        self.offset = accepted.offset;
        accepted
    }

    async fn resize(&mut self, columns: u32, rows: u32) -> Result<(), tonic::Status> {
        let size = Some(PtySize { columns, rows });
        let request = ResizeExecRequest {
            exec_id: self.id.clone(),
            size,
            ..Default::default()
        };
        self.client.resize_exec(request).await.map(drop)
    }

    async fn kill(&mut self) -> u32 {
        let signal = Some(ExecSignal { signal: 9 });
        let request = SignalExecRequest {
            exec_id: self.id.clone(),
            signal,
            ..Default::default()
        };
        self.client.signal_exec(request).await.unwrap().into_inner().processes
    }

    async fn info(&mut self) -> ExecInfo {
        let request = GetExecRequest {
            exec_id: self.id.clone(),
        };
        self.client.get_exec(request).await.unwrap().into_inner().exec.unwrap()
    }

    /// Waits until it has written that much.
    async fn written(&mut self, bytes: usize) {
        let waiting = async {
            while (self.info().await.written.unwrap().stdout as usize) < bytes {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, waiting).await.unwrap();
    }

    async fn end(self) -> (String, Option<Status>) {
        let output = self.bytes().await;
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            output.exit.unwrap().status,
        )
    }

    async fn bytes(self) -> Output {
        let output = tokio::time::timeout(LIMIT, self.output).await.unwrap().unwrap();
        assert!(output.ended.is_some() && output.stderr.is_empty() && output.gaps.is_empty());
        output
    }
}

fn on_terminal(script: &str, size: Option<(u32, u32)>) -> ExecSpec {
    let size = size.map(|(columns, rows)| PtySize { columns, rows });
    ExecSpec {
        pty: Some(Pty {
            size,
            ..Default::default()
        }),
        ..shell(script)
    }
}

#[tokio::test]
async fn the_size_follows_a_resize() {
    let runtime = Runtime::start().await;
    let (text, _) = Session::start(&runtime, on_terminal("stty size", None))
        .await
        .end()
        .await;
    assert_eq!(text, "24 80\r\n");
    let (text, _) = Session::start(&runtime, on_terminal("stty size", Some((132, 50))))
        .await
        .end()
        .await;
    assert_eq!(text, "50 132\r\n");
    // Only the foreground's shell is told, and tells.
    let script = "trap 'stty size; n=$((n+1))' WINCH; n=0; echo ready; while [ $n -lt 2 ]; do sleep 0.05; done";
    let mut session = Session::start(&runtime, on_terminal(script, Some((10, 20)))).await;
    session.written("ready\r\n".len()).await;
    session.resize(101, 31).await.unwrap();
    session.written("ready\r\n31 101\r\n".len()).await;
    session.resize(65_535, 1).await.unwrap();
    let (text, status) = session.end().await;
    assert_eq!(
        (text.as_str(), status),
        ("ready\r\n31 101\r\n1 65535\r\n", Some(Status::Code(0)))
    );
}

#[tokio::test]
async fn wrong_sizes_and_missing_terminals_are_refused() {
    let runtime = Runtime::start().await;
    let mut session = Session::start(&runtime, on_terminal("exec sleep 1000", None)).await;
    for (columns, rows) in [(0, 10), (10, 0), (65_536, 10)] {
        let refused = session.resize(columns, rows).await.unwrap_err();
        assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
    }
    let mut plain = Session::start(&runtime, shell("exec sleep 1000")).await;
    assert_eq!(
        reason(&plain.resize(80, 24).await.unwrap_err()),
        ErrorReason::PtyMissing
    );
    session.keys(CTRL_C).await;
    let Session {
        mut client, id, output, ..
    } = session;
    output.await.unwrap();
    let size = Some(PtySize { columns: 1, rows: 1 });
    let request = ResizeExecRequest {
        exec_id: id,
        size,
        ..Default::default()
    };
    let refused = tokio::time::timeout(LIMIT, async {
        loop {
            match client.resize_exec(request.clone()).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(refused) => break refused,
            }
        }
    });
    assert_eq!(reason(&refused.await.unwrap()), ErrorReason::ExecNotRunning);
    // A terminal has one stream.
    let both = ExecSpec {
        stderr: StderrMode::Merged.into(),
        ..on_terminal("true", None)
    };
    let refused = client
        .start_exec(start_request(&new_id("both"), both))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
}

#[tokio::test]
async fn ctrl_c_interrupts_the_foreground_and_no_more() {
    let runtime = Runtime::start().await;
    let script = "trap 'echo caught' INT; echo ready; sleep 1000; echo went on; exit 3";
    let mut session = Session::start(&runtime, on_terminal(script, None)).await;
    session.written("ready\r\n".len()).await;
    until("the sleep runs", || sleeping(&session.id) == 1).await;
    session.keys(CTRL_C).await;
    let (text, status) = session.end().await;
    assert_eq!(
        (text.as_str(), status),
        ("ready\r\n^Ccaught\r\nwent on\r\n", Some(Status::Code(3)))
    );

    // With job control a job in the background is not reached.
    let bash = ["bash", "--norc", "-c", "set -m; sleep 1000 & sleep 2000; echo never"];
    let spec = ExecSpec {
        pty: Some(Pty::default()),
        ..argv(&bash)
    };
    let mut session = Session::start(&runtime, spec).await;
    until("both sleep", || sleeping(&session.id) == 2).await;
    session.keys(CTRL_C).await;
    until("one sleeps on", || marked(&session.id).len() == 1).await;
    session.kill().await;
    assert_eq!(session.end().await.0, "^C");
    // Ctrl-C where nothing catches it.
    let mut session = Session::start(&runtime, on_terminal("exec sleep 1000", None)).await;
    until("it sleeps", || sleeping(&session.id) == 1).await;
    session.keys(CTRL_C).await;
    assert_eq!(session.end().await.1, Some(Status::Signal(2)));
}

/// How many processes of an exec have become `sleep`: a shell's child is the shell for a while.
fn sleeping(id: &str) -> usize {
    let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    marked(id)
        .iter()
        .filter(|process| name(process.pid) == "sleep\n")
        .count()
}

#[tokio::test]
async fn a_full_screen_passes_byte_for_byte() {
    let mut random = seeded();
    let runtime = Runtime::start().await;
    let mut screen = b"\x1b[?1049h\x1b[2J\x1b[H".to_vec();
    for _ in 0..2_000 {
        match random.random_range(0..3) {
            0 => screen.extend(format!("\x1b[{};{}H", random.random_range(1..50), random.random_range(1..132)).bytes()),
            1 => screen.extend(format!("\x1b[38;5;{}m┌─┐日本\r\n", random.random_range(0..256)).bytes()),
            _ => {
                let mut noise = vec![0; random.random_range(1..200)];
                random.fill_bytes(&mut noise);
                screen.append(&mut noise);
            }
        }
    }
    fs::write(runtime.workspace().join("screen"), &screen).unwrap();
    // Out: nothing is added to what the program writes.
    let session = Session::start(&runtime, on_terminal("stty raw -echo; cat screen", Some((132, 50)))).await;
    assert!(session.bytes().await.stdout == screen, "the screen came out changed");
    // In and out: keys arrive as they were sent, also those that mean something elsewhere.
    let script = format!("stty raw -echo; printf go; head -c {}", screen.len());
    let mut session = Session::start(&runtime, on_terminal(&script, Some((132, 50)))).await;
    session.written(2).await;
    for keys in screen.chunks(1_000) {
        session.keys(keys).await;
    }
    let output = session.bytes().await;
    assert!(output.stdout[2..] == screen, "the keys came back changed");
}

#[tokio::test]
async fn the_terminal_is_the_commands_own() {
    let runtime = Runtime::start().await;
    for user in ["", "nobody"] {
        let script = "test -t 0 && test -t 1 && test -t 2 && echo all; echo $TERM; tty; echo direct > /dev/tty; \
                      echo by name > $(tty); stty -a < /dev/tty | head -n 1; echo err >&2";
        let spec = ExecSpec {
            user: user.into(),
            ..on_terminal(script, None)
        };
        let (text, status) = Session::start(&runtime, spec).await.end().await;
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[..2], ["all", "xterm-256color"], "{user}: {text}");
        assert!(lines[2].starts_with("/dev/pts/"), "{user}: {text}");
        assert_eq!(lines[3..5], ["direct", "by name"], "{user}: {text}");
        assert!(
            lines[5].contains("rows 24; columns 80") && lines[6] == "err",
            "{user}: {text}"
        );
        assert_eq!(status, Some(Status::Code(0)));
    }
    let pty = Pty {
        term: "vt100".into(),
        ..Default::default()
    };
    let spec = ExecSpec {
        pty: Some(pty),
        ..shell("echo $TERM; cat /proc/self/stat | cut -d ' ' -f 7")
    };
    let (text, _) = Session::start(&runtime, spec).await.end().await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "vt100");
    assert_ne!(lines[1], "0", "there is a controlling terminal");
}

#[tokio::test]
async fn a_close_is_ctrl_d() {
    let runtime = Runtime::start().await;
    let mut session = Session::start(&runtime, on_terminal("stty -echo; echo ready; cat; echo over", None)).await;
    session.written("ready\r\n".len()).await;
    assert!(!session.keys(b"line\n").await.closed);
    assert!(session.write(b"", true).await.closed);
    let late = StdinWrite {
        offset: session.offset,
        data: b"x".to_vec().into(),
        close: false,
    };
    let late = WriteExecRequest {
        exec_id: session.id.clone(),
        stdin: Some(late),
        ..Default::default()
    };
    assert_eq!(
        reason(&session.client.write_exec(late).await.unwrap_err()),
        ErrorReason::StdinClosed
    );
    let (text, status) = session.end().await;
    assert_eq!(
        (text.as_str(), status),
        ("ready\r\nline\r\nover\r\n", Some(Status::Code(0)))
    );
    // In the midst of a line one Ctrl-D only ends the line; the program must come to its end all the same.
    let mut session = Session::start(&runtime, on_terminal("stty -echo; echo ready; cat; echo over", None)).await;
    session.written("ready\r\n".len()).await;
    session.write(b"half", true).await;
    let (text, _) = session.end().await;
    assert_eq!(text, "ready\r\nhalfover\r\n");
}

#[tokio::test]
async fn a_kill_leaves_nothing_of_a_terminal() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let script = "trap '' HUP TERM INT; setsid sleep 1000 & nohup sleep 1000 & sleep 1000";
        let mut session = Session::start(&runtime, on_terminal(script, None)).await;
        until("all run", || marked(&session.id).len() == 4).await;
        let open = fs::read_dir(format!("/proc/{}/fd", runtime.pid())).unwrap().count();
        assert_eq!(session.kill().await, 4);
        assert_eq!(marked(&session.id), []);
        let id = session.id.clone();
        assert_eq!(session.end().await.1, Some(Status::Signal(9)), "{id}");
        // The terminal is given back, although the record is kept.
        until("its descriptors are closed", || {
            fs::read_dir(format!("/proc/{}/fd", runtime.pid())).unwrap().count() <= open - 3
        })
        .await;
    }
}
