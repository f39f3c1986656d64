//! The bytes of an upload's chunks, as the tar parser reads them, and a meter on how far it may read.
//!
//! The parser holds extension headers (long names, PAX records) in memory, however long they say they are. The meter
//! stops it when it reads far more between two entries than such headers need.

use std::{
    cell::{Cell, RefCell},
    io::{self, Read},
};

use bytes::{Buf as _, Bytes};
use sandgate_proto::runtime::v1::upload_request::Message;

use super::super::upload::unfit;
use crate::error::{Error, Result};

/// Extension headers of one entry: names have at most 4095 bytes, other records are few.
const MAX_EXTENSIONS: u64 = 1024 * 1024;

/// How far the parser has read, and how far it may.
#[derive(Debug)]
pub(super) struct Meter {
    position: Cell<u64>,
    limit: Cell<u64>,
    /// The sender's end was read.
    ended: Cell<bool>,
}

/// Reads the chunks one after the other.
pub(super) struct ChunkReader<'a, I> {
    messages: RefCell<I>,
    chunk: Bytes,
    meter: &'a Meter,
    cut: Option<Error>,
}

// === impl Meter ===

impl Default for Meter {
    fn default() -> Self {
        Self {
            position: Cell::new(0),
            limit: Cell::new(u64::MAX),
            ended: Cell::new(false),
        }
    }
}

impl Meter {
    /// The parser may read up to the end of an entry, and what extension headers need after it.
    pub(super) fn allow(&self, entry_end: u64) {
        self.limit
            .set(entry_end.max(self.position.get()).saturating_add(MAX_EXTENSIONS));
    }

    /// The parser may read on: the bytes go to a file, or nowhere.
    pub(super) fn unlimited(&self) {
        self.limit.set(u64::MAX);
    }

    /// An archive ends with blocks of zeros. One that ends without them was cut, if perhaps between two entries.
    pub(super) fn end(&self) -> Result<()> {
        if self.ended.get() && self.position.get() > 0 {
            return Err(unfit("the archive has no end: it was cut"));
        }
        Ok(())
    }
}

// === impl ChunkReader ===

impl<'a, I: Iterator<Item = Result<Message>>> ChunkReader<'a, I> {
    pub(super) fn new(messages: I, meter: &'a Meter) -> Self {
        Self {
            messages: RefCell::new(messages),
            chunk: Bytes::new(),
            meter,
            cut: None,
        }
    }

    /// What the parser's error really was: the stream's, if that was cut.
    pub(super) fn cause(self, error: io::Error) -> Error {
        self.cut.unwrap_or_else(|| {
            let message = error.to_string();
            unfit(&format!(
                "the archive is damaged: {}",
                message.lines().next().unwrap_or_default()
            ))
        })
    }

    fn next_chunk(&mut self) -> io::Result<bool> {
        let message = match self.messages.get_mut().next() {
            None => {
                self.meter.ended.set(true);
                return Ok(false);
            }
            Some(Ok(Message::Chunk(chunk))) => {
                self.chunk = chunk;
                return Ok(true);
            }
            Some(Ok(_)) => Error::invalid("an upload of a tar has only chunks"),
            Some(Err(error)) => error,
        };
        self.cut = Some(message);
        Err(io::Error::other("cut"))
    }
}

impl<I: Iterator<Item = Result<Message>>> Read for ChunkReader<'_, I> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.cut.is_some() {
            return Err(io::Error::other("cut"));
        }
        while self.chunk.is_empty() {
            if !self.next_chunk()? {
                return Ok(0);
            }
        }
        let allowed = self.meter.limit.get().saturating_sub(self.meter.position.get());
        if allowed == 0 {
            return Err(io::Error::other("an extension header is too long"));
        }
        let length = into
            .len()
            .min(self.chunk.len())
            .min(usize::try_from(allowed).unwrap_or(usize::MAX));
        self.chunk.copy_to_slice(&mut into[..length]);
        self.meter.position.set(self.meter.position.get() + length as u64);
        Ok(length)
    }
}
