//! The HTTP API of agent-sandbox's python-runtime.

use std::{fs, os::unix::fs::symlink, time::Duration};

use sandgate_proto::runtime::v1::{ExecState, ListExecsRequest};
use sandgate_tests::{in_time, new_id, procs, random_bytes, seeded};
use serde_json::{Value, json};

use crate::around::{Answer, Networked};

const ON: &[&str] = &["--python-api"];

async fn execute(net: &Networked, request: Value) -> Value {
    let answer = net.post("/execute", "application/json", request.to_string()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()
}

async fn upload(net: &Networked, name: &str, content: &[u8]) -> Answer {
    let head = format!(
        "--limit\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let body = [head.as_bytes(), content, b"\r\n--limit--\r\n"].concat();
    net.post("/upload", "multipart/form-data; boundary=limit", body).await
}

fn result(stdout: &str, stderr: &str, exit_code: i32) -> Value {
    json!({"stdout": stdout, "stderr": stderr, "exit_code": exit_code, "timed_out": false})
}

#[tokio::test]
async fn runs_commands() {
    let net = Networked::start(ON).await;
    let hello = net
        .tcp()
        .await
        .hello(net.good(Default::default()))
        .await
        .unwrap()
        .into_inner();
    assert!(hello.capabilities.iter().any(|name| name == "api.python"));
    assert_eq!(net.get("/").await.json()["status"], "ok");
    let run = async |command: &str| execute(&net, json!({"command": command})).await;
    assert_eq!(run("echo 'a  b' \"c\" # d").await, result("a  b c # d\n", "", 0));
    assert_eq!(run("sh -c 'pwd; echo err >&2; exit 3'").await, {
        result(&format!("{}\n", net.runtime.workspace().display()), "err\n", 3)
    });
    // No shell.
    assert_eq!(run("echo $HOME | cat").await, result("$HOME | cat\n", "", 0));
    assert_eq!(run("sh -c 'kill -9 $$'").await, result("", "", -9));
    assert_eq!(run("printf 'a\\377\\\"\\n\\001'").await["stdout"], "a\u{fffd}\"\n\u{1}");
    for (command, why) in [
        ("no-such-program", "no-such-program"),
        ("echo 'a", "No closing quotation"),
        ("", ""),
    ] {
        let answer = run(command).await;
        assert_eq!(
            (answer["exit_code"].as_i64(), answer["stdout"].as_str()),
            (Some(1), Some(""))
        );
        let said = answer["stderr"].as_str().unwrap();
        assert!(
            said.starts_with("Failed to execute command: ") && said.contains(why),
            "{said}"
        );
    }
    for wrong in [
        "",
        "[]",
        "{}",
        r#"{"command": 1}"#,
        r#"{"command": "true", "timeout_seconds": 0}"#,
    ] {
        assert_eq!(
            net.post("/execute", "application/json", wrong).await.status,
            422,
            "{wrong}"
        );
    }
    assert_eq!(net.get("/execute").await.status, 405);
    assert_eq!(net.get("/other").await.status, 404);
}

#[tokio::test]
async fn long_commands_and_much_output_are_no_trouble() {
    let net = Networked::start(ON).await;
    let long = "x".repeat(100_000);
    let answer = execute(&net, json!({"command": format!("echo {long} {long}")})).await;
    assert_eq!(answer, result(&format!("{long} {long}\n"), "", 0));
    let before = net.runtime.own_memory();
    let command = "sh -c 'head -c 60000000 /dev/zero | tr \"\\0\" x; echo end >&2'";
    let answer = execute(&net, json!({"command": command})).await;
    assert_eq!(
        (answer["stdout"].as_str().unwrap().len(), answer["stderr"].as_str()),
        (60_000_000, Some("end\n"))
    );
    let more = net.runtime.own_memory().saturating_sub(before);
    // What is kept in memory of all output is 16 MiB. The allocator gives back what was freed when it sees fit.
    assert!(more < 48 << 20, "{more} bytes more");
    // A child that holds the output does not hold the answer.
    let answer = execute(&net, json!({"command": "sh -c 'sleep 300 & echo done'"})).await;
    assert_eq!(answer, result("done\n", "", 0));
}

#[tokio::test]
async fn a_timeout_takes_the_whole_tree() {
    let net = Networked::start(ON).await;
    let script = "echo begun; sleep 1234.5 & (setsid sleep 1234.5 &); sleep 1234.5";
    let mark = new_id("tree");
    let command = format!("env SANDGATE_TEST_MARK={mark} sh -c '{script}'");
    let answer = execute(&net, json!({"command": command, "timeout_seconds": 0.7})).await;
    assert_eq!(
        (answer["timed_out"].as_bool(), answer["exit_code"].as_i64()),
        (Some(true), Some(124))
    );
    assert_eq!(answer["stdout"], "begun\n");
    assert!(answer["stderr"].as_str().unwrap().contains("0.7"), "{answer}");
    let mut client = net.runtime.connect().await;
    let gone = async {
        loop {
            let execs = client
                .list_execs(ListExecsRequest::default())
                .await
                .unwrap()
                .into_inner()
                .execs;
            assert_eq!(execs.len(), 1, "it is an exec like any other");
            assert_eq!(execs[0].state(), ExecState::Exited);
            if !execs[0].processes_alive {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(gone).await;
    let left = procs::marked(&mark);
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn files_in_and_out() {
    let mut rng = seeded();
    let net = Networked::start(ON).await;
    let workspace = net.runtime.workspace();
    let content = random_bytes(&mut rng, 5_000_000);
    let answer = upload(&net, "some/dir/a b.bin", &content).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json()["message"],
        "File 'some/dir/a b.bin' uploaded successfully."
    );
    assert!(fs::read(workspace.join("some/dir/a b.bin")).unwrap() == content);
    for url in [
        "/download/some%2Fdir%2Fa%20b.bin",
        "/download/some/dir/a%2520b.bin",
        "/download/%2Fsome/dir/a%20b.bin",
    ] {
        let answer = net.get(url).await;
        assert_eq!(answer.status, 200, "{url}");
        assert!(answer.body == content, "{url}");
        assert_eq!(answer.headers["content-type"], "application/octet-stream");
        assert_eq!(answer.headers["content-length"], "5000000");
    }
    // Replaced, empty, odd names, and an absolute one.
    assert_eq!(upload(&net, "some/dir/a b.bin", b"").await.status, 200);
    assert_eq!(net.get("/download/some/dir/a%20b.bin").await.body.len(), 0);
    for name in ["100%41", "ä ö", "semi;colon", "#?&"] {
        assert_eq!(upload(&net, name, name.as_bytes()).await.status, 200);
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(net.get(&format!("/download/{encoded}")).await.body, name.as_bytes());
        assert_eq!(
            net.get(&format!("/exists/{encoded}")).await.json(),
            json!({"path": name, "exists": true})
        );
    }
    assert_eq!(upload(&net, "/absolute", b"inside").await.status, 200);
    assert_eq!(fs::read(workspace.join("absolute")).unwrap(), b"inside");
    assert_eq!(net.get("/download/missing").await.status, 404);
    assert_eq!(
        net.get("/download/some").await.json(),
        json!({"message": "File not found"})
    );
    assert_eq!(
        net.get("/exists/missing").await.json(),
        json!({"path": "missing", "exists": false})
    );
    assert_eq!(net.get("/exists/some%2Fdir").await.json()["exists"], true);
}

#[tokio::test]
async fn half_an_upload_is_none() {
    let net = Networked::start(ON).await;
    fs::write(net.runtime.workspace().join("file"), "before").unwrap();
    let kind = "multipart/form-data; boundary=limit";
    let head = "--limit\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\r\nhalf";
    for cut in [
        "",
        "\r\n--limi",
        "\r\n--limit",
        "\r\n--limit\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n",
    ] {
        let answer = net.post("/upload", kind, format!("{head}{cut}")).await;
        assert_eq!(answer.status, 500, "{cut:?}");
        assert_eq!(fs::read(net.runtime.workspace().join("file")).unwrap(), b"before");
    }
    let other = "--limit\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\n\r\n--limit--";
    assert_eq!(net.post("/upload", kind, other).await.status, 422);
    assert_eq!(net.post("/upload", "text/plain", "x").await.status, 422);
    let names: Vec<_> = fs::read_dir(net.runtime.workspace())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["file"]);
}

#[tokio::test]
async fn lists_what_is_there() {
    let net = Networked::start(ON).await;
    let workspace = net.runtime.workspace();
    assert_eq!(net.get("/list/").await.json(), json!([]));
    fs::create_dir(workspace.join("dir")).unwrap();
    fs::write(workspace.join("file"), "12345").unwrap();
    symlink("dir", workspace.join("to-dir")).unwrap();
    symlink("file", workspace.join("to-file")).unwrap();
    symlink("/etc/passwd", workspace.join("to-outside")).unwrap();
    let listed = net.get("/list/%2E").await.json();
    let told: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert!(entry["mod_time"].as_f64().unwrap() > 1e9, "{entry}");
            (entry["name"].as_str().unwrap(), entry["type"].as_str().unwrap())
        })
        .collect();
    let expected = [
        ("dir", "directory"),
        ("file", "file"),
        ("to-dir", "directory"),
        ("to-file", "file"),
        ("to-outside", "file"),
    ];
    assert_eq!(told, expected);
    assert_eq!(
        (listed[1]["size"].as_u64(), listed[3]["size"].as_u64()),
        (Some(5), Some(5))
    );
    for path in ["missing", "file"] {
        let answer = net.get(&format!("/list/{path}")).await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.json(), json!({"message": "Path is not a directory"}));
    }
    for n in 0..2_500 {
        fs::write(workspace.join("dir").join(n.to_string()), "").unwrap();
    }
    assert_eq!(net.get("/list/dir").await.json().as_array().unwrap().len(), 2_500);
}

#[tokio::test]
async fn nothing_outside_is_reached() {
    let net = Networked::start(ON).await;
    let workspace = net.runtime.workspace();
    let outside = workspace.parent().unwrap().join("outside");
    fs::write(&outside, "secret").unwrap();
    symlink(&outside, workspace.join("link")).unwrap();
    symlink("..", workspace.join("up")).unwrap();
    for path in [
        "..%2Foutside",
        "%2E%2E%2Foutside",
        "a%2F..%2F..%2Foutside",
        "..%252Foutside",
    ] {
        for call in ["download", "exists", "list"] {
            let answer = net.get(&format!("/{call}/{path}")).await;
            assert_eq!(answer.status, 403, "{call} {path}: {:?}", answer.body);
            assert_eq!(answer.json(), json!({"message": "Access denied"}));
        }
    }
    // To a symlink the base directory is the root: there is nothing behind it.
    for path in ["up%2Foutside", "link"] {
        assert_eq!(net.get(&format!("/download/{path}")).await.status, 404, "{path}");
        assert_eq!(
            net.get(&format!("/exists/{path}")).await.json()["exists"],
            false,
            "{path}"
        );
    }
    for name in ["../outside", "a/../../outside"] {
        assert_eq!(upload(&net, name, b"changed").await.status, 403, "{name}");
    }
    for name in ["up/outside", "link"] {
        upload(&net, name, b"changed").await;
    }
    assert_eq!(fs::read(&outside).unwrap(), b"secret");
}
