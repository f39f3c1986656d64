//! `files ls`, `cat`, `stat` and `find`.

use std::{io, process::ExitCode};

use sandgate::{
    Client,
    v1::{
        FileInfo, GlobOp, LineWindow, ListOp, ReadOp, ReadResult, file_op::Op, file_op_result::Result as Outcome,
        read_op::Window,
    },
};
use serde::Serialize;

use super::view::{FileView, FilesView, Style};
use crate::cli::{
    Context, Failure, Format, cp,
    fileops::{self, Acting},
    output::{self, Show, Text},
    place::{Remote, remote},
};

const LIST_PAGE: u32 = 1_000;
/// What one answer may hold.
const MAX_READ: u64 = 2 << 20;

/// List a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files ls demo:/workspace
  sandgate files ls -l demo:/etc
  sandgate files ls --depth 3 demo:.")]
pub(super) struct LsArgs {
    /// The directory
    #[arg(value_name = "NAME:PATH", value_parser = remote())]
    place: Remote,
    /// Show type, permissions, owner, size and time too
    #[arg(long, short)]
    long: bool,
    /// How many levels to go down; more than 1 shows whole paths
    #[arg(long, default_value_t = 1, value_name = "N")]
    depth: u32,
    #[command(flatten)]
    acting: Acting,
}

/// Print files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With -o json at most 2 MiB of each file are printed: `content` if it is UTF-8, else `content_base64`.

Examples:
  sandgate files cat demo:/etc/os-release
  sandgate files cat --lines 10:20 demo:app.py")]
pub(super) struct CatArgs {
    /// The files
    #[arg(required = true, value_name = "NAME:PATH", value_parser = remote())]
    places: Vec<Remote>,
    /// Only these lines, the first is 1: FIRST:LAST, FIRST: or :LAST
    #[arg(long, value_name = "RANGE", value_parser = lines)]
    lines: Option<LineWindow>,
    #[command(flatten)]
    acting: Acting,
}

/// Show what the file system says of a path
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files stat demo:/workspace/app.py")]
pub(super) struct StatArgs {
    /// The paths
    #[arg(required = true, value_name = "NAME:PATH", value_parser = remote())]
    places: Vec<Remote>,
    /// Follow a symlink at the end of the path
    #[arg(long, short = 'L')]
    follow: bool,
    #[command(flatten)]
    acting: Acting,
}

/// Find paths by pattern
///
/// `*` and `?` match within a name, `**` any number of directories; `[a-z]` and `{a,b}` work.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files find demo:. '**/*.py'
  sandgate files find --dirs --hidden demo:/workspace '**'")]
pub(super) struct FindArgs {
    /// The directory to look in
    #[arg(value_name = "NAME:PATH", value_parser = remote())]
    place: Remote,
    /// The pattern
    #[arg(default_value = "**")]
    pattern: String,
    /// Show type, permissions, owner, size and time too
    #[arg(long, short)]
    long: bool,
    /// Let wildcards match names that begin with a dot
    #[arg(long)]
    hidden: bool,
    /// Also list directories
    #[arg(long)]
    dirs: bool,
    /// At most this many, up to 10000
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    acting: Acting,
}

/// Several files, each with all its facts.
#[derive(Debug, Serialize)]
struct StatView {
    files: Vec<FileView>,
}

/// Several files' content.
#[derive(Debug, Serialize)]
struct ContentsView {
    files: Vec<ContentView>,
}

#[derive(Debug, Serialize)]
struct ContentView {
    path: String,
    size: u64,
    offset: u64,
    content: Option<String>,
    content_base64: Option<String>,
    binary: bool,
    more_before: bool,
    more_after: bool,
    total_lines: Option<u64>,
}

fn lines(text: &str) -> Result<LineWindow, String> {
    let expected = || "expected FIRST:LAST, lines count from 1".to_owned();
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str, absent: u64| match text {
        "" => Ok(absent),
        text => text.parse().ok().filter(|number| *number > 0).ok_or_else(expected),
    };
    let (first, last) = (number(first, 1)?, number(last, 0)?);
    match last {
        0 if text == ":" || text.is_empty() => Err(expected()),
        0 => Ok(LineWindow {
            first: first - 1,
            count: 0,
        }),
        last if last < first => Err(expected()),
        last => Ok(LineWindow {
            first: first - 1,
            count: last - first + 1,
        }),
    }
}

pub(super) async fn ls(args: LsArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let mut files: Vec<FileView> = Vec::new();
    let mut page_token = String::new();
    loop {
        let (path, path_raw) = args.place.wire();
        let op = Op::List(ListOp {
            path,
            path_raw,
            depth: args.depth,
            page_size: LIST_PAGE,
            page_token,
        });
        let Outcome::List(page) = fileops::one(&client, &args.acting, &args.place.sandbox, op).await? else {
            return Err(fileops::misfit());
        };
        files.extend(page.entries.into_iter().map(FileView::from));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let style = match (args.long, args.depth) {
        (true, _) => Style::Long,
        (false, 0 | 1) => Style::Names,
        (false, _) => Style::Paths,
    };
    let view = FilesView {
        files,
        truncated: false,
        directories_unreadable: None,
        style,
    };
    output::show(ctx.output, &view)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn cat(args: CatArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    if ctx.output == Format::Text && args.lines.is_none() {
        for place in &args.places {
            cp::print(&client, &args.acting, place).await?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut files = Vec::new();
    for place in &args.places {
        let mut window = args.lines;
        loop {
            let read = read(&client, &args.acting, place, window).await?;
            if ctx.output == Format::Json {
                files.push(ContentView::new(read, window.is_some()));
                break;
            }
            output::raw(&read.content)?;
            match window
                .as_mut()
                .filter(|_| read.more_after)
                .map(|window| advance(window, read.line_count))
            {
                Some(true) => {}
                _ => break,
            }
        }
    }
    if ctx.output == Format::Json {
        output::show(ctx.output, &ContentsView { files })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves a window behind the lines that came. Whether there is more to ask for.
fn advance(window: &mut LineWindow, came: u64) -> bool {
    window.first += came;
    match window.count {
        0 => came > 0,
        count => {
            window.count = count.saturating_sub(came);
            came > 0 && window.count > 0
        }
    }
}

async fn read(
    client: &Client,
    acting: &Acting,
    place: &Remote,
    window: Option<LineWindow>,
) -> Result<ReadResult, Failure> {
    let (path, path_raw) = place.wire();
    let op = Op::Read(ReadOp {
        path,
        path_raw,
        max_bytes: MAX_READ,
        window: window.map(Window::Lines),
    });
    match fileops::one(client, acting, &place.sandbox, op).await? {
        Outcome::Read(read) => Ok(read),
        _ => Err(fileops::misfit()),
    }
}

pub(super) async fn stat(args: StatArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let mut files = Vec::new();
    for place in &args.places {
        let info: FileInfo = fileops::stat(&client, &args.acting, place, args.follow).await?;
        files.push(FileView::from(info));
    }
    output::show(ctx.output, &StatView { files })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn find(args: FindArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let (path, path_raw) = args.place.wire();
    let op = Op::Glob(GlobOp {
        path,
        path_raw,
        pattern: args.pattern,
        include_hidden: args.hidden,
        limit: args.limit,
        include_directories: args.dirs,
    });
    let Outcome::Glob(found) = fileops::one(&client, &args.acting, &args.place.sandbox, op).await? else {
        return Err(fileops::misfit());
    };
    let view = FilesView {
        files: found.entries.into_iter().map(FileView::from).collect(),
        truncated: found.truncated,
        directories_unreadable: Some(found.directories_unreadable),
        style: if args.long { Style::Long } else { Style::Paths },
    };
    output::show(ctx.output, &view)?;
    if found.truncated && ctx.output == Format::Text {
        output::note("there are more: raise --limit, or narrow the pattern");
    }
    if found.directories_unreadable > 0 && ctx.output == Format::Text {
        output::note(&format!(
            "{} directories could not be read",
            found.directories_unreadable
        ));
    }
    Ok(ExitCode::SUCCESS)
}

// === impl views ===

impl Show for StatView {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        for (n, file) in self.files.iter().enumerate() {
            if n > 0 {
                to.line("")?;
            }
            file.facts().print(to)?;
        }
        Ok(())
    }
}

impl Show for ContentsView {
    /// Text is printed as it comes, and not through here.
    fn text(&self, _to: &mut Text<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl ContentView {
    fn new(read: ReadResult, by_lines: bool) -> Self {
        let info = FileView::from(read.info.unwrap_or_default());
        let text = String::from_utf8(read.content.to_vec());
        let (content, content_base64) = match text {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(output::base64(error.as_bytes()))),
        };
        Self {
            size: info.size(),
            path: info.path,
            offset: read.offset,
            content,
            content_base64,
            binary: read.binary,
            more_before: read.more_before,
            more_after: read.more_after,
            total_lines: by_lines.then_some(read.total_lines),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_read() {
        for (text, first, count) in [("10:20", 9, 11), ("5", 4, 1), ("5:", 4, 0), (":3", 0, 3), ("7:7", 6, 1)] {
            assert_eq!(lines(text), Ok(LineWindow { first, count }), "{text}");
        }
        for wrong in ["", ":", "0:1", "3:2", "a", "1:b", "-1", "1:2:3"] {
            assert!(lines(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_window_moves_on_until_it_is_filled() {
        let mut window = LineWindow { first: 10, count: 5 };
        assert!(advance(&mut window, 3));
        assert_eq!(window, LineWindow { first: 13, count: 2 });
        assert!(!advance(&mut window, 2));
        let mut open = LineWindow { first: 0, count: 0 };
        assert!(advance(&mut open, 7));
        assert_eq!(open, LineWindow { first: 7, count: 0 });
        assert!(!advance(&mut open, 0));
    }

    #[test]
    fn content_is_text_or_base64() {
        let read = |content: &'static [u8]| {
            let result = ReadResult {
                content: content.into(),
                info: Some(FileInfo {
                    path: "/f".into(),
                    size: 3,
                    ..FileInfo::default()
                }),
                more_after: true,
                ..ReadResult::default()
            };
            serde_json::to_value(ContentView::new(result, false)).unwrap()
        };
        assert_eq!(
            read(b"abc"),
            json!({"path": "/f", "size": 3, "offset": 0, "content": "abc", "content_base64": null,
                   "binary": false, "more_before": false, "more_after": true, "total_lines": null})
        );
        let raw = read(b"\xff\xfe\xfd");
        assert_eq!(
            (&raw["content"], &raw["content_base64"]),
            (&json!(null), &json!("//79"))
        );
    }
}
