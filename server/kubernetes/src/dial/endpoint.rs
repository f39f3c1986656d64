//! Where a router listens: plain or TLS, by name or address, perhaps beneath a path.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use http::{
    HeaderMap, Uri,
    uri::{Authority, Scheme},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use sandgate_provider::ByteStream;
use tokio::{net::lookup_host, time::timeout};
use tokio_rustls::TlsConnector;

use super::in_cluster::connect;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The router speaks no other.
const ALPN: &[u8] = b"http/1.1";
/// What the router reads to find the pod. What a caller configures must not get in its way.
pub(super) const ROUTER_PREFIX: &str = "x-sandbox-";

/// Whom to believe over TLS.
#[derive(Debug, Clone)]
pub(crate) struct Trust(Arc<ClientConfig>);

/// Where a router listens.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// A name, or an address without brackets.
    host: String,
    port: u16,
    tls: Option<Trust>,
    /// For `Host`, and for TLS the name that the certificate must have.
    pub(super) authority: Authority,
    /// Without a slash at its end.
    pub(super) path_prefix: String,
    /// To be sent with each request.
    pub(super) headers: HeaderMap,
}

/// Why a URL, a header or a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("{0}: a URL is http://HOST[:PORT][/PATH] or https://…")]
    Url(String),
    #[error("{0}: headers that begin with {ROUTER_PREFIX} are set by the server")]
    RouterHeader(String),
    #[error("the CA can't be used: {0}")]
    Ca(String),
}

// === impl Trust ===

impl Trust {
    /// Believes the authorities in `ca` (PEM), or those of the machine.
    ///
    /// # Errors
    /// When there is no certificate in `ca`, or none on the machine.
    pub(crate) fn new(ca: Option<&[u8]>) -> Result<Self, EndpointError> {
        let wrong = |error: &dyn std::fmt::Display| EndpointError::Ca(error.to_string());
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?;
        let mut config = match ca {
            Some(pem) => builder.with_root_certificates(roots(pem)?).with_no_client_auth(),
            None => builder
                .with_platform_verifier()
                .map_err(|error| wrong(&error))?
                .with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, EndpointError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| EndpointError::Ca(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| EndpointError::Ca(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(EndpointError::Ca("it holds no certificate in PEM form".to_owned()));
    }
    Ok(roots)
}

// === impl Endpoint ===

impl Endpoint {
    /// The endpoint at a host; `named` is what to call it there, if not by that host.
    pub(super) fn at(host: &str, port: u16, tls: Option<Trust>, named: Option<&str>) -> Result<Self, EndpointError> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let shown = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => host.clone(),
        };
        let usual = if tls.is_some() { 443 } else { 80 };
        let name = named.unwrap_or(&shown);
        let authority = if port == usual {
            name.to_owned()
        } else {
            format!("{name}:{port}")
        };
        let authority = Authority::try_from(authority.as_str()).map_err(|_| EndpointError::Url(authority))?;
        Ok(Self {
            host,
            port,
            tls,
            authority,
            path_prefix: String::new(),
            headers: HeaderMap::new(),
        })
    }

    /// The endpoint of an operator's URL, for the `direct` mode.
    ///
    /// # Errors
    /// When the URL is not one of http or https, or a header is the router's.
    pub(crate) fn parse(url: &str, ca: Option<&[u8]>, headers: HeaderMap) -> Result<Self, EndpointError> {
        let wrong = || EndpointError::Url(url.to_owned());
        if let Some(name) = headers.keys().find(|name| name.as_str().starts_with(ROUTER_PREFIX)) {
            return Err(EndpointError::RouterHeader(name.to_string()));
        }
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(wrong)?;
        if authority.host().is_empty() || uri.query().is_some() {
            return Err(wrong());
        }
        let (tls, usual) = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => (None, 80),
            Some(scheme) if *scheme == Scheme::HTTPS => (Some(Trust::new(ca)?), 443),
            _ => return Err(wrong()),
        };
        let mut endpoint = Self::at(authority.host(), authority.port_u16().unwrap_or(usual), tls, None)?;
        uri.path().trim_end_matches('/').clone_into(&mut endpoint.path_prefix);
        endpoint.headers = headers;
        Ok(endpoint)
    }

    /// A stream to it, encrypted if it is to be.
    pub(super) async fn connect(&self) -> io::Result<Box<dyn ByteStream>> {
        let addresses = timeout(CONNECT_TIMEOUT, lookup_host((self.host.as_str(), self.port)));
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("{} is not resolved", self.host));
        let addresses: Vec<_> = addresses.await.map_err(late)??.collect();
        let stream = connect(&addresses, CONNECT_TIMEOUT).await?;
        let Some(Trust(config)) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = self
            .authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let shaken = timeout(
            HANDSHAKE_TIMEOUT,
            TlsConnector::from(Arc::clone(config)).connect(name, stream),
        );
        let late = |_| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no TLS handshake with {}", self.authority),
            )
        };
        Ok(Box::new(shaken.await.map_err(late)??))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Endpoint {
        Endpoint::parse(url, None, HeaderMap::new()).unwrap()
    }

    #[test]
    fn urls_are_taken_apart() {
        let plain = parsed("http://router.example");
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.tls.is_some()),
            ("router.example", 80, false)
        );
        assert_eq!(
            (plain.authority.as_str(), plain.path_prefix.as_str()),
            ("router.example", "")
        );
        let six = parsed("http://[2001:db8::1]:8080/sandboxes/");
        assert_eq!((six.host.as_str(), six.port), ("2001:db8::1", 8080));
        assert_eq!(
            (six.authority.as_str(), six.path_prefix.as_str()),
            ("[2001:db8::1]:8080", "/sandboxes")
        );
    }

    #[test]
    fn what_is_no_url_of_ours_is_refused() {
        for url in [
            "",
            "router",
            "ftp://x",
            "http://",
            "http://user@x",
            "http://x/?q=1",
            "https:///x",
        ] {
            let refused = Endpoint::parse(url, None, HeaderMap::new());
            assert!(matches!(refused, Err(EndpointError::Url(_))), "{url}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("X-Sandbox-ID", http::HeaderValue::from_static("x"));
        let refused = Endpoint::parse("http://x", None, headers);
        assert!(matches!(refused, Err(EndpointError::RouterHeader(_))));
        let refused = Endpoint::parse("https://x", Some(b"no certificate"), HeaderMap::new());
        assert!(matches!(refused, Err(EndpointError::Ca(_))));
    }

    #[test]
    fn an_address_may_be_called_by_a_name() {
        let endpoint = Endpoint::at("2001:db8::1", 80, None, None).unwrap();
        assert_eq!(endpoint.authority.as_str(), "[2001:db8::1]");
        let endpoint = Endpoint::at("10.0.0.1", 8443, None, Some("router.example")).unwrap();
        assert_eq!(
            (endpoint.host.as_str(), endpoint.authority.as_str()),
            ("10.0.0.1", "router.example:8443")
        );
    }
}
