//! Making, finding, changing, stopping and removing sandboxes.

use sandgate_tests::server::ServerOptions;
use serde_json::{Value, json};

use super::stage::{Stage, fields};

const SANDBOX: [&str; 21] = [
    "capabilities",
    "connection",
    "created_at",
    "deadline",
    "driver",
    "driver_version",
    "enforcement",
    "etag",
    "idle_limit_seconds",
    "incarnation",
    "isolation",
    "labels",
    "last_end",
    "name",
    "provider",
    "start",
    "state",
    "state_message",
    "template",
    "uid",
    "usage",
];

fn names(list: &Value) -> Vec<&str> {
    let sandboxes = list["sandboxes"].as_array().unwrap();
    sandboxes.iter().map(|each| each["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn create_makes_one_or_finds_it() {
    let stage = Stage::empty().await;
    let options = [
        "--label",
        "team=red",
        "--ttl",
        "1h",
        "--idle",
        "10m",
        "--env",
        "MODE=test",
    ];
    let made = stage.json(&[&["create", "demo"], &options[..]].concat()).await;
    assert_eq!(fields(&made), ["created", "resumed", "sandbox"]);
    let sandbox = &made["sandbox"];
    assert_eq!(fields(sandbox), SANDBOX);
    assert_eq!(
        (&made["created"], &made["resumed"], &sandbox["name"], &sandbox["state"]),
        (&json!(true), &json!(false), &json!("demo"), &json!("ready"))
    );
    assert_eq!(sandbox["labels"], json!({"team": "red"}));
    assert_eq!(sandbox["idle_limit_seconds"], 600.0);
    assert_eq!(sandbox["template"], "default");
    for time in ["created_at", "deadline"] {
        assert!(sandbox[time].as_str().unwrap().ends_with('Z'), "{time}: {sandbox}");
    }
    for id in ["etag", "incarnation", "uid"] {
        assert_ne!(sandbox[id], "", "{id}");
    }
    assert_eq!(stage.sh("echo $MODE").await, "test\n");

    let again = stage.json(&["create", "demo"]).await;
    assert_eq!(
        (&again["created"], &again["sandbox"]["uid"]),
        (&json!(false), &sandbox["uid"])
    );
    assert_eq!(stage.ok(&["create", "demo"]).await, "demo\n");
    stage.ok(&["suspend", "demo"]).await;
    let back = stage.json(&["create", "demo"]).await;
    assert_eq!(
        (&back["created"], &back["resumed"], &back["sandbox"]["state"]),
        (&json!(false), &json!(true), &json!("ready"))
    );

    let unnamed = stage.ok(&["create"]).await;
    let unnamed = unnamed.trim_end();
    assert!(unnamed.starts_with("sandbox-"), "{unnamed}");
    let at_once = stage.json(&["create", "later", "--no-wait"]).await;
    assert!(
        at_once["sandbox"]["state"] == "creating" || at_once["sandbox"]["state"] == "ready",
        "{at_once}"
    );
    assert_eq!(stage.ok(&["create", "later", "--wait"]).await, "later\n");
    stage.ok(&["rm", "demo", unnamed, "later"]).await;
    stage.server.until_nothing_is_left().await;
}

#[tokio::test]
async fn create_is_refused_with_a_reason() {
    let options = ServerOptions {
        config: "[limits]\nsandboxes = 1\n[template.default]\n[template.strict]\nrequire = [\"disk.size\"]\n".into(),
        ..ServerOptions::default()
    };
    let stage = Stage::with(options).await;
    let name = "a sandbox's name has 1 to 40 lower-case letters, digits and `-`, begins with a letter and does not end \
                with `-` (INVALID_ARGUMENT, request ID)\n";
    for bad in ["Bad", "1a", "a_b", "a-"] {
        stage
            .refused(&["create", bad], 125, &format!("sandgate: name: {name}"))
            .await;
    }
    stage
        .refused(
            &["create", "--template", "nope"],
            125,
            "sandgate: there is no template \"nope\"; there are: default, strict (TEMPLATE_NOT_FOUND, request \
             ID)\n  `sandgate-server config` shows the templates of the server.\n",
        )
        .await;
    stage
        .refused(
            &["create", "x", "--ttl", "1000d"],
            125,
            "sandgate: ttl: at most 7d from now: this is the server's limits.max_ttl (INVALID_ARGUMENT, request ID)\n",
        )
        .await;
    stage
        .refused(
            &["create", "x", "--label", "a b=c"],
            125,
            "sandgate: labels: label key \"a b\": expected 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or \
             digit at both ends (INVALID_ARGUMENT, request ID)\n",
        )
        .await;
    stage
        .refused(
            &["create", "--template", "strict"],
            125,
            "sandgate: the template requires disk.size, which is not to be had: the template sets no such limit \
             (ISOLATION_UNAVAILABLE, request ID)\n  docs/local.md says what each mechanism needs, and what to do where it \
             can't be had.\n",
        )
        .await;

    stage.ok(&["create", "one"]).await;
    stage
        .refused(
            &["create", "one", "--template", "strict"],
            125,
            "sandgate: sandbox one exists and was made from template \"default\", not \"strict\" \
             (SANDBOX_ALREADY_EXISTS, request ID)\n  Take another name, or remove that one first: `sandgate rm`.\n",
        )
        .await;
    let full = stage.run(&["create", "two"]).await;
    assert_eq!(full.code, Some(125));
    assert!(
        full.told()
            .contains("(LIMIT_REACHED, request ID)\n  Remove what you no longer need"),
        "{full:?}"
    );
    assert_eq!(names(&stage.json(&["ls"]).await), ["one"]);
}

#[tokio::test]
async fn ls_and_get_show_what_there_is() {
    let stage = Stage::empty().await;
    let head = "NAME  STATE  TEMPLATE  AGE  ENDS IN  IDLE LIMIT  LABELS\n";
    assert_eq!(stage.ok(&["ls"]).await, head);
    assert_eq!(stage.json(&["ls"]).await, json!({"sandboxes": []}));
    stage.ok(&["create", "a", "--label", "team=red", "--ttl", "1h"]).await;
    stage.ok(&["create", "b", "--label", "team=blue"]).await;
    assert_eq!(names(&stage.json(&["ls"]).await), ["a", "b"]);
    assert_eq!(fields(&stage.json(&["ls"]).await["sandboxes"][0]), SANDBOX);
    assert_eq!(names(&stage.json(&["ls", "-l", "team in (red)"]).await), ["a"]);
    let text = stage.ok(&["ls", "--selector", "team!=red"]).await;
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows.len(), rows[1][0], rows[1][1]), (2, "b", "ready"), "{text}");
    assert_eq!(*rows[1].last().unwrap(), "team=blue");
    stage
        .refused(
            &["ls", "-l", "=="],
            125,
            "sandgate: label_selector: \"==\": expected 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit \
             at both ends; expected key=value, key!=value, key in (a,b), key notin (a,b), key or !key, with commas \
             between (INVALID_ARGUMENT, request ID)\n",
        )
        .await;

    let text = stage.ok(&["get", "a"]).await;
    for line in [
        "name         a\n",
        "state        ready\n",
        "labels       team=red\n",
        "seccomp            yes\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let json = stage.json(&["get", "a"]).await;
    assert_eq!(fields(&json), SANDBOX);
    assert_eq!((&json["name"], &json["provider"]), (&json!("a"), &json!("local")));
    let seccomp = json!({"mechanism": "seccomp", "in_force": true, "required": false, "why_not": ""});
    assert!(json["isolation"].as_array().unwrap().contains(&seccomp));
    assert!(json["usage"]["memory_bytes"].as_u64().unwrap() > 0);
    assert!(json["usage"]["processes"].as_u64().unwrap() > 0);
    assert_eq!(json["start"]["kind"], "cold");
}

#[tokio::test]
async fn update_changes_what_it_names() {
    let stage = Stage::empty().await;
    stage
        .ok(&[
            "create", "demo", "--label", "keep=1", "--label", "drop=1", "--ttl", "1h",
        ])
        .await;
    let before = stage.json(&["get", "demo"]).await;
    let changed = stage
        .json(&["update", "demo", "--label", "new=2", "--label", "drop-"])
        .await;
    assert_eq!(fields(&changed), SANDBOX);
    assert_eq!(changed["labels"], json!({"keep": "1", "new": "2"}));
    assert_eq!(changed["deadline"], before["deadline"]);
    let later = stage.json(&["update", "demo", "--ttl", "2h", "--idle", "5m"]).await;
    assert!(later["deadline"].as_str() > before["deadline"].as_str(), "{later}");
    assert_eq!(
        (&later["idle_limit_seconds"], &later["labels"]),
        (&json!(300.0), &changed["labels"])
    );
    let text = stage.ok(&["update", "demo", "--idle", "none"]).await;
    assert!(text.contains("idle limit   none\n"), "{text}");

    let now = stage.json(&["get", "demo"]).await["etag"].as_str().unwrap().to_owned();
    let mismatch = "sandgate: the sandbox has changed since; look at it again and decide anew (ETAG_MISMATCH, \
                    request ID)\n  Somebody else changed it: look with `sandgate get`, and try again.\n";
    let old = before["etag"].as_str().unwrap();
    stage
        .refused(&["update", "demo", "--ttl", "3h", "--etag", old], 125, mismatch)
        .await;
    stage
        .refused(&["update", "demo", "--label", "x=y", "--etag", old], 125, mismatch)
        .await;
    assert_eq!(stage.json(&["get", "demo"]).await["etag"], now.as_str());
    let ours = stage.json(&["update", "demo", "--label", "x=y", "--etag", &now]).await;
    assert_eq!(ours["labels"]["x"], "y");

    stage
        .refused(
            &["update", "demo", "--ttl", "none"],
            125,
            "sandgate: deadline: every sandbox has an end here, at most 7d from now (INVALID_ARGUMENT, request ID)\n",
        )
        .await;
    let nothing = stage.run(&["update", "demo"]).await;
    assert_eq!(nothing.code, Some(64));
    assert!(
        nothing
            .err
            .contains("--ttl <SPAN>|--deadline <TIME>|--idle <SPAN>|--label"),
        "{nothing:?}"
    );
}

#[tokio::test]
async fn suspend_keeps_the_disk_and_resume_brings_it_back() {
    let stage = Stage::new().await;
    stage.sh("echo kept > file").await;
    let before = stage.json(&["get", "demo"]).await;
    assert_eq!(stage.ok(&["suspend", "demo"]).await, "demo is suspended\n");
    let again = stage.json(&["suspend", "demo", "--grace", "1s"]).await;
    assert_eq!(
        (fields(&again), &again["sandbox"]["state"]),
        (vec!["sandbox"], &json!("suspended"))
    );
    assert_eq!(stage.json(&["get", "demo"]).await["last_end"]["cause"], "suspended");

    let back = stage.json(&["resume", "demo"]).await;
    assert_eq!(fields(&back), ["resumed", "sandbox"]);
    assert_eq!(
        (&back["resumed"], &back["sandbox"]["state"]),
        (&json!(true), &json!("ready"))
    );
    assert_eq!(back["sandbox"]["uid"], before["uid"]);
    assert_ne!(back["sandbox"]["incarnation"], before["incarnation"]);
    assert_eq!(
        stage.ok(&["resume", "demo"]).await,
        "demo is ready, it was not suspended\n"
    );
    assert_eq!(stage.sh("cat file").await, "kept\n");
    stage.ok(&["suspend", "demo"]).await;
    assert_eq!(stage.ok(&["resume", "demo"]).await, "demo is ready\n");
}

#[tokio::test]
async fn rm_removes_all_that_are_named() {
    let stage = Stage::empty().await;
    for name in ["one", "two", "three"] {
        stage.ok(&["create", name]).await;
    }
    stage.ok(&["exec", "one", "--detach", "--", "sleep", "1000"]).await;
    let json = stage.json(&["rm", "missing", "one"]).await;
    assert_eq!(fields(&json), ["removed"]);
    let (missing, one) = (&json["removed"][0], &json["removed"][1]);
    assert_eq!(
        fields(one),
        [
            "disk_bytes",
            "error",
            "execs_ended",
            "existed",
            "incarnation",
            "name",
            "uid",
            "volumes"
        ]
    );
    assert_eq!(
        (
            &missing["name"],
            &missing["existed"],
            &missing["uid"],
            &missing["error"]
        ),
        (&json!("missing"), &json!(false), &Value::Null, &Value::Null)
    );
    assert_eq!(
        (&one["name"], &one["existed"], &one["execs_ended"], &one["volumes"]),
        (&json!("one"), &json!(true), &json!(1), &json!([]))
    );
    assert!(one["uid"].is_string() && one["incarnation"].is_string(), "{one}");

    let mixed = stage
        .run(&["rm", "two", "Bad", "missing", "three", "--grace", "1s"])
        .await;
    assert_eq!(mixed.code, Some(125));
    let text = mixed.text();
    let rows: Vec<&str> = text.lines().collect();
    assert!(
        rows.len() == 3 && rows[0].starts_with("two removed") && rows[2].starts_with("three removed"),
        "{text}"
    );
    assert_eq!(rows[1], "missing does not exist");
    assert!(
        mixed
            .told()
            .starts_with("sandgate: Bad: sandbox: a sandbox's name has 1 to 40"),
        "{mixed:?}"
    );
    let bad = stage.run(&["-o", "json", "rm", "Bad"]).await;
    let json: Value = serde_json::from_slice(&bad.out).unwrap();
    assert_eq!(
        (bad.code, &json["removed"][0]["error"]["reason"]),
        (Some(125), &json!("INVALID_ARGUMENT"))
    );
    stage.server.until_nothing_is_left().await;
}
