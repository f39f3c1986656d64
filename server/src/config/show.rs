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
    let mut section: &[String] = &[];
    for value in shown {
        if value.section != section {
            section = &value.section;
            let name: Vec<String> = section.iter().map(|word| bare(word)).collect();
            _ = writeln!(out, "\n[{}]", name.join("."));
        }
        _ = writeln!(out, "{} = {} # {}", value.key, value.toml, value.place);
    }
    out
}
