//! The configuration: one TOML file, then the environment, then flags, in rising order, over defaults for everything.
//!
//! Nothing here has side effects but [`Sources::gather`], which reads the file. Sources are values, so that every
//! mistake and every origin can be tested; [`Config::resolve`] reports all mistakes at once.

mod addr;
mod error;
mod filter;
mod headers;
mod kubernetes;
mod local;
mod nearest;
mod reader;
mod show;
mod source;
mod template;
mod units;
mod value;

use std::path::PathBuf;

use self::{reader::Reader, show::Shown, value::word_value};

pub(crate) use self::addr::is_loopback;
pub use self::{
    addr::{AllowedHost, ListenAddr, NotAHost, NotAnAddress, WebOrigin},
    error::{ConfigError, ConfigErrors, Place},
    filter::LogFilter,
    headers::Headers,
    kubernetes::{DirectConfig, GatewayConfig, KubernetesConfig},
    local::LocalConfig,
    source::{ConfigFile, Process, Sources},
    template::{Isolation, Network, Root, TemplateConfig},
    units::{Cpus, Size, Span},
};

/// What the server runs with. A held value is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// TCP addresses to listen on. Empty: the Unix socket only.
    pub listen: Vec<ListenAddr>,
    /// What the server is called by, beside addresses and `localhost`.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Where everything lies that must outlive the server.
    pub state_dir: PathBuf,
    /// The callers' token. Absent: one in the state directory, which the server makes.
    pub token_file: Option<PathBuf>,
    /// What to log.
    pub log: LogFilter,
    /// Web pages that may call.
    pub allowed_origins: Vec<WebOrigin>,
    /// What callers may have at most.
    pub limits: Limits,
    /// Where sandboxes are, and what is needed there.
    pub provider: ProviderConfig,
    /// What looks like a mistake and is none for certain.
    pub warnings: Vec<String>,
    file: Option<PathBuf>,
    shown: Vec<Shown>,
}

/// What callers may have at most, wherever sandboxes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls open at once on one connection. HTTP/2 makes callers wait in silence above it.
    pub streams_per_connection: u32,
    /// The longest deadline that a caller may ask for. Absent: any.
    pub max_ttl: Option<Span>,
    /// The longest idle limit that a caller may ask for. Absent: any.
    pub max_idle: Option<Span>,
}

/// Where sandboxes are.
#[derive(Clone, Debug)]
pub enum ProviderConfig {
    /// On this machine.
    Local(LocalConfig),
    /// On Kubernetes.
    Kubernetes(Box<KubernetesConfig>),
}

/// `provider`, before the keys that belong to it are known.
#[derive(Clone, Copy, PartialEq)]
enum ProviderKind {
    Local,
    Kubernetes,
}

word_value!(ProviderKind, "local" => ProviderKind::Local, "kubernetes" => ProviderKind::Kubernetes);

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
        let kind = reader.take(&mut top, "provider", ProviderKind::Local);
        let listen: Vec<ListenAddr> = reader.take(&mut top, "listen", vec![ListenAddr::default()]);
        let allowed_hosts = reader.take(&mut top, "allowed_hosts", Vec::new());
        let state_dir = reader.take_path(&mut top, "state_dir", sources.default_state_dir());
        let token_file = reader.take_optional_path(&mut top, "token_file");
        let log = reader.take(&mut top, "log", LogFilter::default());
        let allowed_origins = reader.take(&mut top, "allowed_origins", Vec::new());
        let mut limits_section = reader.section(&mut top, "limits");
        let limits = Limits::read(&mut reader, &mut limits_section);
        let provider = match kind {
            ProviderKind::Local => {
                let local = LocalConfig::read(&mut reader, sources, &mut top, &mut limits_section);
                ProviderConfig::Local(local)
            }
            ProviderKind::Kubernetes => {
                LocalConfig::forbid(&mut reader, &mut top, &mut limits_section);
                ProviderConfig::Kubernetes(Box::new(KubernetesConfig::read(&mut reader, &mut top)))
            }
        };
        let reachable = listen.iter().find(|addr| !addr.is_loopback());
        if let Some(addr) = reachable.filter(|_| token_file.is_none()) {
            let problem = format!(
                "{addr} can be reached from other machines, and who has the token has every sandbox: choose a token for that \
                 and name its file in token_file, or use 127.0.0.1 or [::1]"
            );
            reader.wrong(&top, "listen", problem);
        }
        reader.close(limits_section);
        reader.close(top);
        let (shown, warnings) = reader.finish()?;
        Ok(Self {
            listen,
            allowed_hosts,
            state_dir,
            token_file,
            log,
            allowed_origins,
            limits,
            provider,
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

    /// A mistake in a value that shows only when it is used.
    #[must_use]
    pub fn mistake(&self, section: &[&str], key: &str, problem: String) -> ConfigError {
        ConfigError {
            place: self.place(section, key),
            key: [section, &[key]].concat().join("."),
            problem,
        }
    }

    /// Where the value of a key came from.
    #[must_use]
    pub fn place(&self, section: &[&str], key: &str) -> Place {
        let is_it = |shown: &&Shown| shown.section == section && shown.key == key;
        let found = self.shown.iter().find(is_it);
        found.map_or(Place::Default, |shown| shown.place.clone())
    }
}

// === impl Limits ===

impl Limits {
    fn read<'a>(reader: &mut Reader<'a>, section: &mut reader::Section<'a>) -> Self {
        let week = Some(Span::from_secs(7 * 24 * 3600));
        let limits = Self {
            streams_per_connection: reader.take(section, "streams_per_connection", 10_000),
            max_ttl: reader.take(section, "max_ttl", week),
            max_idle: reader.take(section, "max_idle", week),
        };
        reader.at_least_one(
            section,
            "streams_per_connection",
            u64::from(limits.streams_per_connection),
        );
        limits
    }
}
