//! The home directory of the user that nearly all commands run as, without reading /etc/passwd for each of them.

use std::{
    os::unix::fs::MetadataExt as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use sandgate_files::User;

/// The last one that was found.
#[derive(Default)]
pub(crate) struct Homes(Mutex<Option<Found>>);

struct Found {
    uid: u32,
    home: String,
    file: Stamp,
}

/// What changes with a file.
#[derive(PartialEq, Eq)]
struct Stamp {
    number: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

const PASSWD: &str = "/etc/passwd";
/// A file that was changed just now may change again within the same tick of the kernel's clock.
const SETTLED: Duration = Duration::from_millis(100);

// === impl Homes ===

impl Homes {
    /// The one that is known and still right. Reads no file.
    pub(crate) fn known(&self, user: &User) -> Option<String> {
        self.still(user, Stamp::now().as_ref())
    }

    pub(crate) fn of(&self, user: &User) -> String {
        let now = Stamp::now();
        if let Some(known) = self.still(user, now.as_ref()) {
            return known;
        }
        let home = user.home();
        *self.found() = now.map(|file| Found {
            uid: user.uid,
            home: home.clone(),
            file,
        });
        home
    }

    fn still(&self, user: &User, now: Option<&Stamp>) -> Option<String> {
        let found = self.found();
        let found = found
            .as_ref()
            .filter(|found| found.uid == user.uid && Some(&found.file) == now)?;
        Some(found.home.clone())
    }

    fn found(&self) -> MutexGuard<'_, Option<Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Stamp ===

impl Stamp {
    /// None of what is not a file, or not settled.
    fn now() -> Option<Self> {
        let file = std::fs::symlink_metadata(PASSWD).ok().filter(|file| file.is_file())?;
        let since = Duration::new(file.ctime().try_into().ok()?, file.ctime_nsec().try_into().ok()?);
        let changed = SystemTime::UNIX_EPOCH.checked_add(since)?;
        let is_settled = changed.elapsed().is_ok_and(|age| age > SETTLED);
        is_settled.then(|| Self {
            number: (file.dev(), file.ino()),
            size: file.size(),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_is_there() {
        let homes = Homes::default();
        let root = User {
            uid: 0,
            gid: 0,
            groups: vec![],
        };
        let nobody = User {
            uid: 65_534,
            gid: 65_534,
            groups: vec![],
        };
        for user in [&root, &root, &nobody, &root] {
            assert_eq!(homes.of(user), user.home());
            assert_eq!(homes.known(user), Some(user.home()));
        }
        assert_eq!(homes.known(&nobody), None);
    }
}
