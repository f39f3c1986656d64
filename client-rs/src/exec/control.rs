//! Signals and terminal size, by calls of their own: on the exec's stream they would wait behind stdin.

use tokio::sync::watch;

use crate::{
    error::{Error, Result},
    retry::repeat,
    sandbox::Sandbox,
    v1,
};

/// Acts on a command that is followed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Control {
    sandbox: Sandbox,
    id: String,
    started: watch::Receiver<Option<v1::ExecStarted>>,
}

// === impl Control ===

impl Control {
    pub(crate) fn new(sandbox: Sandbox, id: String, started: watch::Receiver<Option<v1::ExecStarted>>) -> Self {
        Self { sandbox, id, started }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Sends a signal to every process of the command, once it is started, and says how many got it. Only KILL is sent
    /// again when the answer was lost: another one could be taken for a second signal.
    ///
    /// # Errors
    /// EXEC_NOT_RUNNING if no process is left; [`Error::Lost`] if it is not known whether it was sent.
    pub async fn signal(&self, signal: i32) -> Result<u32> {
        let incarnation = self.incarnation().await?;
        self.sandbox
            .clone()
            .expecting(incarnation)
            .signal_exec(&self.id, signal)
            .await
    }

    /// Gives its terminal a new size.
    ///
    /// # Errors
    /// PTY_MISSING if it has none.
    pub async fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        let request = v1::ResizeExecRequest {
            sandbox: self.sandbox.name().into(),
            exec_id: self.id.clone(),
            expected_incarnation: self.incarnation().await?,
            size: Some(v1::PtySize {
                columns: columns.into(),
                rows: rows.into(),
            }),
        };
        repeat(self.sandbox.client(), |mut raw| {
            let request = request.clone();
            async move { raw.resize_exec(request).await }
        })
        .await?;
        Ok(())
    }

    /// Waits until it is known to run, and says in which incarnation.
    async fn incarnation(&self) -> Result<String> {
        let mut started = self.started.clone();
        let started = started
            .wait_for(Option::is_some)
            .await
            .map_err(|_| Error::NotFollowed)?;
        started
            .as_ref()
            .map(|started| started.incarnation.clone())
            .ok_or(Error::NotFollowed)
    }
}
