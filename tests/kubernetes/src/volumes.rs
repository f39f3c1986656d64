//! A provisioner of volumes, which our cluster has none of: each claim gets a directory of the node.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;

/// Whoever runs in our sandboxes.
const USER: u32 = 1000;
/// On claims that were shown to the scheduler once more.
const SEEN: &str = "sandgate.test/seen";

/// Makes a volume for each claim of a namespace, and removes it with the claim, for ever.
pub(crate) async fn provision(client: Client, namespace: String, directory: PathBuf) {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut events = watcher(claims.clone(), watcher::Config::default())
        .default_backoff()
        .boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim)) if is_bound(&claim) => {
                if !claim.annotations().contains_key(SEEN) {
                    tokio::spawn(show_again(claims.clone(), claim.name_any()));
                }
            }
            Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim)) => {
                make(&volumes, &namespace, &claim, &directory).await;
            }
            Ok(watcher::Event::Delete(claim)) => {
                let name = volume_name(&claim);
                let _ = volumes.delete(&name, &DeleteParams::default()).await;
                let _ = fs::remove_dir_all(directory.join(name));
            }
            Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => {}
        }
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some())
}

/// The scheduler (1.34) tries a pod again when it hears that its claim is bound, and may then look at a copy of the claim in
/// which it is not yet. Nothing makes it try again but the next event of that claim, or five minutes.
async fn show_again(claims: Api<PersistentVolumeClaim>, name: String) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seen = json!({"metadata": {"annotations": {SEEN: "bound"}}});
    let _ = claims.patch(&name, &PatchParams::default(), &Patch::Merge(seen)).await;
}

fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("t-{}", claim.uid().unwrap_or_default())
}

async fn make(
    volumes: &Api<PersistentVolume>,
    namespace: &str,
    claim: &PersistentVolumeClaim,
    directory: &std::path::Path,
) {
    let name = volume_name(claim);
    let path = directory.join(&name);
    if claim.metadata.deletion_timestamp.is_some() {
        return;
    }
    // The kubelet makes what is mounted by a path below a volume as root; so it must be there.
    for dir in [path.clone(), path.join("workspace"), path.join("state")] {
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
    }
    let volume: PersistentVolume = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": claim.name_any(), "uid": claim.uid()},
            "hostPath": {"path": path},
        },
    }))
    .unwrap();
    // The API server may be away: tests restart it.
    while let Err(error) = volumes.create(&PostParams::default(), &volume).await {
        if matches!(&error, kube::Error::Api(status) if status.code == 409) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
