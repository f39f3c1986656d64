//! Calls that fail as a whole, each in a runtime of its own.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{
        FileOpsRequest, FileView, GetExecRequest, PtySize, ResizeExecRequest, TransferFormat, UploadEntry,
        UploadEntryEnd, UploadStart, WatchFilesRequest, WriteChunkRequest, file_op_result::Result as Outcome,
        runtime_service_client::RuntimeServiceClient, upload_request::Message,
    },
    v1::ErrorReason,
};
use sandgate_tests::{Runtime, shell, start_request, stop_with_grace};
use tonic::transport::Endpoint;

use crate::{
    Refused, SOMEBODY, check,
    common::{batch, chunk, confined, listening, run, signal, started, stat, stdin, stream},
};

pub(crate) async fn an_id_that_is_none() -> Refused {
    let status = started()
        .await
        .1
        .start_exec(start_request("no id", shell("true")))
        .await
        .unwrap_err();
    assert_eq!(Refusal::from_status(&status).unwrap().field.as_deref(), Some("exec_id"));
    Refused::Call(status)
}

pub(crate) async fn a_start_while_stopping() -> Refused {
    let (_runtime, mut client) = started().await;
    client
        .start_exec(start_request(
            "stubborn",
            shell("trap '' TERM; echo on; while :; do sleep 1; done"),
        ))
        .await
        .unwrap();
    stop_with_grace(&mut client, 30).await;
    // The stop is answered before it begins, so that its caller has an answer; a start may come in between.
    for number in 0.. {
        let id = format!("late-{number}");
        if let Err(status) = client.start_exec(start_request(&id, shell("true"))).await {
            return Refused::Call(status);
        }
    }
    unreachable!()
}

pub(crate) async fn a_call_without_a_token() -> Refused {
    let keys = tempfile::tempdir().unwrap();
    std::fs::write(keys.path().join("jwks.json"), r#"{"keys": []}"#).unwrap();
    // One of many addresses of this machine, so that the port need not be sought.
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let address = format!("127.251.{high}.{low}:8888");
    let dir = keys.path().to_str().unwrap();
    let _runtime = Runtime::with_args(&["--listen", &address, "--keys", dir, "--audience", "test/default/pod"]).await;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = RuntimeServiceClient::new(endpoint.connect().await.unwrap());
    Refused::Call(client.start_exec(start_request("id", shell("true"))).await.unwrap_err())
}

pub(crate) async fn one_exec_too_many() -> Refused {
    let runtime = Runtime::with_args(&["--max-alive", "1"]).await;
    let mut client = runtime.connect().await;
    client
        .start_exec(start_request("first", shell("sleep 1000")))
        .await
        .unwrap();
    let status = client
        .start_exec(start_request("second", shell("true")))
        .await
        .unwrap_err();
    assert!(Refusal::from_status(&status).unwrap().retry_after.is_some());
    // It did not run, so its id is free.
    signal(&mut client, "first", 9).await.unwrap();
    while let Err(status) = client.start_exec(start_request("second", shell("true"))).await {
        assert_eq!(sandgate_tests::reason(&status), ErrorReason::LimitReached);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Refused::Call(status)
}

pub(crate) async fn one_upload_too_many() -> Refused {
    let (_runtime, mut client) = started().await;
    for number in 0..64 {
        client.write_chunk(chunk(&format!("upload-{number}"), 0)).await.unwrap();
    }
    Refused::Call(client.write_chunk(chunk("one-more", 0)).await.unwrap_err())
}

pub(crate) async fn another_incarnation() -> Refused {
    let request = FileOpsRequest {
        expected_incarnation: "another".into(),
        ..Default::default()
    };
    Refused::Call(started().await.1.file_ops(request).await.unwrap_err())
}

pub(crate) async fn an_unknown_exec() -> Refused {
    let request = GetExecRequest {
        exec_id: "unknown".into(),
    };
    Refused::Call(started().await.1.get_exec(request).await.unwrap_err())
}

pub(crate) async fn another_request_of_the_same_id() -> Refused {
    let (_runtime, mut client) = started().await;
    run(&mut client, "same", "true").await;
    Refused::Call(
        client
            .start_exec(start_request("same", shell("false")))
            .await
            .unwrap_err(),
    )
}

pub(crate) async fn a_record_that_was_dropped() -> Refused {
    let runtime = Runtime::with_args(&["--keep-finished", "0"]).await;
    let mut client = runtime.connect().await;
    run(&mut client, "old", "true").await;
    while client.get_exec(GetExecRequest { exec_id: "old".into() }).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Refused::Call(
        client
            .start_exec(start_request("old", shell("true")))
            .await
            .unwrap_err(),
    )
}

pub(crate) async fn a_signal_after_the_end() -> Refused {
    let (_runtime, mut client) = started().await;
    run(&mut client, "over", "true").await;
    // The tree is known to be empty a moment after the program's end.
    loop {
        if let Err(status) = signal(&mut client, "over", 15).await {
            return Refused::Call(status);
        }
    }
}

pub(crate) async fn stdin_that_was_not_asked_for() -> Refused {
    let (_runtime, mut client) = started().await;
    client
        .start_exec(start_request("deaf", shell("sleep 1000")))
        .await
        .unwrap();
    Refused::Call(client.write_exec(stdin("deaf", "me", 0)).await.unwrap_err())
}

pub(crate) async fn stdin_after_its_close() -> Refused {
    let (_runtime, mut client) = listening().await;
    let mut last = stdin("cat", "me", 0);
    last.stdin.as_mut().unwrap().close = true;
    client.write_exec(last).await.unwrap();
    Refused::Call(client.write_exec(stdin("cat", "me", 5)).await.unwrap_err())
}

pub(crate) async fn a_second_writer() -> Refused {
    let (_runtime, mut client) = listening().await;
    client.write_exec(stdin("cat", "me", 0)).await.unwrap();
    Refused::Call(client.write_exec(stdin("cat", "you", 5)).await.unwrap_err())
}

pub(crate) async fn stdin_that_leaves_bytes_out() -> Refused {
    let (_runtime, mut client) = listening().await;
    let status = client.write_exec(stdin("cat", "me", 7)).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).unwrap().metadata["accepted"], "0");
    Refused::Call(status)
}

pub(crate) async fn a_resize_without_a_terminal() -> Refused {
    let (_runtime, mut client) = listening().await;
    let size = Some(PtySize { columns: 80, rows: 24 });
    let request = ResizeExecRequest {
        exec_id: "cat".into(),
        size,
        ..Default::default()
    };
    Refused::Call(client.resize_exec(request).await.unwrap_err())
}

async fn no_ops_in(view: FileView) -> Refused {
    let request = FileOpsRequest {
        view: Some(view),
        ..Default::default()
    };
    Refused::Call(started().await.1.file_ops(request).await.unwrap_err())
}

pub(crate) async fn a_relative_root() -> Refused {
    let view = FileView {
        root_dir: "here".into(),
        ..Default::default()
    };
    no_ops_in(view).await
}

pub(crate) async fn a_watch_on_nothing() -> Refused {
    let request = WatchFilesRequest {
        path: "missing".into(),
        ..Default::default()
    };
    Refused::Call(started().await.1.watch_files(request).await.unwrap_err())
}

pub(crate) async fn no_room_for_records() -> Refused {
    let (runtime, mut client) = started().await;
    let pid = Pid::from_raw(runtime.pid().try_into().unwrap());
    let before = prlimit(
        pid,
        Resource::Fsize,
        Rlimit {
            current: Some(0),
            maximum: None,
        },
    )
    .unwrap();
    let status = client
        .start_exec(start_request("unnoted", shell("true")))
        .await
        .unwrap_err();
    prlimit(pid, Resource::Fsize, before).unwrap();
    // It did not run, so its id is free.
    run(&mut client, "unnoted", "true").await;
    Refused::Call(status)
}

pub(crate) async fn a_chunk_with_another_hash() -> Refused {
    let (runtime, mut client) = started().await;
    let last = WriteChunkRequest {
        finish: true,
        sha256: vec![0; 32].into(),
        ..chunk("upload", 0)
    };
    let status = client.write_chunk(last).await.unwrap_err();
    assert!(!runtime.workspace().join("uploaded").exists());
    Refused::Call(status)
}

pub(crate) async fn an_entry_with_another_hash() -> Refused {
    let (_runtime, mut client) = started().await;
    let entry = |path: &str| {
        Message::Entry(UploadEntry {
            path: path.into(),
            ..Default::default()
        })
    };
    let messages = [
        Message::Start(UploadStart::default()),
        entry("bad"),
        Message::EntryEnd(UploadEntryEnd {
            sha256: vec![0; 32].into(),
        }),
        entry("good"),
        Message::EntryEnd(UploadEntryEnd::default()),
    ];
    let answer = client.upload(stream(messages)).await.unwrap().into_inner();
    assert_eq!((answer.entries, answer.failures_total), (1, 1));
    Refused::Part(answer.failures[0].error.clone().unwrap())
}

pub(crate) async fn a_tar_that_is_none() -> Refused {
    let (_runtime, mut client) = started().await;
    let start = UploadStart {
        format: TransferFormat::Tar.into(),
        directory: "tar".into(),
        ..Default::default()
    };
    let messages = [Message::Start(start), Message::Chunk(vec![b'x'; 1024].into())];
    Refused::Call(client.upload(stream(messages)).await.unwrap_err())
}

pub(crate) async fn another_batch_of_the_same_id() -> Refused {
    let (_runtime, mut client) = started().await;
    client.file_ops(batch("same", vec![stat("/")])).await.unwrap();
    Refused::Call(client.file_ops(batch("same", vec![stat("/etc")])).await.unwrap_err())
}

pub(crate) async fn a_batch_long_ago() -> Refused {
    let (_runtime, mut client) = started().await;
    for number in 0..=1_000 {
        client
            .file_ops(batch(&format!("batch-{number}"), vec![]))
            .await
            .unwrap();
    }
    client.file_ops(batch("batch-1", vec![])).await.unwrap();
    Refused::Call(client.file_ops(batch("batch-0", vec![])).await.unwrap_err())
}

pub(crate) async fn a_chunk_of_no_upload() -> Refused {
    Refused::Call(started().await.1.write_chunk(chunk("upload", 1)).await.unwrap_err())
}

pub(crate) async fn a_chunk_that_leaves_bytes_out() -> Refused {
    let (_runtime, mut client) = started().await;
    client.write_chunk(chunk("upload", 0)).await.unwrap();
    Refused::Call(client.write_chunk(chunk("upload", 6)).await.unwrap_err())
}

pub(crate) async fn no_more_watches() -> Refused {
    let runtime = confined().await;
    let request = WatchFilesRequest {
        path: "/".into(),
        ..Default::default()
    };
    Refused::Call(runtime.connect().await.watch_files(request).await.unwrap_err())
}

pub(crate) async fn nobody_of_that_name() -> Refused {
    let view = FileView {
        user: "nobody-of-that-name".into(),
        ..Default::default()
    };
    no_ops_in(view).await
}

pub(crate) async fn another_user_without_the_right() -> Refused {
    let runtime = confined().await;
    let mut client = runtime.connect().await;
    let view = Some(FileView {
        user: SOMEBODY.into(),
        ..Default::default()
    });
    let request = FileOpsRequest {
        view: view.clone(),
        ops: vec![stat("/")],
        ..Default::default()
    };
    let mut results = client.file_ops(request).await.unwrap().into_inner().results;
    let Some(Outcome::Error(error)) = results.remove(0).result else {
        panic!("it acted as another user")
    };
    check(ErrorReason::UserNotPermitted, &Refused::Part(error));
    let request = WriteChunkRequest {
        view,
        ..chunk("upload", 0)
    };
    let status = client.write_chunk(request).await.unwrap_err();
    // It goes on as itself.
    run(&mut client, "still-there", "true").await;
    Refused::Call(status)
}
