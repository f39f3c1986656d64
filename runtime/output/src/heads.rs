//! The first bytes of each stream, set aside when their segments are dropped.
//!
//! An excerpt shows how an output began, however long ago that was. Nothing is copied before the first drop: until
//! then the log itself has the bytes.

use std::io;

use crate::{
    format::{damaged, u32_at, u64_at},
    segment::{Body, Span},
    types::{Offsets, Stream},
};

const MAGIC: [u8; 4] = *b"SGH1";
const HEADER: usize = 24;

#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    limit: u64,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Whether there is something that the file of heads lacks.
    dirty: bool,
    /// A segment could not be read back: what follows it would not join.
    broken: bool,
}

// === impl Heads ===

impl Heads {
    pub(crate) fn new(limit: u64) -> Self {
        Heads {
            limit,
            ..Heads::default()
        }
    }

    pub(crate) fn get(&self, stream: Stream) -> &[u8] {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    fn get_mut(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Whether a segment has bytes that continue a head.
    pub(crate) fn wants(&self, span: &Span) -> bool {
        !self.broken && Stream::ALL.into_iter().any(|stream| self.wants_of(span, stream))
    }

    fn wants_of(&self, span: &Span, stream: Stream) -> bool {
        let have = self.get(stream).len() as u64;
        have < self.limit && (span.start[stream]..span.end[stream]).contains(&have)
    }

    pub(crate) fn absorb(&mut self, span: &Span, body: &Body) {
        for stream in Stream::ALL {
            if self.wants_of(span, stream) {
                let (have, limit) = (self.get(stream).len() as u64, self.limit);
                body.range(span, stream, have, limit, self.get_mut(stream));
                self.dirty = true;
            }
        }
    }

    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// What the file of heads should hold, if it does not yet.
    pub(crate) fn unsaved(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.dirty).then(|| self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        out.extend_from_slice(&self.stdout);
        out.extend_from_slice(&self.stderr);
        out[8..16].copy_from_slice(&(self.stdout.len() as u64).to_le_bytes());
        out[16..24].copy_from_slice(&(self.stderr.len() as u64).to_le_bytes());
        let crc = crc32fast::hash(&out[8..]);
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(limit: u64, bytes: &[u8]) -> io::Result<Self> {
        if bytes.len() < HEADER || bytes[..4] != MAGIC || u32_at(bytes, 4) != crc32fast::hash(&bytes[8..]) {
            return Err(damaged("heads"));
        }
        let lens = Offsets {
            stdout: u64_at(bytes, 8),
            stderr: u64_at(bytes, 16),
        };
        let body = &bytes[HEADER..];
        if lens.stdout.checked_add(lens.stderr) != Some(body.len() as u64) {
            return Err(damaged("heads"));
        }
        let (stdout, stderr) = body.split_at(lens.stdout as usize);
        Ok(Heads {
            limit,
            stdout: stdout.to_vec(),
            stderr: stderr.to_vec(),
            ..Heads::default()
        })
    }
}
