//! `sandgate kill`: signal a command.

use std::{io, process::ExitCode};

use serde::Serialize;

use super::{
    Context, Failure,
    exec::signals,
    output::{self, Show, Text},
};

/// Send a signal to every process of a command, also to those that it left behind
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate kill demo build
  sandgate kill demo build --signal KILL")]
pub(crate) struct Args {
    /// The sandbox
    name: String,
    /// The id of the command: see `sandgate ps`
    exec: String,
    /// The signal, by name or number. KILL is sent until nothing is left
    #[arg(long, short, default_value = "TERM", value_parser = signals::number)]
    signal: i32,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct View {
    exec_id: String,
    signal: i32,
    signal_name: String,
    processes: u32,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let sandbox = ctx.client().await?.sandbox(args.name);
    let view = View {
        processes: sandbox.signal_exec(&args.exec, args.signal).await?,
        signal_name: signals::name(args.signal),
        signal: args.signal,
        exec_id: args.exec,
    };
    output::show(ctx.output, &view)?;
    Ok(ExitCode::SUCCESS)
}

// === impl View ===

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        let processes = if self.processes == 1 { "process" } else { "processes" };
        to.line(format!("{} sent to {} {processes}", self.signal_name, self.processes))
    }
}
