//! Binding and serving: everything that listens is put together here.

use std::{io, net::SocketAddr, time::Duration};

use sandgate_proto::{
    FILE_DESCRIPTOR_SET,
    v1::sandbox_service_server::{SERVICE_NAME, SandboxServiceServer},
};
use tokio::{net::TcpListener, sync::watch, time};
use tonic::transport::{Server, server::TcpIncoming};

use crate::{cli::ListenAddr, service::Sandboxes};

// One stopped reader must not hold up the others on its connection: the connection's window is as wide as HTTP/2 has
// it, the streams' are fixed. hyper's adaptive windows are equal, and one stopped stream then stops all.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;

/// How long calls may go on after the server was told to stop. Streams may be open for ever.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A server that has its address and does not answer yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    addr: SocketAddr,
}

/// Why the server can't serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be had.
    #[error("can't listen on {0}: {1}")]
    Bind(SocketAddr, #[source] io::Error),
    /// Signals can't be waited for.
    #[error("can't wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// The compiled descriptors are not what reflection takes.
    #[error("can't serve reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// Serving failed.
    #[error("can't serve: {0}")]
    Transport(#[from] tonic::transport::Error),
}

// === impl Bound ===

impl Bound {
    /// Takes the address. Connections wait from now on.
    ///
    /// # Errors
    /// When the address is in use or not to be had.
    pub async fn bind(listen: ListenAddr) -> Result<Self, ServeError> {
        let wanted = listen.get();
        let listener = TcpListener::bind(wanted)
            .await
            .map_err(|error| ServeError::Bind(wanted, error))?;
        let addr = listener.local_addr().map_err(|error| ServeError::Bind(wanted, error))?;
        Ok(Self { listener, addr })
    }

    /// The address, with the port that was taken.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `stop` is ready, then lets calls finish for a short time.
    ///
    /// # Errors
    /// When the server can't be put together.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (health_reporter, health) = tonic_health::server::health_reporter();
        health_reporter.set_serving::<SandboxServiceServer<Sandboxes>>().await;
        let (told, mut stopping) = watch::channel(());
        let serving = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .add_service(health)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .add_service(SandboxServiceServer::new(Sandboxes))
            .serve_with_incoming_shutdown(TcpIncoming::from(self.listener).with_nodelay(Some(true)), async move {
                stop.await;
                drop(told);
            });
        let out_of_patience = async {
            while stopping.changed().await.is_ok() {}
            time::sleep(STOP_GRACE).await;
        };
        tokio::select! {
            served = serving => Ok(served?),
            () = out_of_patience => Ok(()),
        }
    }
}

/// Reflection of what is served. The descriptors also hold the runtime's services, which are not served here.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(SERVICE_NAME)
        .with_service_name(tonic_health::pb::health_server::SERVICE_NAME)
}
