//! A cgroup for each exec: the kernel itself knows the tree, counts its deaths and kills it in one stroke.

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::Pid;
use tokio::io::Interest;

use crate::settings::CgroupRoots;

/// Where the groups of execs are made.
#[derive(Debug, Clone)]
pub(crate) struct Roots(CgroupRoots);

/// The groups of one exec. Removed when this is dropped and they are empty.
#[derive(Debug)]
pub(crate) struct ExecGroup {
    unified: PathBuf,
    memory: Option<PathBuf>,
    removed: AtomicBool,
}

const PREFIX: &str = "exec-";

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
        Ok(Self(roots))
    }

    pub(crate) fn make(&self, exec_id: &str) -> io::Result<ExecGroup> {
        let name = format!("{PREFIX}{exec_id}");
        let unified = self.0.unified.join(&name);
        fs::create_dir(&unified)?;
        let mut group = ExecGroup {
            unified,
            memory: None,
            removed: AtomicBool::new(false),
        };
        if let Some(root) = &self.0.memory {
            let memory = root.join(&name);
            fs::create_dir(&memory)?;
            group.memory = Some(memory);
        }
        Ok(group)
    }
}

// === impl ExecGroup ===

impl ExecGroup {
    /// The directory that a process begins in, and the file of the memory group that it writes `0` to, to enter.
    pub(crate) fn entrances(&self) -> io::Result<(Option<OwnedFd>, Option<OwnedFd>)> {
        let unified = File::open(&self.unified)?;
        // The child has one thread. Moving that alone takes no lock of all cgroups, which costs 10 ms.
        let open = |dir: &PathBuf| File::options().write(true).open(dir.join("tasks"));
        let memory = self.memory.as_ref().map(open).transpose()?;
        Ok((Some(unified.into()), memory.map(OwnedFd::from)))
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        fs::write(self.unified.join("cgroup.kill"), "1")
    }

    pub(crate) fn processes(&self) -> io::Result<Vec<Pid>> {
        let text = fs::read_to_string(self.unified.join("cgroup.procs"))?;
        Ok(text
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
            .collect())
    }

    pub(crate) fn populated(&self) -> bool {
        // A group that is gone holds nobody.
        fs::read_to_string(self.unified.join("cgroup.events")).is_ok_and(|events| field(&events, "populated") != 0)
    }

    /// Waits until no process is left.
    pub(crate) async fn emptied(&self) -> io::Result<()> {
        if !self.populated() {
            return Ok(());
        }
        let events = sandgate_sys::priority(File::open(self.unified.join("cgroup.events"))?.into())?;
        loop {
            // The kernel tells of changes since the last read of this very descriptor.
            let mut text = [0; 256];
            let length = rustix::io::pread(events.get_ref(), &mut text, 0)?;
            if field(&String::from_utf8_lossy(&text[..length]), "populated") == 0 {
                return Ok(());
            }
            events.ready(Interest::PRIORITY).await?.clear_ready();
        }
    }

    /// Removes the groups, once; also done when the value is dropped.
    pub(crate) fn remove(&self) {
        if self.removed.swap(true, Ordering::AcqRel) {
            return;
        }
        remove_when_empty(&self.unified);
        if let Some(memory) = &self.memory {
            remove_when_empty(memory);
        }
    }

    pub(crate) fn out_of_memory(&self) -> u32 {
        let count = |path: PathBuf| fs::read_to_string(path).ok().map(|text| field(&text, "oom_kill"));
        let v1 = self
            .memory
            .as_ref()
            .and_then(|dir| count(dir.join("memory.oom_control")));
        v1.or_else(|| count(self.unified.join("memory.events"))).unwrap_or(0)
    }
}

impl Drop for ExecGroup {
    fn drop(&mut self) {
        self.remove();
    }
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
