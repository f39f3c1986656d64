//! Names of sandboxes: the same rule on every provider, so that a caller can move.

use std::{fmt, sync::Arc};

use sandgate_errors::Refusal;

/// A sandbox's name: `[a-z]([-a-z0-9]{0,38}[a-z0-9])?`.
///
/// Safe as a file name, a host name and a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

const LONGEST: usize = 40;

// === impl Name ===

impl Name {
    /// Takes a name that a caller gave in `field`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with what a name may look like.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Refusal> {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let legal = match text.as_bytes() {
            [] => false,
            bytes if bytes.len() > LONGEST => false,
            [first, ..] if !first.is_ascii_lowercase() => false,
            [.., b'-'] => false,
            bytes => bytes.iter().all(|c| inner(*c)),
        };
        if legal {
            return Ok(Self(text.into()));
        }
        let rule = "a sandbox's name has 1 to 40 lower-case letters, digits and `-`, begins with a letter and does not end with `-`";
        Err(Refusal::invalid(field, rule))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_the_contracts() {
        for good in ["a", "a1", "a-b", "x".repeat(40).as_str(), "a--b"] {
            assert_eq!(Name::parse("name", good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "A",
            "1a",
            "-a",
            "a-",
            "a_b",
            "a.b",
            "a/b",
            "ä",
            "x".repeat(41).as_str(),
            "a\n",
        ] {
            assert!(Name::parse("name", bad).is_err(), "{bad:?}");
        }
    }
}
