//! `sandgate resume`: bring a suspended sandbox back.

use std::{io, process::ExitCode};

use sandgate::v1::ResumeRequest;
use serde::Serialize;

use super::{
    Context, Failure, create,
    output::{self, Show, Text},
    sandboxes::SandboxView,
};

/// Bring a suspended sandbox back: its disk as it was, without the processes it had
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate resume demo")]
pub(crate) struct Args {
    /// Its name
    name: String,
    /// Wait until it is ready; this is the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Do not wait until it is ready
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct View {
    resumed: bool,
    sandbox: SandboxView,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let request = ResumeRequest {
        sandbox: args.name,
        no_wait: args.no_wait,
        max_wait: None,
    };
    let answer = client.raw().resume(request).await?.into_inner();
    let mut sandbox = answer.sandbox.ok_or_else(|| Failure::incomplete("sandbox"))?;
    if !args.no_wait {
        sandbox = create::ready(&client, sandbox).await?;
    }
    let view = View {
        resumed: answer.resumed,
        sandbox: sandbox.into(),
    };
    output::show(ctx.output, &view)?;
    Ok(ExitCode::SUCCESS)
}

// === impl View ===

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        let remark = if self.resumed { "" } else { ", it was not suspended" };
        to.line(format!("{} is {}{remark}", self.sandbox.name, self.sandbox.state))
    }
}
