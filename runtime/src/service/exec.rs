//! Calls on execs, but for the interactive one.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{
    Stream, StreamExt as _,
    stream::{SelectAll, unfold},
};
use sandgate_errors::Refusal;
use sandgate_exec::{Awaits, Budget, Caller, Events, Exec, span, task};
use sandgate_proto::runtime::v1::{self as proto, Heartbeat, exec_event::Event};
use tonic::Status;

use super::Service;
use crate::{
    clock::Call,
    stream::{Answers, Source, answers},
};

const MAX_TARGETS: usize = 100;
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;
const DEFAULT_WAIT: Duration = Duration::from_secs(50);
const MAX_WAIT: Duration = Duration::from_secs(3_600);
const DEFAULT_STDIN_WAIT: Duration = Duration::from_secs(10);
const MAX_STDIN_WAIT: Duration = Duration::from_secs(50);

pub(super) async fn start(
    service: &Service,
    request: proto::StartExecRequest,
) -> Result<proto::StartExecResponse, Refusal> {
    service.identity.expect(&request.expected_incarnation)?;
    let (exec, started) = service
        .execs
        .start(&request.exec_id, request.spec.unwrap_or_default())
        .await?;
    Ok(proto::StartExecResponse {
        exec: Some(exec.info()),
        started,
    })
}

pub(super) async fn write(
    service: &Service,
    request: proto::WriteExecRequest,
) -> Result<proto::WriteExecResponse, Refusal> {
    service.identity.expect(&request.expected_incarnation)?;
    let wait = span("max_wait", request.max_wait)?.unwrap_or(DEFAULT_STDIN_WAIT);
    if wait > MAX_STDIN_WAIT {
        return Err(Refusal::invalid("max_wait", "at most 50 s"));
    }
    let exec = service.execs.get(&request.exec_id)?;
    exec.settled().await?;
    let stdin = exec
        .write(&request.writer, &request.stdin.unwrap_or_default(), wait)
        .await?;
    Ok(proto::WriteExecResponse { stdin: Some(stdin) })
}

pub(super) async fn signal(
    service: &Service,
    request: proto::SignalExecRequest,
) -> Result<proto::SignalExecResponse, Refusal> {
    service.identity.expect(&request.expected_incarnation)?;
    let exec = service.execs.get(&request.exec_id)?;
    exec.settled().await?;
    let processes = exec.signal(request.signal.unwrap_or_default().signal).await?;
    Ok(proto::SignalExecResponse { processes })
}

pub(super) fn list(service: &Service, request: &proto::ListExecsRequest) -> Result<proto::ListExecsResponse, Refusal> {
    let size = match usize::try_from(request.page_size).unwrap_or(usize::MAX) {
        0 => DEFAULT_PAGE,
        size if size <= MAX_PAGE => size,
        _ => return Err(Refusal::invalid("page_size", "at most 1,000")),
    };
    let execs = service.execs.list();
    // The token is the place of the last exec of the page before, which need not be there any more.
    let wrong = |_| Refusal::invalid("page_token", "not a token that this call gave");
    let after = match request.page_token.as_str() {
        "" => None,
        token => Some(token.parse::<u64>().map_err(wrong)?),
    };
    let wanted =
        |exec: &&Arc<Exec>| after.is_none_or(|after| exec.number() > after) && (!request.only_alive || exec.is_alive());
    let mut page: Vec<&Arc<Exec>> = execs.iter().filter(wanted).take(size + 1).collect();
    let more = page.len() > size;
    page.truncate(size);
    let next_page_token = page
        .last()
        .filter(|_| more)
        .map(|exec| exec.number().to_string())
        .unwrap_or_default();
    Ok(proto::ListExecsResponse {
        execs: page.iter().map(|exec| exec.info()).collect(),
        next_page_token,
    })
}

pub(super) async fn run(service: &Service, request: proto::RunRequest) -> Result<proto::RunResponse, Refusal> {
    service.identity.expect(&request.expected_incarnation)?;
    let budget = Budget::check(request.budget)?;
    let wait = span("max_wait", request.max_wait)?.unwrap_or(DEFAULT_WAIT);
    if wait > MAX_WAIT {
        return Err(Refusal::invalid("max_wait", "at most 1 hour"));
    }
    let grace = span("caller_grace", request.caller_grace)?.unwrap_or_default();
    let kill = request.on_caller_gone() == proto::OnCallerGone::Kill;
    let spec = request.spec.unwrap_or_default();
    if spec.stdin() == proto::StdinMode::Open || spec.pty.is_some() {
        return Err(Refusal::invalid(
            "spec.stdin",
            "Run can't write stdin: use Exec or StartExec",
        ));
    }
    let attach = |exec: &Arc<Exec>| Waiting {
        exec: exec.clone(),
        caller: Some(exec.caller()),
        kill: kill.then_some(grace),
        number: exec.calls(),
    };
    let started = service
        .execs
        .start_attached(&request.exec_id, spec, Awaits::End, attach);
    let (exec, _, mut waiting) = started.await?;
    let _ = tokio::time::timeout(wait, exec.exited()).await;
    let (stdout, stderr) = exec.output(budget).await;
    waiting.kill = None;
    Ok(proto::RunResponse {
        exec: Some(exec.info()),
        stdout: Some(stdout),
        stderr: Some(stderr),
    })
}

/// A `Run` under way. Dropped with `kill` set, its caller has gone away.
struct Waiting {
    exec: Arc<Exec>,
    caller: Option<Caller>,
    kill: Option<Duration>,
    /// Its number among the callers of the exec: a later one has come back, also if it was answered before we noticed that
    /// this one is gone.
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.caller = None;
        let Some(grace) = self.kill.take() else { return };
        let exec = self.exec.clone();
        let own = self.number;
        task::spawn("caller gone", self.exec.id(), async move {
            tokio::time::sleep(grace).await;
            exec.started().await;
            if !exec.has_callers() && exec.calls() == own {
                let _ = exec.signal(9).await;
            }
        });
    }
}

/// The events of several execs, as they come.
struct Followed {
    execs: SelectAll<Pin<Box<dyn Stream<Item = proto::ExecEvent> + Send>>>,
    _call: Call,
}

impl Source for Followed {
    type Item = proto::FollowExecResponse;

    async fn next(&mut self) -> Option<Result<Self::Item, Status>> {
        let event = self.execs.next().await?;
        Some(Ok(proto::FollowExecResponse { event: Some(event) }))
    }
}

pub(super) async fn follow(
    service: &Service,
    request: proto::FollowExecRequest,
) -> Result<Answers<proto::FollowExecResponse>, Refusal> {
    service.identity.expect(&request.expected_incarnation)?;
    if request.targets.is_empty() || request.targets.len() > MAX_TARGETS {
        return Err(Refusal::invalid("targets", "name 1 to 100 execs"));
    }
    let call = service.call();
    let mut execs = SelectAll::new();
    for target in &request.targets {
        let exec = service.execs.get(&target.exec_id)?;
        let events = Events::new(exec.clone(), target.from.as_ref(), !request.no_wait);
        exec.settled().await?;
        execs.push(unfold(events, |mut events| async move { Some((events.next().await?, events)) }).boxed());
    }
    Ok(answers(Followed { execs, _call: call }, heartbeat))
}

fn heartbeat() -> proto::FollowExecResponse {
    let event = proto::ExecEvent {
        event: Some(Event::Heartbeat(Heartbeat {})),
        ..Default::default()
    };
    proto::FollowExecResponse { event: Some(event) }
}
