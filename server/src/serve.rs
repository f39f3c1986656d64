//! Binding and serving: everything that listens is put together here.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sandgate_proto::{FILE_DESCRIPTOR_SET, v1::sandbox_service_server::SERVICE_NAME};
use tonic::{service::Routes, transport::Server};
use tonic_health::{ServingStatus, server::HealthReporter};
use tonic_web::GrpcWebLayer;
use tower::Layer as _;

use crate::{
    config::{AllowedHost, Config, ProviderConfig, WebOrigin},
    layers::{
        GateLayer, answer::AnswerLayer, caller::CallerCheck, cors, express::Express, host::HostCheck,
        origin::OriginCheck, request_id::RequestIdLayer,
    },
    listen::{Incoming, ListenError, Listeners},
    service::GrpcService,
    state_dir::{StateDir, StateError},
    stopping::Stopping,
};

// One stopped reader must not hold up the others on its connection: the connection's window is as wide as HTTP/2 has
// it, the streams' are fixed. hyper's adaptive windows are equal, and one stopped stream then stops all.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
// A message of 64 KiB, with what is around it, in one frame instead of five.
const FRAME: u32 = 128 << 10;
// A peer that is gone without a word is noticed within 50 s.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long calls may go on after the server was told to stop.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A server that has its state directory and its addresses and does not answer yet.
#[derive(Debug)]
pub struct Bound {
    // Before the state directory, so that the socket is gone before the next server may come.
    listeners: Listeners,
    state_dir: Arc<StateDir>,
    streams: u32,
    hosts: Vec<AllowedHost>,
    origins: Vec<WebOrigin>,
}

/// Why the server can't serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The state directory can't be had.
    #[error(transparent)]
    State(#[from] StateError),
    /// An address can't be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A template opens this machine's network, and so the server's own port, to what runs in sandboxes.
    #[error("template {0}: network = \"host\" needs a token on every TCP listener, or sandboxes could call the server")]
    HostNetwork(String),
    /// The compiled descriptors are not what reflection takes.
    #[error("can't serve reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// Serving failed.
    #[error("can't serve: {0}")]
    Transport(#[from] tonic::transport::Error),
}

// === impl Bound ===

impl Bound {
    /// Takes the state directory and the addresses. Connections wait from now on.
    ///
    /// # Errors
    /// When another server has the directory, or an address is not to be had.
    pub async fn bind(config: &Config) -> Result<Self, ServeError> {
        let state_dir = Arc::new(StateDir::open(&config.state_dir, config.token_file.as_deref())?);
        let listeners = Listeners::bind(&config.listen, state_dir.path()).await?;
        if let ProviderConfig::Local(local) = &config.provider {
            check_host_network(&local.on_host_network(), CallerCheck::WANTS_TOKEN_ON_TCP)?;
        }
        Ok(Self {
            listeners,
            state_dir,
            streams: config.limits.streams_per_connection,
            hosts: config.allowed_hosts.clone(),
            origins: config.allowed_origins.clone(),
        })
    }

    /// The TCP addresses, with the ports that were taken.
    #[must_use]
    pub fn tcp_addrs(&self) -> Vec<SocketAddr> {
        self.listeners.tcp_addrs()
    }

    /// The Unix socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.listeners.socket()
    }

    /// The state directory. It is this server's alone until the last clone of this is dropped.
    #[must_use]
    pub fn state_dir(&self) -> Arc<StateDir> {
        Arc::clone(&self.state_dir)
    }

    /// The file with the token.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.state_dir.token().path().to_owned()
    }

    /// Serves until `stopping` begins, then lets calls finish for a short time.
    ///
    /// # Errors
    /// When the server can't be put together.
    pub async fn serve(self, service: impl GrpcService, stopping: Stopping) -> Result<(), ServeError> {
        let Self {
            listeners,
            state_dir,
            streams,
            hosts,
            origins,
        } = self;
        let (health, health_service) = tonic_health::server::health_reporter();
        report(&health, ServingStatus::Serving).await;
        let routes = Routes::new(health_service)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .add_service(service.clone())
            .prepare();
        let looked_after = (
            AnswerLayer(stopping.clone()),
            GateLayer(CallerCheck(state_dir.token().clone())),
        );
        let for_pages = (
            GateLayer(OriginCheck::new(&origins)),
            cors(&origins),
            GrpcWebLayer::new(),
        );
        let services = Express::new(
            SERVICE_NAME,
            looked_after.layer(service),
            for_pages.layer(looked_after.layer(routes)),
        );
        let told = stopping.clone();
        let shutdown = async move {
            told.begun().await;
            report(&health, ServingStatus::NotServing).await;
        };
        let serving = builder(streams)
            .layer(RequestIdLayer::new())
            .layer(GateLayer(HostCheck::new(&hosts)))
            .serve_with_incoming_shutdown(services, Incoming::from(listeners), shutdown);
        tokio::select! {
            served = serving => served?,
            () = stopping.impatient(STOP_GRACE) => tracing::warn!("calls that did not finish in time are cut off"),
        }
        Ok(())
    }
}

fn builder(streams: u32) -> Server {
    let resets = usize::try_from(streams).unwrap_or(usize::MAX);
    Server::builder()
        // gRPC-Web comes over HTTP/1.1 too.
        .accept_http1(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_adaptive_window(Some(false))
        .max_concurrent_streams(streams)
        // By default the twenty-first call that is cancelled at once ends the connection of all.
        .http2_max_pending_accept_reset_streams(Some(resets))
        .http2_max_local_error_reset_streams(Some(resets))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

async fn report(health: &HealthReporter, status: ServingStatus) {
    for service in ["", SERVICE_NAME] {
        health.set_service_status(service, status).await;
    }
}

/// Sandboxes on this machine's network can connect to the server's own port, so that must be closed to them.
fn check_host_network(templates: &[&str], token_wanted: bool) -> Result<(), ServeError> {
    for template in templates {
        if !token_wanted {
            return Err(ServeError::HostNetwork((*template).to_owned()));
        }
        tracing::warn!(
            template,
            "network = \"host\": sandboxes of this template reach everything that this machine reaches: its own ports on \
             127.0.0.1, the local network, the cloud's metadata service"
        );
    }
    Ok(())
}

/// Reflection of what is served. The descriptors also hold the runtime's services, which are not served here.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(SERVICE_NAME)
        .with_service_name(tonic_health::pb::health_server::SERVICE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_network_is_given_only_behind_a_token() {
        assert!(check_host_network(&[], false).is_ok());
        assert!(check_host_network(&["open"], true).is_ok());
        let error = check_host_network(&["open"], false).unwrap_err();
        assert!(
            error.to_string().starts_with("template open: network = \"host\""),
            "{error}"
        );
    }
}
