//! `sandgate-server doctor`: is everything there that the server needs? It has the configuration and the rights to find
//! out, which callers do not.

mod local;

use sandgate_provider::{Finding, Verdict};

use crate::{
    config::{Config, ProviderConfig},
    kubernetes,
    state_dir::{StateDir, StateError},
};

/// Takes findings as they are made.
type Say<'a> = dyn FnMut(Finding) + 'a;

/// Examines what the configuration names, and tells each finding as soon as it is made. Answers whether there was no
/// problem.
pub async fn examine(config: &Config, mut say: impl FnMut(Finding)) -> bool {
    let mut well = true;
    let mut say = |finding: Finding| {
        well &= finding.verdict != Verdict::Problem;
        say(finding);
    };
    say(Finding::ok("configuration", "is valid"));
    for warning in &config.warnings {
        say(Finding::warning("configuration", warning.as_str(), ""));
    }
    let state_dir = state(config, &mut say);
    match &config.provider {
        ProviderConfig::Local(local) => {
            if let Some(state_dir) = state_dir {
                local::examine(config, local, &state_dir, &mut say).await;
            }
        }
        ProviderConfig::Kubernetes(cluster) => match kubernetes::settings(config, cluster) {
            Ok(settings) => sandgate_kubernetes::examine(&settings, &mut say).await,
            Err(error) => say(Finding::problem("configuration", error.to_string(), "")),
        },
    }
    well
}

/// Nothing if it can't be had, or is in use.
fn state(config: &Config, say: &mut Say<'_>) -> Option<StateDir> {
    const WHAT: &str = "state directory";
    match StateDir::open(&config.state_dir, config.token_file.as_deref()) {
        Ok(state_dir) => {
            say(Finding::ok(WHAT, state_dir.path().display().to_string()));
            Some(state_dir)
        }
        Err(StateError::Taken { path, holder }) => {
            let detail = format!("a server has {} ({holder})", path.display());
            match config.provider {
                // It alone knows what it can do: another one would be in another cgroup.
                ProviderConfig::Local(_) => {
                    let advice = "let it make a sandbox: `sandgate doctor`";
                    say(Finding::warning(
                        WHAT,
                        format!("{detail}, so no sandbox is made here"),
                        advice,
                    ));
                }
                ProviderConfig::Kubernetes(_) => say(Finding::ok(WHAT, detail)),
            }
            None
        }
        Err(error) => {
            say(Finding::problem(WHAT, error.to_string(), ""));
            None
        }
    }
}
