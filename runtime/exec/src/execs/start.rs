//! From an id that nobody has to a program that runs under it.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use sandgate_errors::Refusal;
use sandgate_output::{LogOptions, Mark, OnFull};
use sandgate_proto::{runtime::v1::StartFailure, v1::ErrorReason};
use tokio::{sync::watch, task::spawn_blocking};

use super::{Execs, HEAD_BYTES, Inserted};
use crate::{
    exec::{Exec, Live, Phase, Saved, Status, Terminal},
    journal::Entry,
    launch::{Awaits, Ends, Launched},
    save,
    spec::{Fingerprint, Spec},
    stdin::Stdin,
    supervise::{Count, Keep, Supervisor, keep_time},
    task,
};

/// How far a file that output is saved to may be behind the log.
const SAVE_LAG: u64 = 1 << 20;

impl Execs {
    /// Takes the id, unless another caller was quicker.
    pub(super) fn insert(&self, id: &str, mark: Fingerprint, command: String, spec: Spec) -> Result<Inserted, Refusal> {
        let mut table = self.table();
        // Another caller may have come first since we last looked.
        if let Some(exec) = table.find_same(id, &mark)? {
            return Ok(Inserted::Found(exec));
        }
        if table.stopping {
            return Err(Refusal::new(ErrorReason::Stopping, "the sandbox is stopping"));
        }
        let Some(slot) = table.free_slots.pop() else {
            let most = self.0.counters.slots();
            let message = format!("{most} execs are alive in this sandbox, which is the most it runs at once");
            return Err(Refusal::new(ErrorReason::LimitReached, message).with_retry_after(Duration::from_secs(1)));
        };
        let on_full = if spec.hold { OnFull::Hold } else { OnFull::DropOldest };
        let options = LogOptions {
            retain_bytes: spec.retain_bytes,
            on_full,
            head_bytes: HEAD_BYTES,
        };
        let log = self.0.store.create(id, options).map_err(|error| {
            table.free_slots.push(slot);
            Refusal::new(ErrorReason::Internal, error.to_string())
        })?;
        let status = Status {
            saved: Saved {
                done: spec.save.is_none(),
                ..Saved::default()
            },
            ..Status::default()
        };
        table.count += 1;
        table.starting += 1;
        let exec = Arc::new(Exec {
            id: id.to_owned(),
            number: table.count,
            incarnation: self.0.launcher.settings.incarnation.clone(),
            fingerprint: mark,
            command,
            started_at: SystemTime::now(),
            log,
            status: watch::Sender::new(status),
            live: std::sync::OnceLock::new(),
            timed_out: AtomicBool::new(false),
            callers: Default::default(),
            calls: Default::default(),
        });
        table.execs.insert(id.to_owned(), exec.clone());
        table.order.push_back(id.to_owned());
        self.0.stirred.notify_one();
        Ok(Inserted::New(exec, Box::new(spec), slot))
    }

    /// Writes the start down and starts the program.
    pub(super) async fn begin(&self, exec: &Arc<Exec>, spec: Spec, slot: usize, awaits: Awaits) -> Result<(), Refusal> {
        let _turn = self.0.starts.acquire().await;
        // A turn lasts until the program has begun, or for as long as it is left alone: not while others wait for theirs.
        let awaits = match self.0.starts.available_permits() {
            0 => Awaits::Start,
            _ => awaits,
        };
        let (env, stopping) = {
            let table = self.table();
            (table.env.clone(), table.stopping)
        };
        if stopping {
            let refusal = Refusal::new(ErrorReason::Stopping, "the sandbox is stopping");
            self.forget(exec, slot, refusal.clone()).await;
            return Err(refusal);
        }
        if let Err(refusal) = self.note_start(exec, slot) {
            // Nothing was started and nothing noted: the id is free again.
            self.forget(exec, slot, refusal.clone()).await;
            return Err(refusal);
        }
        let failed = |error: String| StartFailure {
            reason: 0,
            message: error,
        };
        let (launched, spec) = match self.0.launcher.launch_at_once(&spec, &env, awaits).await {
            Some(launched) => (launched, spec),
            None => {
                self.0.launcher.dismiss().await;
                let execs = self.clone();
                let launching = spawn_blocking(move || (execs.0.launcher.launch(&spec, &env), spec)).await;
                match launching {
                    Ok(launched) => launched,
                    Err(error) => {
                        self.start_failed(exec, slot, failed(error.to_string()));
                        return Ok(());
                    }
                }
            }
        };
        match launched {
            Ok(launched) => {
                if let Err(error) = self.supervise(exec, launched, spec, slot) {
                    // It runs, and nobody would look after it.
                    if let Some(live) = exec.live.get() {
                        let _ = live.tree.kill().await;
                    }
                    self.start_failed(exec, slot, failed(error.to_string()));
                }
            }
            Err(failure) => self.start_failed(exec, slot, failure),
        }
        Ok(())
    }

    /// Writes down that the id is taken, before anything runs under it.
    fn note_start(&self, exec: &Exec, slot: usize) -> Result<(), Refusal> {
        let entry = Entry {
            id: exec.id.clone(),
            fingerprint: exec.fingerprint.to_vec(),
            info: Some(exec.info()),
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
        };
        self.0.counters.store(slot, [0, 0]);
        self.0.journal.append(&entry).map_err(|error| {
            let message = format!("the runtime's own disk takes no more records: {error}");
            Refusal::new(ErrorReason::DiskFull, message)
        })
    }

    /// Writes down how an exec stands.
    fn note(&self, exec: &Exec) {
        let entry = Entry {
            id: exec.id.clone(),
            info: Some(exec.info()),
            ..Entry::default()
        };
        if let Err(error) = self.0.journal.append(&entry) {
            tracing::warn!(exec = exec.id, %error, "the end of an exec could not be written down");
        }
    }

    fn supervise(&self, exec: &Arc<Exec>, launched: Launched, spec: Spec, slot: usize) -> io::Result<()> {
        let Launched {
            pid,
            leader,
            tree,
            ends,
            begun,
        } = launched;
        let Ends {
            stdin,
            stdout,
            stderr,
            terminal,
        } = ends;
        let stdin = stdin.map(|end| Stdin::new(end, terminal.is_some())).transpose();
        // Set before anything can fail: the tree must be known, to be killed.
        let (stdin, failed) = match stdin {
            Ok(stdin) => (stdin, None),
            Err(error) => (None, Some(error)),
        };
        let terminal = terminal.map(Terminal::new);
        let _ = exec.live.set(Live { tree, stdin, terminal });
        if let Some(error) = failed {
            return Err(error);
        }
        let count = Count {
            counters: self.0.counters.clone(),
            slot,
        };
        let keep = Keep {
            retain_bytes: spec.retain_bytes,
            save_lag: spec.save.as_ref().map(|_| (spec.retain_bytes / 4).min(SAVE_LAG)),
        };
        let supervisor = Supervisor::new(exec.clone(), leader, stdout, stderr, begun, count, keep)?;
        self.0.alive.send_modify(|alive| *alive += 1);
        let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0);
        exec.status.send_modify(|status| {
            status.pid = pid;
            status.alive = true;
            status.phase = Phase::Running;
        });
        if let Some(save) = spec.save {
            let execs = self.clone();
            save::follow(exec, save, spec.user, self.defaults(), move |exec| execs.note(exec));
        }
        if let Some(timeout) = spec.timeout {
            keep_time(exec, timeout, spec.kill_grace);
        }
        let execs = self.clone();
        task::spawn("supervise", &exec.id, async move {
            let empty = || execs.0.alive.send_modify(|alive| *alive -= 1);
            supervisor.run(|exec| execs.note(exec), empty).await;
            execs.table().free_slots.push(slot);
            execs.make_ready().await;
        });
        Ok(())
    }

    /// Has a child ready for the next command, unless another one runs or starts: the child shares our memory, so that we
    /// would be killed with it if the kernel chose it when a command takes too much.
    async fn make_ready(&self) {
        // Whoever was told of the end may have been woken on this very processor, and goes first. The next command that they
        // send at once is read in our next turn, and taken note of in the one behind it: it is started sooner as it is.
        rustix::thread::sched_yield();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let is_quiet = {
            let table = self.table();
            table.starting == 0 && !table.stopping
        };
        if is_quiet && *self.0.alive.borrow() == 0 {
            self.0.launcher.make_ready();
        }
    }

    fn start_failed(&self, exec: &Arc<Exec>, slot: usize, failure: StartFailure) {
        exec.status.send_modify(|status| {
            status.phase = Phase::StartFailed(failure);
            status.saved.done = true;
            status.over_at = Some(SystemTime::now());
        });
        exec.log.mark(Mark::Exited);
        exec.log.mark(Mark::Ended);
        self.note(exec);
        self.table().free_slots.push(slot);
    }

    /// Takes an exec back that was not started. Whoever found it meanwhile gets the same refusal.
    async fn forget(&self, exec: &Arc<Exec>, slot: usize, refusal: Refusal) {
        {
            let mut table = self.table();
            table.execs.remove(&exec.id);
            table.order.retain(|id| *id != exec.id);
            table.free_slots.push(slot);
        }
        let _ = self.0.store.remove(&exec.id).await;
        exec.status.send_modify(|status| {
            status.phase = Phase::Refused(refusal);
            status.over_at = Some(SystemTime::now());
        });
    }
}
