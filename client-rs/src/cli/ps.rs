//! `sandgate ps`: the commands of a sandbox.

use std::process::ExitCode;

use super::{Context, Failure, exec::view::ExecsView, output};

/// List the commands of a sandbox, oldest first: those that run, and those whose records are kept
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate ps demo
  sandgate ps demo --alive -o json")]
pub(crate) struct Args {
    /// The sandbox
    name: String,
    /// Only those of which a process is alive
    #[arg(long)]
    alive: bool,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let execs = ctx.client().await?.sandbox(args.name).execs(args.alive).await?;
    output::show(ctx.output, &ExecsView::from(execs))?;
    Ok(ExitCode::SUCCESS)
}
