//! What only sandboxes on this machine need to know.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    nearest,
    reader::{Reader, Section},
    source::Sources,
    template::{self, Network, TemplateConfig},
};

/// For sandboxes on this machine.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The template of sandboxes that name none. It is in `templates`.
    pub default_template: String,
    /// The cgroup below which sandboxes get theirs. Absent: below the server's own.
    pub cgroup_parent: Option<PathBuf>,
    /// The program that runs inside each sandbox.
    pub runtime_bin: PathBuf,
    /// The program that makes and guards each sandbox.
    pub monitor_bin: PathBuf,
    /// Live sandboxes.
    pub sandboxes: u64,
    /// Commands alive at once in one sandbox.
    pub execs_per_sandbox: u64,
    /// What sandboxes can be made from, by name.
    pub templates: BTreeMap<String, TemplateConfig>,
}

/// Keys of the file that are ours alone.
const KEYS: [&str; 4] = ["cgroup_parent", "runtime_bin", "monitor_bin", "template"];
/// Keys of `[limits]` that are ours alone.
const LIMITS: [&str; 2] = ["sandboxes", "execs_per_sandbox"];

// === impl LocalConfig ===

impl LocalConfig {
    pub(super) fn read<'a>(
        reader: &mut Reader<'a>,
        sources: &Sources,
        top: &mut Section<'a>,
        limits: &mut Section<'a>,
    ) -> Self {
        let config = Self {
            default_template: reader.take(top, "default_template", template::DEFAULT.to_owned()),
            cgroup_parent: reader.take(top, "cgroup_parent", None::<PathBuf>),
            runtime_bin: reader.take_path(top, "runtime_bin", Some(sources.beside("sandgate-runtime"))),
            monitor_bin: reader.take_path(top, "monitor_bin", Some(sources.beside("sandgate-monitor"))),
            sandboxes: reader.take(limits, "sandboxes", 1000),
            execs_per_sandbox: reader.take(limits, "execs_per_sandbox", 1024),
            templates: template::read_all(reader, top),
        };
        for (key, value) in LIMITS.into_iter().zip([config.sandboxes, config.execs_per_sandbox]) {
            reader.at_least_one(limits, key, value);
        }
        let wanted = &config.default_template;
        if !config.templates.contains_key(wanted) {
            let known: Vec<&str> = config.templates.keys().map(String::as_str).collect();
            let problem = format!("there is no template {wanted:?}; {}", nearest::among(wanted, &known));
            reader.wrong(top, "default_template", problem);
        }
        reader.forbid_section(
            top,
            "kubernetes",
            "is only for provider = \"kubernetes\", and the provider is \"local\"",
        );
        config
    }

    /// Notes what was given of all this, where it has no meaning.
    pub(super) fn forbid<'a>(reader: &mut Reader<'a>, top: &mut Section<'a>, limits: &mut Section<'a>) {
        for key in KEYS {
            let instead = match key {
                "template" => ": on Kubernetes templates are SandboxTemplates of the cluster",
                _ => ", and the provider is \"kubernetes\"",
            };
            reader.forbid(top, key, &format!("is only for provider = \"local\"{instead}"));
        }
        for key in LIMITS {
            let instead = match key {
                "sandboxes" => "a ResourceQuota of the namespace",
                _ => "the template's command of sandgate-runtime",
            };
            let why = format!("is only for provider = \"local\": on Kubernetes use {instead}");
            reader.forbid(limits, key, &why);
        }
    }

    /// Names of templates whose sandboxes use this machine's network.
    #[must_use]
    pub fn on_host_network(&self) -> Vec<&str> {
        let on_host = self.templates.iter().filter(|(_, t)| t.network == Network::Host);
        on_host.map(|(name, _)| name.as_str()).collect()
    }
}
