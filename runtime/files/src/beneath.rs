//! Opening files beneath a root, by the kernel.
//!
//! Everything in this crate that turns a caller's path into a descriptor goes through here. `openat2` resolves the whole
//! path in one call with the root as `/`, so no symlink, `..` or race leads out. What acts on a name (making, renaming,
//! removing) opens the parent and then names one component of it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustix::{
    fs::{self, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat},
    io::Errno,
};

use crate::path;

/// With `..` in a path the kernel gives up (EAGAIN) when anything anywhere was renamed meanwhile. A busy machine makes
/// that common, not endless.
const MAX_ATTEMPTS: usize = 10_000;

const IN_ROOT: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// A directory that is `/` for everything opened through it.
#[derive(Debug)]
pub struct Root {
    directory: Arc<OwnedFd>,
    /// Of the process's own root: the device that it is on, unless that is procfs. No procfs has the same for as long as the
    /// directory is open.
    device: Option<u64>,
    is_real: bool,
}

/// The root of this process, which stays what it is, and its device.
static REAL: OnceLock<(Arc<OwnedFd>, Option<u64>)> = OnceLock::new();

// === impl Root ===

impl Root {
    /// The root of this process.
    pub fn real() -> io::Result<Self> {
        let (directory, device) = match REAL.get() {
            Some(real) => real.clone(),
            None => {
                let opened = fs::open("/", DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                let device = match on_procfs(opened.as_fd())? {
                    true => None,
                    false => Some(fs::fstat(&opened)?.st_dev),
                };
                REAL.get_or_init(|| (Arc::new(opened), device)).clone()
            }
        };
        Ok(Self {
            directory,
            device,
            is_real: true,
        })
    }

    /// The directory at `path`, itself resolved beneath this root.
    pub fn narrow(&self, path: &Path) -> io::Result<Self> {
        let directory = Arc::new(self.open(path, DIRECTORY, Mode::empty())?);
        Ok(Self {
            directory,
            device: None,
            is_real: false,
        })
    }

    /// Opens `path` beneath the root, following symlinks beneath it.
    ///
    /// The descriptor is close-on-exec, never a controlling terminal, and does not block. Nothing on procfs is opened
    /// for writing, nor are the files of a process: a thread may always open its own process's memory, whatever user it
    /// acts as.
    pub fn open(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        open(self.directory.as_fd(), path, flags, mode, IN_ROOT)
    }

    /// The same for reading, with what the kernel says of it, in fewer calls than one after the other.
    pub fn open_to_read(&self, path: &Path) -> io::Result<(OwnedFd, Stat)> {
        let flags = OFlags::RDONLY;
        let file = open_unguarded(self.directory.as_fd(), path, flags, Mode::empty(), IN_ROOT)?;
        let stat = fs::fstat(&file)?;
        if self.device != Some(stat.st_dev) {
            guard_procfs(&file, flags)?;
        }
        Ok((file, stat))
    }

    /// Whether a regular file is at `path`, following symlinks beneath the root. It may be another one a moment later.
    pub fn has_regular(&self, path: &Path) -> io::Result<bool> {
        let is_regular = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        // Where the kernel would go by itself, one call is enough. It follows magic links too; a look does no harm.
        if self.is_real && path.is_absolute() {
            return Ok(is_regular(fs::stat(path)?));
        }
        Ok(is_regular(fs::fstat(self.open(path, OFlags::PATH, Mode::empty())?)?))
    }

    /// Like [`Root::open`], with the last component taken for itself: a symlink there is opened with `O_PATH`, and is
    /// ELOOP without.
    pub fn open_nofollow(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        self.open(path, flags | OFlags::NOFOLLOW, mode)
    }

    /// The directory that holds `path` (opened with `O_PATH`), and the path's name in it. EINVAL if the path ends in `.`
    /// or `..`, or is the root.
    pub fn parent(&self, path: &Path) -> io::Result<(OwnedFd, OsString)> {
        let (parent, name) = split(path)?;
        Ok((self.open(parent, DIRECTORY, Mode::empty())?, name.to_owned()))
    }

    /// The directory itself (opened with `O_PATH`).
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Opens `relative` beneath a directory that was opened before; symlinks that lead out of it are refused (EXDEV), and so
/// is an absolute path. Otherwise like [`Root::open`].
pub fn open_beneath(directory: impl AsFd, relative: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    open(directory.as_fd(), relative, flags, mode, BENEATH)
}

/// Splits a path into what comes before its last component and that component. EINVAL as in [`Root::parent`].
pub fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let mut bytes = path::bytes(path);
    while let [rest @ .., b'/'] = bytes {
        bytes = rest;
    }
    let cut = memchr::memrchr(b'/', bytes).map_or(0, |slash| slash + 1);
    let (parent, name) = bytes.split_at(cut);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Errno::INVAL.into());
    }
    let parent = if parent.is_empty() { b"." } else { parent };
    Ok((Path::new(OsStr::from_bytes(parent)), OsStr::from_bytes(name)))
}

/// Refuses (EACCES) to change anything on procfs.
pub fn refuse_procfs(file: impl AsFd) -> io::Result<()> {
    if on_procfs(file.as_fd())? {
        return Err(Errno::ACCESS.into());
    }
    Ok(())
}

/// Whether this is a file of a process, on procfs: what it says is the process's, whoever reads it.
pub fn belongs_to_process(file: impl AsFd) -> io::Result<bool> {
    let file = file.as_fd();
    // Without a path (no /proc here, or another one) nothing says whose file it is.
    Ok(on_procfs(file)? && real_path(file).map_or(true, |path| names_process(&path)))
}

/// Where the file is, in the view of this process and not of any root. Text for journals and comparisons: what it names
/// may be something else a moment later.
pub fn real_path(file: impl AsFd) -> io::Result<PathBuf> {
    let link = fs::readlink(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(link.as_bytes())))
}

fn open(at: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    let file = open_unguarded(at, path, flags, mode, resolve)?;
    if !flags.contains(OFlags::PATH) {
        guard_procfs(&file, flags)?;
    }
    Ok(file)
}

fn open_unguarded(
    at: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    // openat2 takes no flag that has no meaning: none of these with O_PATH, no mode where nothing is made.
    let flags = if flags.contains(OFlags::PATH) {
        flags | OFlags::CLOEXEC
    } else {
        flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK
    };
    let makes = flags.intersects(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
    let mode = if makes { mode } else { Mode::empty() };
    retried(|| fs::openat2(at, path, flags, mode, resolve))
}

fn retried(open: impl Fn() -> rustix::io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    for attempt in 1.. {
        match open() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if attempt < MAX_ATTEMPTS => {}
            other => return Ok(other?),
        }
    }
    Err(Errno::AGAIN.into())
}

fn guard_procfs(file: &OwnedFd, flags: OFlags) -> io::Result<()> {
    if !on_procfs(file.as_fd())? {
        return Ok(());
    }
    let written = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
    if written || belongs_to_process(file)? {
        return Err(Errno::ACCESS.into());
    }
    Ok(())
}

fn on_procfs(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(fs::fstatfs(file)?.f_type == PROC_SUPER_MAGIC)
}

fn names_process(path: &Path) -> bool {
    path.iter()
        .any(|name| !name.is_empty() && name.as_bytes().iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{create_dir, write},
        os::unix::fs::symlink,
    };

    use tempfile::TempDir;

    use super::*;

    const READ: OFlags = OFlags::RDONLY;

    fn outside_and_root() -> (TempDir, Root) {
        let outside = TempDir::new().unwrap();
        create_dir(outside.path().join("root")).unwrap();
        write(outside.path().join("secret"), "secret").unwrap();
        write(outside.path().join("root/inside"), "inside").unwrap();
        let root = Root::real().unwrap().narrow(&outside.path().join("root")).unwrap();
        (outside, root)
    }

    fn errno(result: io::Result<OwnedFd>) -> Option<Errno> {
        Errno::from_io_error(&result.unwrap_err())
    }

    #[test]
    fn absolute_paths_and_dots_stay_beneath_the_root() {
        let (_outside, root) = outside_and_root();
        for path in ["/inside", "inside", "/../inside", "../../inside", "/./inside"] {
            assert!(root.open(Path::new(path), READ, Mode::empty()).is_ok(), "{path}");
        }
        for path in ["../secret", "/../secret", "/../../../../etc/passwd", "/etc/passwd"] {
            assert_eq!(
                errno(root.open(Path::new(path), READ, Mode::empty())),
                Some(Errno::NOENT),
                "{path}"
            );
        }
    }

    #[test]
    fn symlinks_stay_beneath_the_root() {
        let (outside, root) = outside_and_root();
        let at = |name: &str| outside.path().join("root").join(name);
        symlink(outside.path().join("secret"), at("absolute")).unwrap();
        symlink("../secret", at("relative")).unwrap();
        symlink("/inside", at("within")).unwrap();
        symlink("loop", at("loop")).unwrap();
        assert_eq!(
            errno(root.open(Path::new("absolute"), READ, Mode::empty())),
            Some(Errno::NOENT)
        );
        assert_eq!(
            errno(root.open(Path::new("relative"), READ, Mode::empty())),
            Some(Errno::NOENT)
        );
        assert_eq!(
            errno(root.open(Path::new("loop"), READ, Mode::empty())),
            Some(Errno::LOOP)
        );
        assert!(root.open(Path::new("within"), READ, Mode::empty()).is_ok());
        assert_eq!(
            errno(root.open_nofollow(Path::new("within"), READ, Mode::empty())),
            Some(Errno::LOOP)
        );
        assert!(
            root.open_nofollow(Path::new("within"), OFlags::PATH, Mode::empty())
                .is_ok()
        );
        let beneath = |name: &str| open_beneath(root.as_fd(), Path::new(name), READ, Mode::empty());
        assert_eq!(errno(beneath("relative")), Some(Errno::XDEV));
        assert_eq!(errno(beneath("absolute")), Some(Errno::XDEV));
        assert_eq!(errno(beneath("/inside")), Some(Errno::XDEV));
        assert_eq!(errno(beneath("..")), Some(Errno::XDEV));
        assert!(beneath("inside").is_ok());
    }

    #[test]
    fn parents_are_opened_and_names_kept() {
        let (_outside, root) = outside_and_root();
        for (path, name) in [("/inside", "inside"), ("new", "new"), ("/../x/", "x")] {
            assert_eq!(root.parent(Path::new(path)).unwrap().1, name);
        }
        for path in ["/", "", ".", "..", "/..", "a/..", "a/.", "///"] {
            let error = root.parent(Path::new(path)).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::INVAL), "{path}");
        }
        assert!(root.parent(Path::new("/inside/x")).is_err());
    }

    #[test]
    fn processes_of_procfs_are_closed() {
        let root = Root::real().unwrap();
        let read = |path: &str| root.open(Path::new(path), READ, Mode::empty());
        // Those that are not looked at once more are the root's own.
        assert!(root.device.is_some());
        let read_at_once = |path: &str| root.open_to_read(Path::new(path)).map(|(file, _)| file);
        for path in [
            "/proc/self/mem",
            "/proc/self/environ",
            "/proc/1/status",
            "/proc/self",
            "/proc/thread-self/maps",
        ] {
            assert_eq!(errno(read(path)), Some(Errno::ACCESS), "{path}");
            assert_eq!(errno(read_at_once(path)), Some(Errno::ACCESS), "{path}");
        }
        for path in [
            "/proc/self/root",
            "/proc/self/root/etc/passwd",
            "/proc/self/exe",
            "/proc/self/fd/0",
        ] {
            assert_eq!(errno(read(path)), Some(Errno::LOOP), "{path}");
            assert_eq!(errno(read_at_once(path)), Some(Errno::LOOP), "{path}");
        }
        assert!(read("/proc/version").is_ok() && read_at_once("/proc/version").is_ok());
        let write = root.open(Path::new("/proc/sys/kernel/hostname"), OFlags::WRONLY, Mode::empty());
        assert_eq!(errno(write), Some(Errno::ACCESS));
        assert!(root.open(Path::new("/proc/self"), OFlags::PATH, Mode::empty()).is_ok());
    }

    #[test]
    fn names_of_processes_are_all_digits() {
        for (path, yes) in [
            ("/proc/12/mem", true),
            ("/proc/12", true),
            ("/proc/stat", false),
            ("/proc/1a", false),
        ] {
            assert_eq!(names_process(Path::new(path)), yes, "{path}");
        }
    }
}
