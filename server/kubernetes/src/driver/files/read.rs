//! What is there: directories and contents.

use bytes::Bytes;
use sandgate_errors::Refusal;
use sandgate_proto::runtime::v1::{
    ByteWindow, FileType, LineWindow, ListOp, ListResult, ReadOp, ReadResult, read_op::Window,
};

use super::{Files, flag, odd, scripts};
use crate::driver::{
    inside::{Ending, finish},
    wrap::script,
};

const DEFAULT_READ: u64 = 1 << 20;
const MAX_READ: u64 = 2 << 20;
const DEFAULT_PAGE: usize = 1_000;
const MAX_PAGE: usize = 10_000;
/// How often a directory that changes is listed again.
const TRIES: usize = 3;
/// Where a NUL byte makes a file a binary one.
const SNIFF: usize = 8 << 10;

impl Files {
    pub(super) async fn list(&self, op: ListOp) -> Result<ListResult, Refusal> {
        if op.depth > 1 {
            return Err(self.missing("files.batch").with_field("depth"));
        }
        let size = match usize::try_from(op.page_size).unwrap_or(usize::MAX) {
            0 => DEFAULT_PAGE,
            size if size <= MAX_PAGE => size,
            _ => return Err(Refusal::invalid("page_size", "at most 10,000")),
        };
        let path = self.path(&op.path, &op.path_raw).await?;
        let mut entries = self.entries(&path).await?;
        let name = |entry: &sandgate_proto::runtime::v1::FileInfo| match entry.path_raw.is_empty() {
            true => entry.path.clone().into_bytes(),
            false => entry.path_raw.to_vec(),
        };
        entries.sort_by_key(name);
        let after =
            unhex(&op.page_token).ok_or_else(|| Refusal::invalid("page_token", "not a token that this call gave"))?;
        entries.retain(|entry| name(entry) > after);
        let more = entries.len() > size;
        entries.truncate(size);
        let next_page_token = entries
            .last()
            .filter(|_| more)
            .map(|last| hex(&name(last)))
            .unwrap_or_default();
        self.fill_in_links(&path, &mut entries).await?;
        Ok(ListResult {
            entries,
            next_page_token,
        })
    }

    async fn entries(&self, path: &str) -> Result<Vec<sandgate_proto::runtime::v1::FileInfo>, Refusal> {
        for _ in 0..TRIES {
            let text = format!("export LC_ALL=C\n{}", scripts::LIST);
            let finished = finish(&*self.inside, script(&text, &[path])).await?;
            match finished.ending {
                Ending::Code(0) => return scripts::entries(&finished.stdout, path).ok_or_else(odd),
                Ending::Code(scripts::CHANGED) => {}
                _ => return Err(scripts::failure(&finished, path)),
            }
        }
        Err(odd())
    }

    async fn fill_in_links(
        &self,
        path: &str,
        entries: &mut [sandgate_proto::runtime::v1::FileInfo],
    ) -> Result<(), Refusal> {
        let is_link = |entry: &sandgate_proto::runtime::v1::FileInfo| {
            entry.r#type() == FileType::Symlink && entry.path_raw.is_empty()
        };
        let mut links: Vec<_> = entries.iter_mut().filter(|entry| is_link(entry)).collect();
        if links.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = links
            .iter()
            .map(|entry| entry.path.rsplit('/').next().unwrap_or_default().to_owned())
            .collect();
        let mut args = vec![path];
        args.extend(names.iter().map(String::as_str));
        let finished = self.done(scripts::LINKS, &args, path).await?;
        for (entry, target) in links.iter_mut().zip(finished.stdout.split(|byte| *byte == 0)) {
            (entry.symlink_target, entry.symlink_target_raw) = scripts::text_or_raw(target);
        }
        Ok(())
    }

    pub(super) async fn read(&self, op: ReadOp) -> Result<ReadResult, Refusal> {
        let most = match op.max_bytes {
            0 => DEFAULT_READ,
            most if most <= MAX_READ => most,
            _ => return Err(Refusal::invalid("max_bytes", "at most 2 MiB")),
        };
        let path = self.path(&op.path, &op.path_raw).await?;
        match op.window {
            Some(Window::Lines(window)) => self.read_lines(&path, window, most).await,
            Some(Window::Bytes(window)) => self.read_bytes(&path, window, most).await,
            None => self.read_bytes(&path, ByteWindow::default(), most).await,
        }
    }

    async fn read_bytes(&self, path: &str, window: ByteWindow, most: u64) -> Result<ReadResult, Refusal> {
        let count = if window.length == 0 {
            most
        } else {
            window.length.min(most)
        };
        let (offset, count) = (window.offset.min(i64::MAX as u64), count.to_string());
        let finished = self
            .done(scripts::READ, &[path, &offset.to_string(), &count], path)
            .await?;
        let (line, content) = first_line(&finished.stdout).ok_or_else(odd)?;
        let info = scripts::facts(&line, path.as_bytes()).ok_or_else(odd)?;
        Ok(ReadResult {
            offset: window.offset,
            more_before: window.offset > 0 && info.size > 0,
            more_after: window.offset + (content.len() as u64) < info.size,
            binary: is_binary(&content),
            info: Some(info),
            content,
            ..ReadResult::default()
        })
    }

    async fn read_lines(&self, path: &str, window: LineWindow, most: u64) -> Result<ReadResult, Refusal> {
        let first = window.first.min(i64::MAX as u64);
        let (from, count, limit) = (first.to_string(), window.count.to_string(), (most + 1).to_string());
        let finished = self.done(scripts::LINES, &[path, &from, &count, &limit], path).await?;
        let (line, rest) = first_line(&finished.stdout).ok_or_else(odd)?;
        let info = scripts::facts(&line, path.as_bytes()).ok_or_else(odd)?;
        let (line, content) = first_line(&rest).ok_or_else(odd)?;
        let numbers: Vec<u64> = String::from_utf8_lossy(&line)
            .split_whitespace()
            .flat_map(str::parse)
            .collect();
        let &[ends, whole, offset] = numbers.as_slice() else {
            return Err(odd());
        };
        let total_lines = ends + u64::from(whole == 0 && info.size > 0);
        let content = cut_at_line(content, usize::try_from(most).unwrap_or(usize::MAX));
        let line_ends = content.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok(ReadResult {
            offset,
            more_before: offset > 0,
            more_after: offset + (content.len() as u64) < info.size,
            binary: is_binary(&content),
            total_lines,
            first_line: window.first,
            line_count: line_ends + u64::from(!content.is_empty() && !content.ends_with(b"\n")),
            info: Some(info),
            content,
        })
    }

    /// What a download needs to know of a file before its content.
    pub(super) async fn regular(&self, path: &str) -> Result<sandgate_proto::runtime::v1::FileInfo, Refusal> {
        let finished = self
            .done(scripts::READ, &[path, flag(false), flag(false)], path)
            .await?;
        let (line, _) = first_line(&finished.stdout).ok_or_else(odd)?;
        scripts::facts(&line, path.as_bytes()).ok_or_else(odd)
    }
}

fn first_line(bytes: &Bytes) -> Option<(Bytes, Bytes)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes.slice(..end), bytes.slice(end + 1..)))
}

/// At most so many bytes, whole lines if there is one.
fn cut_at_line(content: Bytes, most: usize) -> Bytes {
    if content.len() <= most {
        return content;
    }
    match content[..most].iter().rposition(|byte| *byte == b'\n') {
        Some(end) => content.slice(..=end),
        None => content.slice(..most),
    }
}

fn is_binary(content: &[u8]) -> bool {
    if content.iter().take(SNIFF).any(|byte| *byte == 0) {
        return true;
    }
    // A window may end within a character.
    std::str::from_utf8(content).is_err_and(|error| error.error_len().is_some())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
