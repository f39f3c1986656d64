//! What goes to stdout: text for people, or JSON for programs. Never both, and colours only on a terminal.
//!
//! A view is one struct for both: what it serializes to is the stable JSON, and [`Show`] is the text.

use std::{
    borrow::Cow,
    env,
    io::{self, IsTerminal as _, Write},
};

use serde::Serialize;

use super::Failure;

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs: stable fields, one document, or one a line where it goes on
    Json,
}

/// Something that can be printed both ways.
pub(crate) trait Show: Serialize {
    /// The text for people.
    fn text(&self, to: &mut Text<'_>) -> io::Result<()>;
}

/// Where text goes.
pub(crate) struct Text<'a> {
    out: &'a mut dyn Write,
    terminal: bool,
    colour: bool,
}

/// A colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// As it is.
    Plain,
    /// Headings and names.
    Bold,
    /// What matters less.
    Dim,
    /// Good.
    Green,
    /// Soon, or in part.
    Yellow,
    /// Bad.
    Red,
    /// Directories, places.
    Blue,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    paint: Paint,
}

/// Columns as wide as what is in them, two spaces apart.
#[derive(Debug, Default)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// Prints a view as the caller wants it.
pub(crate) fn show(format: Format, view: &impl Show) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = match format {
        Format::Json => json(&mut out, view),
        Format::Text => view.text(&mut Text {
            colour: colours(),
            terminal: io::stdout().is_terminal(),
            out: &mut out,
        }),
    };
    written.and_then(|()| out.flush()).map_err(Failure::Stdout)
}

/// Prints one of many views: JSON takes one line, so that a reader can tell where it ends.
pub(crate) fn show_line(format: Format, view: &impl Show) -> Result<(), Failure> {
    match format {
        Format::Text => show(format, view),
        Format::Json => {
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, view)
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
                .and_then(|()| out.flush())
                .map_err(Failure::Stdout)
        }
    }
}

/// Prints bytes as they are.
pub(crate) fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Stdout)
}

/// A remark on stderr. A closed stderr is no reason to fail.
pub(crate) fn note(message: &str) {
    _ = writeln!(io::stderr().lock(), "sandgate: {}", clean(message));
}

/// Whether stdout shows colours: it is a terminal that has some, and `NO_COLOR` is not set.
pub(crate) fn colours() -> bool {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Text that does nothing to a terminal: control characters, which a sandbox may put into names and messages, are
/// written out.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return text.into();
    }
    let mut cleaned = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() {
            cleaned.extend(c.escape_default());
        } else {
            cleaned.push(c);
        }
    }
    cleaned.into()
}

/// Bytes as people count them.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut scaled = count as f64;
    let mut unit = "";
    for next in UNITS {
        if scaled < 1023.95 {
            break;
        }
        scaled /= 1024.0;
        unit = next;
    }
    format!("{scaled:.1} {unit}")
}

/// Standard base64, for bytes in JSON.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |n: usize| u32::from(group.get(n).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for n in 0..4_usize {
            let digit = DIGITS[(bits >> (18 - 6 * n) & 63) as usize];
            text.push(if n > group.len() { '=' } else { digit.into() });
        }
    }
    text
}

fn json(out: &mut dyn Write, view: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, view)?;
    out.write_all(b"\n")
}

// === impl Text ===

impl<'a> Text<'a> {
    /// Text without colours, for tests.
    #[cfg(test)]
    pub(crate) fn plain(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            terminal: false,
            colour: false,
        }
    }

    /// Whether a person looks at it.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// One line. Control characters in it are written out.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> io::Result<()> {
        writeln!(self.out, "{}", clean(line.as_ref()))
    }

    /// One painted line.
    pub(crate) fn painted(&mut self, paint: Paint, line: &str) -> io::Result<()> {
        let painted = self.paint(paint, line);
        writeln!(self.out, "{painted}")
    }

    /// Bytes as they are, for names that go to other programs.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// `text`, clean and in that colour if there are any.
    pub(crate) fn paint(&self, paint: Paint, text: &str) -> String {
        match paint.code().filter(|_| self.colour) {
            Some(code) => format!("\x1b[{code}m{}\x1b[0m", clean(text)),
            None => clean(text).into_owned(),
        }
    }

    /// Text that was made by [`Text::paint`], and the end of the line.
    pub(crate) fn put(&mut self, painted: &str) -> io::Result<()> {
        writeln!(self.out, "{painted}")
    }
}

// === impl Paint ===

impl Paint {
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Bold => Some("1"),
            Self::Dim => Some("2"),
            Self::Green => Some("32"),
            Self::Yellow => Some("33"),
            Self::Red => Some("31"),
            Self::Blue => Some("34"),
        }
    }
}

// === impl Cell ===

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            paint: Paint::Plain,
        }
    }
}

impl Cell {
    /// A cell in that colour.
    pub(crate) fn painted(paint: Paint, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            paint,
        }
    }
}

// === impl Table ===

impl Table {
    /// A table with these headings; without any it has no head.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self {
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints it.
    pub(crate) fn print(&self, to: &mut Text<'_>) -> io::Result<()> {
        let columns = self
            .rows
            .iter()
            .map(Vec::len)
            .chain([self.head.len()])
            .max()
            .unwrap_or(0);
        let mut widths = vec![0; columns];
        for (column, head) in self.head.iter().enumerate() {
            widths[column] = head.len();
        }
        for (column, cell) in self.rows.iter().flat_map(|row| row.iter().enumerate()) {
            widths[column] = widths[column].max(width(&cell.text));
        }
        if !self.head.is_empty() {
            let head: Vec<Cell> = self.head.iter().map(|head| Cell::painted(Paint::Bold, *head)).collect();
            print_row(to, &head, &widths)?;
        }
        self.rows.iter().try_for_each(|row| print_row(to, row, &widths))
    }
}

fn print_row(to: &mut Text<'_>, row: &[Cell], widths: &[usize]) -> io::Result<()> {
    let mut line = String::new();
    let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
    for (column, cell) in row.iter().enumerate().take(last + 1) {
        line.push_str(&to.paint(cell.paint, &cell.text));
        if column < last {
            let gap = widths[column] - width(&cell.text) + 2;
            line.extend(std::iter::repeat_n(' ', gap));
        }
    }
    to.put(&line)
}

fn width(text: &str) -> usize {
    clean(text).chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(table: &Table, colour: bool) -> String {
        let mut out = Vec::new();
        let mut text = Text {
            out: &mut out,
            terminal: colour,
            colour,
        };
        table.print(&mut text).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let mut table = Table::new(&["NAME", "STATE", "WHY"]);
        table.row(["a".into(), "ready".into(), "".into()]);
        table.row(["longer-name".into(), "x".into(), "because".into()]);
        assert_eq!(
            printed(&table, false),
            "NAME         STATE  WHY\na            ready\nlonger-name  x      because\n"
        );
    }

    #[test]
    fn colours_do_not_move_columns() {
        let mut table = Table::new(&["A", "B"]);
        table.row([Cell::painted(Paint::Green, "ok"), "x".into()]);
        assert_eq!(
            printed(&table, true),
            "\x1b[1mA\x1b[0m   \x1b[1mB\x1b[0m\n\x1b[32mok\x1b[0m  x\n"
        );
    }

    #[test]
    fn a_name_can_not_drive_the_terminal() {
        assert_eq!(clean("plain ü"), "plain ü");
        assert_eq!(clean("\x1b]0;title\x07"), "\\u{1b}]0;title\\u{7}");
        assert_eq!(clean("a\nb\u{9b}31m"), "a\\nb\\u{9b}31m");
        let mut table = Table::default();
        table.row(["\x1b[2J".into(), "x".into()]);
        assert!(!printed(&table, false).contains('\x1b'));
    }

    #[test]
    fn sizes_are_readable() {
        for (count, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1_048_575, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), shown);
        }
    }

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{3ff}>", "z78+"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
