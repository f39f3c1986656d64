//! Signals that `sandgate` is sent are the command's.

use rustix::process::Signal;

use super::stage::Stage;

#[tokio::test]
async fn they_are_passed_on() {
    let stage = Stage::new().await;
    for (signal, name, number) in [
        (Signal::TERM, "TERM", 15),
        (Signal::INT, "INT", 2),
        (Signal::HUP, "HUP", 1),
        (Signal::QUIT, "QUIT", 3),
    ] {
        let script = format!("trap 'echo got; exit 9' {name}; echo ready; while :; do sleep 0.02; done");
        let mut caught = stage.begin(&["exec", "demo", "--", "sh", "-c", &script]);
        let mut plain = stage.begin(&["exec", "demo", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
        for running in [&mut caught, &mut plain] {
            running.until("ready\n").await;
            running.signal(signal);
        }
        let did = caught.end().await;
        assert_eq!((did.code, did.text().as_str()), (Some(9), "ready\ngot\n"), "{name}");
        let did = plain.end().await;
        assert_eq!((did.code, did.err.as_str()), (Some(128 + number), ""), "{name}");
    }
    stage.until_idle().await;
}

#[tokio::test]
async fn the_third_leaves_it_alone() {
    let stage = Stage::new().await;
    let script = "n=0; trap 'n=$((n+1)); echo got $n' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = stage.begin(&["exec", "demo", "--id", "stubborn", "--", "sh", "-c", script]);
    for wanted in ["ready\n", "got 1\n", "got 2\n"] {
        running.until(wanted).await;
        running.signal(Signal::TERM);
    }
    let did = running.end().await;
    assert_eq!(did.code, Some(143));
    assert!(
        did.err
            .ends_with("sandgate: not waiting any longer: exec stubborn runs on\n"),
        "{did:?}"
    );
    let execs = stage.json(&["ps", "demo", "--alive"]).await;
    assert_eq!(execs["execs"][0]["exec_id"], "stubborn");
    stage.ok(&["kill", "demo", "stubborn", "--signal", "KILL"]).await;
    stage.until_idle().await;
}
