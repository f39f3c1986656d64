//! Segments: runs of records, in memory.
//!
//! A record is 16 bytes beside its payload. Large payloads are kept as they came, without a copy. Small ones are
//! copied into one buffer per segment, because a few bytes must not pin the whole read buffer they are a slice of;
//! a small one that continues the record before it extends that record, so that a program that writes byte by byte
//! costs no more than one that writes pages.

use bytes::{Bytes, BytesMut};

use crate::{
    cursor::Cursor,
    types::{Item, MAX_ITEM, Mark, Offsets, Stream},
};

/// What one record counts beside its payload.
pub(crate) const RECORD_COST: u64 = 16;
/// Payloads below this are copied.
const SMALL: usize = 1024;
/// Payloads from this size on are not copied to join them with others into one item.
const BIG: u64 = 16 * 1024;
/// The chunk number of the buffer of small payloads.
const SMALL_CHUNK: u16 = u16::MAX;

/// What is known of a segment without its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) records: u32,
    pub(crate) start: Offsets,
    pub(crate) end: Offsets,
    /// Newlines of each stream from the log's beginning to the end of this segment.
    pub(crate) newlines: Offsets,
    /// Sequence of the exit mark, if it lies in or before this segment.
    pub(crate) exited: Option<u64>,
    /// Whether the log's last record lies in this segment.
    pub(crate) ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data(Stream),
    Mark(Mark),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Relative to the segment's start in its stream.
    offset: u32,
    /// Where the payload begins in its chunk.
    start: u32,
    len: u32,
    chunk: u16,
    kind: Kind,
}

#[derive(Debug)]
pub(crate) struct Body {
    records: Vec<Record>,
    chunks: Vec<Bytes>,
    small: Small,
}

#[derive(Debug)]
enum Small {
    Growing(Vec<u8>),
    Fixed(Bytes),
}

/// The segment that takes new records.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) span: Span,
    pub(crate) body: Body,
    /// Age, comparable between logs.
    pub(crate) stamp: u64,
}

/// A part of a chunk.
struct Piece {
    chunk: u16,
    start: u32,
    len: u32,
}

// === impl Span ===

impl Span {
    /// The empty segment that follows this one.
    pub(crate) fn next(&self) -> Span {
        Span {
            first: self.end_sequence(),
            records: 0,
            start: self.end,
            ..*self
        }
    }

    pub(crate) fn end_sequence(&self) -> u64 {
        self.first + u64::from(self.records)
    }

    pub(crate) fn payload(&self) -> u64 {
        self.end.total() - self.start.total()
    }

    pub(crate) fn cost(&self) -> u64 {
        self.payload() + RECORD_COST * u64::from(self.records)
    }
}

// === impl Open ===

impl Open {
    pub(crate) fn new(span: Span, stamp: u64) -> Self {
        Open {
            span,
            body: Body::growing(),
            stamp,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.span.records == 0
    }

    /// Adds bytes; says what that costs.
    pub(crate) fn push(&mut self, stream: Stream, bytes: Bytes) -> u64 {
        let before = self.span.cost();
        self.span.newlines[stream] += memchr::memchr_iter(b'\n', &bytes).count() as u64;
        let len = bytes.len() as u64;
        let offset = (self.span.end[stream] - self.span.start[stream]) as u32;
        if self.body.push(stream, offset, bytes) {
            self.span.records += 1;
        }
        self.span.end[stream] += len;
        self.span.cost() - before
    }

    pub(crate) fn mark(&mut self, mark: Mark) -> u64 {
        match mark {
            Mark::Exited => self.span.exited = Some(self.span.end_sequence()),
            Mark::Ended => self.span.ended = true,
        }
        self.body.records.push(Record {
            offset: 0,
            start: 0,
            len: 0,
            chunk: SMALL_CHUNK,
            kind: Kind::Mark(mark),
        });
        self.span.records += 1;
        RECORD_COST
    }
}

// === impl Body ===

impl Body {
    fn growing() -> Self {
        Body {
            records: Vec::new(),
            chunks: Vec::new(),
            small: Small::Growing(Vec::new()),
        }
    }

    /// A body from a table of records whose payloads lie one after the other.
    pub(crate) fn packed(table: impl Iterator<Item = (Kind, u32)>, payload: Bytes) -> Self {
        let (mut at, mut ends) = (0, Offsets::default());
        let records = table
            .map(|(kind, len)| {
                let mut record = Record {
                    offset: 0,
                    start: at,
                    len,
                    chunk: SMALL_CHUNK,
                    kind,
                };
                if let Kind::Data(stream) = kind {
                    record.offset = ends[stream] as u32;
                    ends[stream] += u64::from(len);
                }
                at += len;
                record
            })
            .collect();
        Body {
            records,
            chunks: Vec::new(),
            small: Small::Fixed(payload),
        }
    }

    /// Ends growth: from here on reads share the buffer of small payloads instead of copying from it.
    pub(crate) fn seal(mut self) -> Self {
        self.records.shrink_to_fit();
        self.chunks.shrink_to_fit();
        if let Small::Growing(mut buffer) = self.small {
            buffer.shrink_to_fit();
            self.small = Small::Fixed(Bytes::from(buffer));
        }
        self
    }

    /// Kind and length of each record.
    pub(crate) fn table(&self) -> impl Iterator<Item = (Kind, u32)> {
        self.records.iter().map(|record| (record.kind, record.len))
    }

    /// The payload of each record.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.records
            .iter()
            .map(|record| self.bytes(record.chunk, record.start, record.len))
    }

    /// Whether a new record was made, rather than the last one extended.
    fn push(&mut self, stream: Stream, offset: u32, bytes: Bytes) -> bool {
        let kind = Kind::Data(stream);
        let len = bytes.len() as u32;
        let Small::Growing(small) = &mut self.small else {
            return false;
        };
        if bytes.len() >= SMALL {
            let chunk = self.chunks.len() as u16;
            self.chunks.push(bytes);
            self.records.push(Record {
                offset,
                start: 0,
                len,
                chunk,
                kind,
            });
            return true;
        }
        let start = small.len() as u32;
        small.extend_from_slice(&bytes);
        match self.records.last_mut() {
            Some(last) if last.kind == kind && last.chunk == SMALL_CHUNK && u64::from(last.len + len) <= MAX_ITEM => {
                last.len += len;
                false
            }
            _ => {
                self.records.push(Record {
                    offset,
                    start,
                    len,
                    chunk: SMALL_CHUNK,
                    kind,
                });
                true
            }
        }
    }

    /// The next item for a cursor whose place lies in this segment. `None` when the segment has nothing more for it.
    ///
    /// The cursor stays on the last record of a segment that is `open`, because that one may still be extended.
    pub(crate) fn take(&self, span: &Span, cursor: &mut Cursor, open: bool) -> Option<Item> {
        let mut index = cursor.place.saturating_sub(span.first) as usize;
        while let Some(record) = self.records.get(index) {
            cursor.place = span.first + index as u64;
            match record.kind {
                Kind::Mark(mark) => {
                    let sequence = cursor.place;
                    cursor.place += 1;
                    if mark == Mark::Exited
                        && let Some(item) = cursor.pass_exited(sequence)
                    {
                        return Some(item);
                    }
                }
                Kind::Data(stream) => {
                    let end = span.start[stream] + u64::from(record.offset) + u64::from(record.len);
                    if cursor.at[stream] < end.min(cursor.limit(stream)) {
                        return Some(self.data(span, cursor, index, stream));
                    }
                    if open && index + 1 == self.records.len() {
                        return None;
                    }
                    cursor.place += 1;
                }
            }
            index += 1;
        }
        None
    }

    /// Bytes from the record at `index` on, joined with those that follow in the same stream.
    fn data(&self, span: &Span, cursor: &mut Cursor, index: usize, stream: Stream) -> Item {
        let first = &self.records[index];
        let offset = cursor.at[stream];
        let skip = (offset - span.start[stream] - u64::from(first.offset)) as u32;
        let room = MAX_ITEM.min(cursor.limit(stream) - offset);
        let mut total = u64::from(first.len - skip).min(room);
        let mut pieces = vec![Piece {
            chunk: first.chunk,
            start: first.start + skip,
            len: total as u32,
        }];
        let mut last = index;
        for record in self.records[index + 1..]
            .iter()
            .take_while(|record| record.kind == first.kind)
        {
            if total == room {
                break;
            }
            let len = u64::from(record.len).min(room - total);
            match pieces.last_mut() {
                Some(piece) if piece.chunk == record.chunk && piece.start + piece.len == record.start => {
                    piece.len += len as u32;
                }
                _ if total >= BIG || u64::from(record.len) >= BIG => break,
                _ => pieces.push(Piece {
                    chunk: record.chunk,
                    start: record.start,
                    len: len as u32,
                }),
            }
            total += len;
            last += 1;
        }
        let sequence = span.first + index as u64;
        cursor.place = span.first + last as u64;
        cursor.at[stream] += total;
        Item::Data {
            sequence,
            stream,
            offset,
            bytes: self.join(&pieces, total),
        }
    }

    /// Bytes `from..to` of a stream, as far as they lie in this segment, appended to `out`.
    pub(crate) fn range(&self, span: &Span, stream: Stream, from: u64, to: u64, out: &mut Vec<u8>) {
        for record in self.records.iter().filter(|record| record.kind == Kind::Data(stream)) {
            let start = span.start[stream] + u64::from(record.offset);
            let end = start + u64::from(record.len);
            let (low, high) = (start.max(from), end.min(to));
            if low < high {
                let at = record.start + (low - start) as u32;
                out.extend_from_slice(self.bytes(record.chunk, at, (high - low) as u32));
            }
        }
    }

    fn join(&self, pieces: &[Piece], total: u64) -> Bytes {
        if let [Piece { chunk, start, len }] = *pieces {
            return self.shared(chunk, start, len);
        }
        let mut joined = BytesMut::with_capacity(total as usize);
        for piece in pieces {
            joined.extend_from_slice(self.bytes(piece.chunk, piece.start, piece.len));
        }
        joined.freeze()
    }

    fn shared(&self, chunk: u16, start: u32, len: u32) -> Bytes {
        let range = start as usize..(start + len) as usize;
        match &self.small {
            _ if chunk != SMALL_CHUNK => self.chunks[usize::from(chunk)].slice(range),
            Small::Fixed(bytes) => bytes.slice(range),
            Small::Growing(buffer) => Bytes::copy_from_slice(&buffer[range]),
        }
    }

    fn bytes(&self, chunk: u16, start: u32, len: u32) -> &[u8] {
        let range = start as usize..(start + len) as usize;
        match &self.small {
            _ if chunk != SMALL_CHUNK => &self.chunks[usize::from(chunk)][range],
            Small::Fixed(bytes) => &bytes[range],
            Small::Growing(buffer) => &buffer[range],
        }
    }
}
