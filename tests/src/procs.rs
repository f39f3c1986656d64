//! Processes as the host sees them: found by a mark in their environment, wherever they hide.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use sandgate_proto::runtime::v1::{EnvVar, ExecSpec};

/// A process that bears a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// Its id.
    pub pid: i32,
    /// Its state, as /proc tells it: `S` sleeps, `T` is stopped, `t` is stopped by its tracer.
    pub state: char,
}

const NAME: &str = "SANDGATE_TEST_MARK";
const PATIENCE: Duration = Duration::from_secs(60);

/// Marks a command, and with it everything that it will start.
#[must_use]
pub fn mark(mut spec: ExecSpec, mark: &str) -> ExecSpec {
    spec.env.push(EnvVar {
        name: NAME.to_owned(),
        value: mark.to_owned(),
        ..Default::default()
    });
    spec
}

/// All living processes that bear the mark. One whose first thread has ended lives while another thread does.
#[must_use]
pub fn marked(mark: &str) -> Vec<Marked> {
    let wanted = format!("{NAME}={mark}");
    let bears = |environ: PathBuf| {
        fs::read(environ).is_ok_and(|text| text.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
    };
    let tasks = |pid: i32| {
        fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| tasks(pid).any(|task| bears(task.path().join("environ"))))
        .filter_map(|pid| {
            Some(Marked {
                pid,
                state: state(pid)?,
            })
        })
        .collect()
}

/// The state of a process; none if it is gone.
#[must_use]
pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Memory of a process's own, in bytes: anonymous pages, as against those of the binary.
#[must_use]
pub fn own_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Children of a process, of all its threads, with their states. Zombies are among them.
#[must_use]
pub fn children(pid: u32) -> Vec<Marked> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .collect::<Vec<_>>();
    let pids = lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .map(|pid| pid.parse().unwrap());
    pids.filter_map(|pid| {
        Some(Marked {
            pid,
            state: state(pid)?,
        })
    })
    .collect()
}

/// Looks again and again until it is so. Fails, saying what it waited for, when that takes absurdly long.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
