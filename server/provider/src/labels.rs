//! Labels: the callers' own words about a sandbox, with the rules of Kubernetes everywhere.

use std::collections::BTreeMap;

use sandgate_errors::Refusal;

const MOST: usize = 32;
const LONGEST_PREFIX: usize = 253;
/// Kubernetes keeps these for itself.
const RESERVED: [&str; 3] = ["kubernetes.io", "k8s.io", "x-k8s.io"];

/// Checks labels that a caller gave in `field`.
///
/// # Errors
/// INVALID_ARGUMENT that names the label and the rule.
pub fn check_labels<'a>(
    field: &'static str,
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut checked = BTreeMap::new();
    for (key, value) in labels {
        check_key(key).map_err(|rule| Refusal::invalid(field, format!("label key {key:?}: {rule}")))?;
        check_value(value)
            .map_err(|rule| Refusal::invalid(field, format!("value {value:?} of label {key:?}: {rule}")))?;
        checked.insert(key.clone(), value.clone());
    }
    if checked.len() > MOST {
        return Err(Refusal::invalid(
            field,
            format!("a sandbox has at most {MOST} labels, not {}", checked.len()),
        ));
    }
    Ok(checked)
}

/// Checks a key as `name` or `dns.name/name`.
pub(crate) fn check_key(key: &str) -> Result<(), &'static str> {
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) => {
            if !is_dns_name(prefix) {
                return Err("what stands before `/` must be a DNS name in lower case");
            }
            if RESERVED
                .iter()
                .any(|own| prefix == *own || prefix.ends_with(&format!(".{own}")))
            {
                return Err("keys under kubernetes.io, k8s.io and x-k8s.io are reserved");
            }
            name
        }
    };
    if is_word(name) { Ok(()) } else { Err(WORD_RULE) }
}

/// Checks a value: a word, or empty.
pub(crate) fn check_value(value: &str) -> Result<(), &'static str> {
    if value.is_empty() || is_word(value) {
        Ok(())
    } else {
        Err(WORD_RULE)
    }
}

const WORD_RULE: &str = "expected 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";

fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= 63
        && ends.iter().all(|c| c.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

fn is_dns_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        let letter = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        bytes.len() <= 63
            && [bytes.first(), bytes.last()].iter().all(|c| c.is_some_and(letter))
            && bytes.iter().all(|c| letter(c) || *c == b'-')
    };
    text.len() <= LONGEST_PREFIX && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_follow_kubernetes() {
        for good in ["a", "A-b_c.9", "example.com/team", "a.b-c/x"] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        let long = "a".repeat(64);
        for bad in [
            "",
            "-a",
            "a-",
            "a b",
            "ä",
            "/a",
            "a/",
            "A.com/x",
            "a/b/c",
            long.as_str(),
            "kubernetes.io/x",
            "agents.x-k8s.io/x",
        ] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
        assert_eq!(check_value(""), Ok(()));
        assert!(check_value("a b").is_err());
        let many: BTreeMap<_, _> = (0..33).map(|i| (format!("k{i}"), String::new())).collect();
        assert!(check_labels("labels", &many).is_err());
    }
}
