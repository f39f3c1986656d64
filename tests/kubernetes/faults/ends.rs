//! What ends a sandbox's pod ends its streams. They say why, and nothing runs again in what takes its place.

use std::fs;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, EvictParams},
};
use rustix::process::{Signal, kill_process};
use sandgate::{Command, v1::EndCause};
use sandgate_kubernetes_tests::{Space, runtime_template, until};
use serde_json::{Value, json};

use super::{
    alone,
    components::Pressure,
    scene::{After, Scene},
};

/// A template with something changed in its pod.
async fn with_template(name: &str, change: impl FnOnce(&mut Value)) -> Space {
    let space = Space::new().await;
    let class = space.cluster.scratch.as_ref().map(|_| "");
    let mut template = runtime_template(name, class);
    change(&mut template["spec"]["podTemplate"]["spec"]);
    space.create_template(template).await;
    space
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_pod_is_deleted() {
    alone(async {
        let scene = Scene::new(Space::new().await, "default").await;
        let pod = scene.pod().await.name_any();
        let pods = scene.space.pods();
        pods.delete(&pod, &DeleteParams::default()).await.unwrap();
        scene.ended_by(EndCause::Deleted, After::Again).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_pod_is_deleted_by_force() {
    alone(async {
        let scene = Scene::new(Space::new().await, "default").await;
        let pod = scene.pod().await.name_any();
        let at_once = DeleteParams::default().grace_period(0);
        scene.space.pods().delete(&pod, &at_once).await.unwrap();
        scene.ended_by(EndCause::Deleted, After::Again).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_pod_is_evicted_by_the_api() {
    alone(async {
        let scene = Scene::new(Space::new().await, "default").await;
        let pod = scene.pod().await.name_any();
        let pods = scene.space.pods();
        pods.evict(&pod, &EvictParams::default()).await.unwrap();
        scene.ended_by(EndCause::Evicted, After::Again).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_node_runs_short_of_memory() {
    alone(async {
        // A kubelet that is started under pressure admits again what asks for memory, and then evicts it. All else that
        // ran it refuses, which no condition tells of.
        let asking = |pod: &mut Value| pod["containers"][0]["resources"] = json!({"requests": {"memory": "16Mi"}});
        let scene = Scene::new(with_template("asking", asking).await, "asking").await;
        let cluster = scene.space.cluster.clone();
        let pressure = Pressure::begin(&cluster).await;
        let pods = scene.space.pods();
        let pod = scene.pod().await.name_any();
        until(async || {
            let pod = pods.get_opt(&pod).await.unwrap();
            let phase = pod.and_then(|pod| pod.status?.phase);
            phase.is_none_or(|phase| phase == "Failed" || phase == "Succeeded")
        })
        .await;
        pressure.end(&cluster).await;
        // Until then the node takes no pod like ours.
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        until(async || {
            let nodes = nodes.list(&kube::api::ListParams::default()).await.unwrap().items;
            let specs = nodes.into_iter().filter_map(|node| node.spec);
            specs.flat_map(|spec| spec.taints.unwrap_or_default()).count() == 0
        })
        .await;
        scene.ended_by(EndCause::Evicted, After::Gone).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_writes_more_than_its_disk_may_hold() {
    alone(async {
        let limit = |pod: &mut Value| {
            pod["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "32Mi"}});
        };
        let scene = Scene::new(with_template("small", limit).await, "small").await;
        let fill = Command::shell("head -c 100000000 /dev/zero > /tmp/full; sleep 600");
        scene.sandbox().start(fill).await.unwrap();
        scene.ended_by(EndCause::Evicted, After::Gone).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_runtime_is_killed_for_want_of_memory() {
    alone(async {
        let limit = |pod: &mut Value| {
            pod["containers"][0]["resources"] = json!({"limits": {"memory": "128Mi"}});
            let mounts = pod["containers"][0]["volumeMounts"].as_array_mut().unwrap();
            mounts.push(json!({"name": "memory", "mountPath": "/memory"}));
            let volumes = pod["volumes"].as_array_mut().unwrap();
            volumes.push(json!({"name": "memory", "emptyDir": {"medium": "Memory"}}));
        };
        let scene = Scene::new(with_template("tight", limit).await, "tight").await;
        // The kernel takes what uses most, a command. So it is nobody's memory that runs short, and the runtime goes first.
        let runtime = scene.runtime().await;
        fs::write(format!("/proc/{}/oom_score_adj", runtime.as_raw_nonzero()), "1000").unwrap();
        let fill = Command::shell("head -c 300000000 /dev/zero > /memory/full");
        scene.sandbox().start(fill).await.unwrap();
        scene.ended_by(EndCause::OutOfMemory, After::Gone).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_container_is_killed() {
    alone(async {
        let scene = Scene::new(Space::new().await, "default").await;
        kill_process(scene.runtime().await, Signal::KILL).unwrap();
        scene.ended_by(EndCause::Crashed, After::Gone).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_container_is_killed_and_started_again() {
    alone(async {
        let lasting = |pod: &mut Value| pod["restartPolicy"] = json!("Always");
        let scene = Scene::new(with_template("lasting", lasting).await, "lasting").await;
        kill_process(scene.runtime().await, Signal::KILL).unwrap();
        scene.ended_by(EndCause::Crashed, After::Again).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_sandbox_object_is_deleted() {
    alone(async {
        let scene = Scene::new(Space::new().await, "default").await;
        let name = scene.pod().await.name_any();
        let objects = scene.space.sandboxes();
        objects.delete(&name, &DeleteParams::default()).await.unwrap();
        scene.ended_by(EndCause::Deleted, After::Anew).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_claim_is_deleted() {
    alone(async {
        let scene = Scene::new(Space::new().await, "default").await;
        let claims = scene.space.claims();
        let name = scene.sandbox().name();
        claims.delete(name, &DeleteParams::default()).await.unwrap();
        scene.ended_by(EndCause::Deleted, After::Gone).await;
    })
    .await;
}
