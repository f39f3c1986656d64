//! Entries of a directory, in pages.

use std::cmp::Ordering;

use prost::Message as _;
use sandgate_proto::runtime::v1::{FileInfo, ListOp, ListResult};

use super::{Context, at};
use crate::{
    error::{Error, Result},
    info,
    path::{MAX_PATH, PathArg},
    walk::{Options, Step, Walker},
};

const DEFAULT_PAGE: usize = 1_000;
const MAX_PAGE: usize = 10_000;
/// What an entry takes in the answer besides itself.
const FRAMING: usize = 8;

pub(super) fn list(context: Context<'_>, op: &ListOp) -> Result<ListResult> {
    let path = context.view.path(&op.path, &op.path_raw)?;
    let after = decode_token(&op.page_token)?;
    let directory = context.view.open_directory(&path)?;
    let options = Options {
        sorted: true,
        max_depth: op.depth.max(1) as usize,
    };
    let mut walker = Walker::new(directory, options).map_err(at(&path))?;
    let mut page = Page::new(&path, op.page_size, context.room);
    while let Some(step) = walker.next() {
        match step {
            Step::Entry(entry) => {
                if is_before(entry.path, &after) {
                    continue;
                }
                let shown = path.join(entry.path);
                // No call can name it.
                if shown.as_os_str().len() > MAX_PATH {
                    continue;
                }
                // What vanished since the directory was read is left out.
                let Ok(info) = info::of_name(shown, entry.dir, entry.file_name()) else {
                    continue;
                };
                if !page.add(info, entry.path) {
                    break;
                }
            }
            Step::Enter(entry) => {
                let skip = is_passed(entry.path, &after);
                if skip {
                    walker.skip();
                }
            }
            // Its own entry was listed.
            Step::Unreadable { .. } => {}
        }
    }
    Ok(page.finish())
}

/// A page that is being filled.
struct Page {
    entries: Vec<FileInfo>,
    last: Vec<u8>,
    is_full: bool,
    limit: usize,
    room: usize,
}

// === impl Page ===

impl Page {
    fn new(path: &PathArg, page_size: u32, room: usize) -> Self {
        let limit = match page_size as usize {
            0 => DEFAULT_PAGE,
            size => size.min(MAX_PAGE),
        };
        // The token has to fit too: two digits for each byte of a path.
        let token = 2 * (MAX_PATH.saturating_sub(path.as_bytes().len()) + 1);
        Self {
            entries: Vec::new(),
            last: Vec::new(),
            is_full: false,
            limit,
            room: room.saturating_sub(token),
        }
    }

    /// Whether it took the entry. If not, there is a next page.
    fn add(&mut self, info: FileInfo, relative: &[u8]) -> bool {
        let size = info.encoded_len() + FRAMING;
        if !self.entries.is_empty() && (self.entries.len() >= self.limit || size > self.room) {
            self.is_full = true;
            return false;
        }
        self.room = self.room.saturating_sub(size);
        self.entries.push(info);
        self.last.clear();
        self.last.extend_from_slice(relative);
        true
    }

    fn finish(self) -> ListResult {
        ListResult {
            entries: self.entries,
            next_page_token: if self.is_full {
                encode_token(&self.last)
            } else {
                String::new()
            },
        }
    }
}

/// Whether an entry was on an earlier page.
fn is_before(path: &[u8], after: &[u8]) -> bool {
    path <= after
}

/// Whether everything in a directory was.
fn is_passed(directory: &[u8], after: &[u8]) -> bool {
    let inside = directory.iter().chain(b"/");
    match after.get(..=directory.len()) {
        // The last entry listed is in it.
        Some(start) if start.iter().eq(inside.clone()) => false,
        _ => inside.cmp(after) == Ordering::Less,
    }
}

fn encode_token(path: &[u8]) -> String {
    use std::fmt::Write as _;

    path.iter()
        .fold(String::with_capacity(path.len() * 2), |mut token, byte| {
            // Writing to a string does not fail.
            let _ok = write!(token, "{byte:02x}");
            token
        })
}

fn decode_token(token: &str) -> Result<Vec<u8>> {
    let digits = token.as_bytes().chunks(2).map(|pair| {
        let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
        u8::from_str_radix(text, 16).ok()
    });
    digits
        .collect::<Option<_>>()
        .ok_or_else(|| Error::invalid("the page token is not one of ours"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_any_name() {
        for path in [b"".as_slice(), b"a/b", b"\xff\0\n"] {
            assert_eq!(decode_token(&encode_token(path)).unwrap(), path);
        }
        for token in ["a", "zz", "é", "0x", "aaa"] {
            assert!(decode_token(token).is_err(), "{token}");
        }
    }

    #[test]
    fn directories_of_earlier_pages_are_passed() {
        for (directory, after, passed) in [
            ("a", "", false),
            ("a", "a", false),
            ("a", "a.c", false),
            ("a", "a/b", false),
            ("a", "a/", false),
            ("a", "a0", true),
            ("a", "b", true),
            ("b", "a/x", false),
        ] {
            assert_eq!(
                is_passed(directory.as_bytes(), after.as_bytes()),
                passed,
                "{directory} {after}"
            );
        }
    }
}
