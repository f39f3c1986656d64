//! Locks on names, so that checking a file's version and replacing it are one step towards other callers.

use std::{
    ffi::OsStr,
    hash::{DefaultHasher, Hash, Hasher as _},
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::fs;

/// Two names that share a stripe wait for each other; that is rare with this many, and harmless.
const STRIPES: usize = 64;

/// Every replacement of a file holds the lock of its name from its checks until it is done.
#[derive(Debug)]
pub struct Locks {
    stripes: Box<[Mutex<()>]>,
}

/// A name in a directory, whatever path led there.
#[derive(Clone, Debug, Hash)]
pub struct Key {
    device: u64,
    inode: u64,
    name: Box<OsStr>,
}

/// The locks of one or more names. They are free again when it is dropped.
#[derive(Debug)]
#[must_use = "the lock is held for as long as this lives"]
pub struct Held<'a> {
    _guards: Vec<MutexGuard<'a, ()>>,
}

// === impl Key ===

impl Key {
    /// The key of `name` in an open directory.
    pub fn new(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<Self> {
        let stat = fs::fstat(directory)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            name: name.into(),
        })
    }

    fn stripe(&self) -> usize {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        usize::try_from(hasher.finish() % STRIPES as u64).unwrap_or_default()
    }
}

// === impl Locks ===

impl Locks {
    /// Waits for the locks of all these names. A thread holds one set at a time.
    pub fn hold(&self, keys: &[Key]) -> Held<'_> {
        let mut stripes: Vec<usize> = keys.iter().map(Key::stripe).collect();
        // In one order for everyone, so that nobody waits in a circle.
        stripes.sort_unstable();
        stripes.dedup();
        let lock = |stripe: &usize| self.stripes.get(*stripe).map(Mutex::lock);
        let guards = stripes.iter().filter_map(lock);
        Held {
            // Nothing is kept in the mutex that a panic could have left half done.
            _guards: guards
                .map(|guard| guard.unwrap_or_else(PoisonError::into_inner))
                .collect(),
        }
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn key(name: &str) -> Key {
        Key {
            device: 1,
            inode: 2,
            name: OsStr::new(name).into(),
        }
    }

    #[test]
    fn one_holder_at_a_time_and_no_circles() {
        let locks = Locks::default();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for order in [["a", "b"], ["b", "a"], ["a", "a"]].iter().cycle().take(12) {
                let (locks, inside) = (&locks, &inside);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _held = locks.hold(&[key(order[0]), key(order[1])]);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
