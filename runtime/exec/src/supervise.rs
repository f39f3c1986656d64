//! What the runtime does for a running program: read its output, notice its end, keep its time.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use sandgate_output::{Log, Mark, Stream};
use sandgate_proto::runtime::v1::{ExecExit, ExecLost, exec_exit};
use sandgate_sys::{Counters, Exit, ExitStatus, Keeper, read_into, readiness, try_readiness};
use tokio::{io::unix::AsyncFd, sync::watch};

use crate::{
    children::Awaited,
    exec::{Exec, Live, Phase, Status, offsets},
    launch::{Leader, OOM_SCORE_ADJ},
    task,
    tree::Tree,
};

/// Reads what one stream of a program writes.
struct Reader {
    stream: Stream,
    end: End,
    buffer: BytesMut,
    /// Whether its pipe may be made larger.
    may_widen: bool,
    wide: Option<Wide>,
}

/// Our end of a stream.
enum End {
    /// It can be read, but not waited for yet.
    Open(OwnedFd),
    Watched(AsyncFd<OwnedFd>),
    /// There is no more.
    Closed,
}

/// The right to a larger pipe. The kernel counts the pages of all pipes of a user, and makes all later ones tiny when there
/// are too many, so only a few are made large at a time.
struct Wide;

/// Where written offsets are counted for the case of a crash.
pub(crate) struct Count {
    pub(crate) counters: Arc<Counters>,
    pub(crate) slot: usize,
}

/// What is kept of the output.
pub(crate) struct Keep {
    pub(crate) retain_bytes: u64,
    /// How far the file may be behind that it is also saved to.
    pub(crate) save_lag: Option<u64>,
}

/// The program's end, awaited.
enum Watch {
    Direct(AsyncFd<OwnedFd>, Option<Awaited>),
    /// Reports of the keeper, its end, itself.
    Kept(AsyncFd<OwnedFd>, AsyncFd<OwnedFd>, Keeper, Awaited),
}

pub(crate) struct Supervisor {
    exec: Arc<Exec>,
    pump: Pump,
    watch: Watch,
    begun: Instant,
}

/// From the program's streams to its log.
struct Pump {
    log: Log,
    readers: [Reader; 2],
    count: Count,
    terminal: bool,
    saving: Option<Saving>,
    turns: usize,
}

/// The output is also saved to a file, which must not lose what is dropped from the log.
struct Saving {
    status: watch::Receiver<Status>,
    /// How far the file may be behind.
    lag: u64,
}

const CHUNK: usize = 64 * 1024;
const WIDE_PIPE: usize = 256 << 10;
const MOST_WIDE: usize = 16;
static WIDE: AtomicUsize = AtomicUsize::new(0);
/// Reads in a row before others have their turn.
const TURNS: usize = 4;
const TRACED: Duration = Duration::from_millis(2);
/// A fork takes less.
const FORKED: Duration = Duration::from_millis(10);

// === impl Supervisor ===

impl Supervisor {
    pub(crate) fn new(
        exec: Arc<Exec>,
        leader: Leader,
        stdout: OwnedFd,
        stderr: Option<OwnedFd>,
        begun: Instant,
        count: Count,
        keep: Keep,
    ) -> io::Result<Self> {
        let is_quiet = matches!(&leader, Leader::Watched(..));
        let is_ended = matches!(&leader, Leader::Watched(program, _) if program.is_ended);
        let watch = match leader {
            Leader::Direct(pidfd, awaited) => Watch::Direct(readiness(pidfd)?, Some(awaited)),
            Leader::Watched(program, awaited) => Watch::Direct(program.pidfd, Some(awaited)),
            Leader::Kept(keeper, awaited) => {
                let reports = readiness(keeper.reports().try_clone_to_owned()?)?;
                Watch::Kept(reports, readiness(keeper.pidfd.try_clone()?)?, keeper, awaited)
            }
        };
        // At the exit all that is in a pipe goes to the log at once: that must be little next to what is kept, and to how
        // far a file may be behind.
        let may_widen = keep.save_lag.is_none() && keep.retain_bytes >= 4 * WIDE_PIPE as u64;
        let readers = [
            Reader::new(Stream::Stdout, Some(stdout), may_widen),
            Reader::new(Stream::Stderr, stderr, may_widen),
        ];
        let terminal = exec.live.get().is_some_and(|live| live.terminal.is_some());
        let saving = keep.save_lag.map(|lag| Saving {
            status: exec.status.subscribe(),
            lag,
        });
        let mut pump = Pump {
            log: exec.log.clone(),
            readers,
            count,
            terminal,
            saving,
            turns: 0,
        };
        // What has ended has mostly written all there is.
        if !is_ended {
            pump.watch()?;
        }
        if is_quiet {
            spare_the_runtime(&exec);
        }
        Ok(Self {
            exec,
            pump,
            watch,
            begun,
        })
    }

    /// Follows the program until nothing of it is left. `note` is called at its end and at the end of its output, `empty`
    /// when no process is left.
    pub(crate) async fn run(mut self, note: impl Fn(&Exec) + Send, empty: impl FnOnce() + Send) {
        self.until_exit().await;
        let Self {
            exec, mut pump, watch, ..
        } = self;
        let is_ended = pump.at_end();
        if is_ended {
            exec.log.mark(Mark::Ended);
        }
        note(&exec);
        // Whoever waited for the end is told before the rest is done, which nobody waits for.
        tokio::task::yield_now().await;
        let output = async {
            if !is_ended {
                if let Err(error) = pump.watch() {
                    // Nobody could read what is written from now on, so nobody may write.
                    tracing::error!(exec = exec.id, %error, "the output of what a command left behind can't be followed");
                    if let Some(live) = exec.live.get() {
                        let _ = live.tree.kill().await;
                    }
                    pump.drain();
                    pump.close();
                }
                while !pump.at_end() {
                    pump.step().await;
                }
                exec.log.mark(Mark::Ended);
                note(&exec);
            }
        };
        // Apart from each other: a follower that holds the output back does not keep dead processes alive.
        let processes = async {
            until_empty(&exec, watch).await;
            if let Some(stdin) = exec.live.get().and_then(|live| live.stdin.as_ref()) {
                stdin.shut();
            }
            exec.status.send_modify(|status| status.alive = false);
            empty();
        };
        tokio::join!(output, processes);
        exec.status
            .send_modify(|status| status.over_at = Some(SystemTime::now()));
    }

    /// Reads until the program has ended, then what it had written until then, then tells of it.
    async fn until_exit(&mut self) {
        let exit = loop {
            tokio::select! {
                biased;
                exit = self.watch.exited() => break exit,
                // Dropped while it waits for room, it loses nothing: what was read is in the log.
                () = self.pump.step() => {}
            }
        };
        let duration = self.begun.elapsed();
        if let (None, Watch::Kept(_, ended, _, awaited)) = (exit, &self.watch) {
            // A command of our own user killed its keeper. Its children are ours now, and nobody else's.
            let _ = ended.readable().await.map(|mut guard| guard.retain_ready());
            awaited.children().kill_strays().await;
        }
        self.pump.drain();
        let alone =
            exit.is_some_and(|(_, alone)| alone) || self.exec.live.get().is_some_and(|live| live.tree.is_empty());
        let exit = self.describe(exit.map(|(exit, _)| exit), duration);
        self.exec.status.send_modify(|status| {
            status.phase = Phase::Exited(Box::new(exit));
            status.alive = !alone;
        });
        self.exec.log.mark(Mark::Exited);
    }

    fn describe(&self, exit: Option<Exit>, duration: Duration) -> ExecExit {
        let live = self.exec.live.get();
        let status = match exit.map(|exit| exit.status) {
            Some(ExitStatus::Code(code)) => exec_exit::Status::Code(code),
            Some(ExitStatus::Signal(signal)) => exec_exit::Status::Signal(signal),
            None => exec_exit::Status::Lost(ExecLost {}),
        };
        let span = |span: Duration| prost_types::Duration::try_from(span).ok();
        ExecExit {
            status: Some(status),
            timed_out: self.exec.timed_out.load(Ordering::Acquire),
            out_of_memory: live.map_or(0, |live| live.tree.out_of_memory()),
            duration: span(duration),
            user_time: exit.and_then(|exit| span(exit.user_time)),
            system_time: exit.and_then(|exit| span(exit.system_time)),
            max_rss: exit.map_or(0, |exit| exit.max_rss),
            offsets: Some(offsets(self.exec.log.written())),
            exited_at: Some(SystemTime::now().into()),
        }
    }
}

// === impl Pump ===

impl Pump {
    fn at_end(&self) -> bool {
        self.readers.iter().all(|reader| matches!(reader.end, End::Closed))
    }

    /// Sees to it that output can be waited for.
    fn watch(&mut self) -> io::Result<()> {
        self.readers.iter_mut().try_for_each(Reader::watch)
    }

    fn close(&mut self) {
        self.readers.iter_mut().for_each(|reader| reader.end = End::Closed);
    }

    /// Waits for output and takes it. What was read is in the log at once; then it may wait for room.
    async fn step(&mut self) {
        if let Some(Saving { status, lag }) = &mut self.saving {
            let enough = self.log.written().total().saturating_sub(*lag);
            let _ = status
                .wait_for(|status| status.saved.done || status.saved.upto.total() >= enough)
                .await;
        }
        let [stdout, stderr] = &self.readers;
        let index = tokio::select! {
            () = stdout.ready() => 0,
            () = stderr.ready() => 1,
        };
        if let Some((stream, bytes)) = self.take(index, CHUNK) {
            self.log.append(stream, bytes).await;
        }
        // A program that writes without end must leave others their turn, its own followers first of all.
        self.turns = (self.turns + 1) % TURNS;
        if self.turns == 0 {
            tokio::task::yield_now().await;
        }
    }

    fn take(&mut self, index: usize, most: usize) -> Option<(Stream, Bytes)> {
        let reader = &mut self.readers[index];
        let bytes = reader.take(most)?;
        let mut written = self.log.written();
        match reader.stream {
            Stream::Stdout => written.stdout += bytes.len() as u64,
            Stream::Stderr => written.stderr += bytes.len() as u64,
        }
        // Before followers can see them: after a crash a count that is too high is a gap, one too low is silence.
        self.count
            .counters
            .store(self.count.slot, [written.stdout, written.stderr]);
        Some((reader.stream, bytes))
    }

    /// Reads what the streams hold now, without waiting for room. Bounded: somebody else may write for ever.
    fn drain(&mut self) {
        for index in 0..self.readers.len() {
            let mut left = self.waiting(index);
            while let Some((stream, bytes)) = self.take(index, CHUNK.min(left.max(1))) {
                left = left.saturating_sub(bytes.len());
                // Its first poll puts the bytes in.
                let _ = now(self.log.append(stream, bytes));
                if left == 0 {
                    break;
                }
            }
        }
        // Once more, to learn whether that was the end.
        for index in 0..self.readers.len() {
            if self.waiting_now(index) == 0
                && let Some((stream, bytes)) = self.take(index, CHUNK)
            {
                let _ = now(self.log.append(stream, bytes));
            }
        }
    }

    /// How much there is to read of what was written by now. Of a terminal the kernel does not say: some of it is
    /// between two buffers.
    fn waiting(&self, index: usize) -> usize {
        if self.terminal { CHUNK } else { self.waiting_now(index) }
    }

    fn waiting_now(&self, index: usize) -> usize {
        let end = self.readers[index].end.descriptor();
        let waiting = end.and_then(|end| rustix::io::ioctl_fionread(end).ok());
        waiting.and_then(|waiting| usize::try_from(waiting).ok()).unwrap_or(0)
    }
}

/// Waits until no process of the tree is left.
async fn until_empty(exec: &Exec, watch: Watch) {
    let live = exec.live.get();
    let release = || live.map_or((), Live::release);
    let emptied = match (watch, live.map(|live| &live.tree)) {
        (Watch::Kept(_, ended, keeper, awaited), _) => keeper_end(&ended, keeper, awaited, release).await,
        (Watch::Direct(..), Some(Tree::Group(group))) => group.emptied().await,
        (Watch::Direct(..), _) => Ok(()),
    };
    release();
    if let Err(error) = emptied {
        tracing::error!(exec = exec.id, %error, "lost sight of the processes of an exec");
    }
}

/// `release` is called while the keeper's number still means the keeper.
async fn keeper_end(ended: &AsyncFd<OwnedFd>, keeper: Keeper, awaited: Awaited, release: impl Fn()) -> io::Result<()> {
    ended.readable().await?.retain_ready();
    release();
    keeper.wait_and_release();
    drop(awaited);
    Ok(())
}

// === impl Reader ===

impl Reader {
    fn new(stream: Stream, end: Option<OwnedFd>, may_widen: bool) -> Self {
        Self {
            stream,
            end: end.map_or(End::Closed, End::Open),
            buffer: BytesMut::new(),
            may_widen,
            wide: None,
        }
    }

    fn watch(&mut self) -> io::Result<()> {
        let (end, watched) = match std::mem::replace(&mut self.end, End::Closed) {
            End::Open(end) => match try_readiness(end) {
                Ok(end) => (End::Watched(end), Ok(())),
                // It can still be read.
                Err((end, error)) => (End::Open(end), Err(error)),
            },
            end => (end, Ok(())),
        };
        self.end = end;
        watched
    }

    /// Waits until there is something to read. Never, once the stream is at its end.
    async fn ready(&self) {
        match &self.end {
            End::Watched(end) => {
                // An error shows again when it is read.
                let _ = end.readable().await.map(|mut guard| guard.retain_ready());
            }
            End::Open(_) | End::Closed => std::future::pending().await,
        }
    }

    fn take(&mut self, most: usize) -> Option<Bytes> {
        let end = self.end.descriptor()?;
        if self.buffer.capacity() < most.min(CHUNK / 4) {
            self.buffer.reserve(CHUNK);
        }
        match read_into(end, &mut self.buffer, most) {
            Err(Errno::AGAIN) => {
                // Says that it is not ready: the next wait is a real one. No news can come in between, because they come
                // through this very thread.
                if let End::Watched(end) = &self.end
                    && let Some(Ok(mut guard)) = now(end.readable())
                {
                    guard.clear_ready();
                }
                None
            }
            // EIO is how a terminal says that its last user is gone.
            Ok(0) | Err(_) => {
                self.end = End::Closed;
                self.wide = None;
                self.buffer = BytesMut::new();
                None
            }
            Ok(count) => {
                // Filled to the brim: who writes so much waits for us less often with more room. Refused to a terminal, and
                // to a user with many pipes; it goes on all the same.
                if count == CHUNK && std::mem::take(&mut self.may_widen) {
                    self.wide = Wide::claim();
                    if self.wide.is_some() {
                        let _ = rustix::pipe::fcntl_setpipe_size(end, WIDE_PIPE);
                    }
                }
                Some(self.buffer.split().freeze())
            }
        }
    }
}

// === impl End ===

impl End {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Open(end) => Some(end.as_fd()),
            Self::Watched(end) => Some(end.get_ref().as_fd()),
            Self::Closed => None,
        }
    }
}

// === impl Wide ===

impl Wide {
    fn claim() -> Option<Self> {
        let more = |wide| (wide < MOST_WIDE).then_some(wide + 1);
        let claimed = WIDE.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        claimed.is_ok().then_some(Self)
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        WIDE.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The outcome of a future that is ready now.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

// === impl Watch ===

impl Watch {
    /// Waits for the program's end, and says whether it surely left nothing behind. `None`: how it ended is not known.
    async fn exited(&mut self) -> Option<(Exit, bool)> {
        match self {
            Self::Direct(pidfd, awaited) => {
                let _ = pidfd.readable().await.map(|mut guard| guard.retain_ready());
                loop {
                    match sandgate_sys::reap(pidfd.get_ref().as_fd()) {
                        // It has ended, and a tracer has not let go of it yet.
                        Ok(None) => tokio::time::sleep(TRACED).await,
                        exit => {
                            *awaited = None;
                            return exit.ok().flatten().map(|exit| (exit, false));
                        }
                    }
                }
            }
            Self::Kept(reports, _, keeper, _) => loop {
                let Ok(mut guard) = reports.readable().await else {
                    return None;
                };
                match guard.try_io(|_| keeper.exit()) {
                    Ok(exit) => return exit.ok(),
                    Err(_would_block) => {}
                }
            },
        }
    }
}

/// Finds those whose fork was on its way when all others of a tree were made to rather die than the runtime.
fn spare_the_runtime(exec: &Arc<Exec>) {
    if exec.live.get().is_none_or(|live| live.tree.is_empty()) {
        return;
    }
    let exec = exec.clone();
    task::spawn("oom scores", &exec.id.clone(), async move {
        tokio::time::sleep(FORKED).await;
        if let Some(Tree::Group(group)) = exec.live.get().map(|live| &live.tree) {
            group.set_oom_scores(OOM_SCORE_ADJ);
        }
    });
}

/// Ends the exec when its time is over: TERM to all, then KILL to whoever is left.
pub(crate) fn keep_time(exec: &Arc<Exec>, timeout: Duration, grace: Duration) {
    let exec = exec.clone();
    task::spawn("timeout", &exec.id.clone(), async move {
        let ended = |exec: Arc<Exec>| async move {
            let _ = exec
                .status
                .subscribe()
                .wait_for(|status| matches!(status.phase, Phase::Exited(_)))
                .await;
        };
        tokio::select! {
            () = tokio::time::sleep(timeout) => {}
            () = ended(exec.clone()) => return,
        }
        exec.timed_out.store(true, Ordering::Release);
        let Some(live) = exec.live.get() else { return };
        let _ = live.tree.terminate();
        let _ = tokio::time::timeout(grace, exec.over()).await;
        let _ = live.tree.kill().await;
    });
}
