//! Takes values from the highest source that has them, and keeps note of where they came from and of every mistake.

use std::path::PathBuf;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    error::{ConfigError, ConfigErrors, Place},
    nearest,
    show::Shown,
    source::{Sources, variable},
    value::{Raw, Value},
};

/// All sources, and what was read so far.
pub(super) struct Reader<'a> {
    sources: &'a Sources,
    shown: Vec<Shown>,
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
    variables: Vec<String>,
}

/// A table of the file, and which keys it may have.
pub(super) struct Section<'a> {
    path: Vec<String>,
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
    /// Whether environment and flags have a say.
    overridable: bool,
}

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(super) fn new(sources: &'a Sources) -> Self {
        Self {
            sources,
            shown: Vec::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
            variables: vec![variable(&["config"])],
        }
    }

    /// The file's own keys.
    pub(super) fn top(&self, table: Option<&'a DeTable<'a>>) -> Section<'a> {
        Section {
            path: Vec::new(),
            table,
            known: Vec::new(),
            overridable: true,
        }
    }

    /// A table of fixed name.
    pub(super) fn section(&mut self, outer: &mut Section<'a>, key: &'static str) -> Section<'a> {
        outer.known.push(key);
        let table = self.table_in(outer, key);
        outer.inner(key, table, true)
    }

    /// Tables whose names the file chooses, all in the table `key`.
    pub(super) fn named_sections(&mut self, outer: &mut Section<'a>, key: &'static str) -> Vec<(String, Section<'a>)> {
        outer.known.push(key);
        let Some(all) = self.table_in(outer, key) else {
            return Vec::new();
        };
        let group = outer.inner(key, Some(all), false);
        let names = all.keys().map(|name| name.get_ref().to_string());
        names
            .map(|name| {
                let table = self.table_in(&group, &name);
                (name.clone(), group.inner(&name, table, false))
            })
            .collect()
    }

    /// A table that the file does not have.
    pub(super) fn absent_section(&self, path: [&str; 2]) -> Section<'a> {
        Section {
            path: path.map(str::to_owned).to_vec(),
            table: None,
            known: Vec::new(),
            overridable: false,
        }
    }

    /// The value of `key`, or `default` if nobody says otherwise.
    pub(super) fn take<T: Value>(&mut self, section: &mut Section<'a>, key: &'static str, default: T) -> T {
        self.take_with(section, key, default, |value| value)
    }

    /// A path. On the command line and in the environment it may be relative to where the server was started. Without
    /// a default it must be given.
    pub(super) fn take_path(
        &mut self,
        section: &mut Section<'a>,
        key: &'static str,
        default: Option<PathBuf>,
    ) -> PathBuf {
        let missing = default.is_none();
        let cwd = &self.sources.process.cwd;
        let path = self.take_with(section, key, default.unwrap_or_default(), |path| cwd.join(path));
        if missing && self.place(section, key) == Place::Default {
            self.wrong(
                section,
                key,
                "can't be made up without HOME: it must be given".to_owned(),
            );
        }
        path
    }

    /// A path that may be left out.
    pub(super) fn take_optional_path(&mut self, section: &mut Section<'a>, key: &'static str) -> Option<PathBuf> {
        let cwd = &self.sources.process.cwd;
        self.take_with(section, key, None::<PathBuf>, |path| path.map(|path| cwd.join(path)))
    }

    fn take_with<T: Value>(
        &mut self,
        section: &mut Section<'a>,
        key: &'static str,
        default: T,
        finish: impl Fn(T) -> T,
    ) -> T {
        section.known.push(key);
        let (value, place) = match self.find(section, key) {
            None => (default, Place::Default),
            Some((raw, place)) => match T::read(&raw) {
                Ok(value) => (finish(value), place),
                Err(problem) => {
                    let key = section.name(key);
                    self.errors.push(ConfigError {
                        place: place.clone(),
                        key,
                        problem,
                    });
                    (default, place)
                }
            },
        };
        self.shown.push(Shown {
            section: section.path.clone(),
            key,
            toml: value.to_toml(),
            place,
        });
        value
    }

    /// A key that has no meaning here, and why. It is a mistake to give it. An environment is shared by several
    /// programs, so there it is only odd.
    pub(super) fn forbid(&mut self, section: &mut Section<'a>, key: &'static str, why: &str) {
        section.known.push(key);
        match self.find(section, key) {
            None => {}
            Some((_, place @ Place::Environment(_))) => {
                self.warnings.push(format!("{place}: {} {why}", section.name(key)));
            }
            Some((_, place)) => {
                let (key, problem) = (section.name(key), why.to_owned());
                self.errors.push(ConfigError { place, key, problem });
            }
        }
    }

    /// A table of the file that has no meaning here, with all its variables and flags.
    pub(super) fn forbid_section(&mut self, outer: &mut Section<'a>, key: &'static str, why: &str) {
        outer.known.push(key);
        let problem = || why.to_owned();
        let names = outer.table.into_iter().flat_map(|table| table.keys());
        for name in names.filter(|name| name.get_ref() == key) {
            self.errors.push(ConfigError {
                place: self.sources.place_in_file(name.span().start),
                key: outer.name(key),
                problem: problem(),
            });
        }
        for flag in self
            .sources
            .flags
            .keys()
            .filter(|flag| flag.starts_with(&format!("{key}-")))
        {
            self.errors.push(ConfigError {
                place: Place::Flag(flag.clone()),
                key: outer.name(key),
                problem: problem(),
            });
        }
        let of_it = format!("{}_", variable(&[key]));
        for (name, text) in &self.sources.environment {
            if name.starts_with(&of_it) && !text.is_empty() {
                self.warnings.push(format!("environment {name}: {key} {why}"));
            }
        }
    }

    /// Notes something that looks like a mistake and is none for certain.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Notes a mistake in a value that was taken.
    pub(super) fn wrong(&mut self, section: &Section<'a>, key: &str, problem: String) {
        let (place, key) = (self.place(section, key), section.name(key));
        self.errors.push(ConfigError { place, key, problem });
    }

    /// Notes a number that must not be 0.
    pub(super) fn at_least_one(&mut self, section: &Section<'a>, key: &str, value: u64) {
        if value == 0 {
            self.wrong(section, key, "expected a whole number of at least 1, not 0".to_owned());
        }
    }

    /// Notes a mistake in the name or the whole of a section.
    pub(super) fn wrong_section(&mut self, section: &Section<'a>, problem: String) {
        let start = section
            .table
            .and_then(|table| table.values().map(|value| value.span().start).min());
        let (place, key) = (
            self.sources.place_in_file(start.unwrap_or_default()),
            section.path.join("."),
        );
        self.errors.push(ConfigError { place, key, problem });
    }

    /// Notes keys that were not asked for.
    pub(super) fn close(&mut self, section: Section<'a>) {
        for key in section.table.into_iter().flat_map(|table| table.keys()) {
            let name = key.get_ref().as_ref();
            if section.known.contains(&name) {
                continue;
            }
            self.errors.push(ConfigError {
                place: self.sources.place_in_file(key.span().start),
                key: section.name(name),
                problem: format!("unknown key; {}", nearest::among(name, &section.known)),
            });
        }
    }

    /// What was taken, and what looks odd.
    pub(super) fn finish(mut self) -> Result<(Vec<Shown>, Vec<String>), ConfigErrors> {
        if self.errors.is_empty() {
            self.warnings.extend(self.odd_variables());
            Ok((self.shown, self.warnings))
        } else {
            Err(ConfigErrors(self.errors))
        }
    }

    /// Variables that are a slip of the keyboard away from ours. Other programs of Sandgate have theirs, so that an
    /// unknown one is no mistake for certain.
    fn odd_variables(&self) -> Vec<String> {
        let known: Vec<&str> = self.variables.iter().map(String::as_str).collect();
        let given = self.sources.environment.keys().map(String::as_str);
        let unknown = given.filter(|name| name.starts_with("SANDGATE_") && !known.contains(name));
        let odd = unknown.filter_map(|name| {
            let near = known.iter().find(|known| nearest::distance(name, known) <= 2)?;
            Some(format!("environment {name} has no meaning: did you mean {near}?"))
        });
        odd.collect()
    }

    fn find(&mut self, section: &Section<'a>, key: &str) -> Option<(Raw<'a>, Place)> {
        if section.overridable {
            let words: Vec<&str> = section.path.iter().map(String::as_str).chain([key]).collect();
            let variable = variable(&words);
            self.variables.push(variable.clone());
            let flag = words.join("-").replace('_', "-");
            if let Some(text) = self.sources.flags.get(&flag) {
                return Some((Raw::Text(text), Place::Flag(flag)));
            }
            // Empty means unset, as it does to most programs.
            if let Some(text) = self.sources.environment.get(&variable).filter(|text| !text.is_empty()) {
                return Some((Raw::Text(text), Place::Environment(variable)));
            }
        }
        let value = section.table?.get(key)?;
        let place = self.sources.place_in_file(value.span().start);
        Some((Raw::Toml(value.get_ref()), place))
    }

    fn place(&self, section: &Section<'a>, key: &str) -> Place {
        let taken = self
            .shown
            .iter()
            .find(|shown| shown.section == section.path && shown.key == key);
        taken.map_or(Place::Default, |shown| shown.place.clone())
    }

    fn table_in(&mut self, section: &Section<'a>, key: &str) -> Option<&'a DeTable<'a>> {
        let value: &'a Spanned<DeValue<'a>> = section.table?.get(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(table),
            other => {
                self.errors.push(ConfigError {
                    place: self.sources.place_in_file(value.span().start),
                    key: section.name(key),
                    problem: Raw::Toml(other).not("a table"),
                });
                None
            }
        }
    }
}

// === impl Section ===

impl<'a> Section<'a> {
    fn inner(&self, key: &str, table: Option<&'a DeTable<'a>>, overridable: bool) -> Self {
        Self {
            path: self.path.iter().cloned().chain([key.to_owned()]).collect(),
            table,
            known: Vec::new(),
            overridable,
        }
    }

    fn name(&self, key: &str) -> String {
        let words: Vec<&str> = self.path.iter().map(String::as_str).chain([key]).collect();
        words.join(".")
    }
}
