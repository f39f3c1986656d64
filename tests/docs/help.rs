//! `--help`, as the rows of a table.

use std::process::Command;

/// One argument or flag.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) meaning: String,
    pub(crate) default: Option<String>,
    values: Option<String>,
}

/// What a command says of itself.
pub(crate) struct Help(String);

const OWN: [&str; 2] = ["--help", "--version"];

// === impl Help ===

impl Help {
    pub(crate) fn of(program: &std::path::Path, command: &str) -> Self {
        let output = Command::new(program)
            .args(command.split_whitespace())
            .arg("--help")
            .env_clear()
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}");
        Self(String::from_utf8(output.stdout).unwrap())
    }

    /// The lines of a section, without its heading.
    fn section(&self, name: &str) -> impl Iterator<Item = &str> {
        let lines = self.0.lines().skip_while(move |line| *line != name).skip(1);
        lines.take_while(|line| line.is_empty() || line.starts_with(' '))
    }

    /// Names of the commands below, each with what it does.
    pub(crate) fn commands(&self) -> Vec<(&str, &str)> {
        let lines = self.section("Commands:").filter(|line| !line.is_empty());
        let pairs = lines.map(|line| line.trim().split_once(' ').unwrap());
        pairs
            .map(|(name, about)| (name, about.trim()))
            .filter(|(name, _)| *name != "help")
            .collect()
    }

    /// Arguments, then flags, but for those of every program.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let mut entries = self.entries_of("Arguments:");
        entries.extend(self.entries_of("Options:"));
        entries
    }

    pub(crate) fn entries_of(&self, section: &str) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for line in self.section(section) {
            let text = line.trim_start();
            let depth = line.len() - text.len();
            match entries.last_mut() {
                _ if text.is_empty() => {}
                Some(entry) if depth > 6 => entry.add(text),
                _ => entries.push(Entry {
                    name: text.replace(['<', '>'], ""),
                    ..Entry::default()
                }),
            }
        }
        entries.retain(|entry| !OWN.iter().any(|own| entry.name.ends_with(own)));
        entries
    }

    /// What a program exits with, and when.
    pub(crate) fn statuses(&self) -> Vec<(&str, &str)> {
        let lines = self.section("Exit status:").map(str::trim);
        let pairs = lines.filter_map(|line| line.split_once(' '));
        pairs
            .map(|(status, when)| (status, when.trim()))
            .filter(|(status, _)| status.starts_with(|c: char| c.is_ascii_digit()))
            .collect()
    }
}

// === impl Entry ===

impl Entry {
    fn add(&mut self, text: &str) {
        let inside = |what: &str| text.strip_prefix(what)?.strip_suffix(']').map(str::to_owned);
        if let Some(default) = inside("[default: ") {
            self.default = Some(default);
        } else if let Some(values) = inside("[possible values: ") {
            self.values = Some(values);
        } else {
            let (text, default) = text.split_once(" [default: ").unwrap_or((text, ""));
            self.default = self.default.take().or_else(|| Some(default.strip_suffix(']')?.into()));
            let space = if self.meaning.is_empty() { "" } else { " " };
            let stop = if text.ends_with('.') { "" } else { "." };
            self.meaning.push_str(&format!("{space}{text}{stop}"));
        }
    }

    /// A row with the name and everything else.
    pub(crate) fn row(&self) -> String {
        let mut meaning = self.meaning.clone();
        if let Some(default) = &self.default {
            meaning.push_str(&format!(" Default: `{default}`."));
        }
        if let Some(values) = &self.values {
            meaning.push_str(&format!(" One of {values}."));
        }
        let cell = |text: &str| text.replace('|', "\\|");
        format!("| `{}` | {} |", cell(&self.name), cell(&meaning))
    }
}
