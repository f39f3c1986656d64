//! Calls with one request and one answer that a sandbox's runtime answers.

use http::uri::PathAndQuery;
use sandgate_errors::Refusal;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::{Sandboxes, stopping};
use crate::convert::{Addressed, Call};

type Answer<T> = Result<Response<T>, Status>;

// === impl Sandboxes ===

impl Sandboxes {
    /// A call with one request and one answer.
    pub(super) async fn unary<R: Call + Addressed>(&self, request: Request<R>) -> Answer<R::Answer> {
        let request = request.into_inner();
        let reached = self.reach(request.address()).await?;
        let request = request.into_runtime().map_err(Refusal::from)?;
        let codec = ProstCodec::<R::Runtime, R::Answer>::default();
        let mut grpc = reached.grpc().await?;
        match grpc.unary(Request::new(request), path::<R>(), codec).await {
            Ok(answer) => Ok(Response::new(answer.into_inner())),
            Err(status) => Err(reached.failed(status).await),
        }
    }

    /// The same for a call that may wait for long. It ends early when the server stops: its caller asks again.
    pub(super) async fn patient<R: Call + Addressed>(&self, request: Request<R>) -> Answer<R::Answer> {
        tokio::select! {
            biased;
            answer = self.unary(request) => answer,
            () = self.stopping.begun() => Err(stopping().into()),
        }
    }
}

fn path<R: Call>() -> PathAndQuery {
    PathAndQuery::from_static(R::PATH)
}
