//! How a segment lies in a spill file: a header, the table of records, the payload.
//!
//! The header has its own checksum and says everything that a log keeps in memory of a spilled segment. So a recovery
//! reads headers only, whatever the amount of output; the body is checked when somebody reads it.

use std::io;

use bytes::Bytes;

use crate::{
    segment::{Body, Kind, Span},
    types::{MAX_ITEM, Mark, Offsets, Stream},
};

pub(crate) const HEADER: usize = 88;
const MAGIC: [u8; 4] = *b"SGL1";
const NONE: u64 = u64::MAX;
/// The table has one number per record: its kind in the top two bits, its length below.
const KIND_SHIFT: u32 = 30;
const LEN_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// A header that was read and found whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) span: Span,
    crc: u32,
}

/// A segment as it is written.
pub(crate) fn encode(span: &Span, body: &Body) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + body_len(span) as usize);
    out.resize(HEADER, 0);
    for (kind, len) in body.table() {
        out.extend_from_slice(&(kind_code(kind) << KIND_SHIFT | len).to_le_bytes());
    }
    for payload in body.payloads() {
        out.extend_from_slice(payload);
    }
    let crc = crc32fast::hash(&out[HEADER..]);
    encode_header(span, crc, &mut out[..HEADER]);
    out
}

fn encode_header(span: &Span, crc: u32, out: &mut [u8]) {
    let numbers = [
        span.first,
        span.start.stdout,
        span.start.stderr,
        span.end.stdout,
        span.end.stderr,
        span.newlines.stdout,
        span.newlines.stderr,
        span.exited.unwrap_or(NONE),
    ];
    for (field, number) in out[8..72].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    let numbers = [span.records, span.payload() as u32, crc, u32::from(span.ended)];
    for (field, number) in out[72..].chunks_exact_mut(4).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    let check = crc32fast::hash(&out[8..]);
    out[..4].copy_from_slice(&MAGIC);
    out[4..8].copy_from_slice(&check.to_le_bytes());
}

/// Length of what follows the header.
pub(crate) fn body_len(span: &Span) -> u64 {
    4 * u64::from(span.records) + span.payload()
}

pub(crate) fn decode_header(bytes: &[u8; HEADER]) -> io::Result<Header> {
    if bytes[..4] != MAGIC || u32_at(bytes, 4) != crc32fast::hash(&bytes[8..]) {
        return Err(damaged("header"));
    }
    let exited = u64_at(bytes, 64);
    let span = Span {
        first: u64_at(bytes, 8),
        records: u32_at(bytes, 72),
        start: Offsets {
            stdout: u64_at(bytes, 16),
            stderr: u64_at(bytes, 24),
        },
        end: Offsets {
            stdout: u64_at(bytes, 32),
            stderr: u64_at(bytes, 40),
        },
        newlines: Offsets {
            stdout: u64_at(bytes, 48),
            stderr: u64_at(bytes, 56),
        },
        exited: (exited != NONE).then_some(exited),
        ended: u32_at(bytes, 84) & 1 != 0,
    };
    if !span.end.covers(&span.start) || span.payload() != u64::from(u32_at(bytes, 76)) {
        return Err(damaged("header"));
    }
    Ok(Header {
        span,
        crc: u32_at(bytes, 80),
    })
}

pub(crate) fn decode_body(header: &Header, bytes: Bytes) -> io::Result<Body> {
    if bytes.len() as u64 != body_len(&header.span) || crc32fast::hash(&bytes) != header.crc {
        return Err(damaged("body"));
    }
    let table_len = 4 * header.span.records as usize;
    let table: Vec<(Kind, u32)> = (0..table_len).step_by(4).map(|at| entry(u32_at(&bytes, at))).collect();
    check_table(&header.span, &table)?;
    Ok(Body::packed(table.into_iter(), bytes.slice(table_len..)))
}

/// The checksum speaks against chance, not against a file that was never ours: lengths are what we index by.
fn check_table(span: &Span, table: &[(Kind, u32)]) -> io::Result<()> {
    let mut end = span.start;
    for &(kind, len) in table {
        match kind {
            Kind::Data(stream) if (1..=MAX_ITEM).contains(&u64::from(len)) => end[stream] += u64::from(len),
            Kind::Mark(_) if len == 0 => {}
            _ => return Err(damaged("table")),
        }
    }
    if end == span.end { Ok(()) } else { Err(damaged("table")) }
}

fn kind_code(kind: Kind) -> u32 {
    match kind {
        Kind::Data(Stream::Stdout) => 0,
        Kind::Data(Stream::Stderr) => 1,
        Kind::Mark(Mark::Exited) => 2,
        Kind::Mark(Mark::Ended) => 3,
    }
}

fn entry(code: u32) -> (Kind, u32) {
    let kind = match code >> KIND_SHIFT {
        0 => Kind::Data(Stream::Stdout),
        1 => Kind::Data(Stream::Stderr),
        2 => Kind::Mark(Mark::Exited),
        _ => Kind::Mark(Mark::Ended),
    };
    (kind, code & LEN_MASK)
}

pub(crate) fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged segment {what}"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::{
        cursor::Cursor,
        segment::Open,
        testing::{chunk, rng},
    };

    #[test]
    fn what_is_written_is_read_and_damage_is_seen() {
        let mut rng = rng();
        let start = Offsets {
            stdout: 1 << 40,
            stderr: 77,
        };
        let mut open = Open::new(
            Span {
                first: 9,
                start,
                end: start,
                ..Span::default()
            },
            0,
        );
        for n in 0..40 {
            let (stream, bytes) = chunk(&mut rng, 3000);
            open.push(stream, bytes);
            if n == 20 {
                open.mark(Mark::Exited);
            }
        }
        let span = open.span;
        let bytes = encode(&span, &open.body);
        let header = decode_header(bytes[..HEADER].try_into().unwrap()).unwrap();
        assert_eq!(header.span, span);
        let body = decode_body(&header, Bytes::copy_from_slice(&bytes[HEADER..])).unwrap();
        assert!(body.table().eq(open.body.table()) && body.payloads().eq(open.body.payloads()));
        let (mut read, mut written) = (Cursor::new(9, start, None), Cursor::new(9, start, None));
        while let Some(item) = open.body.take(&span, &mut written, false) {
            let same = body.take(&span, &mut read, false);
            // The one in a file lies in one piece and is joined further: compare how far they got.
            if read.at.total() == written.at.total() {
                assert_eq!(
                    same.is_some(),
                    matches!(item, crate::Item::Data { .. } | crate::Item::Mark(_))
                );
            } else {
                assert!(read.at.covers(&written.at));
                written.at = read.at;
            }
        }
        assert_eq!((read.at, written.at), (span.end, span.end));

        for _ in 0..200 {
            let mut bytes = bytes.clone();
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
            let header = decode_header(bytes[..HEADER].try_into().unwrap());
            let body = header.and_then(|header| decode_body(&header, Bytes::copy_from_slice(&bytes[HEADER..])));
            assert!(body.is_err(), "a flipped bit at {at} was not seen");
        }
    }
}
