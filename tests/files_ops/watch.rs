//! A watch tells what changes.

use super::*;

async fn event(events: &mut Streaming<WatchFilesResponse>) -> FileEvent {
    loop {
        match events
            .message()
            .await
            .unwrap()
            .expect("the watch goes on")
            .message
            .unwrap()
        {
            watch_files_response::Message::Event(event) => return event,
            watch_files_response::Message::Heartbeat(_) => {}
        }
    }
}

/// Waits for an event, passing over what else the kernel tells of the same change.
async fn wait_for(events: &mut Streaming<WatchFilesResponse>, kind: Kind, path: &str) -> FileEvent {
    loop {
        let event = event(events).await;
        assert_ne!(event.kind(), Kind::Overflow);
        if event.kind() == kind && event.path == path {
            return event;
        }
    }
}

#[tokio::test]
async fn a_watch_tells_what_changes() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        fs::create_dir_all(work.join("w/old")).unwrap();
        let request = |recursive| WatchFilesRequest {
            view: Some(rooted(&work)),
            path: "/w".into(),
            recursive,
            ..Default::default()
        };
        let mut deep = client.watch_files(request(true)).await.unwrap().into_inner();
        let mut flat = client.watch_files(request(false)).await.unwrap().into_inner();
        for events in [&mut deep, &mut flat] {
            assert_eq!(event(events).await.kind(), Kind::Watching);
        }
        fs::write(work.join("w/f"), "").unwrap();
        wait_for(&mut deep, Kind::Created, "/w/f").await;
        fs::write(work.join("w/f"), "more").unwrap();
        wait_for(&mut deep, Kind::Modified, "/w/f").await;
        fs::rename(work.join("w/f"), work.join("w/old/g")).unwrap();
        let moved = wait_for(&mut deep, Kind::Moved, "/w/old/g").await;
        assert_eq!((moved.moved_from.as_str(), moved.directory), ("/w/f", false));
        fs::remove_file(work.join("w/old/g")).unwrap();
        wait_for(&mut deep, Kind::Deleted, "/w/old/g").await;
        // Directories that are made are watched too, with what is in them before the watch is there.
        fs::create_dir_all(work.join("w/new/a/b")).unwrap();
        fs::write(work.join("w/new/a/b/f"), "").unwrap();
        assert!(wait_for(&mut deep, Kind::Created, "/w/new").await.directory);
        wait_for(&mut deep, Kind::Created, "/w/new/a/b/f").await;
        fs::write(work.join("w/new/a/late"), "").unwrap();
        wait_for(&mut deep, Kind::Created, "/w/new/a/late").await;
        fs::rename(work.join("w/new"), work.join("w/renamed")).unwrap();
        wait_for(&mut deep, Kind::Moved, "/w/renamed").await;
        fs::write(work.join("w/renamed/a/later"), "").unwrap();
        wait_for(&mut deep, Kind::Created, "/w/renamed/a/later").await;
        let raw = OsStr::from_bytes(b"\xff");
        fs::write(work.join("w").join(raw), "").unwrap();
        loop {
            let event = event(&mut deep).await;
            if event.kind() == Kind::Created && event.path_raw == Bytes::from_static(b"/w/\xff") {
                break;
            }
        }
        // Our own operations are seen as well.
        run_op(&mut client, &rooted(&work), write("/w/op", "x")).await;
        wait_for(&mut deep, Kind::Created, "/w/op").await;
        fs::rename(work.join("w/op"), work.join("out")).unwrap();
        wait_for(&mut deep, Kind::Deleted, "/w/op").await;
        // A flat watch knows nothing of what is deeper.
        let mut seen = Vec::new();
        while seen
            .last()
            .is_none_or(|event: &FileEvent| event.kind() != Kind::Deleted || event.path != "/w/op")
        {
            seen.push(event(&mut flat).await);
        }
        for event in &seen {
            assert!(
                event.path.matches('/').count() <= 2 && event.moved_from.matches('/').count() <= 2,
                "{event:?}"
            );
        }
        fs::remove_dir_all(work.join("w")).unwrap();
        wait_for(&mut deep, Kind::RootGone, "/w").await;
        assert!(deep.message().await.unwrap().is_none(), "the stream ends");
        let gone = client.watch_files(request(true)).await.unwrap_err();
        assert_eq!(reason(&gone), ErrorReason::FileNotFound);
    })
    .await;
}
