//! Batches: they go on or stop, fit their answer, and run once for an id.

use super::*;

const ANSWER: usize = 3 << 20;

#[tokio::test]
async fn a_batch_goes_on_or_stops_at_the_first_error() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let ops = || {
            vec![
                write_as("/log", "1", WriteMode::Append),
                read("/no"),
                write_as("/log", "2", WriteMode::Append),
                read("/log"),
            ]
        };
        let outcomes = run_ops(&mut client, &view, ops()).await;
        assert_eq!(failed(&outcomes[1]).reason(), ErrorReason::FileNotFound);
        assert_eq!(&content(&outcomes[3]).content[..], b"12");
        let mut request = batch(&view, ops());
        request.stop_on_error = true;
        let outcomes = send(&mut client, request).await;
        assert!(matches!(outcomes[0], Outcome::Info(_)) && matches!(outcomes[1], Outcome::Error(_)));
        for outcome in &outcomes[2..] {
            assert!(
                matches!(outcome, Outcome::NotRun(skipped) if skipped.why() == Why::EarlierError),
                "{outcome:?}"
            );
        }
        assert_eq!(fs::read(runtime.workspace().join("log")).unwrap(), b"121");
        let many = (0..1001).map(|_| stat("/")).collect();
        assert_eq!(
            reason(&client.file_ops(batch(&view, many)).await.unwrap_err()),
            ErrorReason::InvalidArgument
        );
        let empty = sandgate_proto::runtime::v1::FileOp { op: None };
        let mut request = batch(&view, vec![]);
        request.ops = vec![empty];
        failed(&send(&mut client, request).await[0]);
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_full_says_what_was_not_run() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        fs::write(runtime.workspace().join("big"), vec![b'x'; 4 << 20]).unwrap();
        let ops = vec![
            read("/big"),
            read("/big"),
            read("/big"),
            read("/big"),
            write("/after", ""),
        ];
        let answer = client.file_ops(batch(&view, ops)).await.unwrap().into_inner();
        assert!(prost_size(&answer) <= ANSWER);
        let outcomes: Vec<_> = answer
            .results
            .into_iter()
            .map(|result| result.result.unwrap())
            .collect();
        for outcome in &outcomes[..2] {
            assert_eq!(
                (content(outcome).content.len(), content(outcome).more_after),
                (1 << 20, true)
            );
        }
        for outcome in &outcomes[3..] {
            assert!(
                matches!(outcome, Outcome::NotRun(skipped) if skipped.why() == Why::AnswerFull),
                "{outcome:?}"
            );
        }
        assert!(
            !runtime.workspace().join("after").exists(),
            "what is not run has no effect"
        );
        let most = Op::Read(ReadOp {
            path: "/big".into(),
            max_bytes: 8 << 20,
            ..Default::default()
        });
        let outcome = run_op(&mut client, &view, most).await;
        assert!(
            matches!(&outcome, Outcome::Read(read) if read.content.len() == 2 << 20)
                || matches!(&outcome, Outcome::Error(_))
        );
        // Lists, globs and searches are cut to fit.
        let long = "n".repeat(200);
        for n in 0..2_000 {
            fs::write(runtime.workspace().join(format!("{n:04}-{long}")), "match\n").unwrap();
        }
        let wide = || {
            Op::List(ListOp {
                path: "/".into(),
                page_size: 10_000,
                ..Default::default()
            })
        };
        let ops = vec![wide(), wide(), wide(), wide(), wide(), wide(), wide(), wide(), wide()];
        let answer = client.file_ops(batch(&view, ops)).await.unwrap().into_inner();
        assert!(prost_size(&answer) <= ANSWER);
        let mut last = answer
            .results
            .iter()
            .rev()
            .map(|result| result.result.as_ref().unwrap());
        assert!(matches!(last.next(), Some(Outcome::NotRun(skipped)) if skipped.why() == Why::AnswerFull));
        let cut = answer.results.iter().any(
            |result| matches!(result.result.as_ref(), Some(Outcome::List(list)) if !list.next_page_token.is_empty()),
        );
        assert!(cut, "the list that did not fit goes on with another page");
    })
    .await;
}

fn prost_size(answer: &FileOpsResponse) -> usize {
    // The wire's own size, without a dependency on the encoder: content dominates, the rest is bounded by its text.
    answer
        .results
        .iter()
        .map(|result| match result.result.as_ref().unwrap() {
            Outcome::Read(read) => read.content.len(),
            Outcome::List(list) => list.entries.iter().map(|entry| entry.path.len() + 20).sum(),
            _ => 0,
        })
        .sum()
}

#[tokio::test]
async fn a_batch_id_runs_once_however_often_it_is_sent() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let root = runtime.workspace().join("root");
        fs::create_dir(&root).unwrap();
        let view = rooted(&root);
        let identified = |id: &str, ops| {
            let mut request = batch(&view, ops);
            request.batch_id = id.to_owned();
            request
        };
        let append = || vec![write_as("/log", "x", WriteMode::Append), read("/missing")];
        let first = send(&mut client, identified("once", append())).await;
        let second = send(&mut client, identified("once", append())).await;
        assert_eq!(first, second);
        assert_eq!(fs::read(root.join("log")).unwrap(), b"x");
        let status = client.file_ops(identified("once", vec![stat("/")])).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::BatchConflict);
        let status = client.file_ops(identified("not an id", vec![])).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::InvalidArgument);

        // Twenty at once.
        let request = identified("many", vec![write_as("/many", "x", WriteMode::Append)]);
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let (mut client, request) = (client.clone(), request.clone());
                tokio::spawn(async move { send(&mut client, request).await })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        assert_eq!(fs::read(root.join("many")).unwrap(), b"x");

        // The first caller goes away in the middle.
        let mut ops = vec![write_as("/left", "x", WriteMode::Append)];
        ops.extend((0..900).map(|n| write(format!("/left-{}", n % 10), vec![0; 2048])));
        ops.push(write_as("/left", "y", WriteMode::Append));
        let request = identified("left", ops);
        let first = tokio::spawn({
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.file_ops(request).await }
        });
        while !root.join("left").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.abort();
        let answer = send(&mut client, request).await;
        assert_eq!(answer.len(), 902);
        assert!(answer.iter().all(|outcome| matches!(outcome, Outcome::Info(_))));
        assert_eq!(fs::read(root.join("left")).unwrap(), b"xy");

        // What a batch did to its own root does not change what it answers.
        let sandbox = FileView::default();
        let mut request = batch(&view, vec![write("/f", "")]);
        request.batch_id = "gone".into();
        let first = send(&mut client, request.clone()).await;
        run_op(&mut client, &sandbox, remove(shown(&root), true)).await;
        assert_eq!(send(&mut client, request).await, first);
        assert!(!root.exists());
    })
    .await;
}
