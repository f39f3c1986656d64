//! The idle limit of sandboxes in which nothing of ours runs: the claim's own end is a lease that calls renew.
//!
//! The controller's last delete has no precondition, so a renewal in the last moment would be lost: it is made early, or
//! not at all. Of many calls one a minute renews.

use std::{sync::Arc, time::Duration};

use sandgate_errors::Refusal;
use sandgate_provider::limits::millis;
use serde_json::json;
use tokio::time;

use crate::{
    api::Claim,
    driver::Driver,
    lifecycle::{at_ms, ends_ms},
    memo::{Memo, Mode},
    shared::{NotChanged, Shared},
    view::now_ms,
    world::Key,
};

/// Between two looks at all leases.
const LOOK: Duration = Duration::from_secs(5);
/// With less than this left nothing is renewed.
const TOO_LATE: Duration = Duration::from_secs(30);
/// Renewals are at least this far apart.
const APART: Duration = Duration::from_secs(60);
/// The shortest idle limit that can be kept this way.
const SHORTEST: Duration = Duration::from_secs(180);

/// Refuses an idle limit that can't be kept for that driver.
pub(crate) fn check(driver: Driver, idle_ms: Option<u64>) -> Result<(), Refusal> {
    match idle_ms {
        Some(idle) if driver != Driver::Runtime && idle < millis(SHORTEST) => {
            let message = format!(
                "at least 3 minutes with {}, for which the server keeps it",
                driver.as_str()
            );
            Err(Refusal::invalid("idle_limit", message))
        }
        _ => Ok(()),
    }
}

/// Whether it is too late to put off the end of a sandbox that something outside of it keeps.
pub(crate) fn is_too_late(claim: &Claim, memo: &Memo, now: u64) -> bool {
    let left = ends_ms(claim).map(|ends| ends.saturating_sub(now));
    let is_kept_outside = memo.driver != Driver::Runtime && memo.started.is_some();
    is_kept_outside && left.is_some_and(|left| left <= millis(TOO_LATE))
}

/// Until when a lease should be, if it should be renewed now.
fn renewal(memo: &Memo, ends_ms: u64, used_ms: u64, renewed_ms: u64, now: u64) -> Option<u64> {
    let idle = memo.idle_ms?;
    let wanted = memo
        .deadline_ms
        .map_or(u64::MAX, |deadline| deadline)
        .min(used_ms.saturating_add(idle));
    let left = ends_ms.saturating_sub(now);
    let due = left <= (idle / 3).max(2 * millis(TOO_LATE)) && left > millis(TOO_LATE);
    (due && wanted > ends_ms && now.saturating_sub(renewed_ms) >= millis(APART)).then_some(wanted)
}

// === impl Shared ===

impl Shared {
    /// A call has reached a sandbox.
    pub(crate) fn used(&self, key: &Key) {
        self.uses().entry(key.clone()).or_default().used_ms = now_ms();
    }

    /// Renews leases for as long as the server runs.
    pub(crate) async fn keep_leases(self: Arc<Self>) {
        let mut closing = self.closing.subscribe();
        loop {
            tokio::select! {
                _ = closing.wait_for(|closing| *closing) => return,
                () = time::sleep(LOOK) => {}
            }
            let known: Vec<Key> = self.uses().keys().cloned().collect();
            for key in known {
                self.keep_lease(&key).await;
            }
        }
    }

    async fn keep_lease(&self, key: &Key) {
        let seen = self.world.look(key, |_, entry| {
            (entry.uid().to_owned(), entry.memo.clone(), ends_ms(&entry.claim))
        });
        let Some((uid, memo, ends)) = seen else {
            self.uses().remove(key);
            return;
        };
        if self.is_busy(key) {
            self.used(key);
        }
        let Some(use_) = self.uses().get(key).copied() else {
            return;
        };
        let runs = memo.started.is_some() && memo.mode == Mode::Running;
        let ends = ends.filter(|_| runs);
        let Some(until) = ends.and_then(|ends| renewal(&memo, ends, use_.used_ms, use_.renewed_ms, now_ms())) else {
            return;
        };
        let renewed = self.revise(key, &uid, |claim, memo| {
            // Another server may have been quicker, with a later one.
            let is_later = ends_ms(claim).is_none_or(|ends| ends < until);
            let renews = is_later && !is_too_late(claim, memo, now_ms());
            Ok(renews.then(|| json!({"spec": {"lifecycle": {"shutdownTime": at_ms(until)}}})))
        });
        match renewed.await {
            Ok(()) => self.uses().entry(key.clone()).or_default().renewed_ms = now_ms(),
            Err(NotChanged::Gone) => {}
            Err(NotChanged::Refused(refusal)) => tracing::warn!(sandbox = %key, %refusal, "its lease can't be renewed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    #[test]
    fn a_lease_is_renewed_at_a_third_and_never_in_the_last_moment() {
        let memo = Memo {
            idle_ms: Some(30 * MINUTE),
            deadline_ms: Some(100 * MINUTE),
            ..Memo::default()
        };
        let ends = 30 * MINUTE;
        assert_eq!(renewal(&memo, ends, 5 * MINUTE, 0, 10 * MINUTE), None, "too early");
        assert_eq!(renewal(&memo, ends, 5 * MINUTE, 0, 21 * MINUTE), Some(35 * MINUTE));
        assert_eq!(renewal(&memo, ends, 0, 0, 21 * MINUTE), None, "nobody used it");
        assert_eq!(renewal(&memo, ends, 29 * MINUTE, 0, ends - 20_000), None, "too late");
        assert_eq!(
            renewal(&memo, ends, 22 * MINUTE, 21 * MINUTE, 21 * MINUTE + 1),
            None,
            "just renewed"
        );
        let near = Memo {
            deadline_ms: Some(31 * MINUTE),
            ..memo
        };
        assert_eq!(
            renewal(&near, ends, 25 * MINUTE, 0, 26 * MINUTE),
            Some(31 * MINUTE),
            "not beyond the deadline"
        );
    }

    #[test]
    fn what_can_not_be_kept_is_refused() {
        assert!(check(Driver::Exec, Some(MINUTE)).is_err());
        assert!(check(Driver::Exec, Some(5 * MINUTE)).is_ok());
        assert!(check(Driver::Exec, None).is_ok());
        assert!(check(Driver::Runtime, Some(1)).is_ok());
    }
}
