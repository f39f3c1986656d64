//! A namespace of a test's own, with everything that an operator would put there, and servers for it.

use std::{fs, path::Path, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
};
use sandgate_auth::Signer;
use sandgate_tests::{
    new_id,
    server::{Server, ServerOptions},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{
    cluster::Cluster,
    objects::{POOL, Version, driver_template, plain_template, pool, runtime_template},
    volumes::provision,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// What our servers call the cluster.
pub(crate) const TRUST_DOMAIN: &str = "test";

/// The ways to reach a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Port-forward.
    Tunnel,
    /// A Gateway in front of the router.
    Gateway,
    /// The router's URL.
    Direct,
    /// The pod's address.
    InCluster,
}

/// A namespace of a test's own.
pub struct Space {
    /// The cluster that it is in.
    pub cluster: Cluster,
    /// Its name.
    pub namespace: String,
    version: Version,
    keys: TempDir,
    volumes: Option<JoinHandle<()>>,
}

// === impl Mode ===

impl Mode {
    /// As the configuration calls it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Gateway => "gateway",
            Self::Direct => "direct",
            Self::InCluster => "in-cluster",
        }
    }
}

// === impl Space ===

impl Space {
    /// A namespace with keys, the templates `default` and `other`, `plain` without volumes, and no pools.
    pub async fn new() -> Self {
        Self::of(Version::V1beta1).await
    }

    /// The same where agent-sandbox serves that version.
    pub async fn of(version: Version) -> Self {
        let cluster = Cluster::get().await;
        let namespace = new_id("t").to_lowercase();
        let keys = TempDir::new().unwrap();
        new_key(keys.path());
        let mut space = Self {
            cluster,
            namespace,
            version,
            keys,
            volumes: None,
        };
        space.prepare().await;
        space
    }

    async fn prepare(&mut self) {
        let client = &self.cluster.client;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": self.namespace}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        self.publish_keys().await;
        for name in ["default", "other"] {
            self.create_template(runtime_template(name, self.class_of_volumes()))
                .await;
        }
        self.create_template(plain_template("plain")).await;
        if let Some(scratch) = &self.cluster.scratch {
            let work = provision(client.clone(), self.namespace.clone(), scratch.join("volumes"));
            self.volumes = Some(tokio::spawn(work));
        }
        // Without its account the first pod of a namespace is refused.
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        until(async || accounts.get_opt("default").await.unwrap().is_some()).await;
    }

    /// Of volumes that are made here; where the cluster makes them, its default.
    fn class_of_volumes(&self) -> Option<&'static str> {
        self.cluster.scratch.as_ref().map(|_| "")
    }

    /// Makes the public keys known to the pods.
    pub async fn publish_keys(&self) {
        let jwks = Signer::open(self.keys.path()).unwrap().jwks().to_string();
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": "sandgate-keys"}, "data": {"jwks.json": jwks},
        }))
        .unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        maps.create(&PostParams::default(), &map).await.unwrap();
    }

    /// Makes the public keys of another namespace known here too, for a server that has both.
    pub async fn use_keys_of(&self, other: &Self) {
        let jwks = Signer::open(other.keys.path()).unwrap().jwks().to_string();
        let patch = json!({"data": {"jwks.json": jwks}});
        let maps: Api<ConfigMap> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let merge = kube::api::Patch::Merge(&patch);
        maps.patch("sandgate-keys", &kube::api::PatchParams::default(), &merge)
            .await
            .unwrap();
    }

    /// Makes a template of a driver's name, whose pods have what that one speaks to.
    pub async fn create_driver_template(&self, driver: &str) {
        self.create_template(driver_template(driver, self.class_of_volumes()))
            .await;
    }

    /// Makes a template.
    pub async fn create_template(&self, template: serde_json::Value) {
        let template = self.version.object(template);
        self.cluster.create(&self.namespace, "sandboxtemplates", template).await;
    }

    /// Makes a pool, and waits until it is full.
    pub async fn create_pool(&self, name: &str, template: &str, replicas: u32) {
        let pool = self.version.object(pool(name, template, replicas));
        self.cluster.create(&self.namespace, POOL, pool).await;
        self.until_full(name, replicas).await;
    }

    /// Waits until a pool has that many ready.
    pub async fn until_full(&self, name: &str, replicas: u32) {
        let pools = self.pools();
        until(async || {
            let pool = pools.get(name).await.unwrap();
            pool.data["status"]["readyReplicas"].as_u64().unwrap_or(0) >= u64::from(replicas)
        })
        .await;
    }

    /// The pools.
    #[must_use]
    pub fn pools(&self) -> Api<DynamicObject> {
        self.objects("extensions.agents.x-k8s.io", "SandboxWarmPool", POOL)
    }

    /// The claims.
    #[must_use]
    pub fn claims(&self) -> Api<DynamicObject> {
        self.objects("extensions.agents.x-k8s.io", "SandboxClaim", "sandboxclaims")
    }

    /// The Sandbox objects.
    #[must_use]
    pub fn sandboxes(&self) -> Api<DynamicObject> {
        self.objects("agents.x-k8s.io", "Sandbox", "sandboxes")
    }

    fn objects(&self, group: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let version = format!("{group}/{}", self.version.as_str());
        self.cluster.api(&self.namespace, &version, kind, plural)
    }

    /// The pods.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    /// The claims of volumes.
    #[must_use]
    pub fn volume_claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    /// Where the private keys are.
    #[must_use]
    pub fn keys(&self) -> &Path {
        self.keys.path()
    }

    /// The configuration of a server for this namespace.
    #[must_use]
    pub fn config(&self, mode: Mode) -> String {
        let gateway = match mode {
            Mode::Gateway => format!(
                "[kubernetes.gateway]\nname = \"sandgate\"\nnamespace = \"{}\"\n",
                self.namespace
            ),
            Mode::Direct => format!("[kubernetes.direct]\nurl = \"{}\"\n", self.cluster.router),
            Mode::Tunnel | Mode::InCluster => String::new(),
        };
        format!(
            "provider = \"kubernetes\"\ndefault_template = \"default\"\n[kubernetes]\nkubeconfig = {:?}\nnamespaces = [{:?}]\n\
             keys_dir = {:?}\ntrust_domain = {TRUST_DOMAIN:?}\nconnection = {:?}\nin_cluster = {}\n{gateway}",
            self.cluster.kubeconfig,
            self.namespace,
            self.keys.path(),
            mode.as_str(),
            mode == Mode::InCluster,
        )
    }

    /// A server for this namespace.
    pub async fn server(&self, mode: Mode) -> Server {
        if mode == Mode::Gateway {
            self.make_gateway().await;
        }
        Server::start_with(ServerOptions {
            config: self.config(mode),
            ..ServerOptions::default()
        })
        .await
    }

    /// A Gateway whose address is the router's. Its controller is a cloud's; what that would write, we write.
    pub async fn make_gateway(&self) {
        let api = self
            .cluster
            .api(&self.namespace, "gateway.networking.k8s.io/v1", "Gateway", "gateways");
        if api.get_opt("sandgate").await.unwrap().is_some() {
            return;
        }
        let (host, port) = self
            .cluster
            .router
            .trim_start_matches("http://")
            .rsplit_once(':')
            .unwrap();
        let listener = json!({"name": "http", "protocol": "HTTP", "port": port.parse::<u16>().unwrap()});
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": "sandgate"},
            "spec": {"gatewayClassName": "test", "listeners": [listener]},
        });
        self.cluster.create(&self.namespace, "gateways", gateway).await;
        let status = json!({"status": {"addresses": [{"type": "IPAddress", "value": host}]}});
        let merge = kube::api::Patch::Merge(&status);
        api.patch_status("sandgate", &kube::api::PatchParams::default(), &merge)
            .await
            .unwrap();
    }

    /// Waits until no claim is left.
    pub async fn until_nothing_is_left(&self) {
        let claims = self.claims();
        until(async || claims.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    }

    /// Removes the namespace with all that is in it.
    pub async fn close(mut self) {
        self.until_nothing_is_left().await;
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await
            .unwrap();
        if let Some(volumes) = self.volumes.take() {
            let claims = self.volume_claims();
            until(async || claims.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
            volumes.abort();
        }
    }
}

/// Makes a private key.
fn new_key(dir: &Path) {
    let key = sandgate_auth::NewKey::generate().unwrap();
    fs::write(dir.join("first.pem"), key.pem).unwrap();
}

/// Waits until something holds.
///
/// # Panics
/// When it takes too long.
pub async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("it comes about in time");
}
