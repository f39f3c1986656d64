//! A program in another language that does the work it is told to do, and says how many seconds that took.
//!
//! It is told a word a line on stdin, and answers on stdout: `ready` once it is, then a number for each word. So its work
//! takes turns with ours, and its start is no part of it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Mutex,
};

/// Such a program. It ends with the value.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    pipes: Mutex<Pipes>,
}

#[derive(Debug)]
struct Pipes {
    told: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

// === impl Worker ===

impl Worker {
    /// Starts a program of `bench/python` with the Python of an environment that `scripts/need` makes.
    ///
    /// # Panics
    /// When it does not get ready.
    pub async fn python(environment: &str, program: &str, args: &[&str]) -> Self {
        let bench = directory();
        let mut command = Command::new(tool(environment, "python"));
        command
            .arg(bench.join("python").join(program))
            .args(args)
            .env("PYTHONPATH", bench.join("../clients/python/src"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}: `scripts/need {environment}` brings its Python"));
        let (Some(told), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            panic!("{program} has no pipes")
        };
        let pipes = Mutex::new(Pipes {
            told,
            answers: BufReader::new(answers).lines(),
        });
        let worker = Self { child, pipes };
        let ready = worker.answer().await;
        assert_eq!(ready, "ready", "{program}");
        worker
    }

    /// Has it do something; answers how many seconds it took.
    ///
    /// # Panics
    /// When it has ended: its stderr says why.
    pub async fn work(&self, what: &str) -> f64 {
        let line = format!("{what}\n");
        let told = self.pipes.lock().await.told.write_all(line.as_bytes()).await;
        assert!(told.is_ok(), "the one to do {what:?} has ended");
        let answer = self.answer().await;
        answer
            .parse()
            .unwrap_or_else(|_| panic!("seconds for {what:?}, not {answer:?}"))
    }

    async fn answer(&self) -> String {
        let line = self.pipes.lock().await.answers.next_line().await;
        line.ok().flatten().unwrap_or_default()
    }

    /// Lets it clear up, and waits for its end.
    ///
    /// # Panics
    /// When it fails.
    pub async fn end(mut self) {
        drop(self.pipes);
        let status = self.child.wait().await;
        assert!(
            status.is_ok_and(|status| status.success()),
            "a worker failed at its end"
        );
    }
}

/// A program that `scripts/need` brings.
///
/// # Panics
/// When nobody said where that is.
#[must_use]
pub fn tool(name: &str, program: &str) -> PathBuf {
    let Some(tools) = env::var_os("SANDGATE_TOOLS") else {
        panic!("SANDGATE_TOOLS is where scripts/need puts what benchmarks need; `make` sets it")
    };
    Path::new(&tools).join(name).join("bin").join(program)
}

/// Where the programs of this package lie: cargo says it to its tests, and `make` runs in the directory above.
#[must_use]
pub fn directory() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map_or("bench".into(), PathBuf::from)
}
