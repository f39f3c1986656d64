//! What runs in a pod, and how to make it speak the runtime's protocol.
//!
//! Our runtime speaks it by itself. For the others a driver answers it in this process, over a pipe in memory, and
//! translates; so nothing above knows of them.

mod capabilities;
mod engine;
mod files;
mod inside;
mod pipe;
mod pod_exec;
mod python_runtime;
mod sandboxd;
mod service;
mod stream;
#[cfg(test)]
mod testing;
mod wrap;

use std::{sync::Arc, time::SystemTime};

use kube::Client;
use sandgate_output::Store;
use sandgate_proto::runtime::v1::EnvVar;
use sandgate_provider::Carrier;
use serde::{Deserialize, Serialize};

pub(crate) use self::capabilities::capabilities;
use self::{
    inside::Inside,
    pipe::{Pipe, Straight},
    pod_exec::PodExec,
    python_runtime::PythonRuntime,
    sandboxd::Sandboxd,
    service::Service,
};
use crate::dial::{Dial, Target};

/// What all execs of all pods together may keep of their output in this process.
const RETAIN: u64 = 256 << 20;

/// What runs in a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Driver {
    /// Our runtime, on port 8888.
    #[default]
    #[serde(rename = "sandgate-runtime")]
    Runtime,
    /// agent-sandbox's `sandboxd`: gRPC on 9090, files by REST on 8080.
    #[serde(rename = "sandboxd")]
    Sandboxd,
    /// agent-sandbox's python-runtime: HTTP on 8888.
    #[serde(rename = "python-runtime")]
    PythonRuntime,
    /// Nothing of the kind, only a shell: by the pods/exec subresource.
    #[serde(rename = "exec")]
    Exec,
}

// === impl Driver ===

impl Driver {
    const ALL: [Self; 4] = [Self::Runtime, Self::Sandboxd, Self::PythonRuntime, Self::Exec];

    /// Its name, for operators and callers.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "sandgate-runtime",
            Self::Sandboxd => "sandboxd",
            Self::PythonRuntime => "python-runtime",
            Self::Exec => "exec",
        }
    }

    /// The one of that name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|driver| driver.as_str() == name)
    }

    /// All names, for a message.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }

    /// The port that shows whether it can be reached.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Runtime | Self::PythonRuntime => 8888,
            Self::Sandboxd => 9090,
            Self::Exec => 0,
        }
    }

    /// Whether it can be given an environment once it runs.
    pub(crate) fn takes_env(self) -> bool {
        capabilities::has(self, "env.warm")
    }

    /// Whether the sandbox router can carry what it speaks.
    pub(crate) fn is_routable(self) -> bool {
        matches!(self, Self::Runtime | Self::PythonRuntime)
    }
}

/// Makes drivers, and holds what they share.
#[derive(Clone)]
pub(crate) struct Drivers {
    client: Client,
    store: Store,
}

/// One start of what runs in a pod, as the cluster tells it.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) target: Target,
    /// The container that it runs in; the pod's default one if not given.
    pub(crate) container: Option<String>,
    /// Another one for each start. Our runtime tells its own.
    pub(crate) incarnation: String,
    pub(crate) started_at: SystemTime,
}

// === impl Drivers ===

impl Drivers {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            store: Store::in_memory(RETAIN),
        }
    }

    /// The way to speak the runtime's protocol with what runs in a pod. What a driver knows of its execs lasts as long as
    /// this does: ask once for each start of a pod. `env` is what commands get beside their own; our runtime is told, and
    /// keeps it.
    pub(crate) fn carrier(
        &self,
        driver: Driver,
        dial: Arc<dyn Dial>,
        home: Home,
        env: Vec<EnvVar>,
    ) -> Arc<dyn Carrier> {
        let inside: Arc<dyn Inside> = match driver {
            Driver::Runtime => return Arc::new(Straight(dial)),
            Driver::Sandboxd => Arc::new(Sandboxd::new(dial)),
            Driver::PythonRuntime => Arc::new(PythonRuntime::new(dial)),
            Driver::Exec => Arc::new(PodExec::new(self.client.clone(), &home.target, home.container)),
        };
        let service = Service::new(inside, home.incarnation, home.started_at, self.store.clone());
        service.set_env(env);
        Arc::new(Pipe::new(service))
    }
}
