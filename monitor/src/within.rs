//! Paths in a sandbox's root, once it is entered.
//!
//! When a sandbox is resumed, its root is what commands have made of it: any name may be a link, a pipe or a device. Links
//! are followed inside, but never through a descriptor of ours (`/proc/self/fd/9/..`): those lead out.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, unlinkat},
    io::Errno,
};

const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
/// More is no list of users.
const LONGEST: u64 = 1 << 20;

/// Opens a directory. It and those above it are made if they are missing.
pub(crate) fn directory(path: &Path) -> io::Result<OwnedFd> {
    directory_in(&open_root("/")?, path)
}

/// Reads a text file, if it is one: nothing is waited for.
pub(crate) fn read_text(path: &str) -> io::Result<String> {
    read_text_in(&open_root("/")?, path)
}

/// Puts a file that everybody may read into a directory, in place of what has its name.
pub(crate) fn replace(dir: &OwnedFd, name: &OsStr, content: &[u8]) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(Errno::ISDIR) => unlinkat(dir, name, AtFlags::REMOVEDIR)?,
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::from_raw_mode(0o444))?;
    File::from(file).write_all(content)
}

fn open_root(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn directory_in(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| openat2(root, path, flags, Mode::empty(), INSIDE);
    let mut reached = open(Path::new("/"))?;
    let mut above: Vec<_> = path.ancestors().collect();
    above.reverse();
    for each in above {
        let Some(name) = each.file_name() else { continue };
        reached = match open(each) {
            Err(Errno::NOENT) => {
                mkdirat(&reached, name, Mode::from_raw_mode(0o755))?;
                open(each)?
            }
            opened => opened?,
        };
    }
    Ok(reached)
}

fn read_text_in(root: &OwnedFd, path: &str) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat2(root, path, flags, Mode::empty(), INSIDE)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    File::from(file).take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsRawFd as _, unix::fs::symlink},
    };

    use super::*;

    #[test]
    fn links_are_followed_inside_and_never_out() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("real")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        let leaked = File::open(&outside).unwrap();
        let magic = format!("/proc/self/fd/{}", leaked.as_raw_fd());
        symlink("/real", root.join("inner")).unwrap();
        symlink(&outside, root.join("outer")).unwrap();
        symlink("../../outside", root.join("upward")).unwrap();
        symlink(&magic, root.join("magic")).unwrap();
        let opened = open_root(root.to_str().unwrap()).unwrap();
        directory_in(&opened, Path::new("/inner/a/b")).unwrap();
        assert!(root.join("real/a/b").is_dir());
        for link in ["outer", "upward", "magic"] {
            directory_in(&opened, &Path::new("/").join(link).join("made")).unwrap_err();
            read_text_in(&opened, &format!("/{link}/secret")).unwrap_err();
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        // Where the root is the whole tree, the kernel would follow the link to the descriptor.
        let whole = open_root("/").unwrap();
        let through = root.join("magic").join("made");
        directory_in(&whole, &through).unwrap_err();
        assert!(fs::metadata(root.join("magic/secret")).is_ok());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_root(dir.path().to_str().unwrap()).unwrap();
        rustix::fs::mknodat(&opened, "pipe", FileType::Fifo, Mode::RUSR, 0).unwrap();
        read_text_in(&opened, "pipe").unwrap_err();
        symlink("/dev/zero", dir.path().join("endless")).unwrap();
        read_text_in(&opened, "endless").unwrap_err();
        fs::write(dir.path().join("list"), "x\n").unwrap();
        assert_eq!(read_text_in(&opened, "list").unwrap(), "x\n");
    }

    #[test]
    fn whatever_has_the_name_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let opened = open_root(dir.path().to_str().unwrap()).unwrap();
        let (target, name) = (dir.path().join("target"), OsStr::new("f"));
        fs::write(&target, "kept").unwrap();
        symlink(&target, dir.path().join("f")).unwrap();
        replace(&opened, name, b"1").unwrap();
        replace(&opened, name, b"2").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        fs::remove_file(dir.path().join("f")).unwrap();
        fs::create_dir(dir.path().join("f")).unwrap();
        replace(&opened, name, b"3").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("f")).unwrap(), "3");
    }
}
