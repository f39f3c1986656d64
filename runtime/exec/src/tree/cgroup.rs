//! A cgroup for each exec: the kernel itself knows the tree, counts its deaths and kills it in one stroke.
//!
//! Making and removing a group costs the kernel more than starting a program, so those of execs that are over are kept
//! for the next ones, and removed when the sandbox has been quiet for a while.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::process::Pid;
use sandgate_sys::set_oom_score;
use tokio::io::Interest;

use crate::settings::CgroupRoots;

/// Where the groups of execs are made.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    places: CgroupRoots,
    pool: Arc<Pool>,
}

/// Groups that nobody is in.
#[derive(Debug, Default)]
struct Pool {
    idle: Mutex<Vec<Groups>>,
    made: AtomicU64,
    /// How many were taken since the pool was last looked at.
    taken: AtomicU64,
}

/// The groups of one exec. Given back, or removed once they are empty, when this is dropped.
#[derive(Debug)]
pub(crate) struct ExecGroup {
    /// `None`: given back, and perhaps another exec's by now.
    groups: Mutex<Option<Groups>>,
    /// Whether it was seen empty since the program began in it. Nobody else enters, so it stays so.
    is_empty: AtomicBool,
    pool: Arc<Pool>,
}

/// Groups that are of no use any more.
#[derive(Debug)]
pub(crate) struct Unused(Vec<Groups>);

/// One group in the cgroup2 tree, and one in the v1 memory tree where there is one.
#[derive(Debug)]
struct Groups {
    unified: PathBuf,
    memory: Option<PathBuf>,
    /// The directory that a process begins in.
    entrance: Arc<OwnedFd>,
    /// The file of the memory group that a process writes `0` to, to enter.
    tasks: Option<Arc<OwnedFd>>,
    events: File,
    /// The file that counts processes killed for memory.
    deaths: Option<File>,
    /// What it counted before this exec.
    deaths_before: u32,
    /// What it counted when nobody was left.
    deaths_after: Option<u32>,
    /// Whether it is of no more use: nobody could enter it, or all in it were killed at one stroke. In that case the kernel
    /// also kills whoever is cloned into it later (seen with 6.18: it compares the number of strokes with that of the group
    /// that the parent is in).
    is_spent: bool,
}

const PREFIX: &str = "exec-";
/// More than this many are not kept.
const MOST_IDLE: usize = 64;
/// Who forks faster than we can look is left to the limits.
const OOM_ROUNDS: usize = 10;

// === impl Roots ===

impl Roots {
    /// Takes the roots over from an earlier runtime: whatever still runs there belongs to nobody any more.
    pub(crate) fn take_over(roots: CgroupRoots) -> io::Result<Self> {
        for root in [Some(&roots.unified), roots.memory.as_ref()].into_iter().flatten() {
            for entry in fs::read_dir(root)? {
                let path = entry?.path();
                if path
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
                {
                    kill_left(&path);
                    remove_when_empty(&path);
                }
            }
        }
        Ok(Self {
            places: roots,
            pool: Arc::default(),
        })
    }

    /// Groups for one exec.
    pub(crate) fn enter(&self) -> io::Result<ExecGroup> {
        if let Some(group) = self.enter_idle() {
            return Ok(group);
        }
        let made = Groups::make(&self.places, &self.pool.made)?;
        Ok(self.taken(made))
    }

    /// Groups for one exec that were another's before, if there are any. Does not block.
    pub(crate) fn enter_idle(&self) -> Option<ExecGroup> {
        let idle = self.pool.idle().pop()?;
        Some(self.taken(idle))
    }

    fn taken(&self, groups: Groups) -> ExecGroup {
        self.pool.taken.fetch_add(1, Ordering::Relaxed);
        ExecGroup {
            groups: Mutex::new(Some(groups)),
            is_empty: AtomicBool::new(false),
            pool: self.pool.clone(),
        }
    }

    /// Takes what was kept for execs that did not come, if there is any. Called from time to time.
    pub(crate) fn take_unused(&self) -> Option<Unused> {
        let taken = self.pool.taken.swap(0, Ordering::Relaxed);
        let kept = usize::try_from(taken).unwrap_or(MOST_IDLE);
        let mut idle = self.pool.idle();
        let kept = kept.min(idle.len());
        Some(Unused(idle.split_off(kept))).filter(|unused| !unused.0.is_empty())
    }

    /// Whether none are kept.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.pool.idle().is_empty()
    }
}

// === impl Unused ===

impl Unused {
    /// Removes them. Many take their time.
    pub(crate) fn remove(self) {
        self.0.iter().for_each(Groups::remove);
    }
}

// === impl Pool ===

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Groups>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Groups ===

impl Groups {
    fn make(places: &CgroupRoots, made: &AtomicU64) -> io::Result<Self> {
        loop {
            let name = format!("{PREFIX}{}", made.fetch_add(1, Ordering::Relaxed));
            match Self::make_named(places, &name) {
                // An earlier runtime's, which takes a moment to be gone.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
    }

    fn make_named(places: &CgroupRoots, name: &str) -> io::Result<Self> {
        let unified = places.unified.join(name);
        fs::create_dir(&unified)?;
        let memory = places.memory.as_ref().map(|root| root.join(name));
        if let Some(memory) = &memory
            && let Err(error) = fs::create_dir(memory)
        {
            remove_when_empty(&unified);
            return Err(error);
        }
        let opened = Self::open(unified.clone(), memory.clone());
        if opened.is_err() {
            remove_when_empty(&unified);
            memory.as_deref().into_iter().for_each(remove_when_empty);
        }
        opened
    }

    fn open(unified: PathBuf, memory: Option<PathBuf>) -> io::Result<Self> {
        // The child has one thread. Moving that alone takes no lock of all cgroups, which costs 10 ms.
        let tasks = |dir: &PathBuf| File::options().write(true).open(dir.join("tasks"));
        let deaths = match &memory {
            Some(memory) => File::open(memory.join("memory.oom_control")),
            None => File::open(unified.join("memory.events")),
        };
        Ok(Self {
            entrance: Arc::new(File::open(&unified)?.into()),
            tasks: memory
                .as_ref()
                .map(tasks)
                .transpose()?
                .map(|tasks| Arc::new(tasks.into())),
            events: File::open(unified.join("cgroup.events"))?,
            // Not every tree counts them.
            deaths: deaths.ok(),
            deaths_before: 0,
            deaths_after: None,
            is_spent: false,
            unified,
            memory,
        })
    }

    /// Whether somebody is in it, if that is known.
    fn populated(&self) -> io::Result<bool> {
        now_in(&self.events, "populated").map(|populated| populated != 0)
    }

    fn deaths(&self) -> u32 {
        let deaths = self.deaths.as_ref();
        deaths.and_then(|file| now_in(file, "oom_kill").ok()).unwrap_or(0)
    }

    fn remove(&self) {
        remove_when_empty(&self.unified);
        self.memory.as_deref().into_iter().for_each(remove_when_empty);
    }
}

// === impl ExecGroup ===

impl ExecGroup {
    /// See `Groups`.
    pub(crate) fn entrances(&self) -> (Option<Arc<OwnedFd>>, Option<Arc<OwnedFd>>) {
        let groups = self.groups();
        let groups = groups.as_ref();
        let tasks = groups.and_then(|groups| groups.tasks.clone());
        (groups.map(|groups| groups.entrance.clone()), tasks)
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        let mut groups = self.groups();
        let Some(groups) = &mut *groups else { return Ok(()) };
        groups.is_spent = true;
        fs::write(groups.unified.join("cgroup.kill"), "1")
    }

    pub(crate) fn processes(&self) -> io::Result<Vec<Pid>> {
        let groups = self.groups();
        let Some(groups) = &*groups else {
            return Ok(Vec::new());
        };
        let text = fs::read_to_string(groups.unified.join("cgroup.procs"))?;
        Ok(text
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
            .collect())
    }

    /// Makes all that are in it rather die than the runtime when memory runs out. Whoever is forked behind that has it from
    /// its parent. A fork that is on its way has taken the old value and is not in the group yet: that one is found by looking
    /// again a while later.
    pub(crate) fn set_oom_scores(&self, score: i32) {
        let mut seen = HashSet::new();
        for _ in 0..OOM_ROUNDS {
            let processes = self.processes().unwrap_or_default();
            let new: Vec<_> = processes.into_iter().filter(|pid| seen.insert(*pid)).collect();
            if new.is_empty() {
                return;
            }
            new.into_iter().for_each(|pid| set_oom_score(pid, score));
        }
    }

    pub(crate) fn populated(&self) -> bool {
        if self.is_empty.load(Ordering::Acquire) {
            return false;
        }
        // A group that is gone holds nobody.
        let populated = |groups: &Groups| groups.populated().unwrap_or(false);
        let populated = self.groups().as_ref().is_some_and(populated);
        self.is_empty.store(!populated, Ordering::Release);
        populated
    }

    /// Says that the groups are of no use: nobody could enter them.
    pub(crate) fn spoil(&self) {
        let mut groups = self.groups();
        if let Some(groups) = &mut *groups {
            groups.is_spent = true;
        }
    }

    /// Waits until no process is left.
    pub(crate) async fn emptied(&self) -> io::Result<()> {
        let Some(events) = self.events()? else { return Ok(()) };
        let events = sandgate_sys::priority(events.into())?;
        loop {
            if now_in(events.get_ref(), "populated")? == 0 {
                return Ok(());
            }
            events.ready(Interest::PRIORITY).await?.clear_ready();
        }
    }

    /// Where to hear of the end, if it has not come yet. The kernel tells of changes since the last read of this very
    /// descriptor.
    fn events(&self) -> io::Result<Option<File>> {
        let is_empty = !self.populated();
        let groups = self.groups();
        let open = |groups: &Groups| File::open(groups.unified.join("cgroup.events"));
        groups.as_ref().filter(|_| !is_empty).map(open).transpose()
    }

    /// Gives the groups back, if nobody is in them. Otherwise they stay, to be killed.
    pub(crate) fn release(&self) {
        if !self.populated() {
            self.give_back();
        }
    }

    fn give_back(&self) {
        let taken = self.groups().take();
        let Some(mut groups) = taken else { return };
        groups.deaths_before = groups.deaths_after.take().unwrap_or_else(|| groups.deaths());
        let is_empty = self.is_empty.load(Ordering::Acquire) || matches!(groups.populated(), Ok(false));
        let is_reusable = is_empty && !groups.is_spent;
        let mut idle = self.pool.idle();
        if is_reusable && idle.len() < MOST_IDLE {
            idle.push(groups);
        } else {
            drop(idle);
            groups.remove();
        }
    }

    pub(crate) fn out_of_memory(&self) -> u32 {
        let is_empty = self.is_empty.load(Ordering::Acquire);
        let mut groups = self.groups();
        let Some(groups) = &mut *groups else { return 0 };
        let deaths = groups.deaths();
        groups.deaths_after = is_empty.then_some(deaths);
        deaths.saturating_sub(groups.deaths_before)
    }

    fn groups(&self) -> MutexGuard<'_, Option<Groups>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ExecGroup {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The number behind `name` in a flat keyed file, as it is now.
fn now_in(file: impl std::os::fd::AsFd, name: &str) -> io::Result<u32> {
    let mut text = [0; 1024];
    let length = rustix::io::pread(file, &mut text, 0)?;
    Ok(field(&String::from_utf8_lossy(&text[..length]), name))
}

/// Kills what an earlier runtime left in a group, also where only the first thread of a process has ended.
fn kill_left(group: &Path) {
    let _ = fs::write(group.join("cgroup.kill"), "1");
    let left = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in left.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Removes a group. The last process may still be on its way out when the group is already reported as empty.
fn remove_when_empty(group: &Path) {
    let path = group.to_owned();
    if fs::remove_dir(&path).is_ok() {
        return;
    }
    let removing = std::thread::Builder::new().spawn(move || {
        for _ in 0..1_000 {
            match fs::remove_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                _ => return,
            }
        }
        tracing::warn!(group = %path.display(), "a cgroup could not be removed");
    });
    if let Err(error) = removing {
        tracing::warn!(group = %group.display(), %error, "a cgroup is left behind");
    }
}

/// The number behind `name` in a flat keyed file.
fn field(text: &str, name: &str) -> u32 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_flat_keyed_files() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(
            (field(text, "oom_kill"), field(text, "under_oom"), field(text, "oom")),
            (3, 0, 0)
        );
    }
}
