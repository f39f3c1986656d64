//! `doctor`: a whole set-up, and what it finds.

use sandgate_tests::server::ServerOptions;
use serde_json::{Value, json};

use super::stage::{Stage, fields};

fn checks(report: &Value) -> Vec<(&str, bool)> {
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .map(|check| (check["name"].as_str().unwrap(), check["ok"].as_bool().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_server_that_works() {
    let stage = Stage::empty().await;
    let report = stage.json(&["doctor"]).await;
    assert_eq!(
        fields(&report),
        [
            "address",
            "address_from",
            "checks",
            "connection",
            "driver",
            "driver_version",
            "isolation",
            "ok",
            "provider",
            "template",
            "token_from",
            "tools"
        ]
    );
    let all = ["server", "create", "isolation", "run", "remove"].map(|name| (name, true));
    assert_eq!((&report["ok"], checks(&report)), (&json!(true), all.to_vec()));
    assert_eq!(fields(&report["checks"][0]), ["detail", "hint", "name", "ok", "reason"]);
    assert_eq!(report["address"], format!("unix://{}", stage.server.socket().display()));
    assert_eq!(
        (&report["address_from"], &report["provider"]),
        (&json!("SANDGATE_ADDR"), &json!("local"))
    );
    assert!(report["isolation"].as_array().unwrap().len() > 10);
    assert_eq!(
        fields(&report["isolation"][0]),
        ["in_force", "mechanism", "required", "why_not"]
    );
    assert_eq!(fields(&report["tools"][0]), ["found", "name", "version"]);

    let text = stage.ok(&["doctor"]).await;
    for line in [
        "ok  server     answers at unix://",
        "ok  run        `true` ran\n",
        "seccomp            yes\n",
        "TOOL     INSIDE\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    assert!(
        text.lines().last().unwrap().starts_with("Everything essential works"),
        "{text}"
    );
    assert!(!text.contains('\x1b'));
    assert_eq!(stage.json(&["ls"]).await, json!({"sandboxes": []}));
    stage.server.until_nothing_is_left().await;
}

#[tokio::test]
async fn what_does_not_work_is_found() {
    let options = ServerOptions {
        config: "[template.default]\n[template.strict]\nrequire = [\"disk.size\"]\n".into(),
        ..ServerOptions::default()
    };
    let mut stage = Stage::with(options).await;
    let strict = stage.run(&["doctor", "--template", "strict"]).await;
    assert_eq!((strict.code, strict.err.as_str()), (Some(1), ""));
    let text = strict.text();
    assert!(
        text.contains("FAILED  create  ") && text.contains("disk.size"),
        "{text}"
    );
    assert!(text.ends_with("\nSomething essential does not work.\n"), "{text}");
    let missing = stage.run(&["-o", "json", "doctor", "--template", "nope"]).await;
    let report: Value = serde_json::from_slice(&missing.out).unwrap();
    assert_eq!((missing.code, &report["ok"]), (Some(1), &json!(false)));
    assert_eq!(checks(&report), [("server", true), ("create", false)]);
    assert_eq!(report["checks"][1]["reason"], "TEMPLATE_NOT_FOUND");

    stage.server.kill();
    let nobody = stage.run(&["doctor"]).await;
    assert_eq!((nobody.code, nobody.err.as_str()), (Some(1), ""));
    let text = nobody.text();
    assert!(text.contains("FAILED  server  nothing listens on unix://"), "{text}");
    assert!(
        text.contains("`make run`") && text.contains("`sandgate-server`"),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&stage.run(&["-o", "json", "doctor"]).await.out).unwrap();
    assert_eq!(
        (&report["ok"], checks(&report)),
        (&json!(false), vec![("server", false)])
    );
}
