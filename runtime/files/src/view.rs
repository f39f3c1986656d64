//! The view of one call: where paths begin, what is `/`, and as whom files are touched.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use sandgate_proto::{runtime::v1::FileView, v1::ErrorReason};

use crate::{
    beneath::{Root, open_beneath},
    error::{Error, Result},
    identity::{Acting, User},
    path::{self, PathArg},
};

/// What holds when a call does not say otherwise: the template's settings.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// The user to act as; none: whoever the runtime is.
    pub user: Option<User>,
    /// Where relative paths begin. Absolute.
    pub cwd: PathBuf,
}

/// The view of one call.
#[derive(Debug)]
pub struct View {
    root: Root,
    start: PathBuf,
    user: Option<User>,
}

// === impl View ===

impl View {
    /// Opens the view that a call asks for.
    ///
    /// # Errors
    /// `UserNotFound`, `UserNotPermitted`, or what opening `root_dir` as that user came to.
    pub fn open(view: &FileView, defaults: &Defaults) -> Result<Self> {
        let user = match view.user.as_str() {
            "" => defaults.user.clone(),
            spec => Some(User::find(spec)?),
        };
        let sent = path::one_of(&view.root_dir, &view.root_dir_raw)?;
        let real = Root::real()?;
        if sent.is_empty() {
            return Ok(Self {
                root: real,
                start: defaults.cwd.clone(),
                user,
            });
        }
        if !sent.starts_with(b"/") {
            return Err(Error::new(ErrorReason::PathInvalid, "root_dir is not absolute"));
        }
        let directory = PathArg::new(&view.root_dir, &view.root_dir_raw, Path::new("/"))?;
        let _acting = act(user.as_ref())?;
        let root = real
            .narrow(directory.as_path())
            .map_err(|error| Error::io(error, &directory))?;
        Ok(Self {
            root,
            start: PathBuf::from("/"),
            user,
        })
    }

    /// What paths are opened beneath.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Checks a path of a request and makes it absolute in this view.
    ///
    /// # Errors
    /// As [`PathArg::new`].
    pub fn path(&self, text: &str, raw: &Bytes) -> Result<PathArg> {
        PathArg::new(text, raw, &self.start)
    }

    /// Like [`View::path`]; an empty path is where relative ones begin.
    ///
    /// # Errors
    /// As [`PathArg::new`].
    pub fn path_or_start(&self, text: &str, raw: &Bytes) -> Result<PathArg> {
        let text = if text.is_empty() && raw.is_empty() { "." } else { text };
        self.path(text, raw)
    }

    /// Makes this thread act as the call's user until the guard is dropped.
    ///
    /// # Errors
    /// As [`User::act`].
    pub fn act(&self) -> Result<Acting> {
        act(self.user.as_ref())
    }

    /// Opens a regular file for reading, following symlinks beneath the root. It is looked at before it is opened,
    /// because opening a FIFO or device can have effects.
    ///
    /// # Errors
    /// `FileIsDirectory`, `FileNotRegular`, or what the kernel says.
    pub fn open_regular(&self, path: &PathArg) -> Result<(OwnedFd, Stat)> {
        let failed = |error| Error::io(error, path);
        if !matches!(self.root.has_regular(path.as_path()), Ok(true)) {
            let found = self.root.open(path.as_path(), OFlags::PATH, Mode::empty());
            must_be_regular(&stat(&found.map_err(failed)?, path)?, path)?;
        }
        let (file, stat) = self.root.open_to_read(path.as_path()).map_err(failed)?;
        must_be_regular(&stat, path)?;
        Ok((file, stat))
    }

    /// Opens a directory for reading, following symlinks beneath the root.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open_directory(&self, path: &PathArg) -> Result<OwnedFd> {
        self.root
            .open(path.as_path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| Error::io(error, path))
    }

    /// Opens a directory, making it and those above it (mode 0755) where they are missing.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn make_directories(&self, path: &Path) -> Result<OwnedFd> {
        self.make_or_open(path).map_err(|error| Error::io(error, path))
    }

    pub(crate) fn make_or_open(&self, path: &Path) -> std::io::Result<OwnedFd> {
        let open = |path: &Path| self.root.open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        // The usual case is that all is there; otherwise go up until something is, and make the rest on the way down.
        let mut missing = Vec::new();
        let mut at = path;
        let mut directory = loop {
            match open(at) {
                Ok(directory) => break directory,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => missing.push(at),
                Err(error) => return Err(error),
            }
            at = at.parent().ok_or(rustix::io::Errno::NOENT)?;
        };
        while let Some(path) = missing.pop() {
            // `a/..` where `a` was missing: now it is there.
            let Ok((_, name)) = crate::beneath::split(path) else {
                directory = open(path)?;
                continue;
            };
            directory = match make_directory(&directory, Path::new(name), 0o755) {
                Ok(made) => made,
                // Someone else was faster, or a symlink to a directory is there.
                Err(rustix::io::Errno::EXIST) => open(path)?,
                Err(errno) => return Err(errno.into()),
            };
        }
        Ok(directory)
    }
}

/// Makes one directory with exactly these permission bits, whatever the umask is.
pub(crate) fn make_directory(at: &OwnedFd, name: &Path, mode: u32) -> rustix::io::Result<OwnedFd> {
    fs::mkdirat(at, name, Mode::from_raw_mode(mode | 0o700))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let directory = open_beneath(at.as_fd(), name, flags, Mode::empty())
        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))?;
    fs::fchmod(&directory, Mode::from_raw_mode(mode))?;
    Ok(directory)
}

/// What the kernel says of an open file.
pub(crate) fn stat(file: &OwnedFd, path: impl AsRef<Path>) -> Result<Stat> {
    fs::fstat(file).map_err(|errno| Error::io(errno, path))
}

/// Refuses everything but regular files.
pub(crate) fn must_be_regular(stat: &Stat, path: impl AsRef<Path>) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Error::new(ErrorReason::FileIsDirectory, "it is a directory").at(path)),
        _ => Err(Error::new(ErrorReason::FileNotRegular, "it is not a regular file").at(path)),
    }
}

fn act(user: Option<&User>) -> Result<Acting> {
    user.map_or_else(|| Ok(Acting::unchanged()), User::act)
}

#[cfg(test)]
mod tests {
    use std::{fs::create_dir, os::unix::fs::symlink};

    use tempfile::TempDir;

    use super::*;

    fn defaults() -> Defaults {
        Defaults {
            user: None,
            cwd: PathBuf::from("/tmp"),
        }
    }

    fn view(root: &Path) -> Result<View> {
        let proto = FileView {
            root_dir: root.to_str().unwrap().to_owned(),
            ..FileView::default()
        };
        View::open(&proto, &defaults())
    }

    #[test]
    fn relative_paths_begin_at_the_root_or_the_working_directory() {
        let directory = TempDir::new().unwrap();
        let none = Bytes::new();
        let inside = view(directory.path()).unwrap();
        assert_eq!(inside.path("x", &none).unwrap().as_path(), Path::new("/x"));
        let real = View::open(&FileView::default(), &defaults()).unwrap();
        assert_eq!(real.path("x", &none).unwrap().as_path(), Path::new("/tmp/x"));
        assert_eq!(real.path_or_start("", &none).unwrap().as_path(), Path::new("/tmp"));
        assert!(real.path("", &none).is_err());
    }

    #[test]
    fn a_root_must_be_an_absolute_directory() {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("f"), "").unwrap();
        symlink("/proc/self/root", directory.path().join("magic")).unwrap();
        for (root, reason) in [
            (PathBuf::from("tmp"), ErrorReason::PathInvalid),
            (directory.path().join("missing"), ErrorReason::FileNotFound),
            (directory.path().join("f"), ErrorReason::FileNotDirectory),
            (directory.path().join("magic"), ErrorReason::PathOutsideRoot),
        ] {
            assert_eq!(view(&root).unwrap_err().reason, reason, "{root:?}");
        }
        let proto = FileView {
            user: "no such user".into(),
            ..FileView::default()
        };
        assert_eq!(
            View::open(&proto, &defaults()).unwrap_err().reason,
            ErrorReason::UserNotFound
        );
    }

    #[test]
    fn directories_are_made_beneath_the_root() {
        let directory = TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        create_dir(at("root")).unwrap();
        create_dir(at("outside")).unwrap();
        symlink("../outside", at("root/out")).unwrap();
        symlink("/there", at("root/in")).unwrap();
        let view = view(&at("root")).unwrap();
        view.make_directories(Path::new("/a/b/c")).unwrap();
        assert!(at("root/a/b/c").is_dir());
        view.make_directories(Path::new("/x/../y/z")).unwrap();
        assert!(at("root/x").is_dir() && at("root/y/z").is_dir());
        // `../outside` is `/outside` in here, and it is missing: nothing is made through the dangling link.
        assert!(view.make_directories(Path::new("/out/a")).is_err());
        assert!(view.make_directories(Path::new("/in/a")).is_err());
        create_dir(at("root/there")).unwrap();
        view.make_directories(Path::new("/in/a")).unwrap();
        assert!(at("root/there/a").is_dir());
        assert_eq!(std::fs::read_dir(at("outside")).unwrap().count(), 0);
    }
}
