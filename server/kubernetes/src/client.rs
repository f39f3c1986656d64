//! The client of the API server.
//!
//! kube makes one too, but leaves Nagle's algorithm on. A tunnel sends small frames both ways, and each of them would wait
//! for the acknowledgement of the one before it: about 45 ms a call. So the stack is put together here, of kube's own parts
//! but for its tracing.

use std::time::Duration;

use http::{HeaderValue, header::USER_AGENT};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connect, HttpConnector},
    },
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _, retry::RetryPolicy},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer, timeout::TimeoutLayer};

use crate::{provider::OpenError, settings::Settings};

/// How long the API server may take to begin an answer, all that is tried again at its request included. Streams that have
/// begun may last.
const ANSWER: Duration = Duration::from_secs(20);

/// A client for the cluster that these settings name.
///
/// # Errors
/// When they name none, or what they say of it can't be used.
pub(crate) async fn client(settings: &Settings) -> Result<Client, OpenError> {
    // Two providers of cryptography are in the tree for others; rustls wants to be told.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = config(settings).await?;
    // For those who read audit logs.
    let agent = HeaderValue::from_static(concat!("sandgate-server/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    if config.proxy_url.is_some() {
        // kube says which of its features that takes.
        let builder = ClientBuilder::try_from(config)?;
        return Ok(builder.with_layer(&TimeoutLayer::new(ANSWER)).build());
    }
    let retry = config.default_retry.then(RetryPolicy::server_retry);
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(ANSWER))
        .layer(config.base_uri_layer())
        .option_layer(retry.map(RetryLayer::new))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector(&config)?));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

async fn config(settings: &Settings) -> Result<Config, OpenError> {
    let failed = |error: KubeconfigError| OpenError::Kubeconfig(error.to_string());
    let options = KubeConfigOptions {
        context: settings.context.clone(),
        ..KubeConfigOptions::default()
    };
    match &settings.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(failed)
        }
        None if settings.context.is_some() => Config::from_kubeconfig(&options).await.map_err(failed),
        None => Config::infer()
            .await
            .map_err(|error| OpenError::Kubeconfig(error.to_string())),
    }
}

fn connector(config: &Config) -> Result<impl Connect + Clone + Send + Sync + 'static, OpenError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(http)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    Ok(connector)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sandgate_proto::v1::ErrorReason;
    use serde_json::json;
    use tempfile::tempdir;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{shared::failed, testing::settings};

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_hangs_is_not_waited_for_for_ever() {
        // Connections come about, and nobody takes them.
        let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let dir = tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let url = format!("http://{}", silent.local_addr().unwrap());
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        });
        fs::write(&path, kubeconfig.to_string()).unwrap();
        let settings = Settings {
            kubeconfig: Some(path),
            ..settings()
        };
        let error = client(&settings).await.unwrap().list_api_groups().await.unwrap_err();
        let told = failed("it can't be asked", &error);
        assert_eq!(told.reason, ErrorReason::SandboxUnreachable);
        assert!(told.message.contains("timed out"), "{told}");
    }
}
