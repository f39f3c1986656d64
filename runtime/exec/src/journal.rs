//! What was started, on disk before it is started, so that an id runs once however often the runtime dies.
//!
//! A file of records, each with its length and checksum, only ever appended to; a torn record at its end is what a
//! crash left of a write that nobody was answered. It is rewritten when the runtime starts. It is not synced: it
//! outlives the runtime, and after a crash of the machine a new incarnation keeps old requests from running.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::{Mutex, PoisonError},
};

use prost::Message;
use sandgate_proto::runtime::v1::ExecInfo;

/// One record: the state of one exec, or that its id is spent.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// Of the request. Empty in later entries of the same exec.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) fingerprint: Vec<u8>,
    /// As it was when this was written. None: the record was dropped, the id stays taken.
    #[prost(message, optional, tag = "3")]
    pub(crate) info: Option<ExecInfo>,
    /// Where its written offsets are counted.
    #[prost(uint32, tag = "4")]
    pub(crate) slot: u32,
}

/// The open journal.
pub(crate) struct Journal(Mutex<Opened>);

struct Opened {
    file: File,
    /// Where the next record begins.
    end: u64,
}

const HEADER: usize = 8;

// === impl Journal ===

impl Journal {
    /// The last entry of each id, in the order in which the ids first appeared.
    pub(crate) fn read(path: &Path) -> io::Result<Vec<Entry>> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(error) => return Err(error),
        };
        let mut order: Vec<Entry> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for mut entry in entries(&bytes) {
            match places.get(&entry.id) {
                Some(&place) => {
                    if entry.info.is_some() {
                        entry.fingerprint = std::mem::take(&mut order[place].fingerprint);
                        entry.slot = order[place].slot;
                    }
                    order[place] = entry;
                }
                None => {
                    places.insert(entry.id.clone(), order.len());
                    order.push(entry);
                }
            }
        }
        Ok(order)
    }

    /// Replaces the journal by one with these entries, and opens it.
    pub(crate) fn rewrite(path: &Path, entries: &[Entry]) -> io::Result<Self> {
        let aside = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)?;
        let records: Vec<u8> = entries.iter().flat_map(record).collect();
        file.write_all(&records)?;
        // A crash of the machine must not lose what the old one had. A new sandbox has nothing to lose, and a sync is as
        // slow as the machine's disk is busy.
        if !records.is_empty() {
            file.sync_all()?;
        }
        fs::rename(&aside, path)?;
        let end = records.len() as u64;
        Ok(Self(Mutex::new(Opened { file, end })))
    }

    pub(crate) fn append(&self, entry: &Entry) -> io::Result<()> {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record = record(entry);
        let written = opened.file.write_all_at(&record, opened.end);
        match written {
            Ok(()) => opened.end += record.len() as u64,
            // A torn record would hide every later one.
            Err(_) => opened.file.set_len(opened.end)?,
        }
        written
    }
}

fn record(entry: &Entry) -> Vec<u8> {
    let body = entry.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &crc32fast::hash(&body).to_le_bytes(), &body].concat()
}

/// The entries up to a torn end. A damaged one is left out, and those behind it are not.
fn entries(mut bytes: &[u8]) -> impl Iterator<Item = Entry> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |n, byte| n << 8 | u32::from(*byte));
    let bodies = std::iter::from_fn(move || {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let (body, rest) = rest.split_at_checked(usize::try_from(number(&header[..4])).ok()?)?;
        bytes = rest;
        Some((number(&header[4..]), body))
    });
    bodies
        .filter(|(checksum, body)| crc32fast::hash(body) == *checksum)
        .filter_map(|(_, body)| Entry::decode(body).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, pid: Option<u32>) -> Entry {
        let info = pid.map(|pid| ExecInfo {
            pid,
            ..Default::default()
        });
        Entry {
            id: id.into(),
            fingerprint: vec![7],
            info,
            slot: 3,
        }
    }

    #[test]
    fn the_last_word_counts_and_a_torn_end_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert!(Journal::read(&path).unwrap().is_empty());
        let journal = Journal::rewrite(&path, &[entry("a", None), entry("b", Some(1))]).unwrap();
        journal
            .append(&Entry {
                fingerprint: vec![],
                slot: 0,
                ..entry("b", Some(2))
            })
            .unwrap();
        journal.append(&entry("c", Some(3))).unwrap();
        let whole = fs::read(&path).unwrap();
        let last = record(&entry("c", Some(3))).len();
        for cut in 0..=last {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let read = Journal::read(&path).unwrap();
            let expected = [entry("a", None), entry("b", Some(2)), entry("c", Some(3))];
            assert_eq!(read, expected[..if cut == 0 { 3 } else { 2 }]);
        }
        let mut damaged = whole.clone();
        damaged[HEADER] ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert_eq!(
            Journal::read(&path).unwrap(),
            [entry("b", Some(2)), entry("c", Some(3))]
        );
    }
}
