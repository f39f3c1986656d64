//! How each kind of value is read from a file or from text, and written back.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use toml::de::DeValue;

use super::{
    addr::{AllowedHost, ListenAddr, WebOrigin},
    filter::LogFilter,
    units::{Cpus, Size, Span},
};

/// A value as it was found.
pub(super) enum Raw<'a> {
    /// In the file.
    Toml(&'a DeValue<'a>),
    /// In the environment or on the command line.
    Text(&'a str),
}

/// Something that can be configured.
pub(super) trait Value: Sized {
    /// Reads it, or says what was expected.
    fn read(raw: &Raw<'_>) -> Result<Self, String>;

    /// Writes it as TOML that reads as the same.
    fn to_toml(&self) -> String;
}

/// The word for "no limit".
pub(super) const NONE: &str = "none";

/// What [`is_name`] takes.
pub(super) const NAME: &str = "a name of 1 to 63 lower-case letters, digits and dashes, a letter or digit at both ends";

/// Names that are fit for Kubernetes too.
pub(super) fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len()) && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

// === impl Raw ===

impl Raw<'_> {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Toml(value) => value.as_str(),
            Self::Text(text) => Some(text),
        }
    }

    pub(super) fn truth(&self) -> Option<bool> {
        match self {
            Self::Toml(value) => value.as_bool(),
            Self::Text(text) => text.parse().ok(),
        }
    }

    fn integer(&self) -> Option<u64> {
        match self {
            Self::Toml(DeValue::Integer(number)) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            Self::Toml(_) => None,
            Self::Text(text) => text.parse().ok(),
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Self::Toml(DeValue::Float(number)) => number.as_str().parse().ok(),
            Self::Toml(_) => None,
            Self::Text(text) => text.parse().ok(),
        }
        .or_else(|| self.integer().map(|number| number as f64))
    }

    /// "expected …, not …".
    pub(super) fn not(&self, expected: &str) -> String {
        let found = match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Toml(DeValue::String(text)) => format!("{text:?}"),
            Self::Toml(DeValue::Integer(number)) => number.to_string(),
            Self::Toml(DeValue::Float(number)) => number.to_string(),
            Self::Toml(DeValue::Boolean(truth)) => truth.to_string(),
            Self::Toml(DeValue::Datetime(_)) => "a date".to_owned(),
            Self::Toml(DeValue::Array(_)) => "a list".to_owned(),
            Self::Toml(DeValue::Table(_)) => "a table".to_owned(),
        };
        format!("expected {expected}, not {found}")
    }
}

// === impl Value ===

/// Values that are text with a form of its own.
macro_rules! text_value {
    ($type:ty, $expected:expr) => {
        impl Value for $type {
            fn read(raw: &Raw<'_>) -> Result<Self, String> {
                let text = raw.text().ok_or_else(|| raw.not($expected))?;
                text.parse::<Self>()
                    .map_err(|error| format!("{error}, not {text:?}"))
            }

            fn to_toml(&self) -> String {
                quoted(&self.to_string())
            }
        }
    };
}

/// Values that are one of a few words.
macro_rules! word_value {
    ($type:ty, $($word:literal => $value:expr),+) => {
        impl $crate::config::value::Value for $type {
            fn read(raw: &$crate::config::value::Raw<'_>) -> Result<Self, String> {
                match <String as $crate::config::value::Value>::read(raw).as_deref() {
                    $(Ok($word) => Ok($value),)+
                    Ok(other) => Err(format!("{other:?} is unknown; {}", $crate::config::nearest::among(other, &[$($word),+]))),
                    Err(_) => Err(raw.not(&[$($crate::config::value::quoted($word)),+].join(" or "))),
                }
            }

            fn to_toml(&self) -> String {
                $(if *self == $value { return $crate::config::value::quoted($word); })+
                String::new()
            }
        }
    };
}
pub(super) use word_value;

text_value!(AllowedHost, "text");
text_value!(ListenAddr, "text");
text_value!(LogFilter, "text");
text_value!(Size, Size::EXPECTED);
text_value!(Span, Span::EXPECTED);
text_value!(WebOrigin, "text");

impl Value for String {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let text = raw.text().filter(|text| !text.is_empty() && !text.contains('\0'));
        text.map(str::to_owned).ok_or_else(|| raw.not("text that is not empty"))
    }

    fn to_toml(&self) -> String {
        quoted(self)
    }
}

impl Value for bool {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        raw.truth().ok_or_else(|| raw.not("true or false"))
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Value for u64 {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        raw.integer().ok_or_else(|| raw.not("a whole number"))
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Value for u32 {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let number = raw.integer().and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| raw.not("a whole number below 4294967296"))
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Value for Cpus {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        raw.float().and_then(Self::new).ok_or_else(|| raw.not(Self::EXPECTED))
    }

    fn to_toml(&self) -> String {
        self.to_string()
    }
}

/// In a file it is absolute: what it is relative to would be anybody's guess.
impl Value for PathBuf {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let good = |path: &&Path| match raw {
            Raw::Toml(_) => path.is_absolute(),
            Raw::Text(_) => !path.as_os_str().is_empty(),
        };
        let path = raw
            .text()
            .filter(|text| !text.contains('\0'))
            .map(Path::new)
            .filter(good);
        path.map(Path::to_owned).ok_or_else(|| raw.not("an absolute path"))
    }

    fn to_toml(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

/// A limit, or `"none"` or 0 for none.
impl<T: Value> Value for Option<T> {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        if raw.text() == Some(NONE) || raw.float() == Some(0.0) {
            return Ok(None);
        }
        T::read(raw)
            .map(Some)
            .map_err(|problem| format!("{problem} (or {NONE:?})"))
    }

    fn to_toml(&self) -> String {
        self.as_ref().map_or_else(|| quoted(NONE), T::to_toml)
    }
}

impl<T: Value> Value for Vec<T> {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        match raw {
            Raw::Toml(DeValue::Array(items)) => items.iter().map(|item| T::read(&Raw::Toml(item.get_ref()))).collect(),
            Raw::Toml(_) => Err(raw.not("a list such as [\"…\", \"…\"]")),
            Raw::Text(text) if *text == NONE => Ok(Self::new()),
            Raw::Text(text) => text.split(',').map(|part| T::read(&Raw::Text(part.trim()))).collect(),
        }
    }

    fn to_toml(&self) -> String {
        let items: Vec<String> = self.iter().map(T::to_toml).collect();
        format!("[{}]", items.join(", "))
    }
}

/// Environment variables for commands.
impl Value for BTreeMap<String, String> {
    fn read(raw: &Raw<'_>) -> Result<Self, String> {
        let expected = "a table of text such as { LANG = \"C.UTF-8\" }";
        let Raw::Toml(DeValue::Table(table)) = raw else {
            return Err(raw.not(expected));
        };
        let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
            let (name, value): (&std::borrow::Cow<'_, str>, _) = (key.get_ref(), Raw::Toml(value.get_ref()));
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("{name:?} is no name for an environment variable"));
            }
            let text = value.text().filter(|text| !text.contains('\0'));
            let text = text.ok_or_else(|| format!("{name}: {}", value.not("text")))?;
            Ok((name.to_string(), text.to_owned()))
        };
        table.iter().map(entry).collect()
    }

    fn to_toml(&self) -> String {
        if self.is_empty() {
            return "{}".to_owned();
        }
        let entries: Vec<String> = self
            .iter()
            .map(|(name, text)| format!("{} = {}", bare(name), quoted(text)))
            .collect();
        format!("{{ {} }}", entries.join(", "))
    }
}

/// A TOML string, always on one line.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A TOML key.
pub(super) fn bare(key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if plain { key.to_owned() } else { quoted(key) }
}
