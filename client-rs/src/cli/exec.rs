//! `sandgate exec`: run a command in a sandbox, as if it ran here.
//!
//! The parts are shared by `run`, `shell` and `follow`.

pub(super) mod attend;
pub(super) mod exit;
pub(super) mod options;
pub(super) mod signals;
mod sink;
pub(super) mod terminal;
pub(super) mod view;

use std::process::ExitCode;

use self::{
    attend::{How, attend},
    options::Options,
    signals::Signals,
    view::StartedView,
};
use super::{Context, Failure, output};

/// Run a command in a sandbox and exit with its code
///
/// Its output comes out here as it is written, each stream where it belongs. Signals (INT, TERM, HUP, QUIT) are passed on;
/// the third ends the waiting and leaves the command running. When the connection is lost or the server restarted, it goes
/// on where it was. The command never runs twice: with --id and the same options, one that was started before is found again.
///
/// With -o json each event is one line on stdout: started, stdout, stderr, gap, exited, start_failed. Bytes are in `text` if
/// they are UTF-8, else in `base64`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: that of the command; 128+n if signal n ended it; 124 timed out, 125 Sandgate failed,
126 can't be executed, 127 not found.

Examples:
  sandgate exec demo -- python3 -c 'print(1)'
  echo hello | sandgate exec demo -i -- wc -c
  sandgate exec demo -i -t -- bash
  sandgate exec demo --detach --id build -- make")]
pub(crate) struct Args {
    /// The sandbox
    name: String,
    #[command(flatten)]
    options: Options,
    /// Its id, to find it again: letters, digits, `_` and `-`, at most 64. Made up if it is left out
    #[arg(long)]
    id: Option<String>,
    /// Start it, print its id, and do not wait for it
    #[arg(long, short, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    /// Resume the sandbox first, if it is suspended
    #[arg(long)]
    resume: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let mut command = args.options.command(options::argv(args.command));
    if let Some(id) = args.id {
        command = command.id(id);
    }
    let sandbox = ctx.client().await?.sandbox(args.name).auto_resume(args.resume);
    if args.detach {
        let info = sandbox.start(command).await?;
        output::show(ctx.output, &StartedView::from(info))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut signals = Signals::listen()?;
    let how = How::interactive(&args.options, ctx.output);
    attend(sandbox.exec(command.hold_when_full()), how, &mut signals).await
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: super::Args,
    }

    fn parsed(line: &str) -> Result<super::Args, clap::Error> {
        Line::try_parse_from(line.split(' ')).map(|line| line.args)
    }

    #[test]
    fn flags_after_the_command_are_the_commands_own() {
        for line in [
            "exec -i demo -- cat -t",
            "exec demo -i -- cat -t",
            "exec demo -i cat -t",
        ] {
            let args = parsed(line).unwrap();
            assert_eq!(
                (args.name.as_str(), args.options.interactive, args.options.tty),
                ("demo", true, false),
                "{line}"
            );
            assert_eq!(args.command, ["cat", "-t"], "{line}");
        }
        assert_eq!(parsed("exec demo -- -x --").unwrap().command, ["-x", "--"]);
        assert!(parsed("exec demo").is_err() && parsed("exec demo --").is_err());
        assert!(parsed("exec demo -d -i -- cat").is_err());
    }
}
