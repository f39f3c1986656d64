//! How many system calls a Create takes: those of the server, the monitor and the runtime together.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use sandgate_tests::server::Server;

use crate::crowd::Crowd;

/// So many are counted, and the one with the fewest is told: besides a Create the server may do something else just then.
pub(crate) const CREATES: usize = 3;
/// Waiting and waking depend on who is quicker, not on what there is to do.
const UNCOUNTED: &str = "trace=!futex,epoll_wait,epoll_pwait,poll,ppoll,restart_syscall,sched_yield";

/// Makes a few sandboxes under `strace` and gives the count of the cheapest.
pub(crate) async fn calls_of_a_create(server: &Server, crowd: &mut Crowd) -> u64 {
    let client = server.client().await;
    let mut counts = Vec::new();
    for _ in 0..CREATES {
        let trace = Trace::attach(server);
        crowd.grow_by_one(server, client.clone()).await;
        counts.push(trace.count());
    }
    counts.into_iter().min().unwrap()
}

/// Counts the calls of a server and of all that it starts.
struct Trace {
    strace: Child,
    counts: std::path::PathBuf,
}

// === impl Trace ===

impl Trace {
    fn attach(server: &Server) -> Self {
        let counts = server.dir().join("counts");
        let mut strace = Command::new("strace")
            .args([
                "--follow-forks",
                "--summary-only",
                "--summary-columns=calls,name",
                "-e",
                UNCOUNTED,
            ])
            .arg("-o")
            .arg(&counts)
            .arg("-p")
            .arg(server.pid().to_string())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test needs strace, which `make test` installs");
        // It says so once all threads are attached, and goes on about others.
        let mut said = BufReader::new(strace.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains(" attached"), "strace: {line}");
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Self { strace, counts }
    }

    /// Lets go of everything.
    fn count(mut self) -> u64 {
        kill_process(Pid::from_child(&self.strace), Signal::INT).unwrap();
        self.strace.wait().unwrap();
        let counts = fs::read_to_string(&self.counts).unwrap();
        let total = counts.lines().find_map(|line| line.trim().strip_suffix(" total"));
        total
            .unwrap_or_else(|| panic!("no total in {counts}"))
            .trim()
            .parse()
            .unwrap()
    }
}
