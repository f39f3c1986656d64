//! Paths as callers send them: checked once, then handed to the kernel as they are.
//!
//! What a path means is the kernel's to decide (`beneath`). Here only its form is looked at. `..` is kept, because after
//! a symlink it does not mean what the text suggests; only at the start, where it can't lead anywhere, it is dropped.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use sandgate_proto::v1::ErrorReason;

use crate::error::{Error, Result};

/// The longest path that the kernel takes, without its NUL.
pub const MAX_PATH: usize = 4095;
/// The longest name of one file.
pub const MAX_NAME: usize = 255;

/// A path that has passed the checks: absolute in its view, without `.`, empty components and a slash at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathArg {
    path: PathBuf,
    directory: bool,
}

// === impl PathArg ===

impl PathArg {
    /// Checks what a caller sent. Relative paths begin at `start`, which is absolute in the view.
    ///
    /// # Errors
    /// `PathInvalid` for a path that is empty, too long or has a NUL, `InvalidArgument` for two paths in one.
    pub fn new(text: &str, raw: &Bytes, start: &Path) -> Result<Self> {
        let sent = one_of(text, raw)?;
        check(sent)?;
        let mut path = Vec::with_capacity(start.as_os_str().len() + sent.len() + 2);
        if !sent.starts_with(b"/") {
            append(&mut path, bytes(start));
        }
        append(&mut path, sent);
        if path.is_empty() {
            path.push(b'/');
        }
        let directory = matches!(sent.rsplit(|byte| *byte == b'/').next(), Some(b"" | b"." | b".."));
        Ok(Self {
            path: PathBuf::from(OsStr::from_bytes(&path)),
            directory,
        })
    }

    /// Absolute in the view: what the kernel is given, and what is shown.
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// The same, as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        bytes(&self.path)
    }

    /// Whether it was written as a directory (`x/`, `x/.`, `x/..`), so that no file can be made there.
    pub fn names_directory(&self) -> bool {
        self.directory
    }

    /// The path of something in this directory, as it is shown.
    pub fn join(&self, relative: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(relative))
    }
}

impl AsRef<Path> for PathArg {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// The bytes of a path.
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// A path or symlink target as the contract sends it: text, or bytes if it is not UTF-8.
pub fn twins(path: &[u8]) -> (String, Bytes) {
    match std::str::from_utf8(path) {
        Ok(text) => (text.to_owned(), Bytes::new()),
        Err(_) => (String::new(), Bytes::copy_from_slice(path)),
    }
}

/// The one of two twin fields that is set; empty if none is.
///
/// # Errors
/// `InvalidArgument` if both are.
pub fn one_of<'a>(text: &'a str, raw: &'a Bytes) -> Result<&'a [u8]> {
    match (text.is_empty(), raw.is_empty()) {
        (false, false) => Err(Error::invalid("a path is given as text or as bytes, not both")),
        (false, true) => Ok(text.as_bytes()),
        _ => Ok(raw),
    }
}

/// What holds for every path and symlink target.
///
/// # Errors
/// `PathInvalid`.
pub fn check(path: &[u8]) -> Result<()> {
    let fault = if path.is_empty() {
        "a path is empty"
    } else if path.contains(&0) {
        "a path holds a NUL byte"
    } else if path.len() > MAX_PATH {
        "a path is longer than 4095 bytes"
    } else if path.split(|byte| *byte == b'/').any(|name| name.len() > MAX_NAME) {
        "a name is longer than 255 bytes"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorReason::PathInvalid, fault))
}

fn append(path: &mut Vec<u8>, more: &[u8]) {
    for name in more.split(|byte| *byte == b'/') {
        let at_root = path.is_empty() && name == b"..";
        if !name.is_empty() && name != b"." && !at_root {
            path.push(b'/');
            path.extend_from_slice(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arg(text: &str) -> Result<PathArg> {
        PathArg::new(text, &Bytes::new(), Path::new("/w/d"))
    }

    #[test]
    fn paths_become_absolute() {
        for (sent, path, directory) in [
            ("/", "/", true),
            (".", "/w/d", true),
            ("a", "/w/d/a", false),
            ("a/", "/w/d/a", true),
            ("./a//b/.", "/w/d/a/b", true),
            ("~", "/w/d/~", false),
            ("../x", "/w/d/../x", false),
            ("/../../x", "/x", false),
            ("/./..", "/", true),
            ("/a/../b", "/a/../b", false),
            ("/a/..", "/a/..", true),
            ("//a", "/a", false),
            ("...", "/w/d/...", false),
        ] {
            let arg = arg(sent).unwrap();
            assert_eq!(
                (arg.as_path(), arg.names_directory()),
                (Path::new(path), directory),
                "{sent}"
            );
        }
    }

    #[test]
    fn bad_paths_are_refused() {
        let name = "n".repeat(256);
        let path = "/a".repeat(2048);
        for sent in ["", "a\0b", "\0", &name, &path, &format!("a/{name}/b")] {
            assert_eq!(arg(sent).unwrap_err().reason, ErrorReason::PathInvalid, "{sent:?}");
        }
        assert!(arg(&name[1..]).is_ok());
        assert!(arg(&path[1..]).is_ok());
    }

    #[test]
    fn bytes_stand_in_for_text() {
        let raw = Bytes::from_static(b"/\xff\xfe");
        let arg = PathArg::new("", &raw, Path::new("/")).unwrap();
        assert_eq!(arg.as_bytes(), b"/\xff\xfe");
        assert_eq!(twins(arg.as_bytes()), (String::new(), raw.clone()));
        assert_eq!(twins(b"/a"), ("/a".to_owned(), Bytes::new()));
        let both = PathArg::new("/a", &raw, Path::new("/")).unwrap_err();
        assert_eq!(both.reason, ErrorReason::InvalidArgument);
    }
}
