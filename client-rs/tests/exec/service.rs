//! The fake's side of the wire.

use std::pin::Pin;

use futures_core::Stream;
use futures_util::StreamExt as _;
use sandgate::v1::{exec_event::Event, exec_request::Request as First, exec_response::Response as Out, *};
use sandgate_errors::status;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::fake::Fake;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

macro_rules! not_faked {
    ($($name:ident $request:ident $response:ident),* $(,)?) => {
        // Written out, because `async_trait` has done its work before this macro does.
        $(fn $name<'a, 'b>(
            &'a self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<$response>, Status>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(std::future::ready(Err(Status::unimplemented(stringify!($name)))))
        })*
    };
}

#[tonic::async_trait]
impl sandbox_service_server::SandboxService for Fake {
    type ExecStream = Answers<ExecResponse>;
    type WatchStream = Answers<WatchResponse>;
    type FollowExecStream = Answers<FollowExecResponse>;
    type DownloadStream = Answers<DownloadResponse>;
    type WatchFilesStream = Answers<WatchFilesResponse>;
    type ForwardStream = Answers<ForwardResponse>;

    async fn exec(&self, request: Request<Streaming<ExecRequest>>) -> Result<Response<Self::ExecStream>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|message| message.request);
        let (id, from, writer) = match first {
            Some(First::Start(start)) => {
                self.start_or_find(
                    &start.exec_id,
                    &start.expected_incarnation,
                    start.spec.unwrap_or_default(),
                )?;
                if self.chance(20) {
                    return Err(status(ErrorReason::Stopping, "started, and the answer is lost"));
                }
                (start.exec_id, start.from, start.writer)
            }
            Some(First::Attach(attach)) => {
                let world = self.world.lock().unwrap();
                world.expect(&attach.expected_incarnation)?;
                if !world.execs.contains_key(&attach.exec_id) {
                    return Err(status(ErrorReason::ExecNotFound, "no such exec"));
                }
                (attach.exec_id, attach.from, attach.writer)
            }
            _ => return Err(Status::invalid_argument("start or attach first")),
        };
        let from = match from.and_then(|from| from.place) {
            Some(follow_from::Place::Offsets(offsets)) => offsets,
            _ => ExecOffsets::default(),
        };
        let (to, answers) = mpsc::channel(4);
        tokio::spawn(self.clone().take_stdin(id.clone(), writer, requests, to.clone()));
        tokio::spawn(self.clone().follow(id, from, to));
        // Whoever ends first with an error ends the stream; `follow` alone ends it well.
        let answers = ReceiverStream::new(answers);
        Ok(Response::new(Box::pin(ended(answers))))
    }

    async fn start_exec(&self, request: Request<StartExecRequest>) -> Result<Response<StartExecResponse>, Status> {
        let start = request.into_inner();
        self.start_or_find(
            &start.exec_id,
            &start.expected_incarnation,
            start.spec.unwrap_or_default(),
        )?;
        Ok(Response::new(StartExecResponse {
            exec: Some(ExecInfo {
                exec_id: start.exec_id,
                ..ExecInfo::default()
            }),
            started: true,
        }))
    }

    async fn signal_exec(&self, request: Request<SignalExecRequest>) -> Result<Response<SignalExecResponse>, Status> {
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        world.expect(&request.expected_incarnation)?;
        let Some(exec) = world.execs.get_mut(&request.exec_id) else {
            return Err(status(ErrorReason::ExecNotFound, "no such exec"));
        };
        exec.signals
            .push((request.signal.unwrap().signal, request.expected_incarnation));
        Ok(Response::new(SignalExecResponse { processes: 1 }))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        let request = request.into_inner();
        self.start_or_find(
            &request.exec_id,
            &request.expected_incarnation,
            request.spec.unwrap_or_default(),
        )?;
        if self.chance(50) {
            return Err(Status::unavailable("the answer is lost"));
        }
        let mut world = self.world.lock().unwrap();
        world.calls_of_run += 1;
        let state = if world.calls_of_run < 3 {
            ExecState::Running
        } else {
            ExecState::Exited
        };
        Ok(Response::new(RunResponse {
            exec: Some(ExecInfo {
                exec_id: request.exec_id,
                incarnation: world.incarnation.clone(),
                state: state.into(),
                ..ExecInfo::default()
            }),
            ..RunResponse::default()
        }))
    }

    not_faked! {
        create CreateRequest CreateResponse, attach AttachRequest AttachResponse, get GetRequest GetResponse,
        list ListRequest ListResponse, update UpdateRequest UpdateResponse, suspend SuspendRequest SuspendResponse,
        resume ResumeRequest ResumeResponse, delete DeleteRequest DeleteResponse,
        write_exec WriteExecRequest WriteExecResponse, resize_exec ResizeExecRequest ResizeExecResponse,
        get_exec GetExecRequest GetExecResponse, list_execs ListExecsRequest ListExecsResponse,
        file_ops FileOpsRequest FileOpsResponse, write_chunk WriteChunkRequest WriteChunkResponse,
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("watch"))
    }

    async fn follow_exec(&self, _: Request<FollowExecRequest>) -> Result<Response<Self::FollowExecStream>, Status> {
        Err(Status::unimplemented("follow_exec"))
    }

    async fn upload(&self, _: Request<Streaming<UploadRequest>>) -> Result<Response<UploadResponse>, Status> {
        Err(Status::unimplemented("upload"))
    }

    async fn download(&self, _: Request<DownloadRequest>) -> Result<Response<Self::DownloadStream>, Status> {
        Err(Status::unimplemented("download"))
    }

    async fn watch_files(&self, _: Request<WatchFilesRequest>) -> Result<Response<Self::WatchFilesStream>, Status> {
        Err(Status::unimplemented("watch_files"))
    }

    async fn forward(&self, _: Request<Streaming<ForwardRequest>>) -> Result<Response<Self::ForwardStream>, Status> {
        Err(Status::unimplemented("forward"))
    }
}

/// Ends behind `ended`, as the stdin side keeps the channel open.
fn ended(answers: ReceiverStream<Result<ExecResponse, Status>>) -> impl Stream<Item = Result<ExecResponse, Status>> {
    answers.scan(false, |over, answer| {
        let was_over = *over;
        *over = match &answer {
            Ok(answer) => matches!(
                answer.response,
                Some(Out::Event(ExecEvent {
                    event: Some(Event::Ended(_)),
                    ..
                }))
            ),
            Err(_) => true,
        };
        let ends_well = matches!(&answer, Err(status) if status.code() == tonic::Code::Ok);
        std::future::ready((!was_over && !ends_well).then_some(answer))
    })
}
