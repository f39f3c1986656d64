//! `sandgate doctor`: is everything there that a sandbox needs? Found out by making one, using it and removing it.

mod view;

use std::{env, process::ExitCode, time::Duration};

use sandgate::{
    Address, Client,
    v1::{
        Argv, CreateRequest, ExecSpec, RunRequest, RunResponse, Sandbox, create_request::End, exec_exit::Status,
        exec_spec::Command,
    },
};

use self::view::{Finding, Tool, View};
use super::{Context, Failure, create, output, rm, spans};

/// The sandbox goes by itself if we can't remove it.
const TTL: Duration = Duration::from_mins(5);
const LABEL: (&str, &str) = ("sandgate.dev/made-by", "doctor");
const TOOLS: [&str; 3] = ["python3", "node", "git"];

/// Check that the server is there and makes sandboxes, and show how they are isolated
///
/// Makes a sandbox, runs commands in it, and removes it. Exits with 1 if something essential failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate doctor
  sandgate doctor --template rootfs -o json")]
pub(crate) struct Args {
    /// What to make the sandbox from. The server's default if it is left out
    #[arg(long, short = 'T', default_value = "", hide_default_value = true)]
    template: String,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let mut view = View::default();
    examine(&args, ctx, &mut view).await;
    view.ok = view.checks.iter().all(|check| check.ok);
    output::show(ctx.output, &view)?;
    Ok(ExitCode::from(u8::from(!view.ok)))
}

/// Goes on for as long as there is something to go on with.
async fn examine(args: &Args, ctx: &Context, view: &mut View) {
    let connected = connect(ctx, &mut view.finding).await;
    let Some(client) = view.check("server", connected) else {
        return;
    };
    let made = make(&client, args).await;
    let Some(sandbox) = view.check(
        "create",
        made.map(|sandbox| (format!("{} is ready", sandbox.name), sandbox)),
    ) else {
        return;
    };
    view.look_at(&sandbox);
    let ran = try_true(&client, &sandbox).await;
    if view.check("run", ran.map(|detail| (detail, ()))).is_some() {
        for tool in TOOLS {
            let version = version_of(&client, &sandbox, tool).await;
            view.tools.push(Tool::new(tool, version));
        }
    }
    let removed = rm::delete(&client, &sandbox.name, None).await;
    _ = view.check("remove", removed.map(|_| (format!("{} is gone", sandbox.name), ())));
}

async fn connect(ctx: &Context, finding: &mut Finding) -> Result<(String, Client), Failure> {
    let endpoint = ctx.endpoint()?;
    finding.address = Some(endpoint.address.to_string());
    finding.address_from = Some(address_from(ctx, &endpoint.address));
    finding.token_from = Some(token_from(ctx, endpoint.token.is_some(), &endpoint.address));
    let client = Client::connect(endpoint).await?;
    Ok((format!("answers at {}", client.address()), client))
}

/// clap takes the variable for the flag: whether it was one is seen by comparing.
fn given_by(value: &str, variable: &str, flag: &'static str) -> String {
    match env::var(variable) {
        Ok(set) if set == value => variable.into(),
        _ => flag.into(),
    }
}

fn address_from(ctx: &Context, address: &Address) -> String {
    match (ctx.addr.as_deref().filter(|addr| !addr.is_empty()), address) {
        (Some(addr), _) => given_by(addr, "SANDGATE_ADDR", "--addr"),
        (None, Address::Unix(_)) => "the socket in the state directory".into(),
        (None, Address::Http(_)) => "the default: the state directory has no socket that may be opened".into(),
    }
}

fn token_from(ctx: &Context, found: bool, address: &Address) -> String {
    match (ctx.token.as_deref().filter(|token| !token.is_empty()), address) {
        (Some(token), _) => given_by(token, "SANDGATE_TOKEN", "--token"),
        (None, Address::Unix(_)) => "none: a Unix socket wants none".into(),
        (None, Address::Http(_)) if found => {
            format!("the file {}", sandgate::default_state_dir().join("token").display())
        }
        (None, Address::Http(_)) => "none: the state directory has no file `token`".into(),
    }
}

async fn make(client: &Client, args: &Args) -> Result<Sandbox, Failure> {
    let request = CreateRequest {
        template: args.template.clone(),
        labels: [(LABEL.0.to_owned(), LABEL.1.to_owned())].into(),
        end: Some(End::Ttl(spans::wire(TTL))),
        ..CreateRequest::default()
    };
    let answer = client.raw().create(request).await?.into_inner();
    let sandbox = answer.sandbox.ok_or_else(|| Failure::incomplete("sandbox"))?;
    create::ready(client, sandbox).await
}

async fn try_true(client: &Client, sandbox: &Sandbox) -> Result<String, Failure> {
    let ran = run_in(client, sandbox, "true", Command::Argv(argv(&["true"]))).await?;
    match outcome(&ran) {
        Ok(Some(0)) => Ok("`true` ran".into()),
        Ok(code) => Err(Failure::Other(format!("`true` did not exit with 0 but with {code:?}"))),
        Err(why) => Err(Failure::Other(format!("`true` could not be run: {why}"))),
    }
}

/// The first line of what the tool says of itself; nothing if it is not there.
async fn version_of(client: &Client, sandbox: &Sandbox, tool: &str) -> Option<String> {
    let ran = run_in(client, sandbox, tool, Command::Argv(argv(&[tool, "--version"])))
        .await
        .ok()?;
    if !matches!(outcome(&ran), Ok(Some(0))) {
        return None;
    }
    let said = ran.stdout.unwrap_or_default().head;
    let line = String::from_utf8_lossy(&said)
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned();
    Some(line)
}

fn argv(args: &[&str]) -> Argv {
    Argv {
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        args_raw: Vec::new(),
    }
}

async fn run_in(client: &Client, sandbox: &Sandbox, name: &str, command: Command) -> Result<RunResponse, Failure> {
    let request = RunRequest {
        sandbox: sandbox.name.clone(),
        exec_id: format!("doctor-{name}"),
        spec: Some(ExecSpec {
            command: Some(command),
            ..ExecSpec::default()
        }),
        ..RunRequest::default()
    };
    Ok(client.raw().run(request).await?.into_inner())
}

/// The exit code, if it exited, or why it could not be started.
fn outcome(ran: &RunResponse) -> Result<Option<i32>, String> {
    let exec = ran.exec.clone().unwrap_or_default();
    match (exec.start_failure, exec.exit.and_then(|exit| exit.status)) {
        (Some(failure), _) => Err(failure.message),
        (None, Some(Status::Code(code))) => Ok(Some(code)),
        (None, _) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use sandgate::v1::{ExecExit, ExecInfo, StartFailure};

    use super::*;

    fn context(addr: Option<&str>, token: Option<&str>) -> Context {
        Context {
            output: output::Format::Text,
            addr: addr.map(Into::into),
            token: token.map(Into::into),
        }
    }

    #[test]
    fn it_says_how_the_server_was_found() {
        let (http, unix): (Address, Address) = ("http://127.0.0.1:1".parse().unwrap(), "unix:///x".parse().unwrap());
        assert_eq!(
            address_from(&context(Some("http://127.0.0.1:1"), None), &http),
            "--addr"
        );
        assert!(address_from(&context(None, None), &unix).contains("socket in the state directory"));
        assert!(address_from(&context(Some(""), None), &http).starts_with("the default"));
        assert_eq!(token_from(&context(None, Some("t")), true, &http), "--token");
        assert!(token_from(&context(None, None), true, &http).ends_with("/token"));
        assert!(token_from(&context(None, None), false, &http).starts_with("none"));
        assert!(token_from(&context(None, None), false, &unix).contains("wants none"));
    }

    #[test]
    fn a_start_that_failed_is_no_exit() {
        let ran = |exec| {
            outcome(&RunResponse {
                exec: Some(exec),
                ..RunResponse::default()
            })
        };
        let exited = ExecInfo {
            exit: Some(ExecExit {
                status: Some(Status::Code(3)),
                ..ExecExit::default()
            }),
            ..ExecInfo::default()
        };
        assert_eq!(ran(exited), Ok(Some(3)));
        let failed = ExecInfo {
            start_failure: Some(StartFailure {
                message: "no such program".into(),
                ..StartFailure::default()
            }),
            ..ExecInfo::default()
        };
        assert_eq!(ran(failed), Err("no such program".into()));
        assert_eq!(ran(ExecInfo::default()), Ok(None));
    }
}
