//! What became of a sandbox. Written by its monitor only.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::layout;

/// How a sandbox is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What runs. What ran when the machine went down was `running` in another boot.
    pub running: Option<Running>,
    /// Cgroups that are being made for a start. Written first, so that whoever finds it knows what may be left of one. In
    /// a file of its own: a file system may wait for the disk when a file is replaced, which no start should.
    #[serde(skip)]
    pub starting: Option<Cgroups>,
    /// How the last incarnation ended.
    pub last_end: Option<Ended>,
}

/// An incarnation that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Which.
    pub incarnation: String,
    /// The boot of the machine in which it was started.
    pub boot_id: String,
    /// PID 1, as the host sees it.
    pub pid: i32,
    /// Since when.
    pub started_ms: u64,
    /// What keeps it apart.
    pub isolation: Vec<Mechanism>,
    /// How long each step of the start took.
    pub steps: Vec<Step>,
    /// Directories of its cgroups, for measuring.
    pub cgroups: Cgroups,
}

/// Where a sandbox's use is counted. Paths of its groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroups {
    /// In the cgroup2 tree.
    pub unified: Option<std::path::PathBuf>,
    /// In trees of cgroup v1, by controller.
    pub v1: std::collections::BTreeMap<String, std::path::PathBuf>,
}

/// A mechanism that keeps a sandbox apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mechanism {
    /// Its name: one of [`mechanism`].
    pub mechanism: String,
    /// Whether it is in force.
    pub in_force: bool,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why_not: String,
}

/// A step of a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// How long it took.
    pub micros: u64,
}

/// How an incarnation ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Which.
    pub incarnation: String,
    /// Why.
    pub cause: Cause,
    /// The same for a person.
    pub message: String,
    /// When.
    pub at_ms: u64,
}

/// Why an incarnation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It was told to: Suspend or Delete.
    Stopped,
    /// Its deadline.
    Deadline,
    /// Its idle limit.
    Idle,
    /// PID 1 was killed for want of memory.
    OutOfMemory,
    /// PID 1 ended unasked.
    Crashed,
    /// The machine went down.
    MachineLost,
}

/// Names of mechanisms.
pub mod mechanism {
    /// All there are, in the order in which they are shown.
    pub const ALL: [&str; 19] = [
        USER,
        MOUNT,
        PID,
        NETWORK,
        IPC,
        UTS,
        CGROUP,
        UID_RANGE,
        OVERLAY,
        NO_NEW_PRIVS,
        CAPABILITIES,
        SECCOMP,
        LANDLOCK,
        RLIMITS,
        MEMORY,
        PIDS,
        CPU,
        KILL,
        DISK,
    ];
    /// Its own user namespace.
    pub const USER: &str = "namespace.user";
    /// Its own mount namespace.
    pub const MOUNT: &str = "namespace.mount";
    /// Its own process namespace.
    pub const PID: &str = "namespace.pid";
    /// Its own network.
    pub const NETWORK: &str = "namespace.network";
    /// Its own System V IPC and message queues.
    pub const IPC: &str = "namespace.ipc";
    /// Its own host name.
    pub const UTS: &str = "namespace.uts";
    /// Its own view of cgroups.
    pub const CGROUP: &str = "namespace.cgroup";
    /// Uids of the host that no other sandbox has.
    pub const UID_RANGE: &str = "uid.range";
    /// Its own layer over a root that it can't change.
    pub const OVERLAY: &str = "root.overlay";
    /// No program gains rights by being run.
    pub const NO_NEW_PRIVS: &str = "no_new_privs";
    /// Capabilities are dropped.
    pub const CAPABILITIES: &str = "capabilities";
    /// System calls are filtered.
    pub const SECCOMP: &str = "seccomp";
    /// Landlock.
    pub const LANDLOCK: &str = "landlock";
    /// Limits of each process.
    pub const RLIMITS: &str = "rlimits";
    /// Memory of all processes together is limited.
    pub const MEMORY: &str = "cgroup.memory";
    /// The number of processes is limited.
    pub const PIDS: &str = "cgroup.pids";
    /// Processor time is limited.
    pub const CPU: &str = "cgroup.cpu";
    /// A tree of processes is killed in one stroke.
    pub const KILL: &str = "cgroup.kill";
    /// The disk's size is limited.
    pub const DISK: &str = "disk.size";
}

// === impl Status ===

impl Status {
    /// Reads the status in a sandbox's directory; one that was never started has none.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let mut status = match fs::read(dir.join(layout::STATUS)) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error),
        };
        status.starting = match fs::read(dir.join(layout::STARTING)) {
            Ok(text) => Some(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(status)
    }

    /// Removes the cgroups of what was started and has ended without a word. For a directory that no monitor looks after.
    pub fn remove_cgroups(&self) {
        let running = self.running.as_ref().map(|running| &running.cgroups);
        for groups in running.into_iter().chain(&self.starting) {
            groups.remove();
        }
    }

    /// Replaces the status in a sandbox's directory.
    ///
    /// # Errors
    /// When the disk refuses it; the old one is then still there.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        write_json(dir, layout::STATUS, self)?;
        if self.starting.is_some() {
            return Ok(());
        }
        match fs::remove_file(dir.join(layout::STARTING)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes what is being made for a start, until the status is written without it.
    pub(crate) fn begin(&mut self, dir: &Path, groups: Cgroups) -> io::Result<()> {
        write_json(dir, layout::STARTING, &groups)?;
        self.starting = Some(groups);
        Ok(())
    }
}

/// Replaces a file as a whole: a reader finds the old one or the new one.
pub(crate) fn write_json(dir: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.new"));
    let mut options = fs::File::options();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    let mut out = io::BufWriter::new(file);
    serde_json::to_writer(&mut out, value)?;
    io::Write::flush(&mut out)?;
    fs::rename(&temporary, dir.join(name))
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A word that nobody else has: 24 hexadecimal digits.
///
/// # Errors
/// When the kernel has no random numbers yet.
pub fn unique() -> io::Result<String> {
    let mut random = [0u8; 12];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// This boot of the machine.
///
/// # Errors
/// When /proc is not there.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
