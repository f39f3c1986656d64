//! The shape of every answer and error, and where paths begin.

use super::*;

#[tokio::test]
async fn every_operation_answers_in_its_shape() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        let ops = vec![
            mkdir("/d", false),
            write("/d/f", "one two one\n"),
            stat("/d/f"),
            read("/d/f"),
            edit("/d/f", "two", "2"),
            symlink("/d/l", "f"),
            readlink("/d/l"),
            stat("/d/l"),
            stat_followed("/d/l"),
            hash("/d/l"),
            copy("/d", "/e"),
            relocate("/e/f", "/e/g"),
            touch("/e/t"),
            chmod("/e/g", 0o640),
            list("/", 2),
            glob("/", "**/[fg]"),
            grep("/", "one"),
            remove("/e", true),
        ];
        let outcomes = run_ops(&mut client, &view, ops).await;
        let made = info(outcomes[0].clone());
        assert_eq!(
            (made.path.as_str(), made.r#type(), made.mode),
            ("/d", FileType::Directory, 0o755)
        );
        let on_disk = fs::metadata(work.join("d/f")).unwrap();
        let facts = info(outcomes[2].clone());
        assert_eq!(
            (facts.path.as_str(), facts.r#type(), facts.size, facts.mode),
            ("/d/f", FileType::Regular, 12, 0o644)
        );
        assert_eq!((facts.uid, facts.gid, facts.links), (0, 0, 1));
        assert_eq!(facts, info(outcomes[1].clone()), "a write answers what stat does");
        let text = content(&outcomes[3]);
        assert_eq!(
            (&text.content[..], text.offset, text.more_before, text.more_after),
            (&b"one two one\n"[..], 0, false, false)
        );
        assert_eq!((text.binary, text.info.as_ref()), (false, Some(&facts)));
        let Outcome::Edit(edited) = &outcomes[4] else {
            panic!("{:?}", outcomes[4])
        };
        assert_eq!((edited.replacements, edited.info.as_ref().unwrap().size), (1, 10));
        assert_eq!(edited.info.as_ref().unwrap().inode, on_disk.ino());
        assert_eq!(fs::read(work.join("d/f")).unwrap(), b"one 2 one\n");
        let link = info(outcomes[5].clone());
        assert_eq!(
            (link.r#type(), link.symlink_target.as_str(), link.size),
            (FileType::Symlink, "f", 1)
        );
        assert!(
            matches!(&outcomes[6], Outcome::Readlink(link) if link.target == "f"),
            "{:?}",
            outcomes[6]
        );
        assert_eq!(info(outcomes[7].clone()), link);
        assert_eq!(info(outcomes[8].clone()).inode, on_disk.ino());
        let Outcome::Hash(hash) = &outcomes[9] else {
            panic!("{:?}", outcomes[9])
        };
        assert_eq!((&hash.sha256[..], hash.size), (&Sha256::digest(b"one 2 one\n")[..], 10));
        assert_eq!(info(outcomes[10].clone()).path, "/e");
        assert_eq!(info(outcomes[11].clone()).path, "/e/g");
        assert_eq!(info(outcomes[12].clone()).size, 0);
        assert_eq!(info(outcomes[13].clone()).mode, 0o640);
        let Outcome::List(listed) = &outcomes[14] else {
            panic!("{:?}", outcomes[14])
        };
        let names: Vec<_> = listed.entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(names, ["/d", "/d/f", "/d/l", "/e", "/e/g", "/e/l", "/e/t"]);
        assert_eq!(listed.next_page_token, "");
        let Outcome::Glob(globbed) = &outcomes[15] else {
            panic!("{:?}", outcomes[15])
        };
        let names: Vec<_> = globbed.entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!((names, globbed.truncated), (vec!["/d/f", "/e/g"], false));
        let Outcome::Grep(found) = &outcomes[16] else {
            panic!("{:?}", outcomes[16])
        };
        let names: Vec<_> = found
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.lines[0].number))
            .collect();
        assert_eq!((names, found.files_searched), (vec![("/d/f", 1), ("/e/g", 1)], 3));
        assert_eq!(&found.files[0].lines[0].text[..], b"one 2 one");
        assert!(
            matches!(&outcomes[17], Outcome::Remove(removed) if removed.removed == 4),
            "{:?}",
            outcomes[17]
        );
        assert!(!work.join("e").exists());
    })
    .await;
}

#[tokio::test]
async fn errors_name_their_reason_and_path() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let ops = vec![mkdir("/d/e", true), write("/f", "aa\0aa"), symlink("/l", "nowhere")];
        run_ops(&mut client, &view, ops).await;
        for (op, expected, path) in [
            (read("/missing"), ErrorReason::FileNotFound, "/missing"),
            (read("/d"), ErrorReason::FileIsDirectory, "/d"),
            (read("/f/x"), ErrorReason::FileNotDirectory, "/f/x"),
            (list("/f", 1), ErrorReason::FileNotDirectory, "/f"),
            (mkdir("/d", false), ErrorReason::FileAlreadyExists, "/d"),
            (mkdir("/x/y", false), ErrorReason::FileNotFound, "/x/y"),
            (remove("/d", false), ErrorReason::FileDirectoryNotEmpty, "/d"),
            (remove("/missing", false), ErrorReason::FileNotFound, "/missing"),
            (
                write_as("/f", "", WriteMode::CreateOnly),
                ErrorReason::FileAlreadyExists,
                "/f",
            ),
            (
                write_as("/l", "", WriteMode::CreateOnly),
                ErrorReason::FileAlreadyExists,
                "/l",
            ),
            (write("/d", ""), ErrorReason::FileIsDirectory, "/d"),
            (edit("/f", "b", "c"), ErrorReason::EditNoMatch, "/f"),
            (edit("/f", "a", "c"), ErrorReason::EditAmbiguous, "/f"),
            (edit("/f", "", "c"), ErrorReason::InvalidArgument, "/f"),
            (readlink("/f"), ErrorReason::FileIo, "/f"),
            (glob("/", "[a"), ErrorReason::PatternInvalid, ""),
            (grep("/", "(a"), ErrorReason::PatternInvalid, ""),
            (relocate("/d", "/d/e/d"), ErrorReason::PathInvalid, "/d/e/d"),
            (copy("/d", "/d/e/d"), ErrorReason::PathInvalid, "/d/e/d"),
            (chmod("/f", 0o10000), ErrorReason::InvalidArgument, "/f"),
        ] {
            let outcome = run_op(&mut client, &view, op.clone()).await;
            let error = failed(&outcome);
            assert_eq!(error.reason(), expected, "{op:?}: {error:?}");
            if !matches!(expected, ErrorReason::InvalidArgument | ErrorReason::PatternInvalid) {
                assert_eq!(error.path, path, "{op:?}");
            }
            assert!(!error.message.is_empty());
            assert_eq!(error.count, if expected == ErrorReason::EditAmbiguous { 4 } else { 0 });
        }
    })
    .await;
}

#[tokio::test]
async fn paths_begin_at_the_root_of_the_view_or_the_working_directory() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        fs::create_dir_all(work.join("root/d")).unwrap();
        let virtual_view = rooted(&work.join("root"));
        let outcomes = run_ops(
            &mut client,
            &virtual_view,
            vec![write("/d/f", "a"), write("d/g", "b"), list("/", 5)],
        )
        .await;
        assert_eq!(info(outcomes[0].clone()).path, "/d/f");
        assert_eq!(info(outcomes[1].clone()).path, "/d/g");
        assert!(work.join("root/d/f").exists() && work.join("root/d/g").exists());
        let sandbox = FileView::default();
        let absolute = shown(&work.join("root/d/f"));
        let ops = vec![
            stat("root/d/f"),
            stat(&absolute),
            write("new", ""),
            glob("", "root/d/*"),
            grep("", "a"),
        ];
        let outcomes = run_ops(&mut client, &sandbox, ops).await;
        assert_eq!(info(outcomes[0].clone()).path, absolute);
        assert_eq!(info(outcomes[0].clone()), info(outcomes[1].clone()));
        assert!(work.join("new").exists());
        let Outcome::Glob(globbed) = &outcomes[3] else {
            panic!("{:?}", outcomes[3])
        };
        assert_eq!(globbed.entries[0].path, absolute);
        let Outcome::Grep(found) = &outcomes[4] else {
            panic!("{:?}", outcomes[4])
        };
        assert_eq!(found.files[0].path, absolute);
    })
    .await;
}
