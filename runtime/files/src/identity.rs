//! Acting as a user: the kernel then decides what that user may do.
//!
//! Credentials belong to threads in Linux. A guard changes the effective ids of the calling thread alone, and puts them
//! back. The real and saved ids stay the runtime's own, so the user can neither signal nor trace the thread meanwhile.

use std::{
    collections::BTreeSet,
    io::Read as _,
    marker::PhantomData,
    path::Path,
    process,
    rc::Rc,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::{getegid, geteuid, getgroups},
    thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use sandgate_proto::v1::ErrorReason;

use crate::{
    beneath::Root,
    error::{Error, Result},
};

/// Of /etc/passwd and /etc/group no more is read: they are the sandbox's, and may be anything.
const MAX_DATABASE: u64 = 8 << 20;
/// setresuid takes this for "leave it".
const NO_ID: u32 = u32::MAX;

/// A user of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The user's own group.
    pub gid: u32,
    /// Other groups that the user is in.
    pub groups: Vec<u32>,
}

/// Whether groups were ever set. Before, they are set also where they are the same already: whoever may not is told so.
static MAY_SET_GROUPS: AtomicBool = AtomicBool::new(false);

/// While it lives, this thread acts as a user.
#[derive(Debug)]
#[must_use = "the thread acts as the user for as long as this lives"]
pub struct Acting {
    before: Option<Before>,
    /// Credentials are the thread's: the guard must not move to another.
    _thread: PhantomData<Rc<()>>,
}

#[derive(Debug)]
struct Before {
    uid: Uid,
    gid: Gid,
    /// Only if they were changed.
    groups: Option<&'static [Gid]>,
}

// === impl User ===

impl User {
    /// Finds a user by name or number in the sandbox's /etc/passwd and /etc/group. A number that is not listed there is a
    /// user all the same, with the group of that number.
    ///
    /// # Errors
    /// `UserNotFound`.
    pub fn find(spec: &str) -> Result<Self> {
        let passwd = database("/etc/passwd");
        let group = database("/etc/group");
        Self::find_in(spec, &passwd, &group)
            .ok_or_else(|| Error::new(ErrorReason::UserNotFound, format!("there is no user {spec:?}")))
    }

    /// The user's home directory, `/` if none is listed.
    #[must_use]
    pub fn home(&self) -> String {
        Self::home_in(self.uid, &database("/etc/passwd")).unwrap_or_else(|| "/".to_owned())
    }

    fn home_in(uid: u32, passwd: &str) -> Option<String> {
        let line = passwd
            .lines()
            .find(|line| Account::parse(line).is_some_and(|account| account.uid == uid))?;
        line.split(':')
            .nth(5)
            .filter(|home| home.starts_with('/'))
            .map(str::to_owned)
    }

    fn find_in(spec: &str, passwd: &str, group: &str) -> Option<Self> {
        let number = spec.parse::<u32>().ok().filter(|uid| *uid != NO_ID);
        let mut accounts = passwd.lines().filter_map(Account::parse);
        // A name wins over a number: useradd allows names that are all digits.
        let by_name = accounts.clone().find(|account| account.name == spec);
        let account = by_name.or_else(|| accounts.find(|account| Some(account.uid) == number));
        let Some(account) = account else {
            return number.map(|uid| Self {
                uid,
                gid: uid,
                groups: Vec::new(),
            });
        };
        let groups: BTreeSet<u32> = group
            .lines()
            .filter_map(|line| membership(line, account.name))
            .filter(|gid| *gid != account.gid)
            .collect();
        Some(Self {
            uid: account.uid,
            gid: account.gid,
            groups: groups.into_iter().collect(),
        })
    }

    /// Switches the calling thread to this user until the guard is dropped. Does nothing if it acts as that user already.
    ///
    /// # Errors
    /// `UserNotPermitted` if the runtime is not root, `UserNotFound` if the sandbox has no such number.
    pub fn act(&self) -> Result<Acting> {
        let uid = geteuid();
        if uid.as_raw() == self.uid {
            return Ok(Acting::unchanged());
        }
        // Only a change from root to another user takes the capabilities away with it.
        if !uid.is_root() {
            return Err(Error::new(
                ErrorReason::UserNotPermitted,
                "the runtime may not act as another user",
            ));
        }
        let before = Before {
            uid,
            gid: getegid(),
            groups: (!self.has_groups(own_groups()?) || !MAY_SET_GROUPS.load(Ordering::Relaxed))
                .then_some(own_groups()?),
        };
        // Refused to root of a user namespace that may not set groups. Nothing is changed then, and the guard, which could
        // not put the groups back either, must not try.
        if before.groups.is_some() {
            self.switch_groups().map_err(|errno| self.refused(errno))?;
            MAY_SET_GROUPS.store(true, Ordering::Relaxed);
        }
        // From here on the guard puts back whatever was changed.
        let acting = Acting {
            before: Some(before),
            _thread: PhantomData,
        };
        self.switch_ids().map_err(|errno| self.refused(errno))?;
        Ok(acting)
    }

    fn has_groups(&self, groups: &[Gid]) -> bool {
        groups.iter().map(|gid| gid.as_raw()).eq(self.groups.iter().copied())
    }

    fn switch_groups(&self) -> rustix::io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups)
    }

    fn switch_ids(&self) -> rustix::io::Result<()> {
        set_thread_res_gid(None, Gid::from_raw(self.gid), None)?;
        set_thread_res_uid(None, Uid::from_raw(self.uid), None)
    }

    fn refused(&self, errno: Errno) -> Error {
        match errno {
            Errno::INVAL => Error::new(
                ErrorReason::UserNotFound,
                format!("there is no user number {}", self.uid),
            ),
            _ => Error::new(ErrorReason::UserNotPermitted, "the runtime may not act as that user"),
        }
    }
}

// === impl Acting ===

impl Acting {
    /// A guard for when nothing has to be changed.
    pub fn unchanged() -> Self {
        Self {
            before: None,
            _thread: PhantomData,
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        // The user first: only root may change the groups.
        let restored = set_thread_res_uid(None, before.uid, None)
            .and_then(|()| set_thread_res_gid(None, before.gid, None))
            .and_then(|()| before.groups.map_or(Ok(()), set_thread_groups));
        if restored.is_err() {
            // A pooled thread would go on with the wrong identity.
            process::abort();
        }
    }
}

/// The groups of this process, which stay what they are where nobody acts as another user.
fn own_groups() -> Result<&'static [Gid]> {
    static OWN: OnceLock<Vec<Gid>> = OnceLock::new();
    match OWN.get() {
        Some(own) => Ok(own),
        None => {
            let own = getgroups()?;
            Ok(OWN.get_or_init(|| own))
        }
    }
}

/// One line of /etc/passwd.
struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

// === impl Account ===

impl<'a> Account<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let _password = fields.next()?;
        let uid = fields.next()?.parse().ok().filter(|uid| *uid != NO_ID)?;
        let gid = fields.next()?.parse().ok().filter(|gid| *gid != NO_ID)?;
        Some(Self { name, uid, gid })
    }
}

/// The group of one line of /etc/group, if the user is in it.
fn membership(line: &str, user: &str) -> Option<u32> {
    let mut fields = line.split(':').skip(2);
    let gid = fields.next()?.parse().ok().filter(|gid| *gid != NO_ID)?;
    fields.next()?.split(',').any(|member| member == user).then_some(gid)
}

/// What a database holds; nothing if it is missing or not a file. Static binaries have no NSS, so the files are all.
fn database(path: &str) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let file = Root::real()?.open(Path::new(path), OFlags::RDONLY, Mode::empty())?;
        // It seldom is larger.
        let mut content = Vec::with_capacity(8 << 10);
        std::fs::File::from(file).take(MAX_DATABASE).read_to_end(&mut content)?;
        Ok(content)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:5:5::/:\nagent:x:1000:1001:,,,:/home/agent:/bin/bash\n\
                          777:x:12:13::/:/bin/sh\nhuge:x:4294967295:0::/:\n";
    const GROUP: &str = "root:x:0:\nagent:x:1001:agent\nwheel:x:10:root,agent\nhalf:x:11\nlike:x:14:agents\n\
                         docker:x:9:agent\n";

    fn find(spec: &str) -> Option<(u32, u32, Vec<u32>)> {
        User::find_in(spec, PASSWD, GROUP).map(|user| (user.uid, user.gid, user.groups))
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(find("agent"), Some((1000, 1001, vec![9, 10])));
        assert_eq!(find("1000"), Some((1000, 1001, vec![9, 10])));
        assert_eq!(find("root"), Some((0, 0, vec![10])));
        assert_eq!(find("777"), Some((12, 13, vec![])));
        assert_eq!(find("4242"), Some((4242, 4242, vec![])));
        for spec in [
            "nobody",
            "",
            "agent ",
            "-1",
            "4294967295",
            "4294967296",
            "huge",
            "1000:1000",
        ] {
            assert_eq!(find(spec), None, "{spec}");
        }
    }

    #[test]
    fn a_home_is_absolute_or_none() {
        assert_eq!(User::home_in(1000, PASSWD).as_deref(), Some("/home/agent"));
        assert_eq!(User::home_in(4242, PASSWD), None);
    }

    #[test]
    fn acts_as_another_user_and_back() {
        assert!(geteuid().is_root(), "this test needs root, to act as others");
        let before = (geteuid(), getegid(), getgroups().unwrap());
        let nobody = User {
            uid: 65534,
            gid: 65534,
            groups: vec![7, 8],
        };
        {
            let _acting = nobody.act().unwrap();
            assert_eq!((geteuid().as_raw(), getegid().as_raw()), (65534, 65534));
            assert_eq!(getgroups().unwrap(), [Gid::from_raw(7), Gid::from_raw(8)]);
            let _again = nobody.act().unwrap();
            let other = User {
                uid: 1,
                ..nobody.clone()
            };
            assert_eq!(other.act().unwrap_err().reason, ErrorReason::UserNotPermitted);
            let root = std::fs::read("/etc/shadow").unwrap_err();
            assert_eq!(root.kind(), std::io::ErrorKind::PermissionDenied);
        }
        assert_eq!((geteuid(), getegid(), getgroups().unwrap()), before);
        assert!(std::fs::read("/etc/shadow").is_ok());
    }
}
