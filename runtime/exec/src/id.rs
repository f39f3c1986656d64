//! Ids that callers make up: of execs, batches and uploads.

use sandgate_errors::Refusal;
use sha2::{Digest as _, Sha256};

/// What is kept of a spent id: short, and as good as the id.
pub type Digest = [u8; 16];

const MAX_ID: usize = 64;

/// Checks an id against the grammar that all of ours share.
///
/// # Errors
/// `INVALID_ARGUMENT`, naming the field.
pub fn check_id(field: &str, id: &str) -> Result<(), Refusal> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(legal) {
        return Err(Refusal::invalid(field, "an id matches [A-Za-z0-9_-]{1,64}"));
    }
    Ok(())
}

/// The digest of an id.
#[must_use]
pub fn digest(id: &str) -> Digest {
    let mut short = [0; 16];
    short.copy_from_slice(&Sha256::digest(id)[..16]);
    short
}
