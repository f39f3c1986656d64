//! `sandgate shell`: a shell in a sandbox.

use std::process::ExitCode;

use sandgate::v1::exec_spec::Command;

use super::{
    Context, Failure,
    exec::{
        attend::{How, attend},
        options::Options,
        signals::Signals,
        terminal,
    },
};

/// The best shell there is.
const ANY_SHELL: &str = "command -v bash >/dev/null 2>&1 && exec bash; exec sh";

/// Open a shell in a sandbox
///
/// On a terminal if there is one here, else with stdin and stdout as they are. Resumes the sandbox, if it is suspended.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate shell demo
  sandgate shell demo --shell /bin/zsh
  sandgate shell demo < script.sh")]
pub(crate) struct Args {
    /// The sandbox
    name: String,
    /// The shell to run instead of bash, or sh where that is missing
    #[arg(long, value_name = "PROGRAM")]
    shell: Option<std::ffi::OsString>,
    #[command(flatten)]
    options: Options,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let program = match args.shell {
        Some(shell) => super::exec::options::argv(vec![shell]),
        None => Command::Shell(ANY_SHELL.into()),
    };
    let options = args.options.on_terminal(terminal::is_interactive());
    let sandbox = ctx.client().await?.sandbox(args.name).auto_resume(true);
    let mut signals = Signals::listen()?;
    let exec = sandbox.exec(options.command(program).hold_when_full());
    attend(exec, How::interactive(&options, ctx.output), &mut signals).await
}
