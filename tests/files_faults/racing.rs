//! Callers that race: of those who expect the same version one wins, and appends are each whole.

use super::*;

/// How a caller says which version it expects.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Content,
    ModifiedAndSize,
}

// === impl Expect ===

impl Expect {
    fn version(self, info: &FileInfo, content: &[u8]) -> FileVersion {
        let version = match self {
            Self::Content => Version::Sha256(Bytes::copy_from_slice(&Sha256::digest(content))),
            Self::ModifiedAndSize => Version::ModifiedAndSize(ModifiedAndSize {
                modified: info.modified,
                size: info.size,
            }),
        };
        FileVersion { version: Some(version) }
    }
}

async fn one_wins(edits: bool, expect: Expect) {
    let runtime = Runtime::start().await;
    let view = rooted(&runtime.workspace());
    let path = runtime.workspace().join("f");
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        callers.push(runtime.connect().await);
    }
    let mut content = "version 00000 by nobody".to_owned();
    let mut now = info(run_op(&mut callers[0], &view, write("/f", content.clone())).await);
    for round in 0..ROUNDS {
        let expected = expect.version(&now, content.as_bytes());
        let tasks: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let new = format!("version {round:05} by {caller} {}", "x".repeat(round));
                let op = if edits {
                    let (old_text, new_text) = (content.clone().into(), new.clone().into());
                    Op::Edit(EditOp {
                        path: "/f".into(),
                        old_text,
                        new_text,
                        expected: Some(expected.clone()),
                        ..Default::default()
                    })
                } else {
                    let content = new.clone().into();
                    Op::Write(WriteOp {
                        path: "/f".into(),
                        content,
                        expected: Some(expected.clone()),
                        ..Default::default()
                    })
                };
                let (mut client, view) = (callers[caller].clone(), view.clone());
                tokio::spawn(async move { (new, run_op(&mut client, &view, op).await) })
            })
            .collect();
        let mut winners = Vec::new();
        for task in tasks {
            let (new, outcome) = task.await.unwrap();
            match outcome {
                Outcome::Info(info) => winners.push((new, info)),
                Outcome::Edit(edit) => winners.push((new, edit.info.unwrap())),
                other => assert_eq!(failed(&other).reason(), ErrorReason::FileVersionMismatch, "{other:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}, {expect:?}: {winners:?}");
        (content, now) = winners.pop().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    assert_eq!(litter(&runtime.workspace()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_writers_that_expect_the_same_version_one_wins() {
    within(one_wins(false, Expect::Content)).await;
    within(one_wins(false, Expect::ModifiedAndSize)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_editors_that_expect_the_same_version_one_wins() {
    within(one_wins(true, Expect::Content)).await;
    within(one_wins(true, Expect::ModifiedAndSize)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_who_create_a_file_one_wins() {
    within(async {
        let runtime = Runtime::start().await;
        let client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        for round in 0..ROUNDS {
            let tasks: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let op = write_as(format!("/{round}"), caller.to_string(), WriteMode::CreateOnly);
                    let (mut client, view) = (client.clone(), view.clone());
                    tokio::spawn(async move { run_op(&mut client, &view, op).await })
                })
                .collect();
            let mut winner = None;
            for (caller, task) in tasks.into_iter().enumerate() {
                match task.await.unwrap() {
                    Outcome::Info(_) => assert!(winner.replace(caller).is_none(), "two winners"),
                    other => assert_eq!(failed(&other).reason(), ErrorReason::FileAlreadyExists),
                }
            }
            let content = fs::read_to_string(runtime.workspace().join(round.to_string())).unwrap();
            assert_eq!(Some(content), winner.map(|caller| caller.to_string()));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_many_callers_are_each_whole() {
    within(async {
        let runtime = Runtime::start().await;
        let view = rooted(&runtime.workspace());
        let mut tasks = Vec::new();
        for caller in 0..CALLERS {
            let (mut client, view) = (runtime.connect().await, view.clone());
            tasks.push(tokio::spawn(async move {
                let line = format!("{caller}{}\n", "x".repeat(100));
                let ops = (0..ROUNDS)
                    .map(|_| write_as("/log", line.clone(), WriteMode::Append))
                    .collect();
                for outcome in run_ops(&mut client, &view, ops).await {
                    assert!(matches!(outcome, Outcome::Info(_)), "{outcome:?}");
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let log = fs::read_to_string(runtime.workspace().join("log")).unwrap();
        assert_eq!(log.lines().count(), CALLERS * ROUNDS);
        assert!(log.lines().all(|line| line.len() == 101));
    })
    .await;
}
