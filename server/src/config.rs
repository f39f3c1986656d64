//! The configuration: one TOML file, then the environment, then flags, in rising order, over defaults for everything.
//!
//! Nothing here has side effects but [`Sources::gather`], which reads the file. Sources are values, so that every
//! mistake and every origin can be tested; [`Config::resolve`] reports all mistakes at once.

mod addr;
mod error;
mod filter;
mod nearest;
mod reader;
mod show;
mod source;
mod template;
mod units;
mod value;

use std::{collections::BTreeMap, path::PathBuf};

use self::{reader::Reader, show::Shown};

pub use self::{
    addr::{ListenAddr, NotLoopback, WebOrigin},
    error::{ConfigError, ConfigErrors, Place},
    filter::LogFilter,
    source::{ConfigFile, Process, Sources},
    template::{Isolation, Network, Root, TemplateConfig},
    units::{Cpus, Size, Span},
};

/// What the server runs with. A held value is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// TCP addresses to listen on. Empty: the Unix socket only.
    pub listen: Vec<ListenAddr>,
    /// Where everything lies that must outlive the server.
    pub state_dir: PathBuf,
    /// What to log.
    pub log: LogFilter,
    /// Web pages that may call.
    pub allowed_origins: Vec<WebOrigin>,
    /// The template of sandboxes that name none. It is in `templates`.
    pub default_template: String,
    /// The cgroup below which sandboxes get theirs. Absent: below the server's own.
    pub cgroup_parent: Option<PathBuf>,
    /// The program that runs inside each sandbox.
    pub runtime_bin: PathBuf,
    /// The program that makes and guards each sandbox.
    pub monitor_bin: PathBuf,
    /// What callers may have at most.
    pub limits: Limits,
    /// What sandboxes can be made from, by name.
    pub templates: BTreeMap<String, TemplateConfig>,
    /// What looks like a mistake and is none for certain.
    pub warnings: Vec<String>,
    file: Option<PathBuf>,
    shown: Vec<Shown>,
}

/// What callers may have at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Live sandboxes.
    pub sandboxes: u64,
    /// Commands alive at once in one sandbox.
    pub execs_per_sandbox: u64,
    /// Calls open at once on one connection. HTTP/2 makes callers wait in silence above it.
    pub streams_per_connection: u32,
    /// The longest deadline that a caller may ask for. Absent: any.
    pub max_ttl: Option<Span>,
    /// The longest idle limit that a caller may ask for. Absent: any.
    pub max_idle: Option<Span>,
}

// === impl Config ===

impl Config {
    /// Puts the sources together.
    ///
    /// # Errors
    /// With every mistake that was found.
    pub fn resolve(sources: &Sources) -> Result<Self, ConfigErrors> {
        let table = sources.parse_file()?;
        let mut reader = Reader::new(sources);
        let mut top = reader.top(table.as_ref());
        let listen = reader.take(&mut top, "listen", vec![ListenAddr::default()]);
        let state_dir = reader.take_path(&mut top, "state_dir", sources.default_state_dir());
        let log = reader.take(&mut top, "log", LogFilter::default());
        let allowed_origins = reader.take(&mut top, "allowed_origins", Vec::new());
        let default_template = reader.take(&mut top, "default_template", template::DEFAULT.to_owned());
        let cgroup_parent = reader.take(&mut top, "cgroup_parent", None::<PathBuf>);
        let runtime_bin = reader.take_path(&mut top, "runtime_bin", Some(sources.beside("sandgate-runtime")));
        let monitor_bin = reader.take_path(&mut top, "monitor_bin", Some(sources.beside("sandgate-monitor")));
        let limits = Limits::read(&mut reader, &mut top);
        let templates = template::read_all(&mut reader, &mut top);
        if !templates.contains_key(&default_template) {
            let known: Vec<&str> = templates.keys().map(String::as_str).collect();
            let problem = format!(
                "there is no template {default_template:?}; {}",
                nearest::among(&default_template, &known)
            );
            reader.wrong(&top, "default_template", problem);
        }
        reader.close(top);
        let (shown, warnings) = reader.finish()?;
        Ok(Self {
            listen,
            state_dir,
            log,
            allowed_origins,
            default_template,
            cgroup_parent,
            runtime_bin,
            monitor_bin,
            limits,
            templates,
            warnings,
            file: sources.file.as_ref().map(|file| file.path.clone()),
            shown,
        })
    }

    /// The whole configuration as TOML that can be used as a file, with a comment on each value that says where it
    /// came from.
    #[must_use]
    pub fn to_toml(&self) -> String {
        show::toml(self.file.as_deref(), &self.shown)
    }

    /// Whether clients look for the server where its state is without being told.
    #[must_use]
    pub fn is_default_state_dir(&self) -> bool {
        self.place(&[], "state_dir") == Place::Default
    }

    /// Where the value of a key came from.
    #[must_use]
    pub fn place(&self, section: &[&str], key: &str) -> Place {
        let is_it = |shown: &&Shown| shown.section == section && shown.key == key;
        let found = self.shown.iter().find(is_it);
        found.map_or(Place::Default, |shown| shown.place.clone())
    }

    /// Names of templates whose sandboxes use this machine's network.
    #[must_use]
    pub fn on_host_network(&self) -> Vec<&str> {
        let on_host = self.templates.iter().filter(|(_, t)| t.network == Network::Host);
        on_host.map(|(name, _)| name.as_str()).collect()
    }
}

// === impl Limits ===

impl Limits {
    fn read<'a>(reader: &mut Reader<'a>, top: &mut reader::Section<'a>) -> Self {
        let mut section = reader.section(top, "limits");
        let week = Some(Span::from_secs(7 * 24 * 3600));
        let limits = Self {
            sandboxes: reader.take(&mut section, "sandboxes", 1000),
            execs_per_sandbox: reader.take(&mut section, "execs_per_sandbox", 1024),
            streams_per_connection: reader.take(&mut section, "streams_per_connection", 10_000),
            max_ttl: reader.take(&mut section, "max_ttl", week),
            max_idle: reader.take(&mut section, "max_idle", week),
        };
        for (key, value) in [
            ("sandboxes", limits.sandboxes),
            ("execs_per_sandbox", limits.execs_per_sandbox),
            ("streams_per_connection", u64::from(limits.streams_per_connection)),
        ] {
            if value == 0 {
                reader.wrong(&section, key, "expected a whole number of at least 1, not 0".to_owned());
            }
        }
        reader.close(section);
        limits
    }
}
