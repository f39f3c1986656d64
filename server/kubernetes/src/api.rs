//! The objects of agent-sandbox, as far as we read and write them, in both versions of its API.
//!
//! Unknown fields are left alone: changes are merge patches that name only what is ours.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::PersistentVolumeClaimSpec,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{
    Client,
    api::ApiResource,
    core::{GroupVersionKind, Object},
};
use serde::{Deserialize, Serialize};

pub(crate) const EXTENSIONS: &str = "extensions.agents.x-k8s.io";
pub(crate) const CORE: &str = "agents.x-k8s.io";

/// Set by the controller on a claim: the sandbox that it is about to adopt. In v1alpha1 a label.
pub(crate) const ASSIGNED: &str = "agents.x-k8s.io/sandbox-name";
/// On every pod of a Sandbox.
pub(crate) const POD_LABEL: &str = "agents.x-k8s.io/sandbox-name-hash";

/// Asks for a sandbox.
pub(crate) type Claim = Object<ClaimSpec, ClaimStatus>;
/// What a claim is given.
pub(crate) type SandboxObject = Object<SandboxSpec, SandboxStatus>;
/// What sandboxes are made from.
pub(crate) type Template = Object<TemplateSpec, Nothing>;
/// Sandboxes that wait to be claimed.
pub(crate) type Pool = Object<PoolSpec, PoolStatus>;

/// The version of the API that a cluster serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// Claims name a template, and a Sandbox is suspended by `replicas: 0`.
    V1alpha1,
    /// Claims name a warm pool.
    V1beta1,
}

/// Where the objects of the served version are.
#[derive(Debug, Clone)]
pub(crate) struct Resources {
    pub(crate) version: Version,
    pub(crate) claims: ApiResource,
    pub(crate) sandboxes: ApiResource,
    pub(crate) templates: ApiResource,
    pub(crate) pools: ApiResource,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) warm_pool_ref: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox_template_ref: Option<Named>,
    /// v1alpha1: `none`, `default` or the name of a pool.
    #[serde(rename = "warmpool", skip_serializing_if = "Option::is_none")]
    pub(crate) warm_pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lifecycle: Option<Lifecycle>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) env: Vec<ClaimEnv>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volume_claim_templates: Vec<VolumeClaimTemplate>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lifecycle {
    pub(crate) shutdown_time: Option<Time>,
    pub(crate) ttl_seconds_after_finished: Option<i32>,
    pub(crate) shutdown_policy: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClaimEnv {
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumeClaimTemplate {
    pub(crate) metadata: Named,
    pub(crate) spec: PersistentVolumeClaimSpec,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ClaimStatus {
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
    #[serde(default)]
    pub(crate) sandbox: Bound,
}

/// The Sandbox that a claim was given.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Bound {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default, rename = "podIPs")]
    pub(crate) pod_ips: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxSpec {
    pub(crate) operating_mode: Option<String>,
    pub(crate) replicas: Option<i32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SandboxStatus {
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateSpec {
    pub(crate) volume_claim_templates_policy: Option<String>,
    pub(crate) env_vars_injection_policy: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Nothing {}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolSpec {
    pub(crate) replicas: Option<i32>,
    pub(crate) sandbox_template_ref: Named,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolStatus {
    #[serde(default)]
    pub(crate) ready_replicas: i32,
}

/// Why there is nothing to drive.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The API server does not answer, or not as one.
    #[error("can't ask the API server what it serves: {0}")]
    Api(#[from] kube::Error),
    /// Not installed.
    #[error(
        "the cluster does not serve {EXTENSIONS}: install the agent-sandbox controller with its extensions (CRDs and --extensions)"
    )]
    Absent,
    /// Too old or too new.
    #[error("the cluster serves {EXTENSIONS} in {0}; this server knows v1beta1 and v1alpha1")]
    Version(String),
}

// === impl Version ===

impl Version {
    /// The newest that both know.
    pub(crate) async fn discover(client: &Client) -> Result<Self, DiscoveryError> {
        let groups = client.list_api_groups().await?;
        let group = groups.groups.iter().find(|group| group.name == EXTENSIONS);
        let served: Vec<&str> = group
            .ok_or(DiscoveryError::Absent)?
            .versions
            .iter()
            .map(|version| version.version.as_str())
            .collect();
        Self::newest(&served).ok_or_else(|| DiscoveryError::Version(served.join(", ")))
    }

    fn newest(served: &[&str]) -> Option<Self> {
        [Self::V1beta1, Self::V1alpha1]
            .into_iter()
            .find(|version| served.contains(&version.as_str()))
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V1alpha1 => "v1alpha1",
            Self::V1beta1 => "v1beta1",
        }
    }
}

// === impl Resources ===

impl Resources {
    pub(crate) fn of(version: Version) -> Self {
        let resource = |group: &str, kind: &str, plural: &str| {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version.as_str(), kind), plural)
        };
        Self {
            version,
            claims: resource(EXTENSIONS, "SandboxClaim", "sandboxclaims"),
            sandboxes: resource(CORE, "Sandbox", "sandboxes"),
            templates: resource(EXTENSIONS, "SandboxTemplate", "sandboxtemplates"),
            pools: resource(EXTENSIONS, "SandboxWarmPool", "sandboxwarmpools"),
        }
    }
}

/// The condition of that type.
pub(crate) fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn is_true(condition: Option<&Condition>) -> bool {
    condition.is_some_and(|condition| condition.status == "True")
}

/// The Sandbox that a claim has for certain. The controller names one before it is the claim's.
pub(crate) fn bound(claim: &Claim) -> Option<&str> {
    let name = claim.status.as_ref().map(|status| status.sandbox.name.as_str());
    name.filter(|name| !name.is_empty())
}

/// Whether a bound claim took a sandbox that was waiting.
pub(crate) fn is_warm(claim: &Claim) -> bool {
    let noted =
        |notes: &Option<BTreeMap<String, String>>| notes.as_ref().and_then(|notes| notes.get(ASSIGNED)).cloned();
    let assigned = noted(&claim.metadata.annotations).or_else(|| noted(&claim.metadata.labels));
    let name = bound(claim);
    // A cold one has its claim's name.
    name.is_some() && (assigned.as_deref() == name || name != claim.metadata.name.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_is_served_is_taken() {
        assert_eq!(Version::newest(&["v1alpha1", "v1beta1"]), Some(Version::V1beta1));
        assert_eq!(Version::newest(&["v1alpha1"]), Some(Version::V1alpha1));
        assert_eq!(Version::newest(&["v2"]), None);
    }

    #[test]
    fn a_claim_is_warm_when_it_took_what_was_waiting() {
        let claim = |status: serde_json::Value, annotations: serde_json::Value| -> Claim {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "mine", "annotations": annotations},
                "spec": {"warmPoolRef": {"name": "pool"}},
                "status": status,
            }))
            .unwrap()
        };
        let none = serde_json::json!({});
        assert!(!is_warm(&claim(none.clone(), none.clone())));
        assert!(!is_warm(&claim(
            serde_json::json!({"sandbox": {"name": "mine"}}),
            none.clone()
        )));
        // Noted, and not adopted yet.
        assert!(!is_warm(&claim(
            none.clone(),
            serde_json::json!({ASSIGNED: "pool-abc"})
        )));
        let adopted = serde_json::json!({"sandbox": {"name": "pool-abc"}});
        assert!(is_warm(&claim(
            adopted.clone(),
            serde_json::json!({ASSIGNED: "pool-abc"})
        )));
        assert!(is_warm(&claim(adopted, none)));
    }
}
