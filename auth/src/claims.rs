//! What a token says, and what a runtime wants it to say.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::token::TokenError;

/// The longest that a token may live, from its issue to its expiry.
pub const MAX_LIFE: Duration = Duration::from_secs(60);
/// How far the clock of the server may run ahead of the runtime's. For the expiry there is no such allowance.
const LEEWAY: u64 = 5;

/// What a token says. Claims that this version does not know are passed over; a narrower right is a new [`Scope`], which
/// is refused where it is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The one runtime that it is for: `<trust domain>/<namespace>/<pod name>`.
    #[serde(rename = "aud")]
    pub audience: String,
    /// UID of that pod. A name can be another pod's later.
    #[serde(rename = "uid", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The start of the runtime that it is for. Only a token of scope [`Scope::Hello`] may leave it out, since `Hello` is
    /// how a server learns it.
    #[serde(rename = "inc", default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// What its bearer may do.
    pub scope: Scope,
    /// When it was issued, in seconds since 1970.
    #[serde(rename = "iat")]
    pub issued_at: u64,
    /// Not to be used before then, in seconds since 1970.
    #[serde(rename = "nbf", default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<u64>,
    /// When it is no longer good, in seconds since 1970.
    #[serde(rename = "exp")]
    pub expires_at: u64,
}

/// What the bearer of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Call `Hello` only.
    Hello,
    /// Call everything.
    Runtime,
}

/// What a runtime wants a token to say.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Its own name, as in [`Claims::audience`].
    pub audience: String,
    /// Its pod's UID, if it was told.
    pub pod_uid: Option<String>,
    /// Its incarnation.
    pub incarnation: String,
}

// === impl Claims ===

impl Claims {
    /// Claims that hold from now on for `life`, which is cut to [`MAX_LIFE`].
    pub fn new(audience: impl Into<String>, scope: Scope, life: Duration) -> Self {
        let issued_at = seconds(SystemTime::now());
        Self {
            audience: audience.into(),
            pod_uid: None,
            incarnation: None,
            scope,
            issued_at,
            not_before: None,
            expires_at: issued_at + life.min(MAX_LIFE).as_secs(),
        }
    }

    /// Checks everything but the signature. Whether it is for us comes first: what follows tells a caller about us.
    pub(crate) fn check(&self, expected: &Expected, now: SystemTime) -> Result<(), TokenError> {
        if self.audience != expected.audience {
            return Err(TokenError::Audience);
        }
        self.check_times(seconds(now))?;
        if let Some(own) = &expected.pod_uid {
            match &self.pod_uid {
                None => return Err(TokenError::Malformed("it names no pod UID")),
                Some(uid) if uid != own => return Err(TokenError::PodUid),
                Some(_) => {}
            }
        }
        match &self.incarnation {
            None if self.scope == Scope::Hello => Ok(()),
            None => Err(TokenError::Malformed("it names no incarnation")),
            Some(incarnation) if *incarnation != expected.incarnation => Err(TokenError::Incarnation),
            Some(_) => Ok(()),
        }
    }

    fn check_times(&self, now: u64) -> Result<(), TokenError> {
        let life = self.expires_at.checked_sub(self.issued_at).filter(|life| *life > 0);
        match life {
            None => return Err(TokenError::Malformed("it expires before it is issued")),
            Some(life) if life > MAX_LIFE.as_secs() => return Err(TokenError::LivesTooLong),
            Some(_) => {}
        }
        if self.expires_at <= now {
            return Err(TokenError::Expired);
        }
        let begins = self.issued_at.max(self.not_before.unwrap_or(0));
        if begins > now.saturating_add(LEEWAY) {
            return Err(TokenError::NotYet);
        }
        Ok(())
    }
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
