//! Settings to change.

use std::time::Duration;

use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::limits::Spans;

use crate::settings::Settings;

/// As little as there can be.
pub(super) fn settings() -> Settings {
    Settings {
        kubeconfig: None,
        context: None,
        namespaces: vec!["default".to_owned()],
        default_template: String::new(),
        make_pools: true,
        trust_domain: "cluster.local".to_owned(),
        keys_dir: None,
        connection: ConnectionMode::Unspecified,
        in_cluster: Some(true),
        gateway: None,
        direct: None,
        image_grace: Duration::from_secs(60),
        spans: Spans::default(),
        default_ttl: None,
        identity: "doctor".to_owned(),
    }
}
