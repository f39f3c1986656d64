//! `sandgate files`: look at and change files in a sandbox, one operation a call.

mod change;
mod grep;
mod read;
mod view;

use std::process::ExitCode;

use clap::Subcommand;

use super::{Context, Failure};

/// Look at and change files in a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Paths are written NAME:/path; relative ones begin at the sandbox's working directory.

Examples:
  sandgate files ls demo:/workspace
  sandgate files grep demo:. 'fn main'
  sandgate files edit demo:app.py --old 'x = 1' --new 'x = 2'")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(read::LsArgs),
    Cat(read::CatArgs),
    Stat(read::StatArgs),
    Find(read::FindArgs),
    Grep(grep::Args),
    Edit(change::EditArgs),
    Rm(change::RmArgs),
    Mv(change::MvArgs),
    Mkdir(change::MkdirArgs),
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    match args.command {
        Command::Ls(args) => read::ls(args, ctx).await,
        Command::Cat(args) => read::cat(args, ctx).await,
        Command::Stat(args) => read::stat(args, ctx).await,
        Command::Find(args) => read::find(args, ctx).await,
        Command::Grep(args) => grep::run(args, ctx).await,
        Command::Edit(args) => change::edit(args, ctx).await,
        Command::Rm(args) => change::rm(args, ctx).await,
        Command::Mv(args) => change::mv(args, ctx).await,
        Command::Mkdir(args) => change::mkdir(args, ctx).await,
    }
}
