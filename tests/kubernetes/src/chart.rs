//! The chart, installed by Helm as an operator would, with images of what was built.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Pod, Secret, Service, ServiceAccount},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use sandgate::{Client, Endpoint};
use sandgate_tests::{
    new_id,
    server::{cli_binary, server_binary},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{process::Command, sync::OnceCell};

use crate::{cluster::Cluster, space::until};

/// What the release is called, and with that all that it makes.
pub const RELEASE: &str = "sandgate";
/// The images of the test cluster; and little to reserve, so that its one node has room for the releases of several tests.
const VALUES: &[&str] = &[
    "server.resources.requests.cpu=10m",
    "templateDefaults.resources.requests.cpu=10m",
    "images.pullPolicy=Never",
    "images.server.tag=test",
    "images.runtime.tag=test",
    "images.sandbox.tag=test",
];

/// A release of the chart, in a namespace of its own in which pod security is "restricted".
pub struct Chart {
    /// The cluster that it is in.
    pub cluster: Cluster,
    /// The namespace.
    pub namespace: String,
}

// === impl Chart ===

impl Chart {
    /// Installs the chart with these values (`name=value`), and waits until what it has made works.
    pub async fn install(values: &[&str]) -> Self {
        let cluster = Cluster::get().await;
        give_images(&cluster).await;
        let namespace = new_id("t").to_lowercase();
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let object = json!({"metadata": {"name": namespace, "labels": labels}});
        let object = serde_json::from_value(object).unwrap();
        namespaces.create(&PostParams::default(), &object).await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), &namespace);
        until(async || accounts.get_opt("default").await.unwrap().is_some()).await;
        let chart = Self { cluster, namespace };
        chart.helm("install", &[VALUES, values].concat()).await;
        // Until kube-proxy has heard of servers that are ready, which it does after Helm, the Service refuses connections.
        let service = chart.endpoint(&chart.service_ip().await).await;
        until(async || Client::connect(service.clone()).await.is_ok()).await;
        chart
    }

    /// Changes values of the release.
    pub async fn upgrade(&self, values: &[&str]) {
        self.helm("upgrade", values).await;
    }

    async fn helm(&self, action: &str, values: &[&str]) {
        let mut command = helm();
        command.args([action, RELEASE]).arg(directory().join("chart/sandgate"));
        command.args(["--namespace", &self.namespace, "--wait", "--timeout", "2m"]);
        if action == "upgrade" {
            command.arg("--reset-then-reuse-values");
        }
        for value in values {
            command.args(["--set", value]);
        }
        run(command.env("KUBECONFIG", &self.cluster.kubeconfig)).await;
    }

    /// Removes the release, and the namespace with it.
    pub async fn close(self) {
        let claims = self.claims();
        until(async || claims.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
        let mut command = helm();
        command.args(["uninstall", RELEASE, "--namespace", &self.namespace, "--wait"]);
        run(command.env("KUBECONFIG", &self.cluster.kubeconfig)).await;
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// The claims.
    #[must_use]
    pub fn claims(&self) -> Api<DynamicObject> {
        let version = "extensions.agents.x-k8s.io/v1beta1";
        self.cluster
            .api(&self.namespace, version, "SandboxClaim", "sandboxclaims")
    }

    /// The pods.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    /// The servers' pods that are ready.
    pub async fn servers(&self) -> Vec<Pod> {
        let selector =
            ListParams::default().labels("app.kubernetes.io/name=sandgate,app.kubernetes.io/instance=sandgate");
        let pods = self.pods().list(&selector).await.unwrap().items;
        pods.into_iter().filter(is_ready).collect()
    }

    /// Pods that are ready and no claim's.
    pub async fn waiting(&self) -> Vec<Pod> {
        let selector = ListParams::default().labels("agents.x-k8s.io/sandbox-name-hash,!agents.x-k8s.io/claim-uid");
        let pods = self.pods().list(&selector).await.unwrap().items;
        pods.into_iter().filter(is_ready).collect()
    }

    /// What is in one of the release's Secrets.
    pub async fn secret(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let data = secrets.get(name).await.unwrap().data.unwrap();
        data.into_iter()
            .map(|(name, ByteString(value))| (name, value))
            .collect()
    }

    /// The token that callers show.
    pub async fn token(&self) -> String {
        let secret = self.secret("sandgate-token").await;
        String::from_utf8(secret[0].1.clone()).unwrap()
    }

    /// The private keys, as files.
    pub async fn keys(&self) -> TempDir {
        let dir = TempDir::new().unwrap();
        for (name, value) in self.secret("sandgate-keys").await {
            std::fs::write(dir.path().join(name), value).unwrap();
        }
        dir
    }

    /// The Service's address.
    pub async fn service_ip(&self) -> String {
        let services: Api<Service> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let service = services.get(RELEASE).await.unwrap();
        service.spec.unwrap().cluster_ip.unwrap()
    }

    /// A client of the server at that address: the Service's, or that of one of its pods.
    pub async fn client(&self, ip: &str) -> Client {
        Client::connect(self.endpoint(ip).await).await.unwrap()
    }

    async fn endpoint(&self, ip: &str) -> Endpoint {
        Endpoint::resolve(Some(&format!("http://{ip}:7263")), Some(&self.token().await)).unwrap()
    }

    /// Has the kubelet bring all pods what has changed in their Secrets and ConfigMaps now, and not in a minute or two.
    pub async fn bring_changes(&self) {
        for pod in self.pods().list(&ListParams::default()).await.unwrap() {
            let patch = json!({"metadata": {"annotations": {"sandgate.test/look": new_id("now")}}});
            // One that is gone meanwhile needs nothing.
            let _ = self
                .pods()
                .patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch))
                .await;
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready =
        |condition: &k8s_openapi::api::core::v1::PodCondition| condition.type_ == "Ready" && condition.status == "True";
    pod.metadata.deletion_timestamp.is_none() && conditions.into_iter().flatten().any(ready)
}

/// Files of values that come with the chart, and the one that the plain manifests are made with.
#[must_use]
pub fn chart_values() -> Vec<PathBuf> {
    let chart = directory().join("chart/sandgate");
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let mut files: Vec<_> = [list(&chart), list(&chart.join("examples"))].concat();
    files.retain(|file| {
        let name = file.file_name().unwrap().to_string_lossy();
        name.ends_with(".yaml") && name != "Chart.yaml"
    });
    files.push(directory().join("manifests/values.yaml"));
    files
}

/// What Helm makes of the chart with a file of values.
pub async fn rendered(cluster: &Cluster, values: &Path) -> Vec<DynamicObject> {
    let version = cluster.client.apiserver_version().await.unwrap().git_version;
    let mut command = helm();
    command.args(["--kube-version", &version]);
    command
        .args(["template", RELEASE])
        .arg(directory().join("chart/sandgate"));
    let text = run(command.arg("--values").arg(values)).await;
    let objects: Vec<Option<DynamicObject>> = serde_saphyr::from_multiple(&text).unwrap();
    objects.into_iter().flatten().collect()
}

/// What is deployed, from where cargo runs tests.
fn directory() -> &'static Path {
    Path::new("../../deploy")
}

/// Helm, where `scripts/need helm` puts it.
fn helm() -> Command {
    let tools = env::var_os("SANDGATE_TOOLS").map(|tools| Path::new(&tools).join("helm/bin/helm"));
    let mut command = Command::new(tools.filter(|helm| helm.exists()).unwrap_or("helm".into()));
    // Nothing of whoever runs the tests.
    command
        .env("HELM_CONFIG_HOME", "/nonexistent")
        .env("HELM_CACHE_HOME", "/nonexistent");
    command
}

/// Puts images of the server and the command line, as cargo has built them, onto the node, once. A cluster that is not of
/// scripts/cluster must have them.
async fn give_images(cluster: &Cluster) {
    static GIVEN: OnceCell<()> = OnceCell::const_new();
    let Some(scratch) = &cluster.scratch else { return };
    let give = async || {
        let mut command = Command::new("../../scripts/cluster");
        command.arg("--dir").arg(scratch).args(["image", "server", "cli"]);
        command
            .env("SANDGATE_SERVER_BIN", server_binary())
            .env("SANDGATE_CLI_BIN", cli_binary());
        run(&mut command).await;
    };
    GIVEN.get_or_init(give).await;
}

/// Runs a command that must do well, and gives what it printed.
async fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}");
    stdout.into_owned()
}
