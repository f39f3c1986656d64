//! The service by itself on a free port, without what the server puts around it.

use std::sync::Arc;

use sandgate_errors::Refusal;
use sandgate_proto::v1::{ErrorReason, sandbox_service_client::SandboxServiceClient};
use sandgate_provider::Provider;
use sandgate_server::{Sandboxes, Service, Stopping};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};

/// A service that ends with the test.
pub(crate) struct Serving {
    pub(crate) client: SandboxServiceClient<Channel>,
    pub(crate) stopping: Stopping,
    served: JoinHandle<()>,
}

impl Serving {
    pub(crate) async fn start(provider: Arc<dyn Provider>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let stopping = Stopping::default();
        let service = Service::new(Sandboxes::new(provider, stopping.clone()));
        let serving = Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpIncoming::from(listener));
        Self {
            client: SandboxServiceClient::new(Endpoint::from_shared(address).unwrap().connect().await.unwrap()),
            stopping,
            served: tokio::spawn(async move { serving.await.unwrap() }),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.served.abort();
    }
}

/// The reason of a failed call.
pub(crate) fn reason(status: &Status) -> ErrorReason {
    refusal(status).reason
}

/// The refusal of a failed call.
pub(crate) fn refusal(status: &Status) -> Refusal {
    Refusal::from_status(status).unwrap_or_else(|| panic!("no reason: {status:?}"))
}
