//! `KEY=VALUE` and its kin, as labels and environment variables are given.

use std::{collections::HashMap, env};

use sandgate::v1::EnvVar;

/// A change of one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LabelChange {
    /// `k=v`.
    Set(String, String),
    /// `k-`.
    Remove(String),
}

/// Reads `k=v`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("expected KEY=VALUE".into()),
    }
}

/// Reads `k=v` or `k-`.
pub(crate) fn label_change(text: &str) -> Result<LabelChange, String> {
    match (label(text), text.strip_suffix('-')) {
        (Ok((key, value)), _) => Ok(LabelChange::Set(key, value)),
        (Err(_), Some(key)) if !key.is_empty() && !key.contains('=') => Ok(LabelChange::Remove(key.into())),
        _ => Err("expected KEY=VALUE, or KEY- to remove it".into()),
    }
}

/// Reads `K=V`, or `K` for the value that it has here.
pub(crate) fn env(text: &str) -> Result<(String, String), String> {
    env_from(text, &|name| env::var(name).ok())
}

fn env_from(text: &str, var: &dyn Fn(&str) -> Option<String>) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("expected NAME=VALUE".into()),
        Some((name, value)) => Ok((name.into(), value.into())),
        None if text.is_empty() => Err("expected NAME=VALUE".into()),
        None => var(text)
            .map(|value| (text.into(), value))
            .ok_or_else(|| format!("{text} is not set here: give it as {text}=VALUE")),
    }
}

/// The variables as they are sent.
pub(crate) fn env_vars(pairs: Vec<(String, String)>) -> Vec<EnvVar> {
    pairs
        .into_iter()
        .map(|(name, value)| EnvVar {
            name,
            value,
            ..EnvVar::default()
        })
        .collect()
}

/// The labels after these changes, in their order.
pub(crate) fn change(mut labels: HashMap<String, String>, changes: &[LabelChange]) -> HashMap<String, String> {
    for change in changes {
        match change {
            LabelChange::Set(key, value) => labels.insert(key.clone(), value.clone()),
            LabelChange::Remove(key) => labels.remove(key),
        };
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.into(), value.into())
    }

    #[test]
    fn labels_are_read() {
        assert_eq!(label("team=red"), Ok(pair("team", "red")));
        assert_eq!(label("team="), Ok(pair("team", "")));
        assert_eq!(label("a=b=c"), Ok(pair("a", "b=c")));
        assert!(label("team").is_err() && label("=x").is_err() && label("").is_err());
    }

    #[test]
    fn changes_set_and_remove_in_order() {
        assert_eq!(label_change("team-"), Ok(LabelChange::Remove("team".into())));
        assert_eq!(
            label_change("team=a-"),
            Ok(LabelChange::Set("team".into(), "a-".into()))
        );
        for wrong in ["-", "team", "", "=-"] {
            assert!(label_change(wrong).is_err(), "{wrong}");
        }
        let changes = ["a=1", "b-", "c=2", "c-", "d-", "d=3"].map(|text| label_change(text).unwrap());
        let labels = change([pair("b", "x"), pair("k", "y")].into(), &changes);
        assert_eq!(labels, [pair("a", "1"), pair("k", "y"), pair("d", "3")].into());
    }

    #[test]
    fn variables_are_given_or_taken_over() {
        let here = |name: &str| (name == "HERE").then(|| "v".to_owned());
        assert_eq!(env_from("A=b=c", &here), Ok(pair("A", "b=c")));
        assert_eq!(env_from("A=", &here), Ok(pair("A", "")));
        assert_eq!(env_from("HERE", &here), Ok(pair("HERE", "v")));
        assert!(env_from("GONE", &here).unwrap_err().contains("GONE=VALUE"));
        assert!(env_from("=x", &here).is_err() && env_from("", &here).is_err());
    }
}
