//! Paths as the API has them: relative to the base directory, whatever slash they begin with.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// A path of a request leads out of the base directory by its text alone. Where symlinks lead is the kernel's to see.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outside;

/// The path that a request means, relative to the base directory and empty for itself.
pub(super) fn relative(path: &[u8]) -> Result<&[u8], Outside> {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    let path = &path[slashes..];
    let mut depth = 0_usize;
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => depth = depth.checked_sub(1).ok_or(Outside)?,
            _ => depth += 1,
        }
    }
    Ok(path)
}

/// What the rest of a URL may mean: decoded once, and again if that changes it. The original decodes twice, so callers
/// that know it encode twice; its own SDK encodes once. A file is looked for under both names, in this order.
pub(super) fn meanings(encoded: &str) -> impl Iterator<Item = Vec<u8>> {
    let once = decoded(encoded.as_bytes());
    let twice = Some(decoded(&once)).filter(|twice| *twice != once);
    std::iter::once(once).chain(twice)
}

fn decoded(encoded: &[u8]) -> Vec<u8> {
    Cow::from(percent_decode(encoded)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_inside() {
        for (path, meant) in [
            ("", ""),
            ("/", ""),
            ("a/b", "a/b"),
            ("///a", "a"),
            ("a/../b", "a/../b"),
            ("a/./../.", "a/./../."),
            ("..a/b..", "..a/b.."),
        ] {
            assert_eq!(relative(path.as_bytes()), Ok(meant.as_bytes()), "{path}");
        }
        for path in ["..", "/..", "../a", "a/../..", "a/../../a", "./../a", "//../a"] {
            assert_eq!(relative(path.as_bytes()), Err(Outside), "{path}");
        }
    }

    #[test]
    fn is_looked_for_as_written_once_and_twice() {
        let all = |encoded| meanings(encoded).collect::<Vec<_>>();
        assert_eq!(all("a%2Fb%20c"), [b"a/b c".to_vec()]);
        assert_eq!(all("a%252Fb"), [b"a%2Fb".to_vec(), b"a/b".to_vec()]);
        assert_eq!(all("100%25"), [b"100%".to_vec()]);
        assert_eq!(all("%ff"), [vec![0xff]]);
    }
}
