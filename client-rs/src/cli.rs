//! The command line: what there is to say, and which module does it.
//!
//! Each command is a module with `Args` and `run(args, ctx)`. Parsing has no side effects; the server is only looked for
//! when a command asks for a client, so that help, completions and man pages need none.

mod complete;
mod cp;
mod create;
mod doctor;
mod exec;
mod failure;
mod fileops;
mod files;
mod follow;
mod get;
mod kill;
mod ls;
mod output;
mod pairs;
mod place;
mod ps;
mod resume;
mod rm;
mod run;
mod sandboxes;
mod shell;
mod spans;
mod suspend;
mod update;
mod watch;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use sandgate::{Client, Endpoint};

pub(crate) use self::{failure::Failure, output::Format};

/// `EX_USAGE` of sysexits.h: whoever called us must change the command line.
pub(crate) const USAGE: u8 = 64;

/// Safe places for agents to run code: make sandboxes, run commands in them, move files in and out
#[derive(Debug, Parser)]
#[command(name = "sandgate", version, after_help = AFTER_HELP, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
struct Global {
    /// How to print: for people, or as JSON with stable fields
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// The server: `http://127.0.0.1:7263` or `unix:///path`. Else the socket in the default state directory, else
    /// http://127.0.0.1:7263
    #[arg(long, global = true, env = "SANDGATE_ADDR", value_name = "ADDR")]
    addr: Option<String>,
    /// The server's token. Else the one in the default state directory; a Unix socket wants none
    #[arg(
        long,
        global = true,
        env = "SANDGATE_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
}

const AFTER_HELP: &str = "\
Exit status:
  0     it worked
  1     the answer is no: a file operation failed, nothing matched, doctor found a fault
  64    the command line is wrong
  124   exec, run: the command timed out
  125   Sandgate failed: no server, or it refused
  126   exec, run: the command can't be executed
  127   exec, run: the command was not found
  128+n exec, run: the command was ended by signal n
  exec and run otherwise exit with the command's own code.

Environment:
  SANDGATE_ADDR   as --addr
  SANDGATE_TOKEN  as --token
  NO_COLOR        no colours, if set and not empty

First steps:
  sandgate doctor
  sandgate create demo
  sandgate exec demo -- echo hello
  sandgate rm demo";

#[derive(Debug, Subcommand)]
enum Command {
    Create(create::Args),
    Run(run::Args),
    Exec(exec::Args),
    Shell(shell::Args),
    Follow(follow::Args),
    Ps(ps::Args),
    Kill(kill::Args),
    Ls(ls::Args),
    Get(get::Args),
    Watch(watch::Args),
    Update(update::Args),
    Suspend(suspend::Args),
    Resume(resume::Args),
    Rm(rm::Args),
    Cp(cp::Args),
    Files(files::Args),
    Doctor(doctor::Args),
    Completion(complete::Args),
    #[command(hide = true)]
    Man(complete::ManArgs),
}

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Context {
    /// How to print.
    pub(crate) output: Format,
    addr: Option<String>,
    token: Option<String>,
}

/// Reads the command line. Help and version are printed here, and so is what is wrong with it.
///
/// # Errors
/// The code to exit with.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        // A closed stdout or stderr is no reason to fail in another way.
        _ = error.print();
        if error.use_stderr() {
            ExitCode::from(USAGE)
        } else {
            ExitCode::SUCCESS
        }
    })
}

/// Does what the command line says, and tells what went wrong.
pub(crate) async fn run(cli: Cli) -> ExitCode {
    let ctx = Context {
        output: cli.global.output,
        addr: cli.global.addr,
        token: cli.global.token,
    };
    match dispatch(cli.command, &ctx).await {
        Ok(code) => code,
        Err(failure) => failure.report(ctx.output),
    }
}

async fn dispatch(command: Command, ctx: &Context) -> Result<ExitCode, Failure> {
    match command {
        Command::Create(args) => create::run(args, ctx).await,
        Command::Run(args) => run::run(args, ctx).await,
        Command::Exec(args) => exec::run(args, ctx).await,
        Command::Shell(args) => shell::run(args, ctx).await,
        Command::Follow(args) => follow::run(args, ctx).await,
        Command::Ps(args) => ps::run(args, ctx).await,
        Command::Kill(args) => kill::run(args, ctx).await,
        Command::Ls(args) => ls::run(args, ctx).await,
        Command::Get(args) => get::run(args, ctx).await,
        Command::Watch(args) => watch::run(args, ctx).await,
        Command::Update(args) => update::run(args, ctx).await,
        Command::Suspend(args) => suspend::run(args, ctx).await,
        Command::Resume(args) => resume::run(args, ctx).await,
        Command::Rm(args) => rm::run(args, ctx).await,
        Command::Cp(args) => cp::run(args, ctx).await,
        Command::Files(args) => files::run(args, ctx).await,
        Command::Doctor(args) => doctor::run(args, ctx).await,
        Command::Completion(args) => complete::run(args),
        Command::Man(args) => complete::man(args),
    }
}

// === impl Context ===

impl Context {
    /// Connects to the server: the one of `--addr`, else the one that the environment and the state directory name.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(self.endpoint()?).await?)
    }

    /// Where the server is, without connecting.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, Failure> {
        Ok(Endpoint::resolve(self.addr.as_deref(), self.token.as_deref())?)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example_and_says_where_the_server_is() {
        fn check(command: &mut clap::Command, path: &str) {
            let help = command.render_long_help().to_string();
            if command.has_subcommands() {
                for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
                    let path = format!("{path} {}", sub.get_name());
                    check(sub, &path);
                }
            } else {
                assert!(help.contains(&format!("  {path}")), "no example: {path}\n{help}");
                assert!(
                    help.contains("SANDGATE_ADDR") && help.contains("SANDGATE_TOKEN"),
                    "{path}\n{help}"
                );
            }
        }
        let mut command = Cli::command();
        command.build();
        check(&mut command, "sandgate");
    }

    #[test]
    fn global_flags_stand_anywhere() {
        for line in [
            "sandgate -o json ls",
            "sandgate ls -o json",
            "sandgate --output json ls",
        ] {
            assert_eq!(parsed(line).unwrap().global.output, Format::Json, "{line}");
        }
        assert_eq!(
            parsed("sandgate ls --addr unix:///x").unwrap().global.addr.as_deref(),
            Some("unix:///x")
        );
    }

    #[test]
    fn a_wrong_line_is_told_on_stderr() {
        for line in [
            "sandgate nonsense",
            "sandgate create --ttl 1y",
            "sandgate get",
            "sandgate -o xml ls",
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.use_stderr(), "{line}");
        }
    }

    #[test]
    fn the_token_is_not_shown_in_help() {
        let token = Cli::command()
            .get_arguments()
            .find(|arg| arg.get_id() == "token")
            .cloned()
            .unwrap();
        assert!(token.is_hide_env_values_set());
    }
}
