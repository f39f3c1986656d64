//! Operations on hostile paths and roots: they reach nothing outside, and tell nothing of it.

use super::*;

/// An answer without what two equal answers may differ in.
fn comparable(mut outcome: Outcome) -> String {
    let blur = |info: &mut FileInfo| {
        info.inode = 0;
        info.modified = None;
    };
    match &mut outcome {
        Outcome::Info(info) => blur(info),
        Outcome::List(result) => result.entries.iter_mut().for_each(blur),
        Outcome::Glob(result) => result.entries.iter_mut().for_each(blur),
        Outcome::Read(result) => result.info.iter_mut().for_each(blur),
        Outcome::Edit(result) => result.info.iter_mut().for_each(blur),
        _ => {}
    }
    format!("{outcome:?}").replace("secret", "absent")
}

#[tokio::test]
async fn a_hostile_path_answers_the_same_whether_or_not_there_is_something_outside() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let view = fence.view();
        let pairs: Vec<_> = fence.paths("secret").into_iter().zip(fence.paths("absent")).collect();
        for (present, missing) in &pairs {
            let mut answers: Vec<Vec<String>> = Vec::new();
            for path in [present, missing] {
                let mut outcomes = Vec::new();
                fence.set_up();
                for op in every_op(path, "/spare") {
                    let outcome = run_op(&mut client, &view, op.clone()).await;
                    fence.check_answer(&outcome);
                    fence.check_outcome(&outcome);
                    if matches!(outcome, Outcome::Info(_) | Outcome::Edit(_) | Outcome::Remove(_)) {
                        fence.set_up();
                    }
                    outcomes.push(comparable(outcome));
                }
                fence.check(path);
                answers.push(outcomes);
            }
            assert_eq!(answers[0], answers[1], "{present} tells that it exists");
        }
    })
    .await;
}

#[tokio::test]
async fn the_outside_of_the_root_can_not_be_read_by_any_path() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        for path in fence.paths("secret") {
            let outcomes = run_ops(
                &mut client,
                &fence.view(),
                vec![read(&path), hash(&path), stat_followed(&path)],
            )
            .await;
            for outcome in &outcomes {
                let error = failed(outcome);
                let known = [
                    ErrorReason::FileNotFound,
                    ErrorReason::PathOutsideRoot,
                    ErrorReason::FileNotDirectory,
                    ErrorReason::PathInvalid,
                ];
                assert!(known.contains(&error.reason()), "{path}: {error:?}");
            }
        }
        // What the links say is the sandbox's own business, and what is inside is there.
        let outcomes = run_ops(
            &mut client,
            &fence.view(),
            vec![read("top/dir/f"), readlink("dir-relative")],
        )
        .await;
        assert!(
            matches!(&outcomes[0], Outcome::Read(read) if &read.content[..] == b"inside"),
            "{outcomes:?}"
        );
        assert!(
            matches!(&outcomes[1], Outcome::Readlink(link) if link.target == "../outside"),
            "{outcomes:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_root_itself_is_opened_with_care() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        let root = fence.root.to_str().unwrap();
        for (root, expected) in [
            ("relative".to_owned(), ErrorReason::PathInvalid),
            ("/proc/self/root".to_owned(), ErrorReason::PathOutsideRoot),
            ("/proc/self/cwd".to_owned(), ErrorReason::PathOutsideRoot),
            (format!("{root}/slash"), ErrorReason::PathOutsideRoot),
            (format!("{root}/missing"), ErrorReason::FileNotFound),
            (format!("{root}/dir/f"), ErrorReason::FileNotDirectory),
            (format!("{root}/ring"), ErrorReason::PathOutsideRoot),
            (format!("{root}\0"), ErrorReason::PathInvalid),
        ] {
            let view = FileView {
                root_dir: root.clone(),
                ..Default::default()
            };
            let status = client.file_ops(files::batch(&view, vec![stat("/")])).await.unwrap_err();
            assert_eq!(reason(&status), expected, "{root}");
        }
    })
    .await;
}
