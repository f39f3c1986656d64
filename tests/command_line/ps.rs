//! `ps`, `kill` and `shell`.

use serde_json::json;

use super::stage::{Stage, fields, lines};

const EXEC: [&str; 14] = [
    "command",
    "exec_id",
    "exit",
    "incarnation",
    "output_ended",
    "pid",
    "processes_alive",
    "start_failure",
    "started_at",
    "state",
    "stderr_bytes",
    "stdin_bytes",
    "stdin_open",
    "stdout_bytes",
];

#[tokio::test]
async fn ps_lists_and_kill_signals() {
    let stage = Stage::new().await;
    assert_eq!(stage.json(&["ps", "demo"]).await, json!({"execs": []}));
    assert_eq!(stage.ok(&["ps", "demo"]).await, "EXEC  STATE  PID  OUTPUT  COMMAND\n");
    let started = stage
        .json(&[
            "exec",
            "demo",
            "--detach",
            "--id",
            "build",
            "--",
            "sh",
            "-c",
            "echo a; sleep 1000",
        ])
        .await;
    assert_eq!(fields(&started), EXEC);
    assert_eq!(
        (&started["exec_id"], &started["state"]),
        (&json!("build"), &json!("running"))
    );
    // Told again, and not started again.
    let again = stage
        .ok(&[
            "exec",
            "demo",
            "-d",
            "--id",
            "build",
            "--",
            "sh",
            "-c",
            "echo a; sleep 1000",
        ])
        .await;
    assert_eq!(again, "build\n");
    let execs = stage.json(&["ps", "demo", "--alive"]).await;
    assert_eq!(execs["execs"].as_array().unwrap().len(), 1);
    assert_eq!(fields(&execs["execs"][0]), EXEC);
    assert_eq!(execs["execs"][0]["command"], "sh -c echo a; sleep 1000");
    let text = stage.ok(&["ps", "demo"]).await;
    assert!(text.lines().nth(1).unwrap().starts_with("build  running"), "{text}");

    let cont = stage.ok(&["kill", "demo", "build", "--signal", "cont"]).await;
    assert!(
        cont.starts_with("CONT sent to ") && cont.ends_with(" processes\n"),
        "{cont}"
    );
    let killed = stage.json(&["kill", "demo", "build", "-s", "SIGKILL"]).await;
    assert_eq!(fields(&killed), ["exec_id", "processes", "signal", "signal_name"]);
    assert_eq!(
        (&killed["exec_id"], &killed["signal"], &killed["signal_name"]),
        (&json!("build"), &json!(9), &json!("KILL"))
    );
    stage.until_idle().await;
    let text = stage.ok(&["ps", "demo"]).await;
    assert!(text.contains("build  killed by KILL"), "{text}");
    stage
        .refused(
            &["kill", "demo", "build"],
            125,
            "sandgate: no process of the exec is alive (EXEC_NOT_RUNNING, request ID)\n",
        )
        .await;
    let unknown = "sandgate: there is no exec nothing (EXEC_NOT_FOUND, request ID)\n  `sandgate ps` shows those that are \
                   known.\n";
    stage.refused(&["kill", "demo", "nothing"], 125, unknown).await;
    stage.refused(&["follow", "demo", "nothing"], 125, unknown).await;
}

#[tokio::test]
async fn a_shell_takes_a_script() {
    let stage = Stage::new().await;
    let did = stage.feed(&["shell", "demo"], b"echo $((6 * 7))\nexit 3\n").await;
    assert_eq!((did.code, did.text().as_str(), did.err.as_str()), (Some(3), "42\n", ""));
    let did = stage
        .feed(&["shell", "demo", "--shell", "/bin/sh", "-e", "A=b"], b"echo $0 $A")
        .await;
    assert_eq!((did.code, did.text().as_str()), (Some(0), "/bin/sh b\n"));
    let did = stage.feed(&["-o", "json", "shell", "demo"], b"echo x").await;
    let events = lines(&did.out);
    assert_eq!(
        (events[1]["text"].as_str(), &events[2]["code"]),
        (Some("x\n"), &json!(0))
    );
    stage.ok(&["suspend", "demo"]).await;
    assert_eq!(stage.feed(&["shell", "demo"], b"echo awake").await.text(), "awake\n");
    let did = stage.run(&["shell", "demo", "--shell", "no-such-shell"]).await;
    assert_eq!(did.code, Some(127), "{did:?}");
}
