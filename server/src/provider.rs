//! The provider of sandboxes that the configuration wants, whichever it is.

use std::{path::Path, sync::Arc};

use sandgate_kubernetes::Kubernetes;
use sandgate_local::Local;
use sandgate_provider::{Provider, limits::Spans};

use crate::{
    config::{Config, ConfigErrors, ProviderConfig, Span},
    kubernetes, local,
};

/// A provider that is open.
#[derive(Clone, Debug)]
pub enum Opened {
    /// On this machine.
    Local(Arc<Local>),
    /// On Kubernetes.
    Kubernetes(Arc<Kubernetes>),
}

/// Why there is no provider.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// What the configuration names is not there, or not as it must be.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The machine or the state directory.
    #[error("can't have sandboxes here: {0}")]
    Local(#[source] sandgate_local::OpenError),
    /// The cluster.
    #[error("can't have sandboxes in the cluster: {0}")]
    Kubernetes(#[source] sandgate_kubernetes::OpenError),
}

// === impl Opened ===

impl Opened {
    /// Opens the provider. The caller has the state directory and keeps it.
    ///
    /// # Errors
    /// When something is missing without which no sandbox can be made.
    pub async fn open(config: &Config, state_dir: &Path) -> Result<Self, ProviderError> {
        match &config.provider {
            ProviderConfig::Local(local) => local::open(config, local, state_dir).await.map(Self::Local),
            ProviderConfig::Kubernetes(cluster) => kubernetes::open(config, cluster).await.map(Self::Kubernetes),
        }
    }

    /// What the service works with.
    #[must_use]
    pub fn provider(&self) -> Arc<dyn Provider> {
        match self {
            Self::Local(local) => Arc::clone(local) as _,
            Self::Kubernetes(kubernetes) => Arc::clone(kubernetes) as _,
        }
    }

    /// Lets go of everything and leaves the sandboxes alone.
    pub async fn close(&self) {
        match self {
            Self::Local(local) => local.close().await,
            Self::Kubernetes(kubernetes) => kubernetes.close().await,
        }
    }
}

/// The longest spans that callers may ask for.
pub(crate) fn spans(config: &Config) -> Spans {
    Spans {
        max_ttl: config.limits.max_ttl.map(Span::get),
        max_idle: config.limits.max_idle.map(Span::get),
    }
}
