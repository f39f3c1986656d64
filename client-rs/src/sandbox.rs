//! A sandbox by its name: its life, its commands, its files.
//!
//! A handle holds no state of the sandbox. Calls that may be repeated after a lost answer are, for as long as the
//! client's patience lasts.

use std::{collections::HashMap, time::Duration};

use crate::{
    client::Client,
    command::{Command, wire},
    error::{Error, Result},
    exec::{Attach, Exec},
    ids::new_id,
    retry::repeat,
    run::Run,
    v1,
};

const KILL: i32 = 9;

/// A sandbox. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandbox {
    client: Client,
    name: String,
    incarnation: String,
    auto_resume: bool,
}

// === impl Sandbox ===

impl Sandbox {
    pub(crate) fn new(client: Client, name: String) -> Self {
        Self {
            client,
            name,
            incarnation: String::new(),
            auto_resume: false,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The connection.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Calls that start or change something are refused with [`Error::Restarted`] in any other incarnation.
    #[must_use]
    pub fn expecting(mut self, incarnation: impl Into<String>) -> Self {
        self.incarnation = incarnation.into();
        self
    }

    /// Calls resume it first, if it is suspended.
    #[must_use]
    pub fn auto_resume(mut self, resume: bool) -> Self {
        self.auto_resume = resume;
        self
    }

    pub(crate) fn expected_incarnation(&self) -> &str {
        &self.incarnation
    }

    pub(crate) fn auto_resumes(&self) -> bool {
        self.auto_resume
    }

    /// Starts a command and follows it. An error of the start is the first that the exec gives.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn exec(&self, command: Command) -> Exec {
        Exec::start(self, command)
    }

    /// Follows a command that was started before.
    pub fn attach_exec(&self, id: impl Into<String>) -> Attach {
        Attach::new(self, id.into())
    }

    /// Runs a command to its end and gives a part of its output.
    pub fn run(&self, command: Command) -> Run {
        Run::new(self, command)
    }

    /// Starts a command without following it.
    ///
    /// # Errors
    /// The server refused, or is out of reach.
    pub async fn start(&self, command: Command) -> Result<v1::ExecInfo> {
        let request = v1::StartExecRequest {
            sandbox: self.name.clone(),
            exec_id: command.id,
            expected_incarnation: self.incarnation.clone(),
            auto_resume: self.auto_resume,
            spec: Some(command.spec),
        };
        let answer = repeat(&self.client, |mut raw| {
            let request = request.clone();
            async move { raw.start_exec(request).await }
        })
        .await?;
        answer.exec.ok_or_else(|| lacks("exec"))
    }

    /// A command as it is now.
    ///
    /// # Errors
    /// There is no such exec, or the server is out of reach.
    pub async fn exec_info(&self, id: &str) -> Result<v1::ExecInfo> {
        let answer = repeat(&self.client, |mut raw| {
            let request = v1::GetExecRequest {
                sandbox: self.name.clone(),
                exec_id: id.into(),
                auto_resume: self.auto_resume,
            };
            async move { raw.get_exec(request).await }
        })
        .await?;
        answer.exec.ok_or_else(|| lacks("exec"))
    }

    /// All commands whose records are kept, oldest first; or only those of which a process is alive.
    ///
    /// # Errors
    /// The server refused, or is out of reach.
    pub async fn execs(&self, only_alive: bool) -> Result<Vec<v1::ExecInfo>> {
        let mut all = Vec::new();
        let mut request = v1::ListExecsRequest {
            sandbox: self.name.clone(),
            only_alive,
            auto_resume: self.auto_resume,
            ..Default::default()
        };
        loop {
            let page = repeat(&self.client, |mut raw| {
                let request = request.clone();
                async move { raw.list_execs(request).await }
            })
            .await?;
            all.extend(page.execs);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Sends a signal to every process of a command, and says how many got it. Only KILL is sent again when the answer
    /// was lost: another one could be taken for a second signal.
    ///
    /// # Errors
    /// EXEC_NOT_RUNNING if no process is left; [`Error::Lost`] if it is not known whether it was sent.
    pub async fn signal_exec(&self, id: &str, signal: i32) -> Result<u32> {
        let request = v1::SignalExecRequest {
            sandbox: self.name.clone(),
            exec_id: id.into(),
            expected_incarnation: self.incarnation.clone(),
            signal: Some(v1::ExecSignal { signal }),
        };
        let answer = match signal {
            KILL => {
                repeat(&self.client, |mut raw| {
                    let request = request.clone();
                    async move { raw.signal_exec(request).await }
                })
                .await?
            }
            _ => self.client.raw().signal_exec(request).await?.into_inner(),
        };
        Ok(answer.processes)
    }

    /// It as it is now, with what it uses.
    ///
    /// # Errors
    /// There is none, or the server is out of reach.
    pub async fn get(&self) -> Result<v1::Sandbox> {
        let answer = repeat(&self.client, |mut raw| {
            let sandbox = self.name.clone();
            async move { raw.get(v1::GetRequest { sandbox }).await }
        })
        .await?;
        answer.sandbox.ok_or_else(|| lacks("sandbox"))
    }

    /// Resumes it if it is suspended, and waits until it is ready. Never makes one.
    ///
    /// # Errors
    /// There is none, or the server is out of reach.
    pub async fn attach(&self) -> Result<v1::Sandbox> {
        let answer = repeat(&self.client, |mut raw| {
            let request = v1::AttachRequest {
                sandbox: self.name.clone(),
                ..Default::default()
            };
            async move { raw.attach(request).await }
        })
        .await?;
        answer.sandbox.ok_or_else(|| lacks("sandbox"))
    }

    /// Ends every process and keeps the disk. They have `grace` between TERM and KILL, 5 s unless given.
    ///
    /// # Errors
    /// There is none, or the server is out of reach.
    pub async fn suspend(&self, grace: Option<Duration>) -> Result<v1::Sandbox> {
        let answer = repeat(&self.client, |mut raw| {
            let request = v1::SuspendRequest {
                sandbox: self.name.clone(),
                expected_incarnation: self.incarnation.clone(),
                grace: grace.map(wire),
            };
            async move { raw.suspend(request).await }
        })
        .await?;
        answer.sandbox.ok_or_else(|| lacks("sandbox"))
    }

    /// Brings it back, with a new incarnation.
    ///
    /// # Errors
    /// There is none, or the server is out of reach.
    pub async fn resume(&self) -> Result<v1::Sandbox> {
        let answer = repeat(&self.client, |mut raw| {
            let request = v1::ResumeRequest {
                sandbox: self.name.clone(),
                ..Default::default()
            };
            async move { raw.resume(request).await }
        })
        .await?;
        answer.sandbox.ok_or_else(|| lacks("sandbox"))
    }

    /// Ends every process and removes it with its disk. That there is none is no error.
    ///
    /// # Errors
    /// The server is out of reach.
    pub async fn delete(&self) -> Result<v1::DeleteResponse> {
        repeat(&self.client, |mut raw| {
            let request = v1::DeleteRequest {
                sandbox: self.name.clone(),
                ..Default::default()
            };
            async move { raw.delete(request).await }
        })
        .await
    }

    /// Moves its end to this long from now.
    ///
    /// # Errors
    /// There is none, the server allows less, or is out of reach.
    pub async fn extend(&self, ttl: Duration) -> Result<v1::Sandbox> {
        let settings = v1::SandboxSettings {
            end: Some(v1::sandbox_settings::End::Ttl(wire(ttl))),
            ..Default::default()
        };
        self.update(settings, &["ttl"], "").await
    }

    /// Gives it these labels and no others.
    ///
    /// # Errors
    /// There is none, a label is malformed, or the server is out of reach.
    pub async fn set_labels(&self, labels: HashMap<String, String>) -> Result<v1::Sandbox> {
        let settings = v1::SandboxSettings {
            labels,
            ..Default::default()
        };
        self.update(settings, &["labels"], "").await
    }

    /// Changes the fields that `mask` names; with an etag, only if nobody else did meanwhile.
    ///
    /// # Errors
    /// There is none, a value is refused, the etag is not the current one, or the server is out of reach.
    pub async fn update(&self, settings: v1::SandboxSettings, mask: &[&str], etag: &str) -> Result<v1::Sandbox> {
        let request = v1::UpdateRequest {
            sandbox: self.name.clone(),
            settings: Some(settings),
            update_mask: Some(prost_types::FieldMask {
                paths: mask.iter().map(|path| (*path).into()).collect(),
            }),
            etag: etag.into(),
        };
        // With an etag a repeat could be refused for what the first did.
        let answer = match etag.is_empty() {
            true => {
                repeat(&self.client, |mut raw| {
                    let request = request.clone();
                    async move { raw.update(request).await }
                })
                .await?
            }
            false => self.client.raw().update(request).await?.into_inner(),
        };
        answer.sandbox.ok_or_else(|| lacks("sandbox"))
    }

    /// Does a batch of file operations, in order, and gives the outcome of each. Done once, also when an answer is lost.
    ///
    /// # Errors
    /// The server refused the whole batch, or is out of reach.
    pub async fn file_ops(&self, ops: Vec<v1::FileOp>) -> Result<Vec<v1::FileOpResult>> {
        let request = v1::FileOpsRequest {
            sandbox: self.name.clone(),
            expected_incarnation: self.incarnation.clone(),
            auto_resume: self.auto_resume,
            batch_id: new_id(),
            ops,
            ..Default::default()
        };
        let answer = repeat(&self.client, |mut raw| {
            let request = request.clone();
            async move { raw.file_ops(request).await }
        })
        .await?;
        Ok(answer.results)
    }
}

fn lacks(what: &str) -> Error {
    Error::Protocol(format!("it has no {what}"))
}
