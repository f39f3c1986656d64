//! Against the real sandboxd.

use std::{
    net::{IpAddr, SocketAddr},
    process::{Child, Command, Stdio},
};

use tokio::net::TcpStream;

use super::*;
use crate::{
    dial::{HttpWay, InCluster, testing::loopback},
    driver::testing::{Pod, missing, run, shell},
};

/// sandboxd on an address of its own. It ends with this.
struct Running {
    child: Child,
    address: IpAddr,
}

impl Running {
    async fn new(directory: &std::path::Path) -> Self {
        let tools = std::env::var_os("SANDGATE_TOOLS").expect("SANDGATE_TOOLS: run `make test`");
        let binary = std::path::Path::new(&tools).join("agent-sandbox/bin/sandboxd");
        let address = loopback();
        let child = Command::new(&binary)
            .args(["--listen-host", &address.to_string(), "--root-dir"])
            .arg(directory)
            .env("TMPDIR", directory)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; `make test` brings it", binary.display()));
        let running = Self { child, address };
        while TcpStream::connect(SocketAddr::new(address, 9090)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pod(running: &Running, directory: tempfile::TempDir) -> Pod {
    let address = running.address;
    Pod {
        inside: Box::new(move || Arc::new(Sandboxd::new(Arc::new(InCluster::new(vec![address]))))),
        directory,
    }
}

#[tokio::test]
async fn does_what_the_table_says() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::new(directory.path()).await;
    let pod = pod(&running, directory);
    pod.check_all().await;
    pod.check_streams().await;
    let mut request = run("tar", shell("true"));
    request.spec.as_mut().unwrap().rlimits = vec![Default::default()];
    assert_eq!(missing(pod.server().run(request).await), "exec.rlimits");
}

#[tokio::test]
async fn a_terminal_is_fed_and_resized() {
    use sandgate_proto::runtime::v1 as proto;
    let directory = tempfile::tempdir().unwrap();
    let running = Running::new(directory.path()).await;
    let pod = pod(&running, directory);
    let mut server = pod.server();
    let request = proto::StartExecRequest {
        exec_id: "tty".into(),
        spec: Some(proto::ExecSpec {
            // Something waits after the last output: sandboxd loses what is written right before the end.
            command: Some(shell(
                "stty size; read line; stty size; echo got $line $TERM; cat >/dev/null; sleep 0.5",
            )),
            pty: Some(proto::Pty::default()),
            ..Default::default()
        }),
        ..Default::default()
    };
    server.start_exec(request).await.unwrap();
    let size = Some(proto::PtySize { columns: 100, rows: 30 });
    let resize = proto::ResizeExecRequest {
        exec_id: "tty".into(),
        size,
        ..Default::default()
    };
    server.resize_exec(resize).await.unwrap();
    let write = |offset, data: &'static str, close| proto::WriteExecRequest {
        exec_id: "tty".into(),
        stdin: Some(proto::StdinWrite {
            offset,
            data: Bytes::from_static(data.as_bytes()),
            close,
        }),
        ..Default::default()
    };
    server.write_exec(write(0, "hello\n", false)).await.unwrap();
    server.write_exec(write(6, "", true)).await.unwrap();
    let mut stream = server
        .follow_exec(proto::FollowExecRequest {
            targets: vec![proto::FollowTarget {
                exec_id: "tty".into(),
                from: None,
            }],
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    let mut seen = String::new();
    while let Some(message) = stream.message().await.unwrap() {
        if let Some(proto::exec_event::Event::Output(output)) = message.event.unwrap().event {
            seen.push_str(&String::from_utf8_lossy(&output.data));
        }
    }
    assert!(
        seen.contains("30 100") && seen.contains("got hello xterm-256color"),
        "{seen:?}"
    );
}

/// A way that can be cut.
#[derive(Debug)]
struct Cut(InCluster, Arc<tokio::sync::Notify>);

#[async_trait]
impl Dial for Cut {
    fn mode(&self) -> ConnectionMode {
        self.0.mode()
    }

    async fn open(&self, port: u16) -> io::Result<Box<dyn sandgate_provider::ByteStream>> {
        let mut stream = self.0.open(port).await?;
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let cut = Arc::clone(&self.1);
        tokio::spawn(async move {
            tokio::select! {
                () = cut.notified() => {}
                _ = tokio::io::copy_bidirectional(&mut stream, &mut theirs) => {}
            }
        });
        Ok(Box::new(ours))
    }

    async fn http(&self, port: u16) -> io::Result<HttpWay> {
        self.0.http(port).await
    }
}

#[tokio::test]
async fn a_lost_stream_is_a_lost_exec_and_nothing_runs_again() {
    use sandgate_proto::runtime::v1::{self as proto, exec_exit::Status};
    let directory = tempfile::tempdir().unwrap();
    let running = Running::new(directory.path()).await;
    let (address, cut) = (running.address, Arc::new(tokio::sync::Notify::new()));
    let cutting = Arc::clone(&cut);
    let pod = Pod {
        inside: Box::new(move || {
            Arc::new(Sandboxd::new(Arc::new(Cut(
                InCluster::new(vec![address]),
                Arc::clone(&cutting),
            ))))
        }),
        directory,
    };
    let mut server = pod.server();
    let counter = pod.path("counter");
    let command = shell(&format!("echo x >>{counter}; sleep 1000"));
    let mut request = run("lost", command);
    request.max_wait = Some(Duration::from_millis(500).try_into().unwrap());
    let answer = server.run(request.clone()).await.unwrap().into_inner();
    assert_eq!(answer.exec.unwrap().state(), proto::ExecState::Running);
    cut.notify_waiters();
    request.max_wait = None;
    let answer = server.run(request).await.unwrap().into_inner();
    assert!(matches!(
        answer.exec.unwrap().exit.unwrap().status,
        Some(Status::Lost(_))
    ));
    assert_eq!(std::fs::read_to_string(counter).unwrap(), "x\n");
}
