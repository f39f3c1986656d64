//! The effective configuration, for people.

use std::{fmt::Write as _, path::Path};

use super::{error::Place, value::bare};

/// A value that was taken.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) section: Vec<String>,
    pub(super) key: &'static str,
    pub(super) toml: String,
    pub(super) place: Place,
}

pub(super) fn toml(file: Option<&Path>, shown: &[Shown]) -> String {
    let mut out = String::from("# What sandgate-server runs with. Each comment says where a value came from.\n");
    // Writing to a string does not fail.
    _ = match file {
        Some(path) => writeln!(out, "# File: {}", path.display()),
        None => writeln!(out, "# There is no file."),
    };
    // In the order in which they were read first; the file's own keys are before all tables.
    let mut sections: Vec<&[String]> = vec![&[]];
    for value in shown {
        if !sections.contains(&&*value.section) {
            sections.push(&value.section);
        }
    }
    for section in sections {
        if !section.is_empty() {
            let name: Vec<String> = section.iter().map(|word| bare(word)).collect();
            _ = writeln!(out, "\n[{}]", name.join("."));
        }
        for value in shown.iter().filter(|value| value.section == section) {
            _ = writeln!(out, "{} = {} # {}", value.key, value.toml, value.place);
        }
    }
    out
}
