//! Transfers, archives and watches lead no further than operations.

use super::*;

#[tokio::test]
async fn transfers_and_watches_take_hostile_paths_no_further() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let (present, missing) = (fence.paths("secret"), fence.paths("absent"));
        for (present, missing) in present.iter().zip(&missing) {
            let mut answers = Vec::new();
            for path in [present, missing] {
                fence.set_up();
                let mut answer = Vec::new();
                for format in [TransferFormat::Files, TransferFormat::Tar] {
                    let down = download(&mut client, &fence.view(), &[path], format).await;
                    assert_eq!((down.entries.len(), down.failures.len()), (0, 1), "{path}: {down:?}");
                    fence.check_answer(&down);
                    answer.push(format!("{down:?}"));
                }
                for kind in [FileType::Regular, FileType::Directory, FileType::Symlink] {
                    let target = if kind == FileType::Symlink { "intruder" } else { "" };
                    let entry = UploadEntry {
                        path: path.clone(),
                        r#type: kind.into(),
                        symlink_target: target.into(),
                        ..Default::default()
                    };
                    let content: &[u8] = if kind == FileType::Regular { b"intruder" } else { b"" };
                    let start = upload_start(&fence.view());
                    let up = upload(&mut client, start, upload_entry(entry, content)).await.unwrap();
                    if up.entries > 0 {
                        fence.set_up();
                    }
                    answer.push(format!("{up:?}"));
                }
                let tar = archive(&[("f", EntryType::Regular, "", b"intruder")]);
                let up = upload_tar(&mut client, &fence.view(), path, &tar).await;
                answer.push(format!("{:?}", up.map_err(|status| reason(&status))));
                fence.set_up();
                let chunk = WriteChunkRequest {
                    upload_id: new_id("chunk"),
                    view: Some(fence.view()),
                    entry: Some(file_at(path)),
                    data: Bytes::from_static(b"intruder"),
                    finish: true,
                    ..Default::default()
                };
                let chunk = client.write_chunk(chunk).await;
                answer.push(format!(
                    "{:?}",
                    chunk
                        .map(|ok| ok.into_inner().accepted)
                        .map_err(|status| reason(&status))
                ));
                let watch = WatchFilesRequest {
                    view: Some(fence.view()),
                    path: path.clone(),
                    ..Default::default()
                };
                let watch = client.watch_files(watch).await.map(drop);
                answer.push(format!("{:?}", watch.map_err(|status| reason(&status))));
                fence.check(path);
                answers.push(
                    answer
                        .iter()
                        .map(|text| text.replace("secret", "absent"))
                        .collect::<Vec<_>>(),
                );
            }
            assert_eq!(answers[0], answers[1], "{present} tells that it exists");
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_tells_nothing_of_what_links_lead_to() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        let request = WatchFilesRequest {
            view: Some(fence.view()),
            path: "/".into(),
            recursive: true,
            ..Default::default()
        };
        let mut events = client.watch_files(request).await.unwrap().into_inner();
        events.message().await.unwrap().unwrap();
        fs::write(fence.outside.join("made-outside"), "").unwrap();
        fs::remove_file(fence.outside.join("made-outside")).unwrap();
        fs::write(fence.root.join("last"), "").unwrap();
        loop {
            let message = events.message().await.unwrap().unwrap().message.unwrap();
            let watch_files_response::Message::Event(event) = message else {
                continue;
            };
            assert!(event.path == "/last", "{event:?}");
            break;
        }
    })
    .await;
}

#[tokio::test]
async fn archives_unpack_beneath_their_directory_only() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let outside = fence.outside.to_str().unwrap().to_owned();
        let (file, sym, hard, dir) = (
            EntryType::Regular,
            EntryType::Symlink,
            EntryType::Link,
            EntryType::Directory,
        );
        let absolute = format!("{outside}/secret");
        let absolute_file = format!("{outside}/f");
        let entries: Vec<(&str, EntryType, &str, &[u8])> = vec![
            ("../outside/f", file, "", b"intruder"),
            ("a/../../outside/f", file, "", b"intruder"),
            ("..", dir, "", b""),
            ("../new", dir, "", b""),
            // An absolute name is taken beneath the directory.
            (&absolute_file, file, "", b"taken inside"),
            ("up", sym, "../../outside", b""),
            ("up/f", file, "", b"intruder"),
            ("up/new/f", file, "", b"intruder"),
            ("up/new", dir, "", b""),
            ("up/link", sym, "x", b""),
            ("abs", sym, &outside, b""),
            ("abs/f", file, "", b"intruder"),
            ("abs/sub", dir, "", b""),
            ("leaf", sym, &absolute, b""),
            ("leaf", file, "", b"replaced the link"),
            ("hard1", hard, "../../outside/secret", b""),
            ("hard2", hard, &absolute, b""),
            ("hard3", hard, "up/secret", b""),
            ("hard4", hard, "abs/secret", b""),
            ("proc", sym, "/proc/self/root", b""),
            ("proc/f", file, "", b"intruder"),
            ("dev", EntryType::Char, "", b""),
            ("good", file, "", b"good"),
        ];
        fs::create_dir(fence.root.join("in")).unwrap();
        let answer = upload_tar(&mut client, &fence.view(), "in", &archive(&entries))
            .await
            .unwrap();
        fence.check("an archive");
        fence.check_answer(&answer);
        let bad: Vec<_> = answer
            .failures
            .iter()
            .map(|failure| failure.error.clone().unwrap().path)
            .collect();
        for name in [
            "/in/up/f",
            "/in/up/new/f",
            "/in/abs/f",
            "/in/hard1",
            "/in/hard2",
            "/in/hard3",
            "/in/hard4",
            "/in/proc/f",
            "/in/dev",
        ] {
            assert!(bad.iter().any(|path| path == name), "{name} is missing in {bad:?}");
        }
        let at = |name: &str| fence.root.join("in").join(name);
        assert_eq!(
            fs::read(at(absolute_file.trim_start_matches('/'))).unwrap(),
            b"taken inside"
        );
        assert_eq!(fs::read(at("good")).unwrap(), b"good");
        assert_eq!(fs::read(at("leaf")).unwrap(), b"replaced the link");
        assert!(at("leaf").symlink_metadata().unwrap().is_file());
        for name in ["hard1", "hard2", "hard3", "hard4"] {
            assert!(at(name).symlink_metadata().is_err(), "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_download_of_a_tree_keeps_hostile_links_as_links() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        for format in [TransferFormat::Files, TransferFormat::Tar] {
            let down = download(&mut client, &fence.view(), &["/"], format).await;
            assert_eq!(down.summary.unwrap().failures, 0, "{down:?}");
            let content: Vec<u8> = down
                .entries
                .iter()
                .flat_map(|(_, content, _)| content.clone())
                .chain(down.tar.clone())
                .collect();
            let text = String::from_utf8_lossy(&content);
            assert!(!text.contains(CONTENT) && !text.contains(NAME));
            for (entry, content, _) in &down.entries {
                let info = entry.info.as_ref().unwrap();
                assert!(content.is_empty() || &content[..] == b"inside", "{info:?}");
                assert!(
                    info.path.starts_with("/dir") || info.path.matches('/').count() == 1,
                    "{info:?}"
                );
            }
            let links = match format {
                TransferFormat::Files => down
                    .entries
                    .iter()
                    .filter(|(entry, ..)| entry.info.as_ref().unwrap().r#type() == FileType::Symlink)
                    .count(),
                _ => {
                    let mut archive = tar::Archive::new(&down.tar[..]);
                    archive
                        .entries()
                        .unwrap()
                        .filter(|entry| entry.as_ref().unwrap().header().entry_type().is_symlink())
                        .count()
                }
            };
            assert_eq!(links, 25);
        }
    })
    .await;
}
