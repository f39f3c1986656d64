//! Addresses: where the server listens, what it is called by, and which web pages may call it.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddr(SocketAddr);

/// Not an address to listen on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected an IP address and a port, such as {}", ListenAddr::default())]
pub struct NotAnAddress;

/// A name that the server is called by: a whole one, or `*.` and the end of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost(String);

/// Not a name of a server.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a name without a port, such as \"sandgate.example.com\" or \"*.example.com\", in lower case")]
pub struct NotAHost;

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

    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_loopback(self) -> bool {
        is_loopback(self.0)
    }
}

/// Whether only this machine can reach an address.
pub(crate) fn is_loopback(addr: SocketAddr) -> bool {
    addr.ip().to_canonical().is_loopback()
}

impl Default for ListenAddr {
    fn default() -> Self {
        Self((Ipv4Addr::LOCALHOST, Self::PORT).into())
    }
}

impl FromStr for ListenAddr {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| NotAnAddress)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl AllowedHost ===

impl AllowedHost {
    /// Whether a host is one that is meant. Names have no case, and may end with the dot of the root.
    pub(crate) fn is(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        match self.0.strip_prefix('*') {
            Some(end) => {
                let cut = host.len().checked_sub(end.len()).filter(|cut| *cut > 0);
                let found = cut.and_then(|cut| host.get(cut..));
                found.is_some_and(|found| found.eq_ignore_ascii_case(end))
            }
            None => host.eq_ignore_ascii_case(&self.0),
        }
    }
}

impl FromStr for AllowedHost {
    type Err = NotAHost;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_label = |label: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
            (1..=63).contains(&label.len()) && label.chars().all(inner)
        };
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_number = |label: &str| label.chars().all(|c| c.is_ascii_digit());
        // An address is none: those are taken or refused by themselves.
        let odd = name.len() > 253 || !name.split('.').all(is_label) || name.rsplit('.').next().is_some_and(is_number);
        if odd { Err(NotAHost) } else { Ok(Self(text.to_owned())) }
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
    fn it_is_known_which_addresses_others_can_reach() {
        let parse = |text: &str| text.parse::<ListenAddr>();
        for near in ["127.0.0.1:7263", "127.8.9.1:0", "[::1]:7263", "[::ffff:127.0.0.1]:80"] {
            assert!(parse(near).unwrap().is_loopback(), "{near}");
        }
        for far in ["0.0.0.0:7263", "[::]:7263", "192.168.1.5:80", "[::ffff:10.0.0.1]:80"] {
            assert!(!parse(far).unwrap().is_loopback(), "{far}");
        }
        for bad in ["", "7263", "localhost:7263", "127.0.0.1", "127.0.0.1:99999"] {
            assert_eq!(parse(bad), Err(NotAnAddress), "{bad}");
        }
    }

    #[test]
    fn a_host_is_a_name_or_the_end_of_several() {
        let host = |text: &str| text.parse::<AllowedHost>().unwrap();
        for (allowed, name, is) in [
            ("sandgate.tools.svc", "sandgate.tools.svc", true),
            ("sandgate.tools.svc", "SandGate.tools.SVC.", true),
            ("sandgate.tools.svc", "sandgate.tools.svc.evil.example", false),
            ("sandgate.tools.svc", "x.sandgate.tools.svc", false),
            ("*.tools.svc", "sandgate.tools.svc", true),
            ("*.tools.svc", "a.b.tools.svc", true),
            ("*.tools.svc", "tools.svc", false),
            ("*.tools.svc", ".tools.svc", false),
            ("*.tools.svc", "eviltools.svc", false),
            ("*.tools.svc", "ätools.svc", false),
        ] {
            assert_eq!(host(allowed).is(name), is, "{allowed} {name}");
        }
        for bad in [
            "",
            "*",
            "*.",
            "a.*.b",
            "x:80",
            "http://x",
            "UPPER",
            "10.0.0.1",
            "[::1]",
            "a..b",
            &"x".repeat(64),
        ] {
            assert_eq!(bad.parse::<AllowedHost>(), Err(NotAHost), "{bad}");
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
