//! The runtime's life: set up, serve, end in order.

use std::{
    env, fs,
    io::{self, IsTerminal as _},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    fs::Mode,
    process::{DumpableBehavior, set_dumpable_behavior, umask},
};
use sandgate_auth::{Expected, KeyError, Verifier};
use sandgate_exec::{CgroupRoots, Execs, Settings};
use sandgate_files::{Defaults, User, litter::Litter};
use sandgate_output::StoreLimits;
use sandgate_proto::runtime::v1::runtime_service_server::RuntimeServiceServer;
use sandgate_sys::{CLONE3_KEY, Clone3Key};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::{mpsc, watch},
};
use tonic::transport::Server;

use crate::{
    args::Args,
    clock::{Clock, Limits},
    end::end,
    identity::Identity,
    local,
    network::{Gate, Gated, Network},
    python::PythonApi,
    service::{Files, Service},
};

/// Why the runtime could not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("--user {0}")]
    User(String),
    #[error("--state-dir {0}: {1}")]
    StateDir(String, #[source] io::Error),
    #[error("{0}: {1}")]
    Socket(String, #[source] io::Error),
    #[error("--keys {0}")]
    Keys(#[source] KeyError),
    #[error("could not start: {0}")]
    Io(#[from] io::Error),
}

/// Wide and fixed: with adaptive windows one stopped reader blocks its whole connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// A message of 64 KiB, with what is around it, in one frame instead of five.
const FRAME: u32 = 128 << 10;
/// Streams above the limit would queue in silence. The same number of cancelled ones is no attack: one server speaks for
/// many callers, and by default the twenty-first that is cancelled at once ends the connection of all.
const MAX_STREAMS: u32 = 100_000;
/// Threads for what blocks. They stay: a sandbox that is out of processes could not start another, which tokio answers
/// with a panic if there is none.
const BLOCKING_THREADS: usize = 400;
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long callers have to take what is left for them, at the end.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_POLL: Duration = Duration::from_millis(2);
/// The exit code for what the caller got wrong: a flag, a directory, a socket.
pub const EX_USAGE: u8 = 64;

/// Runs until the sandbox's end.
pub fn run(args: Args) -> ExitCode {
    let log = tracing_subscriber::fmt()
        .with_max_level(args.log)
        .with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).init();
    if let Some(key) = env::var(CLONE3_KEY)
        .ok()
        .and_then(|key| Clone3Key::from_str_radix(&key, 16).ok())
    {
        sandgate_sys::use_clone3_key(key);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(FOR_EVER)
        .max_blocking_threads(BLOCKING_THREADS)
        .build();
    let outcome = runtime.map_err(StartError::from).and_then(|runtime| {
        let outcome = runtime.block_on(serve(args));
        // A thread that is stuck in a file system must not keep us.
        runtime.shutdown_timeout(LAST_WORDS);
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(EX_USAGE)
        }
    }
}

async fn serve(args: Args) -> Result<(), StartError> {
    // Files of ours are nobody else's; execs get a mask of their own.
    umask(Mode::from_raw_mode(0o077));
    // Commands of the same user must not read our memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)?;
    keep_a_capability_to_ourselves();
    sandgate_sys::survive_file_size_limit();
    let identity = Identity::new(args.incarnation.clone(), args.python_api)?;
    let state_dir = |error| StartError::StateDir(args.state_dir.display().to_string(), error);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.state_dir)
        .map_err(state_dir)?;
    let lock = lock(&args.state_dir).map_err(state_dir)?;
    sandgate_sys::hold_until_exec(&lock);
    let user = args
        .user
        .as_deref()
        .map(User::find)
        .transpose()
        .map_err(|error| StartError::User(error.message))?;
    let listener = listen(&args)?;
    let network = match (args.listen, &args.keys, &args.audience) {
        (Some(address), Some(keys), Some(audience)) => {
            let expected = Expected {
                audience: audience.clone(),
                pod_uid: args.pod_uid.clone(),
                incarnation: identity.incarnation.clone(),
            };
            let gate = Gate::new(Verifier::open(keys).map_err(StartError::Keys)?, expected);
            let bound = TcpListener::bind(address).await;
            Some((
                bound.map_err(|error| StartError::Socket(format!("--listen {address}"), error))?,
                gate,
            ))
        }
        _ => None,
    };
    let limits = Limits {
        deadline: args.deadline.and_then(|span| SystemTime::now().checked_add(span)),
        idle: args.idle_limit,
    };
    let clock = Clock::new(limits);
    let defaults = Defaults {
        user: user.clone(),
        cwd: args.cwd.clone(),
    };
    let execs = Execs::open(settings(&args, &identity, user)).await.map_err(state_dir)?;
    // The first thread for what blocks, before others could leave it no room. Nobody waits for it. Not sooner: it has the
    // signals of children held back, as we do by now.
    drop(tokio::task::spawn_blocking(|| ()));
    let litter = Litter::open(&args.state_dir.join("litter")).map_err(state_dir)?;
    let files = Files::new(defaults, litter);
    let (stop, stops) = mpsc::channel(1);
    let service = Service {
        identity: identity.clone(),
        clock: clock.clone(),
        execs: execs.clone(),
        files: Arc::new(files),
        stop,
    };
    tracing::info!(
        incarnation = identity.incarnation,
        cgroups = execs.has_cgroups(),
        "serving"
    );
    let (ended, over) = watch::channel(false);
    let socket = async {
        let Some(listener) = listener else { return Ok(()) };
        local::serve(listener, server(), service.clone(), over.clone()).await
    };
    let network = async {
        let Some((listener, gate)) = network else { return Ok(()) };
        let python = args.python_api.then(|| PythonApi::new(service.clone(), &args.cwd));
        let server = server().add_service(Gated::new(RuntimeServiceServer::new(service.clone()), gate));
        Network::new(listener, python).serve(server, over.clone()).await
    };
    let ending = async {
        let logs = [Some(args.state_dir.join("ended")), args.termination_log.clone()];
        end(stops, clock, execs, logs.into_iter().flatten()).await;
        ended.send_replace(true);
        // Streams that nobody reads must not keep us.
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        served = async { tokio::try_join!(socket, network) } => {
            served.map_err(|error| StartError::Io(io::Error::other(error)))?;
        }
        () = ending => {}
    }
    Ok(())
}

/// A server that is the same to all callers, wherever they come from.
fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
        .http2_max_local_error_reset_streams(Some(MAX_STREAMS as usize))
        .http2_keepalive_interval(Some(KEEPALIVE))
}

/// Commands that run as root must not trace us: the kernel refuses that to whoever lacks a capability that we have. So
/// nobody after us can gain this one, which we have no other use for. Where we do not have it, being not dumpable is all.
fn keep_a_capability_to_ourselves() {
    let _ = rustix::thread::remove_capability_from_bounding_set(rustix::thread::CapabilitySet::SETPCAP);
}

/// One runtime a state directory: two would give one id to two programs.
fn lock(state_dir: &Path) -> io::Result<fs::File> {
    let file = fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(state_dir.join("lock"))?;
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            // A runtime that was killed while it started a program: the child has our lock until it is the program. To
            // wait for it also means that no start of that runtime is under way when we look at what it left.
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < LOCK_WAIT => std::thread::sleep(LOCK_POLL),
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(io::Error::other("another runtime uses it")),
            Err(error) => return Err(error.into()),
        }
    }
    let _ = fs::remove_file(state_dir.join("ended"));
    Ok(file)
}

fn listen(args: &Args) -> Result<Option<UnixListener>, StartError> {
    if let Some(path) = &args.socket {
        let failed = |error| StartError::Socket(format!("--socket {}", path.display()), error);
        // What a killed runtime left. The lock on the state directory says that it is gone.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        return UnixListener::bind(path).map(Some).map_err(failed);
    }
    let Some(number) = args.socket_fd else { return Ok(None) };
    let failed = |error| StartError::Socket(format!("--socket-fd {number}"), error);
    let listener = sandgate_sys::inherited(number)
        .map(std::os::unix::net::UnixListener::from)
        .map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    UnixListener::from_std(listener).map(Some).map_err(failed)
}

fn settings(args: &Args, identity: &Identity, user: Option<User>) -> Settings {
    let memory = args.memory_cgroup.clone();
    Settings {
        incarnation: identity.incarnation.clone(),
        state_dir: args.state_dir.clone(),
        cwd: args.cwd.clone(),
        user,
        path: args.path.clone(),
        cgroups: args.cgroup.clone().map(|unified| CgroupRoots { unified, memory }),
        retain_bytes: args.retain_bytes.min(args.retain_bytes_max),
        retain_bytes_max: args.retain_bytes_max,
        output: StoreLimits {
            memory_bytes: args.memory_bytes,
            retain_bytes: args.retain_bytes_total,
        },
        keep_finished: args.keep_finished,
        keep_for: args.keep_for,
        max_alive: args.max_alive,
        descriptors: sandgate_sys::raise_descriptor_limit(),
    }
}
