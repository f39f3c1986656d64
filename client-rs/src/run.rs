//! Running a command to its end in one round trip, with as much of its output as a model wants to see.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    command::{Command, wire},
    error::{Error, Result},
    retry::repeat,
    sandbox::Sandbox,
    v1,
};

// One call waits no longer than this, because load balancers cut silent calls.
const ONE_CALL: Duration = Duration::from_secs(50);

/// A command to be run to its end.
#[derive(Clone, Debug)]
#[must_use]
pub struct Run {
    sandbox: Sandbox,
    request: v1::RunRequest,
    wait: Option<Duration>,
}

// === impl Run ===

impl Run {
    pub(crate) fn new(sandbox: &Sandbox, command: Command) -> Self {
        Self {
            request: v1::RunRequest {
                sandbox: sandbox.name().into(),
                exec_id: command.id,
                expected_incarnation: sandbox.expected_incarnation().into(),
                auto_resume: sandbox.auto_resumes(),
                spec: Some(command.spec),
                ..Default::default()
            },
            sandbox: sandbox.clone(),
            wait: None,
        }
    }

    /// How much of each stream to give: this many bytes from its start and from its end.
    pub fn budget(mut self, head_bytes: u64, tail_bytes: u64) -> Self {
        self.request.budget = Some(v1::OutputBudget { head_bytes, tail_bytes });
        self
    }

    /// Answer after this long, in state RUNNING if it has not ended. Otherwise it is waited for its end.
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Kill it when this call is cancelled or its connection lost, unless it is called again within this time.
    pub fn kill_when_gone(mut self, grace: Duration) -> Self {
        self.request.on_caller_gone = v1::OnCallerGone::Kill.into();
        self.request.caller_grace = Some(wire(grace));
        self
    }

    /// Runs it, or finds it if it was started before, and waits.
    ///
    /// # Errors
    /// The server refused, or is out of reach. What the command itself does wrong is in the answer.
    pub async fn send(mut self) -> Result<v1::RunResponse> {
        let end = self.wait.map(|wait| Instant::now() + wait);
        loop {
            let left = end.map_or(ONE_CALL, |end| {
                end.saturating_duration_since(Instant::now()).min(ONE_CALL)
            });
            self.request.max_wait = Some(wire(left));
            let answer = repeat(self.sandbox.client(), |mut raw| {
                let request = self.request.clone();
                async move { raw.run(request).await }
            })
            .await?;
            let info = answer
                .exec
                .as_ref()
                .ok_or_else(|| Error::Protocol("it has no exec".into()))?;
            let running = info.state() == v1::ExecState::Running;
            if !running || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(answer);
            }
            // It ran in this incarnation, and is waited for in no other.
            self.request.expected_incarnation.clone_from(&info.incarnation);
        }
    }
}
