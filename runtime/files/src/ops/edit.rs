//! Replacing text in a file.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufWriter, Read as _, Write as _},
};

use memchr::memmem::Finder;
use rustix::{
    fs::{OFlags, Stat},
    io::Errno,
};
use sandgate_proto::{
    runtime::v1::{EditOp, EditResult},
    v1::ErrorReason,
};

use super::{Context, at};
use crate::{
    atomic::{Finish, Staged},
    error::{Error, Result},
    info,
    path::PathArg,
    target::Target,
    version,
    view::{must_be_regular, stat},
};

/// Holds for the file as it was, and as it becomes.
const MAX_SIZE: u64 = 64 << 20;

pub(super) fn edit(context: Context<'_>, op: &EditOp) -> Result<EditResult> {
    let Context { view, shared, .. } = context;
    let path = view.path(&op.path, &op.path_raw)?;
    if op.old_text.is_empty() {
        return Err(Error::invalid("the text to replace is empty"));
    }
    let mut target = Target::follow(view, &path, false).map_err(at(&path))?;
    let _held = shared.locks.hold(&[target.key().map_err(at(&path))?]);
    target.look().map_err(at(&path))?;
    let (content, stat) = read_whole(&target, &path)?;
    if let Some(expected) = &op.expected {
        version::check_content(expected, &content, &stat, &path)?;
    }
    let edit = Edit::plan(&content, &op.old_text, &op.new_text, op.replace_all).map_err(|error| error.at(&path))?;
    let mut staged = Staged::begin(&target, &shared.litter).map_err(at(&path))?;
    edit.write(&content, staged.file()).map_err(at(&path))?;
    let finish = Finish {
        replace: true,
        ..Finish::default()
    };
    let stat = staged.commit(&target, &finish).map_err(at(&path))?;
    Ok(EditResult {
        replacements: edit.places.len() as u64,
        info: Some(info::of_stat(&path, &stat)),
    })
}

fn read_whole(target: &Target, path: &PathArg) -> Result<(Vec<u8>, Stat)> {
    must_be_regular(target.existing().ok_or_else(|| at(path)(Errno::NOENT))?, path)?;
    let file = target.open(OFlags::RDONLY).map_err(at(path))?;
    let stat = stat(&file, path)?;
    must_be_regular(&stat, path)?;
    let mut content = Vec::with_capacity(usize::try_from(stat.st_size).unwrap_or_default().min(MAX_SIZE as usize));
    // One byte more than is allowed tells a file that is too large, also while it grows.
    File::from(file)
        .take(MAX_SIZE + 1)
        .read_to_end(&mut content)
        .map_err(at(path))?;
    if content.len() as u64 > MAX_SIZE {
        return Err(too_large().at(path));
    }
    Ok((content, stat))
}

fn too_large() -> Error {
    Error::new(ErrorReason::FileTooLarge, "the file is over 64 MiB, or would be")
}

/// What to replace, where, and with what.
#[derive(Debug)]
struct Edit<'a> {
    places: Vec<usize>,
    old_length: usize,
    new: Cow<'a, [u8]>,
}

// === impl Edit ===

impl<'a> Edit<'a> {
    fn plan(content: &[u8], old: &'a [u8], new: &'a [u8], all: bool) -> Result<Self> {
        let ends = LineEnds::of(content);
        let mut edit = match ends {
            LineEnds::Crlf => Self::find(content, with_crlf(old), with_crlf(new)),
            _ => Self::find(content, old.into(), new.into()),
        };
        if edit.places.is_empty() && ends == LineEnds::Mixed {
            edit = Self::find(content, with_crlf(old), with_crlf(new));
        }
        let count = edit.places.len();
        if count == 0 {
            return Err(Error::new(
                ErrorReason::EditNoMatch,
                "the text does not occur in the file",
            ));
        }
        if count > 1 && !all {
            let mut error = Error::new(ErrorReason::EditAmbiguous, format!("the text occurs {count} times"));
            error.count = count as u64;
            return Err(error);
        }
        let length = (content.len() - count * edit.old_length) as u128 + count as u128 * edit.new.len() as u128;
        if length > MAX_SIZE.into() {
            return Err(too_large());
        }
        Ok(edit)
    }

    fn find(content: &[u8], old: Cow<'a, [u8]>, new: Cow<'a, [u8]>) -> Self {
        Self {
            places: Finder::new(&old).find_iter(content).collect(),
            old_length: old.len(),
            new,
        }
    }

    fn write(&self, content: &[u8], file: &mut File) -> io::Result<()> {
        let mut file = BufWriter::with_capacity(64 << 10, file);
        let mut done = 0;
        for place in &self.places {
            file.write_all(content.get(done..*place).unwrap_or_default())?;
            file.write_all(&self.new)?;
            done = place + self.old_length;
        }
        file.write_all(content.get(done..).unwrap_or_default())?;
        file.flush()
    }
}

/// How the lines of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnds {
    /// In `\n`, or there are none.
    Lf,
    /// All in `\r\n`.
    Crlf,
    /// Some so, some so: the text is looked for as it is, then with `\r\n`.
    Mixed,
}

// === impl LineEnds ===

impl LineEnds {
    fn of(content: &[u8]) -> Self {
        let before = |end: usize| end.checked_sub(1).and_then(|before| content.get(before));
        let (mut lf, mut crlf) = (false, false);
        for end in memchr::memchr_iter(b'\n', content) {
            match before(end) {
                Some(b'\r') => crlf = true,
                _ => lf = true,
            }
            if lf && crlf {
                return Self::Mixed;
            }
        }
        if crlf { Self::Crlf } else { Self::Lf }
    }
}

/// The text with every `\n` that has no `\r` before it as `\r\n`.
fn with_crlf(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\n', text).is_none() {
        return text.into();
    }
    let mut converted = Vec::with_capacity(text.len() + 16);
    for byte in text {
        if *byte == b'\n' && converted.last() != Some(&b'\r') {
            converted.push(b'\r');
        }
        converted.push(*byte);
    }
    converted.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(content: &[u8], old: &[u8], new: &[u8], all: bool) -> Result<Vec<u8>> {
        let edit = Edit::plan(content, old, new, all)?;
        let mut file = tempfile::tempfile().unwrap();
        edit.write(content, &mut file).unwrap();
        let mut result = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut result).unwrap();
        Ok(result)
    }

    #[test]
    fn text_is_replaced_and_line_ends_are_kept() {
        type Case<'a> = (&'a [u8], &'a [u8], &'a [u8], bool, &'a [u8]);
        let cases: &[Case<'_>] = &[
            (b"one two", b"two", b"three", false, b"one three"),
            (b"a a a", b"a", b"bb", true, b"bb bb bb"),
            (b"aaaa", b"aa", b"b", true, b"bb"),
            (b"gone", b"gone", b"", false, b""),
            (b"x\0\xff\x01y", b"\0\xff", b"\xfe", false, b"x\xfe\x01y"),
            (b"a\nb\n", b"a\nb", b"c\nd", false, b"c\nd\n"),
            // Written with \n, found and put back with \r\n.
            (b"a\r\nb\r\n", b"a\nb", b"c\nd", false, b"c\r\nd\r\n"),
            (b"a\r\nb\r\n", b"a\r\nb", b"c\r\nd", false, b"c\r\nd\r\n"),
            (b"a\r\nb\r\n", b"\n", b"\n\n", true, b"a\r\n\r\nb\r\n\r\n"),
            (b"a\r\nb\r\n", b"b", b"c\nd", false, b"a\r\nc\r\nd\r\n"),
            // Mixed: as it is where that occurs, else with \r\n.
            (b"a\nb\r\nc", b"a\nb", b"x\ny", false, b"x\ny\r\nc"),
            (b"a\nb\r\nc", b"b\nc", b"x\ny", false, b"a\nx\r\ny"),
        ];
        for (content, old, new, all, wanted) in cases {
            let text = String::from_utf8_lossy(content);
            assert_eq!(edited(content, old, new, *all).unwrap(), *wanted, "{text:?}");
        }
    }

    #[test]
    fn absent_ambiguous_and_exploding_edits_are_refused() {
        let error = edited(b"abc", b"x", b"y", true).unwrap_err();
        assert_eq!(error.reason, ErrorReason::EditNoMatch);
        let error = edited(b"a a a", b"a", b"b", false).unwrap_err();
        assert_eq!((error.reason, error.count), (ErrorReason::EditAmbiguous, 3));
        let many = vec![b'a'; 1 << 20];
        let error = edited(&many, b"a", &[b'b'; 65], true).unwrap_err();
        assert_eq!(error.reason, ErrorReason::FileTooLarge);
    }
}
