//! The flags of `[kubernetes]`.

/// One flag for each key.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options for provider kubernetes")]
pub(super) struct KubernetesFlags {
    /// Kubeconfig to reach the cluster with [default: as the pod that the server runs in, else KUBECONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    kubernetes_kubeconfig: Option<String>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", global = true)]
    kubernetes_context: Option<String>,
    /// Namespace for sandboxes; may be repeated; the first has those whose creators name none [default: default]
    #[arg(long, value_name = "NAME", global = true)]
    kubernetes_namespaces: Vec<String>,
    /// Whether pools of no replicas may be made for templates that have none [default: true]
    #[arg(long, value_name = "BOOL", global = true)]
    kubernetes_make_pools: Option<String>,
    /// First part of the audience of tokens [default: cluster.local]
    #[arg(long, value_name = "NAME", global = true)]
    kubernetes_trust_domain: Option<String>,
    /// Directory with private keys for tokens; `keys new` makes one [default: none]
    #[arg(long, value_name = "DIR", global = true)]
    kubernetes_keys_dir: Option<String>,
    /// How sandboxes are reached: auto, tunnel, gateway, direct or in-cluster [default: auto]
    #[arg(long, value_name = "MODE", global = true)]
    kubernetes_connection: Option<String>,
    /// Whether pods can be reached by their addresses: true, false or auto [default: auto, if the server runs in a pod]
    #[arg(long, value_name = "BOOL", global = true)]
    kubernetes_in_cluster: Option<String>,
    /// How long an image may fail to be pulled before a sandbox is given up [default: 1m]
    #[arg(long, value_name = "SPAN", global = true)]
    kubernetes_image_grace: Option<String>,
    /// How long a sandbox lives if neither its creator nor its template says, or "none" [default: 1d]
    #[arg(long, value_name = "SPAN", global = true)]
    kubernetes_default_ttl: Option<String>,
    /// Gateway in front of the sandbox router [default: none]
    #[arg(long, value_name = "NAME", global = true)]
    kubernetes_gateway_name: Option<String>,
    /// Namespace of the Gateway
    #[arg(long, value_name = "NAME", global = true)]
    kubernetes_gateway_namespace: Option<String>,
    /// Listener of the Gateway [default: its first of http or https]
    #[arg(long, value_name = "NAME", global = true)]
    kubernetes_gateway_listener: Option<String>,
    /// What to call the Gateway [default: the listener's hostname, or its address]
    #[arg(long, value_name = "NAME", global = true)]
    kubernetes_gateway_hostname: Option<String>,
    /// Certificates that may sign for the Gateway, as PEM [default: the system's]
    #[arg(long, value_name = "FILE", global = true)]
    kubernetes_gateway_ca_file: Option<String>,
    /// URL in front of the sandbox router [default: none]
    #[arg(long, value_name = "URL", global = true)]
    kubernetes_direct_url: Option<String>,
    /// Certificates that may sign for the URL, as PEM [default: the system's]
    #[arg(long, value_name = "FILE", global = true)]
    kubernetes_direct_ca_file: Option<String>,
    /// Header to send to the URL, as NAME=VALUE; may be repeated [default: none]
    #[arg(long, value_name = "HEADER", global = true)]
    kubernetes_direct_headers: Vec<String>,
}

// === impl KubernetesFlags ===

impl KubernetesFlags {
    /// By name: what may be repeated.
    pub(super) fn lists(&self) -> [(&'static str, &Vec<String>); 2] {
        [
            ("kubernetes-namespaces", &self.kubernetes_namespaces),
            ("kubernetes-direct-headers", &self.kubernetes_direct_headers),
        ]
    }

    /// By name: the others.
    pub(super) fn single(&self) -> [(&'static str, &Option<String>); 16] {
        [
            ("kubernetes-kubeconfig", &self.kubernetes_kubeconfig),
            ("kubernetes-context", &self.kubernetes_context),
            ("kubernetes-make-pools", &self.kubernetes_make_pools),
            ("kubernetes-trust-domain", &self.kubernetes_trust_domain),
            ("kubernetes-keys-dir", &self.kubernetes_keys_dir),
            ("kubernetes-connection", &self.kubernetes_connection),
            ("kubernetes-in-cluster", &self.kubernetes_in_cluster),
            ("kubernetes-image-grace", &self.kubernetes_image_grace),
            ("kubernetes-default-ttl", &self.kubernetes_default_ttl),
            ("kubernetes-gateway-name", &self.kubernetes_gateway_name),
            ("kubernetes-gateway-namespace", &self.kubernetes_gateway_namespace),
            ("kubernetes-gateway-listener", &self.kubernetes_gateway_listener),
            ("kubernetes-gateway-hostname", &self.kubernetes_gateway_hostname),
            ("kubernetes-gateway-ca-file", &self.kubernetes_gateway_ca_file),
            ("kubernetes-direct-url", &self.kubernetes_direct_url),
            ("kubernetes-direct-ca-file", &self.kubernetes_direct_ca_file),
        ]
    }
}
