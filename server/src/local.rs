//! The local provider, as the configuration wants it.

use std::{path::Path, sync::Arc};

use sandgate_local::{
    IsolationLevel, Limits, Local, OpenError, Resources, Settings, Template, TemplateRoot, UidRanges,
};

use crate::config::{Config, ConfigError, ConfigErrors, Isolation, Network, Root, Size, Span, TemplateConfig};

/// Why there is no provider.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// What the configuration names is not on this machine, or not as it must be.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The machine or the state directory.
    #[error("can't have sandboxes here: {0}")]
    Open(#[source] OpenError),
}

/// Opens the provider of sandboxes on this machine. The caller has the state directory and keeps it.
///
/// # Errors
/// When something is missing without which no sandbox can be made.
pub async fn open(config: &Config, state_dir: &Path) -> Result<Arc<Local>, ProviderError> {
    let opened = Local::open(settings(config, state_dir)).await;
    opened.map_err(|error| match mistake(config, &error) {
        Some(mistake) => ProviderError::Config(mistake.into()),
        None => ProviderError::Open(error),
    })
}

/// The mistake in the configuration that an error comes from, if it does.
fn mistake(config: &Config, error: &OpenError) -> Option<ConfigError> {
    let (section, key, problem): (&[&str], _, _) = match error {
        OpenError::Program { name, path, source } => (&[], *name, format!("can't use {}: {source}", path.display())),
        OpenError::Template { template, key, problem } => (&["template", template], *key, problem.clone()),
        _ => return None,
    };
    Some(ConfigError {
        place: config.place(section, key),
        key: [section, &[key]].concat().join("."),
        problem,
    })
}

fn settings(config: &Config, state_dir: &Path) -> Settings {
    let limits = &config.limits;
    let templates = config.templates.iter();
    Settings {
        state_dir: state_dir.to_owned(),
        runtime_bin: config.runtime_bin.clone(),
        monitor_bin: config.monitor_bin.clone(),
        templates: templates
            .map(|(name, config)| (name.clone(), template(config)))
            .collect(),
        default_template: config.default_template.clone(),
        limits: Limits {
            sandboxes: count(limits.sandboxes),
            execs_per_sandbox: count(limits.execs_per_sandbox),
            max_ttl: limits.max_ttl.map(Span::get),
            max_idle: limits.max_idle.map(Span::get),
        },
        cgroup_parent: config.cgroup_parent.clone(),
        uids: UidRanges::default(),
    }
}

fn template(config: &TemplateConfig) -> Template {
    let env = config.env.iter();
    Template {
        root: match &config.root {
            Root::Host { paths } => TemplateRoot::Host { paths: paths.clone() },
            Root::Rootfs(path) => TemplateRoot::Rootfs { path: path.clone() },
        },
        env: env.map(|(name, value)| (name.clone(), value.clone())).collect(),
        workdir: config.workdir.to_string_lossy().into_owned(),
        user: config.user.clone(),
        network: match config.network {
            Network::None => sandgate_local::Network::None,
            Network::Host => sandgate_local::Network::Host,
        },
        resources: Resources {
            memory: config.memory.map(Size::bytes),
            pids: config.pids,
            cpu_millis: config.cpus.map(|cpus| cpus.millis()),
            disk: config.disk.map(Size::bytes),
            open_files: Some(config.open_files),
        },
        ttl: config.ttl.map(Span::get),
        idle: config.idle.map(Span::get),
        require: config.require.clone(),
        isolation: match config.isolation {
            Isolation::Full => IsolationLevel::Full,
            Isolation::None => IsolationLevel::None,
        },
    }
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
