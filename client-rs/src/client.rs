//! A connection to a server.

use std::time::Duration;

use crate::{
    connect::Channel,
    create::Create,
    endpoint::{Address, Endpoint},
    error::Result,
    retry::repeat,
    sandbox::Sandbox,
    v1::{self, sandbox_service_client::SandboxServiceClient},
};

// The contract keeps every message under 3 MiB.
const MAX_MESSAGE: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The generated client, with the token on every call. What a request says of its timeout is the server's to keep.
pub type RawClient = SandboxServiceClient<Channel>;

/// A connection to a server. Cheap to clone: all clones share it. When it breaks, the next call makes it again.
#[derive(Clone, Debug)]
pub struct Client {
    raw: RawClient,
    address: Address,
    patience: Duration,
}

// === impl Client ===

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// No server is there, or it can't be reached. A wrong token is only found out by the first call.
    pub async fn connect(endpoint: Endpoint) -> Result<Self> {
        let address = endpoint.address.clone();
        let raw = SandboxServiceClient::new(Channel::connect(endpoint).await?)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Ok(Self {
            raw,
            address,
            patience: PATIENCE,
        })
    }

    /// Connects to where the environment says: see [`Endpoint::from_env`].
    ///
    /// # Errors
    /// As [`Endpoint::from_env`] and [`Client::connect`].
    pub async fn from_env() -> Result<Self> {
        Self::connect(Endpoint::from_env()?).await
    }

    /// Where it is connected to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Goes on for this long without contact before giving up, instead of 60 s. Holds for calls that may be repeated
    /// after a lost answer, and for following execs.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// A sandbox by its name. Makes no call, so there may be none.
    #[must_use]
    pub fn sandbox(&self, name: impl Into<String>) -> Sandbox {
        Sandbox::new(self.clone(), name.into())
    }

    /// Makes a sandbox, or finds the one of that name.
    pub fn create(&self) -> Create {
        Create::new(self.clone())
    }

    /// All sandboxes whose labels match, sorted by name. An empty selector takes all.
    ///
    /// # Errors
    /// The selector does not parse, or the server is out of reach.
    pub async fn list(&self, label_selector: &str) -> Result<Vec<v1::Sandbox>> {
        let mut all = Vec::new();
        let mut request = v1::ListRequest {
            label_selector: label_selector.into(),
            ..Default::default()
        };
        loop {
            let page = repeat(self, |mut raw| {
                let request = request.clone();
                async move { raw.list(request).await }
            })
            .await?;
            all.extend(page.sandboxes);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// The generated client, for every call of the contract. Its `Status` becomes an [`Error`](crate::Error) by `?`.
    #[must_use]
    pub fn raw(&self) -> RawClient {
        self.raw.clone()
    }
}
