//! The tree as /proc tells it: whoever descends from the exec's keeper.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::{Pid, Signal, kill_process};

/// The descendants of one process.
#[derive(Debug)]
pub(crate) struct Descent {
    keeper: Pid,
    /// The keeper was taken off the kernel's table: its number may come to mean another process.
    released: AtomicBool,
}

/// Place of the number of threads, counted from the state.
const THREADS: usize = 17;

struct Process {
    parent: i32,
    /// Nothing of it runs any more.
    dead: bool,
}

// === impl Descent ===

impl Descent {
    pub(crate) fn of(keeper: Pid) -> Self {
        Self {
            keeper,
            released: AtomicBool::new(false),
        }
    }

    /// Called before the keeper is waited for.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Release);
    }

    /// The keeper itself ends when it has no child left, which no list made of many reads could say as surely.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_released() || read(self.keeper.as_raw_nonzero().get()).is_none_or(|keeper| keeper.dead)
    }

    /// A command of our own user may have stopped its keeper, which then would not end.
    pub(crate) fn wake_keeper(&self) {
        if !self.is_released() {
            let _ = kill_process(self.keeper, Signal::CONT);
        }
    }

    /// All that are alive; zombies are not.
    pub(crate) fn processes(&self) -> io::Result<Vec<Pid>> {
        if self.is_released() {
            return Ok(vec![]);
        }
        let table = table()?;
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for (pid, process) in &table {
            children.entry(process.parent).or_default().push(*pid);
        }
        let mut found = Vec::new();
        let mut next = vec![self.keeper.as_raw_nonzero().get()];
        let mut seen: HashSet<i32> = next.iter().copied().collect();
        while let Some(pid) = next.pop() {
            for &child in children.get(&pid).into_iter().flatten() {
                // The table is no snapshot: a pid that was reused while we read could close a circle.
                if seen.insert(child) {
                    next.push(child);
                    found.push(child);
                }
            }
        }
        found.retain(|pid| !table[pid].dead);
        Ok(found.into_iter().filter_map(Pid::from_raw).collect())
    }

    /// The keeper's own children, from one read: quick enough to catch a process that lives only until it has forked
    /// the next. Those that hide so are orphans, and so the keeper's. Nothing where the kernel keeps no such list.
    pub(crate) fn children(&self) -> Vec<Pid> {
        let keeper = self.keeper.as_raw_nonzero();
        let list = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
        let list = list.ok().filter(|_| !self.is_released()).unwrap_or_default();
        let pids = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        pids.filter_map(Pid::from_raw).collect()
    }

    /// The process still descends from the keeper.
    pub(crate) fn holds(&self, pid: Pid) -> bool {
        if self.is_released() {
            return false;
        }
        let keeper = self.keeper.as_raw_nonzero().get();
        let mut pid = pid.as_raw_nonzero().get();
        for _ in 0..1_000 {
            match read(pid) {
                Some(process) if process.parent == keeper => return true,
                Some(process) if process.parent > 1 => pid = process.parent,
                _ => return false,
            }
        }
        false
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }
}

/// The living children of a process.
pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().get();
    let table = table().unwrap_or_default();
    let children = table
        .iter()
        .filter(|(_, process)| process.parent == parent && !process.dead);
    children.filter_map(|(pid, _)| Pid::from_raw(*pid)).collect()
}

fn table() -> io::Result<HashMap<i32, Process>> {
    let mut table = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Some(process) = read(pid)
        {
            table.insert(pid, process);
        }
    }
    // Reading takes a while. Whose parent ended meanwhile was given to another since, and would hang in the air.
    let orphans: Vec<i32> = table
        .iter()
        .filter(|(_, p)| !table.contains_key(&p.parent))
        .map(|(pid, _)| *pid)
        .collect();
    for pid in orphans {
        match read(pid) {
            Some(process) => drop(table.insert(pid, process)),
            None => drop(table.remove(&pid)),
        }
    }
    Ok(table)
}

fn read(pid: i32) -> Option<Process> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (name) state parent …`, where the name may hold anything, also `)`.
fn parse(stat: &[u8]) -> Option<Process> {
    let end = memchr::memrchr(b')', stat)?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Only the first thread may have ended: the process then looks like a zombie, and others of its threads run on.
    let threads = fields
        .get(THREADS)
        .and_then(|threads| threads.parse().ok())
        .unwrap_or(1);
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        dead: matches!(*fields.first()?, "Z" | "X") && threads <= 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_confuse() {
        let process = parse(b"7 (a) Z 1 (x) S 42 7 7 0").unwrap();
        assert_eq!((process.parent, process.dead), (42, false));
        assert!(parse(b"7 (a) Z 3").unwrap().dead);
        assert!(parse(b"7 (a").is_none());
    }

    #[test]
    fn a_process_lives_while_one_of_its_threads_does() {
        let stat = |threads| format!("7 (a) Z 3 7 7 0 -1 4 1 0 0 0 0 0 0 0 20 0 {threads} 0 99 0 0");
        assert!(parse(stat(1).as_bytes()).unwrap().dead);
        assert!(!parse(stat(2).as_bytes()).unwrap().dead);
    }
}
