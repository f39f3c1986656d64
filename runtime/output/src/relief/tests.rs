//! Bounds: what is dropped, who waits, and that every gap is told.

use std::{fs, time::Duration};

use bytes::Bytes;
use rand::Rng;
use tokio::time::timeout;

use crate::{
    FollowFrom, Item, Log, LogOptions, Mark, Offsets, Stream,
    testing::{Checker, KIB, MIB, Model, chunk, drain, holding, options, rng, store},
};

/// Long enough for anything that is to happen, and short for what is not.
const NEVER: Duration = Duration::from_millis(50);

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 8 * 1024])
}

/// Bytes on disk below a directory.
fn disk_usage(dir: &std::path::Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_usage(&entry.path()),
        metadata => metadata.map_or(0, |metadata| metadata.len()),
    });
    sizes.sum()
}

async fn assert_exact(log: &Log, model: &Model) {
    let oldest = log.oldest();
    let mut checker = Checker::new(Offsets::default());
    checker.drain(model, &mut log.follow(FollowFrom::Start, false)).await;
    assert_eq!(checker.at, model.written());
    let expected: Vec<_> = Stream::ALL
        .into_iter()
        .filter(|s| oldest[*s] > 0)
        .map(|stream| (stream, 0, oldest[stream]))
        .collect();
    assert_eq!(checker.gaps, expected);
}

#[tokio::test]
async fn gaps_are_exact_when_retention_is_exceeded() {
    let mut rng = rng();
    for (memory, retain) in [
        (0, 64 * KIB),
        (32 * KIB, 64 * KIB),
        (10 * MIB, 64 * KIB),
        (300 * KIB, MIB),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir, memory, 100 * MIB);
        let log = store.create("x", options(retain)).unwrap();
        let mut model = Model::default();
        let mut slow = (log.follow(FollowFrom::Start, true), Checker::new(Offsets::default()));
        for round in 0..400 {
            let (stream, bytes) = chunk(&mut rng, 20_000);
            model.append(&log, stream, bytes).await;
            assert!(
                store.budget().retained() <= retain,
                "{} retained",
                store.budget().retained()
            );
            assert!(
                store.budget().memory() <= memory,
                "{} in memory",
                store.budget().memory()
            );
            if rng.random_bool(0.05) && slow.0.position() != model.written() {
                slow.1.feed(&model, slow.0.next().await.unwrap());
            }
            if round % 50 == 0 {
                assert_exact(&log, &model).await;
            }
        }
        assert!(
            disk_usage(dir.path()) <= retain + retain / 4,
            "{} on disk",
            disk_usage(dir.path())
        );
        assert_exact(&log, &model).await;
        assert!(log.oldest().total() > 0);
        log.mark(Mark::Ended);
        slow.1.drain(&model, &mut slow.0).await;
        assert_eq!(slow.1.at, model.written());
        assert!(retain > 64 * KIB || !slow.1.gaps.is_empty());
    }
}

#[tokio::test]
async fn a_log_that_holds_loses_nothing() {
    for memory in [0, 16 * KIB, MIB] {
        let mut rng = rng();
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir, memory, 100 * MIB);
        let log = store.create("x", holding(64 * KIB)).unwrap();
        let mut slow = log.follow(FollowFrom::Start, true);
        let chunks: Vec<_> = (0..300).map(|_| chunk(&mut rng, 10_000)).collect();
        let mut model = Model::default();
        chunks.iter().for_each(|(stream, bytes)| model.add(*stream, bytes));
        let writer = log.clone();
        let writer = tokio::spawn(async move {
            for (stream, bytes) in chunks {
                writer.append(stream, bytes).await;
            }
            writer.mark(Mark::Ended);
        });
        let mut checker = Checker::new(Offsets::default());
        while let Some(item) = slow.next().await {
            checker.feed(&model, item);
            assert!(
                store.budget().retained() <= 64 * KIB + 11_000,
                "the writer was not held back"
            );
            for _ in 0..rng.random_range(0..5) {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!((checker.at, checker.gaps.len()), (model.written(), 0));
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn a_log_that_holds_goes_on_when_its_follower_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 16 * KIB, 100 * MIB);
    let log = store.create("x", holding(64 * KIB)).unwrap();
    let other = store.create("y", options(64 * KIB)).unwrap();
    for _ in 0..20 {
        log.append(Stream::Stdout, block(1)).await;
    }
    assert!(log.oldest().stdout > 0, "nobody follows, nobody waits");

    let mut follower = log.follow(FollowFrom::Offsets(log.oldest()), true);
    follower.next().await.unwrap();
    let writer = log.clone();
    let mut writer = tokio::spawn(async move {
        for _ in 0..20 {
            writer.append(Stream::Stdout, block(2)).await;
        }
    });
    assert!(timeout(NEVER, &mut writer).await.is_err(), "held back");
    for _ in 0..50 {
        other.append(Stream::Stdout, block(3)).await;
    }
    drop(follower);
    writer.await.unwrap();
    assert_eq!(log.written().stdout, 40 * 8 * KIB);
}

#[tokio::test]
async fn a_released_log_waits_for_nobody_and_drops_nothing_that_is_needed() {
    for memory in [16 * KIB, MIB] {
        let dir = tempfile::tempdir().unwrap();
        let log = store(&dir, memory, 100 * KIB).create("x", holding(64 * KIB)).unwrap();
        let mut follower = log.follow(FollowFrom::Start, true);
        let writer = log.clone();
        let mut writer = tokio::spawn(async move {
            for _ in 0..20 {
                writer.append(Stream::Stdout, block(1)).await;
            }
        });
        assert!(timeout(NEVER, &mut writer).await.is_err(), "held back");
        log.release();
        writer.await.unwrap();
        log.mark(Mark::Ended);
        let items = drain(&mut follower).await;
        assert!(!items.iter().any(|item| matches!(item, Item::Gap { .. })));
        assert_eq!(log.written().stdout, 20 * 8 * KIB);
        assert_eq!(follower.position(), log.written());
    }
}

#[tokio::test]
async fn a_follower_that_finished_or_needs_no_more_holds_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, MIB, MIB).create("x", holding(64 * KIB)).unwrap();
    log.append(Stream::Stdout, block(1)).await;
    let mut finished = log.follow(FollowFrom::Start, false);
    drain(&mut finished).await;
    let ahead = log.follow(
        FollowFrom::Offsets(Offsets {
            stdout: u64::MAX,
            stderr: u64::MAX,
        }),
        true,
    );
    for _ in 0..20 {
        log.append(Stream::Stdout, block(1)).await;
    }
    assert_eq!(log.written().stdout, 21 * 8 * KIB);
    drop(ahead);
}

#[tokio::test]
async fn the_store_drops_finished_logs_first() {
    for memory in [0, 10 * MIB] {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir, memory, 512 * KIB);
        let logs: Vec<Log> = ["first", "second", "third", "live"]
            .map(|id| store.create(id, options(10 * MIB)).unwrap())
            .into();
        for log in &logs {
            for _ in 0..14 {
                log.append(Stream::Stdout, block(1)).await;
            }
        }
        // They end in another order than they began.
        for index in [1, 0, 2] {
            logs[index].mark(Mark::Ended);
        }
        let writer = store.create("writer", options(10 * MIB)).unwrap();
        let oldest = |index: usize| logs[index].oldest().stdout;
        let whole = 14 * 8 * KIB;
        while oldest(0) == 0 {
            writer.append(Stream::Stdout, block(2)).await;
            assert!(store.budget().retained() <= 512 * KIB);
            assert_eq!((oldest(2), oldest(3), writer.oldest().stdout), (0, 0, 0));
        }
        assert_eq!(oldest(1), whole, "who ended first goes first");
        while writer.oldest().stdout == 0 {
            writer.append(Stream::Stdout, block(2)).await;
        }
        assert_eq!([0, 1, 2, 3].map(oldest), [whole, whole, whole, 0]);
        let items = drain(&mut logs[0].follow(FollowFrom::Start, true)).await;
        assert_eq!(
            items,
            [
                Item::Gap {
                    stream: Stream::Stdout,
                    from: 0,
                    to: whole
                },
                Item::Mark(Mark::Ended)
            ]
        );
        assert!(disk_usage(dir.path()) <= 600 * KIB);
    }
}

#[tokio::test]
async fn the_log_with_the_oldest_bytes_is_spilled_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 128 * KIB, 10 * MIB);
    let logs: Vec<Log> = (0..40)
        .map(|n| store.create(&n.to_string(), options(10 * MIB)).unwrap())
        .collect();
    for log in &logs {
        log.append(Stream::Stdout, block(1)).await;
        assert!(store.budget().memory() <= 128 * KIB);
    }
    let spilled = store.ids().unwrap().len();
    assert!((20..40).contains(&spilled), "{spilled} spilled");
    assert!(store.ids().unwrap().contains(&"0".to_owned()) && !store.ids().unwrap().contains(&"39".to_owned()));
    for log in &logs {
        assert_eq!(drain(&mut log.follow(FollowFrom::Start, false)).await.len(), 1);
    }
}

#[tokio::test]
async fn a_failed_spill_is_a_gap_and_nothing_worse() {
    let mut rng = rng();
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 512 * KIB, 100 * MIB);
    let (logs, away) = (dir.path().join("logs"), dir.path().join("away"));
    let log = store.create("x", options(100 * MIB)).unwrap();
    let mut model = Model::default();
    let mut write = async |model: &mut Model, upto: u64| {
        while model.written().total() < upto {
            let (stream, bytes) = chunk(&mut rng, 60_000);
            model.append(&log, stream, bytes).await;
            assert!(
                store.budget().memory() <= 512 * KIB + 256 * KIB,
                "{}",
                store.budget().memory()
            );
        }
    };
    write(&mut model, 2 * MIB).await;
    // New files can't be made; the one in use still can be written.
    fs::rename(&logs, &away).unwrap();
    fs::write(&logs, b"no directory").unwrap();
    write(&mut model, 16 * MIB).await;
    assert!(log.flush().await.is_err());
    fs::remove_file(&logs).unwrap();
    fs::rename(&away, &logs).unwrap();
    write(&mut model, 18 * MIB).await;
    log.flush().await.unwrap();

    let mut checker = Checker::new(Offsets::default());
    checker.drain(&model, &mut log.follow(FollowFrom::Start, false)).await;
    assert_eq!(checker.at, model.written());
    let missing: u64 = Stream::ALL.into_iter().map(|stream| checker.missing(stream)).sum();
    assert!((5 * MIB..13 * MIB).contains(&missing), "{missing} missing");
    assert_eq!(log.oldest(), Offsets::default(), "what was spilled before stays");
}

#[tokio::test]
async fn followers_pass_over_what_is_gone_from_the_disk() {
    let mut rng = rng();
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 0, 100 * MIB);
    let log = store.create("x", options(4 * MIB)).unwrap();
    let mut model = Model::default();
    while model.written().total() < 3 * MIB {
        let (stream, bytes) = chunk(&mut rng, 60_000);
        model.append(&log, stream, bytes).await;
    }
    let files = crate::disk::segment_files(&dir.path().join("logs/x")).unwrap();
    fs::remove_file(crate::disk::segment_path(&dir.path().join("logs/x"), files[1])).unwrap();
    let mut checker = Checker::new(Offsets::default());
    checker.drain(&model, &mut log.follow(FollowFrom::Start, false)).await;
    assert_eq!(checker.at, model.written());
    assert!(!checker.gaps.is_empty() && checker.missing(Stream::Stdout) < 600 * KIB);
}

#[tokio::test]
async fn a_broken_disk_still_holds_for_followers() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 16 * KIB, 100 * MIB);
    fs::remove_dir_all(dir.path().join("logs")).unwrap();
    fs::write(dir.path().join("logs"), b"no directory").unwrap();
    let log = store.create("x", holding(64 * KIB)).unwrap();
    let mut follower = log.follow(FollowFrom::Start, true);
    let writer = log.clone();
    let writer = tokio::spawn(async move {
        for _ in 0..50 {
            writer.append(Stream::Stdout, block(5)).await;
        }
        writer.mark(Mark::Ended);
    });
    let items = drain(&mut follower).await;
    assert!(!items.iter().any(|item| matches!(item, Item::Gap { .. })));
    assert_eq!(follower.position().stdout, 50 * 8 * KIB);
    writer.await.unwrap();
}

#[tokio::test]
async fn a_flood_of_tiny_records_stays_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 128 * KIB, 100 * MIB);
    let log = store.create("x", options(MIB)).unwrap();
    let mut model = Model::default();
    for n in 0..100_000_u32 {
        let stream = Stream::ALL[(n % 2) as usize];
        model.append(&log, stream, Bytes::copy_from_slice(&[n as u8])).await;
        assert!(store.budget().memory() <= 128 * KIB && store.budget().retained() <= MIB);
    }
    assert_exact(&log, &model).await;
    let kept = log.written().total() - log.oldest().total();
    assert!((40_000..70_000).contains(&kept), "{kept} kept, each costs 17");
}

#[tokio::test]
async fn a_file_that_was_deleted_is_not_written_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, MIB, 64 * KIB).create("x", options(100 * MIB)).unwrap();
    let mut model = Model::default();
    model.append(&log, Stream::Stdout, Bytes::from_static(b"little")).await;
    log.flush().await.unwrap();
    // The store is full: the little that is in the file has to go, long before the file is full.
    for _ in 0..8 {
        model.append(&log, Stream::Stdout, block(1)).await;
    }
    assert_eq!(disk_usage(dir.path()), 0);
    model.append(&log, Stream::Stderr, Bytes::from_static(b"little")).await;
    log.flush().await.unwrap();
    assert_exact(&log, &model).await;
}

#[tokio::test]
async fn a_head_that_cannot_be_kept_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        head_bytes: 50_000,
        ..options(64 * KIB)
    };
    let log = store(&dir, 0, MIB).create("x", options).unwrap();
    for _ in 0..6 {
        log.append(Stream::Stdout, block(1)).await;
    }
    fs::remove_dir_all(dir.path().join("logs/x")).unwrap();
    for _ in 0..20 {
        log.append(Stream::Stdout, block(2)).await;
    }
    let excerpt = log.excerpt(Stream::Stdout, 10_000, 10_000).await;
    assert_eq!((excerpt.head.len(), &excerpt.tail[..]), (0, &[2; 10_000][..]));
}

#[tokio::test]
async fn a_log_that_could_not_be_spilled_is_tried_again_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 64 * KIB, 10 * MIB);
    let [log, other] = ["x", "y"].map(|id| store.create(id, options(10 * MIB)).unwrap());
    log.append(Stream::Stdout, block(1)).await;
    fs::write(dir.path().join("logs/x"), b"no directory").unwrap();
    assert!(log.flush().await.is_err());
    fs::remove_file(dir.path().join("logs/x")).unwrap();
    for _ in 0..100 {
        other.append(Stream::Stdout, block(2)).await;
        assert!(store.budget().memory() <= 64 * KIB);
    }
    assert_eq!(store.ids().unwrap(), ["x", "y"]);
    assert_eq!(drain(&mut log.follow(FollowFrom::Start, false)).await.len(), 1);
}

#[tokio::test]
async fn two_writers_and_a_flush_share_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, 0, 10 * MIB).create("x", options(10 * MIB)).unwrap();
    let write = async |stream| {
        for _ in 0..50 {
            log.append(stream, block(3)).await;
        }
    };
    let flush = async {
        for _ in 0..50 {
            log.flush().await.unwrap();
        }
    };
    tokio::join!(write(Stream::Stdout), write(Stream::Stderr), flush);
    let mut follower = log.follow(FollowFrom::Start, false);
    assert!(
        drain(&mut follower)
            .await
            .iter()
            .all(|item| matches!(item, Item::Data { .. }))
    );
    assert_eq!(
        follower.position(),
        Offsets {
            stdout: 50 * 8 * KIB,
            stderr: 50 * 8 * KIB
        }
    );
}
