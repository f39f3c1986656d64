//! All logs of a sandbox, and the directory of their spill files.

use std::{
    collections::{HashMap, VecDeque},
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    budget::Budget,
    disk::{self, Disk},
    log::{Inner, Log},
    recover,
    state::{State, rotate_bytes},
    types::{LogOptions, Offsets, StoreLimits},
};

/// Ids become names of directories.
const LONGEST_ID: usize = 64;

/// The logs of a sandbox. Clones are handles of the same store.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

/// Why a log could not be made or found.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Ids are 1 to 64 letters, digits, `-` and `_`.
    #[error("not an id of a log: {0:?}")]
    InvalidId(String),
    /// A log has that id already.
    #[error("log {0} exists")]
    Exists(String),
    /// The files of a log could not be read or deleted.
    #[error("files of log {id}")]
    Files {
        /// The log.
        id: String,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    budget: Arc<Budget>,
    registry: Mutex<Registry>,
}

/// Locked before the state of a log, never after it.
#[derive(Debug, Default)]
struct Registry {
    logs: HashMap<String, Arc<Inner>>,
    /// In the order in which they ended.
    ended: VecDeque<Arc<Inner>>,
}

// === impl Store ===

impl Store {
    /// A store that spills below `dir`, which is made if it is missing. Nobody but the runtime should reach it.
    ///
    /// # Errors
    /// When `dir` can't be made.
    pub fn open(dir: impl Into<PathBuf>, limits: StoreLimits) -> io::Result<Self> {
        let dir = dir.into();
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let budget = Arc::new(Budget::new(limits));
        Ok(Store(Arc::new(Shared {
            dir,
            budget,
            registry: Mutex::default(),
        })))
    }

    /// A store without files: what it holds is gone with the process.
    #[must_use]
    pub fn in_memory(retain_bytes: u64) -> Self {
        let limits = StoreLimits {
            memory_bytes: u64::MAX,
            retain_bytes,
        };
        Store(Arc::new(Shared {
            // Nothing is ever spilled, so nobody looks there, but for a removal that finds nothing.
            dir: PathBuf::from("/nonexistent"),
            budget: Arc::new(Budget::new(limits)),
            registry: Mutex::default(),
        }))
    }

    /// A new, empty log. Files that a former log of that id left are deleted with the first spill.
    ///
    /// # Errors
    /// When the id is no id or is taken. The disk is not touched.
    pub fn create(&self, id: &str, options: LogOptions) -> Result<Log, StoreError> {
        let dir = self.log_dir(id)?;
        let state = State::new(
            self.0.budget.clone(),
            options,
            Disk::new(dir.clone(), rotate_bytes(&options)),
        );
        self.insert(Inner::new(id.to_owned(), dir, state))
    }

    /// The log that a former process left in files; an empty one if it left none.
    ///
    /// It is closed. What had been written according to `written`, but is not in the files, is a gap. This blocks
    /// while it reads the headers of the spilled segments.
    ///
    /// # Errors
    /// When the id is no id or is taken, or when files can't be read. A damaged file is no error: the log then ends
    /// before the damage.
    pub fn recover(&self, id: &str, options: LogOptions, written: Option<Offsets>) -> Result<Log, StoreError> {
        let dir = self.log_dir(id)?;
        if self.get(id).is_some() {
            return Err(StoreError::Exists(id.to_owned()));
        }
        let inner =
            recover::recover(&self.0.budget, id, &dir, options, written).map_err(|source| StoreError::Files {
                id: id.to_owned(),
                source,
            })?;
        let log = self.insert(inner)?;
        self.note_ended(log.inner());
        Ok(log)
    }

    /// The log with that id, if this process made or recovered it.
    pub fn get(&self, id: &str) -> Option<Log> {
        let inner = self.registry().logs.get(id).cloned();
        inner.map(|inner| Log::new(inner, self.clone()))
    }

    /// Deletes a log and its files, and frees what it had of the budget. Its followers get a gap and finish.
    ///
    /// # Errors
    /// When the id is no id, or when files can't be deleted; the log is gone all the same.
    pub async fn remove(&self, id: &str) -> Result<(), StoreError> {
        let dir = self.log_dir(id)?;
        let inner = self.unregister(id);
        let removed = match &inner {
            Some(inner) => inner.remove().await,
            None => remove_files(dir).await,
        };
        // There is room now for writers that wait for the store's.
        self.logs().iter().for_each(|log| log.room.notify_waiters());
        removed.map_err(|source| StoreError::Files {
            id: id.to_owned(),
            source,
        })
    }

    /// The ids that have files, of this process or a former one.
    ///
    /// # Errors
    /// When the store's directory can't be read.
    pub fn ids(&self) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(&self.0.dir)? {
            let name = entry?.file_name();
            ids.extend(name.to_str().filter(|name| is_id(name)).map(str::to_owned));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.0.budget
    }

    pub(crate) fn logs(&self) -> Vec<Arc<Inner>> {
        self.registry().logs.values().cloned().collect()
    }

    /// Logs that have ended and still keep something, the first to end first.
    pub(crate) fn ended(&self) -> Vec<Arc<Inner>> {
        let mut registry = self.registry();
        registry.ended.retain(|log| log.lock().keeps_segments());
        registry.ended.iter().cloned().collect()
    }

    pub(crate) fn note_ended(&self, log: &Arc<Inner>) {
        log.lock().settle();
        self.registry().ended.push_back(log.clone());
    }

    fn insert(&self, inner: Inner) -> Result<Log, StoreError> {
        let inner = Arc::new(inner);
        let mut registry = self.registry();
        if registry.logs.contains_key(&inner.id) {
            return Err(StoreError::Exists(inner.id.clone()));
        }
        registry.logs.insert(inner.id.clone(), inner.clone());
        Ok(Log::new(inner, self.clone()))
    }

    fn unregister(&self, id: &str) -> Option<Arc<Inner>> {
        let mut registry = self.registry();
        registry.ended.retain(|log| log.id != id);
        registry.logs.remove(id)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_dir(&self, id: &str) -> Result<PathBuf, StoreError> {
        if is_id(id) {
            Ok(self.0.dir.join(id))
        } else {
            Err(StoreError::InvalidId(id.to_owned()))
        }
    }
}

fn is_id(id: &str) -> bool {
    (1..=LONGEST_ID).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

async fn remove_files(dir: impl AsRef<Path> + Send + 'static) -> io::Result<()> {
    let removed = tokio::task::spawn_blocking(move || disk::remove_dir(dir.as_ref())).await;
    removed.map_err(io::Error::other)?
}
