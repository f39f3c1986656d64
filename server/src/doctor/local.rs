//! Sandboxes on this machine: found out by making one of each template, using it and removing it.

use sandgate_local::mechanism;
use sandgate_proto::v1::{
    Argv, CreateRequest, DeleteRequest, ExecSpec, RunRequest, Sandbox, create_request::End, exec_exit::Status,
    exec_spec::Command, sandbox_service_server::SandboxService as _,
};
use sandgate_provider::Finding;
use tonic::Request;

use super::Say;
use crate::{
    config::{Config, Isolation, LocalConfig, Network, TemplateConfig},
    provider::Opened,
    service::Sandboxes,
    state_dir::StateDir,
    stopping::Stopping,
};

/// The sandbox goes by itself if we can't remove it.
const TTL_SECONDS: i64 = 300;
const LABEL: (&str, &str) = ("sandgate.dev/made-by", "doctor");

/// Acts as the server for a moment: the state directory is ours.
pub(super) async fn examine(config: &Config, local: &LocalConfig, state_dir: &StateDir, say: &mut Say<'_>) {
    let opened = match Opened::open(config, state_dir.path()).await {
        Ok(opened) => opened,
        Err(error) => {
            say(Finding::problem("provider", error.to_string(), ""));
            return;
        }
    };
    let service = Sandboxes::new(opened.provider(), Stopping::new());
    for (name, template) in &local.templates {
        let what = format!("template {name}");
        match make(&service, name).await {
            Ok(sandbox) => {
                say(isolation(&what, &sandbox, template));
                if let Err(error) = try_true(&service, &sandbox).await {
                    say(Finding::problem(&what, error, ""));
                }
                if let Err(error) = remove(&service, &sandbox).await {
                    say(Finding::problem(&what, error, ""));
                }
            }
            Err(error) => {
                let advice = "docs/local.md has what each mechanism needs";
                say(Finding::problem(
                    &what,
                    format!("no sandbox can be made: {error}"),
                    advice,
                ));
            }
        }
    }
    opened.close().await;
}

async fn make(service: &Sandboxes, template: &str) -> Result<Sandbox, String> {
    let request = CreateRequest {
        template: template.to_owned(),
        labels: [(LABEL.0.to_owned(), LABEL.1.to_owned())].into(),
        end: Some(End::Ttl(prost_types::Duration {
            seconds: TTL_SECONDS,
            nanos: 0,
        })),
        ..CreateRequest::default()
    };
    let answer = service.create(Request::new(request)).await;
    let answer = answer.map_err(|status| status.message().to_owned())?;
    answer.into_inner().sandbox.ok_or_else(|| "there is none".to_owned())
}

/// What keeps it apart, and what does not.
fn isolation(what: &str, sandbox: &Sandbox, template: &TemplateConfig) -> Finding {
    if template.isolation == Isolation::None {
        let detail = "works, with isolation = \"none\": plain processes of the server's user";
        return Finding::warning(what, detail, "it is for development only");
    }
    let mechanisms = sandbox.isolation.iter();
    let wanted: Vec<_> = mechanisms
        .filter(|one| one.in_force || is_wanted(&one.mechanism, template))
        .collect();
    let lacking: Vec<String> = wanted
        .iter()
        .filter(|one| !one.in_force)
        .map(|one| format!("{} ({})", one.mechanism, one.why_not))
        .collect();
    let all = wanted.len();
    match lacking.as_slice() {
        [] => Finding::ok(
            what,
            format!("works, with all {all} mechanisms of isolation that it asks for"),
        ),
        lacking => {
            let rest = all - lacking.len();
            let lacking = lacking.join(", ");
            let detail = format!("works, with {rest} of {all} mechanisms of isolation; not in force: {lacking}");
            Finding::warning(what, detail, "docs/local.md has what each needs")
        }
    }
}

/// Whether a template asks for a mechanism. A limit that it does not set is no fault of the machine.
fn is_wanted(name: &str, template: &TemplateConfig) -> bool {
    match name {
        mechanism::DISK => template.disk.is_some(),
        mechanism::CPU => template.cpus.is_some(),
        mechanism::MEMORY => template.memory.is_some(),
        mechanism::PIDS => template.pids.is_some(),
        mechanism::NETWORK => template.network == Network::None,
        _ => true,
    }
}

async fn try_true(service: &Sandboxes, sandbox: &Sandbox) -> Result<(), String> {
    let command = Command::Argv(Argv {
        args: vec!["true".to_owned()],
        args_raw: Vec::new(),
    });
    let request = RunRequest {
        sandbox: sandbox.name.clone(),
        exec_id: "doctor".to_owned(),
        spec: Some(ExecSpec {
            command: Some(command),
            ..ExecSpec::default()
        }),
        ..RunRequest::default()
    };
    let ran = service.run(Request::new(request)).await;
    let ran = ran.map_err(|status| format!("`true` could not be run: {}", status.message()))?;
    let exec = ran.into_inner().exec.unwrap_or_default();
    match (exec.start_failure, exec.exit.and_then(|exit| exit.status)) {
        (None, Some(Status::Code(0))) => Ok(()),
        (Some(failure), _) => Err(format!("`true` could not be started: {}", failure.message)),
        (None, status) => Err(format!("`true` did not exit with 0: {status:?}")),
    }
}

async fn remove(service: &Sandboxes, sandbox: &Sandbox) -> Result<(), String> {
    let request = DeleteRequest {
        sandbox: sandbox.name.clone(),
        ..DeleteRequest::default()
    };
    let removed = service.delete(Request::new(request)).await;
    removed.map_err(|status| format!("{} can't be removed: {}", sandbox.name, status.message()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use sandgate_proto::v1::IsolationMechanism;
    use sandgate_provider::Verdict;

    use super::*;
    use crate::config::{ConfigFile, ProviderConfig, Sources};

    fn template(text: &str) -> TemplateConfig {
        let mut sources = Sources::default();
        sources.process.root = true;
        sources.file = Some(ConfigFile {
            path: "/x".into(),
            text: format!("[template.t]\n{text}"),
        });
        match Config::resolve(&sources).unwrap().provider {
            ProviderConfig::Local(mut local) => local.templates.remove("t").unwrap(),
            ProviderConfig::Kubernetes(_) => panic!("not local"),
        }
    }

    #[test]
    fn a_limit_that_the_template_does_not_set_is_no_fault() {
        let lacking = |mechanism: &str| IsolationMechanism {
            mechanism: mechanism.to_owned(),
            why_not: "because".to_owned(),
            ..IsolationMechanism::default()
        };
        let sandbox = Sandbox {
            isolation: vec![lacking(mechanism::DISK)],
            ..Sandbox::default()
        };
        for (text, verdict) in [
            ("", Verdict::Ok),
            ("disk = \"1GiB\"", Verdict::Warning),
            ("isolation = \"none\"", Verdict::Warning),
        ] {
            let finding = isolation("template t", &sandbox, &template(text));
            assert_eq!(finding.verdict, verdict, "{text}: {finding}");
        }
        let without = Sandbox {
            isolation: vec![lacking(mechanism::SECCOMP)],
            ..Sandbox::default()
        };
        let finding = isolation("template t", &without, &template(""));
        assert!(
            finding.verdict == Verdict::Warning && finding.detail.ends_with("seccomp (because)"),
            "{finding}"
        );
    }
}
