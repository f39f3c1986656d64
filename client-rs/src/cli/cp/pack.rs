//! A directory of this machine as a tar stream.
//!
//! Symlinks are sent as such, and never followed. What can't be read is told and left out.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use tar::{Builder, EntryType, Header};

use super::Trouble;
use crate::cli::failure::plain;

/// Writes everything beneath `root`, which itself is not an entry. Answers with what was left out.
pub(super) fn pack(root: &Path, out: &mut dyn Write) -> io::Result<Vec<Trouble>> {
    let mut pack = Pack {
        root,
        archive: Builder::new(out),
        troubles: Vec::new(),
    };
    // Names are put on the pile in reverse, so that they come off sorted and directories before what is in them.
    let mut pile = vec![PathBuf::new()];
    while let Some(name) = pile.pop() {
        if let Some(inside) = pack.entry(&name)? {
            pile.extend(inside.into_iter().rev().map(|inner| name.join(inner)));
        }
    }
    pack.archive.finish()?;
    Ok(pack.troubles)
}

struct Pack<'a, W: Write> {
    root: &'a Path,
    archive: Builder<W>,
    troubles: Vec<Trouble>,
}

/// Exactly `left` bytes: what the file lacks by then is filled up, so that the archive stays in step.
struct Exactly<'a> {
    file: &'a mut File,
    left: u64,
    failed: Option<io::Error>,
}

// === impl Pack ===

impl<W: Write> Pack<'_, W> {
    /// Writes one entry. An error is of the archive; trouble with the file is noted. Of a directory the names in it.
    fn entry(&mut self, name: &Path) -> io::Result<Option<Vec<OsString>>> {
        let path = self.root.join(name);
        let top = name.as_os_str().is_empty();
        let read = if top {
            fs::metadata(&path)
        } else {
            path.symlink_metadata()
        };
        let Some(found) = self.or_trouble(&path, read) else {
            return Ok(None);
        };
        let kind = found.file_type();
        if kind.is_dir() {
            let Some(names) = self.or_trouble(&path, names(&path)) else {
                return Ok(None);
            };
            if !top {
                let mut header = header(&found, EntryType::Directory, 0);
                self.archive.append_data(&mut header, name, io::empty())?;
            }
            return Ok(Some(names));
        }
        if kind.is_symlink() {
            if let Some(target) = self.or_trouble(&path, fs::read_link(&path)) {
                self.archive
                    .append_link(&mut header(&found, EntryType::Symlink, 0), name, target)?;
            }
        } else if kind.is_file() {
            self.file(&path, name)?;
        } else {
            self.trouble(&path, "it is a device, a FIFO or a socket");
        }
        Ok(None)
    }

    fn file(&mut self, path: &Path, name: &Path) -> io::Result<()> {
        let opened = open(path).and_then(|file| file.metadata().map(|found| (file, found)));
        let Some((mut file, found)) = self.or_trouble(path, opened) else {
            return Ok(());
        };
        if !found.is_file() {
            self.trouble(path, "it was replaced while it was read");
            return Ok(());
        }
        let mut exactly = Exactly {
            file: &mut file,
            left: found.len(),
            failed: None,
        };
        self.archive
            .append_data(&mut header(&found, EntryType::Regular, found.len()), name, &mut exactly)?;
        if let Some(error) = exactly.failed {
            self.trouble(path, &format!("{error}: the copy is not whole"));
        }
        Ok(())
    }

    fn or_trouble<T>(&mut self, path: &Path, outcome: io::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.trouble(path, &plain(&error))).ok()
    }

    fn trouble(&mut self, path: &Path, message: &str) {
        self.troubles.push(Trouble::here(path, message));
    }
}

fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names: Vec<OsString> = fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

/// Opens what was a regular file a moment ago: it may be a link or a FIFO by now.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path)
}

fn header(found: &Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(found.mode() & 0o7777);
    header.set_mtime(u64::try_from(found.mtime()).unwrap_or_default());
    header.set_size(size);
    header
}

// === impl Exactly ===

impl Read for Exactly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        let read = match self.failed {
            Some(_) => 0,
            None => match self.file.read(&mut buffer[..want]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    0
                }
                Ok(0) => {
                    self.failed = Some(io::Error::other("it shrank while it was read"));
                    0
                }
                Ok(read) => read,
            },
        };
        let count = if read == 0 {
            buffer[..want].fill(0);
            want
        } else {
            read
        };
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use tar::Archive;

    use super::*;

    #[test]
    fn a_tree_is_packed_in_order_with_links_as_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("b/c")).unwrap();
        fs::write(root.join("b/c/file"), "deep").unwrap();
        fs::write(root.join("a"), "first").unwrap();
        fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("../outside", root.join("link")).unwrap();
        let long = "n".repeat(200);
        fs::write(root.join(&long), "long").unwrap();
        let mut tar = Vec::new();
        assert!(pack(root, &mut tar).unwrap().is_empty());

        let mut archive = Archive::new(tar.as_slice());
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            let name = entry.path().unwrap().display().to_string();
            if name == "a" {
                assert_eq!(entry.header().mode().unwrap(), 0o750);
            }
            seen.push((name, content, link));
        }
        let names: Vec<&str> = seen.iter().map(|(name, ..)| name.trim_end_matches('/')).collect();
        assert_eq!(names, ["a", "b", "b/c", "b/c/file", "link", &long]);
        assert_eq!((seen[0].1.as_str(), seen[3].1.as_str()), ("first", "deep"));
        assert_eq!(seen[4].2.as_deref(), Some("../outside"));
    }

    #[test]
    fn what_can_not_be_sent_is_told_and_the_rest_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("a-socket")).unwrap();
        fs::write(dir.path().join("z"), "kept").unwrap();
        let mut tar = Vec::new();
        let troubles = pack(dir.path(), &mut tar).unwrap();
        assert_eq!(troubles.len(), 1);
        assert!(troubles[0].path.ends_with("a-socket"));
        assert_eq!(Archive::new(tar.as_slice()).entries().unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_shrank_keeps_the_archive_in_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "abc").unwrap();
        let mut file = File::open(&path).unwrap();
        let mut exactly = Exactly {
            file: &mut file,
            left: 5,
            failed: None,
        };
        let mut read = Vec::new();
        exactly.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"abc\0\0");
        assert!(exactly.failed.is_some());
    }
}
