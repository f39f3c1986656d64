//! Against a fake of the python-runtime, written from its published interface.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::Stdio,
};

use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use crate::{
    dial::{InCluster, testing::loopback},
    driver::testing::{Pod, missing, reason, run, shell},
};

/// Commands run on this machine, in a directory of their own.
#[derive(Clone)]
struct FakePythonRuntime {
    base: PathBuf,
    /// How long it takes to begin with a command.
    pause: Duration,
}

impl FakePythonRuntime {
    async fn serve(self, address: IpAddr) {
        let listener = TcpListener::bind(SocketAddr::new(address, 8888)).await.unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let fake = self.clone();
                let answer = service_fn(move |request| {
                    let fake = fake.clone();
                    async move { Ok::<_, Infallible>(fake.answer(request).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let answer = match (parts.method.as_str(), parts.uri.path()) {
            ("GET", "/") => r#"{"status":"ok"}"#.to_owned(),
            ("POST", "/execute") => self.execute(&body).await,
            ("POST", "/upload") => self.upload(&body),
            _ => return Response::builder().status(404).body(Full::default()).unwrap(),
        };
        Response::new(Full::new(answer.into()))
    }

    /// The real one splits the line as a shell does, and needs none: every word of ours is quoted.
    async fn execute(&self, body: &[u8]) -> String {
        let command: serde_json::Value = serde_json::from_slice(body).unwrap();
        let command = command["command"].as_str().unwrap().to_owned();
        assert!(command.len() < 64 << 10, "this would hold up the real one");
        let base = self.base.clone();
        let run = move || {
            std::process::Command::new("setsid")
                .args(["-w", "sh", "-c", &format!("exec {command}")])
                .current_dir(&base)
                .env("TMPDIR", &base)
                .stdin(Stdio::null())
                .output()
                .unwrap()
        };
        tokio::time::sleep(self.pause).await;
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        serde_json::json!({
            "stdout": String::from_utf8(output.stdout).unwrap(),
            "stderr": String::from_utf8(output.stderr).unwrap(),
            "exit_code": output.status.code().unwrap_or(-9),
        })
        .to_string()
    }

    fn upload(&self, body: &[u8]) -> String {
        let find = |needle: &[u8]| body.windows(needle.len()).position(|window| window == needle).unwrap();
        let boundary = &body[..find(b"\r\n")];
        let head = find(b"\r\n\r\n");
        let text = std::str::from_utf8(&body[..head]).unwrap();
        let (_, name) = text.split_once("name=\"file\"; filename=\"").unwrap();
        let (name, _) = name.split_once('"').unwrap();
        let tail = [b"\r\n", boundary, b"--\r\n"].concat();
        let content = body[head + 4..].strip_suffix(tail.as_slice()).unwrap();
        std::fs::write(self.base.join(name), content).unwrap();
        r#"{"message":"uploaded"}"#.to_owned()
    }
}

async fn pod() -> Pod {
    pod_with(Duration::ZERO).await
}

async fn pod_with(pause: Duration) -> Pod {
    let (directory, address) = (tempfile::tempdir().unwrap(), loopback());
    let base = directory.path().to_owned();
    FakePythonRuntime { base, pause }.serve(address).await;
    Pod {
        inside: Box::new(move || Arc::new(PythonRuntime::new(Arc::new(InCluster::new(vec![address]))))),
        directory,
    }
}

#[tokio::test]
async fn does_what_the_table_says() {
    let pod = pod().await;
    pod.check_all().await;
    pod.ends_what_takes_too_long().await;
    let mut request = run("in", shell("cat"));
    request.spec.as_mut().unwrap().pty = Some(Default::default());
    request.spec.as_mut().unwrap().stdin = 0;
    let start = sandgate_proto::runtime::v1::StartExecRequest {
        exec_id: "tty".into(),
        spec: request.spec,
        ..Default::default()
    };
    assert_eq!(missing(pod.server().start_exec(start).await), "exec.pty");
}

#[tokio::test]
async fn what_is_said_to_run_runs() {
    let pod = pod_with(Duration::from_millis(200)).await;
    let start = |id: &str| sandgate_proto::runtime::v1::StartExecRequest {
        exec_id: id.into(),
        spec: run(id, shell("sleep 1")).spec,
        ..Default::default()
    };
    pod.server().start_exec(start("slow")).await.unwrap();
    // The server may be killed now: the command is in the pod.
    assert!(pod.directory.path().join(".sandgate/slow/group").exists());
    let again = pod.server().start_exec(start("slow")).await;
    assert_eq!(reason(again), ErrorReason::ExecExpired, "no other server runs it again");
}

#[tokio::test]
async fn what_does_not_fit_is_cut_or_refused() {
    let pod = pod().await;
    let request = run("much", shell("head -c 3000000 /dev/zero"));
    let answer = pod.server().run(request).await.unwrap().into_inner();
    let (kept, said) = (answer.stdout.unwrap().total_bytes, answer.stderr.unwrap().head);
    let note = format!("the last {} bytes of stdout are lost", 3_000_000 - kept);
    assert!(
        String::from_utf8_lossy(&said).contains(&note) && kept > 2_000_000,
        "{kept} {said:?}"
    );
    let quotes = run("quotes", shell(&format!(": {}", "'".repeat(30_000))));
    let status = pod.server().run(quotes).await.unwrap_err();
    assert!(status.message().contains("holds up the python-runtime"), "{status:?}");
}

#[tokio::test]
async fn an_answer_that_is_none_leaves_the_exec_lost() {
    use sandgate_proto::runtime::v1::exec_exit::Status;
    let (address, directory) = (loopback(), tempfile::tempdir().unwrap());
    let listener = TcpListener::bind(SocketAddr::new(address, 8888)).await.unwrap();
    // A router that gave up waiting.
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::builder().status(502).body(Full::<Bytes>::default()).unwrap())
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    let pod = Pod {
        inside: Box::new(move || Arc::new(PythonRuntime::new(Arc::new(InCluster::new(vec![address]))))),
        directory,
    };
    let answer = pod.server().run(run("gone", shell("true"))).await.unwrap().into_inner();
    assert!(matches!(
        answer.exec.unwrap().exit.unwrap().status,
        Some(Status::Lost(_))
    ));
}

#[test]
fn what_a_command_said_is_read() {
    let text = "sandgate 7 3 0\nYWJj\n.\n";
    let events = captured(text).unwrap();
    assert_eq!(events[0], Event::Output(Stream::Stdout, "abc".into()));
    assert_eq!(*events.last().unwrap(), Event::Exited(Ending::Code(7)));
    assert_eq!(captured("something else\n"), None);
}
