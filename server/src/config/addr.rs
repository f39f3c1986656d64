//! Addresses: where the server listens, and which web pages may call it.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// An address to listen on that only this machine can reach.
///
/// Callers can't be told apart yet, so another address would give every sandbox to whoever gets hold of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddr(SocketAddr);

/// An address that others could reach, or none at all.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotLoopback {
    /// It does not parse.
    #[error("expected an IP address and a port, such as {}", ListenAddr::default())]
    Malformed,
    /// It is an address that others can reach.
    #[error("only loopback addresses are allowed until callers can be told apart: use 127.0.0.1 or [::1]")]
    Reachable,
}

/// Where a web page comes from, as browsers say it in `Origin`: scheme, host and, if it is not the scheme's own, port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebOrigin(String);

/// Not what a browser would send.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected an origin as browsers send it, such as \"http://localhost:3000\": no path, no wildcard, lower case")]
pub struct NotAnOrigin;

// === impl ListenAddr ===

impl ListenAddr {
    const PORT: u16 = 7263;

    /// The address to bind.
    #[must_use]
    pub fn get(self) -> SocketAddr {
        self.0
    }
}

impl Default for ListenAddr {
    fn default() -> Self {
        Self((Ipv4Addr::LOCALHOST, Self::PORT).into())
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

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl WebOrigin ===

impl WebOrigin {
    /// The origin as it is on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for WebOrigin {
    type Err = NotAnOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text.split_once("://").ok_or(NotAnOrigin)?;
        let authority: http::uri::Authority = rest.parse().map_err(|_| NotAnOrigin)?;
        // Browsers leave the scheme's own port out, so that one with it would match nothing.
        let own_port = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ if scheme.is_empty() => return Err(NotAnOrigin),
            _ => None,
        };
        let odd = rest.contains(['*', '@', '/', '?', '#'])
            || text.chars().any(|c| c.is_ascii_uppercase())
            || !scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
            || authority.host().is_empty()
            || (authority.port_u16().is_some() && authority.port_u16() == own_port);
        if odd {
            Err(NotAnOrigin)
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

impl fmt::Display for WebOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_taken() {
        for good in ["127.0.0.1:7263", "127.8.9.1:0", "[::1]:7263", "[::ffff:127.0.0.1]:80"] {
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
    fn an_origin_is_what_browsers_send() {
        for good in [
            "http://localhost:3000",
            "https://app.example.com",
            "http://[::1]:3000",
            "https://x:80",
            "chrome-extension://abcdef",
        ] {
            assert_eq!(good.parse::<WebOrigin>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            "*",
            "null",
            "localhost:3000",
            "http://",
            "http://localhost:3000/",
            "http://localhost/path",
            "http://*.example.com",
            "http://LOCALHOST",
            "http://user@localhost",
            "http://localhost:80",
            "https://localhost:443",
            "http://a b",
            "://x",
        ] {
            assert_eq!(bad.parse::<WebOrigin>(), Err(NotAnOrigin), "{bad}");
        }
    }
}
