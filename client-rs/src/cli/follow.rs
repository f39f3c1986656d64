//! `sandgate follow`: what a command writes, from its start or from now on.

use std::process::ExitCode;

use super::{
    Context, Failure,
    exec::{
        attend::{How, attend},
        signals::Signals,
    },
};

/// Follow a command that was started before, from its first byte, until its output ends
///
/// Exits with the command's code, as `exec` does. Ctrl-C ends the following and leaves the command alone.
///
/// With -o json each event is one line on stdout: started, stdout, stderr, gap, exited, start_failed, ended. Bytes are in
/// `text` if they are UTF-8, else in `base64`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate follow demo build
  sandgate follow demo build --new")]
pub(crate) struct Args {
    /// The sandbox
    name: String,
    /// The id of the command: see `sandgate ps`
    exec: String,
    /// Only what it writes from now on
    #[arg(long)]
    new: bool,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let sandbox = ctx.client().await?.sandbox(args.name);
    let found = sandbox.attach_exec(args.exec);
    let exec = match args.new {
        true => found.follow_new().await?,
        false => found.follow(),
    };
    attend(exec, How::looking(ctx.output), &mut Signals::listen()?).await
}
