//! The runtime on its Unix socket: gRPC, and for those who speak it the brief protocol, which their first byte tells.

use std::{io, sync::Arc};

use bytes::{Buf as _, Bytes};
use prost::Message;
use rustix::net::{RecvFlags, recv};
use sandgate_connection::brief::{self, PREFIX, framed};
use sandgate_exec::task;
use sandgate_proto::runtime::v1::runtime_service_server::{RuntimeService as _, RuntimeServiceServer};
use sandgate_sys::QuietStream;
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, transport::Error, transport::Server};

use crate::{
    accepted::Accepted,
    network::{ACCEPT_AGAIN, SILENCE, is_over},
    service::Service,
};

/// What every connection may need.
#[derive(Clone)]
struct Shared {
    service: Arc<Service>,
    /// To the gRPC server.
    streams: mpsc::Sender<Accepted>,
    over: watch::Receiver<bool>,
    /// Dropped with the last connection for brief calls.
    _alive: mpsc::Sender<()>,
}

/// Serves until it is over and the last call is answered.
pub(crate) async fn serve(
    listener: UnixListener,
    server: Server,
    service: Service,
    over: watch::Receiver<bool>,
) -> Result<(), Error> {
    let (streams, incoming) = mpsc::channel(1);
    let (alive, mut drained) = mpsc::channel(1);
    let shared = Shared {
        service: Arc::new(service.clone()),
        streams,
        over: over.clone(),
        _alive: alive,
    };
    // By itself: to find it in a table of services takes longer than to call it.
    let grpc = RuntimeServiceServer::new(service);
    let incoming = ReceiverStream::new(incoming).map(Ok::<_, io::Error>);
    let (served, ()) = tokio::join!(
        server.serve_with_incoming_shutdown(grpc, incoming, is_over(over)),
        accept(listener, shared),
    );
    let _ = drained.recv().await;
    served
}

async fn accept(listener: UnixListener, shared: Shared) {
    let mut over = std::pin::pin!(is_over(shared.over.clone()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut over => return,
        };
        match accepted {
            Ok((stream, _)) => drop(task::spawn("connection", "", connection(stream, shared.clone()))),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, shared: Shared) {
    let first = tokio::select! {
        first = timeout(SILENCE, first_byte(&stream)) => first,
        () = is_over(shared.over.clone()) => return,
    };
    let ended = match first {
        Ok(Ok(first)) if brief::is_spoken_by(first) => answer(stream, shared).await,
        Ok(Ok(_)) => match Accepted::unix(stream) {
            // Closed: it is over.
            Ok(accepted) => return drop(shared.streams.send(accepted).await),
            Err(error) => Err(error),
        },
        Ok(Err(error)) => Err(error),
        Err(_silent) => return,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Looks at it without taking it.
async fn first_byte(stream: &UnixStream) -> io::Result<u8> {
    let mut first = [0];
    let look = || Ok(recv(stream, &mut first, RecvFlags::PEEK)?.0);
    match stream.async_io(Interest::READABLE, look).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0]),
    }
}

async fn answer(stream: UnixStream, shared: Shared) -> io::Result<()> {
    let stream = Box::new(QuietStream::new(stream)?);
    let over = is_over(shared.over.clone());
    brief::answer(stream, over, |method, message| {
        let service = Arc::clone(&shared.service);
        async move { call(&service, &method, message).await }
    })
    .await
}

/// Makes a call of those with one message there and one back.
async fn call(service: &Service, method: &[u8], message: Bytes) -> Result<Bytes, Status> {
    macro_rules! calls {
        ($($name:literal => $call:ident,)+) => {
            match method {
                $($name => unary(message, |request| service.$call(request)).await,)+
                _ => Err(Status::unimplemented("no such call, or none with one message there and one back")),
            }
        };
    }
    calls! {
        b"Run" => run,
        b"FileOps" => file_ops,
        b"StartExec" => start_exec,
        b"WriteExec" => write_exec,
        b"SignalExec" => signal_exec,
        b"ResizeExec" => resize_exec,
        b"GetExec" => get_exec,
        b"ListExecs" => list_execs,
        b"WriteChunk" => write_chunk,
        b"Hello" => hello,
        b"Configure" => configure,
        b"Stop" => stop,
    }
}

async fn unary<Q: Message + Default, A: Message, F: Future<Output = Result<Response<A>, Status>>>(
    mut message: Bytes,
    call: impl FnOnce(Request<Q>) -> F,
) -> Result<Bytes, Status> {
    let is_whole = message.len() >= PREFIX && message.get_u8() == 0 && message.get_u32() as usize == message.len();
    if !is_whole {
        return Err(Status::internal("the message is not as long as it says, or compressed"));
    }
    let request =
        Q::decode(message).map_err(|error| Status::internal(format!("the message does not decode: {error}")))?;
    Ok(framed(call(Request::new(request)).await?.get_ref()))
}
