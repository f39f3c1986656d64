//! Both directions of an exec in one stream.

use super::*;

/// Both directions of an `Exec`.
#[derive(Debug)]
pub(super) struct Bidi {
    requests: mpsc::Sender<ExecRequest>,
    responses: Streaming<ExecResponse>,
    output: Output,
    accepted: u64,
    closed: bool,
}

impl Bidi {
    pub(super) async fn open(client: &mut Client, first: Request) -> Result<Self, tonic::Status> {
        let (requests, queued) = mpsc::channel(16);
        requests.send(ExecRequest { request: Some(first) }).await.unwrap();
        let responses = client.exec(ReceiverStream::new(queued)).await?.into_inner();
        Ok(Self {
            requests,
            responses,
            output: Output::default(),
            accepted: 0,
            closed: false,
        })
    }

    async fn send(&self, request: Request) {
        self.requests
            .send(ExecRequest { request: Some(request) })
            .await
            .unwrap();
    }

    async fn stdin(&self, offset: u64, data: &str, close: bool) {
        self.send(Request::Stdin(StdinWrite {
            offset,
            data: data.to_owned().into(),
            close,
        }))
        .await;
    }

    /// Takes one response. False at the end.
    async fn next(&mut self) -> bool {
        let next = tokio::time::timeout(LIMIT, self.responses.message()).await.unwrap();
        match next.unwrap().map(|message| message.response.unwrap()) {
            Some(Response::Event(event)) => self.output.take(event),
            Some(Response::Stdin(stdin)) => (self.accepted, self.closed) = (stdin.offset, stdin.closed),
            None => return false,
        }
        true
    }

    async fn until(&mut self, so: impl Fn(&Self) -> bool) {
        while !so(self) {
            assert!(self.next().await, "the stream ended early");
        }
    }
}

#[tokio::test]
async fn a_stream_starts_writes_signals_and_detaches() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let id = new_id("bidi");
    let script = r#"$| = 1; $SIG{HUP} = sub { print "hup\n" }; print "got $_" while <STDIN>; print "end\n"; exit 5"#;
    let spec = with_stdin(mark(argv(&["perl", "-e", script]), &id));
    let start = ExecStart {
        exec_id: id.clone(),
        spec: Some(spec.clone()),
        writer: "me".into(),
        ..Default::default()
    };
    let mut stream = Bidi::open(&mut client, Request::Start(start.clone())).await.unwrap();
    stream.stdin(0, "one\n", false).await;
    stream.stdin(0, "one\n", false).await;
    stream
        .until(|stream| stream.accepted == 4 && stream.output.stdout == b"got one\n")
        .await;
    stream.send(Request::Detach(ExecDetach {})).await;
    while stream.next().await {}
    assert_eq!(marked(&id).len(), 1, "it runs on");

    // From where it left off, whatever came meanwhile.
    let seen = stream.output.next;
    let write = WriteExecRequest {
        writer: "me".into(),
        ..write_request(&id, 4, b"two\n", false)
    };
    client.write_exec(write).await.unwrap();
    let from = Some(FollowFrom {
        place: Some(Place::Offsets(seen)),
    });
    let attach = ExecAttach {
        exec_id: id.clone(),
        from,
        writer: "me".into(),
        ..Default::default()
    };
    let mut stream = Bidi::open(&mut client, Request::Attach(attach.clone())).await.unwrap();
    stream.output = Output::at(seen);
    stream.until(|stream| stream.output.stdout == b"got two\n").await;
    stream.send(Request::Signal(ExecSignal { signal: 1 })).await;
    stream.until(|stream| stream.output.stdout.ends_with(b"hup\n")).await;
    // A stream that breaks off detaches, too.
    drop(stream);
    let mut stream = Bidi::open(&mut client, Request::Start(start)).await.unwrap();
    stream.stdin(8, "three\n", true).await;
    while stream.next().await {}
    assert!(stream.closed && stream.accepted == 14);
    assert_eq!(
        String::from_utf8_lossy(&stream.output.stdout),
        "got one\ngot two\nhup\ngot three\nend\n"
    );
    assert_eq!(stream.output.exit.unwrap().status, Some(Status::Code(5)));
    assert!(stream.output.ended.is_some());

    // Attaching never starts.
    let nobody = ExecAttach {
        exec_id: new_id("nobody"),
        ..Default::default()
    };
    let refused = Bidi::open(&mut client, Request::Attach(nobody)).await.unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::ExecNotFound);
    let refused = Bidi::open(&mut client, Request::Detach(ExecDetach {}))
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
    // A refusal of what comes later ends the stream, and leaves the exec alone.
    let other = new_id("other");
    let spec = Some(with_stdin(mark(shell("exec sleep 1000"), &other)));
    let start = ExecStart {
        exec_id: other.clone(),
        spec,
        ..Default::default()
    };
    let mut stream = Bidi::open(&mut client, Request::Start(start.clone())).await.unwrap();
    stream.stdin(7, "x", false).await;
    let refused = loop {
        match tokio::time::timeout(LIMIT, stream.responses.message()).await.unwrap() {
            Ok(response) => assert!(response.is_some(), "the stream ended well"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(reason(&refused), ErrorReason::StdinGap);
    assert_eq!(marked(&other).len(), 1);
    let mut stream = Bidi::open(&mut client, Request::Start(start)).await.unwrap();
    stream.send(Request::Signal(ExecSignal { signal: 9 })).await;
    while stream.next().await {}
    assert_eq!(stream.output.exit.unwrap().status, Some(Status::Signal(9)));
}
