//! The state directory: what lies in it when the server starts, and putting things there and out of the way.
//!
//! A sandbox is made in `new/`, lives in `sandboxes/` and ends in `trash/`; each step is a rename, so that a kill at any
//! point leaves it wholly in one of them.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags},
    io::Errno,
};
use sandgate_monitor::{Record, Root, Status, UidRange, layout, now_ms, remove_tree};
use sandgate_provider::{Name, limits::millis};
use tokio::time::{self, Instant};

use crate::started::Started;

/// How long something damaged is kept for a person to look at.
const KEEP_DAMAGED: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often we look whether a monitor has ended.
const POLL: Duration = Duration::from_millis(50);

/// The state directory.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
}

/// A sandbox that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: Name,
    pub(crate) dir: PathBuf,
    pub(crate) record: Record,
    pub(crate) status: Status,
    pub(crate) started: Option<Started>,
}

/// A directory that is on its way out, or was never finished.
#[derive(Debug)]
pub(crate) struct Litter {
    pub(crate) dir: PathBuf,
    pub(crate) record: Option<Record>,
}

/// All that was found.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) sandboxes: Vec<Found>,
    pub(crate) unfinished: Vec<Litter>,
    pub(crate) trash: Vec<Litter>,
    /// Prepared roots that something refers to.
    roots_in_use: Vec<PathBuf>,
}

// === impl Store ===

impl Store {
    /// Opens a state directory, and makes what is missing.
    ///
    /// # Errors
    /// With what can't be made.
    pub(crate) fn open(root: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        let make = |path: &Path| private.create(path).map_err(|error| (path.to_owned(), error));
        make(root)?;
        // Monitors are started elsewhere, and records outlive the directory that we were started in.
        let root = fs::canonicalize(root).map_err(|error| (root.to_owned(), error))?;
        for name in [
            layout::SANDBOXES,
            layout::NEW,
            layout::TRASH,
            layout::DAMAGED,
            layout::ROOTS,
        ] {
            make(&root.join(name))?;
        }
        spread(&root.join(layout::NEW));
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn roots(&self) -> PathBuf {
        self.root.join(layout::ROOTS)
    }

    /// Where a sandbox is made.
    pub(crate) fn unfinished(&self, uid: &str) -> PathBuf {
        self.root.join(layout::NEW).join(uid)
    }

    /// Where a sandbox lives.
    pub(crate) fn sandbox(&self, name: &Name) -> PathBuf {
        self.root.join(layout::SANDBOXES).join(name.as_str())
    }

    pub(crate) fn trash(&self, uid: &str) -> PathBuf {
        self.root.join(layout::TRASH).join(uid)
    }

    /// Makes a directory for a sandbox that is to be.
    ///
    /// # Errors
    /// When the disk refuses it; nothing is left then.
    pub(crate) fn make(&self, record: &Record) -> io::Result<PathBuf> {
        let dir = self.unfinished(&record.uid);
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        match record.write(&dir) {
            Ok(()) => Ok(dir),
            Err(error) => {
                let _ = remove_tree(&dir);
                Err(error)
            }
        }
    }

    /// Moves a directory out of the way and removes it. For what no monitor looks after.
    ///
    /// # Errors
    /// With what can't be removed.
    pub(crate) fn discard(&self, dir: &Path, uid: &str) -> io::Result<()> {
        let trash = self.trash(uid);
        match fs::rename(dir, &trash) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            // Its monitor may have moved it there.
            _ => {
                remove_cgroups(&trash);
                remove_tree(&trash)
            }
        }
    }

    /// Looks at everything. What can't be understood is set aside.
    pub(crate) fn scan(&self) -> Contents {
        // First what is being made: it may become a sandbox while we look.
        let mut contents = Contents {
            unfinished: self.litter(layout::NEW),
            ..Contents::default()
        };
        for dir in entries(&self.root.join(layout::SANDBOXES)) {
            match Found::read(&dir) {
                Ok(found) => contents.sandboxes.push(found),
                Err(problem) => self.set_aside(&dir, &problem),
            }
        }
        contents.trash = self.litter(layout::TRASH);
        let found = contents.sandboxes.iter().map(|found| found.record.clone());
        let unfinished = contents.unfinished.iter().filter_map(|litter| litter.record.clone());
        contents.roots_in_use = found.chain(unfinished).filter_map(skeleton).collect();
        contents
    }

    fn litter(&self, name: &str) -> Vec<Litter> {
        let dirs = entries(&self.root.join(name)).into_iter();
        let litter = dirs.map(|dir| Litter {
            record: Record::read(&dir).ok(),
            dir,
        });
        litter.collect()
    }

    /// The sandbox of that record, if it is complete after all.
    pub(crate) fn completed(&self, record: &Record) -> Option<Found> {
        let name = Name::parse("name", &record.name).ok()?;
        let found = Found::read(&self.sandbox(&name)).ok()?;
        (found.record.uid == record.uid).then_some(found)
    }

    fn set_aside(&self, dir: &Path, problem: &str) {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.root.join(layout::DAMAGED).join(format!("{name}.{}", now_ms()));
        match fs::rename(dir, &aside) {
            Ok(()) => tracing::warn!(
                dir = %dir.display(), aside = %aside.display(), problem,
                "a sandbox's directory is damaged: set aside, and removed in 7 days"
            ),
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, problem, "a damaged directory can't be set aside")
            }
        }
    }

    /// Removes what was set aside long ago.
    pub(crate) fn reap_damaged(&self, now_ms: u64) {
        for dir in entries(&self.root.join(layout::DAMAGED)) {
            let since = dir.extension().and_then(|ms| ms.to_str()?.parse::<u64>().ok());
            if since.is_some_and(|since| since.saturating_add(millis(KEEP_DAMAGED)) < now_ms) {
                remove(&dir);
            }
        }
    }

    /// Removes prepared roots that nobody uses.
    pub(crate) fn reap_roots(&self, contents: &Contents, templates: &[Root]) {
        let templates = templates.iter().filter_map(|root| match root {
            Root::Host { skeleton, .. } => Some(skeleton),
            Root::Rootfs { .. } => None,
        });
        let used: Vec<_> = templates.chain(&contents.roots_in_use).collect();
        for dir in entries(&self.roots()) {
            if !used.contains(&&dir) {
                remove(&dir);
            }
        }
    }
}

// === impl Litter ===

impl Litter {
    /// Uids that its files have.
    pub(crate) fn range(&self) -> Option<UidRange> {
        self.record.as_ref()?.spec.uid_range
    }
}

// === impl Found ===

impl Found {
    fn read(dir: &Path) -> Result<Self, String> {
        let record = Record::read(dir).map_err(|error| format!("{}: {error}", layout::RECORD))?;
        let status = Status::read(dir).map_err(|error| format!("{}: {error}", layout::STATUS))?;
        let name = Name::parse("name", &record.name).map_err(|refusal| refusal.message)?;
        if dir.file_name().is_none_or(|file| file != name.as_str()) {
            return Err(format!("its record is that of {name}"));
        }
        if record.uid.is_empty() {
            return Err("its record has no uid".to_owned());
        }
        Ok(Self {
            name,
            dir: dir.to_owned(),
            record,
            status,
            started: Started::read(dir),
        })
    }
}

fn skeleton(record: Record) -> Option<PathBuf> {
    match record.spec.root {
        Root::Host { skeleton, .. } => Some(skeleton),
        Root::Rootfs { .. } => None,
    }
}

/// Asks the file system to keep what is made in a directory apart from each other. ext4 gives no number of a file that was
/// removed lately to a new one, and looks at each of them in turn: where sandboxes come and go in one place of the disk, each
/// is made more slowly than the one before. What knows no such wish has no need of it.
fn spread(dir: &Path) {
    let wish = |dir: fs::File| ioctl_setflags(&dir, ioctl_getflags(&dir)? | IFlags::TOPDIR);
    if let Err(error) = fs::File::open(dir).and_then(|dir| Ok(wish(dir)?)) {
        tracing::debug!(dir = %dir.display(), %error, "what is made there can't be spread over the disk");
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(dir).inspect_err(|error| {
        tracing::warn!(dir = %dir.display(), %error, "can't be read");
    });
    found
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// Waits until no monitor looks after a directory, at most for `span`. Tells whether that is so.
pub(crate) async fn unattended(dir: &Path, span: Duration) -> bool {
    let until = Instant::now() + span;
    while is_attended(dir) {
        if Instant::now() > until {
            return false;
        }
        time::sleep(POLL).await;
    }
    true
}

/// Each monitor holds a lock on its directory for as long as it lives.
pub(crate) fn is_attended(dir: &Path) -> bool {
    let locked = |file: fs::File| flock(file, FlockOperation::NonBlockingLockExclusive);
    fs::File::open(dir).is_ok_and(|file| locked(file) == Err(Errno::WOULDBLOCK))
}

/// Removes what is left of a sandbox in the trash.
pub(crate) fn clear(dir: &Path) {
    remove_cgroups(dir);
    remove(dir);
}

/// For a sandbox whose monitor was killed and could not do it.
fn remove_cgroups(dir: &Path) {
    // A status that can't be read is that of nothing that was started.
    Status::read(dir).unwrap_or_default().remove_cgroups();
}

/// Removes something in the background: what fails now is tried again at the next start.
fn remove(dir: &Path) {
    if let Err(error) = remove_tree(dir) {
        tracing::warn!(dir = %dir.display(), %error, "can't be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::testing::record;

    fn names(dir: PathBuf) -> Vec<String> {
        let mut names: Vec<_> = entries(&dir)
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_damaged_is_set_aside_and_the_rest_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state")).unwrap();
        let sandboxes = store.root().join(layout::SANDBOXES);
        for name in ["good", "other"] {
            let made = store.make(&record(name, name)).unwrap();
            fs::rename(made, sandboxes.join(name)).unwrap();
        }
        fs::rename(sandboxes.join("other"), sandboxes.join("renamed")).unwrap();
        fs::create_dir(sandboxes.join("empty")).unwrap();
        fs::create_dir(sandboxes.join("cut")).unwrap();
        fs::write(sandboxes.join("cut").join(layout::RECORD), "{\"name\": \"cu").unwrap();
        fs::write(sandboxes.join("file"), "").unwrap();
        let mut bad_status = record("bad-status", "b");
        bad_status.spec.uid_range = None;
        let made = store.make(&bad_status).unwrap();
        fs::write(made.join(layout::STATUS), "").unwrap();
        fs::rename(made, sandboxes.join("bad-status")).unwrap();

        let contents = store.scan();
        assert_eq!(contents.sandboxes.len(), 1);
        assert_eq!(contents.sandboxes[0].name.as_str(), "good");
        assert_eq!(names(sandboxes), ["good"]);
        let damaged = store.root().join(layout::DAMAGED);
        let aside = names(damaged.clone());
        let stems: Vec<_> = aside.iter().map(|name| name.rsplit_once('.').unwrap().0).collect();
        assert_eq!(stems, ["bad-status", "cut", "empty", "file", "renamed"]);
        store.reap_damaged(now_ms());
        assert_eq!(names(damaged.clone()).len(), 5);
        store.reap_damaged(now_ms() + millis(KEEP_DAMAGED) + 1000);
        assert_eq!(names(damaged).len(), 0);
    }

    #[tokio::test]
    async fn what_a_monitor_looks_after_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = fs::File::open(dir.path()).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert!(!unattended(dir.path(), Duration::ZERO).await);
        drop(lock);
        assert!(unattended(dir.path(), Duration::ZERO).await);
        assert!(unattended(&dir.path().join("missing"), Duration::ZERO).await);
    }

    #[test]
    fn litter_keeps_its_uids_and_roots_in_use_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for root in ["used", "template", "unused"] {
            fs::create_dir(store.roots().join(root)).unwrap();
        }
        let host = |name: &str| Root::Host {
            skeleton: store.roots().join(name),
            shown: Vec::new(),
        };
        let range = UidRange { first: 5, count: 6 };
        let mut unfinished = record("a", "1");
        unfinished.spec.uid_range = Some(range);
        unfinished.spec.root = host("used");
        let made = store.make(&unfinished).unwrap();
        fs::create_dir(store.trash("2")).unwrap();

        let contents = store.scan();
        assert_eq!(contents.unfinished[0].range(), Some(range));
        assert_eq!(contents.trash[0].range(), None);
        store.reap_roots(&contents, &[host("template")]);
        assert_eq!(names(store.roots()), ["template", "used"]);
        store.discard(&made, "1").unwrap();
        store.discard(&made, "1").unwrap();
        assert!(!made.exists() && !store.trash("1").exists());
    }
}
