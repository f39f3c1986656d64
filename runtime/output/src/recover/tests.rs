//! What is left after a crash, cut anywhere.

use std::{fs, path::Path};

use rand::Rng;

use crate::{
    FollowFrom, Item, Log, LogOptions, Mark, Offsets, Store, Stream,
    disk::{self, Location},
    format::{self, HEADER},
    segment::Span,
    state::Held,
    testing::{Checker, KIB, MIB, Model, chunk, drain, options, rng, store},
};

fn last_file(dir: &Path) -> std::path::PathBuf {
    disk::segment_path(dir, *disk::segment_files(dir).unwrap().last().unwrap())
}

/// A log as a killed process leaves it: some of it in files, the rest nowhere.
async fn crashed(store: &Store, options: LogOptions, rng: &mut rand::rngs::StdRng, bytes: u64) -> Model {
    let log = store.create("x", options).unwrap();
    let mut model = Model::default();
    while model.written().total() < bytes {
        let (stream, bytes) = chunk(rng, 30_000);
        model.append(&log, stream, bytes).await;
    }
    model
}

/// What a follower from the start gets; its gaps are checked against what it did get.
async fn assert_recovered(log: &Log, model: &Model) -> Checker {
    let mut checker = Checker::new(Offsets::default());
    checker.drain(model, &mut log.follow(FollowFrom::Start, true)).await;
    assert_eq!(checker.at, model.written());
    assert_eq!(checker.marks, [Mark::Exited, Mark::Ended]);
    checker
}

#[tokio::test]
async fn every_byte_before_a_cut_is_there_and_the_gap_is_exact() {
    let mut rng = rng();
    let dir = tempfile::tempdir().unwrap();
    let before = store(&dir, 100 * KIB, 100 * MIB);
    let model = crashed(&before, options(4 * MIB), &mut rng, 3 * MIB).await;
    let x = dir.path().join("logs/x");
    let files = disk::segment_files(&x).unwrap();
    let segments = before.get("x").unwrap().inner().lock().segments.clone();
    for round in 0..60 {
        let copy = tempfile::tempdir().unwrap();
        let to = copy.path().join("logs/x");
        fs::create_dir_all(&to).unwrap();
        let cut_file = if round < 40 {
            files.len() - 1
        } else {
            rng.random_range(0..files.len())
        };
        for number in &files {
            fs::copy(disk::segment_path(&x, *number), disk::segment_path(&to, *number)).unwrap();
        }
        let file = fs::File::options()
            .write(true)
            .open(disk::segment_path(&to, files[cut_file]))
            .unwrap();
        let cut = rng.random_range(0..=file.metadata().unwrap().len());
        file.set_len(cut).unwrap();

        // A cut between two segments of a file is no damage that could be seen; the files behind it are then kept.
        let whole = |span: &Span, location: &Location| {
            let end = location.at + HEADER as u64 + format::body_len(span);
            location.file != files[cut_file] || end <= cut
        };
        let placed = segments.iter().filter_map(|entry| match entry.held {
            Held::Disk(location) => Some((entry.span, location)),
            Held::Memory(_) => None,
        });
        let (whole, torn): (Vec<_>, Vec<_>) = placed.partition(|(span, location)| whole(span, location));
        let clean = torn.first().is_none_or(|(_, location)| location.at == cut);
        let kept = whole
            .iter()
            .filter(|(_, location)| clean || location.file <= files[cut_file]);
        let expected: u64 = kept.map(|(span, _)| span.payload()).sum();

        let log = store(&copy, 100 * KIB, 100 * MIB)
            .recover("x", options(4 * MIB), Some(model.written()))
            .unwrap();
        let checker = assert_recovered(&log, &model).await;
        let missing = checker.missing(Stream::Stdout) + checker.missing(Stream::Stderr);
        assert_eq!(
            model.written().total() - missing,
            expected,
            "cut at {cut} of file {cut_file}"
        );
    }
}

#[tokio::test]
async fn damage_ends_a_log() {
    let mut rng = rng();
    let dir = tempfile::tempdir().unwrap();
    let options = options(4 * MIB);
    let model = crashed(&store(&dir, 0, 100 * MIB), options, &mut rng, MIB).await;
    let x = dir.path().join("logs/x");
    let flip = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let last = last_file(&x);
    let len = fs::metadata(&last).unwrap().len();
    flip(&last, len as usize - 1);
    let log = store(&dir, 0, 100 * MIB)
        .recover("x", options, Some(model.written()))
        .unwrap();
    let first = assert_recovered(&log, &model).await;
    assert_eq!(first.gaps.len(), 1, "the last write is gone, no more");
    assert!(fs::metadata(&last).unwrap().len() < len, "and cut off");

    let files = disk::segment_files(&x).unwrap();
    assert!(files.len() >= 3);
    flip(&disk::segment_path(&x, files[1]), 20);
    let log = store(&dir, 0, 100 * MIB)
        .recover("x", options, Some(model.written()))
        .unwrap();
    let second = assert_recovered(&log, &model).await;
    assert!(second.missing(Stream::Stdout) > first.missing(Stream::Stdout));
    assert_eq!(
        disk::segment_files(&x).unwrap(),
        files[..2],
        "what lies behind the damage is deleted"
    );
}

#[tokio::test]
async fn after_a_flush_nothing_is_missing() {
    let mut rng = rng();
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions {
        head_bytes: 1000,
        ..options(256 * KIB)
    };
    let before = store(&dir, MIB, 100 * MIB);
    let model = crashed(&before, options, &mut rng, MIB).await;
    let log = before.get("x").unwrap();
    log.mark(Mark::Exited);
    log.append(Stream::Stdout, bytes::Bytes::from_static(b"")).await;
    log.flush().await.unwrap();
    let (oldest, excerpt) = (log.oldest(), log.excerpt(Stream::Stdout, 900, 10_000).await);
    assert!(oldest.total() > 0);
    assert_eq!(excerpt.head, model.bytes(Stream::Stdout)[..900]);

    for _ in 0..2 {
        let store = store(&dir, MIB, 100 * MIB);
        assert_eq!(store.ids().unwrap(), ["x"]);
        let log = store.recover("x", options, None).unwrap();
        assert_eq!((log.written(), log.is_ended()), (model.written(), true));
        let checker = assert_recovered(&log, &model).await;
        assert!(checker.missing(Stream::Stdout) <= oldest.stdout && checker.missing(Stream::Stdout) > 0);
        assert_eq!(log.newlines(Stream::Stdout), excerpt.newlines);
        assert_eq!(log.excerpt(Stream::Stdout, 900, 10_000).await, excerpt);
        // A recovered log can be flushed as well, and is then found again as it was.
        log.flush().await.unwrap();
    }
}

#[tokio::test]
async fn marks_keep_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let log = store(&dir, MIB, MIB).create("x", options(MIB)).unwrap();
    log.append(Stream::Stdout, bytes::Bytes::from_static(b"before")).await;
    log.mark(Mark::Exited);
    log.append(Stream::Stdout, bytes::Bytes::from_static(b"after")).await;
    log.flush().await.unwrap();
    let written = Offsets { stdout: 20, stderr: 5 };
    let log = store(&dir, MIB, MIB).recover("x", options(MIB), Some(written)).unwrap();
    let items = drain(&mut log.follow(FollowFrom::Start, true)).await;
    assert!(matches!(items[0], Item::Data { offset: 0, .. }) && matches!(items[2], Item::Data { offset: 6, .. }));
    assert_eq!(items[1], Item::Mark(Mark::Exited));
    let gaps =
        [(Stream::Stdout, 11, 20), (Stream::Stderr, 0, 5)].map(|(stream, from, to)| Item::Gap { stream, from, to });
    assert_eq!(items[3..5], gaps);
    assert_eq!(items[5..], [Item::Mark(Mark::Ended)]);
    let excerpt = log.excerpt(Stream::Stdout, 2, 2).await;
    assert_eq!(
        (&excerpt.head[..], &excerpt.tail[..], excerpt.lost),
        (&b"be"[..], &b"er"[..], 9)
    );
}

#[tokio::test]
async fn a_log_without_files_is_one_gap() {
    let dir = tempfile::tempdir().unwrap();
    let written = Offsets { stdout: 0, stderr: 7 };
    let log = store(&dir, MIB, MIB).recover("x", options(MIB), Some(written)).unwrap();
    let items = drain(&mut log.follow(FollowFrom::Start, true)).await;
    let gap = Item::Gap {
        stream: Stream::Stderr,
        from: 0,
        to: 7,
    };
    assert_eq!(items, [gap, Item::Mark(Mark::Exited), Item::Mark(Mark::Ended)]);
}
