//! The way to a sandbox's runtime, and what to say when there is none or it broke.

use std::{sync::Arc, time::Duration};

use http::{Request, StatusCode};
use sandgate_errors::{DOMAIN, Refusal};
use sandgate_proto::v1::{ErrorReason, Sandbox, SandboxState};
use sandgate_provider::{LineError, Link, Name, Provider};
use tonic::{Code, Status, body::Body};
use tonic_types::StatusExt as _;

use super::{Sandboxes, check::DEFAULT_WAIT};
use crate::convert::Address;

/// When to try again a sandbox that takes its time to come back.
const RETRY: Duration = Duration::from_secs(1);

/// A sandbox that takes calls, as far as anybody knows.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    provider: Arc<dyn Provider>,
    /// As it was when the call began: what became of it is told against this.
    seen: Arc<Sandbox>,
    link: Link,
}

/// What a failed call to a runtime means.
#[derive(Debug)]
enum Failure {
    /// The runtime, or whatever is in its place, says no.
    Refused(Status),
    /// The connection broke, or could not be had. Whether the runtime did anything is not known.
    Lost,
}

// === impl Sandboxes ===

impl Sandboxes {
    /// Finds the way, through a resume if the caller asks for it.
    pub(super) async fn reach(&self, address: Address<'_>) -> Result<Reached, Refusal> {
        let name = Name::parse("sandbox", address.sandbox)?;
        let mut linked = self.provider.link(&name);
        // Another server may know better, and this one in a moment.
        if linked.as_ref().is_err_and(may_be_news) && self.provider.seek(&name).await {
            linked = self.provider.link(&name);
        }
        let refusal = match linked {
            Ok(way) => return Ok(self.reached(way)),
            Err(refusal) => refusal,
        };
        let Some(sandbox) = self
            .provider
            .table()
            .get(name.as_str())
            .filter(|sandbox| is_asleep(sandbox))
        else {
            return Err(refusal);
        };
        // What the caller expects has ended. Waking the sandbox up would only make another incarnation.
        let expected = address.expected_incarnation;
        if !expected.is_empty() && expected != sandbox.incarnation {
            return Err(not_that_incarnation(&sandbox, expected));
        }
        if !address.auto_resume {
            return Err(refusal);
        }
        self.wake(&name).await
    }

    async fn wake(&self, name: &Name) -> Result<Reached, Refusal> {
        let begun = self.begin(name, DEFAULT_WAIT, || self.provider.resume(name)).await?;
        let sandbox = begun.sandbox;
        if sandbox.state() != SandboxState::Ready {
            let message = format!("sandbox {name} is still being resumed: {}", sandbox.state_message);
            return Err(Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY));
        }
        self.provider.link(name).map(|way| self.reached(way))
    }

    fn reached(&self, (seen, link): (Arc<Sandbox>, Link)) -> Reached {
        Reached {
            provider: Arc::clone(&self.provider),
            seen,
            link,
        }
    }
}

fn may_be_news(refusal: &Refusal) -> bool {
    use ErrorReason as R;
    matches!(refusal.reason, R::SandboxNotFound | R::SandboxUnreachable)
}

fn is_asleep(sandbox: &Sandbox) -> bool {
    use SandboxState as S;
    matches!(sandbox.state(), S::Suspended | S::Suspending | S::Resuming)
}

fn not_that_incarnation(sandbox: &Sandbox, expected: &str) -> Refusal {
    let why = sandbox.last_end.as_ref().map_or("", |end| end.message.as_str());
    let message = format!(
        "the incarnation of sandbox {} that this call expects has ended ({why}); its processes are gone and nothing was run again",
        sandbox.name
    );
    Refusal::new(ErrorReason::SandboxRestarted, message).with("incarnation", expected)
}

// === impl Reached ===

impl Reached {
    /// Makes a call and gives the answers, when they begin. Only what the runtime says is told by the status.
    pub(super) async fn open_stream(&self, request: Request<Body>) -> Result<Body, Status> {
        let lost = |error: LineError| Status::from_error(Box::new(error));
        let response = self.link.call(request).await.map_err(lost)?;
        match Status::from_header_map(response.headers()) {
            Some(status) if status.code() != Code::Ok => Err(status),
            _ if response.status() != StatusCode::OK => Err(Status::unknown(format!("HTTP {}", response.status()))),
            _ => Ok(response.into_body()),
        }
    }

    /// What a caller is told of a call that failed. Nothing is ever tried again here: it could run twice.
    pub(super) async fn failed(&self, status: Status) -> Status {
        match Failure::of(&status) {
            Failure::Refused(status) => naming(status, &self.seen.incarnation),
            Failure::Lost => self.lost(status.message()).await,
        }
    }

    async fn lost(&self, error: &str) -> Status {
        let refusal = self.provider.lost(&self.seen).await;
        tracing::debug!(sandbox = self.seen.name, error, %refusal, "lost the connection to a runtime");
        refusal.into()
    }
}

/// A runtime that lets no token in for another incarnation than its own does not say for which one that was.
fn naming(status: Status, incarnation: &str) -> Status {
    match Refusal::from_status(&status) {
        Some(refusal)
            if refusal.reason == ErrorReason::SandboxRestarted && !refusal.metadata.contains_key("incarnation") =>
        {
            refusal.with("incarnation", incarnation).into()
        }
        _ => status,
    }
}

// === impl Failure ===

impl Failure {
    fn of(status: &Status) -> Self {
        let is_ours = status
            .get_details_error_info()
            .is_some_and(|info| info.domain == DOMAIN);
        if is_ours && status.code() == Code::Unauthenticated {
            // It is the server that was not let in. The caller was.
            let message = format!(
                "what runs in this sandbox does not accept the server's token ({}): its keys are not those of the server",
                status.message()
            );
            return Self::Refused(Refusal::new(ErrorReason::SandboxUnreachable, message).into());
        }
        if is_ours {
            // Without the headers that came with it: they are about the other connection.
            let details = status.details().to_vec().into();
            return Self::Refused(Status::with_details(status.code(), status.message(), details));
        }
        // Whatever our runtime refuses has a reason. This is from the library below it, here or there.
        let is_local = std::error::Error::source(status).is_some();
        match status.code() {
            _ if is_local => Self::Lost,
            Code::Unavailable | Code::Cancelled | Code::Unknown | Code::DeadlineExceeded => Self::Lost,
            Code::Unimplemented => Self::Refused(
                Refusal::new(
                    ErrorReason::CapabilityMissing,
                    format!(
                        "what runs in this sandbox does not know that call: {}",
                        status.message()
                    ),
                )
                .into(),
            ),
            code => Self::Refused(
                Refusal::new(
                    ErrorReason::Internal,
                    format!("what runs in this sandbox answered {code:?}: {}", status.message()),
                )
                .into(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: &Status) -> Status {
        match Failure::of(status) {
            Failure::Refused(status) => status,
            Failure::Lost => panic!("{status:?} was taken for a lost connection"),
        }
    }

    #[test]
    fn a_refusal_of_the_runtimes_passes_with_its_details_and_without_its_headers() {
        let refusal = Refusal::new(ErrorReason::StdinGap, "gap")
            .with("accepted", 17)
            .with_retry_after(Duration::from_secs(3));
        let mut sent = Status::from(refusal.clone());
        sent.metadata_mut().insert("date", "today".parse().unwrap());
        let passed = refused(&sent);
        assert_eq!(Refusal::from_status(&passed), Some(refusal));
        assert!(passed.metadata().is_empty());
    }

    #[test]
    fn a_reason_of_a_newer_runtime_passes_too() {
        let mut details = tonic_types::ErrorDetails::new();
        details.set_error_info("SOMETHING_NEW", DOMAIN, [("a".to_owned(), "b".to_owned())]);
        let passed = refused(&Status::with_error_details(Code::Unavailable, "new", details));
        let info = passed.get_details_error_info().unwrap();
        assert_eq!(
            (info.reason.as_str(), info.metadata["a"].as_str()),
            ("SOMETHING_NEW", "b")
        );
        assert_eq!(passed.code(), Code::Unavailable);
    }

    #[test]
    fn a_token_of_the_servers_that_is_refused_is_not_the_callers_fault() {
        let sent = Status::from(Refusal::new(ErrorReason::Unauthenticated, "expired"));
        let told = Refusal::from_status(&refused(&sent)).unwrap();
        assert_eq!(told.reason, ErrorReason::SandboxUnreachable);
        assert!(told.message.contains("expired"), "{}", told.message);
    }

    #[test]
    fn a_restart_names_the_incarnation_that_ended() {
        let restarted = || Refusal::new(ErrorReason::SandboxRestarted, "another one");
        let named = |refusal: Refusal| {
            let told = naming(refused(&refusal.into()), "old");
            Refusal::from_status(&told).unwrap().metadata["incarnation"].clone()
        };
        assert_eq!(named(restarted()), "old");
        assert_eq!(named(restarted().with("incarnation", "older")), "older");
    }

    #[test]
    fn a_broken_connection_is_no_refusal() {
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        for status in [
            Status::from_error(Box::new(broken)),
            Status::unavailable("tcp connect error"),
            Status::unknown("protocol error: missing grpc-status trailer"),
            Status::cancelled("operation was canceled"),
        ] {
            assert!(matches!(Failure::of(&status), Failure::Lost), "{status:?}");
        }
    }

    #[test]
    fn an_unknown_call_is_a_missing_capability_and_the_rest_a_fault() {
        let reason = |status: Status| Refusal::from_status(&refused(&status)).unwrap().reason;
        assert_eq!(reason(Status::unimplemented("")), ErrorReason::CapabilityMissing);
        assert_eq!(reason(Status::internal("does not decode")), ErrorReason::Internal);
        assert_eq!(reason(Status::out_of_range("too large")), ErrorReason::Internal);
    }
}
