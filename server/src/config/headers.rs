//! Headers that are sent to whoever is in front of the sandbox router. They may be secrets, so `Debug` shows their names only.

use std::{collections::BTreeMap, fmt};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::value::{NONE, Raw, Value, bare, quoted};

/// Headers by name.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(BTreeMap<String, String>);

// === impl Headers ===

impl Headers {
    /// The headers as they are sent.
    #[must_use]
    pub fn map(&self) -> HeaderMap {
        self.0.iter().filter_map(|(name, text)| header(name, text)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let pairs = text.split(',').map(|pair| match pair.split_once('=') {
            Some((name, value)) => checked(name.trim(), value.trim()),
            None => Err(format!("expected NAME=VALUE,NAME=VALUE, not {pair:?}")),
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

impl Value for Headers {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let table = match raw {
            Raw::Text(NONE) => return Ok(Self::default()),
            Raw::Text(text) => return Self::from_text(text),
            Raw::Toml(value) => value.as_table(),
        };
        let table = table.ok_or_else(|| raw.not("a table of text such as { x-team = \"tools\" }"))?;
        let pairs = table.iter().map(|(name, value)| {
            let (name, value) = (name.get_ref(), Raw::Toml(value.get_ref()));
            let text = value.text().ok_or_else(|| format!("{name}: {}", value.not("text")))?;
            checked(name, text)
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }

    fn to_toml(&self) -> String {
        if self.0.is_empty() {
            return "{}".to_owned();
        }
        let pairs = self
            .0
            .iter()
            .map(|(name, text)| format!("{} = {}", bare(name), quoted(text)));
        format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn checked(name: &str, text: &str) -> Result<(String, String), String> {
    match header(name, text) {
        Some(_) => Ok((name.to_owned(), text.to_owned())),
        None => Err(format!("{name:?} and its value are not fit for a header")),
    }
}

fn header(name: &str, text: &str) -> Option<(HeaderName, HeaderValue)> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_from_text_and_their_values_are_not_shown() {
        let headers = Headers::read(&Raw::Text("x-team=tools, Authorization=Basic YTpi=")).unwrap();
        assert_eq!(headers.map()["authorization"], "Basic YTpi=");
        assert_eq!(headers.map()["x-team"], "tools");
        assert!(headers.map()["x-team"].is_sensitive());
        assert_eq!(
            headers.to_toml(),
            "{ Authorization = \"Basic YTpi=\", x-team = \"tools\" }"
        );
        assert!(!format!("{headers:?}").contains("tools"), "{headers:?}");
        assert!(Headers::read(&Raw::Text("none")).unwrap().is_empty());
        for bad in ["x-team", "=x", "two words=x", "x=line\nbreak", "x=y,"] {
            assert!(Headers::read(&Raw::Text(bad)).is_err(), "{bad}");
        }
    }
}
