//! Making a sandbox, said in steps.

use std::time::Duration;

use crate::{
    client::Client,
    command::wire,
    error::{Error, Result},
    retry::repeat,
    sandbox::Sandbox,
    v1::{self, create_request::End},
};

/// A sandbox to be made.
#[derive(Clone, Debug)]
#[must_use]
pub struct Create {
    client: Client,
    request: v1::CreateRequest,
}

/// A sandbox that was made or found.
#[derive(Clone, Debug)]
pub struct Created {
    /// Its handle.
    pub sandbox: Sandbox,
    /// As it is now.
    pub info: v1::Sandbox,
    /// This call made it.
    pub created: bool,
    /// This call resumed it.
    pub resumed: bool,
}

// === impl Create ===

impl Create {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            request: v1::CreateRequest::default(),
        }
    }

    /// Its name. If there is one of that name, it is found. Without one the server makes one up, and a lost answer is
    /// an error, because repeating the call would make another sandbox.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.request.name = name.into();
        self
    }

    /// What to make it from, instead of the server's default.
    pub fn template(mut self, template: impl Into<String>) -> Self {
        self.request.template = template.into();
        self
    }

    /// Kubernetes: the warm pool to take it from.
    pub fn warm_pool(mut self, pool: impl Into<String>) -> Self {
        self.request.warm_pool = pool.into();
        self
    }

    /// Kubernetes: how the server is to reach it.
    pub fn connection_mode(mut self, mode: v1::ConnectionMode) -> Self {
        self.request.set_connection_mode(mode);
        self
    }

    /// Kubernetes: adds a volume, which the template mounts by that name.
    pub fn volume(mut self, name: impl Into<String>, bytes: u64) -> Self {
        self.request.volumes.push(v1::Volume {
            name: name.into(),
            bytes,
            storage_class: String::new(),
        });
        self
    }

    /// Adds a label.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.labels.insert(key.into(), value.into());
        self
    }

    /// Adds an environment variable for every command.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.push(v1::EnvVar {
            name: name.into(),
            value: value.into(),
            value_raw: bytes::Bytes::new(),
        });
        self
    }

    /// It is removed after this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request.end = Some(End::Ttl(wire(ttl)));
        self
    }

    /// It is removed when it idled for this long.
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        self.request.idle_limit = Some(wire(limit));
        self
    }

    /// Answer at once, most likely while it is still being made.
    pub fn no_wait(mut self) -> Self {
        self.request.no_wait = true;
        self
    }

    /// How long to wait until it is ready, 50 s unless given. When that is over it is given as it is.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.request.max_wait = Some(wire(wait));
        self
    }

    /// The message as it is sent, to set what has no method here.
    pub fn request_mut(&mut self) -> &mut v1::CreateRequest {
        &mut self.request
    }

    /// Makes or finds it, and waits until it is ready.
    ///
    /// # Errors
    /// The server refused, or is out of reach.
    pub async fn send(self) -> Result<Created> {
        let answer = match self.request.name.is_empty() {
            true => self.client.raw().create(self.request).await?.into_inner(),
            false => {
                repeat(&self.client, |mut raw| {
                    let request = self.request.clone();
                    async move { raw.create(request).await }
                })
                .await?
            }
        };
        let info = answer
            .sandbox
            .ok_or_else(|| Error::Protocol("it has no sandbox".into()))?;
        Ok(Created {
            sandbox: Sandbox::new(self.client, info.name.clone()),
            info,
            created: answer.created,
            resumed: answer.resumed,
        })
    }
}
