//! `files grep`: find text in files.

use std::{io, process::ExitCode};

use sandgate::v1::{GrepFile, GrepOp, GrepResult, file_op::Op, file_op_result::Result as Outcome};
use serde::Serialize;

use crate::cli::{
    Context, Failure, Format,
    fileops::{self, Acting},
    output::{self, Paint, Show, Text},
    place::{self, Remote, remote},
};

/// Find text in files
///
/// Prints PATH:LINE:TEXT, and exits with 1 if nothing matched.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files grep demo:. 'fn \\w+'
  sandgate files grep -iF -C 2 --include '*.py' demo:/workspace todo")]
pub(super) struct Args {
    /// The directory or file to look in
    #[arg(value_name = "NAME:PATH", value_parser = remote())]
    place: Remote,
    /// A regular expression
    pattern: String,
    /// Take the pattern as plain text
    #[arg(long, short = 'F')]
    fixed: bool,
    /// Do not tell upper from lower case
    #[arg(long, short = 'i')]
    ignore_case: bool,
    /// Lines to show before and after each match
    #[arg(long, short = 'C', default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100))]
    context: u32,
    /// Only files that match this glob. Can be repeated
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// No files and directories that match this glob. Can be repeated
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Leave out names that begin with a dot
    #[arg(long)]
    skip_hidden: bool,
    /// Leave out what .gitignore and .ignore name
    #[arg(long)]
    ignore_files: bool,
    /// At most this many matching lines
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    acting: Acting,
}

/// What was found.
#[derive(Debug, Serialize)]
struct View {
    files: Vec<FileMatches>,
    truncated: bool,
    files_searched: u64,
    files_binary: u64,
    files_unreadable: u64,
    #[serde(skip)]
    context: bool,
}

#[derive(Debug, Serialize)]
struct FileMatches {
    path: String,
    path_base64: Option<String>,
    lines: Vec<Line>,
    #[serde(skip)]
    raw: Vec<u8>,
}

/// A line; text that is not UTF-8 is shown with replacement characters.
#[derive(Debug, Serialize)]
struct Line {
    number: u64,
    text: String,
    context: bool,
    #[serde(skip)]
    raw: Vec<u8>,
}

pub(super) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let (acting, sandbox, context) = (args.acting.clone(), args.place.sandbox.clone(), args.context > 0);
    let Outcome::Grep(found) = fileops::one(&client, &acting, &sandbox, args.into_op()).await? else {
        return Err(fileops::misfit());
    };
    let view = View::new(found, context);
    output::show(ctx.output, &view)?;
    if ctx.output == Format::Text {
        view.remarks();
    }
    Ok(ExitCode::from(u8::from(view.files.is_empty())))
}

// === impl Args ===

impl Args {
    fn into_op(self) -> Op {
        let (path, path_raw) = self.place.wire();
        Op::Grep(GrepOp {
            path,
            path_raw,
            pattern: self.pattern,
            literal: self.fixed,
            ignore_case: self.ignore_case,
            include: self.include,
            exclude: self.exclude,
            skip_hidden: self.skip_hidden,
            honour_ignore_files: self.ignore_files,
            context: self.context,
            max_per_file: 0,
            max_total: self.limit,
        })
    }
}

// === impl View ===

impl View {
    fn new(found: GrepResult, context: bool) -> Self {
        Self {
            files: found.files.into_iter().map(FileMatches::from).collect(),
            truncated: found.truncated,
            files_searched: found.files_searched,
            files_binary: found.files_binary,
            files_unreadable: found.files_unreadable,
            context,
        }
    }

    fn remarks(&self) {
        if self.truncated {
            output::note("there is more: raise --limit, or narrow the search");
        }
        if self.files_unreadable > 0 {
            output::note(&format!(
                "{} files or directories could not be read",
                self.files_unreadable
            ));
        }
    }
}

impl From<GrepFile> for FileMatches {
    fn from(file: GrepFile) -> Self {
        let raw = place::unwire(&file.path, &file.path_raw);
        Self {
            path: place::shown(&raw),
            path_base64: (!file.path_raw.is_empty()).then(|| output::base64(&file.path_raw)),
            lines: file
                .lines
                .into_iter()
                .map(|line| Line {
                    number: line.number,
                    text: place::shown(&line.text),
                    context: line.context,
                    raw: line.text.to_vec(),
                })
                .collect(),
            raw,
        }
    }
}

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        let mut last: Option<(usize, u64)> = None;
        for (n, file) in self.files.iter().enumerate() {
            for line in &file.lines {
                // Where lines are left out between two groups, as grep does.
                let next_to = last.is_none_or(|last| last == (n, line.number.wrapping_sub(1)));
                if self.context && !next_to {
                    to.painted(Paint::Dim, "--")?;
                }
                last = Some((n, line.number));
                file.line(line, to)?;
            }
        }
        Ok(())
    }
}

impl FileMatches {
    fn line(&self, line: &Line, to: &mut Text<'_>) -> io::Result<()> {
        let mark = if line.context { '-' } else { ':' };
        let number = line.number.to_string();
        if !to.is_terminal() {
            to.bytes(&self.raw)?;
            to.bytes(format!("{mark}{number}{mark}").as_bytes())?;
            to.bytes(&line.raw)?;
            return to.bytes(b"\n");
        }
        let (path, number) = (to.paint(Paint::Blue, &self.path), to.paint(Paint::Green, &number));
        // Tabs are what indents code; they do no harm.
        let text: Vec<String> = line.text.split('\t').map(|part| to.paint(Paint::Plain, part)).collect();
        to.put(&format!("{path}{mark}{number}{mark}{}", text.join("\t")))
    }
}

#[cfg(test)]
mod tests {
    use sandgate::v1::GrepLine;
    use serde_json::json;

    use super::*;

    fn found() -> GrepResult {
        let line = |number, text: &'static str, context| GrepLine {
            number,
            text: text.into(),
            context,
        };
        GrepResult {
            files: vec![
                GrepFile {
                    path: "/a".into(),
                    lines: vec![line(1, "x", true), line(2, "hit", false), line(9, "hit", false)],
                    ..GrepFile::default()
                },
                GrepFile {
                    path: "/b".into(),
                    lines: vec![line(10, "hit", false)],
                    ..GrepFile::default()
                },
            ],
            files_searched: 3,
            files_binary: 1,
            ..GrepResult::default()
        }
    }

    fn text(context: bool) -> String {
        let mut out = Vec::new();
        View::new(found(), context).text(&mut Text::plain(&mut out)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn matches_look_like_those_of_grep() {
        assert_eq!(text(true), "/a-1-x\n/a:2:hit\n--\n/a:9:hit\n--\n/b:10:hit\n");
        assert_eq!(text(false), "/a-1-x\n/a:2:hit\n/a:9:hit\n/b:10:hit\n");
    }

    #[test]
    fn the_json_is_stable() {
        let json = serde_json::to_value(View::new(found(), false)).unwrap();
        assert_eq!(
            json["files"][1],
            json!({"path": "/b", "path_base64": null,
            "lines": [{"number": 10, "text": "hit", "context": false}]})
        );
        assert_eq!(
            (
                &json["truncated"],
                &json["files_searched"],
                &json["files_binary"],
                &json["files_unreadable"]
            ),
            (&json!(false), &json!(3), &json!(1), &json!(0))
        );
    }
}
