//! The half of the set-up that happens inside: a process in new namespaces makes its root, gives up its rights and becomes
//! the runtime.
//!
//! The order is fixed: mounts, pivot, names and sysctls, capabilities, no_new_privs, Landlock, seccomp. Each step would be
//! refused after the next.

use std::{
    ffi::{CStr, CString},
    fs, io,
    io::Write as _,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            fs::{PermissionsExt as _, symlink},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chownat, openat},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind,
        mount_change, mount_remount, move_mount, open_tree, unmount,
    },
    process::{Signal, pivot_root, set_parent_process_death_signal},
    system::sethostname,
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use sandgate_sys::{CLONE3_KEY, Clone3Key, MountChange};

use crate::{
    confine,
    control::{Failure, line},
    layout,
    record::{Network, Record, Root},
    report::{During as _, Report, all_but, check_required},
    seccomp,
    status::{Mechanism, mechanism},
    within,
};

/// Everything that the inner half needs from the outer one.
pub(crate) struct Plan<'a> {
    pub(crate) record: &'a Record,
    /// To the outer half.
    pub(crate) outside: UnixStream,
    /// `tasks` of the v1 groups to enter.
    pub(crate) v1_groups: Vec<fs::File>,
    /// The runtime, in a mount that can't be written; or where it is, if only we can make that mount.
    pub(crate) runtime: Program<'a>,
    pub(crate) argv: Vec<CString>,
    /// Directories outside that the runtime works in.
    pub(crate) lent: Vec<OwnedFd>,
    /// The sandbox is started for the first time.
    pub(crate) first: bool,
    /// What is known to be lacking already.
    pub(crate) lacking: Vec<Mechanism>,
}

/// The runtime's binary.
pub(crate) enum Program<'a> {
    Sealed(OwnedFd),
    Unsealed(&'a Path),
}

/// Mounts that the outer half has made, since only the host's root can.
#[derive(Default)]
pub(crate) struct Given {
    /// The template's root, its owners mapped.
    pub(crate) lower: Option<OwnedFd>,
    /// The disk, if its size is limited.
    pub(crate) disk: Option<OwnedFd>,
    /// The host's directories that are shown, in the template's order.
    pub(crate) shown: Vec<OwnedFd>,
}

const ROOT: &str = "root";
const LOWER: &str = "lower";
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

// === impl Plan ===

impl Plan<'_> {
    /// Becomes the runtime, or tells why not.
    pub(crate) fn run(mut self) -> i32 {
        let Err(failure) = self.become_runtime();
        let _ = self.say(&Report::Failed(failure));
        1
    }

    /// Fails when the monitor is gone: the sandbox must not begin without it.
    fn say(&mut self, report: &Report) -> io::Result<()> {
        self.outside.write_all(&line(report)?)
    }

    fn done(&mut self, step: &str) -> Result<(), Failure> {
        self.say(&Report::Step(step.to_owned())).during("tell the monitor")
    }

    fn become_runtime(&mut self) -> Result<std::convert::Infallible, Failure> {
        for mut group in self.v1_groups.drain(..) {
            group.write_all(b"0").during("enter the cgroups")?;
        }
        let given = receive(&mut self.outside).during("wait for the user map")?;
        become_root().needed_for(mechanism::USER, "become root inside")?;
        if let Err(error) = sandgate_sys::unshare_cgroup() {
            self.lacking.push(Mechanism::lacking(mechanism::CGROUP, error));
        }
        self.done("namespaces")?;
        let runtime = self.make_root(given)?;
        self.done("root")?;
        self.settle()?;
        let key = self.confine(&runtime)?;
        check_required(&self.record.spec.require, &self.lacking)?;
        self.done("confine")?;
        // Commands can't read what the runtime was started with.
        let key = sandgate_sys::c_string(format!("{CLONE3_KEY}={key:x}"));
        let env = [c"RUST_BACKTRACE=0".to_owned(), key.during("start the runtime")?];
        Err(sandgate_sys::exec_descriptor(&runtime, &self.argv, &env)).during("start the runtime")
    }

    /// Answers the runtime, in a mount that can't be written.
    fn make_root(&mut self, given: Given) -> Result<OwnedFd, Failure> {
        let spec = &self.record.spec;
        let needed = mechanism::MOUNT;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).needed_for(needed, "make mounts private")?;
        let runtime = match std::mem::replace(&mut self.runtime, Program::Unsealed(Path::new(""))) {
            Program::Sealed(runtime) => runtime,
            Program::Unsealed(path) => seal(path).needed_for(needed, "seal the runtime")?,
        };
        if let Some(disk) = given.disk {
            attach(&disk, layout::DISK).needed_for(mechanism::DISK, "mount the sandbox's disk")?;
        }
        match (&given.lower, &spec.root) {
            (Some(lower), _) => attach(lower, LOWER).needed_for(mechanism::OVERLAY, "mount the template's root")?,
            (None, Root::Host { skeleton: lower, .. } | Root::Rootfs { path: lower }) => mount_bind(lower, LOWER)
                .needed_for(
                    mechanism::OVERLAY,
                    format!("mount the template's root {}", lower.display()),
                )?,
        }
        if self.first && matches!(spec.root, Root::Host { .. }) {
            name_host(&self.record.name).during("write the host name down")?;
        }
        let options = c"lowerdir=lower,upperdir=disk/upper,workdir=disk/work,userxattr";
        mount("overlay", ROOT, "overlay", MountFlags::NODEV, options).needed_for(
            mechanism::OVERLAY,
            "mount the overlay (it needs a state directory on a file system such as ext4, xfs, btrfs or tmpfs, and not on another overlay)",
        )?;
        if let Root::Host { shown, .. } = &spec.root {
            // Whoever is root outside may enter directories that we may not.
            let mut trees = given.shown.into_iter();
            for path in shown {
                let tree = trees.next().map_or_else(|| shown_tree(path), Ok);
                let what = format!("show {}", path.display());
                // At the same place as on the host.
                tree.and_then(|tree| Ok(attach(&tree, mount_point(path)?)?))
                    .needed_for(needed, what)?;
            }
        }
        make_proc().needed_for(
            mechanism::PID,
            "mount /proc (a container that hides parts of /proc does not let us: run the server outside it, or with /proc unmasked)",
        )?;
        let gid = if spec.uid_range.is_some() { ",gid=5" } else { "" };
        make_dev(gid).needed_for(needed, "make /dev")?;
        // Where the network is the host's there is none to be had, and little is lost.
        let sys = mount_point("sys").needed_for(needed, "make /sys")?;
        let _ = mount("sysfs", sys, "sysfs", QUIET | MountFlags::RDONLY, None);
        Ok(runtime)
    }

    /// Enters the root and gives the sandbox its name, its network and its working directory.
    fn settle(&mut self) -> Result<(), Failure> {
        let spec = &self.record.spec;
        let needed = mechanism::MOUNT;
        rustix::process::chdir(ROOT).needed_for(needed, "enter the root")?;
        pivot_root(".", ".").needed_for(needed, "enter the root")?;
        unmount(".", UnmountFlags::DETACH).needed_for(needed, "leave the host's root")?;
        rustix::process::chdir("/").needed_for(needed, "enter the root")?;
        sethostname(self.record.name.as_bytes()).needed_for(mechanism::UTS, "set the host name")?;
        if spec.network == Network::None {
            sandgate_sys::loopback_up().needed_for(mechanism::NETWORK, "bring the loopback up")?;
            // As in containers: everybody may serve on port 80 of a network that is their own.
            let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
        } else {
            self.lacking.push(Mechanism::lacking(
                mechanism::NETWORK,
                "the template asks for the host's network",
            ));
        }
        let user = self.user()?;
        for dir in [Some(PathBuf::from(&spec.workdir)), user.home.clone()]
            .into_iter()
            .flatten()
        {
            let made = within::directory(&dir).during(format!("make {}", dir.display()))?;
            let now = rustix::fs::fstat(&made).during(format!("look at {}", dir.display()))?;
            // A change of owner copies the directory from the template, so it is left out where it changes nothing. Root may
            // use all of them as they are; only what our own template gives to another user is taken back.
            let is_wanted = user.uid != 0 || (matches!(spec.root, Root::Host { .. }) && now.st_uid == layout::USER);
            if self.first && is_wanted && (now.st_uid, now.st_gid) != (user.uid, user.gid) {
                let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
                chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
                    .during(format!("give {} to its user", dir.display()))?;
            }
        }
        // There are 128 of these for all sandboxes of one server.
        let _ = fs::write("/proc/sys/user/max_inotify_instances", "16");
        // The kernel's own guard against user namespaces inside; seccomp is the other.
        fs::write("/proc/sys/user/max_user_namespaces", "0")
            .needed_for(mechanism::USER, "forbid further user namespaces")?;
        seal_sysctls().needed_for(needed, "make /proc/sys read-only")
    }

    /// Gives up rights, one after the other. Answers the key to one that only the runtime keeps.
    fn confine(&mut self, runtime: &OwnedFd) -> Result<Clone3Key, Failure> {
        let spec = &self.record.spec;
        sandgate_sys::leave_session_keyring()
            .or_else(absent)
            .during("leave the keyring")?;
        confine::limit_resources(&spec.limits, spec.uid_range.is_none())?;
        confine::drop_capabilities()?;
        // Credentials have changed for the last time, which would forget it: without its monitor the sandbox must not live.
        set_parent_process_death_signal(Some(Signal::KILL)).during("tie the sandbox to its monitor")?;
        let root = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).during("open the root")?;
        let roots: Vec<_> = [&root].into_iter().chain(&self.lent).map(|fd| fd.as_fd()).collect();
        if let Err(lacking) = confine::landlock(&roots, runtime.as_fd()) {
            self.lacking.push(lacking);
        }
        for lack in self.lacking.clone() {
            self.say(&Report::Lacks(lack)).during("tell the monitor")?;
        }
        write_isolation(&all_but(&self.lacking)).during("write down the isolation")?;
        seccomp::apply().needed_for(mechanism::SECCOMP, "filter system calls")
    }

    fn user(&self) -> Result<User, Failure> {
        let spec = &self.record.spec;
        // Root needs no entry, and whoever is root inside may remove it.
        if spec.uid_range.is_none() || spec.user == "root" {
            return Ok(User::root());
        }
        let passwd = within::read_text("/etc/passwd").unwrap_or_default();
        User::find(&passwd, &spec.user).ok_or_else(|| Failure {
            mechanism: None,
            message: format!(
                "the template's user {:?} is not in the sandbox's /etc/passwd",
                spec.user
            ),
        })
    }
}

/// Whom commands run as.
#[derive(Debug, PartialEq)]
struct User {
    uid: u32,
    gid: u32,
    home: Option<PathBuf>,
}

// === impl User ===

impl User {
    fn root() -> Self {
        Self {
            uid: 0,
            gid: 0,
            home: None,
        }
    }

    fn find(passwd: &str, wanted: &str) -> Option<Self> {
        let number: Option<u32> = wanted.parse().ok();
        let listed = passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, ..] = fields[..] else {
                return None;
            };
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            let home = Some(PathBuf::from(home)).filter(|home| home.is_absolute() && uid != 0);
            (name == wanted || number == Some(uid)).then_some(Self { uid, gid, home })
        });
        listed.or_else(|| {
            number.map(|uid| Self {
                uid,
                gid: uid,
                home: None,
            })
        })
    }
}

/// Waits for the outer half to have mapped our users, and takes what it has mounted for us.
fn receive(outside: &mut UnixStream) -> io::Result<Given> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_GIVEN))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0u8; 1];
    let got = recvmsg(
        &*outside,
        &mut [io::IoSliceMut::new(&mut word)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    Ok(Given {
        lower: (word[0] & LOWER_GIVEN != 0).then(|| descriptors.next()).flatten(),
        disk: (word[0] & DISK_GIVEN != 0).then(|| descriptors.next()).flatten(),
        shown: descriptors.collect(),
    })
}

/// How many mounts can be given.
pub(crate) const MOST_GIVEN: usize = 128;
/// The bits of the word that the outer half sends.
pub(crate) const MAPPED: u8 = 1;
pub(crate) const LOWER_GIVEN: u8 = 2;
pub(crate) const DISK_GIVEN: u8 = 4;

fn become_root() -> rustix::io::Result<()> {
    // With a single uid the kernel refuses to change groups, and there is nothing to drop but what the user has.
    let _ = set_thread_groups(&[]);
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

fn attach(mount: &OwnedFd, at: impl rustix::path::Arg) -> rustix::io::Result<()> {
    move_mount(mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// A mount of what is at a path, changed, to be attached elsewhere or never; if `recursive`, with all that is mounted in it.
pub(crate) fn mount_of(path: &Path, change: MountChange<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let mut clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    clone.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    let tree = open_tree(CWD, path, clone)?;
    sandgate_sys::change_mount(&tree, change, recursive)?;
    Ok(tree)
}

/// A directory of the host with all that is mounted in it, read-only.
pub(crate) fn shown_tree(path: &Path) -> io::Result<OwnedFd> {
    mount_of(path, MountChange::Harmless, true)
}

/// A program in a mount that can't be written: what runs inside could otherwise reach it through /proc/PID/exe.
pub(crate) fn seal(path: &Path) -> io::Result<OwnedFd> {
    mount_of(path, MountChange::Harmless, false)
}

/// A directory of the root, made if it is missing, before it is entered. No part of it may be a link that a command has
/// left there: it would be followed from the host's root. Nothing runs inside yet, so what was checked stays.
fn mount_point(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref();
    let mut inside = PathBuf::from(ROOT);
    for name in path.strip_prefix("/").unwrap_or(path) {
        inside.push(name);
        match fs::symlink_metadata(&inside) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&inside)?,
            Err(error) => return Err(error),
        }
    }
    Ok(inside)
}

fn make_proc() -> io::Result<()> {
    Ok(mount("proc", mount_point("proc")?, "proc", QUIET, None)?)
}

/// /dev as containers have it. tmpfs is charged to the sandbox's memory, so it has a size. /dev/shm is in the same one: with
/// each file system that is mounted the kernel takes longer to forget a memory group, and others' sandboxes wait for that.
fn make_dev(gid: &str) -> io::Result<()> {
    let root = mount_point("dev")?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", &root, "tmpfs", flags, c"size=64m,mode=755")?;
    for device in DEVICES {
        fs::write(root.join(device), "")?;
        mount_bind(Path::new("/dev").join(device), root.join(device))?;
    }
    for (name, to) in DEVICE_LINKS {
        symlink(to, root.join(name))?;
    }
    let (pts, shm) = (root.join("pts"), root.join("shm"));
    fs::create_dir(&pts)?;
    let options = CString::new(format!("newinstance,ptmxmode=0666,mode=0620{gid}"))?;
    mount("devpts", pts, "devpts", flags, options.as_c_str())?;
    fs::create_dir(&shm)?;
    fs::set_permissions(&shm, fs::Permissions::from_mode(0o1777))?;
    // A mount of its own, for those who look for one.
    mount_bind(&shm, &shm)?;
    Ok(mount_remount(&shm, MountFlags::BIND | QUIET, c"" as &CStr)?)
}

/// So that programs find the address of the machine that they are on. Written beside the template's root before the two
/// are laid over each other: through the overlay each file would be copied first.
fn name_host(name: &str) -> io::Result<()> {
    let etc = Path::new(layout::DISK).join("upper/etc");
    fs::create_dir(&etc)?;
    fs::write(etc.join("hostname"), format!("{name}\n"))?;
    let mut hosts = fs::read(Path::new(LOWER).join("etc/hosts")).or_else(missing)?;
    writeln!(hosts, "127.0.1.1\t{name}")?;
    fs::write(etc.join("hosts"), hosts)
}

fn missing(error: io::Error) -> io::Result<Vec<u8>> {
    if error.kind() == io::ErrorKind::NotFound {
        Ok(Vec::new())
    } else {
        Err(error)
    }
}

/// What of /proc is the machine's is not the sandbox's to change.
fn seal_sysctls() -> io::Result<()> {
    for path in ["/proc/sys", "/proc/pressure"] {
        match mount_bind(path, path) {
            // A kernel that does not measure it.
            Err(rustix::io::Errno::NOENT) => continue,
            bound => bound?,
        }
        let flags = MountFlags::BIND | MountFlags::RDONLY | QUIET;
        mount_remount(path, flags, c"" as &CStr)?;
    }
    Ok(())
}

/// For a user who wonders why something is denied.
fn write_isolation(mechanisms: &[Mechanism]) -> io::Result<()> {
    let path = Path::new("/").join(layout::ISOLATION_INSIDE);
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    within::replace(&within::directory(dir)?, name, &serde_json::to_vec_pretty(mechanisms)?)
}

/// A kernel that lacks something has nothing to leave.
fn absent(error: io::Error) -> io::Result<()> {
    if error.raw_os_error() == Some(libc::ENOSYS) {
        Ok(())
    } else {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_or_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\nbroken\n";
        let sandbox = User {
            uid: 1000,
            gid: 1000,
            home: Some("/home/sandbox".into()),
        };
        assert_eq!(User::find(passwd, "sandbox"), Some(sandbox));
        assert_eq!(User::find(passwd, "1000").unwrap().gid, 1000);
        assert_eq!(User::find(passwd, "7").unwrap().uid, 7);
        assert_eq!(User::find(passwd, "root"), Some(User::root()));
        assert_eq!(User::find(passwd, "nobody"), None);
    }
}
