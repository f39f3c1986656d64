//! `sandgate completion` and `sandgate man`: what shells and `man` want to know, from the same tree that parses.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, Failure, output};

/// Print what a shell needs to complete `sandgate`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate completion bash > /etc/bash_completion.d/sandgate
  sandgate completion zsh > ~/.zfunc/_sandgate
  sandgate completion fish > ~/.config/fish/completions/sandgate.fish")]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

/// Write the man pages, one for each command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate man target/man")]
pub(crate) struct ManArgs {
    /// Where to; made if it is missing
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // Into memory first: the generator panics when it can't write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sandgate", &mut script);
    output::raw(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: ManArgs) -> Result<ExitCode, Failure> {
    fs::create_dir_all(&args.dir).map_err(Failure::local(args.dir.display().to_string()))?;
    for (name, page) in pages()? {
        let path = args.dir.join(name);
        fs::write(&path, page).map_err(Failure::local(path.display().to_string()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn pages() -> Result<Vec<(String, Vec<u8>)>, Failure> {
    fn add(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
        let page = clap_mangen::Man::new(command.clone());
        let mut text = Vec::new();
        page.render(&mut text)?;
        pages.push((page.get_filename(), text));
        command
            .get_subcommands()
            .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
            .try_for_each(|sub| add(sub, pages))
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages).map_err(Failure::local("man page"))?;
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in [
            "sandgate.1",
            "sandgate-create.1",
            "sandgate-cp.1",
            "sandgate-files.1",
            "sandgate-files-grep.1",
        ] {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
        assert!(!names.contains(&"sandgate-man.1"));
        for (name, page) in &pages {
            assert!(page.starts_with(b".ie") && page.len() > 500, "{name}");
        }
    }

    #[test]
    fn every_shell_learns_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sandgate", &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["create", "suspend", "doctor", "grep"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
