//! Changing what can be changed.

use std::sync::Arc;

use sandgate_errors::Refusal;
use sandgate_proto::v1::{ErrorReason, Sandbox};
use sandgate_provider::{Change, Name, inside};
use serde_json::{Value, json};

use crate::{
    birth::lifecycle,
    lease,
    memo::{MANAGED_BY, MANAGER, callers_labels},
    notes::Notes,
    reach::Reach,
    shared::{RETRY_AFTER, Shared, not_found},
    view::{etag, now_ms},
    world::{Key, template_name},
};

// === impl Shared ===

impl Shared {
    pub(crate) async fn update(self: &Arc<Self>, name: &Name, change: Change) -> Result<Arc<Sandbox>, Refusal> {
        let key = self.seek(name).await.ok_or_else(|| not_found(name))?;
        let uid = self
            .world
            .look(&key, |_, entry| entry.uid().to_owned())
            .ok_or_else(|| not_found(name))?;
        self.once_started(&key).await;
        let spans = self.default_spans(&key);
        let revised = self.revise(&key, &uid, |claim, memo| {
            let now = etag(claim, memo);
            if change.etag.as_ref().is_some_and(|seen| *seen != now) {
                let message = "the sandbox has changed since; look at it again and decide anew";
                return Err(Refusal::new(ErrorReason::EtagMismatch, message).with("etag", now));
            }
            if let Some(end) = change.end {
                memo.deadline_ms = self.settings.spans.deadline(end, spans, now_ms())?;
            }
            if let Some(idle) = change.idle_limit {
                memo.idle_ms = self.settings.spans.idle(Some(idle), spans)?;
                lease::check(memo.driver, memo.idle_ms)?;
            }
            let mut patch = json!({});
            if let Some(labels) = &change.labels {
                let mut all: serde_json::Map<String, Value> = callers_labels(claim)
                    .into_keys()
                    .map(|key| (key, Value::Null))
                    .collect();
                all.extend(labels.iter().map(|(key, value)| (key.clone(), json!(value))));
                all.insert(MANAGED_BY.to_owned(), json!(MANAGER));
                patch["metadata"]["labels"] = Value::Object(all);
            }
            if memo.started.is_some() {
                patch["spec"]["lifecycle"] = lifecycle(memo);
            }
            Ok(Some(patch))
        });
        revised.await.map_err(|error| error.refusal(name))?;
        if change.end.is_some() || change.idle_limit.is_some() {
            self.tell_limits(&key, name).await?;
        }
        self.table().get(name.as_str()).ok_or_else(|| not_found(name))
    }

    fn default_spans(&self, key: &Key) -> Option<sandgate_provider::limits::DefaultSpans> {
        let template = self
            .world
            .look(key, |_, entry| template_name(&entry.memo.template).to_owned())?;
        let template = self.world.known().template(&key.namespace, &template).cloned()?;
        let mut spans = Notes::read(&template).ok()?.spans;
        spans.ttl = spans.ttl.or(self.settings.default_ttl);
        Some(spans)
    }

    /// What runs inside keeps the limits, so it must know them. One that does not run is told when it is greeted.
    async fn tell_limits(self: &Arc<Self>, key: &Key, name: &Name) -> Result<(), Refusal> {
        let limits = self.world.look(key, |facts, entry| {
            facts
                .is_greeted()
                .then_some((entry.memo.deadline_ms, entry.memo.idle_ms))
        });
        let Some((deadline, idle)) = limits.flatten() else {
            return Ok(());
        };
        let Some(reach) = self.reach(key).filter(Reach::keeps_limits) else {
            return Ok(());
        };
        inside::set_limits(&reach.link, deadline, idle, now_ms())
            .await
            .map_err(|status| {
                let message = format!(
                    "sandbox {name} could not be told its new limits ({}); they are written down, try again",
                    status.message()
                );
                Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER)
            })
    }
}
