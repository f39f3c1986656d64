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
use sandgate_server::{
    Args, Bound, Command, Config, ConfigErrors, Process, ProviderError, Sandboxes, Sources, Stopping, local, log,
    notify,
};
use tokio::signal::unix::{SignalKind, signal};

/// `EX_USAGE` of sysexits.h: whoever started us must change flags, environment or file.
const USAGE: u8 = 64;
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
    let config = match configure(&args) {
        Ok(config) => config,
        Err(errors) => return fail(USAGE, errors),
    };
    let outcome = match args.command {
        Some(Command::Config) => print(&config.to_toml()).map_err(Failure::from),
        None => run(&config),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if matches!(error.downcast_ref(), Some(ProviderError::Config(_))) => fail(USAGE, error),
        Err(error) => fail(1, error),
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
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(config));
    // A thread that is stuck in a file system must not keep us.
    runtime.shutdown_timeout(LAST_WORDS);
    outcome
}

async fn serve(config: &Config) -> Result<(), Failure> {
    let stopping = Stopping::new();
    // Before anything is announced, so that a signal right after the announcement ends us in order.
    stop_on_signals(stopping.clone())?;
    let bound = Bound::bind(config).await?;
    // Ours until the provider has let go of it too.
    let state_dir = bound.state_dir();
    let provider = local::open(config, state_dir.path()).await?;
    let service = Sandboxes::new(provider.clone(), stopping.clone());
    // Nobody may be reading; serving goes on all the same.
    _ = print(&announcement(config, &bound));
    tell_systemd(notify::READY);
    tracing::info!(state_dir = %config.state_dir.display(), "serving");
    let served = bound.serve(service, stopping.clone()).await;
    tokio::select! {
        () = provider.close() => {}
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
