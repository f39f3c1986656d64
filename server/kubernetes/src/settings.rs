//! What the provider is told: plain values, already checked as far as a configuration can be by itself.

use std::{path::PathBuf, time::Duration};

use http::HeaderMap;
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::limits::Spans;

/// What the provider works with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to reach the cluster. `None`: as the pod that the server runs in, else as `KUBECONFIG` says.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. `None`: its current one.
    pub context: Option<String>,
    /// Where sandboxes are. The first has those whose creators name no namespace. Not empty.
    pub namespaces: Vec<String>,
    /// The template of sandboxes that name neither template nor pool. Empty: there is none.
    pub default_template: String,
    /// Whether pools of no replicas may be made for templates that have none, which claims can't do without.
    pub make_pools: bool,
    /// Who this cluster is among those that trust the same keys: the first part of every token's audience.
    pub trust_domain: String,
    /// Private keys for tokens. `None`: only drivers that want no token.
    pub keys_dir: Option<PathBuf>,
    /// How sandboxes are reached whose template and creator do not say.
    pub connection: ConnectionMode,
    /// Whether pods can be reached by their addresses. `None`: if the server runs in a pod itself.
    pub in_cluster: Option<bool>,
    /// For mode gateway.
    pub gateway: Option<GatewaySettings>,
    /// For mode direct.
    pub direct: Option<DirectSettings>,
    /// How long an image may take that can't be pulled, before the sandbox is given up.
    pub image_grace: Duration,
    /// The longest life and idle limit that callers may ask for.
    pub spans: Spans,
    /// How long a sandbox lives if neither its creator nor its template says.
    pub default_ttl: Option<Duration>,
    /// This server, for people.
    pub identity: String,
}

/// A Gateway in front of the sandbox router.
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of its listeners. `None`: the first of http or https.
    pub listener: Option<String>,
    /// What to call it. `None`: the listener's hostname, or its address.
    pub hostname: Option<String>,
    /// Certificates that may sign for it, as PEM. `None`: the system's.
    pub ca_pem: Option<Vec<u8>>,
}

/// A URL in front of the sandbox router.
#[derive(Debug, Clone)]
pub struct DirectSettings {
    /// `http://` or `https://`, a host, maybe a port and a path.
    pub url: String,
    /// Certificates that may sign for it, as PEM. `None`: the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// To be sent to it.
    pub headers: HeaderMap,
}
