//! `sandgate get`: all there is to know about one sandbox.

use std::process::ExitCode;

use sandgate::v1::GetRequest;

use super::{Context, Failure, output, sandboxes::SandboxView};

/// Show one sandbox: state, end, what it uses, how it is isolated, why it last ended
///
/// Does not resume it, and does not count as activity.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate get demo
  sandgate get demo -o json")]
pub(crate) struct Args {
    /// Its name
    name: String,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let answer = client.raw().get(GetRequest { sandbox: args.name }).await?.into_inner();
    let sandbox = answer.sandbox.ok_or_else(|| Failure::incomplete("sandbox"))?;
    output::show(ctx.output, &SandboxView::from(sandbox))?;
    Ok(ExitCode::SUCCESS)
}
