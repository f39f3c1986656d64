//! What the kernel reports, as read from the inotify descriptor: owned, and with the halves of moves put together.

use std::{collections::HashSet, mem::MaybeUninit, os::fd::OwnedFd};

use rustix::fs::inotify::{ReadFlags, Reader};

/// Events that are handled at a time.
const MAX_EVENTS: usize = 8192;

/// One report.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) wd: i32,
    pub(super) flags: ReadFlags,
    cookie: u32,
    /// Empty: it is about the watched directory itself.
    pub(super) name: Vec<u8>,
}

/// Reports in their order.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) reports: Vec<Report>,
}

// === impl Batch ===

impl Batch {
    /// Adds what is there, without waiting.
    pub(super) fn read(&mut self, inotify: &OwnedFd) {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = Reader::new(inotify, &mut buffer);
        while self.reports.len() < MAX_EVENTS || !reader.is_buffer_empty() {
            let Ok(event) = reader.next() else { return };
            self.reports.push(Report {
                wd: event.wd(),
                flags: event.events(),
                cookie: event.cookie(),
                name: event
                    .file_name()
                    .map(|name| name.to_bytes().to_vec())
                    .unwrap_or_default(),
            });
        }
    }

    /// A move began whose second half has not been read, and may never come.
    pub(super) fn has_half_move(&self) -> bool {
        let whole: HashSet<u32> = self.with(ReadFlags::MOVED_TO).map(|report| report.cookie).collect();
        self.with(ReadFlags::MOVED_FROM)
            .any(|report| !whole.contains(&report.cookie))
    }

    /// The second half of the move that begins at `from`.
    pub(super) fn moved_to(&self, from: usize) -> Option<usize> {
        let cookie = self.reports[from].cookie;
        let later = self.reports.iter().enumerate().skip(from + 1);
        later
            .filter(|(_, report)| report.flags.contains(ReadFlags::MOVED_TO))
            .find_map(|(at, report)| (report.cookie == cookie).then_some(at))
    }

    fn with(&self, flag: ReadFlags) -> impl Iterator<Item = &Report> {
        self.reports.iter().filter(move |report| report.flags.contains(flag))
    }
}

#[cfg(test)]
impl Report {
    /// The kernel's queue was full.
    pub(super) fn overflow() -> Self {
        Self {
            wd: -1,
            flags: ReadFlags::QUEUE_OVERFLOW,
            cookie: 0,
            name: Vec::new(),
        }
    }
}
