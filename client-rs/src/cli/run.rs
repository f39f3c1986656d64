//! `sandgate run`: a sandbox for one command.

use std::{process::ExitCode, time::Duration};

use sandgate::{Client, Sandbox};

use super::{
    Context, Failure,
    exec::{
        attend::{How, attend},
        exit,
        options::{self, Options},
        signals::Signals,
        view::EventView,
    },
    output::{self, Format},
};

/// Should this process be killed, the sandbox is removed when nothing has happened in it for this long.
const IDLE: Duration = Duration::from_secs(300);

/// Make a sandbox, run a command in it, exit with its code, and remove the sandbox
///
/// It is also removed after Ctrl-C and TERM. All else is as with `exec`.
///
/// With -o json each event is one line on stdout: created, started, stdout, stderr, gap, exited, start_failed. Bytes are in
/// `text` if they are UTF-8, else in `base64`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: that of the command; 128+n if signal n ended it; 124 timed out, 125 Sandgate failed,
126 can't be executed, 127 not found.

Examples:
  sandgate run -- python3 -c 'print(1)'
  sandgate run --template debian -i -t -- bash")]
pub(crate) struct Args {
    /// What to make the sandbox from. The server's default if it is left out
    #[arg(long, short = 'T')]
    template: Option<String>,
    #[command(flatten)]
    options: Options,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let mut signals = Signals::listen()?;
    // A create without a name that is left alone removes what it made.
    let sandbox = tokio::select! {
        sandbox = create(&client, args.template) => sandbox?,
        signal = signals.next() => return Ok(ExitCode::from(exit::by_signal(signal))),
    };
    let ended = in_sandbox(&sandbox, &args.options, args.command, ctx, &mut signals).await;
    tokio::select! {
        removed = sandbox.delete() => if let Err(error) = removed {
            Failure::from(error).note(&format!("sandbox {} is left", sandbox.name()), ctx.output);
        },
        signal = signals.next() => {
            output::note(&format!("sandbox {} is left", sandbox.name()));
            return Ok(ExitCode::from(exit::by_signal(signal)));
        }
    }
    ended
}

async fn create(client: &Client, template: Option<String>) -> Result<Sandbox, Failure> {
    let mut create = client.create().idle_limit(IDLE);
    if let Some(template) = template {
        create = create.template(template);
    }
    let created = create.send().await?;
    super::create::ready(client, created.info).await?;
    Ok(created.sandbox)
}

async fn in_sandbox(
    sandbox: &Sandbox,
    options: &Options,
    words: Vec<std::ffi::OsString>,
    ctx: &Context,
    signals: &mut Signals,
) -> Result<ExitCode, Failure> {
    if ctx.output == Format::Json {
        let created = EventView::Created {
            sandbox: sandbox.name(),
        };
        output::raw(&created.line().map_err(Failure::Stdout)?)?;
    }
    let exec = sandbox.exec(options.command(options::argv(words)).hold_when_full());
    attend(exec, How::interactive(options, ctx.output), signals).await
}
