//! The cluster as the conformance suite sees it.

use std::time::Duration;

use sandgate::Client;
use sandgate_tests::{conformance::World, server::Server};

/// Where sandboxes are made by a server on Kubernetes.
pub struct Kubernetes(pub Server);

impl World for Kubernetes {
    async fn client(&self) -> Client {
        self.0.client().await
    }

    async fn replace_server(&mut self) {
        self.0.kill();
        self.0.restart().await;
    }

    fn other_template(&self) -> &str {
        "other"
    }

    /// A pod takes its time; `races.rs` does this fifty times.
    fn rounds(&self) -> usize {
        4
    }

    fn beat(&self) -> Duration {
        Duration::from_secs(6)
    }
}
