//! Commands whose every byte is known before they run. Each writes its id to a list when it is started, so that one
//! that ran twice is on it twice.

use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use sandgate::{Command, v1};
use sandgate_tests::told::{Told, assert_same};

/// Where commands write that they were started, in the workspace.
pub(crate) const RUNS: &str = "runs";
/// Makes lines long enough that output is many messages.
const PADDING: &str = "................................................................................";
/// More lines than an endless command prints while a soak lasts.
const ENDLESS: u32 = 1_000_000_000;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: String,
    work: Work,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    /// Prints numbered lines on both streams, in bursts with a pause between them, and ends with that code.
    Print { bursts: u32, lines: u32, code: i32 },
    /// Prints much at once.
    Flood { bytes: usize },
    /// Gives back what it reads: that many pieces, made from the seed.
    Echo { seed: u64, pieces: u32 },
    /// Prints a few lines a second until it is ended. A stubborn one does not mind being told to end.
    Endless { stubborn: bool },
}

// === impl Job ===

impl Job {
    /// One that is over at once.
    pub(crate) fn short(id: String, rng: &mut StdRng) -> Self {
        let work = Work::Print {
            bursts: 1,
            lines: rng.random_range(0..40),
            code: rng.random_range(0..100),
        };
        Self { id, work }
    }

    /// One that is worth following.
    pub(crate) fn long(id: String, rng: &mut StdRng) -> Self {
        let work = match rng.random_range(0..10) {
            0..5 => Work::Print {
                bursts: rng.random_range(2..20),
                lines: rng.random_range(1..30),
                code: rng.random_range(0..100),
            },
            5..8 => Work::Echo {
                seed: rng.next_u64(),
                pieces: rng.random_range(1..12),
            },
            _ => Work::Flood {
                bytes: rng.random_range(1..1_000_000),
            },
        };
        Self { id, work }
    }

    /// One that has to be ended.
    pub(crate) fn endless(id: String, stubborn: bool) -> Self {
        let work = Work::Endless { stubborn };
        Self { id, work }
    }

    /// As it is given to a client. All its processes bear the mark.
    pub(crate) fn command(&self, mark: &str) -> Command {
        let Self { id, work } = self;
        let then = match work {
            Work::Print { bursts, lines, code } => {
                format!("{}\nexit {code}", self.print(bursts * lines, *lines, "0.05"))
            }
            Work::Flood { bytes } => format!("yes '{}' | head -c {bytes}", self.flood_line()),
            Work::Echo { .. } => "exec cat".to_owned(),
            Work::Endless { stubborn: false } => self.print(ENDLESS, 5, "1"),
            Work::Endless { stubborn: true } => format!("trap '' TERM\n{}", self.print(ENDLESS, 5, "1")),
        };
        let command = Command::shell(format!("echo {id} >> /workspace/{RUNS}\n{then}")).id(id);
        let command = command
            .env("SANDGATE_TEST_MARK", self.mark(mark))
            .env("PADDING", PADDING);
        match work {
            Work::Echo { .. } => command.stdin(),
            _ => command,
        }
    }

    /// By what its processes are found on the host.
    pub(crate) fn mark(&self, mark: &str) -> String {
        format!("{mark}-{}", self.id)
    }

    fn print(&self, total: u32, burst: u32, pause: &str) -> String {
        let id = &self.id;
        format!(
            "n=0
            while [ $n -lt {total} ]; do
                echo \"{id} out $n $PADDING\"; echo \"{id} err $n\" >&2
                n=$((n + 1))
                [ $((n % {burst})) -ne 0 ] || [ $n -eq {total} ] || sleep {pause}
            done"
        )
    }

    fn flood_line(&self) -> String {
        format!("{} {PADDING}", self.id)
    }

    /// What is to be written to its stdin, if that is open.
    pub(crate) fn input(&self) -> Option<Vec<Vec<u8>>> {
        let Work::Echo { seed, pieces } = self.work else {
            return None;
        };
        let mut rng = StdRng::seed_from_u64(seed);
        let mut piece = || {
            let mut bytes = vec![0; rng.random_range(1..8_000)];
            rng.fill_bytes(&mut bytes);
            bytes
        };
        Some((0..pieces).map(|_| piece()).collect())
    }

    /// What it writes to stdout and stderr when it is let be. Of an endless one, the first lines.
    fn output(&self, most_lines: u32) -> (Vec<u8>, Vec<u8>) {
        match self.work {
            Work::Print { bursts, lines, .. } => self.lines(bursts * lines),
            Work::Endless { .. } => self.lines(most_lines),
            Work::Flood { bytes } => {
                let line = format!("{}\n", self.flood_line()).into_bytes();
                let mut output = line.repeat(bytes / line.len() + 1);
                output.truncate(bytes);
                (output, Vec::new())
            }
            Work::Echo { .. } => (self.input().unwrap_or_default().concat(), Vec::new()),
        }
    }

    fn lines(&self, count: u32) -> (Vec<u8>, Vec<u8>) {
        let id = &self.id;
        let stdout: String = (0..count).map(|n| format!("{id} out {n} {PADDING}\n")).collect();
        let stderr: String = (0..count).map(|n| format!("{id} err {n}\n")).collect();
        (stdout.into_bytes(), stderr.into_bytes())
    }

    fn code(&self) -> i32 {
        match self.work {
            Work::Print { code, .. } => code,
            _ => 0,
        }
    }

    /// A follower was told all of it.
    pub(crate) fn check_whole(&self, told: &Told) {
        let (stdout, stderr) = self.output(0);
        told.check_whole(&stdout, &stderr, self.code());
    }

    /// A follower was told its beginning, without a gap.
    pub(crate) fn check_beginning(&self, told: &Told) {
        let lines = told.stdout.iter().chain(&told.stderr).filter(|byte| **byte == b'\n');
        let (stdout, stderr) = self.output(u32::try_from(lines.count()).unwrap() + 1);
        assert_same("stdout", &told.stdout, &stdout[..told.stdout.len().min(stdout.len())]);
        assert_same("stderr", &told.stderr, &stderr[..told.stderr.len().min(stderr.len())]);
        assert_eq!(told.gaps, [], "nothing is missing");
    }

    /// The answer of `Run` says all of it.
    pub(crate) fn check_answer(&self, answer: &v1::RunResponse) {
        let exec = answer.exec.as_ref().unwrap();
        let status = exec.exit.as_ref().and_then(|exit| exit.status);
        assert_eq!(status, Some(v1::exec_exit::Status::Code(self.code())), "{exec:?}");
        let (stdout, stderr) = self.output(0);
        for (what, got, wanted) in [("stdout", &answer.stdout, stdout), ("stderr", &answer.stderr, stderr)] {
            let got = got.clone().unwrap_or_default();
            assert_eq!(got.omitted_bytes, 0, "{what} is too long for the answer");
            assert_same(what, &[got.head, got.tail].concat(), &wanted);
        }
    }
}
