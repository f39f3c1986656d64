//! Temporary names that a killed runtime would leave behind, noted in a journal so that the next one removes them.
//!
//! Most temporaries have no name at all (`O_TMPFILE`) and vanish with the process. One is named for the moment before it
//! replaces a file, or for longer where the file system has no unnamed files.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags},
    rand::{GetRandomFlags, getrandom},
};

use crate::{beneath, path};

const PREFIX: &[u8] = b".sandgate-";
const SUFFIX: &[u8] = b".tmp";
const DIGITS: usize = 16;
/// A journal that grew to this is written anew with what is still pending.
const MAX_JOURNAL: u64 = 1 << 20;

/// The journal. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Litter {
    journal: Option<Arc<Mutex<Journal>>>,
}

/// A temporary name that is in the journal until this is dropped.
#[derive(Debug)]
pub struct Noted {
    litter: Litter,
    path: Option<PathBuf>,
}

#[derive(Debug)]
struct Journal {
    file: File,
    length: u64,
    pending: BTreeSet<PathBuf>,
}

// === impl Litter ===

impl Litter {
    /// Opens the journal at `path` and removes what the names in it still point to. A default one keeps no journal.
    ///
    /// # Errors
    /// What opening the journal came to. What can't be removed is left, and forgotten.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        for path in content.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
            // It may be gone, or the runtime was killed before it was made.
            let _gone = sweep(Path::new(OsStr::from_bytes(path)));
        }
        let mut journal = Journal {
            file,
            length: content.len() as u64,
            pending: BTreeSet::new(),
        };
        journal.rewrite()?;
        Ok(Self {
            journal: Some(Arc::new(Mutex::new(journal))),
        })
    }

    /// Notes that `name` is about to be made in an open directory.
    pub fn note(&self, directory: &OwnedFd, name: &OsStr) -> Noted {
        let path = self.lock().and_then(|mut journal| {
            // Without a journal a crash leaves a file behind; that is no reason to refuse the write.
            let path = beneath::real_path(directory).ok()?.join(name);
            journal.add(&path).ok()?;
            Some(path)
        });
        Noted {
            litter: self.clone(),
            path,
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Journal>> {
        let journal = self.journal.as_ref()?;
        Some(journal.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Noted ===

impl Drop for Noted {
    fn drop(&mut self) {
        if let (Some(path), Some(mut journal)) = (self.path.take(), self.litter.lock()) {
            journal.remove(&path);
        }
    }
}

// === impl Journal ===

impl Journal {
    fn add(&mut self, path: &Path) -> io::Result<()> {
        let mut line = path::bytes(path).to_vec();
        line.push(0);
        self.file.write_all(&line)?;
        self.length += line.len() as u64;
        self.pending.insert(path.to_owned());
        Ok(())
    }

    fn remove(&mut self, path: &Path) {
        self.pending.remove(path);
        if self.pending.is_empty() || self.length > MAX_JOURNAL {
            // Names too many in the journal do no harm.
            let _kept = self.rewrite();
        }
    }

    fn rewrite(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.length = 0;
        for path in std::mem::take(&mut self.pending) {
            self.add(&path)?;
        }
        Ok(())
    }
}

/// A new name for a temporary file.
pub fn temporary_name() -> io::Result<OsString> {
    let mut random = [0; DIGITS / 2];
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(OsString::from(format!(
        ".sandgate-{:016x}.tmp",
        u64::from_ne_bytes(random)
    )))
}

/// Whether this is a name that [`temporary_name`] makes.
pub fn is_temporary(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

/// Removes one leftover. The workload may have put anything in its place, so no symlink is followed on the way.
fn sweep(path: &Path) -> io::Result<()> {
    let (parent, name) = beneath::split(path)?;
    if !is_temporary(name.as_bytes()) {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::openat2(fs::CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let stat = fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        fs::unlinkat(&directory, name, AtFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::read_dir, os::unix::fs::symlink};

    use tempfile::TempDir;

    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn temporary_names_are_told_from_others() {
        assert!(is_temporary(temporary_name().unwrap().as_bytes()));
        assert_ne!(temporary_name().unwrap(), temporary_name().unwrap());
        for name in [
            "x",
            ".sandgate-.tmp",
            ".sandgate-0123456789abcdeg.tmp",
            ".sandgate-0123456789abcdef0.tmp",
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_leftover_is_removed_and_nothing_else() {
        let directory = TempDir::new().unwrap();
        let state = TempDir::new().unwrap();
        let journal = state.path().join("litter");
        let opened = OwnedFd::from(File::open(directory.path()).unwrap());
        let litter = Litter::open(&journal).unwrap();
        let (left, done, linked) = (
            temporary_name().unwrap(),
            temporary_name().unwrap(),
            temporary_name().unwrap(),
        );
        for name in [&left, OsStr::new("other")] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        symlink("other", directory.path().join(&linked)).unwrap();
        // A killed runtime does not drop its guards.
        std::mem::forget(litter.note(&opened, &left));
        std::mem::forget(litter.note(&opened, &linked));
        std::mem::forget(litter.note(&opened, OsStr::new("other")));
        drop(litter.note(&opened, &done));
        assert_ne!(std::fs::metadata(&journal).unwrap().len(), 0);

        Litter::open(&journal).unwrap();
        assert_eq!(std::fs::metadata(&journal).unwrap().len(), 0);
        let mut expected = vec![linked, OsString::from("other")];
        expected.sort();
        assert_eq!(names(directory.path()), expected);
    }

    #[test]
    fn the_journal_is_empty_when_nothing_is_pending() {
        let state = TempDir::new().unwrap();
        let journal = state.path().join("litter");
        let litter = Litter::open(&journal).unwrap();
        let opened = OwnedFd::from(File::open(state.path()).unwrap());
        let length = || std::fs::metadata(&journal).unwrap().len();
        let first = litter.note(&opened, OsStr::new("a"));
        let second = litter.note(&opened, OsStr::new("b"));
        drop(first);
        assert_ne!(length(), 0);
        drop(second);
        assert_eq!(length(), 0);
    }
}
