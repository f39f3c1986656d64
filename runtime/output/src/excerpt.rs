//! The beginning and the end of one stream, for readers with a budget.

use std::io;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use crate::{
    log::{Inner, Log},
    state::Entry,
    types::Stream,
};

/// Raw bytes from both ends of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// Bytes written to the stream so far.
    pub total: u64,
    /// Newlines among them.
    pub newlines: u64,
    /// The stream's first bytes; all of them if that is not more than was asked for.
    pub head: Bytes,
    /// The stream's last bytes, none of which are in `head`.
    pub tail: Bytes,
    /// Bytes behind `tail` that are gone: those a crash lost, or all that followed the head in a log that was dropped.
    pub lost: u64,
}

/// What is there of a stream at one moment, in order.
struct Sources {
    total: u64,
    newlines: u64,
    /// The end of the last byte that is there.
    end: u64,
    parts: Vec<Part>,
}

enum Part {
    Bytes(u64, Vec<u8>),
    Segment(Entry),
}

// === impl Log ===

impl Log {
    /// The first `head` and the last `tail` bytes of a stream.
    ///
    /// There is less where bytes were dropped: of the head no more than [`head_bytes`](crate::LogOptions::head_bytes)
    /// survive that.
    ///
    /// # Errors
    /// None: a segment that can't be read is as good as dropped.
    pub async fn excerpt(&self, stream: Stream, head: u64, tail: u64) -> Excerpt {
        let inner = self.inner().clone();
        let sources = sources(&inner, stream, head, tail);
        if sources.parts.iter().all(|part| matches!(part, Part::Bytes(..))) {
            return sources.cut(&inner, stream, head, tail);
        }
        let (total, newlines) = (sources.total, sources.newlines);
        let cutting = spawn_blocking(move || sources.cut(&inner, stream, head, tail));
        cutting.await.unwrap_or(Excerpt {
            total,
            newlines,
            lost: total,
            ..Excerpt::default()
        })
    }
}

/// Collects what overlaps the head or the tail. Nothing is read from disk yet.
fn sources(log: &Inner, stream: Stream, head: u64, tail: u64) -> Sources {
    let state = log.lock();
    let kept = state.heads.get(stream);
    let open = &state.open.span;
    let closed = state
        .segments
        .iter()
        .filter(|entry| entry.span.start[stream] < entry.span.end[stream]);
    let end = match closed.clone().next_back() {
        _ if open.start[stream] < open.end[stream] => open.end[stream],
        Some(entry) => entry.span.end[stream],
        None => kept.len() as u64,
    };
    let tail_from = end.saturating_sub(tail);
    let wanted = closed.filter(|entry| entry.span.start[stream] < head || entry.span.end[stream] > tail_from);
    let mut parts = vec![Part::Bytes(0, kept.to_vec())];
    parts.extend(wanted.cloned().map(Part::Segment));
    let mut bytes = Vec::new();
    state
        .open
        .body
        .range(open, stream, open.start[stream], open.end[stream], &mut bytes);
    parts.push(Part::Bytes(open.start[stream], bytes));
    Sources {
        total: state.written()[stream],
        newlines: state.newlines(stream),
        end,
        parts,
    }
}

// === impl Sources ===

impl Sources {
    /// Reads the parts one after the other. What joins the beginning goes to the head, what joins the end to the tail.
    fn cut(self, log: &Inner, stream: Stream, head: u64, tail: u64) -> Excerpt {
        let Sources {
            total,
            newlines,
            end,
            parts,
        } = self;
        let whole = end <= head.saturating_add(tail);
        let (head_to, mut next) = if whole { (end, 0) } else { (head, end - tail) };
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        for (start, bytes) in parts.into_iter().filter_map(|part| part.read(log, stream).ok()) {
            let head_next = head.len() as u64;
            head.extend_from_slice(overlap(start, &bytes, head_next, head_to));
            // What the head has the tail has not, and a jump makes useless what the tail has so far.
            next = next.max(head.len() as u64);
            if start > next && !bytes.is_empty() {
                tail.clear();
                next = start;
            }
            let more = overlap(start, &bytes, next, end);
            tail.extend_from_slice(more);
            next += more.len() as u64;
        }
        Excerpt {
            total,
            newlines,
            head: head.into(),
            tail: tail.into(),
            lost: total - next.min(end),
        }
    }
}

// === impl Part ===

impl Part {
    /// The part's bytes, and the offset of the first.
    fn read(self, log: &Inner, stream: Stream) -> io::Result<(u64, Vec<u8>)> {
        let entry = match self {
            Part::Bytes(start, bytes) => return Ok((start, bytes)),
            Part::Segment(entry) => entry,
        };
        let body = entry.load_from(&log.dir)?;
        let (start, end) = (entry.span.start[stream], entry.span.end[stream]);
        let mut bytes = Vec::with_capacity((end - start) as usize);
        body.range(&entry.span, stream, start, end, &mut bytes);
        Ok((start, bytes))
    }
}

/// Bytes `from..to` of the stream out of `bytes`, which begin at `start`; none unless `from` is among them.
fn overlap(start: u64, bytes: &[u8], from: u64, to: u64) -> &[u8] {
    let end = (start + bytes.len() as u64).min(to);
    if start <= from && from < end {
        &bytes[(from - start) as usize..(end - start) as usize]
    } else {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::{
        LogOptions, Mark,
        testing::{KIB, MIB, Model, chunk, options, rng, store},
    };

    #[tokio::test]
    async fn both_ends_of_what_is_there() {
        let mut rng = rng();
        for memory in [0, 100 * KIB, 10 * MIB] {
            let dir = tempfile::tempdir().unwrap();
            let log = store(&dir, memory, 10 * MIB).create("x", options(10 * MIB)).unwrap();
            let mut model = Model::default();
            for _ in 0..100 {
                let (stream, bytes) = chunk(&mut rng, 9000);
                model.append(&log, stream, bytes).await;
                let all = model.bytes(stream);
                let (head, tail) = (rng.random_range(0..40_000), rng.random_range(0..40_000));
                let excerpt = log.excerpt(stream, head as u64, tail as u64).await;
                assert_eq!((excerpt.total, excerpt.lost), (all.len() as u64, 0));
                assert_eq!(
                    excerpt.newlines,
                    all.iter().filter(|byte| **byte == b'\n').count() as u64
                );
                if all.len() <= head + tail {
                    assert!(excerpt.head == all && excerpt.tail.is_empty());
                } else {
                    assert!(excerpt.head == all[..head] && excerpt.tail == all[all.len() - tail..]);
                }
            }
        }
    }

    #[tokio::test]
    async fn the_head_outlives_its_segments() {
        let mut rng = rng();
        for memory in [0, 10 * MIB] {
            let dir = tempfile::tempdir().unwrap();
            let options = LogOptions {
                head_bytes: 20_000,
                ..options(64 * KIB)
            };
            let store = store(&dir, memory, 200 * KIB);
            let log = store.create("x", options).unwrap();
            let mut model = Model::default();
            while model.written().stdout < MIB {
                let (stream, bytes) = chunk(&mut rng, 9000);
                model.append(&log, stream, bytes).await;
            }
            log.mark(Mark::Ended);
            for stream in Stream::ALL {
                let all = model.bytes(stream);
                let excerpt = log.excerpt(stream, 10_000, 5000).await;
                assert!(excerpt.head == all[..10_000] && excerpt.tail == all[all.len() - 5000..]);
                let more = log.excerpt(stream, 30_000, u64::MAX).await;
                assert!(more.head == all[..20_000], "no more than was set aside");
                assert!(more.tail == all[log.oldest()[stream] as usize..], "all that is kept");
            }

            // Another log takes all the room: now there is the head alone.
            let other = store
                .create(
                    "y",
                    LogOptions {
                        retain_bytes: MIB,
                        ..options
                    },
                )
                .unwrap();
            while log.oldest() != log.written() {
                other.append(Stream::Stdout, chunk(&mut rng, 9000).1).await;
            }
            let excerpt = log.excerpt(Stream::Stdout, 10_000, 5000).await;
            let all = model.bytes(Stream::Stdout);
            assert!(excerpt.head == all[..10_000] && excerpt.tail == all[15_000..20_000]);
            assert_eq!(excerpt.lost, excerpt.total - 20_000);
        }
    }
}
