//! What an operator writes on a SandboxTemplate for us: annotations, because the object has no place of its own for it.

use std::time::Duration;

use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::limits::DefaultSpans;

use crate::{api::Template, driver::Driver};

const DRIVER: &str = "sandgate.dev/driver";
const CONNECTION: &str = "sandgate.dev/connection";
const TTL: &str = "sandgate.dev/ttl";
const IDLE: &str = "sandgate.dev/idle";
const CONTAINER: &str = "sandgate.dev/container";

/// The connection modes by the names that operators use.
const MODES: &[(&str, ConnectionMode)] = &[
    ("auto", ConnectionMode::Unspecified),
    ("tunnel", ConnectionMode::Tunnel),
    ("gateway", ConnectionMode::Gateway),
    ("direct", ConnectionMode::Direct),
    ("in-cluster", ConnectionMode::InCluster),
];

/// What a template says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    pub(crate) driver: Driver,
    /// UNSPECIFIED: as the server says.
    pub(crate) connection: ConnectionMode,
    pub(crate) spans: DefaultSpans,
}

// === impl Notes ===

impl Notes {
    /// Reads them.
    ///
    /// # Errors
    /// What is wrong with which annotation.
    pub(crate) fn read(template: &Template) -> Result<Self, String> {
        let annotations = template.metadata.annotations.as_ref();
        let get = |key: &str| annotations.and_then(|notes| notes.get(key)).map(String::as_str);
        let span = |key: &'static str| {
            let read = |text: &str| {
                parse_span(text).ok_or_else(|| wrong(key, text, "a number and a unit, as in 90s, 10m or 8h"))
            };
            get(key).map(read).transpose()
        };
        Ok(Self {
            driver: match get(DRIVER) {
                None => Driver::default(),
                Some(text) => Driver::parse(text).ok_or_else(|| wrong(DRIVER, text, &Driver::names()))?,
            },
            connection: match get(CONNECTION) {
                None => ConnectionMode::Unspecified,
                Some(text) => parse_mode(text).ok_or_else(|| wrong(CONNECTION, text, &mode_names()))?,
            },
            spans: DefaultSpans {
                ttl: span(TTL)?,
                idle: span(IDLE)?,
            },
        })
    }

    /// The container that commands run in. `None`: the first.
    pub(crate) fn container(template: &Template) -> Option<&str> {
        let annotations = template.metadata.annotations.as_ref()?;
        annotations.get(CONTAINER).map(String::as_str)
    }
}

/// The mode that an operator named.
pub fn parse_mode(text: &str) -> Option<ConnectionMode> {
    MODES.iter().find(|(name, _)| *name == text).map(|(_, mode)| *mode)
}

fn mode_names() -> String {
    let names: Vec<_> = MODES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

fn wrong(key: &str, text: &str, expected: &str) -> String {
    format!("its annotation {key} is {text:?}; expected {expected}")
}

fn parse_span(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(annotations: serde_json::Value) -> Template {
        serde_json::from_value(json!({"metadata": {"name": "t", "annotations": annotations}, "spec": {}})).unwrap()
    }

    #[test]
    fn all_of_them_are_read_and_none_is_needed() {
        assert_eq!(Notes::read(&template(json!({}))), Ok(Notes::default()));
        let notes = Notes::read(&template(json!({
            DRIVER: "sandboxd", CONNECTION: "in-cluster", TTL: "8h", IDLE: "90s",
        })))
        .unwrap();
        assert_eq!(notes.driver, Driver::Sandboxd);
        assert_eq!(notes.connection, ConnectionMode::InCluster);
        assert_eq!(notes.spans.ttl, Some(Duration::from_secs(8 * 3600)));
        assert_eq!(notes.spans.idle, Some(Duration::from_secs(90)));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_what_is() {
        for (key, text) in [(DRIVER, "docker"), (CONNECTION, "ssh"), (TTL, "8"), (IDLE, "soon")] {
            let error = Notes::read(&template(json!({key: text}))).unwrap_err();
            assert!(
                error.contains(key) && error.contains(text) && error.contains("expected"),
                "{error}"
            );
        }
    }
}
