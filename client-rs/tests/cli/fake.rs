//! A fake server for the command line: sandboxes and files in memory, and faults on demand. It runs nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Read as _,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use futures_core::Stream;
use prost_types::Timestamp;
use sandgate::v1::{
    file_op::Op, file_op_result::Result as Outcome, sandbox_service_server::SandboxServiceServer,
    upload_request::Message as Up, *,
};
use sandgate_errors::status;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};

pub(crate) const TOKEN: &str = "t0ken";

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

/// What there is.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) sandboxes: BTreeMap<String, Sandbox>,
    /// By path; those that end in `/` are directories.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The last tar that was uploaded, and where to.
    pub(crate) tar: Option<(String, Vec<u8>)>,
    /// What a directory's download is instead of its files.
    pub(crate) forged: Option<Vec<u8>>,
    /// How many updates are refused because somebody else was first.
    pub(crate) rivals: u32,
    /// What each watch sends before its connection is lost; the tokens that they began at.
    pub(crate) watches: VecDeque<Vec<WatchResponse>>,
    pub(crate) tokens: Vec<String>,
    /// Ends a download behind its first chunk.
    pub(crate) cut: bool,
    pub(crate) updates: Vec<UpdateRequest>,
}

/// The server. It ends with this.
pub(crate) struct Fake {
    world: Arc<Mutex<World>>,
    pub(crate) address: String,
    _runtime: Runtime,
}

#[derive(Clone)]
struct Service(Arc<Mutex<World>>);

// === impl Fake ===

impl Fake {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let world = Arc::new(Mutex::new(World::default()));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let service = SandboxServiceServer::with_interceptor(Service(Arc::clone(&world)), admit);
        runtime.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Self {
            world,
            address,
            _runtime: runtime,
        }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }
}

fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    let token = request
        .metadata()
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    match token == Some(&format!("Bearer {TOKEN}")) {
        true => Ok(request),
        false => Err(refuse(ErrorReason::Unauthenticated, "that is not the token")),
    }
}

fn refuse(reason: ErrorReason, message: &str) -> Status {
    let mut status = status(reason, message);
    status.metadata_mut().insert("x-request-id", "req-7".parse().unwrap());
    status
}

fn file_error(reason: ErrorReason, path: &str) -> Outcome {
    Outcome::Error(FileError {
        reason: reason.into(),
        message: "refused".into(),
        path: path.into(),
        ..FileError::default()
    })
}

// === impl World ===

impl World {
    fn sandbox(&self, name: &str) -> Result<Sandbox, Status> {
        let found = self.sandboxes.get(name).cloned();
        found.ok_or_else(|| refuse(ErrorReason::SandboxNotFound, &format!("no sandbox {name}")))
    }

    pub(crate) fn make(&mut self, name: &str) -> Sandbox {
        let sandbox = Sandbox {
            name: name.into(),
            uid: format!("uid-{name}"),
            incarnation: "i1".into(),
            template: "default".into(),
            state: SandboxState::Ready.into(),
            created_at: Some(Timestamp::default()),
            etag: "e1".into(),
            isolation: vec![IsolationMechanism {
                mechanism: "seccomp".into(),
                in_force: true,
                ..IsolationMechanism::default()
            }],
            provider: "local".into(),
            ..Sandbox::default()
        };
        self.sandboxes.insert(name.into(), sandbox.clone());
        sandbox
    }

    fn info(&self, path: &str) -> Option<FileInfo> {
        let path = path.strip_suffix("/.").unwrap_or(path);
        let directory = format!("{}/", path.trim_end_matches('/'));
        let (kind, size) = match self.files.get(path) {
            Some(content) if !path.ends_with('/') => (FileType::Regular, content.len()),
            _ if self.files.keys().any(|key| key.starts_with(&directory)) => (FileType::Directory, 0),
            _ => return None,
        };
        Some(FileInfo {
            path: path.into(),
            r#type: kind.into(),
            size: size as u64,
            mode: 0o644,
            modified: Some(Timestamp {
                seconds: 1_000,
                nanos: 0,
            }),
            ..FileInfo::default()
        })
    }

    fn op(&mut self, op: Op) -> Outcome {
        match op {
            Op::Stat(StatOp { path, .. }) => self
                .info(&path)
                .map_or(file_error(ErrorReason::FileNotFound, &path), Outcome::Info),
            Op::Remove(RemoveOp { path, .. }) => match self.files.remove(&path) {
                Some(_) => Outcome::Remove(RemoveResult { removed: 1 }),
                None => file_error(ErrorReason::FileNotFound, &path),
            },
            Op::List(ListOp { path, page_token, .. }) => self.list(&path, &page_token),
            Op::Grep(GrepOp { pattern, .. }) => Outcome::Grep(self.grep(&pattern)),
            _ => file_error(ErrorReason::FileIo, "/"),
        }
    }

    /// One entry a page.
    fn list(&self, path: &str, token: &str) -> Outcome {
        let directory = format!("{}/", path.trim_end_matches('/'));
        let mut inside = self
            .files
            .keys()
            .filter(|key| key.starts_with(&directory) && key.as_str() > token);
        let entries: Vec<FileInfo> = inside.next().and_then(|key| self.info(key)).into_iter().collect();
        let next_page_token = match inside.next() {
            Some(_) => entries[0].path.clone(),
            None => String::new(),
        };
        Outcome::List(ListResult {
            entries,
            next_page_token,
        })
    }

    fn grep(&self, pattern: &str) -> GrepResult {
        let matches = |content: &[u8]| String::from_utf8_lossy(content).contains(pattern);
        GrepResult {
            files: self
                .files
                .iter()
                .filter(|(_, content)| matches(content))
                .map(|(path, content)| GrepFile {
                    path: path.clone(),
                    lines: vec![GrepLine {
                        number: 1,
                        text: content.clone().into(),
                        context: false,
                    }],
                    ..GrepFile::default()
                })
                .collect(),
            ..GrepResult::default()
        }
    }

    fn archive(&self, root: &str) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        let directory = format!("{}/", root.trim_end_matches('/'));
        for (path, content) in &self.files {
            let Some(name) = path.strip_prefix(&directory).filter(|name| !name.is_empty()) else {
                continue;
            };
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content.as_slice()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn download(&self, request: &DownloadRequest) -> Vec<download_response::Message> {
        use download_response::Message as Down;
        let root = request
            .view
            .as_ref()
            .map(|view| view.root_dir.clone())
            .unwrap_or_default();
        let (bytes, end) = match request.format() {
            TransferFormat::Tar => (self.forged.clone().unwrap_or_else(|| self.archive(&root)), None),
            _ => {
                let content = self.files[&request.paths[0].path].clone();
                let end = DownloadEntryEnd {
                    sha256: Sha256::digest(&content).to_vec().into(),
                    size: content.len() as u64,
                };
                (content, Some(end))
            }
        };
        let summary = DownloadSummary {
            entries: 1,
            bytes: bytes.len() as u64,
            failures: 0,
        };
        let chunks: Vec<Down> = bytes
            .chunks(64 << 10)
            .map(|chunk| Down::Chunk(Bytes::copy_from_slice(chunk)))
            .collect();
        match self.cut {
            true => chunks.into_iter().take(1).collect(),
            false => chunks
                .into_iter()
                .chain(end.map(Down::EntryEnd))
                .chain([Down::Summary(summary)])
                .collect(),
        }
    }
}

// === impl Service ===

impl Service {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

fn unwanted<T>() -> Answer<T> {
    Err(refuse(ErrorReason::NotImplemented, "not in this fake"))
}

#[tonic::async_trait]
impl sandbox_service_server::SandboxService for Service {
    type WatchStream = Answers<WatchResponse>;
    type ExecStream = Answers<ExecResponse>;
    type FollowExecStream = Answers<FollowExecResponse>;
    type DownloadStream = Answers<DownloadResponse>;
    type WatchFilesStream = Answers<WatchFilesResponse>;
    type ForwardStream = Answers<ForwardResponse>;

    async fn create(&self, request: Request<CreateRequest>) -> Answer<CreateResponse> {
        let request = request.into_inner();
        if request.template == "none" {
            return Err(refuse(ErrorReason::TemplateNotFound, "no template none"));
        }
        let mut world = self.world();
        let name = if request.name.is_empty() {
            "made-up".to_owned()
        } else {
            request.name
        };
        let existing = world.sandboxes.get(&name).cloned();
        let created = existing.is_none();
        let mut sandbox = existing.unwrap_or_else(|| world.make(&name));
        sandbox.labels = request.labels;
        // As if the wait was over: the caller has to go on waiting.
        sandbox.state = SandboxState::Creating.into();
        Ok(Response::new(CreateResponse {
            sandbox: Some(sandbox),
            created,
            resumed: false,
        }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Answer<AttachResponse> {
        let sandbox = Some(self.world().sandbox(&request.into_inner().sandbox)?);
        Ok(Response::new(AttachResponse {
            sandbox,
            resumed: false,
        }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Answer<GetResponse> {
        let sandbox = Some(self.world().sandbox(&request.into_inner().sandbox)?);
        Ok(Response::new(GetResponse { sandbox }))
    }

    /// One a page.
    async fn list(&self, request: Request<ListRequest>) -> Answer<ListResponse> {
        let token = request.into_inner().page_token;
        let world = self.world();
        let mut rest = world.sandboxes.values().filter(|sandbox| sandbox.name > token);
        let sandboxes: Vec<Sandbox> = rest.next().cloned().into_iter().collect();
        let next_page_token = rest.next().map(|_| sandboxes[0].name.clone()).unwrap_or_default();
        Ok(Response::new(ListResponse {
            sandboxes,
            next_page_token,
        }))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        let mut world = self.world();
        world.tokens.push(request.into_inner().resume_token);
        let (events, end) = match world.watches.pop_front() {
            Some(events) => (events, refuse(ErrorReason::Stopping, "the server stops")),
            None => (Vec::new(), refuse(ErrorReason::Internal, "the play is over")),
        };
        let events: Vec<_> = events.into_iter().map(Ok).chain([Err(end)]).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn update(&self, request: Request<UpdateRequest>) -> Answer<UpdateResponse> {
        let request = request.into_inner();
        let mut world = self.world();
        world.updates.push(request.clone());
        let mut sandbox = world.sandbox(&request.sandbox)?;
        if world.rivals > 0 {
            world.rivals -= 1;
            sandbox.etag = format!("{}+", sandbox.etag);
            sandbox.labels.insert(format!("rival-{}", world.rivals), String::new());
            world.sandboxes.insert(sandbox.name.clone(), sandbox);
            return Err(refuse(ErrorReason::EtagMismatch, "it has changed"));
        }
        sandbox.labels = request.settings.unwrap_or_default().labels;
        world.sandboxes.insert(sandbox.name.clone(), sandbox.clone());
        Ok(Response::new(UpdateResponse { sandbox: Some(sandbox) }))
    }

    async fn suspend(&self, request: Request<SuspendRequest>) -> Answer<SuspendResponse> {
        let mut sandbox = self.world().sandbox(&request.into_inner().sandbox)?;
        sandbox.state = SandboxState::Suspended.into();
        Ok(Response::new(SuspendResponse { sandbox: Some(sandbox) }))
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Answer<ResumeResponse> {
        let sandbox = Some(self.world().sandbox(&request.into_inner().sandbox)?);
        Ok(Response::new(ResumeResponse { sandbox, resumed: true }))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        let name = request.into_inner().sandbox;
        if name == "stuck" {
            return Err(refuse(ErrorReason::Internal, "it is stuck"));
        }
        let gone = self.world().sandboxes.remove(&name);
        Ok(Response::new(DeleteResponse {
            existed: gone.is_some(),
            uid: gone.map(|sandbox| sandbox.uid).unwrap_or_default(),
            ..DeleteResponse::default()
        }))
    }

    async fn run(&self, request: Request<RunRequest>) -> Answer<RunResponse> {
        let request = request.into_inner();
        let Some(exec_spec::Command::Argv(argv)) = request.spec.and_then(|spec| spec.command) else {
            return unwanted();
        };
        let exit = |code| ExecExit {
            status: Some(exec_exit::Status::Code(code)),
            ..ExecExit::default()
        };
        let known = ["true", "git"].contains(&argv.args[0].as_str());
        let exec = ExecInfo {
            exit: known.then(|| exit(0)),
            start_failure: (!known).then(StartFailure::default),
            ..ExecInfo::default()
        };
        let stdout = BudgetedOutput {
            head: Bytes::from_static(b"git version 2\n"),
            ..BudgetedOutput::default()
        };
        Ok(Response::new(RunResponse {
            exec: Some(exec),
            stdout: Some(stdout),
            stderr: None,
        }))
    }

    async fn file_ops(&self, request: Request<FileOpsRequest>) -> Answer<FileOpsResponse> {
        let request = request.into_inner();
        let mut world = self.world();
        world.sandbox(&request.sandbox)?;
        let ops = request.ops.into_iter().filter_map(|op| op.op);
        let results = ops
            .map(|op| FileOpResult {
                result: Some(world.op(op)),
            })
            .collect();
        Ok(Response::new(FileOpsResponse { results }))
    }

    async fn upload(&self, request: Request<Streaming<UploadRequest>>) -> Answer<UploadResponse> {
        let mut messages = request.into_inner();
        let (mut start, mut path, mut bytes, mut ended) = (UploadStart::default(), String::new(), Vec::new(), false);
        while let Some(UploadRequest { message: Some(message) }) = messages.message().await? {
            match message {
                Up::Start(first) => start = first,
                Up::Entry(entry) if entry.path.starts_with("/refused") => {
                    return Err(refuse(ErrorReason::FilePermissionDenied, "not there"));
                }
                Up::Entry(entry) => path = entry.path,
                Up::Chunk(chunk) => bytes.extend_from_slice(&chunk),
                Up::EntryEnd(end) => ended = end.sha256.is_empty() || *end.sha256 == *Sha256::digest(&bytes),
            }
        }
        let mut world = self.world();
        world.sandbox(&start.sandbox)?;
        let answer = UploadResponse {
            entries: 1,
            bytes: bytes.len() as u64,
            ..UploadResponse::default()
        };
        match (start.format(), ended) {
            (TransferFormat::Tar, _) => world.tar = Some((start.directory, bytes)),
            (_, true) => _ = world.files.insert(path, bytes),
            (_, false) => return Err(refuse(ErrorReason::HashMismatch, "it was cut")),
        }
        Ok(Response::new(answer))
    }

    async fn download(&self, request: Request<DownloadRequest>) -> Answer<Self::DownloadStream> {
        let request = request.into_inner();
        let world = self.world();
        world.sandbox(&request.sandbox)?;
        let messages: Vec<_> = world
            .download(&request)
            .into_iter()
            .map(|message| Ok(DownloadResponse { message: Some(message) }))
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    async fn exec(&self, _: Request<Streaming<ExecRequest>>) -> Answer<Self::ExecStream> {
        unwanted()
    }

    async fn start_exec(&self, _: Request<StartExecRequest>) -> Answer<StartExecResponse> {
        unwanted()
    }

    async fn follow_exec(&self, _: Request<FollowExecRequest>) -> Answer<Self::FollowExecStream> {
        unwanted()
    }

    async fn write_exec(&self, _: Request<WriteExecRequest>) -> Answer<WriteExecResponse> {
        unwanted()
    }

    async fn signal_exec(&self, _: Request<SignalExecRequest>) -> Answer<SignalExecResponse> {
        unwanted()
    }

    async fn resize_exec(&self, _: Request<ResizeExecRequest>) -> Answer<ResizeExecResponse> {
        unwanted()
    }

    async fn get_exec(&self, _: Request<GetExecRequest>) -> Answer<GetExecResponse> {
        unwanted()
    }

    async fn list_execs(&self, _: Request<ListExecsRequest>) -> Answer<ListExecsResponse> {
        unwanted()
    }

    async fn write_chunk(&self, _: Request<WriteChunkRequest>) -> Answer<WriteChunkResponse> {
        unwanted()
    }

    async fn watch_files(&self, _: Request<WatchFilesRequest>) -> Answer<Self::WatchFilesStream> {
        unwanted()
    }

    async fn forward(&self, _: Request<Streaming<ForwardRequest>>) -> Answer<Self::ForwardStream> {
        unwanted()
    }
}

/// The names and contents in a tar.
pub(crate) fn entries(tar: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(tar);
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        found.insert(entry.path().unwrap().display().to_string(), content);
    }
    found
}
