//! A refusal and its way over the wire.

use std::{
    collections::{BTreeMap, HashMap},
    error, fmt,
    time::Duration,
};

use sandgate_proto::v1::ErrorReason;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::reason::{code, from_name, name};

/// The domain of every `google.rpc.ErrorInfo` that Sandgate sends.
pub const DOMAIN: &str = "sandgate.dev";

// A status travels in HTTP/2 trailers, once as text (percent-encoded, up to three times as long) and once as details
// (base64, a third longer). gRPC's C core, which Python uses, takes 8 KiB of headers before it refuses some. With these
// bounds the details stay under 4 KiB and all of it under 8 KiB.
const MAX_MESSAGE: usize = 768;
const MAX_DESCRIPTION: usize = 512;
const MAX_FIELD: usize = 256;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 512;
const MAX_METADATA: usize = 1024;
const CUT: &str = "…";

/// Why a call, or one part of it, is refused.
///
/// Anything long is cut when it becomes a [`Status`], so that a status always fits in the trailers of every client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What clients decide by.
    pub reason: ErrorReason,
    /// For a person. Not to be parsed.
    pub message: String,
    /// Facts for programs, such as the offset to go on from.
    pub metadata: BTreeMap<String, String>,
    /// The request's field at fault, as in `spec.argv.args[0]`.
    pub field: Option<String>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

// === impl Refusal ===

impl Refusal {
    /// A refusal without further details.
    pub fn new(reason: ErrorReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            metadata: BTreeMap::new(),
            field: None,
            retry_after: None,
        }
    }

    /// INVALID_ARGUMENT because of one field.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorReason::InvalidArgument, message).with_field(field)
    }

    /// Adds a fact for programs. Keys match `[a-z][a-zA-Z0-9_-]{0,63}`.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl fmt::Display) -> Self {
        self.metadata.insert(key.into(), value.to_string());
        self
    }

    /// Names the request's field at fault.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Reads the refusal in a status, or nothing if another party or an unknown reason speaks: then go by the code.
    #[must_use]
    pub fn from_status(status: &Status) -> Option<Self> {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == DOMAIN)?;
        let mut refusal = Self::new(from_name(&info.reason)?, status.message());
        refusal.metadata = info.metadata.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        refusal.field = details
            .bad_request()
            .and_then(|bad| bad.field_violations.first())
            .map(|violation| violation.field.clone());
        refusal.retry_after = details.retry_info().and_then(|retry| retry.retry_delay);
        Some(refusal)
    }

    fn bounded_metadata(&self) -> HashMap<String, String> {
        let mut room = MAX_METADATA;
        let mut kept = HashMap::new();
        for (key, value) in &self.metadata {
            let (key, value) = (cut(key, MAX_KEY), cut(value, MAX_VALUE));
            let Some(left) = room.checked_sub(key.len() + value.len()) else {
                continue;
            };
            room = left;
            kept.insert(key, value);
        }
        kept
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", name(self.reason), self.message)
    }
}

impl error::Error for Refusal {}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut details = ErrorDetails::new();
        details.set_error_info(name(refusal.reason), DOMAIN, refusal.bounded_metadata());
        if let Some(field) = &refusal.field {
            details.add_bad_request_violation(cut(field, MAX_FIELD), cut(&refusal.message, MAX_DESCRIPTION));
        }
        if let Some(after) = refusal.retry_after {
            details.set_retry_info(Some(after));
        }
        Self::with_error_details(code(refusal.reason), cut(&refusal.message, MAX_MESSAGE), details)
    }
}

/// The status of a refusal without further details.
pub fn status(reason: ErrorReason, message: impl Into<String>) -> Status {
    Refusal::new(reason, message).into()
}

/// At most `max` bytes of `text`, whole characters only, marked where something is missing.
fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max - CUT.len());
    format!("{}{CUT}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_the_wire() {
        let sent = Refusal::invalid("spec.cwd", "must be absolute")
            .with("accepted", 17)
            .with("path", "/x")
            .with_retry_after(Duration::from_millis(1500));
        let status = Status::from(sent.clone());
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert_eq!(status.message(), "must be absolute");
        let violation = &status.get_details_bad_request().unwrap().field_violations[0];
        assert_eq!(
            (violation.field.as_str(), violation.description.as_str()),
            ("spec.cwd", "must be absolute")
        );
        assert_eq!(Refusal::from_status(&status), Some(sent));
    }

    #[test]
    fn a_plain_status_has_no_more_than_its_reason() {
        let status = status(ErrorReason::ExecNotFound, "no exec x");
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("EXEC_NOT_FOUND", DOMAIN));
        assert!(details.bad_request().is_none());
        assert!(details.retry_info().is_none());
    }

    #[test]
    fn other_parties_are_not_taken_for_ours() {
        assert_eq!(Refusal::from_status(&Status::unavailable("no route")), None);
        let mut details = ErrorDetails::new();
        details.set_error_info("INTERNAL", "googleapis.com", [("a".to_owned(), "b".to_owned())]);
        let status = Status::with_error_details(tonic::Code::Internal, "x", details);
        assert_eq!(Refusal::from_status(&status), None);
    }

    #[test]
    fn details_stay_small_whatever_is_put_in() {
        let long = "ß".repeat(100_000);
        let mut refusal = Refusal::new(ErrorReason::InvalidArgument, &long).with_field(&long);
        for n in 0..100 {
            refusal = refusal.with(format!("{n}{long}"), &long);
        }
        let status = Status::from(refusal.with_retry_after(Duration::MAX));
        assert!(status.details().len() < 4096, "{}", status.details().len());
        assert!(status.message().len() <= MAX_MESSAGE);
        assert!(status.message().ends_with("ß…"));
        assert!(Refusal::from_status(&status).is_some());
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcdef", 5), "ab…");
        assert_eq!(cut("aßßß", 6), "aß…");
        assert_eq!(cut("ßßßß", 6), "ß…");
    }
}
