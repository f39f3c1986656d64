//! Names, links and times as an archive has them, and what may be made of them.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

/// A path beneath the destination: at least one component, none of them empty, `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name(Vec<Vec<u8>>);

// === impl Name ===

impl Name {
    /// The name; nothing: the destination itself.
    pub(super) fn new(raw: &[u8]) -> Result<Option<Self>, &'static str> {
        if raw.starts_with(b"/") {
            return Err("its name is absolute");
        }
        if raw.contains(&0) {
            return Err("its name has a NUL byte");
        }
        let mut components = Vec::new();
        for component in raw.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err("its name has a `..`"),
                component => components.push(component.to_vec()),
            }
        }
        Ok((!components.is_empty()).then_some(Self(components)))
    }

    /// The directories above it, from the top.
    pub(super) fn above(&self) -> impl Iterator<Item = &OsStr> {
        self.0[..self.depth()]
            .iter()
            .map(|component| OsStr::from_bytes(component))
    }

    /// Itself in its directory.
    pub(super) fn last(&self) -> &OsStr {
        // There is at least one component.
        OsStr::from_bytes(self.0.last().map_or(b"", Vec::as_slice))
    }

    /// How many directories are above it.
    pub(super) fn depth(&self) -> usize {
        self.0.len() - 1
    }

    /// As it is written.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.join(&b'/')
    }
}

/// Whether a link of that name and target leads to something beneath the destination, whatever other such links there
/// are. The directory of the link is no link itself, so that leading `..` are what they look like; behind a name they
/// need not be, because that may be a link, also to the destination itself.
pub(super) fn stays_inside(name: &Name, target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") {
        return false;
    }
    let mut room = name.depth();
    let mut named = false;
    for component in target.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." if named || room == 0 => return false,
            b".." => room -= 1,
            _ => named = true,
        }
    }
    true
}

/// A time as PAX writes it, `seconds[.fraction]`, in seconds and nanoseconds.
pub(super) fn time(text: &str) -> Option<(i64, i64)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: i64 = digits.parse().ok()?;
    match (whole.starts_with('-'), nanos) {
        (_, 0) => Some((seconds, 0)),
        (false, nanos) => Some((seconds, nanos)),
        (true, nanos) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn names_stay_beneath() {
        assert_eq!(name("./a//b/./c/").bytes(), b"a/b/c");
        assert_eq!(name("a/b").above().collect::<Vec<_>>(), ["a"]);
        assert_eq!((name("a/b").last(), name("a").depth()), (OsStr::new("b"), 0));
        for root in ["./", ".", "", "././/"] {
            assert_eq!(Name::new(root.as_bytes()), Ok(None), "{root}");
        }
        for hostile in ["/etc/passwd", "../x", "a/../../x", "a/..", "..", "a\0b", "//x"] {
            assert!(Name::new(hostile.as_bytes()).is_err(), "{hostile}");
        }
    }

    #[test]
    fn links_that_lead_out_are_known() {
        for (link, target) in [
            ("a", "b"),
            ("a", "./b/c"),
            ("d/a", "../b"),
            ("d/e/a", "../../b"),
            ("d/a", ".."),
            ("a", "."),
            ("a", "..x"),
        ] {
            assert!(stays_inside(&name(link), target.as_bytes()), "{link} -> {target}");
        }
        for (link, target) in [
            ("a", "/etc"),
            ("a", ".."),
            ("a", "../b"),
            ("d/a", "../../b"),
            ("d/a", "b/../../.."),
            // `d` may be a link to the destination itself.
            ("a", "d/.."),
            ("d/e/a", "../x/../y"),
            ("a", ""),
        ] {
            assert!(!stays_inside(&name(link), target.as_bytes()), "{link} -> {target}");
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(time("12"), Some((12, 0)));
        assert_eq!(time("12.5"), Some((12, 500_000_000)));
        assert_eq!(time("12.0000000019"), Some((12, 1)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("-0.5"), Some((-1, 500_000_000)));
        for wrong in ["", "x", "1.x", "1.-5", "99999999999999999999"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }
}
