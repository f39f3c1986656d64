//! Label selectors, in the syntax of Kubernetes, so that they mean the same on every provider.

use std::{collections::HashMap, fmt};

use sandgate_errors::Refusal;

use crate::labels::{check_key, check_value};

/// Which sandboxes are meant: all of these must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Missing(String),
    In(String, Vec<String>),
    /// Also holds where the label is missing, as in Kubernetes.
    NotIn(String, Vec<String>),
}

// === impl Selector ===

impl Selector {
    /// All there are.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Reads `team=red,stage!=old,tier in (a,b),tier notin (c),owner,!temporary`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the part that does not parse.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Refusal> {
        if text.trim().is_empty() {
            return Ok(Self::all());
        }
        let requirements = split_outside_brackets(text).into_iter().map(|part| {
            Requirement::parse(part.trim()).map_err(|rule| {
                let form =
                    "expected key=value, key!=value, key in (a,b), key notin (a,b), key or !key, with commas between";
                Refusal::invalid(field, format!("{:?}: {rule}; {form}", part.trim()))
            })
        });
        requirements.collect::<Result<_, _>>().map(Self)
    }

    /// Whether labels are such.
    #[must_use]
    pub fn matches(&self, labels: &HashMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match requirement {
                Requirement::Exists(key) => write!(f, "{comma}{key}")?,
                Requirement::Missing(key) => write!(f, "{comma}!{key}")?,
                Requirement::In(key, values) => write!(f, "{comma}{key} in ({})", values.join(","))?,
                Requirement::NotIn(key, values) => write!(f, "{comma}{key} notin ({})", values.join(","))?,
            }
        }
        Ok(())
    }
}

// === impl Requirement ===

impl Requirement {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some((key, values)) = text.split_once('(') {
            let values = values.strip_suffix(')').ok_or("a bracket is not closed")?;
            let values = values.split(',').map(|v| value(v.trim())).collect::<Result<_, _>>()?;
            let mut words = key.split_whitespace();
            let (name, operator) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            return match (operator, words.next()) {
                ("in", None) => Ok(Self::In(self::key(name)?, values)),
                ("notin", None) => Ok(Self::NotIn(self::key(name)?, values)),
                _ => Err("brackets follow `in` or `notin`"),
            };
        }
        if let Some((name, text)) = text.split_once("!=") {
            return Ok(Self::NotIn(key(name.trim())?, vec![value(text.trim())?]));
        }
        if let Some((name, text)) = text.split_once('=') {
            let text = text.strip_prefix('=').unwrap_or(text);
            return Ok(Self::In(key(name.trim())?, vec![value(text.trim())?]));
        }
        match text.strip_prefix('!') {
            Some(name) => Ok(Self::Missing(key(name.trim())?)),
            None => Ok(Self::Exists(key(text)?)),
        }
    }

    fn holds(&self, labels: &HashMap<String, String>) -> bool {
        match self {
            Self::Exists(key) => labels.contains_key(key),
            Self::Missing(key) => !labels.contains_key(key),
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
        }
    }
}

fn key(text: &str) -> Result<String, &'static str> {
    check_key(text).map(|()| text.to_owned())
}

fn value(text: &str) -> Result<String, &'static str> {
    check_value(text).map(|()| text.to_owned())
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Selector::parse("label_selector", selector).unwrap().matches(&labels)
    }

    #[test]
    fn each_form_means_what_kubernetes_means() {
        let red = [("team", "red"), ("tier", "a")];
        for holds in [
            "",
            " ",
            "team=red",
            "team==red",
            "team = red , tier",
            "team!=blue",
            "other!=x",
            "tier in (a, b)",
            "tier notin (c)",
            "other notin (c)",
            "!other",
            "team in (red),tier in (a)",
        ] {
            assert!(matches(holds, &red), "{holds}");
        }
        for fails in [
            "team=blue",
            "team!=red",
            "other",
            "!team",
            "tier in (b,c)",
            "tier notin (a)",
            "team=red,other",
            "team=",
        ] {
            assert!(!matches(fails, &red), "{fails}");
        }
        assert!(matches("empty=", &[("empty", "")]));
    }

    #[test]
    fn what_does_not_parse_is_refused() {
        for bad in [
            ",",
            "a,,b",
            "a b",
            "a in b",
            "a in (b",
            "a on (b)",
            "=x",
            "a=b c",
            "a in (b))",
            "(a)",
            "!",
            "a in in (b)",
        ] {
            assert!(Selector::parse("label_selector", bad).is_err(), "{bad}");
        }
    }
}
