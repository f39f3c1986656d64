//! A log as its users see it: followers, marks, cancellation.

use std::future::Future;

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    FollowFrom, Item, Log, Mark, Offsets, StoreError, Stream,
    testing::{Checker, KIB, MIB, Model, chunk, drain, options, rng, store},
};

fn data(items: &[Item]) -> Vec<u8> {
    let bytes = items.iter().filter_map(|item| match item {
        Item::Data { bytes, .. } => Some(bytes.to_vec()),
        _ => None,
    });
    bytes.flatten().collect()
}

/// Follows a log to its end, going away and coming back at what it has, again and again.
async fn follow_with_cuts(log: Log, mut rng: StdRng) -> (Vec<Item>, Offsets) {
    let mut items = Vec::new();
    let mut at = Offsets::default();
    loop {
        let mut follower = log.follow(FollowFrom::Offsets(at), true);
        for _ in 0..rng.random_range(1..40) {
            if rng.random_bool(0.3) {
                // A poll that is given up must lose nothing.
                let _ = tokio::time::timeout(std::time::Duration::ZERO, follower.next())
                    .await
                    .map(|item| {
                        items.extend(item.filter(|item| !matches!(item, Item::Mark(_))));
                    });
                continue;
            }
            match follower.next().await {
                Some(Item::Mark(Mark::Ended)) | None => return (items, follower.position()),
                Some(Item::Mark(Mark::Exited)) => {}
                Some(item) => items.push(item),
            }
        }
        at = follower.position();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_followers_see_the_same_whatever_they_do() {
    let mut rng = rng();
    for memory in [0, 100 * KIB, MIB, 100 * MIB] {
        let dir = tempfile::tempdir().unwrap();
        let log = store(&dir, memory, 100 * MIB).create("x", options(100 * MIB)).unwrap();
        let cut = (0..4).map(|_| tokio::spawn(follow_with_cuts(log.clone(), StdRng::from_rng(&mut rng))));
        let cut: Vec<_> = cut.collect();
        let mut live = log.follow(FollowFrom::Start, true);
        let live = tokio::spawn(async move { drain(&mut live).await });
        let mut model = Model::default();
        while model.written().total() < 6 * MIB {
            let (stream, bytes) = chunk(&mut rng, 150_000);
            model.append(&log, stream, bytes).await;
            if rng.random_bool(0.1) {
                tokio::task::yield_now().await;
            }
        }
        log.mark(Mark::Exited);
        model.append(&log, Stream::Stdout, Bytes::from_static(b"late")).await;
        log.mark(Mark::Ended);
        assert_eq!(log.written(), model.written());
        for stream in Stream::ALL {
            let newlines = model.bytes(stream).iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(log.newlines(stream), newlines as u64);
        }

        let mut late = log.follow(FollowFrom::Start, true);
        for items in [live.await.unwrap(), drain(&mut late).await] {
            let mut checker = Checker::new(Offsets::default());
            let exited = items.iter().position(|item| *item == Item::Mark(Mark::Exited)).unwrap();
            assert_eq!(data(&items[exited..]), b"late");
            items.into_iter().for_each(|item| checker.feed(&model, item));
            assert_eq!((checker.at, checker.gaps.len()), (model.written(), 0));
            assert_eq!(checker.marks, [Mark::Exited, Mark::Ended]);
        }
        for task in cut {
            let (items, position) = task.await.unwrap();
            let mut checker = Checker::new(Offsets::default());
            items.into_iter().for_each(|item| checker.feed(&model, item));
            assert_eq!((checker.at, checker.gaps.len()), (model.written(), 0));
            assert_eq!(position, model.written());
        }
    }
}

#[tokio::test]
async fn any_offsets_are_a_beginning() {
    let mut rng = rng();
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, 200 * KIB, 100 * MIB)
        .create("x", options(100 * MIB))
        .unwrap();
    let mut model = Model::default();
    while model.written().total() < MIB {
        let (stream, bytes) = chunk(&mut rng, 30_000);
        model.append(&log, stream, bytes).await;
    }
    let written = model.written();
    for _ in 0..50 {
        let at = Offsets {
            stdout: rng.random_range(0..=written.stdout),
            stderr: rng.random_range(0..=written.stderr),
        };
        let mut checker = Checker::new(at);
        checker
            .drain(&model, &mut log.follow(FollowFrom::Offsets(at), false))
            .await;
        assert_eq!((checker.at, checker.gaps.len()), (written, 0));
    }
}

#[tokio::test]
async fn who_does_not_wait_stops_at_the_end_of_that_moment() {
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, MIB, MIB).create("x", options(MIB)).unwrap();
    log.append(Stream::Stdout, Bytes::from_static(b"one")).await;
    let mut follower = log.follow(FollowFrom::Start, false);
    log.append(Stream::Stdout, Bytes::from_static(b"two")).await;
    log.mark(Mark::Exited);
    log.mark(Mark::Ended);
    let items = drain(&mut follower).await;
    assert_eq!(
        (data(&items), items.len()),
        (b"one".to_vec(), 1),
        "no byte and no mark of later"
    );
    assert_eq!(follower.next().await, None);

    let mut follower = log.follow(FollowFrom::Start, false);
    let items = drain(&mut follower).await;
    assert_eq!(data(&items), b"onetwo");
    assert_eq!(items[1..], [Item::Mark(Mark::Exited), Item::Mark(Mark::Ended)]);
}

#[tokio::test]
async fn each_mark_comes_once_also_to_who_starts_behind_it() {
    for memory in [0, MIB] {
        let dir = tempfile::tempdir().unwrap();
        let log = store(&dir, memory, MIB).create("x", options(MIB)).unwrap();
        log.append(Stream::Stdout, Bytes::from_static(b"before")).await;
        log.mark(Mark::Exited);
        log.mark(Mark::Exited);
        log.append(Stream::Stdout, Bytes::from_static(b"after")).await;
        let mut behind = log.follow(FollowFrom::End, true);
        assert_eq!(behind.next().await, Some(Item::Mark(Mark::Exited)));
        log.append(Stream::Stderr, Bytes::from_static(b"end")).await;
        log.mark(Mark::Ended);
        log.append(Stream::Stderr, Bytes::from_static(b"ignored")).await;
        let items = drain(&mut behind).await;
        assert_eq!(
            (data(&items), items.last()),
            (b"end".to_vec(), Some(&Item::Mark(Mark::Ended)))
        );
        assert_eq!(items.len(), 2);
        let items = drain(&mut log.follow(FollowFrom::End, true)).await;
        assert_eq!(items, [Item::Mark(Mark::Exited), Item::Mark(Mark::Ended)]);
    }
}

#[tokio::test]
async fn small_writes_are_joined_and_large_ones_split() {
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, 10 * MIB, 10 * MIB).create("x", options(10 * MIB)).unwrap();
    for _ in 0..1000 {
        log.append(Stream::Stdout, Bytes::from_static(b"a")).await;
    }
    let large = Bytes::from(vec![b'b'; 100_000]);
    log.append(Stream::Stderr, large.clone()).await;
    let items = drain(&mut log.follow(FollowFrom::Start, false)).await;
    let lens: Vec<usize> = items
        .iter()
        .map(|item| data(std::slice::from_ref(item)).len())
        .collect();
    assert_eq!(lens, [1000, 64 * 1024, 100_000 - 64 * 1024]);
    let Item::Data { bytes, .. } = &items[1] else {
        panic!("no data")
    };
    assert_eq!(bytes.as_ptr(), large.as_ptr(), "large writes are not copied");
}

#[tokio::test]
async fn a_hundred_waiting_followers_get_everything() {
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, 300 * KIB, 10 * MIB).create("x", options(10 * MIB)).unwrap();
    let followers: Vec<_> = (0..100)
        .map(|_| {
            let mut follower = log.follow(FollowFrom::Start, true);
            tokio::spawn(async move { data(&drain(&mut follower).await).len() })
        })
        .collect();
    for _ in 0..100 {
        log.append(Stream::Stdout, Bytes::from(vec![7; 10_000])).await;
        tokio::task::yield_now().await;
    }
    log.mark(Mark::Ended);
    for follower in followers {
        assert_eq!(follower.await.unwrap(), 1_000_000);
    }
}

#[tokio::test]
async fn a_dropped_append_leaves_the_log_whole() {
    let mut rng = rng();
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 64 * KIB, 10 * MIB);
    let log = store.create("x", options(256 * KIB)).unwrap();
    let mut model = Model::default();
    for _ in 0..300 {
        let (stream, bytes) = chunk(&mut rng, 40_000);
        model.add(stream, &bytes);
        let mut append = Box::pin(log.append(stream, bytes));
        let polls = rng.random_range(1..4);
        std::future::poll_fn(|context| {
            for _ in 0..polls {
                if append.as_mut().poll(context).is_ready() {
                    break;
                }
            }
            std::task::Poll::Ready(())
        })
        .await;
        drop(append);
        if rng.random_bool(0.2) {
            tokio::task::yield_now().await;
        }
    }
    model.append(&log, Stream::Stdout, Bytes::from_static(b"last")).await;
    log.flush().await.unwrap();
    let oldest = log.oldest();
    let mut checker = Checker::new(Offsets::default());
    checker.drain(&model, &mut log.follow(FollowFrom::Start, false)).await;
    assert_eq!(checker.at, model.written());
    assert_eq!(checker.missing(Stream::Stdout), oldest.stdout);
    assert_eq!(checker.missing(Stream::Stderr), oldest.stderr);
    assert_eq!(store.budget().memory(), 0, "all is on disk, and counted so");
}

#[tokio::test]
async fn a_removed_log_is_gone_and_free() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir, 0, 10 * MIB);
    let log = store.create("x", options(10 * MIB)).unwrap();
    assert!(matches!(store.create("x", options(MIB)), Err(StoreError::Exists(_))));
    assert!(matches!(
        store.create("../x", options(MIB)),
        Err(StoreError::InvalidId(_))
    ));
    log.append(Stream::Stdout, Bytes::from(vec![1; 500_000])).await;
    assert_eq!(store.ids().unwrap(), ["x"]);
    let mut follower = log.follow(FollowFrom::Start, true);
    store.remove("x").await.unwrap();
    assert_eq!(store.ids().unwrap(), Vec::<String>::new());
    assert_eq!((store.budget().memory(), store.budget().retained()), (0, 0));
    let items = drain(&mut follower).await;
    let gap = Item::Gap {
        stream: Stream::Stdout,
        from: 0,
        to: 500_000,
    };
    assert_eq!(items, [gap, Item::Mark(Mark::Ended)]);
    log.append(Stream::Stdout, Bytes::from_static(b"late")).await;
    log.flush().await.unwrap();
    assert!(store.get("x").is_none() && store.ids().unwrap().is_empty());
    store.create("x", options(MIB)).unwrap();
}
