//! Spans of time as people write them: `90s`, `10m`, `1h30m`, `7d`, `none`.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];
const EXPECTED: &str = "expected a span such as 90s, 10m, 1h30m or 7d";

/// A span, or none: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// This long.
    Span(Duration),
    /// For ever.
    None,
}

/// Reads a span that is more than nothing.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{EXPECTED}, more than 0")),
        duration => Ok(duration),
    }
}

/// Reads a span that may be nothing, such as a grace time.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text;
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => *factor,
            None if number == text && number.bytes().all(|digit| digit == b'0') => 0,
            None if !number.is_empty() && unit.is_empty() => return Err(format!("{number} of what? {EXPECTED}")),
            None => return Err(EXPECTED.into()),
        };
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        millis = part.and_then(|part| millis.checked_add(part)).ok_or(EXPECTED)?;
        rest = tail;
    }
    match text.is_empty() {
        true => Err(EXPECTED.into()),
        false => Ok(Duration::from_millis(millis)),
    }
}

/// Reads a span, or `none`.
pub(crate) fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::None),
        text => span(text).map(Limit::Span).map_err(|error| format!("{error}, or none")),
    }
}

/// A span for a table: its two largest units at most.
pub(crate) fn human(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |a: u64, a_unit: &str, b: u64, b_unit: &str| match b {
        0 => format!("{a}{a_unit}"),
        b => format!("{a}{a_unit}{b}{b_unit}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) if seconds == 0 && span.subsec_millis() > 0 => format!("{}ms", span.subsec_millis()),
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => two(minutes, "m", seconds % 60, "s"),
        (0, hours, minutes) => two(hours, "h", minutes, "m"),
        (days, hours, _) => two(days, "d", hours, "h"),
    }
}

/// A span for the wire.
pub(crate) fn wire(span: Duration) -> prost_types::Duration {
    // What is too long for the wire is too long for every server, which then says so.
    span.try_into().unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// A span from the wire; a negative one is none at all.
pub(crate) fn unwire(span: &prost_types::Duration) -> Duration {
    (*span).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read() {
        for (text, millis) in [
            ("90s", 90_000),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("250ms", 250),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(span(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(limit("none"), Ok(Limit::None));
        assert_eq!(limit("2h"), Ok(Limit::Span(Duration::from_secs(7_200))));
    }

    #[test]
    fn what_is_no_span_is_refused_with_an_example() {
        for text in [
            "",
            "10",
            "s",
            "1y",
            "-1s",
            "1.5h",
            "1 h",
            "1h 30m",
            "h1",
            "1hm",
            "none",
            "99999999999999999999s",
            "18446744073709551615d",
            "0s",
            "0",
        ] {
            let error = span(text).unwrap_err();
            assert!(error.contains("1h30m"), "{text}: {error}");
        }
        assert!(span("90").unwrap_err().starts_with("90 of what?"));
        assert!(limit("never").unwrap_err().ends_with("or none"));
    }

    #[test]
    fn spans_are_shown_shortly() {
        for (seconds, shown) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m1s"),
            (3_600, "1h"),
            (5_430, "1h30m"),
            (86_400, "1d"),
            (90_000, "1d1h"),
        ] {
            assert_eq!(human(Duration::from_secs(seconds)), shown);
        }
        assert_eq!(human(Duration::from_millis(42)), "42ms");
    }

    #[test]
    fn spans_travel() {
        let span = Duration::from_millis(1_500);
        assert_eq!(unwire(&wire(span)), span);
        assert_eq!(wire(Duration::MAX).seconds, i64::MAX);
        assert_eq!(unwire(&prost_types::Duration { seconds: -1, nanos: 0 }), Duration::ZERO);
    }
}
