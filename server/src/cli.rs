//! The command line. Parsing has no side effects, and a value that was parsed is valid.

use std::{net::SocketAddr, str::FromStr};

use clap::Parser;

/// Serves sandboxes to agents over gRPC.
#[derive(Debug, Parser)]
#[command(name = "sandgate-server", version, after_help = AFTER_HELP)]
pub struct Args {
    /// Where to listen: a loopback address and a port; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = ListenAddr::DEFAULT)]
    pub listen: ListenAddr,
}

const AFTER_HELP: &str = "\
The server speaks gRPC without TLS (sandgate.v1.SandboxService, health, reflection).
It prints its address when it is ready, and ends in order on SIGTERM or Ctrl-C.

Exit status: 0 after an orderly end, 1 when it can't serve, 64 for a wrong command line.

First steps:
  sandgate-server
  buf curl --protocol grpc --http2-prior-knowledge --list-methods http://127.0.0.1:7263";

/// An address to listen on that only this machine can reach.
///
/// Callers can't be told apart yet, so another address would give every sandbox to whoever reaches the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddr(SocketAddr);

/// An address that others could reach, or none at all.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotLoopback {
    /// It does not parse.
    #[error("expected an IP address and a port, such as {}", ListenAddr::DEFAULT)]
    Malformed,
    /// It is an address that others can reach.
    #[error("only loopback addresses are allowed, because callers can't be told apart yet: use 127.0.0.1 or [::1]")]
    Reachable,
}

// === impl ListenAddr ===

impl ListenAddr {
    /// Where the server listens unless told otherwise.
    pub const DEFAULT: &'static str = "127.0.0.1:7263";

    /// The address to bind.
    #[must_use]
    pub fn get(self) -> SocketAddr {
        self.0
    }
}

impl TryFrom<SocketAddr> for ListenAddr {
    type Error = NotLoopback;

    fn try_from(addr: SocketAddr) -> Result<Self, Self::Error> {
        if addr.ip().to_canonical().is_loopback() {
            Ok(Self(addr))
        } else {
            Err(NotLoopback::Reachable)
        }
    }
}

impl FromStr for ListenAddr {
    type Err = NotLoopback;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<SocketAddr>()
            .map_err(|_| NotLoopback::Malformed)?
            .try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_taken() {
        for good in [
            ListenAddr::DEFAULT,
            "127.8.9.1:0",
            "[::1]:7263",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert!(good.parse::<ListenAddr>().is_ok(), "{good}");
        }
        for bad in [
            "0.0.0.0:7263",
            "[::]:7263",
            "192.168.1.5:80",
            "[::ffff:10.0.0.1]:80",
            "8.8.8.8:53",
        ] {
            assert_eq!(bad.parse::<ListenAddr>(), Err(NotLoopback::Reachable), "{bad}");
        }
        for bad in ["", "7263", "localhost:7263", "127.0.0.1", "127.0.0.1:99999"] {
            assert_eq!(bad.parse::<ListenAddr>(), Err(NotLoopback::Malformed), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
        assert_eq!(Args::try_parse_from(["x"]).unwrap().listen.get().port(), 7263);
    }
}
