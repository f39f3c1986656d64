//! Templates: what sandboxes can be made from.
//!
//! They are in the file only. A template has every value that the file leaves out; the built-in `default` is all of
//! them left out.

use std::{collections::BTreeMap, path::PathBuf};

use sandgate_local::mechanism;

use super::{
    nearest,
    reader::{Reader, Section},
    units::{Cpus, Size, Span},
    value::{NAME, is_name, word_value},
};

/// The template that is always there.
pub(super) const DEFAULT: &str = "default";

/// What a sandbox is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateConfig {
    /// The root file system.
    pub root: Root,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// Working directory of commands, and where relative paths begin.
    pub workdir: PathBuf,
    /// Who commands run as, by name or number.
    pub user: String,
    /// What the sandbox can reach.
    pub network: Network,
    /// Memory of all processes together. Absent: no limit.
    pub memory: Option<Size>,
    /// Processes and threads. Absent: no limit.
    pub pids: Option<u32>,
    /// Processors' time per time. Absent: no limit.
    pub cpus: Option<Cpus>,
    /// What the sandbox may write to disk. Absent: no limit.
    pub disk: Option<Size>,
    /// Open files of one process.
    pub open_files: u64,
    /// How long a sandbox lives if its creator does not say. Absent: for ever.
    pub ttl: Option<Span>,
    /// How long a sandbox may idle if its creator does not say. Absent: for ever.
    pub idle: Option<Span>,
    /// Mechanisms without which no sandbox is made.
    pub require: Vec<String>,
    /// Whether there is isolation at all.
    pub isolation: Isolation,
}

/// A sandbox's root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// This machine's system directories, read-only.
    Host {
        /// More directories to show, read-only.
        paths: Vec<PathBuf>,
    },
    /// A directory, writable through an overlay.
    Rootfs(PathBuf),
}

/// What a sandbox can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Itself.
    None,
    /// Whatever this machine can.
    Host,
}

/// Whether a sandbox is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Everything that can be had.
    Full,
    /// Plain processes. For development only.
    None,
}

/// `root`, before the keys that belong to it are known.
#[derive(Clone, Copy, PartialEq)]
enum RootKind {
    Host,
    Rootfs,
}

// === impl TemplateConfig ===

impl TemplateConfig {
    fn read<'a>(reader: &mut Reader<'a>, section: &mut Section<'a>) -> Self {
        let root = Root::read(reader, section);
        let user = match root {
            Root::Host { .. } => "sandbox",
            Root::Rootfs(_) => "root",
        };
        let lang = BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]);
        let template = Self {
            root,
            env: reader.take(section, "env", lang),
            workdir: reader.take(section, "workdir", PathBuf::from("/workspace")),
            user: reader.take(section, "user", user.to_owned()),
            network: reader.take(section, "network", Network::None),
            memory: reader.take(section, "memory", Some(Size::from_bytes(2 << 30))),
            pids: reader.take(section, "pids", Some(1024)),
            cpus: reader.take(section, "cpus", None),
            disk: reader.take(section, "disk", None),
            open_files: reader.take(section, "open_files", 65_536),
            ttl: reader.take(section, "ttl", Some(Span::from_secs(24 * 3600))),
            idle: reader.take(section, "idle", None),
            require: reader.take(section, "require", Vec::new()),
            isolation: reader.take(section, "isolation", Isolation::Full),
        };
        template.check(reader, section);
        template
    }

    fn check<'a>(&self, reader: &mut Reader<'a>, section: &Section<'a>) {
        for name in &self.require {
            if !mechanism::ALL.contains(&name.as_str()) {
                let problem = format!("no mechanism {name:?}; {}", nearest::among(name, &mechanism::ALL));
                reader.wrong(section, "require", problem);
            }
        }
        if self.isolation == Isolation::None && !self.require.is_empty() {
            reader.wrong(
                section,
                "require",
                "can't be had with isolation = \"none\": leave one out".to_owned(),
            );
        }
        reader.at_least_one(section, "open_files", self.open_files);
    }
}

// === impl Root ===

impl Root {
    fn read<'a>(reader: &mut Reader<'a>, section: &mut Section<'a>) -> Self {
        match reader.take(section, "root", RootKind::Host) {
            RootKind::Host => {
                reader.forbid(section, "rootfs", "is only for root = \"rootfs\"");
                Self::Host {
                    paths: reader.take(section, "host_paths", Vec::new()),
                }
            }
            RootKind::Rootfs => {
                reader.forbid(section, "host_paths", "is only for root = \"host\"");
                let dir = reader.take(section, "rootfs", None::<PathBuf>);
                if dir.is_none() {
                    let problem = "is \"rootfs\", so the directory must be given: rootfs = \"/srv/debian\"";
                    reader.wrong(section, "root", problem.to_owned());
                }
                Self::Rootfs(dir.unwrap_or_default())
            }
        }
    }
}

word_value!(RootKind, "host" => RootKind::Host, "rootfs" => RootKind::Rootfs);
word_value!(Network, "none" => Network::None, "host" => Network::Host);
word_value!(Isolation, "full" => Isolation::Full, "none" => Isolation::None);

/// All templates of the file, and the built-in one unless the file has one of its name.
pub(super) fn read_all<'a>(reader: &mut Reader<'a>, top: &mut Section<'a>) -> BTreeMap<String, TemplateConfig> {
    let mut sections = reader.named_sections(top, "template");
    if !sections.iter().any(|(name, _)| name == DEFAULT) {
        sections.push((DEFAULT.to_owned(), reader.absent_section(["template", DEFAULT])));
        sections.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
    let mut templates = BTreeMap::new();
    for (name, mut section) in sections {
        if !is_name(&name) {
            reader.wrong_section(&section, format!("expected {NAME}"));
        }
        let template = TemplateConfig::read(reader, &mut section);
        reader.close(section);
        templates.insert(name, template);
    }
    templates
}
