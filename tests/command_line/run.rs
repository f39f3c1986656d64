//! `run`: a sandbox for one command, which is gone afterwards, whatever happens.

use rustix::process::Signal;
use serde_json::json;

use super::stage::{Stage, fields, lines};

async fn nothing_is_left(stage: &Stage) {
    assert_eq!(stage.json(&["ls"]).await, json!({"sandboxes": []}));
    stage.server.until_nothing_is_left().await;
}

#[tokio::test]
async fn it_exits_as_the_command_did() {
    let stage = Stage::empty().await;
    for (args, code, out, told) in [
        (&["run", "--", "echo", "hello"][..], 0, "hello\n", ""),
        (&["run", "sh", "-c", "exit 9"], 9, "", ""),
        (&["run", "--", "sh", "-c", "kill -9 $$"], 137, "", ""),
        (
            &["run", "--timeout", "100ms", "--", "sleep", "1000"],
            124,
            "",
            "sandgate: the command timed out\n",
        ),
        (
            &["run", "--", "no-such-program"],
            127,
            "",
            "sandgate: the command can't be started: no-such-program: no such program\n",
        ),
        (
            &["run", "--", "/etc/passwd"],
            126,
            "",
            "sandgate: the command can't be started: /etc/passwd: Permission denied (os error 13)\n",
        ),
    ] {
        let did = stage.run(args).await;
        assert_eq!(
            (did.code, did.text().as_str(), did.err.as_str()),
            (Some(code), out, told),
            "{args:?}"
        );
    }
    let did = stage
        .feed(
            &[
                "run",
                "-i",
                "-e",
                "A=b",
                "-w",
                "/tmp",
                "--",
                "sh",
                "-c",
                "pwd; echo $A; cat",
            ],
            b"in",
        )
        .await;
    assert_eq!(did.text(), "/tmp\nb\nin");
    stage
        .refused(
            &["run", "--template", "nope", "--", "true"],
            125,
            "sandgate: there is no template \"nope\"; there are: default (TEMPLATE_NOT_FOUND, request ID)\n  \
             `sandgate-server config` shows the templates of the server.\n",
        )
        .await;

    let (code, events) = stage.events(&["run", "--", "sh", "-c", "echo x; exit 5"]).await;
    assert_eq!(code, Some(5));
    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["created", "started", "stdout", "exited"]);
    assert_eq!(fields(&events[0]), ["event", "sandbox"]);
    assert!(events[0]["sandbox"].as_str().unwrap().starts_with("sandbox-"));
    nothing_is_left(&stage).await;
}

#[tokio::test]
async fn signals_end_the_command_and_the_sandbox() {
    let stage = Stage::empty().await;
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut running = stage.begin(&["run", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
        running.until("ready\n").await;
        running.signal(signal);
        let did = running.end().await;
        assert_eq!((did.code, did.err.as_str()), (Some(code), ""), "{signal:?}");
    }
    let trap = "trap 'exit 8' INT; while :; do sleep 0.02; done";
    let mut running = stage.begin(&["-o", "json", "run", "--", "sh", "-c", trap]);
    running.until("started").await;
    running.signal(Signal::TERM);
    let did = running.end().await;
    assert_eq!(did.code, Some(143));
    assert_eq!(lines(&did.out).last().unwrap()["signal_name"], "TERM");
    nothing_is_left(&stage).await;
}

#[tokio::test]
async fn a_reader_that_leaves_ends_the_command_and_the_sandbox() {
    let stage = Stage::empty().await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = stage.command(&["run", "--", "yes"]);
    command.stdout(writer);
    let did = super::stage::finish(command).await;
    assert_eq!((did.code, did.err.as_str()), (Some(141), ""));
    nothing_is_left(&stage).await;
}
