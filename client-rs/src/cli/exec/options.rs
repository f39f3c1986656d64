//! What a command line says about the command to run.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, time::Duration};

use sandgate::{Command, v1};

use super::terminal;
use crate::cli::{pairs, spans};

/// Options of every command that runs one.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Pass stdin on. Otherwise the command's is at its end
    #[arg(long, short)]
    pub(super) interactive: bool,
    /// Run it on a terminal
    #[arg(long, short)]
    pub(super) tty: bool,
    /// End it, with all that it started, after this long: 30s, 10m
    #[arg(long, value_name = "SPAN", value_parser = spans::span)]
    timeout: Option<Duration>,
    /// Its working directory, absolute
    #[arg(long, short = 'w', value_name = "DIR")]
    cwd: Option<String>,
    /// An environment variable; NAME alone takes the value from here. Can be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pairs::env)]
    env: Vec<(String, String)>,
    /// The user to run as, by name or number
    #[arg(long, short)]
    user: Option<String>,
}

// === impl Options ===

impl Options {
    /// The command that these options make of a program.
    pub(crate) fn command(&self, program: v1::exec_spec::Command) -> Command {
        let mut command = Command::from_spec(v1::ExecSpec {
            command: Some(program),
            env: pairs::env_vars(self.env.clone()),
            cwd: self.cwd.clone().unwrap_or_default(),
            user: self.user.clone().unwrap_or_default(),
            timeout: self.timeout.map(spans::wire),
            ..Default::default()
        });
        if self.interactive {
            command = command.stdin();
        }
        if self.tty {
            let (columns, rows) = terminal::size().unwrap_or((80, 24));
            command = command.pty(columns, rows, std::env::var("TERM").unwrap_or_default());
        }
        command
    }

    /// As a person at a terminal wants it.
    pub(crate) fn on_terminal(mut self, terminal: bool) -> Self {
        self.interactive = true;
        self.tty = terminal;
        self
    }
}

/// A program and its arguments as they are sent: as text where that can be.
pub(crate) fn argv(words: Vec<OsString>) -> v1::exec_spec::Command {
    let text: Option<Vec<String>> = words.iter().map(|word| word.to_str().map(str::to_owned)).collect();
    v1::exec_spec::Command::Argv(match text {
        Some(args) => v1::Argv {
            args,
            args_raw: Vec::new(),
        },
        None => v1::Argv {
            args: Vec::new(),
            args_raw: words.into_iter().map(|word| word.into_vec().into()).collect(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_need_not_be_text() {
        let v1::exec_spec::Command::Argv(text) = argv(vec!["a".into(), "ü".into()]) else {
            panic!("no argv");
        };
        assert_eq!((text.args.len(), text.args_raw.len()), (2, 0));
        let v1::exec_spec::Command::Argv(raw) = argv(vec!["a".into(), OsString::from_vec(vec![0xff])]) else {
            panic!("no argv");
        };
        assert_eq!((raw.args.len(), raw.args_raw), (0, vec!["a".into(), vec![0xff].into()]));
    }
}
