//! Transfers that a caller leaves: the old file stays, and nothing is held.

use super::*;

#[tokio::test]
async fn a_cancelled_upload_leaves_the_old_file() {
    within(async {
        let runtime = Runtime::start().await;
        let work = runtime.workspace();
        fs::write(work.join("f"), "old").unwrap();
        let before = tree(&work);
        for drop_connection in [false, true] {
            let mut client = runtime.connect().await;
            // With another handle the connection outlives the call.
            let kept = (!drop_connection).then(|| client.clone());
            let (sender, receiver) = mpsc::channel(1);
            let view = rooted(&work);
            let call = tokio::spawn(async move { client.upload(ReceiverStream::new(receiver)).await });
            let send = async |message| sender.send(UploadRequest { message: Some(message) }).await.unwrap();
            send(Message::Start(upload_start(&view))).await;
            send(Message::Entry(file_at("/f"))).await;
            for _ in 0..100 {
                send(Message::Chunk(vec![b'n'; CHUNK].into())).await;
            }
            call.abort();
            let _ = call.await;
            // When the runtime has let go of the temporary, nothing of it is left.
            while open_files(runtime.pid(), &work) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(tree(&work), before);
            assert_eq!(litter(&work), Vec::<PathBuf>::new());
            drop(kept);
        }
    })
    .await;
}

/// Files beneath a directory that the process has open, unnamed ones too.
fn open_files(pid: u32, directory: &Path) -> usize {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let paths = links.filter_map(|link| fs::read_link(link.path()).ok());
    paths
        .filter(|path| path.starts_with(directory) && path != directory)
        .count()
}

#[tokio::test]
async fn a_download_that_is_left_is_let_go() {
    within(async {
        let runtime = Runtime::start().await;
        let work = runtime.workspace();
        fs::File::create(work.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let mut client = runtime.connect().await;
        let request = download_request(&rooted(&work), &["/sparse"], TransferFormat::Unspecified);
        let mut stream = client.download(request).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        assert_eq!(open_files(runtime.pid(), &work), 1);
        drop(stream);
        while open_files(runtime.pid(), &work) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
