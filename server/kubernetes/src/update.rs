//! Changing what can be changed.

use std::sync::Arc;

use sandgate_errors::Refusal;
use sandgate_proto::v1::{ErrorReason, Sandbox};
use sandgate_provider::{Change, Name, inside};
use serde_json::{Value, json};

use crate::{
    api::Claim,
    lease,
    lifecycle::{end_ms, ends_ms, lifecycle},
    memo::{MANAGED_BY, MANAGER, Memo, callers_labels},
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
            // What changes neither is no use of it, and renews no lease.
            if memo.started.is_some() && (change.end.is_some() || change.idle_limit.is_some()) {
                check_in_time(claim, memo)?;
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

/// Refuses to put off an end that is too near: the controller might remove the claim all the same.
fn check_in_time(claim: &Claim, memo: &Memo) -> Result<(), Refusal> {
    let is_later = match (end_ms(memo), ends_ms(claim)) {
        (Some(wanted), Some(ends)) => wanted > ends,
        (None, ends) => ends.is_some(),
        (Some(_), None) => false,
    };
    if !is_later || !lease::is_too_late(claim, memo, now_ms()) {
        return Ok(());
    }
    let message = format!(
        "it ends in less than 30 s, which can't be put off any more with {}",
        memo.driver.as_str()
    );
    Err(Refusal::invalid("settings", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        driver::Driver,
        lifecycle::at_ms,
        memo::Started,
        testing::{claim, claim_object},
    };

    /// Whether an end so many seconds from now can be moved to so many seconds from now.
    fn may_move(driver: Driver, from: u64, to: u64) -> bool {
        let memo = Memo {
            driver,
            deadline_ms: Some(now_ms() + to * 1000),
            started: Some(Started::default()),
            ..Memo::default()
        };
        let mut claim = claim("a", "u", 1, &memo);
        claim["spec"]["lifecycle"] = json!({"shutdownTime": at_ms(now_ms() + from * 1000)});
        check_in_time(&claim_object(&claim), &memo).is_ok()
    }

    #[test]
    fn an_end_that_is_near_is_not_put_off() {
        assert!(may_move(Driver::Exec, 60, 3600));
        assert!(!may_move(Driver::Exec, 20, 3600));
        assert!(may_move(Driver::Exec, 20, 10), "an earlier one is no risk");
        assert!(may_move(Driver::Runtime, 20, 3600), "it keeps its deadline itself");
    }
}
