//! Ids that a caller makes up. They are what makes repeating a call safe.

use rand::{Rng as _, distr::Alphanumeric};

// 62^20: no two callers meet.
const LENGTH: usize = 20;

/// A new id for an exec, batch, upload or writer: `[A-Za-z0-9]{20}`.
#[must_use]
pub fn new_id() -> String {
    rand::rng()
        .sample_iter(Alphanumeric)
        .take(LENGTH)
        .map(char::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_what_the_contract_takes() {
        let id = new_id();
        assert!(
            id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            "{id}"
        );
        assert_ne!(id, new_id());
    }
}
