//! The monitor's life: one loop that waits for the server's requests, the end of PID 1, and the sandbox's deadline.
//!
//! It has no threads and no async runtime, so that a thousand of them cost next to nothing.

mod ending;

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            fs::MetadataExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with},
    process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid},
};

use crate::{
    boot::{Booted, boot},
    control::{Boot, Failure, Removal, Request, Said},
    layout,
    record::Record,
    remove::{disk_bytes, remove_tree},
    report::During as _,
    speaker::Speaker,
    status::{Cause, Cgroups, Ended, Running, Status, boot_id, now_ms},
};

/// The runtime keeps the deadline itself. After this long, it has failed to.
const RUNTIME_GRACE_MS: u64 = 10_000;

/// A sandbox and its monitor.
struct Monitor {
    /// The state directory, absolute.
    state_dir: PathBuf,
    /// Where the sandbox's directory is now, absolute. It is also the working directory, which follows a rename.
    place: PathBuf,
    record: Record,
    status: Status,
    pidfd: Option<OwnedFd>,
    listener: UnixListener,
    speakers: Vec<Speaker>,
    /// The sandbox is not there until it is committed, and goes with the connection that wanted it.
    new: bool,
    /// Signals that ask us to end, as when the machine is shut down.
    signals: OwnedFd,
    /// One has come.
    leaving: bool,
}

/// What the loop does next.
enum Next {
    GoOn,
    /// The sandbox is removed: what is left is to clear its files and cgroups.
    Clear(PathBuf, Cgroups),
    /// We were asked to end, and nothing runs any more.
    Leave,
}

/// What there is to see to.
struct Ready {
    signalled: bool,
    ended: bool,
    listener: bool,
    speakers: Vec<bool>,
}

/// Runs until the sandbox is removed.
///
/// # Errors
/// When the directory is not a sandbox's, or another monitor has it.
pub fn run(dir: &Path, new: bool) -> io::Result<()> {
    let place = fs::canonicalize(dir)?;
    let state_dir = place
        .parent()
        .and_then(Path::parent)
        .ok_or(io::ErrorKind::InvalidInput)?
        .to_owned();
    // Root inside is somebody else outside, and must pass. The state directory keeps others out.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    std::env::set_current_dir(&place)?;
    // One that was just killed may still be on its way out.
    let lock = fs::File::open(".")?;
    flock(&lock, FlockOperation::LockExclusive)?;
    // The end of the server's terminal or session is not ours.
    let _ = rustix::process::setsid();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let first = take_stdin()?;
    let _ = fs::remove_file(layout::CONTROL);
    let listener = UnixListener::bind(layout::CONTROL)?;
    listener.set_nonblocking(true)?;
    let mut monitor = Monitor {
        record: Record::read(Path::new("."))?,
        status: settle_status()?,
        state_dir,
        place,
        pidfd: None,
        listener,
        speakers: Vec::new(),
        new,
        signals: sandgate_sys::termination_signals()?,
        leaving: false,
    };
    monitor.meet(first)?;
    loop {
        match monitor.turn()? {
            Next::GoOn => {}
            Next::Leave => return Ok(()),
            Next::Clear(place, cgroups) => {
                drop(monitor);
                // What is removed with its file is not counted any more, and the kernel need not write it first. The
                // status, which says what the cgroups are, goes behind them.
                for files in [layout::DISK, layout::IMAGE, layout::RUNTIME] {
                    let _ = remove_tree(&place.join(files));
                }
                cgroups.remove();
                return remove_tree(&place);
            }
        }
    }
}

/// The connection that we were started with. stdin itself is nothing from now on.
fn take_stdin() -> io::Result<UnixStream> {
    let first = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(fs::File::open("/dev/null")?)?;
    Ok(UnixStream::from(first))
}

/// What runs is nothing of ours: we have just begun. So it ended, and nobody wrote down why.
fn settle_status() -> io::Result<Status> {
    let here = Path::new(".");
    let mut status = Status::read(here).unwrap_or_default();
    if let Some(groups) = status.starting.take() {
        groups.remove();
        status.write(here)?;
    }
    let Some(running) = status.running.take() else {
        return Ok(status);
    };
    let (cause, message) = if boot_id()? == running.boot_id {
        running.cgroups.remove();
        (Cause::Crashed, "its monitor was killed, and it ended with it")
    } else {
        (Cause::MachineLost, "the machine was restarted")
    };
    status.last_end = Some(Ended {
        incarnation: running.incarnation,
        cause,
        message: message.to_owned(),
        at_ms: now_ms(),
    });
    status.write(here)?;
    Ok(status)
}

// === impl Monitor ===

impl Monitor {
    fn meet(&mut self, connection: UnixStream) -> io::Result<()> {
        connection.set_nonblocking(true)?;
        let mut speaker = Speaker::new(connection);
        speaker.say(&Said::Status(self.status.clone()));
        self.speakers.push(speaker);
        Ok(())
    }

    /// Waits for something to happen, and sees to it.
    fn turn(&mut self) -> io::Result<Next> {
        let ready = self.wait()?;
        if ready.ended {
            return Ok(self.ended());
        }
        if ready.signalled {
            self.leaving = true;
            if let Some(pidfd) = &self.pidfd {
                // It puts everything on disk before it ends.
                let _ = pidfd_send_signal(pidfd, Signal::TERM);
            }
        }
        if self.leaving && self.pidfd.is_none() && !self.new {
            return Ok(Next::Leave);
        }
        for index in 0..self.speakers.len() {
            if ready.speakers.get(index) != Some(&true) {
                continue;
            }
            for request in self.speakers[index].hear() {
                if let next @ Next::Clear(..) = self.answer(index, request) {
                    return Ok(next);
                }
            }
        }
        // After them: who comes now is told of a sandbox as it is behind all that a server which is gone has asked for. What was
        // killed is still told as running until its end is seen. One at a time: behind the next one there may be more to hear.
        if ready.listener
            && let Ok((connection, _)) = self.listener.accept()
        {
            self.meet(connection)?;
        }
        let birth_lost = self.new && (self.leaving || self.speakers.first().is_none_or(Speaker::is_gone));
        if birth_lost {
            return Ok(self.remove(None));
        }
        let birth = usize::from(self.new);
        let mut index = 0;
        self.speakers.retain(|speaker| {
            index += 1;
            index <= birth || !speaker.is_gone()
        });
        if self.overdue() {
            return Ok(self.remove(Some(Cause::Deadline)));
        }
        Ok(Next::GoOn)
    }

    fn wait(&self) -> io::Result<Ready> {
        let mut waited = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waited.extend(self.speakers.iter().map(|speaker| PollFd::new(speaker, PollFlags::IN)));
        // What was heard once stays readable, and says nothing new.
        waited.extend((!self.leaving).then(|| PollFd::new(&self.signals, PollFlags::IN)));
        waited.extend(self.pidfd.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        let nothing_left = self.leaving && self.pidfd.is_none();
        let left = if nothing_left {
            Some(Duration::ZERO)
        } else {
            self.time_left()
        };
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut waited, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        let ended = self.pidfd.is_some() && ready.pop() == Some(true);
        let signalled = !self.leaving && ready.pop() == Some(true);
        let listener = ready.remove(0);
        Ok(Ready {
            signalled,
            ended,
            listener,
            speakers: ready,
        })
    }

    fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline()?;
        Some(Duration::from_millis(deadline.saturating_sub(now_ms())))
    }

    fn deadline(&self) -> Option<u64> {
        let grace = if self.pidfd.is_some() { RUNTIME_GRACE_MS } else { 0 };
        self.record.deadline_ms.map(|deadline| deadline.saturating_add(grace))
    }

    fn overdue(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now_ms())
    }

    fn answer(&mut self, index: usize, request: Request) -> Next {
        let said = match request {
            Request::Start(how) => self.start(&how).map_or_else(Said::Failed, Said::Started),
            Request::Commit => self.commit().map_or_else(Said::Failed, |()| Said::Done),
            Request::Reread => match Record::read(Path::new(".")).during("read the record") {
                Ok(record) => {
                    self.record = record;
                    Said::Done
                }
                Err(failure) => Said::Failed(failure),
            },
            Request::Kill => {
                self.kill();
                Said::Done
            }
            Request::Remove => return self.remove_for(index),
        };
        self.speakers[index].say(&said);
        Next::GoOn
    }

    fn start(&mut self, how: &Boot) -> Result<Running, Failure> {
        if let (Some(running), Some(_)) = (&self.status.running, &self.pidfd) {
            return Ok(running.clone());
        }
        let here = Path::new(".");
        let planned = Cgroups::planned(&how.cgroups, &self.record.uid);
        self.status.begin(here, planned).during("write the status down")?;
        let booted = boot(&self.record, how, self.new);
        self.status.starting = None;
        let Booted { running, pidfd } = match booted {
            Ok(booted) => booted,
            Err(failure) => {
                self.status.write(here).during("write the status down")?;
                return Err(failure);
            }
        };
        self.status.running = Some(running.clone());
        self.pidfd = Some(pidfd);
        if let Err(error) = self.status.write(here) {
            self.kill_and_wait().remove();
            return Err(error).during("write the status down");
        }
        Ok(running)
    }

    fn commit(&mut self) -> Result<(), Failure> {
        if !self.new {
            return Ok(());
        }
        let to = self.state_dir.join(layout::SANDBOXES).join(&self.record.name);
        renameat_with(CWD, &self.place, CWD, &to, RenameFlags::NOREPLACE).during("move the sandbox to its place")?;
        self.place = to;
        self.new = false;
        Ok(())
    }

    fn kill(&self) {
        if let Some(pidfd) = &self.pidfd {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// Writes nothing down: what comes next does, or removes it all. Answers the cgroups, which are empty now and are still to
    /// be removed: to clear what v1 counts takes longer than all the rest, and nobody needs to wait for it.
    fn kill_and_wait(&mut self) -> Cgroups {
        self.kill();
        match self.pidfd {
            Some(_) => self.clear_up(Some(Cause::Stopped)).1,
            None => Cgroups::default(),
        }
    }

    /// PID 1 has ended: everything in its namespaces ends with it.
    fn ended(&mut self) -> Next {
        let (end, cgroups) = self.clear_up(None);
        // The next start has the same ones.
        cgroups.remove();
        self.write_status();
        match end.cause {
            Cause::Deadline | Cause::Idle => self.remove(Some(end.cause)),
            _ => {
                self.tell(&Said::Ended { end, gone: false });
                Next::GoOn
            }
        }
    }

    /// Takes PID 1's status and notes how it ended. Answers the cgroups that it had.
    fn clear_up(&mut self, told: Option<Cause>) -> (Ended, Cgroups) {
        let status = self.pidfd.take().and_then(|pidfd| {
            waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)
                .ok()
                .flatten()
        });
        ending::end_orphans();
        let running = self.status.running.take();
        let cgroups = running
            .as_ref()
            .map(|running| running.cgroups.clone())
            .unwrap_or_default();
        let (cause, message) = match (told, status) {
            (Some(Cause::Stopped), _) => (Cause::Stopped, "it was told to end".to_owned()),
            (_, Some(status)) if status.terminating_signal().is_some() => {
                let signal = status.terminating_signal().unwrap_or_default();
                if cgroups.init_out_of_memory() {
                    (
                        Cause::OutOfMemory,
                        "its runtime was killed for want of memory".to_owned(),
                    )
                } else {
                    (Cause::Crashed, format!("its runtime was killed by signal {signal}"))
                }
            }
            (_, status) => ending::why_it_exited(status.and_then(|status| status.exit_status())),
        };
        let end = Ended {
            incarnation: running.map(|running| running.incarnation).unwrap_or_default(),
            cause,
            message,
            at_ms: now_ms(),
        };
        self.status.last_end = Some(end.clone());
        (end, cgroups)
    }

    fn write_status(&self) {
        if let Err(error) = self.status.write(Path::new(".")) {
            eprintln!("sandgate-monitor: the status could not be written: {error}");
        }
    }

    /// Frees the name and goes. `cause` is told if it was not asked for.
    fn remove(&mut self, cause: Option<Cause>) -> Next {
        let cgroups = self.kill_and_wait();
        let cleared = self.move_out();
        if let Some(cause) = cause {
            let message = match cause {
                Cause::Idle => "its idle limit was reached",
                _ => "its deadline was reached",
            };
            let incarnation = self
                .status
                .last_end
                .as_ref()
                .map(|end| end.incarnation.clone())
                .unwrap_or_default();
            let end = Ended {
                incarnation,
                cause,
                message: message.to_owned(),
                at_ms: now_ms(),
            };
            self.tell(&Said::Ended { end, gone: true });
        }
        match cleared {
            Ok(place) => Next::Clear(place, cgroups),
            Err(failure) => {
                eprintln!("sandgate-monitor: {}", failure.message);
                let gone = |_| self.trash();
                Next::Clear(std::env::current_dir().unwrap_or_else(gone), cgroups)
            }
        }
    }

    fn remove_for(&mut self, index: usize) -> Next {
        let cgroups = self.kill_and_wait();
        let freed = disk_in_use();
        match self.move_out() {
            Ok(place) => {
                self.speakers[index].say(&Said::Removed(Removal { disk_bytes: freed }));
                Next::Clear(place, cgroups)
            }
            Err(failure) => {
                cgroups.remove();
                self.write_status();
                self.speakers[index].say(&Said::Failed(failure));
                Next::GoOn
            }
        }
    }

    /// The directory is where the working directory is: it may have been set aside, and another have its old place.
    fn move_out(&mut self) -> Result<PathBuf, Failure> {
        let trash = self.trash();
        let moved = std::env::current_dir().and_then(|place| fs::rename(place, &trash));
        moved.during("move the sandbox out")?;
        self.place.clone_from(&trash);
        Ok(trash)
    }

    fn trash(&self) -> PathBuf {
        self.state_dir.join(layout::TRASH).join(&self.record.uid)
    }

    fn tell(&mut self, said: &Said) {
        for speaker in &mut self.speakers {
            speaker.say(said);
        }
    }
}

/// Bytes of the sandbox's own disk: its files, or the file that holds them.
fn disk_in_use() -> Option<u64> {
    match fs::metadata(layout::IMAGE) {
        Ok(image) => Some(image.blocks().saturating_mul(512)),
        Err(_) => disk_bytes(Path::new(layout::DISK)).unwrap_or_default(),
    }
}
