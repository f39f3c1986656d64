//! `sandgate-server`: reads the command line, binds, and serves until it is told to stop.
#![forbid(unsafe_code)]

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
};

use clap::Parser as _;
use sandgate_server::{Args, Bound, ServeError};
use tokio::signal::unix::{SignalKind, signal};

/// `EX_USAGE` of sysexits.h: whoever started us must change the command line.
const USAGE: u8 = 64;

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
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandgate-server: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(args: Args) -> Result<(), ServeError> {
    // Before anything is announced, so that a signal right after the announcement ends us in order.
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let bound = Bound::bind(args.listen).await?;
    // Nobody may be reading; serving goes on all the same.
    _ = announce(bound.local_addr());
    bound
        .serve(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await
}

fn announce(addr: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "sandgate-server {} listens on http://{addr}",
        env!("CARGO_PKG_VERSION")
    )?;
    writeln!(
        out,
        "try: buf curl --protocol grpc --http2-prior-knowledge --list-methods http://{addr}"
    )?;
    out.flush()
}
