//! `watch`: what there is, then what changes.

use rustix::process::Signal;
use serde_json::Value;

use super::stage::{Running, Stage, fields, lines};

/// Ends it as a person does, and gives what it had printed.
async fn interrupt(running: Running) -> Vec<u8> {
    running.signal(Signal::INT);
    let did = running.end().await;
    assert_eq!(did.code, None, "nothing but the signal ends it: {did:?}");
    did.out
}

/// Events about a sandbox, each as its kind or state.
fn story<'a>(events: &'a [Value], name: &str) -> Vec<&'a str> {
    let mut story: Vec<&str> = events
        .iter()
        .filter_map(|event| match event["event"].as_str().unwrap() {
            "sandbox" if event["sandbox"]["name"] == name => event["sandbox"]["state"].as_str(),
            "deleted" if event["name"] == name => Some("deleted"),
            _ => None,
        })
        .collect();
    story.dedup();
    story
}

#[tokio::test]
async fn it_shows_what_comes_and_goes() {
    let stage = Stage::empty().await;
    stage.ok(&["create", "before", "--label", "team=red"]).await;
    let mut json = stage.begin(&["-o", "json", "watch"]);
    let mut text = stage.begin(&["watch", "-l", "team=red"]);
    json.until("\"event\":\"synced\"").await;
    text.until("-- up to date\n").await;
    stage.ok(&["create", "one", "--label", "team=red"]).await;
    stage.ok(&["create", "other"]).await;
    stage.ok(&["suspend", "one"]).await;
    text.until("one suspended\n").await;
    stage.ok(&["rm", "one", "other"]).await;
    stage.ok(&["update", "before", "--label", "team=blue"]).await;
    text.until("before gone: the labels of sandbox before no longer match\n")
        .await;
    json.until("\"team\":\"blue\"").await;

    let events = lines(&interrupt(json).await);
    let kinds: Vec<&str> = events[..3]
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["snapshot", "sandbox", "synced"]);
    assert_eq!(fields(&events[2]), ["event", "resume_token"]);
    assert!(!events[2]["resume_token"].as_str().unwrap().is_empty());
    assert_eq!(fields(&events[1]), ["event", "resume_token", "sandbox"]);
    assert_eq!(events[1]["sandbox"]["labels"]["team"], "red");
    // What is passed through may be left out.
    let passing = ["creating", "suspending", "deleting"];
    let stays = |name: &str| -> Vec<&str> {
        let story = story(&events, name);
        story.into_iter().filter(|state| !passing.contains(state)).collect()
    };
    assert_eq!(stays("one"), ["ready", "suspended", "deleted"]);
    assert_eq!(stays("other"), ["ready", "deleted"]);
    let deleted = events.iter().find(|event| event["event"] == "deleted").unwrap();
    assert_eq!(
        fields(deleted),
        ["cause", "event", "message", "name", "resume_token", "uid"]
    );
    assert_eq!(deleted["cause"], "deleted");

    let text = String::from_utf8(interrupt(text).await).unwrap();
    assert!(text.starts_with("before ready\n-- up to date\n"), "{text}");
    assert!(text.contains("one ready\n") && text.contains("one gone: "), "{text}");
    assert!(!text.contains("other"), "{text}");
}

#[tokio::test]
async fn it_goes_on_when_the_server_is_back() {
    let mut stage = Stage::new().await;
    let mut running = stage.begin(&["watch"]);
    running.until("demo ready\n-- up to date\n").await;
    stage.server.kill();
    stage.server.restart().await;
    stage.ok(&["create", "new"]).await;
    running.until("new ready\n").await;
    stage.ok(&["rm", "demo"]).await;
    running.until("demo gone: ").await;
    running.signal(Signal::INT);
    let did = running.end().await;
    assert!(
        did.err.starts_with("sandgate: ") && did.err.contains("; trying to go on\n"),
        "{did:?}"
    );
    assert_eq!(did.err.lines().count(), 1, "{did:?}");
}
