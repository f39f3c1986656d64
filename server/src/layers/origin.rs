//! Web pages that may not call are turned away before anything happens. CORS alone would only keep them from reading
//! the answer.

use std::sync::Arc;

use http::{HeaderValue, Request, header};
use tonic::Status;

use super::gate::{Check, refused};
use crate::config::WebOrigin;

/// Lets requests pass that come from no web page, or from one that is listed.
#[derive(Clone, Debug)]
pub(crate) struct OriginCheck(Arc<[WebOrigin]>);

// === impl OriginCheck ===

impl OriginCheck {
    pub(crate) fn new(allowed: &[WebOrigin]) -> Self {
        Self(allowed.into())
    }
}

impl Check for OriginCheck {
    fn check<B>(&self, request: &mut Request<B>) -> Result<(), Box<Status>> {
        let listed = |origin: &HeaderValue| self.0.iter().any(|allowed| origin == allowed.as_str());
        match request
            .headers()
            .get_all(header::ORIGIN)
            .iter()
            .find(|origin| !listed(origin))
        {
            None => Ok(()),
            Some(origin) => Err(refused(format!(
                "web pages of {} may not call this server: add the origin to `allowed_origins` of its configuration",
                String::from_utf8_lossy(origin.as_bytes())
            ))),
        }
    }
}
