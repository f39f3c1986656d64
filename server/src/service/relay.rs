//! Calls that a sandbox's runtime answers: passed on, one message at a time, and back.
//!
//! Nothing is kept here. What a caller does not take stays in the runtime, because one message is pulled for each that
//! is sent; and what a caller leaves is dropped, which cancels it at the runtime.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::uri::PathAndQuery;
use sandgate_errors::Refusal;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};
use tonic_prost::ProstCodec;

use super::{
    Sandboxes,
    reach::Reached,
    requests::{Codec, Outlet, Requests},
    stopping,
};
use crate::{
    convert::{Address, Addressed, Call},
    stopping::Stopping,
};

type Answer<T> = Result<Response<T>, Status>;

/// A runtime's stream on its way to a caller.
struct Relayed<T> {
    answers: Streaming<T>,
    reached: Reached,
    stopping: Stopping,
    /// Ready when the server stops.
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The caller's own stream, where it has one. Dropped with this, it ends.
    outlet: Option<Outlet>,
    state: State,
}

enum State {
    Open,
    /// The runtime's side broke, and the provider is asked why.
    Asking(Pin<Box<dyn Future<Output = Status> + Send>>),
    Ended,
}

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

    /// A call with one request and a stream of answers.
    pub(super) async fn follow<R: Call + Addressed>(&self, request: Request<R>) -> Answer<BoxStream<R::Answer>> {
        let request = request.into_inner();
        let reached = self.reach(request.address()).await?;
        let request = request.into_runtime().map_err(Refusal::from)?;
        let codec = ProstCodec::<R::Runtime, R::Answer>::default();
        let mut grpc = reached.grpc().await?;
        match grpc.server_streaming(Request::new(request), path::<R>(), codec).await {
            Ok(answers) => Ok(Response::new(self.relayed(answers, reached, None))),
            Err(status) => Err(reached.failed(status).await),
        }
    }

    /// A call with streams both ways. `address` reads where it goes from the first message.
    pub(super) async fn converse<R: Call>(
        &self,
        requests: Streaming<R>,
        address: fn(&R) -> Result<Address<'_>, Refusal>,
    ) -> Answer<BoxStream<R::Answer>> {
        let conversing = async {
            let (reached, requests, mut outlet) = self.open(requests, address).await?;
            let mut grpc = reached.grpc().await?;
            let codec = Codec::<R::Runtime, R::Answer>::default();
            let answers = tokio::select! {
                biased;
                answers = grpc.streaming(Request::new(requests), path::<R>(), codec) => answers,
                status = outlet.failure() => return Err(status),
            };
            match answers {
                Ok(answers) => Ok(Response::new(self.relayed(answers, reached, Some(outlet)))),
                Err(status) => Err(why(&mut outlet, &reached, status).await),
            }
        };
        tokio::select! {
            biased;
            answer = conversing => answer,
            () = self.stopping.begun() => Err(stopping().into()),
        }
    }

    /// A call with a stream of requests and one answer.
    pub(super) async fn gather<R: Call>(
        &self,
        requests: Streaming<R>,
        address: fn(&R) -> Result<Address<'_>, Refusal>,
    ) -> Answer<R::Answer> {
        let gathering = async {
            let (reached, requests, mut outlet) = self.open(requests, address).await?;
            let mut grpc = reached.grpc().await?;
            let codec = Codec::<R::Runtime, R::Answer>::default();
            let answer = tokio::select! {
                biased;
                answer = grpc.client_streaming(Request::new(requests), path::<R>(), codec) => answer,
                status = outlet.failure() => return Err(status),
            };
            match answer {
                Ok(answer) => Ok(Response::new(answer.into_inner())),
                Err(status) => Err(why(&mut outlet, &reached, status).await),
            }
        };
        tokio::select! {
            biased;
            answer = gathering => answer,
            () = self.stopping.begun() => Err(stopping().into()),
        }
    }

    /// Reads the first message of a caller's stream, and finds the way to where it goes.
    async fn open<R: Call>(
        &self,
        mut requests: Streaming<R>,
        address: fn(&R) -> Result<Address<'_>, Refusal>,
    ) -> Result<(Reached, Requests<R>, Outlet), Status> {
        let empty = || Refusal::invalid("request", "the stream ended before its first message");
        let first = requests.message().await?.ok_or_else(empty)?;
        let reached = self.reach(address(&first)?).await?;
        let first = first.into_runtime().map_err(Refusal::from)?;
        let (requests, outlet) = Requests::new(first, requests);
        Ok((reached, requests, outlet))
    }

    fn relayed<T: 'static>(
        &self,
        answers: Response<Streaming<T>>,
        reached: Reached,
        outlet: Option<Outlet>,
    ) -> BoxStream<T> {
        let stopping = self.stopping.clone();
        Box::pin(Relayed {
            answers: answers.into_inner(),
            reached,
            stopping: self.stopping.clone(),
            stop: Box::pin(async move { stopping.begun().await }),
            outlet,
            state: State::Open,
        })
    }
}

/// Why a call with a stream of requests failed.
async fn why(outlet: &mut Outlet, reached: &Reached, status: Status) -> Status {
    match outlet.failed_first() {
        Some(first) => first,
        None => reached.failed(status).await,
    }
}

fn path<R: Call>() -> PathAndQuery {
    PathAndQuery::from_static(R::PATH)
}

// === impl Relayed ===

impl<T> Relayed<T> {
    fn end<U>(&mut self, last: Option<Status>) -> Poll<Option<Result<U, Status>>> {
        self.state = State::Ended;
        self.outlet = None;
        Poll::Ready(last.map(Err))
    }

    /// Whether something else than the runtime ends the stream.
    fn poll_interrupted(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(stopping().into());
        }
        match &mut self.outlet {
            Some(outlet) => outlet.poll_failure(cx),
            None => Poll::Pending,
        }
    }
}

impl<T> Stream for Relayed<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Asking(asking) => {
                    let status = ready!(asking.as_mut().poll(cx));
                    return this.end(Some(status));
                }
                // A stream that always has something would never get to wait for the stop.
                State::Open if this.stopping.is_begun() => return this.end(Some(stopping().into())),
                State::Open => match Pin::new(&mut this.answers).poll_next(cx) {
                    Poll::Ready(Some(Ok(answer))) => return Poll::Ready(Some(Ok(answer))),
                    Poll::Ready(Some(Err(status))) => {
                        if let Some(first) = this.outlet.as_mut().and_then(Outlet::failed_first) {
                            return this.end(Some(first));
                        }
                        let reached = this.reached.clone();
                        this.state = State::Asking(Box::pin(async move { reached.failed(status).await }));
                    }
                    Poll::Ready(None) => return this.end(None),
                    Poll::Pending => {
                        let status = ready!(this.poll_interrupted(cx));
                        return this.end(Some(status));
                    }
                },
            }
        }
    }
}
