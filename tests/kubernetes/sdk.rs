//! The SDK of agent-sandbox itself, as PyPI has it, drives a pod that holds our runtime.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{env, path::Path};

use sandgate::v1;
use sandgate_kubernetes_tests::{Mode, Space, plain_template};
use sandgate_tests::{
    conformance::{new_name, sh},
    in_time,
};
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_of_agent_sandbox_drives_our_runtime() {
    let space = Space::new().await;
    let mut template = plain_template("python");
    let command = &mut template["spec"]["podTemplate"]["spec"]["containers"][0]["command"];
    command.as_array_mut().unwrap().push("--python-api".into());
    space.create_template(template).await;
    space.create_pool("python", "python", 1).await;

    // One of ours is theirs as well, which is not hidden.
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let ours = client
        .create()
        .name(new_name())
        .template("python")
        .send()
        .await
        .unwrap();
    let open = ours
        .info
        .enforcement
        .iter()
        .find(|rule| rule.rule == "runtime.authentication");
    assert_eq!(open.unwrap().level(), v1::EnforcementLevel::None, "{:?}", ours.info);
    sh(&ours.sandbox, "echo ours > ours").await;

    let tools = env::var_os("SANDGATE_TOOLS").expect("SANDGATE_TOOLS is where scripts/need puts what tests need");
    let mut script = Command::new(Path::new(&tools).join("agent-sandbox-sdk/bin/python"));
    script
        .arg("sdk.py")
        .args([&space.namespace, "python", &space.cluster.router, &ours.info.name])
        .env("KUBECONFIG", &space.cluster.kubeconfig)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .kill_on_drop(true);
    let done = in_time(script.output())
        .await
        .expect("scripts/need agent-sandbox-sdk brings it");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    assert_eq!(sh(&ours.sandbox, "cat ours").await, "ours\ntheirs\n");
    ours.sandbox.delete().await.unwrap();
    space.close().await;
}
