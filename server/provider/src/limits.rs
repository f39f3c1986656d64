//! When a sandbox ends and how long it may idle: what the caller asked, the template says and the server allows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;
use sandgate_errors::Refusal;

use crate::provider::End;

/// The longest that callers may ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spans {
    /// The longest life. `None`: any, also for ever.
    pub max_ttl: Option<Duration>,
    /// The longest idle limit. `None`: any, also for ever.
    pub max_idle: Option<Duration>,
}

/// What a template says for callers that ask for nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DefaultSpans {
    /// How long a sandbox lives. `None`: as long as the server allows.
    pub ttl: Option<Duration>,
    /// How long it may idle. `None`: for ever.
    pub idle: Option<Duration>,
}

// === impl Spans ===

impl Spans {
    /// The deadline in milliseconds since 1970; `None`: never.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when it is over, or later than the server allows.
    pub fn deadline(&self, end: End, template: Option<DefaultSpans>, now_ms: u64) -> Result<Option<u64>, Refusal> {
        let ttl = match end {
            End::Default => {
                let default = template.and_then(|template| template.ttl);
                return Ok(shorter(default, self.max_ttl).map(|ttl| after(now_ms, ttl)));
            }
            End::Never => {
                let Some(max) = self.max_ttl else {
                    return Ok(None);
                };
                let message = format!("every sandbox has an end here, at most {} from now", ForPeople(max));
                return Err(Refusal::invalid("deadline", message));
            }
            End::After(ttl) if ttl.is_zero() => return Err(Refusal::invalid("ttl", "must be more than 0")),
            End::After(ttl) => ttl,
            End::At(at) => {
                let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
                let ttl = at.saturating_sub(Duration::from_millis(now_ms));
                if ttl.is_zero() {
                    return Err(Refusal::invalid("deadline", "must be a time that is to come"));
                }
                ttl
            }
        };
        let field = if matches!(end, End::After(_)) {
            "ttl"
        } else {
            "deadline"
        };
        match self.max_ttl {
            Some(max) if ttl > max => {
                let message = format!(
                    "at most {} from now: this is the server's limits.max_ttl",
                    ForPeople(max)
                );
                Err(Refusal::invalid(field, message))
            }
            _ => Ok(Some(after(now_ms, ttl))),
        }
    }

    /// The idle limit in milliseconds; `None`: for ever.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when it is longer than the server allows.
    pub fn idle(&self, asked: Option<Duration>, template: Option<DefaultSpans>) -> Result<Option<u64>, Refusal> {
        let default = template.map(|template| template.idle);
        let Some(asked) = asked else {
            let default = default.flatten();
            return Ok(default.map(|idle| millis(self.max_idle.map_or(idle, |max| idle.min(max)))));
        };
        // Who may idle for ever when asking nothing may also ask for it.
        let for_ever = asked.is_zero();
        match self.max_idle {
            Some(max) if asked > max || (for_ever && default != Some(None)) => {
                let message = format!("at most {}: this is the server's limits.max_idle", ForPeople(max));
                Err(Refusal::invalid("idle_limit", message))
            }
            _ => Ok((!for_ever).then(|| millis(asked).max(1))),
        }
    }
}

fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn after(now_ms: u64, span: Duration) -> u64 {
    now_ms.saturating_add(millis(span))
}

/// Whole milliseconds, or the most that there is room for.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The time that many milliseconds after 1970, or the last that there is room for.
#[must_use]
pub fn time(ms: u64) -> SystemTime {
    // The last second of the year 9999, which is the last that a protobuf timestamp has.
    const LAST: u64 = 253_402_300_799_000;
    UNIX_EPOCH + Duration::from_millis(ms.min(LAST))
}

/// The same for messages.
#[must_use]
pub fn timestamp(ms: u64) -> Timestamp {
    time(ms).into()
}

/// A span for messages, or the longest that there is room for.
#[must_use]
pub fn duration(span: Duration) -> prost_types::Duration {
    span.try_into().unwrap_or(prost_types::Duration {
        seconds: 315_576_000_000,
        nanos: 0,
    })
}

/// A span for a person.
struct ForPeople(Duration);

impl std::fmt::Display for ForPeople {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        for (unit, each) in [("d", 86_400), ("h", 3600), ("m", 60)] {
            if seconds >= each && seconds.is_multiple_of(each) {
                return write!(f, "{}{unit}", seconds / each);
            }
        }
        write!(f, "{seconds}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NOW: u64 = 1_700_000_000_000;

    fn limits(max_ttl: Option<Duration>, max_idle: Option<Duration>) -> Spans {
        Spans { max_ttl, max_idle }
    }

    #[test]
    fn a_deadline_is_asked_for_or_the_templates_and_never_too_late() {
        let capped = limits(Some(2 * HOUR), None);
        let template = DefaultSpans {
            ttl: Some(HOUR),
            idle: None,
        };
        let deadline = |limits: &Spans, end| limits.deadline(end, Some(template), NOW);
        let hours = |n: u64| NOW + n * 3_600_000;
        assert_eq!(deadline(&capped, End::Default), Ok(Some(hours(1))));
        assert_eq!(deadline(&capped, End::After(2 * HOUR)), Ok(Some(hours(2))));
        assert_eq!(deadline(&capped, End::At(time(hours(2)))), Ok(Some(hours(2))));
        let refused = deadline(&capped, End::After(2 * HOUR + Duration::from_millis(1))).unwrap_err();
        assert!(refused.message.contains("2h"), "{}", refused.message);
        assert_eq!(refused.field.as_deref(), Some("ttl"));
        for wrong in [
            End::Never,
            End::At(time(hours(3))),
            End::At(time(NOW)),
            End::After(Duration::ZERO),
        ] {
            assert!(deadline(&capped, wrong).is_err(), "{wrong:?}");
        }
        let free = limits(None, None);
        assert_eq!(deadline(&free, End::Never), Ok(None));
        assert_eq!(deadline(&free, End::After(Duration::MAX)), Ok(Some(u64::MAX)));
    }

    #[test]
    fn a_template_lives_no_longer_than_the_server_allows() {
        let mut template = DefaultSpans::default();
        let capped = limits(Some(HOUR), None);
        for ttl in [None, Some(5 * HOUR)] {
            template.ttl = ttl;
            assert_eq!(capped.deadline(End::Default, Some(template), 0), Ok(Some(3_600_000)));
        }
        template.ttl = None;
        assert_eq!(limits(None, None).deadline(End::Default, Some(template), 0), Ok(None));
    }

    #[test]
    fn for_ever_may_be_asked_for_where_it_is_had_without_asking() {
        let capped = limits(None, Some(HOUR));
        let mut template = DefaultSpans::default();
        assert_eq!(capped.idle(None, Some(template)), Ok(None));
        assert_eq!(capped.idle(Some(Duration::ZERO), Some(template)), Ok(None));
        assert!(capped.idle(Some(Duration::ZERO), None).is_err());
        assert!(capped.idle(Some(2 * HOUR), Some(template)).is_err());
        template.idle = Some(2 * HOUR);
        assert_eq!(capped.idle(None, Some(template)), Ok(Some(3_600_000)));
        assert!(capped.idle(Some(Duration::ZERO), Some(template)).is_err());
        assert_eq!(capped.idle(Some(HOUR), Some(template)), Ok(Some(3_600_000)));
        assert_eq!(limits(None, None).idle(Some(Duration::ZERO), Some(template)), Ok(None));
    }

    #[test]
    fn the_longest_spans_can_be_said() {
        assert_eq!(duration(Duration::MAX).seconds, 315_576_000_000);
        assert_eq!(duration(Duration::from_millis(1500)).nanos, 500_000_000);
    }

    #[test]
    fn the_last_time_can_be_said() {
        assert_eq!(prost_types::Timestamp::from(time(u64::MAX)).seconds, 253_402_300_799);
    }
}
