//! Against DNS rebinding: a web page can have a name of its own lead to the server's address and then call as if it were
//! ours. Its requests still carry that name, and are refused.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderValue, Request, header, uri::Authority};
use tonic::Status;

use super::gate::{Check, refused};
use crate::{
    config::{AllowedHost, is_loopback},
    listen::Peer,
};

/// Lets requests on TCP pass that are addressed to this server by a name of its own.
#[derive(Clone, Debug)]
pub(crate) struct HostCheck(Arc<[AllowedHost]>);

// === impl HostCheck ===

impl HostCheck {
    pub(crate) fn new(allowed: &[AllowedHost]) -> Self {
        Self(allowed.into())
    }

    fn is_ours(&self, name: &str, local: SocketAddr) -> bool {
        let Ok(authority) = name.parse::<Authority>() else {
            return false;
        };
        if name.contains('@') {
            return false;
        }
        let host = authority.host();
        if self.0.iter().any(|allowed| allowed.is(host)) {
            return true;
        }
        if is_loopback(local) {
            return authority.port_u16().unwrap_or(80) == local.port() && is_this_machine(host, local);
        }
        // Behind a Service or a forwarded port nobody knows which address and port were called. An address is nobody's
        // name, so that it can't be lent to us; and no page of another machine is `localhost`.
        is_address(host) || host.eq_ignore_ascii_case("localhost")
    }
}

impl Check for HostCheck {
    fn check<B>(&self, request: &mut Request<B>) -> Result<(), Box<Status>> {
        let local = match request.extensions().get::<Peer>() {
            Some(Peer::Unix) => return Ok(()),
            Some(Peer::Tcp { local, .. }) => *local,
            None => return Err(Box::new(Status::internal("the connection is not known"))),
        };
        // HTTP/2 has `:authority`, HTTP/1.1 has `Host`; both may have both.
        let in_uri = request.uri().authority().map(Authority::as_str);
        let in_headers = request.headers().get_all(header::HOST).iter().map(HeaderValue::to_str);
        let names: Vec<&str> = in_uri
            .into_iter()
            .chain(in_headers.map(Result::unwrap_or_default))
            .collect();
        if !names.is_empty() && names.iter().all(|name| self.is_ours(name, local)) {
            return Ok(());
        }
        let (names, port) = (names.join(", "), local.port());
        Err(refused(if is_loopback(local) {
            format!(
                "the request is addressed to {names:?}, and this server is only localhost:{port}, 127.0.0.1:{port} and \
                 [::1]:{port}: check Host or :authority"
            )
        } else {
            format!(
                "the request is addressed to {names:?}, which is no address and no name of this server: add it to \
                 `allowed_hosts` of its configuration, or check Host or :authority"
            )
        }))
    }
}

fn is_this_machine(host: &str, local: SocketAddr) -> bool {
    let ip = match local.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let ours = ["localhost", "127.0.0.1", "[::1]", &ip];
    ours.iter().any(|name| name.eq_ignore_ascii_case(host))
}

fn is_address(host: &str) -> bool {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bracketed {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.parse::<std::net::Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allowed: &[&str]) -> HostCheck {
        let allowed: Vec<AllowedHost> = allowed.iter().map(|name| name.parse().unwrap()).collect();
        HostCheck::new(&allowed)
    }

    #[test]
    fn only_names_of_this_machine_with_our_port_are_ours() {
        let local: SocketAddr = "127.0.0.5:7263".parse().unwrap();
        for name in [
            "localhost:7263",
            "LocalHost:7263",
            "127.0.0.1:7263",
            "[::1]:7263",
            "127.0.0.5:7263",
        ] {
            assert!(check(&[]).is_ours(name, local), "{name}");
        }
        for name in [
            "",
            "localhost",
            "localhost:80",
            "evil.example:7263",
            "localhost.evil.example:7263",
            "127.0.0.1.evil.example:7263",
            "127.0.0.2:7263",
            "localhost:7263@evil.example",
            "evil@localhost:7263",
            "::1:7263",
            "localhost:99999",
            "0.0.0.0:7263",
        ] {
            assert!(!check(&[]).is_ours(name, local), "{name}");
        }
        assert!(check(&[]).is_ours("localhost", "[::1]:80".parse().unwrap()));
        assert!(check(&["named.example"]).is_ours("named.example:1", local));
    }

    #[test]
    fn where_others_can_reach_it_addresses_and_listed_names_are_ours() {
        let check = check(&["sandgate.tools.svc", "*.example.com"]);
        for local in ["0.0.0.0:7263", "[::]:7263", "10.0.0.7:7263"] {
            let local: SocketAddr = local.parse().unwrap();
            for name in [
                "10.0.0.7:7263",
                "10.9.9.9",
                "[fd00::7]:80",
                "localhost:1234",
                "sandgate.tools.svc",
                "Sandgate.Tools.svc:443",
                "a.example.com:7263",
            ] {
                assert!(check.is_ours(name, local), "{name}");
            }
            for name in [
                "",
                "sandgate",
                "tools.svc",
                "example.com",
                "evil.example:7263",
                "10.0.0.7.evil.example",
                "x@10.0.0.7:7263",
                "[fd00::7",
                "0x0a000007",
                "10.0.0.7.",
                "localhost.evil.example",
            ] {
                assert!(!check.is_ours(name, local), "{name}");
            }
        }
    }
}
