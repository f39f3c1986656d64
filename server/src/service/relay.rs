//! Calls with one request and one answer that a sandbox's runtime answers.
//!
//! The request is made anew for the runtime. The answer passes as a stream of one message does, as it came.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use sandgate_connection::brief::framed;
use sandgate_errors::Refusal;
use tonic::{Status, body::Body};

use super::{
    messages::Messages,
    stopping,
    streams::{MAX_MESSAGE, Relayed, Service, check_encoding, decoded, first_message, response, runtime_request},
};
use crate::convert::{Addressed, Call};

// === impl Service ===

impl Service {
    /// Passes a call on.
    pub(super) async fn relay<R: Call + Addressed + prost::Message + Default>(
        self,
        request: Request<Body>,
    ) -> Response<Body> {
        response(self.relayed::<R>(request).await)
    }

    /// The same for a call that may wait for long. It ends early when the server stops: its caller asks again.
    pub(super) async fn relay_patiently<R: Call + Addressed + prost::Message + Default>(
        self,
        request: Request<Body>,
    ) -> Response<Body> {
        response(tokio::select! {
            biased;
            answer = self.relayed::<R>(request) => answer,
            () = self.sandboxes.stopping.begun() => Err(stopping().into()),
        })
    }

    async fn relayed<R: Call + Addressed + prost::Message + Default>(
        &self,
        request: Request<Body>,
    ) -> Result<Relayed, Status> {
        check_encoding(&request)?;
        let request: R = decoded(only_message(request.into_body()).await?)?;
        let reached = self.sandboxes.reach(request.address()).await?;
        let request = Full::new(framed(&request.into_runtime().map_err(Refusal::from)?));
        match reached.open_stream(runtime_request(R::PATH, Body::new(request))).await {
            // What has begun to be answered is answered, also if the server stops.
            Ok(answer) => Ok(Relayed::new(answer, reached, None, None)),
            Err(status) => Err(reached.failed(status).await),
        }
    }
}

/// The payload of a request's one message.
async fn only_message(mut body: Body) -> Result<Bytes, Status> {
    let mut messages = Messages::new(MAX_MESSAGE);
    let only = first_message(&mut body, &mut messages).await?;
    // Nothing that follows is kept: a caller must not fill our memory with it.
    while messages.is_empty() {
        let Some(frame) = body.frame().await else {
            return Ok(only);
        };
        if let Ok(data) = frame?.into_data() {
            messages.push(data)?;
        }
    }
    Err(Refusal::invalid("request", "this call takes one message").into())
}
