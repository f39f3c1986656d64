//! The command line. It only collects: what flags mean is the configuration's business.

mod kubernetes;

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Parser, Subcommand};

use self::kubernetes::KubernetesFlags;

/// Serves sandboxes to agents, over gRPC: on this machine, or on Kubernetes.
///
/// Started without flags it runs on defaults and prints where it listens and a first command to try.
#[derive(Debug, Parser)]
#[command(name = "sandgate-server", version, after_help = AFTER_HELP)]
pub struct Args {
    /// Something else to do than to serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    kubernetes: KubernetesFlags,
}

/// What else the program can do.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Print the effective configuration as TOML, with where each value came from
    Config,
    /// Check that everything is there that the server needs, and say what to do about what is not
    ///
    /// With provider kubernetes it looks at the cluster with the server's own rights and changes nothing. With provider
    /// local it makes a sandbox of each template, runs a command in it and removes it. Exits with 1 if there is a problem.
    Doctor,
    /// Make and look at the private keys that the server on Kubernetes signs with
    #[command(subcommand)]
    Keys(Keys),
}

/// What can be done with keys.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Keys {
    /// Make a key in a directory. The first one signs; a further one signs once `keys use` says so
    New {
        /// The directory; it is made if need be
        dir: PathBuf,
        /// Name of the key, and of its file NAME.pem [default: key-1, key-2 and so on]
        name: Option<String>,
    },
    /// Print the public keys of a directory as a JSON Web Key Set, to be published as jwks.json
    Jwks {
        /// The directory
        dir: PathBuf,
    },
    /// Let another key sign. Publish its public key first
    Use {
        /// The directory
        dir: PathBuf,
        /// Name of the key, without .pem
        name: String,
    },
}

/// One flag for each key of the configuration but templates. They are text here, so that all sources are read alike.
#[derive(Debug, clap::Args)]
struct Flags {
    /// Configuration file [default: /etc/sandgate/server.toml as root, else ~/.config/sandgate/server.toml, if it exists]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<String>,
    /// Where sandboxes are: local or kubernetes [default: local]
    #[arg(long, value_name = "NAME", global = true)]
    provider: Option<String>,
    /// Address and port to listen on; port 0 takes a free one; "none": the Unix socket only; may be repeated; one that
    /// other machines reach needs --token-file [default: 127.0.0.1:7263]
    #[arg(long, value_name = "ADDR", global = true)]
    listen: Vec<String>,
    /// Name that the server is called by, beside addresses and localhost; *.NAME is all below it; may be repeated
    /// [default: none]
    #[arg(long, value_name = "NAME", global = true)]
    allowed_hosts: Vec<String>,
    /// Directory for sandboxes, the token and the Unix socket [default: /var/lib/sandgate as root, else
    /// ~/.local/state/sandgate]
    #[arg(long, value_name = "DIR", global = true)]
    state_dir: Option<String>,
    /// File with the callers' token, of 32 to 256 printable characters [default: `token` in the state directory, which is
    /// made]
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<String>,
    /// What to log to stderr: off, error, warn, info, debug, trace, or a list such as info,sandgate_local=debug
    /// [default: info]
    #[arg(long, value_name = "LEVEL", global = true)]
    log: Option<String>,
    /// Web page that may call, such as http://localhost:3000; may be repeated [default: none]
    #[arg(long, value_name = "ORIGIN", global = true)]
    allowed_origins: Vec<String>,
    /// Template of sandboxes that name none [default: default; on Kubernetes none]
    #[arg(long, value_name = "NAME", global = true)]
    default_template: Option<String>,
    /// Cgroup below which sandboxes get theirs [default: the server's own]
    #[arg(long, value_name = "PATH", global = true)]
    cgroup_parent: Option<String>,
    /// The sandgate-runtime program [default: beside this one]
    #[arg(long, value_name = "FILE", global = true)]
    runtime_bin: Option<String>,
    /// The sandgate-monitor program [default: beside this one]
    #[arg(long, value_name = "FILE", global = true)]
    monitor_bin: Option<String>,
    /// Live sandboxes at most [default: 1000]
    #[arg(long, value_name = "N", global = true)]
    limits_sandboxes: Option<String>,
    /// Commands alive at once in one sandbox at most [default: 1024]
    #[arg(long, value_name = "N", global = true)]
    limits_execs_per_sandbox: Option<String>,
    /// Calls open at once on one connection at most [default: 10000]
    #[arg(long, value_name = "N", global = true)]
    limits_streams_per_connection: Option<String>,
    /// Longest deadline that a caller may ask for, or "none" [default: 7d]
    #[arg(long, value_name = "SPAN", global = true)]
    limits_max_ttl: Option<String>,
    /// Longest idle limit that a caller may ask for, or "none" [default: 7d]
    #[arg(long, value_name = "SPAN", global = true)]
    limits_max_idle: Option<String>,
}

const AFTER_HELP: &str = "\
Each flag can be given as an environment variable (--state-dir: SANDGATE_STATE_DIR) and as a key of the file (state_dir;
--limits-max-ttl: max_ttl in [limits]). A flag overrides the environment, which overrides the file. Templates are in the
file only.

On TCP callers need the token in the file `token` of the state directory, or in --token-file; the command line and the
clients find the former by themselves. The Unix socket `sandgate.sock` beside it needs none: only its owner can open it.

SIGTERM or Ctrl-C ends the server in order, a second one at once. Sandboxes live on.

Exit status: 0 after an orderly end, 1 when it can't serve or doctor found a problem, 64 for a mistake in flags, environment or file.

First steps:
  sandgate-server &
  sandgate run -- echo hello";

// === impl Args ===

impl Args {
    /// The flags that were given, by name.
    #[must_use]
    pub fn flags(&self) -> BTreeMap<String, String> {
        let flags = &self.flags;
        let lists = [
            ("listen", &flags.listen),
            ("allowed-hosts", &flags.allowed_hosts),
            ("allowed-origins", &flags.allowed_origins),
        ];
        let lists = lists.into_iter().chain(self.kubernetes.lists());
        let lists = lists.map(|(name, values)| (name, (!values.is_empty()).then(|| values.join(","))));
        let single = [
            ("config", &flags.config),
            ("provider", &flags.provider),
            ("state-dir", &flags.state_dir),
            ("token-file", &flags.token_file),
            ("log", &flags.log),
            ("default-template", &flags.default_template),
            ("cgroup-parent", &flags.cgroup_parent),
            ("runtime-bin", &flags.runtime_bin),
            ("monitor-bin", &flags.monitor_bin),
            ("limits-sandboxes", &flags.limits_sandboxes),
            ("limits-execs-per-sandbox", &flags.limits_execs_per_sandbox),
            ("limits-streams-per-connection", &flags.limits_streams_per_connection),
            ("limits-max-ttl", &flags.limits_max_ttl),
            ("limits-max-idle", &flags.limits_max_idle),
        ];
        let single = single.into_iter().chain(self.kubernetes.single());
        let single = single.map(|(name, value)| (name, value.clone()));
        let all = lists.chain(single);
        all.filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Args {
        Args::try_parse_from([&["x"], args].concat()).unwrap()
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
        assert!(parse(&[]).flags().is_empty());
        assert_eq!(parse(&["config", "--log", "warn"]).command, Some(Command::Config));
        let wanted = Keys::Jwks { dir: "dir".into() };
        assert_eq!(parse(&["keys", "jwks", "dir"]).command, Some(Command::Keys(wanted)));
    }

    #[test]
    fn every_flag_is_collected() {
        use clap::CommandFactory as _;
        for arg in Args::command().get_arguments() {
            let Some(name) = arg.get_long().filter(|name| !["help", "version"].contains(name)) else {
                continue;
            };
            let flags = parse(&[&format!("--{name}"), "value"]).flags();
            assert_eq!(flags, BTreeMap::from([(name.to_owned(), "value".to_owned())]));
        }
        let twice = parse(&["--listen", "a", "--listen", "b"]).flags();
        assert_eq!(twice["listen"], "a,b");
    }
}
