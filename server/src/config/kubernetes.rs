//! What only sandboxes on Kubernetes need to know: `[kubernetes]`.

use std::{collections::BTreeSet, path::PathBuf};

use sandgate_proto::v1::ConnectionMode;

use super::{
    headers::Headers,
    reader::{Reader, Section},
    units::Span,
    value::{NAME, Raw, Value, is_name, quoted, word_value},
};

/// For sandboxes on Kubernetes.
#[derive(Clone, Debug)]
pub struct KubernetesConfig {
    /// The SandboxTemplate of sandboxes that name neither template nor pool. Absent: they must name one.
    pub default_template: Option<String>,
    /// How to reach the cluster. Absent: as the pod that the server runs in, else as `KUBECONFIG` says.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Absent: its current one.
    pub context: Option<String>,
    /// Where sandboxes are. Not empty.
    pub namespaces: Vec<String>,
    /// Whether pools of no replicas may be made.
    pub make_pools: bool,
    /// The first part of every token's audience.
    pub trust_domain: String,
    /// Private keys for tokens.
    pub keys_dir: Option<PathBuf>,
    /// How sandboxes are reached whose template and creator do not say.
    pub connection: ConnectionMode,
    /// Whether pods can be reached by their addresses. Absent: to be found out.
    pub in_cluster: Option<bool>,
    /// How long an image may fail to be pulled.
    pub image_grace: Span,
    /// How long a sandbox lives if neither its creator nor its template says. Absent: as long as allowed.
    pub default_ttl: Option<Span>,
    /// A Gateway in front of the sandbox router.
    pub gateway: Option<GatewayConfig>,
    /// A URL in front of the sandbox router.
    pub direct: Option<DirectConfig>,
}

/// A Gateway in front of the sandbox router.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Which of its listeners. Absent: the first of http or https.
    pub listener: Option<String>,
    /// What to call it. Absent: the listener's hostname, or its address.
    pub hostname: Option<String>,
    /// Certificates that may sign for it. Absent: the system's.
    pub ca_file: Option<PathBuf>,
}

/// A URL in front of the sandbox router.
#[derive(Clone, Debug)]
pub struct DirectConfig {
    /// `http://` or `https://`, a host, maybe a port and a path.
    pub url: String,
    /// Certificates that may sign for it. Absent: the system's.
    pub ca_file: Option<PathBuf>,
    /// To be sent to it.
    pub headers: Headers,
}

/// Yes, no, or to be found out.
#[derive(Clone, Copy)]
struct Choice(Option<bool>);

const AUTO: &str = "auto";

word_value!(ConnectionMode,
    "auto" => ConnectionMode::Unspecified,
    "tunnel" => ConnectionMode::Tunnel,
    "gateway" => ConnectionMode::Gateway,
    "direct" => ConnectionMode::Direct,
    "in-cluster" => ConnectionMode::InCluster
);

// === impl KubernetesConfig ===

impl KubernetesConfig {
    pub(super) fn read<'a>(reader: &mut Reader<'a>, top: &mut Section<'a>) -> Self {
        let default_template = reader.take(top, "default_template", None::<String>);
        let mut section = reader.section(top, "kubernetes");
        let ours = &mut section;
        let config = Self {
            default_template,
            kubeconfig: reader.take_optional_path(ours, "kubeconfig"),
            context: reader.take(ours, "context", None),
            namespaces: reader.take(ours, "namespaces", vec!["default".to_owned()]),
            make_pools: reader.take(ours, "make_pools", true),
            trust_domain: reader.take(ours, "trust_domain", "cluster.local".to_owned()),
            keys_dir: reader.take_optional_path(ours, "keys_dir"),
            connection: reader.take(ours, "connection", ConnectionMode::Unspecified),
            in_cluster: reader.take(ours, "in_cluster", Choice(None)).0,
            image_grace: reader.take(ours, "image_grace", Span::from_secs(60)),
            default_ttl: reader.take(ours, "default_ttl", Some(Span::from_secs(24 * 3600))),
            gateway: GatewayConfig::read(reader, ours),
            direct: DirectConfig::read(reader, ours),
        };
        config.check(reader, ours);
        reader.close(section);
        config
    }

    fn check<'a>(&self, reader: &mut Reader<'a>, section: &Section<'a>) {
        if self.namespaces.is_empty() {
            reader.wrong(section, "namespaces", "at least one must be given".to_owned());
        }
        let mut seen = BTreeSet::new();
        for name in &self.namespaces {
            if !is_name(name) {
                reader.wrong(section, "namespaces", format!("expected {NAME}, not {name:?}"));
            } else if !seen.insert(name) {
                reader.wrong(section, "namespaces", format!("{name:?} is there twice"));
            }
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !self.trust_domain.chars().all(fits) {
            let problem = format!(
                "expected letters, digits, dashes, dots and underscores, not {:?}",
                self.trust_domain
            );
            reader.wrong(section, "trust_domain", problem);
        }
        for (mode, given, key) in [
            (
                ConnectionMode::Gateway,
                self.gateway.is_some(),
                "kubernetes.gateway.name",
            ),
            (ConnectionMode::Direct, self.direct.is_some(), "kubernetes.direct.url"),
        ] {
            if self.connection == mode && !given {
                let problem = format!("is {}, so {key} must be given", mode.to_toml());
                reader.wrong(section, "connection", problem);
            }
        }
        if self.keys_dir.is_none() {
            reader.warn(
                "kubernetes.keys_dir is not given: sandboxes with sandgate-runtime can't be reached, only those of other drivers"
                    .to_owned(),
            );
        }
    }
}

// === impl GatewayConfig ===

impl GatewayConfig {
    fn read<'a>(reader: &mut Reader<'a>, outer: &mut Section<'a>) -> Option<Self> {
        let mut section = reader.section(outer, "gateway");
        let ours = &mut section;
        let name = reader.take(ours, "name", None::<String>);
        let namespace = reader.take(ours, "namespace", None::<String>);
        let listener = reader.take(ours, "listener", None);
        let hostname = reader.take(ours, "hostname", None);
        let ca_file = reader.take_optional_path(ours, "ca_file");
        let others = [
            ("namespace", namespace.is_some()),
            ("listener", listener.is_some()),
            ("hostname", hostname.is_some()),
            ("ca_file", ca_file.is_some()),
        ];
        needs(reader, ours, name.is_some(), "name", &others);
        if name.is_some() && namespace.is_none() {
            reader.wrong(ours, "name", "is given, so namespace must be given too".to_owned());
        }
        reader.close(section);
        Some(Self {
            name: name?,
            namespace: namespace.unwrap_or_default(),
            listener,
            hostname,
            ca_file,
        })
    }
}

// === impl DirectConfig ===

impl DirectConfig {
    fn read<'a>(reader: &mut Reader<'a>, outer: &mut Section<'a>) -> Option<Self> {
        let mut section = reader.section(outer, "direct");
        let ours = &mut section;
        let url = reader.take(ours, "url", None::<String>);
        let ca_file = reader.take_optional_path(ours, "ca_file");
        let headers = reader.take(ours, "headers", Headers::default());
        let others = [("ca_file", ca_file.is_some()), ("headers", !headers.is_empty())];
        needs(reader, ours, url.is_some(), "url", &others);
        reader.close(section);
        Some(Self {
            url: url?,
            ca_file,
            headers,
        })
    }
}

/// Notes keys that say nothing because another one is missing.
fn needs<'a>(reader: &mut Reader<'a>, section: &Section<'a>, given: bool, key: &str, others: &[(&str, bool)]) {
    for (other, _) in others.iter().filter(|(_, set)| *set && !given) {
        reader.wrong(section, other, format!("has no meaning without {key}"));
    }
}

// === impl Choice ===

impl Value for Choice {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        match (raw.truth(), raw.text()) {
            (Some(truth), _) => Ok(Self(Some(truth))),
            (None, Some(AUTO)) => Ok(Self(None)),
            _ => Err(raw.not(&format!("true, false or {AUTO:?}"))),
        }
    }

    fn to_toml(&self) -> String {
        self.0.map_or_else(|| quoted(AUTO), |truth| truth.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_have_the_names_that_templates_use() {
        for name in ["auto", "tunnel", "gateway", "direct", "in-cluster"] {
            let mode = ConnectionMode::read(&Raw::Text(name)).unwrap();
            assert_eq!(sandgate_kubernetes::parse_mode(name), Some(mode), "{name}");
            assert_eq!(mode.to_toml(), quoted(name));
        }
    }
}
