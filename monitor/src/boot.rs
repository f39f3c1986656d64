//! The half of the set-up that stays outside: makes cgroups and disk, clones the inner half, maps its users, and hears what
//! became of it.

use std::{
    cell::Cell,
    ffi::CString,
    fs,
    io::{self, BufRead as _, BufReader},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{
            fs::DirBuilderExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::{FdFlags, fcntl_setfd},
    process::{Pid, PidfdFlags, getuid, pidfd_open},
};
use sandgate_sys::{MountChange, Namespaces, Spawned};

use crate::{
    cgroup::Groups,
    control::{Boot, Failure},
    disk,
    inside::{self, Program},
    layout,
    record::{IsolationLevel, Network, Record, Root, UidRange},
    report::{During as _, Report, all_but, check_required},
    status::{Cgroups, Mechanism, Running, Step, boot_id, mechanism, now_ms, unique},
};

/// How long the inner half of the set-up may be silent. It takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sandbox that was started.
pub(crate) struct Booted {
    pub(crate) running: Running,
    pub(crate) pidfd: OwnedFd,
}

/// Starts PID 1. The working directory is the sandbox's own.
pub(crate) fn boot(record: &Record, how: &Boot, first: bool) -> Result<Booted, Failure> {
    let runtime_dir = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(layout::RUNTIME);
    runtime_dir.during("make the runtime's directory")?;
    let _ = fs::remove_file(layout::SOCKET);
    let listener = UnixListener::bind(layout::SOCKET).during("make the runtime's socket")?;
    match record.spec.isolation {
        IsolationLevel::Full => Isolated::new(record, how, &listener)?.start(first),
        IsolationLevel::None => start_plain(record, how, &listener),
    }
}

/// A start in namespaces, with what it has made so far. What was made is removed if the start fails.
struct Isolated<'a> {
    record: &'a Record,
    how: &'a Boot,
    listener: &'a UnixListener,
    incarnation: String,
    groups: Groups,
    disk: Option<OwnedFd>,
    lacking: Vec<Mechanism>,
    steps: Steps,
}

// === impl Isolated ===

impl<'a> Isolated<'a> {
    fn new(record: &'a Record, how: &'a Boot, listener: &'a UnixListener) -> Result<Self, Failure> {
        let mut steps = Steps::begin();
        let spec = &record.spec;
        let owner = spec.uid_range.map_or_else(|| getuid().as_raw(), |range| range.first);
        let groups = Groups::make(&how.cgroups, &record.uid, &spec.limits, owner);
        steps.done("cgroups");
        let mut start = Self {
            record,
            how,
            listener,
            incarnation: unique().during("make an incarnation")?,
            lacking: groups.lacking.clone(),
            groups,
            disk: None,
            steps,
        };
        match disk::prepare(spec.limits.disk, spec.uid_range).during("make the sandbox's disk")? {
            Ok(mount) => start.disk = Some(mount),
            Err(lacking) => start.lacking.push(lacking),
        }
        if let Some(range) = spec.uid_range {
            let owned = std::os::unix::fs::chown(layout::RUNTIME, Some(range.first), Some(range.first));
            owned.during("give the runtime its directory")?;
        } else {
            let why = "only the host's root can give a sandbox uids of its own";
            start.lacking.push(Mechanism::lacking(mechanism::UID_RANGE, why));
        }
        start.steps.done("disk");
        // What is known by now need not be tried.
        check_required(&spec.require, &start.lacking)?;
        Ok(start)
    }

    fn start(mut self, first: bool) -> Result<Booted, Failure> {
        let (ours, theirs) = UnixStream::pair().during("make a socket pair")?;
        let spec = &self.record.spec;
        let lent = self.lend()?;
        let plan = inside::Plan {
            record: self.record,
            outside: theirs,
            v1_groups: self.groups.v1_entrances().during("open the cgroups")?,
            runtime: sealed(&self.how.runtime).during(format!("open the runtime {}", self.how.runtime.display()))?,
            argv: self.argv(&lent)?,
            lent: lent.into_iter().map(|(_, descriptor)| descriptor).collect(),
            first,
            lacking: self.lacking.clone(),
        };
        let entrance = self.groups.entrance().during("open the cgroups")?;
        let namespaces = Namespaces {
            network: spec.network == Network::None,
        };
        // The copy of ourselves must not hold our end: it would never see that we are gone.
        let ours = Cell::new(Some(ours));
        let cloned = sandgate_sys::clone_into_namespaces(namespaces, entrance.as_ref().map(|fd| fd.as_fd()), || {
            drop(ours.take());
            plan.run()
        });
        let child = cloned.needed_for(
            mechanism::USER,
            "make namespaces (see user.max_user_namespaces, kernel.unprivileged_userns_clone and AppArmor's restriction of user namespaces)",
        )?;
        match self.bring_up(&child, ours.take()) {
            Ok(()) => Ok(self.booted(child)),
            Err(failure) => {
                end(&child);
                Err(failure)
            }
        }
    }

    /// Maps the child's users, gives it what only we can mount, and hears its reports until it is the runtime.
    fn bring_up(&mut self, child: &Spawned, ours: Option<UnixStream>) -> Result<(), Failure> {
        let ours = ours
            .ok_or(io::ErrorKind::NotConnected)
            .during("speak to the inner half of the set-up")?;
        map_users(child.pid, self.record.spec.uid_range).needed_for(mechanism::USER, "map users")?;
        let given = self.mounts_for(child)?;
        give(&ours, &given).during("speak to the inner half of the set-up")?;
        // An inner half that hangs must not make the monitor deaf: it has deadlines to keep.
        ours.set_read_timeout(Some(PATIENCE))
            .during("speak to the inner half of the set-up")?;
        for line in BufReader::new(ours).lines() {
            let line = line.during("hear from the inner half of the set-up")?;
            match serde_json::from_str(&line).during("understand the inner half of the set-up")? {
                Report::Lacks(lacking) if self.lacking.contains(&lacking) => {}
                Report::Lacks(lacking) => self.lacking.push(lacking),
                Report::Step(name) => self.steps.done(&name),
                Report::Failed(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// What only the host's root can mount.
    fn mounts_for(&mut self, child: &Spawned) -> Result<inside::Given, Failure> {
        let spec = &self.record.spec;
        let mut given = inside::Given {
            disk: self.disk.take(),
            ..inside::Given::default()
        };
        if spec.uid_range.is_none() {
            return Ok(given);
        }
        let path = lower(&spec.root);
        let what = format!(
            "map the owners of {} (the kernel must be 5.19 or newer)",
            path.display()
        );
        given.lower = Some(mapped(path, child.pid).needed_for(mechanism::UID_RANGE, what)?);
        if let Root::Host { shown, .. } = &spec.root {
            for path in shown {
                let tree = inside::shown_tree(path).during(format!("show {}", path.display()))?;
                given.shown.push(tree);
            }
        }
        Ok(given)
    }

    fn booted(mut self, child: Spawned) -> Booted {
        self.steps.done("runtime");
        Booted {
            running: Running {
                incarnation: std::mem::take(&mut self.incarnation),
                boot_id: boot_id().unwrap_or_default(),
                pid: child.pid.as_raw_nonzero().get(),
                started_ms: now_ms(),
                isolation: all_but(&self.lacking),
                steps: std::mem::take(&mut self.steps.done),
                // It is the monitor's from now on.
                cgroups: std::mem::take(&mut self.groups.paths),
            },
            pidfd: child.pidfd,
        }
    }

    /// Directories of ours that the runtime works in, by the flag that names them. There is no path to them inside.
    fn lend(&self) -> Result<Vec<(&'static str, OwnedFd)>, Failure> {
        let (unified, memory) = self.groups.for_runtime().during("open the cgroups")?;
        let state = openat(CWD, layout::RUNTIME, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let mut lent = vec![("--state-dir", state.during("open the runtime's directory")?)];
        if let Some(unified) = unified {
            lent.push(("--cgroup", unified));
            lent.extend(memory.map(|memory| ("--memory-cgroup", memory)));
        }
        for (_, descriptor) in &lent {
            inheritable(descriptor.as_fd())?;
        }
        inheritable(self.listener.as_fd())?;
        Ok(lent)
    }

    fn argv(&self, lent: &[(&str, OwnedFd)]) -> Result<Vec<CString>, Failure> {
        let spec = &self.record.spec;
        let mut argv = runtime_args(self.record, self.how, &self.incarnation, self.listener);
        argv.extend(["--cwd".to_owned(), spec.workdir.clone()]);
        if spec.uid_range.is_some() && spec.user != "root" {
            argv.extend(["--user".to_owned(), spec.user.clone()]);
        }
        for (flag, descriptor) in lent {
            argv.extend([(*flag).to_owned(), format!("/proc/self/fd/{}", descriptor.as_raw_fd())]);
        }
        argv.into_iter()
            .map(|argument| sandgate_sys::c_string(argument).during("start the runtime"))
            .collect()
    }
}

impl Drop for Isolated<'_> {
    fn drop(&mut self) {
        self.groups.paths.remove();
    }
}

/// Plain processes, for development. The monitor adopts and ends what the runtime leaves.
fn start_plain(record: &Record, how: &Boot, listener: &UnixListener) -> Result<Booted, Failure> {
    let mut steps = Steps::begin();
    let why = "the template says isolation = \"none\"";
    let lacking: Vec<_> = mechanism::ALL
        .iter()
        .map(|name| Mechanism::lacking(name, why))
        .collect();
    check_required(&record.spec.require, &lacking)?;
    let home = std::env::current_dir().during("find the sandbox's directory")?;
    let workspace = home.join(layout::DISK).join("workspace");
    fs::create_dir_all(&workspace).during("make the workspace")?;
    let incarnation = unique().during("make an incarnation")?;
    inheritable(listener.as_fd())?;
    let mut argv = runtime_args(record, how, &incarnation, listener);
    argv.extend([
        "--state-dir".to_owned(),
        home.join(layout::RUNTIME).display().to_string(),
    ]);
    argv.extend(["--cwd".to_owned(), workspace.display().to_string()]);
    let child = Command::new(&how.runtime)
        .args(&argv[1..])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .during("start the runtime")?;
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).during("watch the runtime")?;
    steps.done("runtime");
    let running = Running {
        incarnation,
        boot_id: boot_id().unwrap_or_default(),
        pid: pid.as_raw_nonzero().get(),
        started_ms: now_ms(),
        isolation: lacking,
        steps: steps.done,
        cgroups: Cgroups::default(),
    };
    Ok(Booted { running, pidfd })
}

fn runtime_args(record: &Record, how: &Boot, incarnation: &str, listener: &UnixListener) -> Vec<String> {
    let mut argv = vec!["sandgate-runtime".to_owned()];
    argv.extend(["--socket-fd".to_owned(), listener.as_raw_fd().to_string()]);
    argv.extend(["--incarnation".to_owned(), incarnation.to_owned()]);
    if let Some(deadline) = record.deadline_ms {
        argv.extend([
            "--deadline".to_owned(),
            format!("{}ms", deadline.saturating_sub(now_ms()).max(1)),
        ]);
    }
    if let Some(idle) = record.idle_limit_ms {
        argv.extend(["--idle-limit".to_owned(), format!("{idle}ms")]);
    }
    argv.extend(how.runtime_args.iter().cloned());
    argv
}

fn lower(root: &Root) -> &Path {
    match root {
        Root::Host { skeleton, .. } => skeleton,
        Root::Rootfs { path } => path,
    }
}

/// The runtime in a mount that can't be written. Without rights on the host's mounts, only the inner half can make one.
fn sealed(path: &Path) -> io::Result<Program<'_>> {
    match inside::seal(path) {
        Ok(runtime) => Ok(Program::Sealed(runtime)),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(Program::Unsealed(path)),
        Err(error) => Err(error),
    }
}

/// The template's root, with its owners mapped as the child's users are.
fn mapped(path: &Path, child: Pid) -> io::Result<OwnedFd> {
    let users = fs::File::open(format!("/proc/{}/ns/user", child.as_raw_nonzero()))?;
    inside::mount_of(path, MountChange::Mapped(users.as_fd()), false)
}

fn map_users(child: Pid, range: Option<UidRange>) -> io::Result<()> {
    let proc = format!("/proc/{}", child.as_raw_nonzero());
    let (uids, gids) = match range {
        Some(UidRange { first, count }) => (format!("0 {first} {count}"), format!("0 {first} {count}")),
        None => {
            // An ordinary user may map itself, once it can't drop groups any more.
            fs::write(format!("{proc}/setgroups"), "deny")?;
            (
                format!("0 {} 1", getuid().as_raw()),
                format!("0 {} 1", rustix::process::getgid().as_raw()),
            )
        }
    };
    fs::write(format!("{proc}/uid_map"), uids)?;
    fs::write(format!("{proc}/gid_map"), gids)
}

fn give(to: &UnixStream, given: &inside::Given) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let inside::Given { lower, disk, shown } = given;
    let mut word = inside::MAPPED;
    if lower.is_some() {
        word |= inside::LOWER_GIVEN;
    }
    if disk.is_some() {
        word |= inside::DISK_GIVEN;
    }
    let all = lower.iter().chain(disk).chain(shown);
    let descriptors: Vec<BorrowedFd<'_>> = all.map(|fd| fd.as_fd()).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(inside::MOST_GIVEN))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("the template shows too many directories"));
    }
    sendmsg(to, &[io::IoSlice::new(&[word])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Ends a child that never became the runtime.
fn end(child: &Spawned) {
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
    let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
}

fn inheritable(descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
    fcntl_setfd(descriptor, FdFlags::empty()).during("pass descriptors on")
}

/// How long each step took.
struct Steps {
    since: Instant,
    done: Vec<Step>,
}

// === impl Steps ===

impl Steps {
    fn begin() -> Self {
        Self {
            since: Instant::now(),
            done: Vec::new(),
        }
    }

    fn done(&mut self, name: &str) {
        let micros = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.since = Instant::now();
        self.done.push(Step {
            name: name.to_owned(),
            micros,
        });
    }
}
