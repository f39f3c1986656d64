//! What to log: one level for everything, or `target=level` pairs beside it.

use std::{fmt, str::FromStr};

/// A filter for log lines, such as `info` or `info,sandgate_local=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// Not a filter.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected off, error, warn, info, debug or trace, or a list such as info,sandgate_local=debug")]
pub struct NotAFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

// === impl LogFilter ===

impl LogFilter {
    /// The filter in the words of `tracing`.
    ///
    /// A bare `debug` or `trace` means ours: with the lines of the HTTP/2 library, for each frame, nobody would find
    /// anything. Who wants those asks for `h2=debug`.
    #[must_use]
    pub fn directives(&self) -> String {
        let words = self.0.split(',').map(|part| match part {
            "debug" | "trace" => format!("info,sandgate={part}"),
            other => other.to_owned(),
        });
        words.collect::<Vec<_>>().join(",")
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = NotAFilter;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_target = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let good = text.split(',').all(|part| match part.split_once('=') {
            None => LEVELS.contains(&part),
            Some((target, level)) => !target.is_empty() && target.chars().all(is_target) && LEVELS.contains(&level),
        });
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotAFilter)
        }
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_or_pairs_are_taken() {
        for (text, directives) in [
            ("warn", "warn"),
            ("debug", "info,sandgate=debug"),
            ("info,sandgate_local=debug", "info,sandgate_local=debug"),
            ("debug,h2=trace", "info,sandgate=debug,h2=trace"),
        ] {
            let filter: LogFilter = text.parse().unwrap();
            assert_eq!(filter.directives(), directives);
            assert!(tracing_subscriber::EnvFilter::try_new(filter.directives()).is_ok());
        }
        for bad in [
            "",
            "loud",
            "INFO",
            "info,",
            "=debug",
            "a b=debug",
            "sandgate=",
            "[span]=debug",
        ] {
            assert_eq!(bad.parse::<LogFilter>(), Err(NotAFilter), "{bad}");
        }
    }
}
