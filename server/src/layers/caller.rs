//! Who calls. This is the one place that turns a request into a caller; telling more of them apart is a matter of this
//! layer alone.

use http::{HeaderMap, Request, header};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;
use tonic::{Extensions, Status};
use tonic_health::pb::health_server;

use super::gate::Check;
use crate::{listen::Peer, state_dir::Token};

/// Who makes a request. It is in the extensions of every request that the service sees.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caller {
    /// Whoever may open the Unix socket: the server's own user, and root.
    Owner,
    /// Somebody who knows the token.
    TokenHolder,
}

/// Lets requests of known callers pass.
#[derive(Clone, Debug)]
pub(crate) struct CallerCheck(pub(crate) Token);

// === impl Caller ===

impl Caller {
    /// The caller of a request.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }
}

// === impl CallerCheck ===

impl CallerCheck {
    /// Whether everybody on TCP is asked for the token. What may be offered to sandboxes depends on it.
    pub(crate) const WANTS_TOKEN_ON_TCP: bool = true;

    fn identify<B>(&self, request: &Request<B>) -> Result<Caller, String> {
        if request.extensions().get() == Some(&Peer::Unix) {
            return Ok(Caller::Owner);
        }
        let path = self.0.path().display();
        match bearer(request.headers()) {
            Some(shown) if self.0.is(shown) => Ok(Caller::TokenHolder),
            Some(_) => Err(format!(
                "the token is not this server's, which is in {path} on its machine"
            )),
            None => Err(format!(
                "a token is wanted on TCP: send the metadata `authorization: Bearer TOKEN`; the token is in {path} on the \
                 server's machine"
            )),
        }
    }
}

impl Check for CallerCheck {
    fn check<B>(&self, request: &mut Request<B>) -> Result<(), Box<Status>> {
        // Whoever looks after the server may ask how it is without holding a token that opens every sandbox.
        if is_health(request.uri().path()) {
            return Ok(());
        }
        let caller = self
            .identify(request)
            .map_err(|message| Status::from(Refusal::new(ErrorReason::Unauthenticated, message)))?;
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

fn is_health(path: &str) -> bool {
    let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    service.is_some_and(|(service, _)| service == health_server::SERVICE_NAME)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
