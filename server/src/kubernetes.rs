//! The provider on Kubernetes, as the configuration wants it.

use std::{
    env, fs,
    hash::{BuildHasher as _, RandomState},
    path::Path,
    process,
    sync::Arc,
};

use sandgate_kubernetes::{DirectSettings, GatewaySettings, Kubernetes, OpenError, Settings};
use sandgate_provider::Table;

use crate::{
    config::{Config, ConfigError, KubernetesConfig, Span},
    provider::{ProviderError, spans},
};

/// The downward API puts the pod's name there, if the pod asks for it.
const POD_NAME: &str = "POD_NAME";

/// Opens the provider of sandboxes in a cluster.
pub(crate) async fn open(config: &Config, cluster: &KubernetesConfig) -> Result<Arc<Kubernetes>, ProviderError> {
    let settings = settings(config, cluster)?;
    let opened = Kubernetes::open(settings, Table::new(epoch())).await;
    opened
        .map(Arc::new)
        .map_err(|error| match mistake(config, cluster, &error) {
            Some(mistake) => ProviderError::Config(mistake.into()),
            None => ProviderError::Kubernetes(error),
        })
}

/// What the provider is told. Files with certificates are read here.
pub(crate) fn settings(config: &Config, cluster: &KubernetesConfig) -> Result<Settings, ProviderError> {
    let ca = |file: Option<&Path>, section| read_ca(config, section, file);
    let gateway = cluster.gateway.as_ref().map(|gateway| {
        Ok::<_, ConfigError>(GatewaySettings {
            namespace: gateway.namespace.clone(),
            name: gateway.name.clone(),
            listener: gateway.listener.clone(),
            hostname: gateway.hostname.clone(),
            ca_pem: ca(gateway.ca_file.as_deref(), "gateway")?,
        })
    });
    let direct = cluster.direct.as_ref().map(|direct| {
        Ok::<_, ConfigError>(DirectSettings {
            url: direct.url.clone(),
            ca_pem: ca(direct.ca_file.as_deref(), "direct")?,
            headers: direct.headers.map(),
        })
    });
    let wrong = |error: ConfigError| ProviderError::Config(error.into());
    Ok(Settings {
        kubeconfig: cluster.kubeconfig.clone(),
        context: cluster.context.clone(),
        namespaces: cluster.namespaces.clone(),
        default_template: cluster.default_template.clone().unwrap_or_default(),
        make_pools: cluster.make_pools,
        trust_domain: cluster.trust_domain.clone(),
        keys_dir: cluster.keys_dir.clone(),
        connection: cluster.connection,
        in_cluster: cluster.in_cluster,
        gateway: gateway.transpose().map_err(wrong)?,
        direct: direct.transpose().map_err(wrong)?,
        image_grace: cluster.image_grace.get(),
        spans: spans(config),
        default_ttl: cluster.default_ttl.map(Span::get),
        identity: identity(),
    })
}

fn read_ca(config: &Config, section: &str, file: Option<&Path>) -> Result<Option<Vec<u8>>, ConfigError> {
    let read = |file: &Path| {
        fs::read(file).map_err(|error| {
            let problem = format!("can't read {}: {error}", file.display());
            config.mistake(&["kubernetes", section], "ca_file", problem)
        })
    };
    file.map(read).transpose()
}

/// The mistake in the configuration that an error comes from, if it does.
fn mistake(config: &Config, cluster: &KubernetesConfig, error: &OpenError) -> Option<ConfigError> {
    let (section, key): (&[&str], _) = match error {
        OpenError::Keys(_) => (&["kubernetes"], "keys_dir"),
        OpenError::Endpoint {
            key: "kubernetes.gateway",
            ..
        } => (&["kubernetes", "gateway"], "ca_file"),
        OpenError::Endpoint { .. } => (&["kubernetes", "direct"], "url"),
        OpenError::Kubeconfig(_) if cluster.kubeconfig.is_some() => (&["kubernetes"], "kubeconfig"),
        OpenError::Kubeconfig(_) if cluster.context.is_some() => (&["kubernetes"], "context"),
        _ => return None,
    };
    let problem = match error {
        OpenError::Keys(error) => error.to_string(),
        OpenError::Kubeconfig(problem) | OpenError::Endpoint { problem, .. } => problem.clone(),
        other => other.to_string(),
    };
    Some(config.mistake(section, key, problem))
}

/// This server, for people: its pod, or its machine.
fn identity() -> String {
    let pod = env::var(POD_NAME).ok().filter(|name| !name.is_empty());
    pod.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// Another one for each start, on whatever machine: positions in one server's feed of changes are none in another's.
fn epoch() -> String {
    // The standard library's hasher is seeded at random.
    format!("{:016x}", RandomState::new().hash_one(process::id()))
}
