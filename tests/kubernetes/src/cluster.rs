//! The cluster that the tests were given.

use std::{env, path::PathBuf};

use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;

/// A cluster with agent-sandbox.
#[derive(Clone)]
pub struct Cluster {
    /// For the admin.
    pub client: Client,
    /// The same for a server.
    pub kubeconfig: PathBuf,
    /// Where the cluster's node finds directories of this machine. `None`: it is on another one.
    pub scratch: Option<PathBuf>,
    /// The sandbox router.
    pub router: String,
}

// === impl Cluster ===

impl Cluster {
    /// The cluster of the environment.
    ///
    /// # Panics
    /// When there is none: nothing here can be tested without one.
    pub async fn get() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig = env::var_os("SANDGATE_TEST_KUBECONFIG").expect(
            "SANDGATE_TEST_KUBECONFIG names no cluster: run `scripts/cluster with cargo test -p sandgate-kubernetes-tests --test NAME`",
        );
        let kubeconfig = PathBuf::from(kubeconfig);
        let file = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .unwrap();
        Self {
            client: Client::try_from(config).unwrap(),
            kubeconfig,
            scratch: env::var_os("SANDGATE_TEST_CLUSTER").map(PathBuf::from),
            router: env::var("SANDGATE_TEST_ROUTER").expect("SANDGATE_TEST_ROUTER names the sandbox router"),
        }
    }

    /// Objects of a kind by their `apiVersion` and plural.
    #[must_use]
    pub fn api(&self, namespace: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// Makes an object from what a manifest would say.
    pub async fn create(&self, namespace: &str, plural: &str, object: Value) {
        let text = |field: &str| object[field].as_str().unwrap().to_owned();
        let api = self.api(namespace, &text("apiVersion"), &text("kind"), plural);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}
