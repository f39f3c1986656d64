//! Removing a sandbox's files.
//!
//! They were made by whoever ran inside: names and links may be meant to lead elsewhere. So nothing is followed, and every
//! step is taken from an open directory.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat, statat, unlinkat},
    io::Errno,
};

/// More than this many entries are not counted.
const COUNTED: u32 = 20_000;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Removes a file or a whole directory. That there is none is no error.
///
/// # Errors
/// With the first thing that can't be removed; the rest is removed all the same.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let emptied = match open_dir(CWD, path) {
        Ok(dir) => empty(dir),
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => Err(error.into()),
    };
    match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => emptied.and(Err(error.into())),
    }
}

/// Empties a directory, with a stack of our own: a tree may be deeper than ours.
fn empty(top: OwnedFd) -> io::Result<()> {
    let mut failed = None;
    // Each directory with the name under which its parent knows it.
    let mut path: Vec<(OwnedFd, Vec<u8>)> = vec![(top, Vec::new())];
    while let Some((dir, _)) = path.last() {
        let mut deeper = None;
        for name in names(dir.as_fd())? {
            let name = c_name(&name);
            match unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => match unlinkat(dir, name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST) => match open_dir(dir, name) {
                        Ok(below) => {
                            deeper = Some((below, name.to_bytes_with_nul().to_vec()));
                            break;
                        }
                        Err(error) => note(&mut failed, error),
                    },
                    Err(error) => note(&mut failed, error),
                },
                Err(error) => note(&mut failed, error),
            }
        }
        match deeper {
            // What failed once is not tried for ever.
            Some(below) if failed.is_none() => path.push(below),
            _ => {
                let name = path.pop().map(|(_, name)| name).unwrap_or_default();
                if let Some((parent, _)) = path.last()
                    && let Err(error) = unlinkat(parent, c_name(&name), AtFlags::REMOVEDIR)
                {
                    note(&mut failed, error);
                }
            }
        }
        if failed.is_some() && path.is_empty() {
            break;
        }
    }
    failed.map_or(Ok(()), |error: Errno| Err(error.into()))
}

/// Bytes that a tree takes up on its disk. `None`: too many files to count.
///
/// # Errors
/// When a directory can't be read.
pub fn disk_bytes(path: &Path) -> io::Result<Option<u64>> {
    let mut bytes = 0u64;
    let mut counted = 0;
    let mut left = match open_dir(CWD, path) {
        Ok(dir) => vec![dir],
        Err(Errno::NOENT) => return Ok(Some(0)),
        Err(error) => return Err(error.into()),
    };
    while let Some(dir) = left.pop() {
        for name in names(dir.as_fd())? {
            counted += 1;
            if counted > COUNTED {
                return Ok(None);
            }
            let Ok(stat) = statat(&dir, c_name(&name), AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                && let Ok(below) = open_dir(&dir, c_name(&name))
            {
                left.push(below);
            }
        }
    }
    Ok(Some(bytes))
}

/// Opens a directory, also one that its owner may not read: overlayfs makes such.
fn open_dir<P: rustix::path::Arg + Copy>(at: impl AsFd, path: P) -> Result<OwnedFd, Errno> {
    match openat(&at, path, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let kind = statat(&at, path, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(kind.st_mode) != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            chmodat(&at, path, Mode::RWXU, AtFlags::empty())?;
            openat(&at, path, DIRECTORY, Mode::empty())
        }
        opened => opened,
    }
}

fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            found.push(name.to_bytes_with_nul().to_vec());
        }
    }
    Ok(found)
}

fn c_name(bytes: &[u8]) -> &CStr {
    CStr::from_bytes_with_nul(bytes).unwrap_or(c"")
}

fn note(failed: &mut Option<Errno>, error: Errno) {
    failed.get_or_insert(error);
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn nothing_outside_is_touched_and_nothing_inside_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/link")).unwrap();
        fs::write(tree.join("a/b/file"), vec![1; 10_000]).unwrap();
        fs::create_dir_all(tree.join("closed/in")).unwrap();
        fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        assert!(disk_bytes(&tree).unwrap().unwrap() >= 10_000);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn a_very_deep_tree_goes_too() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("deep");
        fs::create_dir(&top).unwrap();
        let mut at = openat(CWD, &top, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..900 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }
}
