//! What a caller asks for, checked against the contract before any provider sees it.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use prost_types::{FieldMask, Timestamp};
use sandgate_errors::Refusal;
use sandgate_proto::v1::{self as pb, ConnectionMode, EnvVar, ErrorReason, SandboxSettings, Volume};
use sandgate_provider::{Change, End, Name, NewSandbox, check_labels};

/// Load balancers cut calls that are silent for a minute.
pub(super) const DEFAULT_WAIT: Duration = Duration::from_secs(50);
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);
const SUSPEND_GRACE: Duration = Duration::from_secs(5);
const MAX_GRACE: Duration = Duration::from_secs(5 * 60);
const MAX_ENV_BYTES: usize = 256 << 10;
const MAX_VOLUMES: usize = 16;
/// What `google.protobuf.Duration` and `Timestamp` are declared to hold. More would overflow sums of times.
const MAX_SPAN: Duration = Duration::from_secs(315_576_000_000);
const MAX_SECONDS: i64 = 253_402_300_799;

const MADE_UP_PREFIX: &str = "sandbox-";
const MADE_UP_LETTERS: usize = 10;

/// The sandbox that a caller wants.
pub(super) fn wanted(request: pb::CreateRequest) -> Result<NewSandbox, Refusal> {
    let unnamed = request.name.is_empty();
    let name = if unnamed {
        made_up_name()?
    } else {
        Name::parse("name", &request.name)?
    };
    let end = match request.end {
        None => End::Default,
        Some(pb::create_request::End::Ttl(ttl)) => End::After(ttl_of("ttl", ttl)?),
        Some(pb::create_request::End::Deadline(at)) => End::At(deadline_of("deadline", at)?),
    };
    check_env(&request.env)?;
    check_volumes(&request.volumes)?;
    Ok(NewSandbox {
        name,
        unnamed,
        template: request.template,
        labels: check_labels("labels", &request.labels)?,
        env: request.env,
        end,
        idle_limit: span("idle_limit", request.idle_limit)?,
        warm_pool: request.warm_pool,
        connection_mode: ConnectionMode::try_from(request.connection_mode).map_err(|unknown| {
            let message = format!("{} is no connection mode that this server knows", unknown.0);
            Refusal::invalid("connection_mode", message)
        })?,
        volumes: request.volumes,
    })
}

/// The change that a caller wants: what the mask names, and nothing else.
pub(super) fn change(
    mask: Option<FieldMask>,
    settings: Option<SandboxSettings>,
    etag: String,
) -> Result<Change, Refusal> {
    const EXPECTED: &str = "expected one or more of ttl or deadline, idle_limit, labels";
    use pb::sandbox_settings::End as Wanted;
    let settings = settings.unwrap_or_default();
    let paths: BTreeSet<String> = mask.unwrap_or_default().paths.into_iter().collect();
    if paths.is_empty() {
        let message = format!("must name what to change: {EXPECTED}");
        return Err(Refusal::invalid("update_mask", message));
    }
    if paths.contains("ttl") && paths.contains("deadline") {
        return Err(Refusal::invalid("update_mask", "names both ttl and deadline"));
    }
    let mut change = Change {
        etag: Some(etag).filter(|etag| !etag.is_empty()),
        ..Change::default()
    };
    for path in &paths {
        match (path.as_str(), settings.end) {
            ("ttl" | "deadline", None) => change.end = Some(End::Never),
            ("ttl", Some(Wanted::Ttl(ttl))) => change.end = Some(End::After(ttl_of("settings.ttl", ttl)?)),
            ("deadline", Some(Wanted::Deadline(at))) => {
                change.end = Some(End::At(deadline_of("settings.deadline", at)?));
            }
            // Taken by its word this would remove the deadline, which nobody means who sets one.
            ("ttl" | "deadline", Some(_)) => {
                let message = format!("names {path}, and the settings hold the other of ttl and deadline");
                return Err(Refusal::invalid("update_mask", message));
            }
            ("idle_limit", _) => {
                change.idle_limit = Some(span("settings.idle_limit", settings.idle_limit)?.unwrap_or_default());
            }
            ("labels", _) => change.labels = Some(check_labels("settings.labels", &settings.labels)?),
            _ => {
                let message = format!("{path:?} can't be changed: {EXPECTED}");
                return Err(Refusal::invalid("update_mask", message));
            }
        }
    }
    Ok(change)
}

/// How long to wait until a sandbox is ready. Zero: not at all.
pub(super) fn wait(no_wait: bool, max_wait: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    let wait = span("max_wait", max_wait)?.unwrap_or(DEFAULT_WAIT);
    if wait > MAX_WAIT {
        return Err(Refusal::invalid("max_wait", "at most 1 hour"));
    }
    Ok(if no_wait { Duration::ZERO } else { wait })
}

/// The time between TERM and KILL, if the caller gives any.
pub(super) fn grace(grace: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    let grace = span("grace", grace)?;
    if grace.is_some_and(|grace| grace > MAX_GRACE) {
        return Err(Refusal::invalid("grace", "at most 5 minutes"));
    }
    Ok(grace)
}

/// The same for Suspend, which gives some by itself.
pub(super) fn suspend_grace(grace: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    Ok(self::grace(grace)?.unwrap_or(SUSPEND_GRACE))
}

fn span(field: &'static str, span: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    let Some(span) = span else { return Ok(None) };
    match Duration::try_from(span) {
        Ok(span) if span <= MAX_SPAN => Ok(Some(span)),
        Ok(_) => Err(Refusal::invalid(field, "out of range")),
        Err(_) => Err(Refusal::invalid(field, "must not be negative")),
    }
}

fn ttl_of(field: &'static str, ttl: prost_types::Duration) -> Result<Duration, Refusal> {
    span(field, Some(ttl))?
        .filter(|ttl| !ttl.is_zero())
        .ok_or_else(|| Refusal::invalid(field, "must be more than 0"))
}

fn deadline_of(field: &'static str, at: Timestamp) -> Result<SystemTime, Refusal> {
    let out_of_range = || Refusal::invalid(field, "out of range");
    if at.seconds > MAX_SECONDS {
        return Err(out_of_range());
    }
    let at = SystemTime::try_from(at).map_err(|_| out_of_range())?;
    if at <= SystemTime::now() {
        return Err(Refusal::invalid(field, "must be in the future"));
    }
    Ok(at)
}

fn check_env(env: &[EnvVar]) -> Result<(), Refusal> {
    let mut bytes = 0;
    for var in env {
        if var.name.is_empty() || var.name.contains(['=', '\0']) {
            let rule = "a name is not empty and holds neither `=` nor NUL";
            return Err(Refusal::invalid("env.name", rule));
        }
        let value = if var.value_raw.is_empty() {
            var.value.as_bytes()
        } else {
            &var.value_raw
        };
        // Values are secrets: no message shows one.
        if value.contains(&0) {
            let message = format!("the value of {} must not hold a NUL byte", var.name);
            return Err(Refusal::invalid("env.value", message));
        }
        bytes += var.name.len() + value.len();
    }
    if bytes > MAX_ENV_BYTES {
        let message = format!("names and values are at most 256 KiB together, not {bytes} bytes");
        return Err(Refusal::invalid("env", message));
    }
    Ok(())
}

fn check_volumes(volumes: &[Volume]) -> Result<(), Refusal> {
    if volumes.len() > MAX_VOLUMES {
        let message = format!("a sandbox has at most {MAX_VOLUMES} volumes, not {}", volumes.len());
        return Err(Refusal::invalid("volumes", message));
    }
    let mut names = BTreeSet::new();
    for volume in volumes {
        if volume.name.is_empty() || !names.insert(&volume.name) {
            return Err(Refusal::invalid(
                "volumes.name",
                "each volume has a name of its own, not empty",
            ));
        }
        if volume.bytes == 0 {
            return Err(Refusal::invalid("volumes.bytes", "must be more than 0"));
        }
    }
    Ok(())
}

/// A name that nobody else has made up: 36^10 are enough.
fn made_up_name() -> Result<Name, Refusal> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let internal = |error| Refusal::new(ErrorReason::Internal, format!("no random bytes: {error}"));
    let mut random = [0; MADE_UP_LETTERS];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(internal)?;
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    let name: String = MADE_UP_PREFIX.chars().chain(random.iter().map(letter)).collect();
    Name::parse("name", &name)
}

#[cfg(test)]
mod tests;
