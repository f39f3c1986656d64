//! Where sandboxes are and how they are reached: several namespaces, volumes, and the choice of a way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use sandgate::v1;
use sandgate_kubernetes_tests::{Mode, Space, plain_template};
use sandgate_tests::{
    conformance::{new_name, sh},
    server::Server,
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_has_sandboxes_in_several_namespaces() {
    let (here, there) = (Space::new().await, Space::new().await);
    let both = format!("namespaces = [{:?}, {:?}]", here.namespace, there.namespace);
    let config = here.config(Mode::InCluster);
    let config = config.replace(&format!("namespaces = [{:?}]", here.namespace), &both);
    there.use_keys_of(&here).await;
    let servers = [Server::with_config(&config).await, Server::with_config(&config).await];
    let (client, other) = (servers[0].client().await, servers[1].client().await);
    let name = new_name();
    let template = format!("{}/plain", there.namespace);
    let made = client.create().name(&name).template(&template).send().await.unwrap();
    assert!(there.claims().get_opt(&name).await.unwrap().is_some());
    assert!(here.claims().get_opt(&name).await.unwrap().is_none());
    // A name is one sandbox's, wherever it is.
    let same = other.create().name(&name).template(&template).send().await.unwrap();
    assert_eq!((same.created, &same.info.uid), (false, &made.info.uid));
    let elsewhere = format!("{}/plain", here.namespace);
    let taken = client
        .create()
        .name(&name)
        .template(&elsewhere)
        .send()
        .await
        .unwrap_err();
    assert_eq!(taken.reason(), Some(v1::ErrorReason::SandboxAlreadyExists));
    let second = client.create().name(new_name()).template("plain").send().await.unwrap();
    assert!(here.claims().get_opt(&second.info.name).await.unwrap().is_some());
    let listed: Vec<_> = other
        .list("")
        .await
        .unwrap()
        .into_iter()
        .map(|each| each.name)
        .collect();
    assert!(
        listed.contains(&name) && listed.contains(&second.info.name),
        "{listed:?}"
    );
    assert_eq!(sh(&other.sandbox(&name), "echo there").await, "there\n");
    made.sandbox.delete().await.unwrap();
    second.sandbox.delete().await.unwrap();
    there.close().await;
    here.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_made_where_the_template_permits_it() {
    let space = Space::new().await;
    let mut template = plain_template("roomy");
    let container = &mut template["spec"]["podTemplate"]["spec"]["containers"][0];
    let mounts = container["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({"name": "extra", "mountPath": "/extra", "subPath": "workspace"}));
    space.create_template(template).await;
    let mut strict = plain_template("strict");
    strict["spec"]["volumeClaimTemplatesPolicy"] = "Disallowed".into();
    space.create_template(strict).await;
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let made = client
        .create()
        .name(new_name())
        .template("roomy")
        .volume("extra", 1 << 30)
        .max_wait(std::time::Duration::from_secs(300));
    let made = made.send().await.unwrap();
    let start = made.info.start.unwrap();
    assert_eq!(
        (start.kind(), start.cold_reason()),
        (v1::StartKind::Cold, v1::ColdReason::Volume)
    );
    sh(&made.sandbox, "echo kept > /extra/file").await;
    made.sandbox.suspend(None).await.unwrap();
    made.sandbox.resume().await.unwrap();
    assert_eq!(sh(&made.sandbox, "cat /extra/file").await, "kept\n");
    let removed = made.sandbox.delete().await.unwrap();
    assert_eq!(removed.volumes, ["extra"]);
    let refused = client
        .create()
        .name(new_name())
        .template("strict")
        .volume("extra", 1 << 30);
    let refused = refused.send().await.unwrap_err();
    assert_eq!(refused.reason(), Some(v1::ErrorReason::SandboxFailed), "{refused:?}");
    assert!(refused.to_string().contains("volumeClaimTemplatesPolicy"), "{refused}");
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_is_chosen_and_said() {
    let space = Space::new().await;
    for (in_cluster, mode) in [
        (true, v1::ConnectionMode::InCluster),
        (false, v1::ConnectionMode::Tunnel),
    ] {
        let config = space
            .config(Mode::InCluster)
            .replace("connection = \"in-cluster\"", "connection = \"auto\"");
        let config = config.replace("in_cluster = true", &format!("in_cluster = {in_cluster}"));
        let server = Server::with_config(&config).await;
        let client = server.client().await;
        let made = client.create().name(new_name()).template("plain").send().await.unwrap();
        let connection = made.sandbox.get().await.unwrap().connection.unwrap();
        assert_eq!(connection.mode(), mode, "{connection:?}");
        assert!(!connection.why.is_empty());
        made.sandbox.delete().await.unwrap();
        // Each Create may say it for itself.
        let asked = client
            .create()
            .name(new_name())
            .template("plain")
            .connection_mode(v1::ConnectionMode::Tunnel);
        let asked = asked.send().await.unwrap();
        assert_eq!(
            asked.sandbox.get().await.unwrap().connection.unwrap().mode(),
            v1::ConnectionMode::Tunnel
        );
        asked.sandbox.delete().await.unwrap();
        let nowhere = client
            .create()
            .name(new_name())
            .template("plain")
            .connection_mode(v1::ConnectionMode::Gateway);
        let refused = nowhere.send().await.unwrap_err();
        assert_eq!(refused.reason(), Some(v1::ErrorReason::InvalidArgument), "{refused:?}");
    }
    space.close().await;
}
