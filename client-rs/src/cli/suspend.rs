//! `sandgate suspend`: end the processes, keep the disk.

use std::{io, process::ExitCode, time::Duration};

use sandgate::v1::SuspendRequest;
use serde::Serialize;

use super::{
    Context, Failure,
    output::{self, Show, Text},
    sandboxes::SandboxView,
    spans,
};

/// End every process of a sandbox and keep its disk, until `sandgate resume`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate suspend demo
  sandgate suspend demo --grace 30s")]
pub(crate) struct Args {
    /// Its name
    name: String,
    /// How long processes may take to end by themselves. 5s if it is left out
    #[arg(long, value_name = "SPAN", value_parser = spans::duration)]
    grace: Option<Duration>,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct View {
    sandbox: SandboxView,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let request = SuspendRequest {
        sandbox: args.name,
        grace: args.grace.map(spans::wire),
        ..SuspendRequest::default()
    };
    let answer = client.raw().suspend(request).await?.into_inner();
    let sandbox = answer.sandbox.ok_or_else(|| Failure::incomplete("sandbox"))?;
    output::show(
        ctx.output,
        &View {
            sandbox: sandbox.into(),
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

// === impl View ===

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        to.line(format!("{} is {}", self.sandbox.name, self.sandbox.state))
    }
}
