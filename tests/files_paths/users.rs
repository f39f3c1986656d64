//! Calls act as their user, and processes keep their secrets.

use super::*;

#[tokio::test]
async fn calls_act_as_their_user() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let open = work.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(work.join("private"), "for root alone").unwrap();
        fs::set_permissions(work.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(work.join("closed")).unwrap();
        fs::write(work.join("closed/f"), "for root alone").unwrap();
        fs::set_permissions(work.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        let nobody = FileView {
            user: "nobody".into(),
            ..Default::default()
        };
        for op in [
            read("private"),
            hash("private"),
            write("private", "x"),
            write_as("private", "x", WriteMode::Append),
            edit("private", "root", "x"),
            copy("private", "open/copy"),
            chmod("private", 0o644),
            touch("private"),
            remove("private", false),
            relocate("private", "open/moved"),
            write("new", "x"),
            mkdir("new", false),
            read("closed/f"),
            list("closed", 1),
            stat("closed/f"),
            symlink("new", "x"),
            remove("closed", true),
            write("/etc/passwd", "x"),
            relocate("open", "moved"),
        ] {
            let outcome = run_op(&mut client, &nobody, op.clone()).await;
            assert_eq!(failed(&outcome).reason(), ErrorReason::FilePermissionDenied, "{op:?}");
        }
        let outcome = run_op(&mut client, &nobody, grep(".", "root")).await;
        assert!(
            matches!(&outcome, Outcome::Grep(grep) if grep.files.is_empty() && grep.files_unreadable == 2),
            "{outcome:?}"
        );
        let down = download(&mut client, &nobody, &["private", "closed"], TransferFormat::Files).await;
        assert_eq!((down.failures.len(), down.entries.len()), (2, 0), "{down:?}");
        assert_eq!(fs::read(work.join("private")).unwrap(), b"for root alone");

        let ops = vec![
            write("open/f", "one\n"),
            mkdir("open/d", false),
            touch("open/t"),
            symlink("open/l", "f"),
        ];
        for outcome in run_ops(&mut client, &nobody, ops).await {
            let info = files::info(outcome);
            assert_eq!((info.uid, info.gid), (65534, 65534), "{info:?}");
        }
        let entry = file_at("open/up/loaded");
        let start = upload_start(&nobody);
        assert_eq!(
            upload(&mut client, start, upload_entry(entry, b"one\n"))
                .await
                .unwrap()
                .entries,
            1
        );
        let tar = archive(&[("tarred", EntryType::Regular, "", b"one\n")]);
        assert_eq!(
            upload_tar(&mut client, &nobody, "open/up", &tar).await.unwrap().entries,
            1
        );
        for name in ["f", "up", "up/loaded", "up/tarred"] {
            assert_eq!(open.join(name).metadata().unwrap().uid(), 65534, "{name}");
        }
        let mut spec = shell("for f in f up/loaded up/tarred; do echo two >> open/$f || exit 1; done; id -u");
        spec.user = "nobody".into();
        let answer = client
            .run(run_request(&new_id("edit"), spec))
            .await
            .unwrap()
            .into_inner();
        let exec = answer.exec.unwrap();
        assert_eq!(
            (exec.state(), exec.exit.unwrap().status),
            (ExecState::Exited, Some(Status::Code(0)))
        );
        for name in ["f", "up/loaded", "up/tarred"] {
            assert_eq!(fs::read_to_string(open.join(name)).unwrap(), "one\ntwo\n");
        }
        // The same connection, and the same threads, are root's again.
        let outcome = run_op(&mut client, &FileView::default(), read("private")).await;
        assert!(matches!(outcome, Outcome::Read(_)), "{outcome:?}");
        let none = FileView {
            user: "no-such-user".into(),
            ..Default::default()
        };
        let status = client.file_ops(files::batch(&none, vec![stat("/")])).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::UserNotFound);
    })
    .await;
}

#[tokio::test]
async fn what_procfs_tells_of_processes_is_closed() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let pid = runtime.pid();
        // The runtime has this in its environment.
        let marker = "SANDGATE_RUNTIME_BIN";
        for user in ["", "nobody"] {
            let view = FileView {
                user: user.into(),
                ..Default::default()
            };
            for path in [
                "/proc/self/mem".to_owned(),
                "/proc/self/environ".to_owned(),
                "/proc/thread-self/environ".to_owned(),
                format!("/proc/{pid}/environ"),
                format!("/proc/{pid}/mem"),
                format!("/proc/{pid}/maps"),
                format!("/proc/{pid}/task/{pid}/environ"),
                format!("/proc/{pid}/cwd/x"),
                format!("/proc/{pid}/exe"),
                "/proc/self/root/etc/passwd".to_owned(),
                "/proc/self/fd/0".to_owned(),
            ] {
                for op in [
                    read(&path),
                    hash(&path),
                    grep(&path, "."),
                    copy(&path, "stolen"),
                    write(&path, "x"),
                    write_as(&path, "x", WriteMode::Append),
                    edit(&path, "a", "b"),
                    relocate(&path, "stolen"),
                    chmod(&path, 0o777),
                    remove(&path, false),
                ] {
                    let outcome = run_op(&mut client, &view, op.clone()).await;
                    // Removing a link's own name is refused by the kernel, whatever the path leads to.
                    let reason = failed(&outcome).reason();
                    let refusals = [
                        ErrorReason::FilePermissionDenied,
                        ErrorReason::PathOutsideRoot,
                        ErrorReason::FileNotRegular,
                    ];
                    assert!(refusals.contains(&reason), "{user:?} {op:?}: {outcome:?}");
                }
                let paths = vec![DownloadPath {
                    path: path.clone(),
                    ..Default::default()
                }];
                let request = DownloadRequest {
                    view: Some(view.clone()),
                    paths,
                    ..Default::default()
                };
                let down = try_download(&mut client, request).await.unwrap();
                assert_eq!((down.failures.len(), down.entries.len()), (1, 0), "{path}: {down:?}");
            }
            let outcomes = run_ops(
                &mut client,
                &view,
                vec![
                    grep(format!("/proc/{pid}"), marker),
                    list(format!("/proc/{pid}"), 1),
                    readlink("/proc/self/exe"),
                ],
            )
            .await;
            outcomes.iter().for_each(|outcome| _ = failed(outcome));
            let mut include = grep("/proc", marker);
            if let Op::Grep(grep) = &mut include {
                grep.include = vec!["environ".into()];
            }
            let outcome = run_op(&mut client, &view, include).await;
            assert!(
                matches!(&outcome, Outcome::Grep(grep) if grep.files.is_empty()),
                "{outcome:?}"
            );
        }
        assert!(!runtime.workspace().join("stolen").exists());
    })
    .await;
}
