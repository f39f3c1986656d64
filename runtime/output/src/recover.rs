//! Reading what a former process spilled.
//!
//! Only headers are read, plus the body of the last segment: a process that dies tears no other. The log ends at the
//! first damage; what lies behind it is deleted, since nothing says how it would join.

use std::{fs::File, io, path::Path, sync::Arc};

use crate::{
    budget::Budget,
    disk::{self, Disk, Location},
    format::{self, HEADER},
    heads::Heads,
    log::Inner,
    segment::Span,
    state::{Shed, State, rotate_bytes},
    types::{LogOptions, Offsets},
};

/// The segments that are whole, and what to do with the rest.
struct Found {
    segments: Vec<(Span, Location)>,
    /// The number of the next file.
    next: u64,
}

pub(crate) fn recover(
    budget: &Arc<Budget>,
    id: &str,
    dir: &Path,
    options: LogOptions,
    written: Option<Offsets>,
) -> io::Result<Inner> {
    let found = scan(dir)?;
    let disk = Disk::recovered(dir.to_owned(), rotate_bytes(&options), found.next);
    let mut state = State::new(budget.clone(), options, disk);
    for (span, location) in found.segments {
        state.adopt(span, location);
    }
    if let Ok(heads) = disk::read_heads(dir).and_then(|bytes| Heads::decode(options.head_bytes, &bytes)) {
        state.heads = heads;
    }
    state.conclude(written);
    let inner = Inner::new(id.to_owned(), dir.to_owned(), state);
    shrink(&inner);
    Ok(inner)
}

/// Files go when all their segments are dropped, so there may be more than the log had kept.
fn shrink(log: &Inner) {
    loop {
        let mut state = log.lock();
        let shed = if state.retains_too_much() {
            state.shed()
        } else {
            Shed::Nothing
        };
        drop(state);
        match shed {
            Shed::Dropped => {}
            Shed::ReadFirst(span, location) => log.save_head(&span, location),
            Shed::Held | Shed::Nothing => break,
        }
    }
    let lane = log.lock().take_lane();
    if let Some(mut disk) = lane {
        log.do_chores(&mut disk);
        log.lock().return_lane(disk);
    }
}

fn scan(dir: &Path) -> io::Result<Found> {
    let files = disk::segment_files(dir)?;
    let next = files.last().map_or(0, |last| last + 1);
    let mut segments: Vec<(Span, Location)> = Vec::new();
    let mut files = files.into_iter();
    for number in files.by_ref() {
        let whole = scan_file(dir, number, &mut segments)?;
        if !whole {
            break;
        }
    }
    for number in files {
        std::fs::remove_file(disk::segment_path(dir, number))?;
    }
    check_last(dir, &mut segments)?;
    Ok(Found { segments, next })
}

/// Whether the file has no damage. If it has, it is cut off there.
fn scan_file(dir: &Path, number: u64, segments: &mut Vec<(Span, Location)>) -> io::Result<bool> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(disk::segment_path(dir, number))?;
    let len = file.metadata()?.len();
    let mut at = 0;
    while at < len {
        let last = segments.last().map(|(span, _)| *span).unwrap_or_default();
        let end = match disk::read_header(&file, at) {
            Ok(header) if follows(&last, &header.span) => {
                segments.push((header.span, Location { file: number, at }));
                at + HEADER as u64 + format::body_len(&header.span)
            }
            Err(error) if !is_damage(&error) => return Err(error),
            _ => u64::MAX,
        };
        if end > len {
            segments.pop_if(|(_, location)| *location == Location { file: number, at });
            file.set_len(at)?;
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

fn follows(last: &Span, span: &Span) -> bool {
    span.first >= last.end_sequence() && span.start.covers(&last.end)
}

/// Drops the last segment if its body is not whole.
fn check_last(dir: &Path, segments: &mut Vec<(Span, Location)>) -> io::Result<()> {
    let Some((span, location)) = segments.last().copied() else {
        return Ok(());
    };
    match disk::read(dir, location, &span) {
        Err(error) if is_damage(&error) => {
            segments.pop();
            File::options()
                .write(true)
                .open(disk::segment_path(dir, location.file))?
                .set_len(location.at)
        }
        read => read.map(drop),
    }
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests;
