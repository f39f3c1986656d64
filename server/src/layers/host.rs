//! Against DNS rebinding: a web page can have a name of its own lead to 127.0.0.1 and then call as if it were ours. Its
//! requests still carry that name, and are refused.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderValue, Request, header, uri::Authority};
use tonic::Status;

use super::gate::{Check, refused};
use crate::listen::Peer;

/// Lets requests on TCP pass that are addressed to this machine by one of its own names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCheck;

// === impl HostCheck ===

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
        if !names.is_empty() && names.iter().all(|name| is_ours(name, local)) {
            return Ok(());
        }
        let port = local.port();
        Err(refused(format!(
            "the request is addressed to {:?}, and this server is only localhost:{port}, 127.0.0.1:{port} and [::1]:{port}: \
             check Host or :authority",
            names.join(", ")
        )))
    }
}

fn is_ours(name: &str, local: SocketAddr) -> bool {
    let Ok(authority) = name.parse::<Authority>() else {
        return false;
    };
    let (host, port) = (authority.host(), authority.port_u16().unwrap_or(80));
    let ip = match local.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let ours = ["localhost", "127.0.0.1", "[::1]", &ip];
    port == local.port() && !name.contains('@') && ours.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(is_ours(name, local), "{name}");
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
            assert!(!is_ours(name, local), "{name}");
        }
        assert!(is_ours("localhost", "[::1]:80".parse().unwrap()));
    }
}
