//! The chart on a real cluster: its servers serve pods, its keys guard sandboxes and can be changed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, GroupVersionKind, LogParams, Patch, PatchParams, PostParams},
};
use sandgate::{Command, v1};
use sandgate_auth::{Claims, NewKey, Scope, Signer};
use sandgate_kubernetes_tests::{Chart, RUNTIME_PORT, Space, chart_values, rendered, until};
use sandgate_proto::runtime::v1::{HelloRequest, ListExecsRequest, runtime_service_client::RuntimeServiceClient};
use sandgate_tests::{
    conformance::{new_name, sh},
    in_time, reason,
};
use serde_json::{Value, json};
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};

/// The chart's own.
const TRUST_DOMAIN: &str = "cluster.local";
const LIFE: Duration = Duration::from_secs(60);

/// A pod that calls the Service by its name, which there is no DNS for: as initial containers, one after the other.
async fn caller(chart: &Chart, commands: &[&[&str]]) -> Pod {
    let name = format!("sandgate.{}.svc", chart.namespace);
    let container = |(number, command): (usize, &&[&str])| {
        json!({
            "name": format!("step-{number}"),
            "image": "sandgate/cli:test",
            "imagePullPolicy": "Never",
            "args": command,
            "env": [
                {"name": "SANDGATE_ADDR", "value": format!("http://{name}:7263")},
                {"name": "SANDGATE_TOKEN", "valueFrom": {"secretKeyRef": {"name": "sandgate-token", "key": "token"}}},
            ],
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        })
    };
    let mut containers: Vec<Value> = commands.iter().enumerate().map(container).collect();
    let last = containers.pop().unwrap();
    serde_json::from_value(json!({
        "metadata": {"name": new_name()},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "hostAliases": [{"ip": chart.service_ip().await, "hostnames": [name]}],
            "initContainers": containers,
            "containers": [last],
        },
    }))
    .unwrap()
}

/// Runs commands of `sandgate` in a pod, and gives what each printed.
async fn call(chart: &Chart, commands: &[&[&str]]) -> Vec<String> {
    let pod = caller(chart, commands).await;
    let pods = chart.pods();
    let name = pod.name_any();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let phase = async || {
        pods.get(&name)
            .await
            .unwrap()
            .status
            .and_then(|status| status.phase)
            .unwrap_or_default()
    };
    until(async || ["Succeeded", "Failed"].contains(&phase().await.as_str())).await;
    let mut printed = Vec::new();
    for number in 0..commands.len() {
        let params = LogParams {
            container: Some(format!("step-{number}")),
            ..LogParams::default()
        };
        printed.push(pods.logs(&name, &params).await.unwrap_or_default());
    }
    assert_eq!(phase().await, "Succeeded", "{printed:#?}");
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    printed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_are_made_from_a_pod_through_the_service() {
    let chart = Chart::install(&[]).await;
    // Its autoscaler wants two.
    until(async || chart.servers().await.len() == 2).await;
    let commands: &[&[&str]] = &[
        &["create", "demo", "--env", "WHO=me"],
        &[
            "exec",
            "demo",
            "--",
            "sh",
            "-c",
            "echo $WHO on $(python -V); id -u; pwd",
        ],
        &["doctor"],
    ];
    let printed = in_time(call(&chart, commands)).await;
    let lines: Vec<_> = printed[1].lines().collect();
    assert!(lines[0].starts_with("me on Python 3"), "{lines:?}");
    assert_eq!(lines[1..], ["1000", "/workspace"]);
    for server in chart.servers().await {
        let client = chart.client(&server.status.unwrap().pod_ip.unwrap()).await;
        assert_eq!(sh(&client.sandbox("demo"), "echo $WHO").await, "me\n");
        // How it is reached is told by a server that has reached it.
        let sandbox = client.sandbox("demo").get().await.unwrap();
        assert_eq!(sandbox.template, "debian");
        assert_eq!(sandbox.connection.unwrap().mode(), v1::ConnectionMode::InCluster);
    }
    in_time(call(&chart, &[&["rm", "demo"]])).await;
    chart.close().await;
}

/// A client of the runtime in a pod, as the server would be one, or a thief.
async fn runtime(pod: &Pod) -> RuntimeServiceClient<Channel> {
    let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{ip}:{RUNTIME_PORT}")).unwrap();
    RuntimeServiceClient::new(endpoint.connect().await.unwrap())
}

fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

/// What the server would say of itself to that pod.
fn claims(pod: &Pod, scope: Scope, life: Duration) -> Claims {
    let audience = format!("{TRUST_DOMAIN}/{}/{}", pod.namespace().unwrap(), pod.name_any());
    Claims {
        pod_uid: pod.uid(),
        ..Claims::new(audience, scope, life)
    }
}

/// The incarnation of the runtime in a pod.
async fn incarnation(pod: &Pod, signer: &Signer) -> String {
    let token = signer.token(&claims(pod, Scope::Hello, LIFE));
    let hello = with_token(HelloRequest { generation: 1 }, &token);
    runtime(pod).await.hello(hello).await.unwrap().into_inner().incarnation
}

/// Id of the key that signs.
fn signing_key(signer: &Signer) -> String {
    let keyring = signer.keyring();
    keyring.secrets().next().unwrap().0.to_owned()
}

/// Lists commands, which any token for everything permits.
async fn list(pod: &Pod, token: &str) -> Result<(), v1::ErrorReason> {
    let request = with_token(ListExecsRequest::default(), token);
    let answer = runtime(pod).await.list_execs(request).await;
    answer.map(|_| ()).map_err(|status| reason(&status))
}

/// The pod of a sandbox.
async fn pod_of(chart: &Chart, sandbox: &str) -> Pod {
    let claim = chart.claims().get(sandbox).await.unwrap();
    let name = claim.data["status"]["sandbox"]["name"].as_str().unwrap().to_owned();
    chart.pods().get(&name).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_token_is_good_for_one_pod_and_one_minute() {
    let chart = Chart::install(&[]).await;
    let client = chart.client(&chart.service_ip().await).await;
    let (one, other) = (new_name(), new_name());
    for name in [&one, &other] {
        client.create().name(name).send().await.unwrap();
    }
    let (pod, other_pod) = (pod_of(&chart, &one).await, pod_of(&chart, &other).await);
    // One that waits in the pool, and has the same keys.
    let mut waiting = None;
    until(async || {
        waiting = chart.waiting().await.pop();
        waiting.is_some()
    })
    .await;
    let waiting = waiting.unwrap();
    let keys = chart.keys().await;
    let signer = Signer::open(keys.path()).unwrap();
    let life = Duration::from_secs(10);
    incarnation(&waiting, &signer).await;
    let stolen = Claims {
        incarnation: Some(incarnation(&pod, &signer).await),
        ..claims(&pod, Scope::Runtime, life)
    };
    let token = signer.token(&stolen);
    list(&pod, &token).await.unwrap();
    let refused = Err(v1::ErrorReason::Unauthenticated);
    assert_eq!(list(&other_pod, &token).await, refused, "another pod");
    assert_eq!(list(&waiting, &token).await, refused, "a pod of the pool");
    tokio::time::sleep(life).await;
    assert_eq!(list(&pod, &token).await, refused, "after its expiry");

    // Nor does it help to know everything but the key.
    let forger = tempfile::tempdir().unwrap();
    std::fs::write(forger.path().join("first.pem"), NewKey::generate().unwrap().pem).unwrap();
    let forged = Signer::open(forger.path()).unwrap();
    let now = Claims {
        incarnation: stolen.incarnation.clone(),
        ..claims(&pod, Scope::Runtime, life)
    };
    assert_eq!(list(&pod, &forged.token(&now)).await, refused, "another key");
    list(&pod, &signer.token(&now)).await.unwrap();
    for name in [&one, &other] {
        client.sandbox(name).delete().await.unwrap();
    }
    chart.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_changed_under_a_living_sandbox() {
    let chart = Chart::install(&["templates.debian.pool.replicas=0"]).await;
    until(async || chart.servers().await.len() == 2).await;
    let client = chart.client(&chart.service_ip().await).await;
    let created = client
        .create()
        .name(new_name())
        .env("KEPT", "yes")
        .send()
        .await
        .unwrap();
    let started = created.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    let pod = pod_of(&chart, &created.info.name).await;
    let old_keys = chart.keys().await;
    let old = Signer::open(old_keys.path()).unwrap();
    let inc = incarnation(&pod, &old).await;
    let published = async |number: usize| {
        chart.bring_changes().await;
        let jwks = sh(&created.sandbox, "cat /etc/sandgate/keys/jwks.json").await;
        let jwks: Value = serde_json::from_str(&jwks).unwrap();
        jwks["keys"].as_array().unwrap().len() == number
    };

    chart.upgrade(&["keys.names={first,second}"]).await;
    until(async || published(2).await).await;
    chart.upgrade(&["keys.current=second"]).await;
    let new_keys = chart.keys().await;
    let new = Signer::open(new_keys.path()).unwrap();
    let signs = signing_key(&new);
    assert_ne!(signs, signing_key(&old));
    until(async || {
        chart.bring_changes().await;
        let mut all = true;
        for server in chart.servers().await {
            let said = chart
                .pods()
                .logs(&server.name_any(), &LogParams::default())
                .await
                .unwrap();
            all &= said
                .lines()
                .any(|line| line.contains("keys that sign have changed") && line.contains(&signs));
            // A server looks at its keys when it needs one.
            let ip = server.status.unwrap().pod_ip.unwrap();
            let sandbox = chart.client(&ip).await.sandbox(&created.info.name);
            assert_eq!(sh(&sandbox, "echo $KEPT").await, "yes\n");
        }
        all
    })
    .await;
    chart.upgrade(&["keys.names={second}"]).await;
    until(async || published(1).await).await;

    let claims = || Claims {
        incarnation: Some(inc.clone()),
        ..claims(&pod, Scope::Runtime, LIFE)
    };
    until(async || list(&pod, &old.token(&claims())).await == Err(v1::ErrorReason::Unauthenticated)).await;
    list(&pod, &new.token(&claims())).await.unwrap();
    for server in chart.servers().await {
        let ip = server.status.unwrap().pod_ip.unwrap();
        let sandbox = chart.client(&ip).await.sandbox(&created.info.name);
        assert_eq!(sandbox.get().await.unwrap().incarnation, created.info.incarnation);
        assert_eq!(sh(&sandbox, "echo $KEPT").await, "yes\n");
    }
    assert_eq!(
        created.sandbox.execs(true).await.unwrap(),
        [started],
        "what ran runs on"
    );
    let another = client
        .create()
        .name(new_name())
        .env("KEPT", "too")
        .send()
        .await
        .unwrap();
    assert_eq!(sh(&another.sandbox, "echo $KEPT").await, "too\n");
    for sandbox in [&created.sandbox, &another.sandbox] {
        sandbox.delete().await.unwrap();
    }
    chart.close().await;
}

/// What clouds and operators serve, and our cluster does not.
const ELSEWHERE: &[&str] = &["networking.gke.io", "monitoring.coreos.com"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_takes_what_every_values_file_makes() {
    let space = Space::new().await;
    let mut kinds = BTreeSet::new();
    for values in chart_values() {
        for object in rendered(&space.cluster, &values).await {
            let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
            kinds.insert(kind.kind.clone());
            if ELSEWHERE.contains(&kind.group.as_str()) {
                continue;
            }
            let (resource, _) = kube::discovery::pinned_kind(&space.cluster.client, &kind)
                .await
                .unwrap();
            // Where it would be is not there.
            let api: Api<DynamicObject> =
                Api::namespaced_with(space.cluster.client.clone(), &space.namespace, &resource);
            let object = DynamicObject {
                metadata: ObjectMeta {
                    namespace: Some(space.namespace.clone()),
                    ..object.metadata
                },
                ..object
            };
            let params = PatchParams {
                dry_run: true,
                ..PatchParams::apply("test").force().validation_strict()
            };
            let name = object.name_any();
            let taken = api.patch(&name, &params, &Patch::Apply(&object)).await;
            taken.unwrap_or_else(|error| panic!("{}: {} {name}: {error}", values.display(), kind.kind));
        }
    }
    for kind in [
        "Deployment",
        "SandboxTemplate",
        "SandboxWarmPool",
        "Role",
        "NetworkPolicy",
        "Gateway",
        "HTTPRoute",
    ] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
    space.close().await;
}
