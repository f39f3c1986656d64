//! What the server must remember of a sandbox: one annotation on its claim, so that any replica knows it.

use std::{collections::BTreeMap, time::Duration};

use sandgate_proto::v1::{
    ColdReason, ConnectionMode, EndCause, IncarnationEnd, StartKind, StartReport, StartStep, Volume, WarmPool,
};
use sandgate_provider::limits::{duration, timestamp};
use serde::{Deserialize, Serialize};

use crate::{api::Claim, driver::Driver};

/// The annotation. A server that does not know a later form leaves such claims alone.
pub(crate) const MEMO: &str = "sandgate.dev/v1";
/// By which our claims are found.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(crate) const MANAGER: &str = "sandgate";

/// What is written down. Names are short: it is on every claim, and watched by every replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Memo {
    /// What the caller named. A repeat of the call must name the same.
    pub(crate) template: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pool: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<VolumeMemo>,
    pub(crate) driver: Driver,
    /// The connection mode that the caller asked for, by its number.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) connection: i32,
    /// The server that made it, for people.
    pub(crate) creator: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle_ms: Option<u64>,
    /// The environment that the caller gave, sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) env: Option<String>,
    /// The environment is in the claim itself, because what runs inside can't be given one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) env_in_claim: bool,
    /// What is wanted of it.
    pub(crate) mode: Mode,
    /// When what is to sleep has had its time to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) asleep_by_ms: Option<u64>,
    /// The pool that it was to come from, as it was then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool_found: Option<PoolMemo>,
    /// The incarnation that was greeted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started: Option<Started>,
    /// How the one before it ended, or this one if nothing runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_end: Option<Ended>,
}

/// What is wanted of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Mode {
    /// That it runs.
    #[default]
    Running,
    /// That it sleeps.
    Suspended,
    /// That it wakes up. Whoever sees it sleep then may wake it.
    Waking,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeMemo {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) class: String,
}

/// A start that a server has seen through.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Started {
    pub(crate) incarnation: String,
    /// The pod that it runs in, and how often its container was started before.
    pub(crate) pod_uid: String,
    pub(crate) restarts: i32,
    pub(crate) version: String,
    pub(crate) capabilities: Vec<String>,
    pub(crate) kind: Kind,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) cold_reason: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    pub(crate) total_us: u64,
    pub(crate) steps: Vec<(String, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<PoolMemo>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Kind {
    #[default]
    Unknown,
    Warm,
    Cold,
    Resumed,
    /// Replaced by the cluster, which nobody asked for.
    Replaced,
}

/// A pool as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolMemo {
    pub(crate) name: String,
    pub(crate) ready: u32,
    pub(crate) wanted: u32,
}

/// How an incarnation ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Ended {
    pub(crate) incarnation: String,
    pub(crate) cause: i32,
    pub(crate) message: String,
    pub(crate) at_ms: u64,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

// === impl Memo ===

impl Memo {
    /// What a claim says. `None`: it is not ours, or of a form that we do not know.
    pub(crate) fn of(claim: &Claim) -> Option<Self> {
        let labels = claim.metadata.labels.as_ref()?;
        (labels.get(MANAGED_BY)? == MANAGER).then_some(())?;
        serde_json::from_str(claim.metadata.annotations.as_ref()?.get(MEMO)?).ok()
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The same with its first start. `None`: it has one, or is not to run.
    pub(crate) fn with_start(&self, started: Started) -> Option<Self> {
        let is_first = self.started.is_none() && self.mode == Mode::Running;
        is_first.then(|| Self {
            started: Some(started),
            ..self.clone()
        })
    }

    pub(crate) fn connection_mode(&self) -> ConnectionMode {
        ConnectionMode::try_from(self.connection).unwrap_or_default()
    }
}

// === impl VolumeMemo ===

impl From<&Volume> for VolumeMemo {
    fn from(volume: &Volume) -> Self {
        Self {
            name: volume.name.clone(),
            bytes: volume.bytes,
            class: volume.storage_class.clone(),
        }
    }
}

// === impl Started ===

impl Started {
    pub(crate) fn report(&self) -> StartReport {
        let step = |(name, micros): &(String, u64)| StartStep {
            name: name.clone(),
            duration: Some(duration(Duration::from_micros(*micros))),
        };
        let kind = match self.kind {
            Kind::Unknown => StartKind::Unspecified,
            Kind::Warm => StartKind::Warm,
            Kind::Cold | Kind::Replaced => StartKind::Cold,
            Kind::Resumed => StartKind::Resumed,
        };
        StartReport {
            kind: kind.into(),
            cold_reason: ColdReason::try_from(self.cold_reason).unwrap_or_default().into(),
            message: self.message.clone(),
            total: Some(duration(Duration::from_micros(self.total_us))),
            steps: self.steps.iter().map(step).collect(),
            pool: self.pool.as_ref().map(|pool| WarmPool {
                name: pool.name.clone(),
                ready: pool.ready,
                wanted: pool.wanted,
            }),
        }
    }
}

// === impl Ended ===

impl From<&Ended> for IncarnationEnd {
    fn from(ended: &Ended) -> Self {
        Self {
            incarnation: ended.incarnation.clone(),
            cause: EndCause::try_from(ended.cause).unwrap_or_default().into(),
            message: ended.message.clone(),
            ended_at: Some(timestamp(ended.at_ms)),
        }
    }
}

/// The caller's labels of a claim: all that the cluster and we do not keep for ourselves.
pub(crate) fn callers_labels(claim: &Claim) -> BTreeMap<String, String> {
    let labels = claim.metadata.labels.iter().flatten();
    labels
        .filter(|(key, _)| !is_reserved(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

pub(crate) fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return false;
    };
    ["kubernetes.io", "k8s.io", "x-k8s.io"]
        .iter()
        .any(|reserved| domain == *reserved || domain.ends_with(&format!(".{reserved}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(labels: serde_json::Value, annotations: serde_json::Value) -> Claim {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "labels": labels, "annotations": annotations},
            "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_a_later_form_is_not_guessed() {
        let memo = Memo {
            template: "python".to_owned(),
            deadline_ms: Some(5),
            started: Some(Started {
                incarnation: "i".to_owned(),
                steps: vec![("claim".to_owned(), 7)],
                ..Started::default()
            }),
            ..Memo::default()
        };
        let ours = serde_json::json!({MANAGED_BY: MANAGER});
        let found = Memo::of(&claim(ours.clone(), serde_json::json!({MEMO: memo.to_json()})));
        assert_eq!(found.as_ref(), Some(&memo));
        let later = serde_json::json!({MEMO: r#"{"mode": "hibernated"}"#});
        assert_eq!(Memo::of(&claim(ours.clone(), later)), None);
        // What a later server adds is no reason to refuse.
        let more = serde_json::json!({MEMO: r#"{"template": "t", "tenant": "x"}"#});
        assert_eq!(Memo::of(&claim(ours, more)).unwrap().template, "t");
        let foreign = serde_json::json!({MEMO: memo.to_json()});
        assert_eq!(Memo::of(&claim(serde_json::json!({"a": "b"}), foreign)), None);
    }

    #[test]
    fn callers_see_their_own_labels() {
        let labels = serde_json::json!({
            MANAGED_BY: MANAGER, "team": "x", "agents.x-k8s.io/created-by": "y", "a.example/b": "c", "k8s.io/z": "z",
        });
        let seen = callers_labels(&claim(labels, serde_json::json!({})));
        let keys: Vec<_> = seen.keys().map(String::as_str).collect();
        assert_eq!(keys, ["a.example/b", "team"]);
    }
}
