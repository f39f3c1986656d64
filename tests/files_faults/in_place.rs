//! Files that can't be replaced, mount points and FIFOs, are written in place.

use super::*;

#[tokio::test]
async fn a_file_that_is_a_mount_point_is_written_in_place() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        fs::write(work.join("source"), "the source's content").unwrap();
        fs::create_dir(work.join("d")).unwrap();
        fs::write(work.join("d/f"), "under the mount").unwrap();
        let inode = fs::metadata(work.join("source")).unwrap().ino();
        let bound = Mounted::bind(&work.join("source"), work.join("d/f"));
        let written = info(run_op(&mut client, &view, write("/d/f", "short")).await);
        assert_eq!((written.inode, written.size), (inode, 5));
        assert_eq!(fs::read(work.join("source")).unwrap(), b"short");
        let outcome = run_op(&mut client, &view, edit("/d/f", "short", "a longer one")).await;
        assert!(matches!(outcome, Outcome::Edit(_)), "{outcome:?}");
        assert_eq!(fs::read(work.join("source")).unwrap(), b"a longer one");
        let start = upload_start(&view);
        let entry = file_at("/d/f");
        assert_eq!(
            upload(&mut client, start, upload_entry(entry, b"uploaded"))
                .await
                .unwrap()
                .entries,
            1
        );
        assert_eq!(fs::read(work.join("source")).unwrap(), b"uploaded");
        assert_eq!(litter(&work), Vec::<PathBuf>::new());
        drop(bound);
        assert_eq!(fs::read(work.join("d/f")).unwrap(), b"under the mount");
        assert_eq!(fs::read_dir(work.join("d")).unwrap().count(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_fifo_is_written_to_and_never_waited_for() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let path = runtime.workspace().join("fifo");
        let view = rooted(&runtime.workspace());
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        // Nobody reads it: no call hangs, and none takes it for a file.
        for op in [read("/fifo"), edit("/fifo", "a", "b"), copy("/fifo", "/other")] {
            let outcome = run_op(&mut client, &view, op.clone()).await;
            assert_eq!(failed(&outcome).reason(), ErrorReason::FileNotRegular, "{op:?}");
        }
        failed(&run_op(&mut client, &view, write("/fifo", "lost")).await);
        let reader = tokio::task::spawn_blocking({
            let path = path.clone();
            move || {
                let mut text = String::new();
                fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
                text
            }
        });
        // The reader is there when the kernel lets a writer in.
        loop {
            let outcome = run_op(&mut client, &view, write("/fifo", "through the pipe")).await;
            if matches!(outcome, Outcome::Info(_)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(reader.await.unwrap(), "through the pipe");
        assert!(path.metadata().unwrap().file_type().is_fifo());
        let facts = info(run_op(&mut client, &view, stat("/fifo")).await);
        assert_eq!(facts.r#type(), sandgate_proto::runtime::v1::FileType::Fifo);
    })
    .await;
}
