//! Start, health and end of a runtime on a network.

use std::{fs, net::SocketAddr, process::Command, time::Duration};

use sandgate_proto::runtime::v1::{ListExecsRequest, StopRequest};
use sandgate_tests::{binary, in_time, new_id, run_request, shell};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::around::{AUDIENCE, Keys, Networked, own_address, tcp};

/// Starts a runtime that must not start, and gives what it said.
fn refused(args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let output = Command::new(binary())
        .arg("--state-dir")
        .arg(&state)
        .args(args)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64), "{args:?}");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn no_network_without_keys() {
    let address = own_address().to_string();
    let said = refused(&["--listen", &address]);
    assert!(
        said.contains("--keys <DIR>") && said.contains("--audience <TEXT>"),
        "{said}"
    );
    let keys = tempfile::tempdir().unwrap();
    let dir = keys.path().to_str().unwrap();
    let with_keys = ["--listen", &address, "--audience", AUDIENCE, "--keys", dir];
    let said = refused(&with_keys);
    assert!(said.contains("jwks.json"), "{said}");
    fs::write(keys.path().join("jwks.json"), "{}").unwrap();
    let said = refused(&with_keys);
    assert!(said.contains("jwks.json"), "{said}");
    let said = refused(&["--listen", &address, "--keys", dir, "--audience", ""]);
    assert!(said.contains("--audience"), "{said}");
    // Nothing of it makes sense on a socket only.
    for flag in [&["--python-api"][..], &["--keys", dir], &["--pod-uid", "x"]] {
        let said = refused(&[&["--socket", "/nowhere"], flag].concat());
        assert!(said.contains("--listen"), "{said}");
    }
    assert!(refused(&[]).contains("--socket"));
}

#[tokio::test]
async fn health_is_told_to_anybody() {
    let net = Networked::start(&[]).await;
    let answer = net.get("/healthz").await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"ok\n"[..]));
    // Without --python-api there is nothing else.
    for path in ["/", "/list/", "/exists/x", "/download/x"] {
        assert_eq!(net.get(path).await.status, 404, "{path}");
    }
    let answer = net.post("/execute", "application/json", r#"{"command": "true"}"#).await;
    assert_eq!(answer.status, 404);
}

/// Asks for health as a kubelet does, whatever comes of it.
async fn probe(address: SocketAddr) {
    if let Ok(mut stream) = TcpStream::connect(address).await {
        let _ = stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
            .await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

#[tokio::test]
async fn probes_and_refused_calls_are_no_activity() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let path = log.path().to_str().unwrap();
    let mut net = Networked::start(&["--idle-limit", "1500ms", "--termination-log", path]).await;
    let address = net.address;
    let knocking = tokio::spawn(async move {
        let mut client = tcp(address).await;
        loop {
            let refused = client.list_execs(ListExecsRequest::default()).await;
            assert!(refused.is_err());
            probe(address).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let ended = async {
        while net.runtime.try_connect().await.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    in_time(ended).await;
    assert!(net.runtime.wait().await.success());
    knocking.abort();
    assert_eq!(fs::read_to_string(path).unwrap(), "idle");
    assert_eq!(
        fs::read_to_string(net.runtime.state_dir().join("ended")).unwrap(),
        "idle"
    );
}

#[tokio::test]
async fn an_orderly_end_answers_what_is_under_way() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let path = log.path().to_str().unwrap();
    let mut net = Networked::start(&["--python-api", "--termination-log", path]).await;
    let address = net.address;
    let body = r#"{"command": "sh -c 'echo begun; touch begun; sleep 1000'"}"#;
    let request = http::Request::post("/execute").body(body.to_owned().into()).unwrap();
    let running = tokio::spawn(async move { crate::around::send(address, request).await });
    let begun = net.runtime.workspace().join("begun");
    let waiting = async {
        while !begun.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(waiting).await;
    let mut client = net.websocket().await;
    client.stop(net.good(StopRequest::default())).await.unwrap();
    let answer = running.await.unwrap().json();
    assert_eq!(
        (answer["stdout"].as_str(), answer["exit_code"].as_i64()),
        (Some("begun\n"), Some(-9))
    );
    assert!(net.runtime.wait().await.success());
    assert_eq!(fs::read_to_string(path).unwrap(), "stopped");
}

/// As a pod has it: an ordinary user, the first process, nothing writable but two volumes, no cgroups, no socket.
#[tokio::test]
async fn runs_as_a_pod_would_have_it() {
    let (address, keys) = (own_address(), Keys::new());
    let root = tempfile::Builder::new().prefix("sandgate-pod-").tempdir().unwrap();
    let script = format!(
        "set -e
        mount --make-rprivate /
        mount -t tmpfs -o mode=0755 none {dir}
        cp \"$1\" {dir}/runtime; chmod 755 {dir}/runtime
        mkdir -m 2777 {dir}/state {dir}/workspace
        touch {dir}/termination-log; chmod 666 {dir}/termination-log
        mount --bind {dir}/state {dir}/state; mount --bind {dir}/workspace {dir}/workspace
        mount --bind {dir}/termination-log {dir}/termination-log
        mount -o remount,bind,ro {dir}; mount -o remount,bind,ro / || true
        shift
        exec setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \
            {dir}/runtime --cwd {dir}/workspace --state-dir {dir}/state --termination-log {dir}/termination-log \"$@\"",
        dir = root.path().display(),
    );
    let mut command = Command::new("unshare");
    command.args([
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        "sh",
        "-c",
        &script,
        "sh",
    ]);
    command
        .arg(binary())
        .args(keys.args(address))
        .args(["--incarnation", "first"]);
    let mut child = Ended(command.spawn().unwrap());
    let reachable = async {
        while TcpStream::connect(address).await.is_err() {
            assert_eq!(child.0.try_wait().unwrap(), None, "it ended at once");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(reachable).await;
    let claims = sandgate_auth::Claims {
        pod_uid: Some(crate::around::POD_UID.into()),
        incarnation: Some("first".into()),
        ..sandgate_auth::Claims::new(AUDIENCE, sandgate_auth::Scope::Runtime, Duration::from_secs(60))
    };
    let token = keys.signer().token(&claims);
    let mut client = tcp(address).await;
    let spec = shell(
        "id -u; cat /proc/1/comm; echo kept > file; cat file; (sleep 1000 &) ; touch /cant 2>/dev/null || echo read-only",
    );
    let request = run_request(&new_id("pod"), spec);
    let answer = client
        .run(crate::around::with_token(request, &token))
        .await
        .unwrap()
        .into_inner();
    let stdout = answer.stdout.unwrap().head;
    assert_eq!(String::from_utf8_lossy(&stdout), "1000\nruntime\nkept\nread-only\n");
    client
        .stop(crate::around::with_token(StopRequest::default(), &token))
        .await
        .unwrap();
    assert!(child.0.wait().unwrap().success());
}

/// A process that does not outlive the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
