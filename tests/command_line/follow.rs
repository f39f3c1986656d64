//! Commands that outlive their starter, and servers that do not outlive a command.

use rustix::process::Signal;
use serde_json::json;

use super::stage::{Stage, lines, noise};

/// Writes some, waits for a file `go`, writes more.
const TWO_HALVES: &str = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; echo half; \
                          while [ ! -e go ]; do sleep 0.02; done; \
                          while [ $i -lt 6000 ]; do echo line $i; i=$((i+1)); done; exit 42";

fn both_halves() -> String {
    let line = |i: u32| format!("line {i}\n");
    let (first, second): (String, String) = ((0..3000).map(line).collect(), (3000..6000).map(line).collect());
    format!("{first}half\n{second}")
}

#[tokio::test]
async fn a_detached_command_is_followed_later() {
    let stage = Stage::new().await;
    let started = stage
        .ok(&["exec", "demo", "--detach", "--id", "job", "--", "sh", "-c", TWO_HALVES])
        .await;
    assert_eq!(started, "job\n");
    let mut early = stage.begin(&["follow", "demo", "job"]);
    early.until("half\n").await;
    let new = stage.begin(&["-o", "json", "follow", "demo", "job", "--new"]);
    // Who looks on can go without harm.
    let mut passing = stage.begin(&["follow", "demo", "job"]);
    passing.until("half\n").await;
    passing.signal(Signal::INT);
    let did = passing.end().await;
    assert_eq!((did.code, did.err.as_str()), (Some(130), ""));
    let execs = stage.json(&["ps", "demo", "--alive"]).await;
    assert_eq!(execs["execs"][0]["exec_id"], "job");

    stage.sh("touch go").await;
    let late = stage.begin(&["follow", "demo", "job"]);
    for running in [early, late] {
        let did = running.end().await;
        assert_eq!((did.code, did.err.as_str()), (Some(42), ""));
        assert!(did.text() == both_halves());
    }
    let did = new.end().await;
    let events = lines(&did.out);
    assert_eq!(did.code, Some(42));
    let (last, exited) = (&events[events.len() - 1], &events[events.len() - 2]);
    let total = both_halves().len();
    assert_eq!(*last, json!({"event": "ended", "stdout": total, "stderr": 0}));
    assert_eq!((&exited["event"], &exited["code"]), (&json!("exited"), &json!(42)));
    // It may have begun to look before or after the second half, but never before the first was over.
    let first = events.iter().find(|event| event["event"] == "stdout");
    let half = both_halves().find("line 3000\n").unwrap() as u64;
    assert!(
        first.is_none_or(|event| event["offset"].as_u64().unwrap() >= half),
        "{first:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_killed_costs_nothing() {
    let mut stage = Stage::new().await;
    let mut text = stage.begin(&["exec", "demo", "--", "sh", "-c", TWO_HALVES]);
    let mut json = stage.begin(&["-o", "json", "exec", "demo", "--", "sh", "-c", TWO_HALVES]);
    let input = noise(4 << 20);
    let (first, second) = input.split_at(input.len() / 2);
    let mut feeding = stage.begin(&[
        "exec",
        "demo",
        "-i",
        "--",
        "sh",
        "-c",
        "echo x >> runs; echo reading; sha256sum",
    ]);
    text.until("half\n").await;
    json.until("half\\n").await;
    feeding.until("reading").await;
    feeding.write(first).await;

    stage.server.kill();
    stage.server.restart().await;
    feeding.write(second).await;
    stage.sh("touch go").await;
    let did = text.end().await;
    assert_eq!((did.code, did.err.as_str()), (Some(42), ""));
    assert!(did.text() == both_halves());
    let did = json.end().await;
    assert_eq!((did.code, did.err.as_str()), (Some(42), ""));
    let printed: String = lines(&did.out)
        .iter()
        .filter_map(|event| event["text"].as_str().map(str::to_owned))
        .collect();
    assert!(printed == both_halves());
    let did = feeding.end().await;
    let hash = stage
        .feed(&["exec", "demo", "-i", "--", "sha256sum"], &input)
        .await
        .text();
    assert_eq!(
        (did.code, did.text(), did.err.as_str()),
        (Some(0), format!("reading\n{hash}"), "")
    );
    assert_eq!(stage.sh("cat runs").await, "x\n");
}

#[tokio::test]
async fn a_server_that_is_stopped_in_order_costs_nothing() {
    let mut stage = Stage::new().await;
    let mut running = stage.begin(&["exec", "demo", "--", "sh", "-c", TWO_HALVES]);
    running.until("half\n").await;
    assert!(stage.server.stop().success());
    stage.server.restart().await;
    stage.sh("touch go").await;
    let did = running.end().await;
    assert_eq!((did.code, did.err.as_str()), (Some(42), ""));
    assert!(did.text() == both_halves());
}
