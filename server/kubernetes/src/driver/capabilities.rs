//! What each driver can do: the one list that Hello, refusals and docs/drivers.md come from.

use sandgate_errors::Refusal;
use sandgate_proto::v1::{Capability, CapabilityLevel, ErrorReason};

use super::Driver;

/// What one driver makes of one capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Full,
    /// What is missing.
    Limited(&'static str),
    Missing,
}

use Level::{Full, Limited, Missing};

/// A row: a capability, then what sandboxd, python-runtime and exec make of it. Our runtime names its own in Hello.
type Row = (&'static str, [Level; 3]);

const HERE: &str =
    "output is kept by one server, in memory: another one does not know the exec, and does not run it again";
const GROUP: &str = "the command's process group; what has left it is not reached. A death by a signal that was not sent \
                     by this call is told as code 128 + its number, or as lost";
const BATCH: &str = "stat, list (one level), read, write, mkdir, move, copy, remove, by commands in the sandbox; the \
                     outcome of a batch id is kept by one server, another one refuses it";
const FILES: &str = "regular files, directories and symlinks one by one, as FILES; no directory is downloaded";
const DEADLINE: &str = "the cluster keeps it, with the pod's own grace time";
const IDLE: &str = "at least 3 minutes; the servers keep it, and while none of them runs use does not count";

const TABLE: &[Row] = &[
    ("env.warm", [Full, Missing, Missing]),
    ("exec.budget", [Full, Full, Full]),
    ("exec.hold", [Missing, Missing, Missing]),
    (
        "exec.pty",
        [
            Limited("the last output before the end may be lost; TERM is set, other modes are as sandboxd makes them"),
            Missing,
            Missing,
        ],
    ),
    ("exec.resume", [Limited(HERE), Limited(HERE), Limited(HERE)]),
    ("exec.rlimits", [Missing, Missing, Missing]),
    (
        "exec.run",
        [
            Limited("the exit is told up to 5 s late while a child holds the output; its later output is lost"),
            Limited(
                "output comes at the end, at most 2 MiB of each stream; the runtime ends commands after its own limit (300 s)",
            ),
            Limited("what its children write after its end is lost"),
        ],
    ),
    ("exec.signal", [Limited(GROUP), Limited(GROUP), Limited(GROUP)]),
    ("exec.stdin", [Full, Missing, Full]),
    ("exec.stream", [Full, Limited("output comes at the end"), Full]),
    ("exec.user", [Missing, Missing, Missing]),
    ("files.batch", [Limited(BATCH), Limited(BATCH), Limited(BATCH)]),
    ("files.chunks", [Missing, Missing, Missing]),
    ("files.glob", [Missing, Missing, Missing]),
    ("files.grep", [Missing, Missing, Missing]),
    ("files.root", [Missing, Missing, Missing]),
    ("files.tar", [Missing, Missing, Missing]),
    ("files.transfer", [Limited(FILES), Limited(FILES), Limited(FILES)]),
    ("files.user", [Missing, Missing, Missing]),
    ("files.watch", [Missing, Missing, Missing]),
    (
        "limits.deadline",
        [Limited(DEADLINE), Limited(DEADLINE), Limited(DEADLINE)],
    ),
    ("limits.idle", [Limited(IDLE), Limited(IDLE), Limited(IDLE)]),
];

fn column(driver: Driver) -> Option<usize> {
    match driver {
        Driver::Runtime => None,
        Driver::Sandboxd => Some(0),
        Driver::PythonRuntime => Some(1),
        Driver::Exec => Some(2),
    }
}

fn level(driver: Driver, name: &str) -> Level {
    let Some(column) = column(driver) else { return Full };
    let row = TABLE.iter().find(|(row, _)| *row == name);
    row.map_or(Missing, |(_, levels)| levels[column])
}

/// The names that a driver gives in Hello.
pub(crate) fn names(driver: Driver) -> Vec<String> {
    let rows = TABLE.iter().filter(|(name, _)| has(driver, name));
    rows.map(|(name, _)| (*name).to_owned()).collect()
}

/// Whether a driver can do something, wholly or in part.
pub(crate) fn has(driver: Driver, name: &str) -> bool {
    level(driver, name) != Missing
}

/// What a sandbox can do, of the names that what runs inside has given.
pub(crate) fn capabilities(driver: Driver, names: &[String]) -> Vec<Capability> {
    let one = |name: &String| {
        let (level, note) = match level(driver, name) {
            Limited(note) => (CapabilityLevel::Limited, note),
            Full | Missing => (CapabilityLevel::Full, ""),
        };
        Capability {
            name: name.clone(),
            level: level.into(),
            note: note.to_owned(),
        }
    };
    let mut all: Vec<_> = names.iter().map(one).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The refusal of what a driver can't do.
pub(crate) fn missing(driver: Driver, name: &str) -> Refusal {
    let message = format!(
        "what runs in this sandbox ({}) can't do that: it lacks {name}",
        driver.as_str()
    );
    Refusal::new(ErrorReason::CapabilityMissing, message).with("capability", name)
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, path::Path};

    use super::*;

    const BEGIN: &str =
        "<!-- capabilities: begin; written by UPDATE=1 cargo test -p sandgate-kubernetes capabilities -->\n";
    const END: &str = "<!-- capabilities: end -->\n";

    fn root() -> &'static Path {
        Path::new("../..")
    }

    /// What our runtime says of itself in Hello, from its source.
    fn of_runtime() -> Vec<String> {
        let source = std::fs::read_to_string(root().join("runtime/src/identity.rs")).unwrap();
        let (_, list) = source.split_once("CAPABILITIES: &[&str] = &[").unwrap();
        let (list, _) = list.split_once("];").unwrap();
        list.split(',')
            .map(|name| name.trim().trim_matches('"').to_owned())
            .filter(|name| !name.is_empty())
            .collect()
    }

    fn generated() -> String {
        let drivers = [Driver::Sandboxd, Driver::PythonRuntime, Driver::Exec];
        let mut notes: Vec<&str> = Vec::new();
        let mut text = String::from(
            "\n| capability | sandgate-runtime | sandboxd | python-runtime | exec |\n|---|---|---|---|---|\n",
        );
        let runtime = of_runtime();
        for (name, _) in TABLE {
            // What ours has always had it does not name in Hello: only others can lack it.
            let own = if runtime.iter().any(|own| own == name) || *name == "exec.rlimits" {
                "yes"
            } else {
                "–"
            };
            write!(text, "| `{name}` | {own} |").unwrap();
            for driver in drivers {
                match level(driver, name) {
                    Full => text.push_str(" yes |"),
                    Missing => text.push_str(" – |"),
                    Limited(note) => {
                        let number = notes.iter().position(|known| *known == note).unwrap_or_else(|| {
                            notes.push(note);
                            notes.len() - 1
                        });
                        write!(text, " in part ({}) |", number + 1).unwrap();
                    }
                }
            }
            text.push('\n');
        }
        text.push('\n');
        for (number, note) in notes.iter().enumerate() {
            writeln!(text, "{}. {note}.", number + 1).unwrap();
        }
        text.push('\n');
        text
    }

    #[test]
    fn the_table_in_the_docs_is_this_one() {
        let page = root().join("docs/drivers.md");
        let text = std::fs::read_to_string(&page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (table, after) = rest.split_once(END).unwrap();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&page, format!("{before}{BEGIN}{}{END}{after}", generated())).unwrap();
        } else {
            assert_eq!(
                table,
                generated(),
                "docs/drivers.md is stale: run this test with UPDATE=1"
            );
        }
    }

    #[test]
    fn every_capability_of_our_runtime_is_in_the_table() {
        for name in of_runtime() {
            // A name that says which API is served is no ability that others could have.
            assert!(
                name.starts_with("api.") || TABLE.iter().any(|(row, _)| *row == name),
                "{name}"
            );
        }
        assert!(TABLE.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn what_is_missing_is_refused_by_its_name() {
        assert!(has(Driver::Exec, "exec.run") && !has(Driver::Exec, "files.watch"));
        assert!(names(Driver::PythonRuntime).iter().all(|name| name != "exec.stdin"));
        let refusal = missing(Driver::Sandboxd, "files.tar");
        assert_eq!(refusal.reason, ErrorReason::CapabilityMissing);
        assert_eq!(refusal.metadata["capability"], "files.tar");
        let told = capabilities(Driver::Exec, &names(Driver::Exec));
        let signal = told.iter().find(|capability| capability.name == "exec.signal").unwrap();
        assert_eq!(
            (signal.level(), signal.note.as_str()),
            (CapabilityLevel::Limited, GROUP)
        );
    }
}
