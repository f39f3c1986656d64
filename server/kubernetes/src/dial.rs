//! The ways to a pod, as streams of bytes: what is spoken over them is the driver's business.
//!
//! [`Tunnel`] goes through the API server, [`InCluster`] to the pod's own address, [`Routed`] through the sandbox
//! router, whose address a Gateway's status or the operator gives. [`Modes`] knows what this server may use and chooses.

mod choose;
mod endpoint;
mod gateway;
mod in_cluster;
mod routed;
#[cfg(test)]
pub(crate) mod testing;
mod tunnel;

use std::{fmt, io, net::IpAddr};

use async_trait::async_trait;
use http::{HeaderMap, uri::Authority};
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::ByteStream;

pub(crate) use self::{
    choose::Modes,
    endpoint::{Endpoint, EndpointError, Trust},
    gateway::{Gateway, GatewaySettings},
    in_cluster::InCluster,
    routed::{Routed, Router},
    tunnel::Tunnel,
};

/// A pod that is to be reached, as the cluster knows it now. A replaced pod is another target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) namespace: String,
    /// The Sandbox that the pod belongs to, by which the router knows it.
    pub(crate) sandbox: String,
    pub(crate) pod: String,
    /// Its addresses, of both families where it has both.
    pub(crate) addresses: Vec<IpAddr>,
}

/// A way to one pod.
#[async_trait]
pub(crate) trait Dial: fmt::Debug + Send + Sync {
    /// Which way it is, now.
    fn mode(&self) -> ConnectionMode;

    /// Bytes to a port of the pod. Through a router these are carried by our runtime's WebSocket.
    ///
    /// # Errors
    /// When nothing answers there now; `Unsupported` for a port to which this way never leads.
    async fn open(&self, port: u16) -> io::Result<Box<dyn ByteStream>>;

    /// A stream for HTTP/1.1 to a port of the pod.
    ///
    /// # Errors
    /// As [`Dial::open`].
    async fn http(&self, port: u16) -> io::Result<HttpWay>;
}

/// A stream for HTTP/1.1, and how to address what is behind it.
pub(crate) struct HttpWay {
    pub(crate) stream: Box<dyn ByteStream>,
    /// For `Host`.
    pub(crate) authority: Authority,
    /// To be sent with each request.
    pub(crate) headers: HeaderMap,
    /// What the operator's URL begins with, without a slash at its end.
    pub(crate) path_prefix: String,
}

// === impl HttpWay ===

impl HttpWay {
    /// A way that leads straight to the pod. What is there does not care how it is called.
    pub(crate) fn straight(stream: Box<dyn ByteStream>) -> Self {
        Self {
            stream,
            authority: Authority::from_static("sandbox"),
            headers: HeaderMap::new(),
            path_prefix: String::new(),
        }
    }
}
