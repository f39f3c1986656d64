//! `NAME:/path`: a place in a sandbox, or one on this machine.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
};

use bytes::Bytes;
use clap::builder::{OsStringValueParser, TypedValueParser};

/// A path in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// The sandbox's name.
    pub(crate) sandbox: String,
    /// Bytes, because not every name is UTF-8. Never empty; relative ones begin at the working directory.
    pub(crate) path: Vec<u8>,
}

/// Where something is or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a sandbox.
    Remote(Remote),
    /// On this machine.
    Local(PathBuf),
    /// `-`: stdin or stdout.
    Standard,
}

/// Reads a place. What stands before the first `:` is a sandbox if it can be one's name; a file with such a name is
/// written `./a:b`.
pub(crate) fn place(text: &OsStr) -> Place {
    match in_sandbox(text) {
        Some(remote) => Place::Remote(remote),
        None if text == "-" => Place::Standard,
        None => Place::Local(text.into()),
    }
}

/// Reads a place in a sandbox from the command line.
pub(crate) fn remote() -> impl TypedValueParser<Value = Remote> {
    OsStringValueParser::new().try_map(|text| in_sandbox(&text).ok_or("expected NAME:/path, a path in a sandbox"))
}

fn in_sandbox(text: &OsStr) -> Option<Remote> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&bytes[..colon]).ok()?;
    let path = match &bytes[colon + 1..] {
        b"" => b".",
        path => path,
    };
    is_name(name).then(|| Remote {
        sandbox: name.to_owned(),
        path: path.to_vec(),
    })
}

/// Whether it matches `[a-z]([-a-z0-9]{0,38}[a-z0-9])?`.
fn is_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    matches!(name.as_bytes(), [first, ..] if first.is_ascii_lowercase())
        && name.len() <= 40
        && name.bytes().all(inner)
        && !name.ends_with('-')
}

/// A path as it is sent: as text, or as raw bytes if it is none.
pub(crate) fn wire(path: &[u8]) -> (String, Bytes) {
    match std::str::from_utf8(path) {
        Ok(text) => (text.to_owned(), Bytes::new()),
        Err(_) => (String::new(), Bytes::copy_from_slice(path)),
    }
}

/// A path as it came.
pub(crate) fn unwire(path: &str, raw: &Bytes) -> Vec<u8> {
    match raw.is_empty() {
        true => path.as_bytes().to_vec(),
        false => raw.to_vec(),
    }
}

/// Bytes as text for a person.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

// === impl Remote ===

impl Remote {
    /// The path, ready to be sent.
    pub(crate) fn wire(&self) -> (String, Bytes) {
        wire(&self.path)
    }

    /// The last part of the path, if it names something: not `/`, `.` or `..`.
    pub(crate) fn file_name(&self) -> Option<OsString> {
        let trimmed = self
            .path
            .iter()
            .rposition(|byte| *byte != b'/')
            .map_or(0, |last| last + 1);
        let name = self.path[..trimmed].rsplit(|byte| *byte == b'/').next()?;
        (!matches!(name, b"" | b"." | b"..")).then(|| OsString::from_vec(name.to_vec()))
    }

    /// The path of something in this directory.
    pub(crate) fn join(&self, name: &OsStr) -> Self {
        let mut path = self.path.clone();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        Self {
            sandbox: self.sandbox.clone(),
            path,
        }
    }

    /// Whether it is written as a directory.
    pub(crate) fn ends_with_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }
}

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.sandbox, String::from_utf8_lossy(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sandbox: &str, path: &str) -> Place {
        Place::Remote(Remote {
            sandbox: sandbox.into(),
            path: path.into(),
        })
    }

    fn read(text: &str) -> Place {
        place(OsStr::new(text))
    }

    #[test]
    fn a_name_before_a_colon_is_a_sandbox() {
        assert_eq!(read("demo:/etc/passwd"), at("demo", "/etc/passwd"));
        assert_eq!(read("demo:"), at("demo", "."));
        assert_eq!(read("demo:notes.txt"), at("demo", "notes.txt"));
        assert_eq!(read("a:b:c"), at("a", "b:c"));
        assert_eq!(read("a-1:/"), at("a-1", "/"));
    }

    #[test]
    fn everything_else_is_here() {
        let long = format!("{}:/x", "a".repeat(41));
        for text in [
            "file",
            "./demo:/x",
            "/a:b",
            "Demo:/x",
            "1a:/x",
            "a-:/x",
            "a_b:/x",
            ":/x",
            "../a:b",
            "",
            &long,
        ] {
            assert_eq!(read(text), Place::Local(text.into()), "{text}");
        }
        assert_eq!(read("-"), Place::Standard);
        assert_eq!(read("./-"), Place::Local("./-".into()));
    }

    #[test]
    fn paths_that_are_not_utf8_travel_raw() {
        let Place::Remote(remote) = place(OsStr::from_bytes(b"demo:/a\xff")) else {
            panic!("not remote");
        };
        assert_eq!(remote.wire(), (String::new(), Bytes::from_static(b"/a\xff")));
        assert_eq!(unwire("", &Bytes::from_static(b"/a\xff")), b"/a\xff");
        assert_eq!(unwire("/a", &Bytes::new()), b"/a");
        assert_eq!(remote.to_string(), "demo:/a\u{fffd}");
    }

    #[test]
    fn names_and_joins() {
        let remote = |path: &str| Remote {
            sandbox: "d".into(),
            path: path.into(),
        };
        for (path, name) in [
            ("/a/b", Some("b")),
            ("/a/b//", Some("b")),
            ("b", Some("b")),
            ("/", None),
            (".", None),
            ("/a/..", None),
            ("a/.", None),
        ] {
            assert_eq!(remote(path).file_name().as_deref(), name.map(OsStr::new), "{path}");
        }
        assert_eq!(remote("/a").join(OsStr::new("b")).path, b"/a/b");
        assert_eq!(remote("/").join(OsStr::new("b")).path, b"/b");
        assert!(remote("/a/").ends_with_slash() && !remote("/a").ends_with_slash());
    }
}
