//! Writing a tar stream: GNU headers, whose numbers may be large, with PAX records for times within a second and for long
//! names; a long name that is not UTF-8 goes in a GNU extension, because PAX records are text.

use std::{
    fs::File,
    io::{self, Read as _},
    mem,
};

use bytes::Bytes;
use sandgate_proto::runtime::v1::{FileInfo, FileType, download_response::Message};
use tar::{EntryType, Header};

use super::{
    CHUNK,
    download::{Out, Sent, either, shrank},
};
use crate::error::{Error, Result};

const BLOCK: usize = 512;
/// What a header has room for.
const MAX_SHORT: usize = 100;

/// Collects the stream into chunks.
#[derive(Default)]
pub(super) struct TarSink {
    chunk: Vec<u8>,
}

// === impl TarSink ===

impl TarSink {
    /// Begins an entry.
    pub(super) fn header(&mut self, out: &mut Out<'_>, info: &FileInfo) -> Sent {
        let mut name = either(&info.path, &info.path_raw);
        while let [b'/', rest @ ..] = name {
            name = rest;
        }
        let mut name = name.to_vec();
        if info.r#type() == FileType::Directory {
            // The root itself is `./`.
            name.extend_from_slice(if name.is_empty() { b"./" } else { b"/" });
        }
        let link = either(&info.symlink_target, &info.symlink_target_raw);
        self.extensions(out, info, &name, link)?;
        let mut header = Header::new_gnu();
        header.set_mode(info.mode);
        header.set_uid(info.uid.into());
        header.set_gid(info.gid.into());
        header.set_mtime(
            info.modified
                .as_ref()
                .and_then(|time| u64::try_from(time.seconds).ok())
                .unwrap_or_default(),
        );
        let (kind, size) = match info.r#type() {
            FileType::Directory => (EntryType::Directory, 0),
            FileType::Symlink => (EntryType::Symlink, 0),
            _ => (EntryType::Regular, info.size),
        };
        header.set_entry_type(kind);
        header.set_size(size);
        let fields = header.as_old_mut();
        put(&mut fields.name, &name);
        put(&mut fields.linkname, link);
        header.set_cksum();
        self.write(out, header.as_bytes())
    }

    /// The content of a file, exactly `size` bytes: zeros stand for what is missing, and the entry has failed.
    pub(super) fn body(&mut self, out: &mut Out<'_>, mut file: File, size: u64) -> Sent<Result<()>> {
        let mut left = size;
        let mut outcome = Ok(());
        while left > 0 {
            match self.read(out, &mut file, left)? {
                Ok(0) => outcome = Err(shrank()),
                Ok(read) => left -= read,
                Err(error) => outcome = Err(Error::from(error)),
            }
            if outcome.is_err() {
                break;
            }
        }
        out.add_bytes(size - left);
        self.zeros(out, left)?;
        self.pad(out, size)?;
        Ok(outcome)
    }

    /// Ends the archive.
    pub(super) fn finish(&mut self, out: &mut Out<'_>) -> Sent {
        self.zeros(out, 2 * BLOCK as u64)?;
        self.flush(out)
    }

    fn extensions(&mut self, out: &mut Out<'_>, info: &FileInfo, name: &[u8], link: &[u8]) -> Sent {
        let mut records = Vec::new();
        for (key, value, kind) in [
            ("path", name, EntryType::GNULongName),
            ("linkpath", link, EntryType::GNULongLink),
        ] {
            if value.len() <= MAX_SHORT {
                continue;
            }
            if std::str::from_utf8(value).is_ok() {
                record(&mut records, key, value);
            } else {
                let with_nul: Vec<u8> = value.iter().copied().chain([0]).collect();
                self.extension(out, kind, "././@LongLink", &with_nul)?;
            }
        }
        if let Some(time) = info
            .modified
            .as_ref()
            .filter(|time| time.nanos != 0 || time.seconds < 0)
        {
            record(&mut records, "mtime", decimal(time.seconds, time.nanos).as_bytes());
        }
        if records.is_empty() {
            return Ok(());
        }
        self.extension(out, EntryType::XHeader, "././@PaxHeader", &records)
    }

    fn extension(&mut self, out: &mut Out<'_>, kind: EntryType, name: &str, body: &[u8]) -> Sent {
        let mut header = if kind == EntryType::XHeader {
            Header::new_ustar()
        } else {
            Header::new_gnu()
        };
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(body.len() as u64);
        put(&mut header.as_old_mut().name, name.as_bytes());
        header.set_cksum();
        self.write(out, header.as_bytes())?;
        self.write(out, body)?;
        self.pad(out, body.len() as u64)
    }

    /// Reads once, straight into the chunk.
    fn read(&mut self, out: &mut Out<'_>, file: &mut File, left: u64) -> Sent<io::Result<u64>> {
        self.make_room(out)?;
        let room = (CHUNK - self.chunk.len()) as u64;
        let before = self.chunk.len();
        let want = usize::try_from(room.min(left)).unwrap_or(CHUNK);
        self.chunk.resize(before + want, 0);
        let read = loop {
            match file.read(&mut self.chunk[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.chunk.truncate(before + *read.as_ref().unwrap_or(&0));
        Ok(read.map(|read| read as u64))
    }

    fn write(&mut self, out: &mut Out<'_>, mut bytes: &[u8]) -> Sent {
        while !bytes.is_empty() {
            self.make_room(out)?;
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn zeros(&mut self, out: &mut Out<'_>, mut count: u64) -> Sent {
        const ZEROS: [u8; 4096] = [0; 4096];
        while count > 0 {
            let now = usize::try_from(count).unwrap_or(ZEROS.len()).min(ZEROS.len());
            self.write(out, &ZEROS[..now])?;
            count -= now as u64;
        }
        Ok(())
    }

    fn pad(&mut self, out: &mut Out<'_>, size: u64) -> Sent {
        self.zeros(out, size.next_multiple_of(BLOCK as u64) - size)
    }

    fn make_room(&mut self, out: &mut Out<'_>) -> Sent {
        if self.chunk.len() == CHUNK {
            self.flush(out)?;
        }
        self.chunk.reserve_exact(CHUNK - self.chunk.len());
        Ok(())
    }

    fn flush(&mut self, out: &mut Out<'_>) -> Sent {
        let chunk = mem::take(&mut self.chunk);
        if chunk.is_empty() {
            return Ok(());
        }
        out.send(Message::Chunk(Bytes::from(chunk)))
    }
}

/// As much of it as there is room for; the rest is in an extension.
fn put(field: &mut [u8; MAX_SHORT], value: &[u8]) {
    let length = value.len().min(MAX_SHORT);
    field[..length].copy_from_slice(&value[..length]);
}

/// Appends a PAX record: `<length> <key>=<value>\n`, where the length counts itself.
fn record(records: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// Seconds with a fraction. `nanos` count forward also before 1970.
fn decimal(seconds: i64, nanos: i32) -> String {
    if seconds < 0 && nanos > 0 {
        format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos)
    } else {
        format!("{seconds}.{nanos:09}")
    }
}
