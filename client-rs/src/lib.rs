//! The Sandgate client: sandboxes for agents, from Rust.
//!
//! [`Client`] is a connection, [`Sandbox`] a place to run code, [`Exec`] a command in it whose events come once and in
//! order, also when the connection is lost or the server restarted meanwhile. What has no method here is called through
//! [`Client::raw`] with the messages in [`v1`].
//!
//! ```no_run
//! use sandgate::{Client, Command, Event};
//!
//! # async fn example() -> sandgate::Result<()> {
//! let client = Client::from_env().await?;
//! let sandbox = client.create().name("demo").send().await?.sandbox;
//! let mut exec = sandbox.exec(Command::shell("echo hello"));
//! while let Some(event) = exec.next().await {
//!     match event? {
//!         Event::Output { data, .. } => drop(data),
//!         Event::Exited(exit) => drop(exit),
//!         _ => {}
//!     }
//! }
//! sandbox.delete().await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod client;
mod command;
mod connect;
mod create;
mod endpoint;
mod error;
mod exec;
mod ids;
mod retry;
mod run;
mod sandbox;
mod transfer;

/// The messages of the contract, generated from `proto/sandgate/v1`.
pub use sandgate_proto::v1;

/// Why a call did not come back, in [`Error::Connect`].
pub use sandgate_connection::LineError;

pub use self::{
    client::{Client, RawClient},
    command::Command,
    connect::Channel,
    create::{Create, Created},
    endpoint::{Address, DEFAULT_ADDRESS, Endpoint, Token, default_state_dir},
    error::{Error, Refused, Result},
    exec::{Attach, Control, Event, Exec, Outcome, Output, OutputStream, Stdin},
    ids::new_id,
    run::Run,
    sandbox::Sandbox,
};
