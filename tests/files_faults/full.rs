//! A disk that is full, of bytes or of inodes, loses nothing.

use super::*;

#[tokio::test]
async fn a_full_disk_loses_nothing() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let disk = Mounted::tmpfs(runtime.workspace().join("disk"), "size=4m");
        let view = rooted(&disk.0);
        let old = "old ".repeat(400_000);
        run_op(&mut client, &view, write("/f", old.clone())).await;
        run_op(&mut client, &view, write("/small", "small")).await;
        let before = snapshot(&disk.0);
        let big = vec![b'n'; 3 << 20];
        let grow = Op::Edit(EditOp {
            path: "/f".into(),
            old_text: Bytes::from_static(b"old"),
            new_text: Bytes::from_static(b"twice as much"),
            replace_all: true,
            ..Default::default()
        });
        let outside = runtime.workspace().join("big");
        fs::write(&outside, &big).unwrap();
        for op in [
            write("/f", big.clone()),
            write("/new", big.clone()),
            write_as("/new", big.clone(), WriteMode::CreateOnly),
            grow,
        ] {
            let name = format!("{op:?}").chars().take(60).collect::<String>();
            let outcome = run_op(&mut client, &view, op).await;
            assert_eq!(failed(&outcome).reason(), ErrorReason::DiskFull, "{name}: {outcome:?}");
            assert_eq!(snapshot(&disk.0), before, "{name}");
        }
        let sandbox = FileView::default();
        for op in [
            copy("big", "disk/f"),
            copy("big", "disk/new"),
            relocate("big", "disk/new"),
        ] {
            let outcome = run_op(&mut client, &sandbox, op.clone()).await;
            assert_eq!(failed(&outcome).reason(), ErrorReason::DiskFull, "{op:?}: {outcome:?}");
            assert_eq!(snapshot(&disk.0), before, "{op:?}");
            assert!(outside.exists());
        }

        let mut messages = upload_entry(file_at("/f"), &big);
        messages.extend(upload_entry(file_at("/small2"), b"fits"));
        let answer = upload(&mut client, upload_start(&view), messages).await.unwrap();
        assert_eq!((answer.entries, answer.failures_total), (1, 1), "{answer:?}");
        let error = answer.failures[0].error.clone().unwrap();
        assert_eq!((error.reason(), error.path.as_str()), (ErrorReason::DiskFull, "/f"));
        assert_eq!(fs::read(disk.0.join("small2")).unwrap(), b"fits");
        fs::remove_file(disk.0.join("small2")).unwrap();

        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in [("f", &big[..]), ("small2", b"fits")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, content).unwrap();
        }
        let answer = upload_tar(&mut client, &view, "/", &builder.into_inner().unwrap())
            .await
            .unwrap();
        assert_eq!((answer.entries, answer.failures_total), (1, 1), "{answer:?}");
        assert_eq!(
            answer.failures[0].error.clone().unwrap().reason(),
            ErrorReason::DiskFull
        );
        fs::remove_file(disk.0.join("small2")).unwrap();

        // A chunk that found no room can be sent again when there is some.
        fs::write(disk.0.join("ballast"), vec![0; 1 << 20]).unwrap();
        let chunk = |offset: usize, finish| WriteChunkRequest {
            upload_id: "full".into(),
            view: Some(view.clone()),
            entry: Some(file_at("/f")),
            offset: offset as u64,
            data: Bytes::copy_from_slice(&big[offset..offset + (1 << 20)]),
            finish,
            sha256: if finish {
                Bytes::copy_from_slice(&Sha256::digest(&big[..2 << 20]))
            } else {
                Bytes::new()
            },
            ..Default::default()
        };
        assert_eq!(
            client.write_chunk(chunk(0, false)).await.unwrap().into_inner().accepted,
            1 << 20
        );
        let full = client.write_chunk(chunk(1 << 20, true)).await.unwrap_err();
        assert_eq!(
            (full.code(), reason(&full)),
            (Code::ResourceExhausted, ErrorReason::DiskFull)
        );
        assert_eq!(fs::read(disk.0.join("f")).unwrap(), old.as_bytes());
        fs::remove_file(disk.0.join("ballast")).unwrap();
        assert_eq!(
            client
                .write_chunk(chunk(1 << 20, true))
                .await
                .unwrap()
                .into_inner()
                .accepted,
            2 << 20
        );
        assert!(fs::read(disk.0.join("f")).unwrap() == big[..2 << 20]);

        // Room is found again, and nothing was left behind.
        run_op(&mut client, &view, write("/f", old.clone())).await;
        let after: Vec<_> = snapshot(&disk.0)
            .into_iter()
            .map(|(path, seen)| (path, seen.content))
            .collect();
        let expected: Vec<_> = before.into_iter().map(|(path, seen)| (path, seen.content)).collect();
        assert!(after == expected, "something was left behind");
        run_op(&mut client, &view, write("/again", vec![0; 2 << 20])).await;
        assert_eq!(fs::metadata(disk.0.join("again")).unwrap().len(), 2 << 20);
    })
    .await;
}

#[tokio::test]
async fn no_inodes_left_is_a_full_disk_too() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let disk = Mounted::tmpfs(runtime.workspace().join("disk"), "nr_inodes=8");
        let view = rooted(&disk.0);
        let ops = (0..20).map(|n| touch(format!("/{n}"))).collect();
        let outcomes = run_ops(&mut client, &view, ops).await;
        assert_eq!(failed(outcomes.last().unwrap()).reason(), ErrorReason::DiskFull);
        assert_eq!(litter(&disk.0), Vec::<PathBuf>::new());
    })
    .await;
}
