//! What the tests of several modules share: a plain model of a log, and a check of what a follower received.

use bytes::Bytes;
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

use crate::{Follower, Item, Log, LogOptions, Mark, Offsets, OnFull, Store, StoreLimits, Stream};

pub(crate) const KIB: u64 = 1024;
pub(crate) const MIB: u64 = 1024 * KIB;

/// Everything that was ever written, and in which order.
#[derive(Default)]
pub(crate) struct Model {
    stdout: Contents,
    stderr: Contents,
    total: u64,
}

#[derive(Default)]
struct Contents {
    bytes: Vec<u8>,
    /// Offset in the stream, and place among all bytes, of each write.
    runs: Vec<(u64, u64)>,
}

/// Checks the items of one follower as they come.
pub(crate) struct Checker {
    pub(crate) at: Offsets,
    pub(crate) gaps: Vec<(Stream, u64, u64)>,
    pub(crate) marks: Vec<Mark>,
    place: Option<u64>,
    sequence: u64,
}

/// A generator whose seed is printed, so that a failure can be repeated with `SEED`.
pub(crate) fn rng() -> StdRng {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| rand::rng().random());
    println!("SEED={seed}");
    StdRng::seed_from_u64(seed)
}

pub(crate) fn store(dir: &tempfile::TempDir, memory_bytes: u64, retain_bytes: u64) -> Store {
    Store::open(
        dir.path().join("logs"),
        StoreLimits {
            memory_bytes,
            retain_bytes,
        },
    )
    .unwrap()
}

pub(crate) fn options(retain_bytes: u64) -> LogOptions {
    LogOptions {
        retain_bytes,
        on_full: OnFull::DropOldest,
        head_bytes: 0,
    }
}

pub(crate) fn holding(retain_bytes: u64) -> LogOptions {
    LogOptions {
        on_full: OnFull::Hold,
        ..options(retain_bytes)
    }
}

/// Random bytes with some newlines, of a length that is small or large but rarely in between.
pub(crate) fn chunk(rng: &mut StdRng, most: usize) -> (Stream, Bytes) {
    let stream = if rng.random_bool(0.6) {
        Stream::Stdout
    } else {
        Stream::Stderr
    };
    let len = match rng.random_range(0..3) {
        0 => rng.random_range(1..20),
        1 => rng.random_range(1..2000),
        _ => rng.random_range(1..=most),
    };
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    (stream, Bytes::from(bytes))
}

pub(crate) async fn drain(follower: &mut Follower) -> Vec<Item> {
    let mut items = Vec::new();
    while let Some(item) = follower.next().await {
        items.push(item);
    }
    items
}

// === impl Model ===

impl Model {
    pub(crate) async fn append(&mut self, log: &Log, stream: Stream, bytes: Bytes) {
        self.add(stream, &bytes);
        log.append(stream, bytes).await;
    }

    pub(crate) fn add(&mut self, stream: Stream, bytes: &[u8]) {
        let place = self.total;
        self.total += bytes.len() as u64;
        let contents = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        contents.runs.push((contents.bytes.len() as u64, place));
        contents.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn bytes(&self, stream: Stream) -> &[u8] {
        &self.contents(stream).bytes
    }

    pub(crate) fn written(&self) -> Offsets {
        Offsets {
            stdout: self.stdout.bytes.len() as u64,
            stderr: self.stderr.bytes.len() as u64,
        }
    }

    fn contents(&self, stream: Stream) -> &Contents {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    /// Place of a byte among the bytes of both streams.
    fn place(&self, stream: Stream, offset: u64) -> u64 {
        let runs = &self.contents(stream).runs;
        let (start, place) = runs[runs.partition_point(|(start, _)| *start <= offset) - 1];
        place + (offset - start)
    }
}

// === impl Checker ===

impl Checker {
    pub(crate) fn new(at: Offsets) -> Self {
        Checker {
            at,
            gaps: Vec::new(),
            marks: Vec::new(),
            place: None,
            sequence: 0,
        }
    }

    pub(crate) fn feed(&mut self, model: &Model, item: Item) {
        assert!(!self.marks.contains(&Mark::Ended), "{item:?} after the end");
        match item {
            Item::Data {
                sequence,
                stream,
                offset,
                bytes,
            } => {
                assert!(!bytes.is_empty() && bytes.len() <= 64 * 1024, "{} bytes", bytes.len());
                assert_eq!(offset, self.at[stream], "{stream:?} jumps");
                let end = offset + bytes.len() as u64;
                assert!(
                    bytes == model.bytes(stream)[offset as usize..end as usize],
                    "{stream:?} differs at {offset}"
                );
                let (first, last) = (model.place(stream, offset), model.place(stream, end - 1));
                assert_eq!(last - first, end - 1 - offset, "bytes of the other stream lie between");
                assert!(self.place.is_none_or(|place| place < first), "out of order");
                assert!(self.sequence <= sequence, "sequence goes back");
                (self.place, self.sequence) = (Some(last), sequence);
                self.at[stream] = end;
            }
            Item::Gap { stream, from, to } => {
                assert_eq!(from, self.at[stream], "gap of {stream:?} does not join");
                assert!(from < to);
                self.gaps.push((stream, from, to));
                self.at[stream] = to;
            }
            Item::Mark(mark) => {
                assert!(!self.marks.contains(&mark), "{mark:?} twice");
                self.marks.push(mark);
            }
        }
    }

    pub(crate) async fn drain(&mut self, model: &Model, follower: &mut Follower) {
        for item in drain(follower).await {
            self.feed(model, item);
        }
        assert_eq!(self.at, follower.position());
    }

    /// Bytes of a stream that were missing.
    pub(crate) fn missing(&self, stream: Stream) -> u64 {
        self.gaps
            .iter()
            .filter(|gap| gap.0 == stream)
            .map(|(_, from, to)| to - from)
            .sum()
    }
}
