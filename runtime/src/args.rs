//! The command line. Every option has a default but those that only the caller can know.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Parser, builder::NonEmptyStringValueParser};

/// The program inside a sandbox: runs commands, keeps their output, moves files.
///
/// It is started by sandgate-server or as a container's entry point. Environment variables that it is started with are
/// not passed on to commands.
#[derive(Debug, Parser)]
#[command(name = "sandgate-runtime", version)]
pub struct Args {
    /// Unix socket to serve on. The directory's mode is what keeps others out.
    #[arg(long, value_name = "PATH", required_unless_present_any = ["socket_fd", "listen"])]
    pub socket: Option<PathBuf>,
    /// Serve on a listening Unix socket that was inherited as this descriptor, instead.
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    pub socket_fd: Option<i32>,
    /// Address to serve on over a network, as in 0.0.0.0:8888. Every call must then carry a token.
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["keys", "audience"])]
    pub listen: Option<SocketAddr>,
    /// Directory of the public keys (jwks.json) that tokens are verified with.
    #[arg(long, value_name = "DIR", requires = "listen")]
    pub keys: Option<PathBuf>,
    /// Name of this sandbox in tokens: TRUST-DOMAIN/NAMESPACE/POD.
    #[arg(long, value_name = "TEXT", requires = "listen", value_parser = NonEmptyStringValueParser::new())]
    pub audience: Option<String>,
    /// UID of this pod, which tokens must name then.
    #[arg(long, value_name = "UID", requires = "listen", value_parser = NonEmptyStringValueParser::new())]
    pub pod_uid: Option<String>,
    /// Also serve the HTTP API of agent-sandbox's python-runtime there, which has no authentication.
    #[arg(long, requires = "listen")]
    pub python_api: bool,
    /// Directory for records and spilled output. Commands must not be able to write there.
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Working directory of commands, and where relative paths begin.
    #[arg(long, value_name = "DIR", default_value = "/workspace")]
    pub cwd: PathBuf,
    /// User that commands and file calls act as, by name or number [default: whoever the runtime is]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// PATH of commands that set none.
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )]
    pub path: String,
    /// Directory in the cgroup2 tree that was given to this runtime. Each command gets a group in it.
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Directory in a cgroup v1 memory tree, to count processes killed for memory.
    #[arg(long, value_name = "DIR", requires = "cgroup")]
    pub memory_cgroup: Option<PathBuf>,
    /// Name of this start of the runtime, another one each time [default: a random one]
    #[arg(long, value_name = "NAME", value_parser = parse_incarnation)]
    pub incarnation: Option<String>,
    /// End the sandbox after this long, as in 90s, 10m, 8h.
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub deadline: Option<Duration>,
    /// End the sandbox after it has idled for this long.
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub idle_limit: Option<Duration>,
    /// File to write the reason of the end to, in one word: stopped, signal, deadline or idle.
    #[arg(long, value_name = "PATH")]
    pub termination_log: Option<PathBuf>,
    /// Output retained for each command.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub retain_bytes: u64,
    /// Most output that one command may ask to retain.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub retain_bytes_max: u64,
    /// Output retained for all commands together.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub retain_bytes_total: u64,
    /// Output kept in memory for all commands together; the rest is spilled to the state directory.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub memory_bytes: u64,
    /// Records of finished commands that are kept.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub keep_finished: usize,
    /// How long the record of a finished command is kept.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "1h")]
    pub keep_for: Duration,
    /// Commands that may be alive at once.
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = parse_count)]
    pub max_alive: usize,
    /// What to log to stderr: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: tracing::Level,
}

fn parse_span(text: &str) -> Result<Duration, String> {
    let expected = || "expected a number and a unit, as in 500ms, 90s, 10m or 8h".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs).ok_or_else(expected);
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(60 * 60),
        "d" => seconds(24 * 60 * 60),
        _ => Err(expected()),
    }
}

fn parse_incarnation(text: &str) -> Result<String, String> {
    match sandgate_exec::check_id("incarnation", text) {
        Ok(()) => Ok(text.to_owned()),
        Err(refusal) => Err(refusal.message),
    }
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=65_536) => Ok(count),
        _ => Err("expected a number from 1 to 65536".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit() {
        assert_eq!(parse_span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_span("2h"), Ok(Duration::from_secs(7_200)));
        assert_eq!(parse_span("5ms"), Ok(Duration::from_millis(5)));
        for wrong in [
            "",
            "5",
            "s",
            "-1s",
            "1 s",
            "1w",
            "99999999999999999999s",
            "9999999999999999999d",
        ] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }
}
