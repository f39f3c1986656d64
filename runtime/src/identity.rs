//! Who this runtime is: what it tells a server that connects.

use std::{fmt::Write as _, io, time::SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;

/// The newest protocol generation that this runtime speaks. It grows when the meaning of something old changes; what is
/// only added is a capability.
pub const GENERATION: u32 = 1;

/// What this runtime can do. docs/runtime.md says what each means.
const CAPABILITIES: &[&str] = &[
    "env.warm",
    "exec.budget",
    "exec.hold",
    "exec.pty",
    "exec.resume",
    "exec.run",
    "exec.signal",
    "exec.stdin",
    "exec.stream",
    "exec.user",
    "files.batch",
    "files.chunks",
    "files.glob",
    "files.grep",
    "files.root",
    "files.tar",
    "files.transfer",
    "files.user",
    "files.watch",
    "limits.deadline",
    "limits.idle",
];

/// Also named while the HTTP API of the python-runtime is served: whoever reaches the port can do everything.
const PYTHON_API: &str = "api.python";

/// This start of the runtime.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) incarnation: String,
    pub(crate) started_at: SystemTime,
    python_api: bool,
}

// === impl Identity ===

impl Identity {
    /// An identity of the name that whoever started us gave, or of one that nobody has had.
    pub(crate) fn new(given: Option<String>, python_api: bool) -> io::Result<Self> {
        let incarnation = given.map_or_else(random_name, Ok)?;
        Ok(Self {
            incarnation,
            started_at: SystemTime::now(),
            python_api,
        })
    }

    /// What this runtime can do, by name and in the order of the names.
    pub(crate) fn capabilities(&self) -> Vec<String> {
        let python = self.python_api.then_some(PYTHON_API);
        python
            .iter()
            .chain(CAPABILITIES)
            .map(|name| (*name).to_owned())
            .collect()
    }

    /// Refuses a request that was meant for another start of the runtime.
    pub(crate) fn expect(&self, expected: &str) -> Result<(), Refusal> {
        if expected.is_empty() || expected == self.incarnation {
            return Ok(());
        }
        let message = "the sandbox was restarted; what ran before is gone and was not run again";
        Err(Refusal::new(ErrorReason::SandboxRestarted, message).with("incarnation", expected))
    }
}

fn random_name() -> io::Result<String> {
    let mut random = [0u8; 12];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let mut name = String::with_capacity(2 * random.len());
    for byte in random {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}
