//! The pod's own address, for a server that runs in the cluster.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::ByteStream;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{Dial, HttpWay};

/// A pod that is there answers within this time; one that a policy hides never does.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An address that is silent for this long does not hold up the next.
const NEXT_ADDRESS: Duration = Duration::from_millis(50);

/// TCP to the pod's addresses.
#[derive(Debug)]
pub(crate) struct InCluster {
    addresses: Vec<IpAddr>,
}

// === impl InCluster ===

impl InCluster {
    pub(crate) fn new(addresses: Vec<IpAddr>) -> Self {
        Self { addresses }
    }

    /// Connects within `span`.
    pub(crate) async fn connect(&self, port: u16, span: Duration) -> io::Result<TcpStream> {
        let addresses: Vec<_> = self.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        connect(&addresses, span).await
    }
}

#[async_trait]
impl Dial for InCluster {
    fn mode(&self) -> ConnectionMode {
        ConnectionMode::InCluster
    }

    async fn open(&self, port: u16) -> io::Result<Box<dyn ByteStream>> {
        Ok(Box::new(self.connect(port, CONNECT_TIMEOUT).await?))
    }

    async fn http(&self, port: u16) -> io::Result<HttpWay> {
        Ok(HttpWay::straight(self.open(port).await?))
    }
}

/// Connects to whichever address answers first. They are tried in order, each a moment after the one before, or at once
/// when that one refused.
pub(crate) async fn connect(addresses: &[SocketAddr], span: Duration) -> io::Result<TcpStream> {
    let stream = timeout(span, first_that_answers(addresses)).await.map_err(|_| {
        let all = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {all} within {span:?}"))
    })??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn first_that_answers(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut left = addresses.iter().copied();
    let mut trying = FuturesUnordered::new();
    let mut failed = io::Error::new(io::ErrorKind::AddrNotAvailable, "there is no address to connect to");
    loop {
        match left.next() {
            Some(address) => trying.push(async move { (address, TcpStream::connect(address).await) }),
            None if trying.is_empty() => return Err(failed),
            None => {}
        }
        let more = left.len() > 0;
        tokio::select! {
            Some((address, outcome)) = trying.next() => match outcome {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = io::Error::new(error.kind(), format!("{address}: {error}")),
            },
            () = sleep(NEXT_ADDRESS), if more => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, io::AsyncWriteExt as _, net::TcpListener};

    use super::*;
    use crate::dial::testing::BlackHole;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn bytes_go_both_ways() {
        let listener = TcpListener::bind((V4, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let pod = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        });
        let mut stream = InCluster::new(vec![V4]).open(port).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).await.unwrap();
        assert_eq!(echo, b"hello");
        pod.await.unwrap();
    }

    #[tokio::test]
    async fn an_address_that_refuses_or_is_silent_does_not_hide_one_that_answers() {
        let listener = TcpListener::bind((V4, 0)).await.unwrap();
        let answers = listener.local_addr().unwrap();
        let closed = TcpListener::bind((V4, 0)).await.unwrap();
        let refuses = closed.local_addr().unwrap();
        drop(closed);
        let silent = BlackHole::new().await;
        let stream = connect(&[refuses, silent.address(), answers], LONG).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), answers);
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn what_failed_is_told() {
        let closed = TcpListener::bind((V4, 0)).await.unwrap();
        let refuses = closed.local_addr().unwrap();
        drop(closed);
        let error = connect(&[refuses], LONG).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains(&refuses.to_string()), "{error}");
        let error = connect(&[], LONG).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        let silent = BlackHole::new().await;
        let error = connect(&[silent.address()], Duration::from_millis(100))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
