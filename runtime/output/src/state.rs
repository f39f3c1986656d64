//! What a log's mutex guards. No method here waits or touches a disk.

mod files;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    budget::Budget,
    cursor::{Cursor, Stop},
    disk::{Disk, Location},
    heads::Heads,
    segment::{Body, Open, Span},
    types::{FollowFrom, LogOptions, MAX_ITEM, Mark, Offsets, OnFull, Stream},
};

const SEGMENT_BYTES: u64 = 256 * 1024;
const SMALLEST_SEGMENT: u64 = 4 * 1024;
/// The largest file of a log, and the most that is spilled in one go.
const FILE_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct State {
    budget: Arc<Budget>,
    options: LogOptions,
    /// Closed segments, oldest first. The spilled ones come before those in memory.
    pub(crate) segments: VecDeque<Entry>,
    pub(crate) open: Open,
    /// Cost of all segments, the open one too.
    retained: u64,
    pub(crate) heads: Heads,
    followers: HashMap<u64, Cursor>,
    next_follower: u64,
    /// The writer waits for no follower any more.
    released: bool,
    ended: bool,
    removed: bool,
    /// The right to write files. Taken by the job that does so.
    lane: Option<Disk>,
    /// Live segments per spill file.
    files: BTreeMap<u64, u32>,
    chores_due: bool,
    flushing: bool,
    /// The segment whose spilling failed last.
    unspillable: Option<u64>,
    /// The last attempt to spill failed, when the store had written this many segments.
    failing: Option<u64>,
    warned: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) span: Span,
    pub(crate) held: Held,
    stamp: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Held {
    Memory(Arc<Body>),
    Disk(Location),
}

/// What came of the wish to drop the oldest segment.
#[derive(Debug)]
pub(crate) enum Shed {
    Dropped,
    /// Its first bytes have to be set aside before, and lie on disk.
    ReadFirst(Span, Location),
    /// A follower would lose bytes.
    Held,
    /// There is only the open segment, which is never dropped; or a follower has need of it and the log is released.
    Nothing,
}

/// Segments on their way to disk.
pub(crate) type Batch = Vec<(Span, Arc<Body>)>;

pub(crate) fn segment_bytes(options: &LogOptions) -> u64 {
    (options.retain_bytes / 8).clamp(SMALLEST_SEGMENT, SEGMENT_BYTES)
}

pub(crate) fn rotate_bytes(options: &LogOptions) -> u64 {
    (options.retain_bytes / 8).clamp(SMALLEST_SEGMENT, FILE_BYTES)
}

// === impl State ===

impl State {
    pub(crate) fn new(budget: Arc<Budget>, options: LogOptions, disk: Disk) -> Self {
        let open = Open::new(Span::default(), budget.tick());
        State {
            budget,
            options,
            segments: VecDeque::new(),
            open,
            retained: 0,
            heads: Heads::new(options.head_bytes),
            followers: HashMap::new(),
            next_follower: 0,
            released: false,
            ended: false,
            removed: false,
            lane: Some(disk),
            files: BTreeMap::new(),
            chores_due: false,
            flushing: false,
            unspillable: None,
            failing: None,
            warned: false,
        }
    }

    // --- writing ---

    /// Takes bytes in. Ignored, with `false`, once the log has ended.
    pub(crate) fn push(&mut self, stream: Stream, mut bytes: Bytes) -> bool {
        if self.ended {
            return false;
        }
        let segment = segment_bytes(&self.options);
        let most = MAX_ITEM.min(segment / 4) as usize;
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(most));
            let cost = self.open.push(stream, piece);
            self.charge(cost);
            if self.open.span.cost() >= segment {
                self.seal();
            }
        }
        true
    }

    /// Whether the mark is new.
    pub(crate) fn mark(&mut self, mark: Mark) -> bool {
        if self.ended || (mark == Mark::Exited && self.exited().is_some()) {
            return false;
        }
        let cost = self.open.mark(mark);
        self.charge(cost);
        self.ended = mark == Mark::Ended;
        true
    }

    /// Closes the open segment and begins the next.
    pub(crate) fn seal(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let next = Open::new(self.open.span.next(), self.budget.tick());
        let Open { span, body, stamp } = std::mem::replace(&mut self.open, next);
        self.segments.push_back(Entry {
            span,
            held: Held::Memory(Arc::new(body.seal())),
            stamp,
        });
    }

    /// Makes an ended log ready to be dropped one day, and gives back what only a writer needs.
    pub(crate) fn settle(&mut self) {
        self.seal();
        if let Some(disk) = &mut self.lane {
            disk.close();
        }
    }

    fn charge(&mut self, cost: u64) {
        self.retained += cost;
        self.budget.add_retained(cost);
        self.budget.add_memory(cost);
    }

    // --- what there is ---

    pub(crate) fn written(&self) -> Offsets {
        self.open.span.end
    }

    pub(crate) fn oldest(&self) -> Offsets {
        self.segments
            .front()
            .map_or(self.open.span.start, |entry| entry.span.start)
    }

    pub(crate) fn newlines(&self, stream: Stream) -> u64 {
        self.open.span.newlines[stream]
    }

    pub(crate) fn exited(&self) -> Option<u64> {
        self.open.span.exited
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn removed(&self) -> bool {
        self.removed
    }

    pub(crate) fn keeps_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    pub(crate) fn retains_too_much(&self) -> bool {
        self.retained > self.options.retain_bytes
    }

    /// The first closed segment that may have something for a cursor at `place`.
    pub(crate) fn find(&self, place: u64) -> Option<&Entry> {
        self.segments.get(
            self.segments
                .partition_point(|entry| entry.span.end_sequence() <= place),
        )
    }

    // --- followers ---

    pub(crate) fn cursor(&self, from: FollowFrom, wait: bool) -> Cursor {
        let at = match from {
            FollowFrom::Start => Offsets::default(),
            FollowFrom::End => self.written(),
            FollowFrom::Offsets(offsets) => offsets,
        };
        let index = self.segments.partition_point(|entry| at.covers(&entry.span.end));
        let place = self
            .segments
            .get(index)
            .map_or(self.open.span.first, |entry| entry.span.first);
        let sequence = self.open.span.end_sequence();
        let stop = Stop {
            offsets: self.written(),
            sequence,
            ended: self.ended,
        };
        Cursor::new(place, at, (!wait).then_some(stop))
    }

    /// Makes a cursor known, if the writer is to wait for it.
    pub(crate) fn attach(&mut self, cursor: &Cursor) -> Option<u64> {
        if self.options.on_full != OnFull::Hold {
            return None;
        }
        let id = self.next_follower;
        self.next_follower += 1;
        self.followers.insert(id, cursor.clone());
        Some(id)
    }

    pub(crate) fn advance(&mut self, follower: u64, at: Offsets) {
        if let Some(cursor) = self.followers.get_mut(&follower) {
            cursor.at = at;
        }
    }

    pub(crate) fn release(&mut self) {
        self.released = true;
    }

    pub(crate) fn detach(&mut self, follower: u64) {
        self.followers.remove(&follower);
    }

    // --- dropping ---

    /// Drops the oldest segment, if it may go.
    pub(crate) fn shed(&mut self) -> Shed {
        self.shed_at(0)
    }

    /// Drops the oldest segment in memory. Those on disk stay, since dropping them would free no memory.
    pub(crate) fn shed_memory(&mut self) -> Shed {
        self.shed_at(self.first_in_memory())
    }

    fn shed_at(&mut self, index: usize) -> Shed {
        let Some(Entry { span, held, .. }) = self.segments.get(index) else {
            return Shed::Nothing;
        };
        let span = *span;
        if self.followers.values().any(|cursor| cursor.would_lose(&span.end)) {
            return if self.released { Shed::Nothing } else { Shed::Held };
        }
        if self.heads.wants(&span) {
            match held {
                Held::Memory(body) => self.heads.absorb(&span, body),
                Held::Disk(location) => return Shed::ReadFirst(span, *location),
            }
            self.chores_due = true;
        }
        self.forget(index);
        Shed::Dropped
    }

    fn forget(&mut self, index: usize) {
        let Some(entry) = self.segments.remove(index) else {
            return;
        };
        let cost = entry.span.cost();
        self.retained -= cost;
        self.budget.sub_retained(cost);
        self.unspillable.take_if(|first| *first == entry.span.first);
        match entry.held {
            Held::Memory(_) => self.budget.sub_memory(cost),
            Held::Disk(location) => {
                if let Some(live) = self.files.get_mut(&location.file) {
                    *live -= 1;
                    self.chores_due |= *live == 0;
                }
            }
        }
    }

    /// Drops everything and ends the log.
    pub(crate) fn clear(&mut self) {
        self.seal();
        while !self.segments.is_empty() {
            self.forget(0);
        }
        self.ended = true;
        self.removed = true;
    }
}

// === impl Entry ===

impl Entry {
    /// The segment's records, wherever they lie.
    pub(crate) fn load_from(&self, dir: &std::path::Path) -> io::Result<Arc<Body>> {
        match &self.held {
            Held::Memory(body) => Ok(body.clone()),
            Held::Disk(location) => crate::disk::read(dir, *location, &self.span).map(Arc::new),
        }
    }
}
