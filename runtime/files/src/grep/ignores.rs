//! What `.gitignore` and `.ignore` files leave out. They are read through descriptors as the walk enters their
//! directories, and hold for what is beneath them; the nearest one that says something decides, and `.ignore` goes
//! before `.gitignore`.

use std::{ffi::OsStr, fs::File, io::Read, os::unix::ffi::OsStrExt, path::Path};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use rustix::{
    fd::OwnedFd,
    fs::{self, FileType, Mode, OFlags},
};

use crate::walk::Entry;

/// What is read of one ignore file.
const MAX_BYTES: u64 = 1024 * 1024;

/// The ignore files from the start of the walk down to where it is.
#[derive(Default)]
pub(super) struct Ignores {
    levels: Vec<Level>,
}

#[derive(Default)]
struct Level {
    /// Of the directory, with its `/`.
    prefix_len: usize,
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
}

// === impl Ignores ===

impl Ignores {
    /// Forgets what was read in the directory's siblings: the walk goes into it next.
    pub(super) fn enter(&mut self, directory: &Entry<'_>) {
        self.levels.truncate(directory.depth);
    }

    /// Whether a file or directory is left out.
    pub(super) fn leaves_out(&mut self, entry: &Entry<'_>) -> bool {
        self.levels.truncate(entry.depth);
        if self.levels.len() < entry.depth {
            let prefix_len = entry.path.len() - entry.name.count_bytes();
            self.levels.push(Level {
                prefix_len,
                ignore: read(entry.dir, ".ignore"),
                gitignore: read(entry.dir, ".gitignore"),
            });
        }
        let directory = entry.kind == FileType::Directory;
        let decided = self.decide(entry.path, directory, |level| level.ignore.as_ref());
        decided
            .or_else(|| self.decide(entry.path, directory, |level| level.gitignore.as_ref()))
            .unwrap_or_default()
    }

    fn decide<'a>(
        &'a self,
        path: &[u8],
        directory: bool,
        rules: impl Fn(&'a Level) -> Option<&'a Gitignore>,
    ) -> Option<bool> {
        self.levels.iter().rev().find_map(|level| {
            let path = Path::new(OsStr::from_bytes(&path[level.prefix_len..]));
            match rules(level)?.matched(path, directory) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            }
        })
    }
}

/// The rules of one file; `None` if there is none that can be read.
fn read(dir: &OwnedFd, name: &str) -> Option<Gitignore> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::openat(dir, name, flags, Mode::empty()).ok()?;
    if FileType::from_raw_mode(fs::fstat(&file).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut bytes = Vec::new();
    File::from(file).take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let mut builder = GitignoreBuilder::new("");
    for line in bytes.split(|byte| *byte == b'\n') {
        // A line that does not parse is passed over, as git does.
        let _ = builder.add_line(None, &String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)));
    }
    builder.build().ok()
}
