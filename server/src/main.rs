//! `sandgate-server`: reads the configuration, binds, and serves until it is told to stop.
#![forbid(unsafe_code)]

use std::{
    env, fmt,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use clap::Parser as _;
use rustix::process::{Resource, getrlimit, setrlimit};
use sandgate_provider::Finding;
use sandgate_server::{
    Args, Bound, Command, Config, ConfigErrors, Keys, Opened, Process, ProviderError, Sandboxes, Service, Sources,
    Stopping, doctor, keys, log, notify,
};
use sandgate_sys::{SpareMemory, share_heaps};
use tokio::signal::unix::{SignalKind, signal};

/// `EX_USAGE` of sysexits.h: whoever started us must change flags, environment or file.
const USAGE: u8 = 64;
/// How often we look for memory that is not used any more, and how much of it does not matter.
const LOOK_AT_MEMORY: Duration = Duration::from_secs(10);
const SPARE_MEMORY: usize = 8 << 20;
/// What may go on in threads after the last call has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // A closed stdout or stderr is no reason to fail in another way.
            _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match act(&args) {
        Ok(code) => code,
        Err(error) => fail(if is_usage(&error) { USAGE } else { 1 }, error),
    }
}

fn act(args: &Args) -> Result<ExitCode, Failure> {
    // Keys need no configuration.
    if let Some(Command::Keys(command)) = &args.command {
        print(&manage(command)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = configure(args)?;
    match args.command {
        Some(Command::Config) => print(&config.to_toml())?,
        Some(Command::Doctor) if !examine(&config)? => return Ok(ExitCode::FAILURE),
        Some(Command::Doctor) => {}
        _ => run(&config)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the mistake is in flags, environment or file.
fn is_usage(error: &Failure) -> bool {
    error.is::<ConfigErrors>() || matches!(error.downcast_ref(), Some(ProviderError::Config(_)))
}

fn manage(command: &Keys) -> Result<String, keys::KeysError> {
    match command {
        Keys::New { dir, name } => keys::new(dir, name.as_deref()),
        Keys::Jwks { dir } => keys::jwks(dir),
        Keys::Use { dir, name } => keys::switch(dir, name),
    }
}

fn fail(code: u8, error: impl fmt::Display) -> ExitCode {
    for line in error.to_string().lines() {
        eprintln!("sandgate-server: {line}");
    }
    ExitCode::from(code)
}

fn configure(args: &Args) -> Result<Config, ConfigErrors> {
    let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
    let environment = env::vars_os().map(|(name, value)| (text(name), text(value)));
    let program = env::current_exe().unwrap_or_default();
    let process = Process {
        root: rustix::process::geteuid().is_root(),
        cwd: env::current_dir().unwrap_or_default(),
        program_dir: program.parent().unwrap_or(&program).to_owned(),
    };
    Config::resolve(&Sources::gather(args.flags(), environment.collect(), process)?)
}

fn run(config: &Config) -> Result<(), Failure> {
    log::init(&config.log);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    raise_descriptor_limit();
    let workers = workers();
    share_heaps(workers);
    give_memory_back();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(serve(config));
    // A thread that is stuck in a file system must not keep us.
    runtime.shutdown_timeout(LAST_WORDS);
    outcome
}

/// Looks after memory that nobody uses. A hundred followers of one command take 150 MiB, which would stay.
fn give_memory_back() {
    let look = || {
        let mut spare = SpareMemory::new(SPARE_MEMORY);
        loop {
            std::thread::sleep(LOOK_AT_MEMORY);
            if let Err(error) = spare.give_back() {
                tracing::debug!(%error, "memory can't be looked after");
            }
        }
    };
    let thread = std::thread::Builder::new().name("memory".to_owned());
    if let Err(error) = thread.spawn(look) {
        tracing::warn!(%error, "memory that nobody uses will not be given back");
    }
}

/// Half of the processors. The others are for what runs in sandboxes; and each further thread makes every message wait for
/// one to wake up: with two on two processors half as many calls are answered as with one.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |all| (all.get() / 2).max(1))
}

fn examine(config: &Config) -> Result<bool, Failure> {
    // What is found is told by itself; what else is logged would only be in its way.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let tell = |finding: Finding| {
        // Nobody may be reading; the exit status says it all the same.
        _ = print(&format!("{finding}\n"));
    };
    let well = runtime.block_on(doctor::examine(config, tell));
    runtime.shutdown_timeout(LAST_WORDS);
    Ok(well)
}

async fn serve(config: &Config) -> Result<(), Failure> {
    let stopping = Stopping::new();
    // Before anything is announced, so that a signal right after the announcement ends us in order.
    stop_on_signals(stopping.clone())?;
    let bound = Bound::bind(config).await?;
    // Ours until the provider has let go of it too.
    let state_dir = bound.state_dir();
    let opened = tokio::select! {
        opened = Opened::open(config, state_dir.path()) => opened?,
        // A cluster may keep us waiting.
        () = stopping.begun() => return Ok(()),
    };
    let service = Service::new(Sandboxes::new(opened.provider(), stopping.clone()));
    // Nobody may be reading; serving goes on all the same.
    _ = print(&announcement(config, &bound));
    tell_systemd(notify::READY);
    tracing::info!(state_dir = %config.state_dir.display(), "serving");
    let served = bound.serve(service, stopping.clone()).await;
    tokio::select! {
        () = opened.close() => {}
        () = stopping.hurried() => {}
    }
    served?;
    tracing::info!("ended; sandboxes live on");
    Ok(())
}

/// The first signal stops in order, the second at once.
fn stop_on_signals(stopping: Stopping) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = next().await;
        tracing::info!("{name}: stopping; a second one ends at once");
        tell_systemd(notify::STOPPING);
        stopping.begin();
        next().await;
        stopping.at_once();
    });
    Ok(())
}

fn tell_systemd(state: &str) {
    let socket = env::var("NOTIFY_SOCKET").ok();
    if let Err(error) = notify::notify(socket.as_deref(), state) {
        tracing::warn!(%error, "can't tell systemd {state}");
    }
}

/// Each sandbox and each stream takes some, and the usual soft limit of 1,024 is for programs that use `select`.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files can't be raised");
    }
}

/// What a newcomer needs: the addresses, and a first command that works as it stands.
fn announcement(config: &Config, bound: &Bound) -> String {
    let socket = bound.socket().display();
    let mut addresses: Vec<String> = bound.tcp_addrs().iter().map(|addr| format!("http://{addr}")).collect();
    addresses.push(format!("unix://{socket}"));
    let listens: String = addresses.iter().map(|address| format!("  {address}\n")).collect();
    let elsewhere = if config.is_default_state_dir() {
        String::new()
    } else {
        format!("SANDGATE_ADDR=unix://{socket} ")
    };
    format!(
        "sandgate-server {} listens on\n{listens}token for TCP: {}\ntry: {elsewhere}{} run -- echo hello\n",
        env!("CARGO_PKG_VERSION"),
        bound.token_file().display(),
        command_line(),
    )
}

/// The command line as one would type it: by its name if the shell finds it, else with its path, beside us.
fn command_line() -> String {
    const NAME: &str = "sandgate";
    let on_path = env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(NAME).is_file()));
    let beside = env::current_exe().unwrap_or_default().with_file_name(NAME);
    if on_path || !beside.is_file() {
        NAME.to_owned()
    } else {
        beside.display().to_string()
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
