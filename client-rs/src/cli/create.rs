//! `sandgate create`: make a sandbox, or find the one of that name.

use std::{io, process::ExitCode, time::Duration};

use sandgate::{
    Client,
    v1::{self, AttachRequest, ConnectionMode, CreateRequest, SandboxState, create_request::End},
};
use serde::Serialize;

use super::{
    Context, Failure,
    output::{self, Show, Text},
    pairs,
    sandboxes::SandboxView,
    spans::{self, Limit},
};

/// Make a sandbox, or find the one of that name, and print its name
///
/// With a name it is safe to repeat: the sandbox that is there is taken, and resumed if it is suspended. Without one the
/// server makes a name up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate create demo
  sandgate create --ttl 1h --idle 10m --label team=red --env MODE=test
  name=$(sandgate create)")]
pub(crate) struct Args {
    /// Its name: letters, digits and `-`, at most 40. Made up by the server if it is left out
    name: Option<String>,
    /// What to make it from. The server's default if it is left out
    #[arg(long, short = 'T')]
    template: Option<String>,
    /// Kubernetes: the warm pool to take it from
    #[arg(long, value_name = "POOL")]
    warm_pool: Option<String>,
    /// Kubernetes: how the server is to reach it: tunnel, gateway, direct or in-cluster
    #[arg(long, value_name = "MODE", value_parser = connection)]
    connection: Option<ConnectionMode>,
    /// How long it lives, whatever it does: 90s, 10m, 1h, 7d
    #[arg(long, value_name = "SPAN", value_parser = spans::span)]
    ttl: Option<Duration>,
    /// How long it may idle before it is removed, or none
    #[arg(long, value_name = "SPAN", value_parser = spans::limit)]
    idle: Option<Limit>,
    /// A label, to find it by. Can be repeated
    #[arg(long = "label", short = 'L', value_name = "KEY=VALUE", value_parser = pairs::label)]
    labels: Vec<(String, String)>,
    /// An environment variable of every command in it; NAME alone takes the value from here. Can be repeated
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = pairs::env)]
    env: Vec<(String, String)>,
    /// Wait until it is ready; this is the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Do not wait until it is ready
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct View {
    created: bool,
    resumed: bool,
    sandbox: SandboxView,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let wait = !args.no_wait;
    let answer = client.raw().create(args.into_request()).await?.into_inner();
    let mut sandbox = answer.sandbox.ok_or_else(|| Failure::incomplete("sandbox"))?;
    if wait {
        sandbox = ready(&client, sandbox).await?;
    }
    let view = View {
        created: answer.created,
        resumed: answer.resumed,
        sandbox: sandbox.into(),
    };
    output::show(ctx.output, &view)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits on, past the time after which a server answers in any case.
pub(crate) async fn ready(client: &Client, mut sandbox: v1::Sandbox) -> Result<v1::Sandbox, Failure> {
    while matches!(sandbox.state(), SandboxState::Creating | SandboxState::Resuming) {
        let request = AttachRequest {
            sandbox: sandbox.name.clone(),
            ..AttachRequest::default()
        };
        let answer = client.raw().attach(request).await?.into_inner();
        sandbox = answer.sandbox.ok_or_else(|| Failure::incomplete("sandbox"))?;
    }
    match sandbox.state() {
        SandboxState::Failed => Err(Failure::Other(format!(
            "sandbox {} can't become ready: {}",
            sandbox.name, sandbox.state_message
        ))),
        _ => Ok(sandbox),
    }
}

// === impl Args ===

impl Args {
    fn into_request(self) -> CreateRequest {
        CreateRequest {
            name: self.name.unwrap_or_default(),
            template: self.template.unwrap_or_default(),
            warm_pool: self.warm_pool.unwrap_or_default(),
            connection_mode: self.connection.unwrap_or_default().into(),
            labels: self.labels.into_iter().collect(),
            env: pairs::env_vars(self.env),
            end: self.ttl.map(|ttl| End::Ttl(spans::wire(ttl))),
            idle_limit: self.idle.map(idle_limit),
            no_wait: self.no_wait,
            ..CreateRequest::default()
        }
    }
}

fn connection(text: &str) -> Result<ConnectionMode, String> {
    match text {
        "tunnel" => Ok(ConnectionMode::Tunnel),
        "gateway" => Ok(ConnectionMode::Gateway),
        "direct" => Ok(ConnectionMode::Direct),
        "in-cluster" => Ok(ConnectionMode::InCluster),
        _ => Err("expected tunnel, gateway, direct or in-cluster".to_owned()),
    }
}

/// An idle limit as it is sent: 0 means for ever.
pub(crate) fn idle_limit(limit: Limit) -> prost_types::Duration {
    match limit {
        Limit::Span(span) => spans::wire(span),
        Limit::None => spans::wire(Duration::ZERO),
    }
}

// === impl View ===

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        to.line(&self.sandbox.name)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn request(line: &[&str]) -> CreateRequest {
        Line::parse_from(["create"].iter().chain(line)).args.into_request()
    }

    #[test]
    fn everything_that_is_said_is_sent() {
        let request = request(&[
            "demo",
            "--template",
            "t",
            "--ttl",
            "1h",
            "--idle",
            "10m",
            "--label",
            "a=1",
            "--label",
            "b=",
            "--env",
            "K=V=W",
            "--warm-pool",
            "p",
            "--connection",
            "in-cluster",
        ]);
        assert_eq!(
            (request.warm_pool.as_str(), request.connection_mode()),
            ("p", ConnectionMode::InCluster)
        );
        assert_eq!((request.name.as_str(), request.template.as_str()), ("demo", "t"));
        assert_eq!(request.end, Some(End::Ttl(spans::wire(Duration::from_secs(3_600)))));
        assert_eq!(request.idle_limit, Some(spans::wire(Duration::from_secs(600))));
        assert_eq!(
            request.labels,
            [("a".into(), "1".into()), ("b".into(), String::new())].into()
        );
        assert_eq!(
            (request.env[0].name.as_str(), request.env[0].value.as_str()),
            ("K", "V=W")
        );
        assert!(!request.no_wait);
    }

    #[test]
    fn what_is_left_out_is_left_to_the_server() {
        assert_eq!(request(&[]), CreateRequest::default());
        assert_eq!(
            request(&["--idle", "none"]).idle_limit,
            Some(spans::wire(Duration::ZERO))
        );
    }

    #[test]
    fn the_last_word_on_waiting_counts() {
        assert!(request(&["--no-wait"]).no_wait);
        assert!(request(&["--wait", "--no-wait"]).no_wait);
        assert!(!request(&["--no-wait", "--wait"]).no_wait);
    }
}
