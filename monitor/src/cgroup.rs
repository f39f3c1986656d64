//! A sandbox's cgroups: limits on all its processes together, and a way to end them in one stroke.
//!
//! The runtime makes a group for each command inside what it is given. Files that hold limits stay the host's.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::chown},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::{
    control::CgroupParents,
    record::Limits,
    status::{Cgroups, Mechanism, mechanism},
};

/// All commands.
const EXECS: &str = "execs";
/// PID 1, in the cgroup2 tree: a group there has processes or groups. In v1, where it may have both, PID 1 is in the
/// sandbox's own: the kernel forgets a memory group the more slowly the more sandboxes there are.
const INIT: &str = "init";
/// Memory that commands leave to PID 1, at most; of a small sandbox it is an eighth. So it is always a command that the
/// kernel kills for want of memory, whatever commands do to be spared.
const RESERVED: u64 = 64 << 20;
/// How long a group may still be in use after its last process has ended.
const PATIENCE: Duration = Duration::from_secs(10);
const PERIOD_MICROS: u64 = 100_000;

/// Groups that were made for a sandbox.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) paths: Cgroups,
    pub(crate) lacking: Vec<Mechanism>,
}

// === impl Groups ===

impl Groups {
    /// Makes them, owned by `owner`. What can't be had is noted in `lacking`.
    pub(crate) fn make(parents: &CgroupParents, uid: &str, limits: &Limits, owner: u32) -> Self {
        let mut groups = Self {
            paths: Cgroups::default(),
            lacking: Vec::new(),
        };
        groups.make_unified(parents, uid, owner);
        for (controller, parent) in &parents.v1 {
            let dir = parent.join(uid);
            let made = make_group(&dir).and_then(|()| match controller.as_str() {
                // The others only limit: commands need no groups of their own in them.
                "memory" => give(&dir, &[EXECS], owner),
                _ => Ok(()),
            });
            match made {
                Ok(()) => {
                    groups.paths.v1.insert(controller.clone(), dir);
                }
                Err(error) => eprintln!("sandgate-monitor: {}: {error}", dir.display()),
            }
        }
        groups.limit("memory", mechanism::MEMORY, limits.memory, parents, |dir, v2, bytes| {
            limit_memory(dir, v2, bytes)?;
            limit_memory(&dir.join(EXECS), v2, bytes - RESERVED.min(bytes / 8))
        });
        groups.limit(
            "pids",
            mechanism::PIDS,
            limits.pids.map(u64::from),
            parents,
            |dir, _, count| fs::write(dir.join("pids.max"), count.to_string()),
        );
        groups.limit(
            "cpu",
            mechanism::CPU,
            limits.cpu_millis.map(u64::from),
            parents,
            |dir, v2, millis| {
                let quota = (millis * PERIOD_MICROS / 1_000).max(1_000);
                if v2 {
                    return fs::write(dir.join("cpu.max"), format!("{quota} {PERIOD_MICROS}"));
                }
                fs::write(dir.join("cpu.cfs_period_us"), PERIOD_MICROS.to_string())?;
                fs::write(dir.join("cpu.cfs_quota_us"), quota.to_string())
            },
        );
        groups
    }

    fn make_unified(&mut self, parents: &CgroupParents, uid: &str, owner: u32) {
        let Some(parent) = &parents.unified else {
            let why = parents.why_no(CgroupParents::UNIFIED);
            return self.lacking.push(Mechanism::lacking(mechanism::KILL, why));
        };
        let dir = parent.join(uid);
        let made = make_group(&dir).and_then(|()| {
            give(&dir, &[INIT, EXECS], owner)?;
            for controller in &parents.unified_controllers {
                // Commands are counted apart, where that can be had.
                for group in [&dir, &dir.join(EXECS)] {
                    let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
                }
            }
            Ok(())
        });
        match made {
            Ok(()) if dir.join("cgroup.kill").exists() => self.paths.unified = Some(dir),
            Ok(()) => self
                .lacking
                .push(Mechanism::lacking(mechanism::KILL, "the kernel has no cgroup.kill")),
            Err(error) => self.lacking.push(Mechanism::lacking(
                mechanism::KILL,
                format!("{}: {error}", dir.display()),
            )),
        }
    }

    fn limit(
        &mut self,
        controller: &str,
        mechanism: &str,
        limit: Option<u64>,
        parents: &CgroupParents,
        set: impl Fn(&Path, bool, u64) -> io::Result<()>,
    ) {
        let Some(limit) = limit else {
            return self
                .lacking
                .push(Mechanism::lacking(mechanism, "the template sets no such limit"));
        };
        let unified = self
            .paths
            .unified
            .as_ref()
            .filter(|dir| has_controller(dir, controller));
        let set = match (self.paths.v1.get(controller), unified) {
            (Some(dir), _) => set(dir, false, limit),
            (None, Some(dir)) => set(dir, true, limit),
            (None, None) => Err(io::Error::other(parents.why_no(controller).to_owned())),
        };
        if let Err(error) = set {
            self.lacking.push(Mechanism::lacking(mechanism, error));
        }
    }

    /// The directory that a process is cloned into, in the cgroup2 tree.
    pub(crate) fn entrance(&self) -> io::Result<Option<OwnedFd>> {
        self.paths
            .unified
            .as_ref()
            .map(|dir| open_dir(&dir.join(INIT)))
            .transpose()
    }

    /// Files of v1 groups that PID 1 writes `0` to, to enter: a thread that moves itself takes no lock of all cgroups.
    pub(crate) fn v1_entrances(&self) -> io::Result<Vec<fs::File>> {
        let open = |dir: &PathBuf| fs::File::options().write(true).open(dir.join("tasks"));
        self.paths.v1.values().map(open).collect()
    }

    /// Directories for the runtime to make groups in: cgroup2, and v1 memory.
    pub(crate) fn for_runtime(&self) -> io::Result<(Option<OwnedFd>, Option<OwnedFd>)> {
        let open = |dir: &PathBuf| open_dir(&dir.join(EXECS));
        let unified = self.paths.unified.as_ref().map(open).transpose()?;
        let memory = self.paths.v1.get("memory").map(open).transpose()?;
        Ok((unified, memory))
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// Those that a sandbox will have there.
    pub(crate) fn planned(parents: &CgroupParents, uid: &str) -> Self {
        let of = |(controller, parent): (&String, &PathBuf)| (controller.clone(), parent.join(uid));
        Self {
            unified: parents.unified.as_ref().map(|parent| parent.join(uid)),
            v1: parents.v1.iter().map(of).collect(),
        }
    }

    /// How many processes of PID 1's own group were killed for want of memory.
    pub(crate) fn init_out_of_memory(&self) -> bool {
        let killed = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines()
                .any(|line| line.strip_prefix("oom_kill ").is_some_and(|n| n != "0"))
        };
        // Those below are not counted in v1.
        let v1 = self.v1.get("memory").map(|dir| dir.join("memory.oom_control"));
        let v2 = self.unified.as_ref().map(|dir| dir.join(INIT).join("memory.events"));
        [v1, v2].into_iter().flatten().any(killed)
    }

    /// Kills what may still be in them, and removes them.
    pub(crate) fn remove(&self) {
        if let Some(dir) = &self.unified {
            let _ = fs::write(dir.join("cgroup.kill"), "1");
        }
        let until = Instant::now() + PATIENCE;
        for dir in self.unified.iter().chain(self.v1.values()) {
            remove_until(dir, until);
        }
    }
}

fn make_group(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        // Left by an incarnation whose monitor was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let _ = fs::write(dir.join("cgroup.kill"), "1");
            remove_until(dir, Instant::now() + PATIENCE);
            fs::create_dir(dir)
        }
        made => made,
    }
}

fn limit_memory(dir: &Path, v2: bool, bytes: u64) -> io::Result<()> {
    let bytes = bytes.to_string();
    if v2 {
        let _ = fs::write(dir.join("memory.swap.max"), "0");
        return fs::write(dir.join("memory.max"), bytes);
    }
    fs::write(dir.join("memory.limit_in_bytes"), &bytes)?;
    // Only there where swap is accounted.
    let _ = fs::write(dir.join("memory.memsw.limit_in_bytes"), &bytes);
    Ok(())
}

/// Makes groups in `dir`, and lets the sandbox make others and move its processes between them.
fn give(dir: &Path, below: &[&str], owner: u32) -> io::Result<()> {
    let below: Vec<_> = below.iter().map(|name| dir.join(name)).collect();
    for group in &below {
        fs::create_dir(group)?;
    }
    for group in below.iter().map(PathBuf::as_path).chain([dir]) {
        chown(group, Some(owner), Some(owner))?;
        for file in ["cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control"] {
            match chown(group.join(file), Some(owner), Some(owner)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes a group, which may be in use for a moment after its last process has ended.
fn remove_until(dir: &Path, until: Instant) {
    while !remove_group(dir) && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Removes a group with those in it. Tells whether it is gone.
fn remove_group(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return !dir.exists();
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    match fs::remove_dir(dir) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn has_controller(dir: &Path, controller: &str) -> bool {
    let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|each| each == controller)
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(
        CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
