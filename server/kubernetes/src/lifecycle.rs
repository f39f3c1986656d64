//! A claim's own end, which the controller keeps with no server alive: of a new claim soon, of one that was started when
//! what runs inside can't end it.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::{Value, json};

use crate::{
    api::{Claim, Lifecycle},
    driver::Driver,
    memo::{Memo, Mode},
    view::{now_ms, unix_ms},
};

/// How long a claim lives of which nobody has seen that it is ready. Its maker extends it while it waits.
pub(crate) const PROVISIONAL: Duration = Duration::from_secs(120);
/// What runs inside ends the sandbox at its deadline. The claim's own end comes after it, for when nothing runs.
const AFTER_DEADLINE: u64 = 5_000;

/// When a claim ends by itself that was started once. `None`: never.
pub(crate) fn end_ms(memo: &Memo) -> Option<u64> {
    match memo.driver {
        Driver::Runtime => memo.deadline_ms.map(|deadline| deadline.saturating_add(AFTER_DEADLINE)),
        // Nothing inside knows of an end: what the idle limit leaves is a lease, which calls renew. One that sleeps is
        // not idle.
        _ => {
            let runs = memo.mode == Mode::Running;
            let lease = memo.idle_ms.filter(|_| runs).map(|idle| now_ms().saturating_add(idle));
            [lease, memo.deadline_ms].into_iter().flatten().min()
        }
    }
}

/// The same as the claim has it.
pub(crate) fn lifecycle(memo: &Memo) -> Value {
    let asleep = memo.mode != Mode::Running;
    json!({
        "shutdownTime": end_ms(memo).map(at_ms),
        // What ends while it is put to sleep must not take the claim with it.
        "ttlSecondsAfterFinished": if asleep { Value::Null } else { json!(0) },
        "shutdownPolicy": "Delete",
    })
}

/// When a claim ends by itself, as it is written now.
pub(crate) fn ends_ms(claim: &Claim) -> Option<u64> {
    let lifecycle = claim.spec.lifecycle.as_ref();
    lifecycle
        .and_then(|lifecycle| lifecycle.shutdown_time.as_ref())
        .map(unix_ms)
}

/// Whether a claim goes when what runs in its pod ends.
pub(crate) fn ends_with_its_pod(claim: &Claim) -> bool {
    let ttl = |lifecycle: &Lifecycle| lifecycle.ttl_seconds_after_finished;
    claim.spec.lifecycle.as_ref().and_then(ttl).is_some()
}

/// A time for Kubernetes, which has whole seconds: not before `ms`.
pub(crate) fn at_ms(ms: u64) -> Time {
    let seconds = i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX);
    // The last second of the year 9999.
    Time(Timestamp::from_second(seconds.min(253_402_207_200)).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_early() {
        assert_eq!(at_ms(1_700_000_000_001).0.as_second(), 1_700_000_001);
        assert!(at_ms(u64::MAX).0 <= Timestamp::MAX);
    }

    #[test]
    fn what_keeps_its_own_limits_ends_before_its_claim_and_nothing_idles_in_its_sleep() {
        let memo = |driver, mode| Memo {
            driver,
            mode,
            deadline_ms: Some(9_000_000_000_000),
            idle_ms: Some(200_000),
            ..Memo::default()
        };
        assert_eq!(end_ms(&memo(Driver::Runtime, Mode::Running)), Some(9_000_000_005_000));
        let lease = end_ms(&memo(Driver::Exec, Mode::Running)).unwrap();
        assert!(lease <= now_ms() + 200_000, "{lease}");
        assert_eq!(end_ms(&memo(Driver::Exec, Mode::Suspended)), Some(9_000_000_000_000));
        let ttl = |mode| lifecycle(&memo(Driver::Runtime, mode))["ttlSecondsAfterFinished"].clone();
        assert_eq!((ttl(Mode::Running), ttl(Mode::Waking)), (json!(0), Value::Null));
    }
}
