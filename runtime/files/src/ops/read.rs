//! Reading a part of a file, by bytes or by lines, in bounded memory.

use std::os::fd::OwnedFd;

use rustix::{buffer::spare_capacity, fs::Stat, io};
use sandgate_proto::runtime::v1::{ByteWindow, LineWindow, ReadOp, ReadResult, read_op::Window};

use super::at;
use crate::{error::Result, info, view::View};

const DEFAULT_BYTES: u64 = 1 << 20;
const MAX_BYTES: u64 = 2 << 20;
const CHUNK: usize = 64 << 10;
/// A NUL in the first bytes makes a file binary, wherever the window is.
const SNIFFED: usize = 8 << 10;

pub(super) fn read(view: &View, op: &ReadOp) -> Result<ReadResult> {
    let path = view.path(&op.path, &op.path_raw)?;
    let (file, stat) = view.open_regular(&path)?;
    let max = match op.max_bytes {
        0 => DEFAULT_BYTES,
        bytes => bytes.min(MAX_BYTES),
    };
    let max = usize::try_from(max).unwrap_or_default();
    let mut result = match &op.window {
        Some(Window::Lines(window)) => by_lines(&file, window, max),
        Some(Window::Bytes(window)) => by_bytes(&file, &stat, window, max),
        None => by_bytes(&file, &stat, &ByteWindow::default(), max),
    }
    .map_err(at(&path))?;
    result.binary = is_binary(&file, &result).map_err(at(&path))?;
    result.info = Some(info::of_stat(&path, &stat));
    Ok(result)
}

fn by_bytes(file: &OwnedFd, stat: &Stat, window: &ByteWindow, max: usize) -> io::Result<ReadResult> {
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let length = match window.length {
        0 => u64::MAX,
        length => length,
    };
    let wanted = usize::try_from(length).unwrap_or(usize::MAX).min(max);
    // Sizes are not to be relied on: files of procfs say 0. One byte more tells whether there is one.
    let mut content = read_at(file, window.offset, wanted.saturating_add(1), size)?;
    let more_after = content.len() > wanted;
    content.truncate(wanted);
    Ok(ReadResult {
        more_before: window.offset > 0 && (size > 0 || !content.is_empty()),
        more_after,
        content: content.into(),
        offset: window.offset,
        ..ReadResult::default()
    })
}

/// Reads up to `length` bytes; fewer at the end of the file, which is at `size` unless that is 0.
fn read_at(file: &OwnedFd, offset: u64, length: usize, size: u64) -> io::Result<Vec<u8>> {
    let room = match usize::try_from(size.saturating_sub(offset)) {
        Ok(left) if size > 0 => left.saturating_add(1),
        _ => SNIFFED,
    };
    // One byte more than there should be, for a file that has grown.
    let mut content = Vec::with_capacity(room.min(length));
    while content.len() < length {
        let Some(at) = offset
            .checked_add(content.len() as u64)
            .filter(|at| i64::try_from(*at).is_ok())
        else {
            break;
        };
        // Just there, and not behind it: a file that has grown meanwhile is read on.
        if at == size && !content.is_empty() {
            break;
        }
        if content.len() == content.capacity() {
            content.reserve(CHUNK.min(length - content.len()));
        }
        if io::retry_on_intr(|| io::pread(file, spare_capacity(&mut content), at))? == 0 {
            break;
        }
    }
    content.truncate(length);
    Ok(content)
}

fn pread<'a>(file: &OwnedFd, buffer: &'a mut [u8], offset: u64) -> io::Result<&'a [u8]> {
    let length = io::retry_on_intr(|| io::pread(file, &mut *buffer, offset))?;
    Ok(buffer.get(..length).unwrap_or_default())
}

fn by_lines(file: &OwnedFd, window: &LineWindow, max: usize) -> io::Result<ReadResult> {
    let mut scan = Scan::new(window, max);
    let mut chunk = vec![0; CHUNK];
    loop {
        match pread(file, &mut chunk, scan.position)? {
            [] => return Ok(scan.finish()),
            read => scan.take(read),
        }
    }
}

/// Looks at a file from start to end, keeps the lines of the window, and counts all.
struct Scan {
    first: u64,
    /// The line after the last one.
    end: u64,
    max: usize,
    position: u64,
    /// Line ends seen.
    ends: u64,
    last_byte: Option<u8>,
    start: Option<u64>,
    content: Vec<u8>,
    /// The window has more than `max` bytes.
    cut: bool,
}

// === impl Scan ===

impl Scan {
    fn new(window: &LineWindow, max: usize) -> Self {
        Self {
            first: window.first,
            end: match window.count {
                0 => u64::MAX,
                count => window.first.saturating_add(count),
            },
            max,
            position: 0,
            ends: 0,
            last_byte: None,
            start: (window.first == 0).then_some(0),
            content: Vec::new(),
            cut: false,
        }
    }

    fn take(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        // Only the borders of the window have to be found; what is before and after is just counted.
        while !rest.is_empty() {
            let (line, more) = match memchr::memchr(b'\n', rest).filter(|_| self.looks_for_a_border()) {
                Some(end) => rest.split_at(end + 1),
                None => (rest, [].as_slice()),
            };
            self.keep(line);
            self.ends += memchr::memchr_iter(b'\n', line).count() as u64;
            self.position += line.len() as u64;
            if self.start.is_none() && self.ends == self.first {
                self.start = Some(self.position);
            }
            rest = more;
        }
        self.last_byte = chunk.last().copied().or(self.last_byte);
    }

    fn looks_for_a_border(&self) -> bool {
        self.start.is_none() || (self.ends < self.end && !self.cut)
    }

    fn keep(&mut self, line: &[u8]) {
        if self.start.is_none() || self.ends >= self.end || self.cut {
            return;
        }
        let fits = self.max - self.content.len();
        self.content.extend_from_slice(line.get(..fits).unwrap_or(line));
        self.cut = line.len() > fits;
    }

    fn finish(mut self) -> ReadResult {
        if self.cut
            && let Some(end) = memchr::memrchr(b'\n', &self.content)
        {
            self.content.truncate(end + 1);
        }
        let total_lines = self.ends + u64::from(self.last_byte.is_some_and(|byte| byte != b'\n'));
        let offset = self.start.unwrap_or(self.position);
        let unended = self.content.last().is_some_and(|byte| *byte != b'\n');
        let line_count = memchr::memchr_iter(b'\n', &self.content).count() as u64 + u64::from(unended);
        ReadResult {
            offset,
            more_before: offset > 0,
            more_after: offset + (self.content.len() as u64) < self.position,
            total_lines,
            first_line: self.first.min(total_lines),
            line_count,
            content: self.content.into(),
            ..ReadResult::default()
        }
    }
}

fn is_binary(file: &OwnedFd, read: &ReadResult) -> io::Result<bool> {
    let sniffed = match read.offset {
        0 if read.content.len() >= SNIFFED || !read.more_after => memchr::memchr(0, head(&read.content)),
        _ => memchr::memchr(0, &read_at(file, 0, SNIFFED, 0)?),
    };
    Ok(sniffed.is_some() || !is_text(read))
}

fn head(content: &[u8]) -> &[u8] {
    content.get(..SNIFFED).unwrap_or(content)
}

/// UTF-8, but for a character that the window's borders cut.
fn is_text(read: &ReadResult) -> bool {
    let content = read.content.as_ref();
    let is_tail = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let cut_before = if read.more_before {
        content.iter().take(3).take_while(is_tail).count()
    } else {
        0
    };
    match std::str::from_utf8(content.get(cut_before..).unwrap_or_default()) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && read.more_after,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(content: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.into()
    }

    fn lines(content: &[u8], first: u64, count: u64, max: usize) -> ReadResult {
        by_lines(&file(content), &LineWindow { first, count }, max).unwrap()
    }

    #[test]
    #[rustfmt::skip]
    fn windows_of_lines() {
        // content, first, count, max -> content, offset, before, after, total, first, lines
        type Case<'a> = (&'a str, u64, u64, usize, &'a str, u64, bool, bool, u64, u64, u64);
        let cases: &[Case<'_>] = &[
            ("",            0, 0, 99, "",          0, false, false, 0, 0, 0),
            ("",            5, 2, 99, "",          0, false, false, 0, 0, 0),
            ("a",           0, 0, 99, "a",         0, false, false, 1, 0, 1),
            ("a\n",         0, 0, 99, "a\n",       0, false, false, 1, 0, 1),
            ("a\nb",        0, 1, 99, "a\n",       0, false, true,  2, 0, 1),
            ("a\nb",        1, 1, 99, "b",         2, true,  false, 2, 1, 1),
            ("a\nb\n",      1, 0, 99, "b\n",       2, true,  false, 2, 1, 1),
            ("a\nb\n",      2, 1, 99, "",          4, true,  false, 2, 2, 0),
            ("a\nb",        9, 1, 99, "",          3, true,  false, 2, 2, 0),
            ("a\r\nb\r\nc", 1, 1, 99, "b\r\n",     3, true,  true,  3, 1, 1),
            ("\n\n\n",      1, 1, 99, "\n",        1, true,  true,  3, 1, 1),
            // Cut at the last whole line that fits.
            ("aa\nbb\ncc",  0, 0, 5,  "aa\n",      0, false, true,  3, 0, 1),
            ("aa\nbb\ncc",  0, 0, 6,  "aa\nbb\n",  0, false, true,  3, 0, 2),
            ("aa\nbb\ncc",  1, 2, 3,  "bb\n",      3, true,  true,  3, 1, 1),
            // Or within the first line, if that alone is too long.
            ("aaaaaa\nb",   0, 0, 4,  "aaaa",      0, false, true,  2, 0, 1),
            ("aaaa",        0, 0, 4,  "aaaa",      0, false, false, 1, 0, 1),
            ("a\nb\nc",     0, u64::MAX, 99, "a\nb\nc", 0, false, false, 3, 0, 3),
            ("a\nb\nc",     u64::MAX, u64::MAX, 99, "", 5, true, false, 3, 3, 0),
        ];
        for case in cases {
            let read = lines(case.0.as_bytes(), case.1, case.2, case.3);
            let content = std::str::from_utf8(&read.content).unwrap();
            assert_eq!(
                (content, read.offset, read.more_before, read.more_after, read.total_lines, read.first_line, read.line_count),
                (case.4, case.5, case.6, case.7, case.8, case.9, case.10),
                "{case:?}",
            );
        }
    }

    #[test]
    fn lines_longer_than_a_chunk() {
        let mut content = vec![b'x'; 3 * CHUNK];
        content.extend_from_slice(b"\nsecond\n");
        content.extend(vec![b'y'; 2 * CHUNK]);
        let read = lines(&content, 1, 1, 100);
        assert_eq!((read.content.as_ref(), read.total_lines), (b"second\n".as_slice(), 3));
        assert_eq!(read.offset, 3 * CHUNK as u64 + 1);
        let read = lines(&content, 2, 1, 100);
        assert_eq!((read.content.len(), read.more_after, read.line_count), (100, true, 1));
        let read = lines(&content, 0, 1, MAX_BYTES as usize);
        assert_eq!(read.content.len(), 3 * CHUNK + 1);
    }

    #[test]
    fn lines_agree_with_a_plain_reading() {
        // A small generator: the case is its number.
        for seed in 0..400_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |bound: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % bound
            };
            let content: Vec<u8> = (0..next(60)).map(|_| if next(4) == 0 { b'\n' } else { b'a' }).collect();
            let (first, count) = (next(8), next(5));
            let all: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
            let end = if count == 0 {
                usize::MAX
            } else {
                (first + count) as usize
            };
            let wanted: Vec<u8> = all
                .iter()
                .take(end)
                .skip(first as usize)
                .copied()
                .flatten()
                .copied()
                .collect();
            let read = lines(&content, first, count, 1000);
            assert_eq!(read.content, wanted, "seed {seed}");
            assert_eq!(read.total_lines, all.len() as u64, "seed {seed}");
        }
    }

    #[test]
    fn windows_of_bytes() {
        let opened = file(b"0123456789");
        let stat = rustix::fs::fstat(&opened).unwrap();
        for (offset, length, max, content, before, after) in [
            (0, 0, 99, "0123456789", false, false),
            (0, 4, 99, "0123", false, true),
            (8, 4, 99, "89", true, false),
            (3, 0, 2, "34", true, true),
            (10, 0, 99, "", true, false),
            (u64::MAX, 1, 99, "", true, false),
            (5, 5, 5, "56789", true, false),
        ] {
            let read = by_bytes(&opened, &stat, &ByteWindow { offset, length }, max).unwrap();
            assert_eq!(read.content, content, "{offset} {length}");
            assert_eq!(
                (read.more_before, read.more_after, read.offset),
                (before, after, offset),
                "{offset} {length}"
            );
        }
    }

    #[test]
    fn binary_is_told_from_text() {
        let check = |content: &[u8], offset, length| {
            let opened = file(content);
            let stat = rustix::fs::fstat(&opened).unwrap();
            let read = by_bytes(&opened, &stat, &ByteWindow { offset, length }, 1 << 20).unwrap();
            is_binary(&opened, &read).unwrap()
        };
        assert!(!check(b"", 0, 0));
        assert!(!check("größe".as_bytes(), 0, 0));
        // The window cuts a character in two, at its start and at its end.
        assert!(!check("größe".as_bytes(), 0, 3));
        assert!(!check("größe".as_bytes(), 3, 2));
        assert!(check(b"abc\xff", 0, 0));
        assert!(check(b"abc\xe2\x82", 0, 0));
        assert!(check(b"a\0b", 0, 0));
        // The NUL is before the window, then far behind it.
        assert!(check(b"a\0bcdef", 4, 2));
        let mut far = vec![b'a'; SNIFFED];
        far.push(0);
        assert!(!check(&far, 0, 0));
    }
}
