//! Starting a sandbox's monitor, and speaking to it.
//!
//! One line is one JSON value. Every request gets one answer, in order; word that PID 1 ended may come between.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::unix::{fs::OpenOptionsExt as _, net::UnixStream as StdStream},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use sandgate_monitor::{
    Ended, Status,
    control::{Request, Said, line},
    layout,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time,
};

use crate::{
    carrier::connect,
    spawner::{Spawner, Starting},
};

/// How long a monitor may take for anything but removing.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look for the end of one that can't be waited for otherwise.
const LOOK: Duration = Duration::from_secs(1);
/// How long it may take to say how it is.
const FIRST_WORD: Duration = Duration::from_secs(20);

/// A connection to a monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    said: Lines<BufReader<OwnedReadHalf>>,
    ask: OwnedWriteHalf,
    /// Ends that came while an answer was awaited.
    ended: VecDeque<End>,
    /// How it was when the connection was made.
    pub(crate) status: Status,
    /// It was started for this connection: nothing can be running beside it.
    pub(crate) fresh: bool,
}

/// PID 1 has ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) end: Ended,
    /// The sandbox is removed.
    pub(crate) gone: bool,
}

/// A monitor that is being started.
#[derive(Debug)]
pub(crate) struct Launch {
    dir: PathBuf,
    ours: StdStream,
    starting: Starting,
}

// === impl Launch ===

impl Launch {
    /// Waits for the monitor's first word.
    pub(crate) async fn met(self) -> io::Result<Monitor> {
        let Self { dir, ours, starting } = self;
        // Apart from us: one that begins late is to be waited for, too.
        let begun = tokio::spawn(async move {
            let pid = starting.started().await?;
            tokio::spawn(see_out(dir, pid));
            io::Result::Ok(())
        });
        timely(FIRST_WORD, async {
            begun.await.map_err(io::Error::other)??;
            Monitor::hear(UnixStream::from_std(ours)?, true).await
        })
        .await
    }
}

/// Waits for a monitor's end.
async fn see_out(dir: PathBuf, pid: Pid) {
    // A child that nobody has waited for keeps its pid. Where there is no descriptor for it, as under valgrind, it is looked for.
    let opened = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
    if let Ok(pidfd) = opened.and_then(sandgate_sys::readiness) {
        let _ = pidfd.readable().await;
    }
    let ended = loop {
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(None) => time::sleep(LOOK).await,
            ended => break ended,
        }
    };
    match ended {
        Ok(Some((_, status))) if status.exit_status() != Some(0) => {
            tracing::warn!(dir = %dir.display(), ?status, "a monitor ended badly; its log may say why");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "a monitor can't be waited for"),
    }
}

// === impl Monitor ===

impl Monitor {
    /// Has a monitor started on a directory. `new`: the sandbox is to be made there. May block for a moment.
    pub(crate) fn launch(spawner: &Spawner, program: &Path, dir: &Path, new: bool) -> io::Result<Launch> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let log = File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(dir.join(layout::LOG))?;
        let mut words = vec![program.into(), dir.into()];
        words.extend(new.then(|| "--new".into()));
        Ok(Launch {
            dir: dir.to_owned(),
            ours,
            // The monitor's end of the connection is closed here with it: it would hide the monitor's death.
            starting: spawner.start(&words, theirs.into(), log.into())?,
        })
    }

    /// Finds the monitor of a directory.
    pub(crate) async fn find(dir: &Path) -> io::Result<Self> {
        Self::hear(connect(dir, layout::CONTROL).await?, false).await
    }

    /// Takes a connection over which a monitor speaks.
    pub(crate) async fn hear(stream: UnixStream, fresh: bool) -> io::Result<Self> {
        let (said, ask) = stream.into_split();
        let mut monitor = Self {
            said: BufReader::with_capacity(1024, said).lines(),
            ask,
            ended: VecDeque::new(),
            status: Status::default(),
            fresh,
        };
        match timely(FIRST_WORD, monitor.read()).await? {
            Said::Status(status) => monitor.status = status,
            other => return Err(out_of_turn(&other)),
        }
        Ok(monitor)
    }

    /// Asks, and waits for the answer. After an error nothing may be asked on this connection.
    pub(crate) async fn ask(&mut self, request: &Request) -> io::Result<Said> {
        self.ask_within(PATIENCE, request).await
    }

    pub(crate) async fn ask_within(&mut self, patience: Duration, request: &Request) -> io::Result<Said> {
        self.ask.write_all(&line(request)?).await?;
        timely(patience, async {
            loop {
                match self.read().await? {
                    Said::Ended { end, gone } => self.ended.push_back(End { end, gone }),
                    Said::Status(status) => self.status = status,
                    answer => return Ok(answer),
                }
            }
        })
        .await
    }

    /// Waits for PID 1's end. May be dropped at any time.
    pub(crate) async fn end(&mut self) -> io::Result<End> {
        if let Some(end) = self.ended.pop_front() {
            return Ok(end);
        }
        loop {
            match self.read().await? {
                Said::Ended { end, gone } => return Ok(End { end, gone }),
                Said::Status(_) => {}
                other => return Err(out_of_turn(&other)),
            }
        }
    }

    /// Waits until the monitor has ended.
    pub(crate) async fn closed(mut self) {
        while self.read().await.is_ok() {}
    }

    async fn read(&mut self) -> io::Result<Said> {
        match self.said.next_line().await? {
            Some(line) => serde_json::from_str(&line).map_err(io::Error::from),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the monitor has ended")),
        }
    }
}

async fn timely<T>(patience: Duration, answer: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the monitor does not answer");
    time::timeout(patience, answer).await.map_err(late)?
}

fn out_of_turn(said: &Said) -> io::Error {
    io::Error::other(format!("the monitor said something out of turn: {said:?}"))
}

#[cfg(test)]
mod tests {
    use sandgate_monitor::{Cause, control::Removal};

    use super::*;

    #[tokio::test]
    async fn ends_that_come_between_are_kept_and_answers_stay_in_order() {
        let (ours, mut fake) = UnixStream::pair().unwrap();
        let end = |incarnation: &str| Ended {
            incarnation: incarnation.to_owned(),
            cause: Cause::Crashed,
            message: String::new(),
            at_ms: 1,
        };
        let fake_monitor = tokio::spawn(async move {
            let ended = |i| Said::Ended {
                end: end(i),
                gone: false,
            };
            let said = [
                Said::Status(Status::default()),
                ended("a"),
                Said::Done,
                ended("b"),
                Said::Removed(Removal::default()),
            ];
            for said in said {
                fake.write_all(&line(&said).unwrap()).await.unwrap();
            }
            fake
        });
        let mut monitor = Monitor::hear(ours, false).await.unwrap();
        assert_eq!(monitor.ask(&Request::Reread).await.unwrap(), Said::Done);
        assert!(matches!(monitor.ask(&Request::Remove).await.unwrap(), Said::Removed(_)));
        assert_eq!(monitor.end().await.unwrap().end.incarnation, "a");
        assert_eq!(monitor.end().await.unwrap().end.incarnation, "b");
        drop(fake_monitor.await.unwrap());
        assert!(monitor.end().await.is_err());
    }

    #[tokio::test]
    async fn a_program_that_is_no_monitor_is_an_error_and_no_wait() {
        let dir = tempfile::tempdir().unwrap();
        let spawner = Spawner::new().unwrap();
        let start = async |program: &str| {
            Monitor::launch(&spawner, Path::new(program), dir.path(), true)
                .unwrap()
                .met()
                .await
        };
        let error = start("/bin/true").await.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            ),
            "{error}"
        );
        assert!(start("/no/such/program").await.is_err());
        assert!(Monitor::find(dir.path()).await.is_err());
    }
}
