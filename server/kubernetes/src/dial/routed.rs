//! Through the sandbox router: at a Gateway's address, or at a URL that the operator gives.
//!
//! The router carries no HTTP/2, strips `Authorization` and lets any upgrade pass. So bytes travel in a WebSocket that our
//! runtime ends, and what they authorize is inside. What speaks HTTP/1.1 by itself needs no more than the headers.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue};
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::ByteStream;
use tokio::time::timeout;

use super::{Dial, Endpoint, Gateway, HttpWay, Target};

/// The port on which our runtime has its WebSocket, and the only one that the router's shipped NetworkPolicy lets out.
const RUNTIME_PORT: u16 = 8888;
/// The router tries a pod that does not answer a few times before it gives up.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(8);

const SANDBOX: HeaderName = HeaderName::from_static("x-sandbox-id");
const NAMESPACE: HeaderName = HeaderName::from_static("x-sandbox-namespace");
const PORT: HeaderName = HeaderName::from_static("x-sandbox-port");
const POD_ADDRESS: HeaderName = HeaderName::from_static("x-sandbox-pod-ip");

/// Where the router is.
#[derive(Debug, Clone)]
pub(crate) enum Router {
    /// Behind a Gateway, wherever that is now.
    Gateway(Arc<Gateway>),
    /// Where the operator says.
    Direct(Arc<Endpoint>),
}

/// The way through the router to one pod.
#[derive(Debug)]
pub(crate) struct Routed {
    router: Router,
    target: Target,
}

// === impl Routed ===

impl Routed {
    pub(crate) fn new(router: Router, target: Target) -> Self {
        Self { router, target }
    }

    async fn endpoint(&self) -> io::Result<Arc<Endpoint>> {
        match &self.router {
            Router::Gateway(gateway) => gateway.endpoint().await,
            Router::Direct(endpoint) => Ok(Arc::clone(endpoint)),
        }
    }

    fn headers(&self, endpoint: &Endpoint, port: u16) -> io::Result<HeaderMap> {
        let value = |text: &str| HeaderValue::try_from(text).map_err(io::Error::other);
        let mut headers = endpoint.headers.clone();
        headers.insert(SANDBOX, value(&self.target.sandbox)?);
        headers.insert(NAMESPACE, value(&self.target.namespace)?);
        headers.insert(PORT, port.into());
        // Right after an adoption the router does not know the pod by name yet, and a sandbox without a Service has no
        // name in DNS. IPv4 first, as agent-sandbox's own clients do.
        let address = self.target.addresses.iter().min_by_key(|address| address.is_ipv6());
        if let Some(address) = address {
            headers.insert(POD_ADDRESS, value(&address.to_string())?);
        }
        Ok(headers)
    }
}

#[async_trait]
impl Dial for Routed {
    fn mode(&self) -> ConnectionMode {
        match self.router {
            Router::Gateway(_) => ConnectionMode::Gateway,
            Router::Direct(_) => ConnectionMode::Direct,
        }
    }

    async fn open(&self, port: u16) -> io::Result<Box<dyn ByteStream>> {
        if port != RUNTIME_PORT {
            let message = format!("the router leads to our runtime on port {RUNTIME_PORT}, not to port {port}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let HttpWay {
            stream,
            authority,
            headers,
            path_prefix,
        } = self.http(port).await?;
        let path = format!("{path_prefix}{}", sandgate_websocket::PATH);
        let upgraded = sandgate_websocket::client(stream, authority.as_str(), &path, &headers);
        let late = |_| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{authority} does not answer the upgrade"),
            )
        };
        Ok(Box::new(timeout(UPGRADE_TIMEOUT, upgraded).await.map_err(late)??))
    }

    async fn http(&self, port: u16) -> io::Result<HttpWay> {
        let endpoint = self.endpoint().await?;
        Ok(HttpWay {
            headers: self.headers(&endpoint, port)?,
            stream: endpoint.connect().await?,
            authority: endpoint.authority.clone(),
            path_prefix: endpoint.path_prefix.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::HeaderMap;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::dial::testing::{FakeRouter, GatewayAt};

    fn target() -> Target {
        Target {
            namespace: "ns".into(),
            sandbox: "box".into(),
            pod: "box".into(),
            addresses: vec!["2001:db8::1".parse().unwrap(), "10.0.0.1".parse().unwrap()],
        }
    }

    fn direct(url: &str) -> Routed {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer operator"));
        let endpoint = Endpoint::parse(url, None, headers).unwrap();
        Routed::new(Router::Direct(Arc::new(endpoint)), target())
    }

    async fn echoes(dial: &Routed) {
        let mut stream = dial.open(RUNTIME_PORT).await.unwrap();
        let sent: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        stream.write_all(&sent).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).await.unwrap();
        assert!(echo == sent);
    }

    #[tokio::test]
    async fn bytes_ride_in_a_websocket_and_the_router_is_told_where_to() {
        let router = FakeRouter::new(None).await;
        let dial = direct(&format!("http://{}/prefix/", router.address));
        echoes(&dial).await;
        let seen = router.seen();
        assert_eq!(seen[0].uri().path(), "/prefix/sandgate/v1/stream");
        for (name, value) in [
            ("x-sandbox-id", "box"),
            ("x-sandbox-namespace", "ns"),
            ("x-sandbox-port", "8888"),
            ("x-sandbox-pod-ip", "10.0.0.1"),
            ("authorization", "Bearer operator"),
            ("host", &router.address.to_string()),
        ] {
            assert_eq!(seen[0].headers()[name], value);
        }
        let way = dial.http(8888).await.unwrap();
        assert_eq!((way.path_prefix.as_str(), way.headers.len()), ("/prefix", 5));
        let refused = dial.open(9090).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }

    #[tokio::test]
    async fn a_gateway_leads_to_the_router() {
        let router = FakeRouter::new(None).await;
        let gateway = Router::Gateway(Arc::new(GatewayAt::address(router.address)));
        let dial = Routed::new(gateway, target());
        assert_eq!(dial.mode(), ConnectionMode::Gateway);
        echoes(&dial).await;
        assert_eq!(router.seen()[0].headers()["host"], router.address.to_string());
    }

    #[tokio::test]
    async fn a_router_that_refuses_is_an_error() {
        let router = FakeRouter::new(None).await;
        router.refuse();
        let error = direct(&format!("http://{}", router.address))
            .open(RUNTIME_PORT)
            .await
            .err()
            .unwrap();
        assert!(error.to_string().contains("502"), "{error}");
    }

    #[tokio::test]
    async fn over_tls_only_those_are_believed_whom_the_operator_names() {
        let router = FakeRouter::new(Some(FakeRouter::certificate())).await;
        let at = |ca, name| {
            let SocketAddr::V4(address) = router.address else {
                panic!()
            };
            let trust = crate::dial::Trust::new(ca).unwrap();
            let endpoint = Endpoint::at(&address.ip().to_string(), address.port(), Some(trust), name).unwrap();
            Routed::new(Router::Direct(Arc::new(endpoint)), target())
        };
        let authority: &[u8] = include_bytes!("testing/authority.pem");
        echoes(&at(Some(authority), Some("router.test"))).await;
        assert!(
            at(Some(authority), Some("other.test"))
                .open(RUNTIME_PORT)
                .await
                .is_err()
        );
        assert!(at(None, Some("router.test")).open(RUNTIME_PORT).await.is_err());
        assert!(at(Some(authority), None).open(RUNTIME_PORT).await.is_err());
    }
}
