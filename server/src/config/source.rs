//! Where settings come from. All of it is data; only [`Sources::gather`] touches the machine.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use toml::de::DeTable;

use super::error::{ConfigError, ConfigErrors, Place};

/// Everything that decides about the configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, if there is one.
    pub file: Option<ConfigFile>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// Flags that were given, by name without dashes in front.
    pub flags: BTreeMap<String, String>,
    /// What the defaults depend on.
    pub process: Process,
}

/// A file and what is in it.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Its path, for messages.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// What the defaults depend on.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Whether the server runs as root.
    pub root: bool,
    /// Where it was started.
    pub cwd: PathBuf,
    /// Where its program lies.
    pub program_dir: PathBuf,
}

// === impl Sources ===

impl Sources {
    /// Takes flags, environment and process as they are, and reads the file.
    ///
    /// # Errors
    /// When the file can't be read. One that nobody asked for may be missing.
    pub fn gather(
        flags: BTreeMap<String, String>,
        environment: BTreeMap<String, String>,
        process: Process,
    ) -> Result<Self, ConfigErrors> {
        let mut sources = Self {
            file: None,
            environment,
            flags,
            process,
        };
        let (path, place) = match sources.wanted_file() {
            Some((path, place)) => (path, Some(place)),
            None => match sources.default_file() {
                Some(path) => (path, None),
                None => return Ok(sources),
            },
        };
        match fs::read_to_string(&path) {
            Ok(text) => sources.file = Some(ConfigFile { path, text }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && place.is_none() => {}
            Err(error) => {
                let problem = format!("can't read the configuration file {}: {error}", path.display());
                return Err(mistake(place.unwrap_or(Place::Default), problem));
            }
        }
        Ok(sources)
    }

    /// The file that somebody asked for, and where.
    fn wanted_file(&self) -> Option<(PathBuf, Place)> {
        let variable = variable(&["config"]);
        let flag = self
            .flags
            .get("config")
            .map(|text| (text, Place::Flag("config".to_owned())));
        let wanted = flag.or_else(|| {
            let text = self.environment.get(&variable).filter(|text| !text.is_empty())?;
            Some((text, Place::Environment(variable)))
        });
        wanted.map(|(text, place)| (self.process.cwd.join(text), place))
    }

    /// The file that is read if it is there.
    #[must_use]
    pub fn default_file(&self) -> Option<PathBuf> {
        if self.process.root {
            return Some(PathBuf::from("/etc/sandgate/server.toml"));
        }
        let dir = self.home_dir("XDG_CONFIG_HOME", ".config")?;
        Some(dir.join("sandgate/server.toml"))
    }

    /// Where state lies unless told otherwise. Nothing without a home.
    #[must_use]
    pub fn default_state_dir(&self) -> Option<PathBuf> {
        if self.process.root {
            return Some(PathBuf::from("/var/lib/sandgate"));
        }
        Some(self.home_dir("XDG_STATE_HOME", ".local/state")?.join("sandgate"))
    }

    /// A directory of the user's. The base directory specification says that relative ones are to be ignored.
    fn home_dir(&self, variable: &str, in_home: &str) -> Option<PathBuf> {
        let absolute = |name| {
            self.environment
                .get(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(in_home)))
    }

    /// A program that is installed together with the server.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.process.program_dir.join(name)
    }

    /// The file's content, if there is one.
    pub(super) fn parse_file(&self) -> Result<Option<DeTable<'_>>, ConfigErrors> {
        let Some(file) = &self.file else { return Ok(None) };
        match DeTable::parse(&file.text) {
            Ok(table) => Ok(Some(table.into_inner())),
            Err(error) => {
                let start = error.span().map_or(0, |span| span.start);
                Err(mistake(
                    self.place_in_file(start),
                    format!("not TOML: {}", error.message()),
                ))
            }
        }
    }

    /// The place of the byte at `start`.
    pub(super) fn place_in_file(&self, start: usize) -> Place {
        let (path, text) = self
            .file
            .as_ref()
            .map_or((Path::new(""), ""), |file| (&file.path, &file.text));
        let before = text.as_bytes().get(..start).unwrap_or_default();
        Place::File {
            path: path.to_owned(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
        }
    }
}

/// The environment variable of a key.
pub(super) fn variable(words: &[&str]) -> String {
    format!("SANDGATE_{}", words.join("_").to_uppercase())
}

fn mistake(place: Place, problem: String) -> ConfigErrors {
    let key = String::new();
    ConfigError { place, key, problem }.into()
}
