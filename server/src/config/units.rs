//! Sizes and spans as people write them.

use std::{fmt, str::FromStr, time::Duration};

/// A number of bytes, written as `512MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

/// A length of time of at least a millisecond, written as `24h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

/// A share of processors in thousandths, written as `1.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(u32);

/// The text is not what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct Unreadable(&'static str);

// Each unit is a multiple of the one before, so that the largest that divides a value writes it back.
const SIZES: [(&str, u64); 5] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
const SPANS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

// === impl Size ===

impl Size {
    pub(super) const EXPECTED: &'static str = "a size such as \"512MiB\" or \"2GiB\" (B, KiB, MiB, GiB, TiB)";

    /// That many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text, &SIZES)
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or(Unreadable(Self::EXPECTED))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(self.0, &SIZES, f)
    }
}

// === impl Span ===

impl Span {
    pub(super) const EXPECTED: &'static str = "a span such as \"90s\", \"10m\" or \"24h\" (ms, s, m, h, d)";

    /// That many seconds, which must not be 0.
    pub(super) const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The span as a duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let millis = read(text, &SPANS).filter(|millis| *millis > 0);
        millis
            .map(|millis| Self(Duration::from_millis(millis)))
            .ok_or(Unreadable(Self::EXPECTED))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX), &SPANS, f)
    }
}

// === impl Cpus ===

impl Cpus {
    pub(super) const EXPECTED: &'static str = "a number of processors such as 2 or 0.5, from 0.001 to 1000000";

    /// Nothing for what is no share of processors.
    pub(super) fn new(cpus: f64) -> Option<Self> {
        let millis = (cpus * 1e3).round();
        // In these bounds the cast is exact.
        (1.0..=1e9).contains(&millis).then_some(Self(millis as u32))
    }

    /// Thousandths of a processor.
    #[must_use]
    pub const fn millis(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0) / 1e3).fmt(f)
    }
}

fn read(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, each) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*each)
}

fn write(value: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let whole = units
        .iter()
        .rev()
        .find(|(_, each)| value >= *each && value.is_multiple_of(*each));
    match whole {
        Some((name, each)) => write!(f, "{}{name}", value / each),
        None => write!(f, "{value}{}", units.first().map_or("", |(name, _)| name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "1B",
            "1023B",
            "1KiB",
            "1536MiB",
            "2GiB",
            "3TiB",
            "18446744073709551615B",
        ] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["1ms", "90s", "10m", "25h", "7d", "1500ms"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("2048 MiB".parse::<Size>().unwrap().to_string(), "2GiB");
        assert_eq!("24h".parse::<Span>().unwrap().to_string(), "1d");
        assert_eq!("24h".parse::<Span>().unwrap().get(), Duration::from_secs(86_400));
    }

    #[test]
    fn what_is_no_size_or_span_is_refused() {
        for text in ["", "2", "GiB", "2GB", "2gib", "-1MiB", "1.5GiB", "0B", "99999999999TiB"] {
            assert_eq!(text.parse::<Size>(), Err(Unreadable(Size::EXPECTED)), "{text}");
        }
        for text in ["", "24", "h", "1w", "0s", "-1s", "1.5h", "999999999999999999d"] {
            assert_eq!(text.parse::<Span>(), Err(Unreadable(Span::EXPECTED)), "{text}");
        }
    }
}
