//! The local provider, as the configuration wants it.

use std::{path::Path, sync::Arc};

use sandgate_local::{
    IsolationLevel, Limits, Local, OpenError, Resources, Settings, Template, TemplateRoot, UidRanges,
};
use sandgate_provider::limits::DefaultSpans;

use crate::{
    config::{Config, ConfigError, Isolation, LocalConfig, Network, Root, Size, Span, TemplateConfig},
    provider::{ProviderError, spans},
};

/// Opens the provider of sandboxes on this machine. The caller has the state directory and keeps it.
pub(crate) async fn open(config: &Config, local: &LocalConfig, state_dir: &Path) -> Result<Arc<Local>, ProviderError> {
    let opened = Local::open(settings(config, local, state_dir)).await;
    opened.map_err(|error| match mistake(config, &error) {
        Some(mistake) => ProviderError::Config(mistake.into()),
        None => ProviderError::Local(error),
    })
}

/// The mistake in the configuration that an error comes from, if it does.
fn mistake(config: &Config, error: &OpenError) -> Option<ConfigError> {
    let (section, key, problem): (&[&str], _, _) = match error {
        OpenError::Program { name, path, source } => (&[], *name, format!("can't use {}: {source}", path.display())),
        OpenError::Template { template, key, problem } => (&["template", template], *key, problem.clone()),
        _ => return None,
    };
    Some(config.mistake(section, key, problem))
}

fn settings(config: &Config, local: &LocalConfig, state_dir: &Path) -> Settings {
    let templates = local.templates.iter();
    Settings {
        state_dir: state_dir.to_owned(),
        runtime_bin: local.runtime_bin.clone(),
        monitor_bin: local.monitor_bin.clone(),
        templates: templates
            .map(|(name, config)| (name.clone(), template(config)))
            .collect(),
        default_template: local.default_template.clone(),
        limits: Limits {
            sandboxes: count(local.sandboxes),
            execs_per_sandbox: count(local.execs_per_sandbox),
            spans: spans(config),
        },
        cgroup_parent: local.cgroup_parent.clone(),
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
        spans: DefaultSpans {
            ttl: config.ttl.map(Span::get),
            idle: config.idle.map(Span::get),
        },
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
