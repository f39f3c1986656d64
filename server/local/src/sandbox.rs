//! A sandbox as callers see it, put together from what lies in its directory.

use std::time::Duration;

use sandgate_monitor::{Cause, Ended, Mechanism, Record, Running, Status};
use sandgate_proto::v1::{
    Capability, CapabilityLevel, ColdReason, Connection, ConnectionMode, EndCause, IncarnationEnd, IsolationMechanism,
    Sandbox, SandboxState, StartKind, StartReport, StartStep,
};
use sandgate_provider::limits::{duration, timestamp};

use crate::started::Started;

/// What runs inside.
const DRIVER: &str = "sandgate-runtime";

/// A sandbox of which only the record is known.
pub(crate) fn fresh(record: &Record) -> Sandbox {
    let mut sandbox = Sandbox {
        name: record.name.clone(),
        uid: record.uid.clone(),
        template: record.template.clone(),
        created_at: Some(timestamp(record.created_ms)),
        provider: crate::local::NAME.to_owned(),
        driver: DRIVER.to_owned(),
        ..Sandbox::default()
    };
    sandbox.set_state(SandboxState::Creating);
    apply_record(&mut sandbox, record);
    sandbox
}

/// What Update can change.
pub(crate) fn apply_record(sandbox: &mut Sandbox, record: &Record) {
    sandbox.deadline = record.deadline_ms.map(timestamp);
    sandbox.idle_limit = record.idle_limit_ms.map(|ms| duration(Duration::from_millis(ms)));
    sandbox.labels = record.labels.clone().into_iter().collect();
    sandbox.etag = etag(record);
}

/// What is known since it was READY once.
pub(crate) fn apply_started(sandbox: &mut Sandbox, record: &Record, started: &Started) {
    let capability = |name: &String| Capability {
        name: name.clone(),
        level: CapabilityLevel::Full.into(),
        note: String::new(),
    };
    sandbox.capabilities = started.capabilities.iter().map(capability).collect();
    sandbox.capabilities.sort_by(|a, b| a.name.cmp(&b.name));
    sandbox.driver_version = started.version.clone();
    sandbox.isolation = isolation(&started.isolation, &record.spec.require);
    sandbox.connection = Some(Connection {
        mode: ConnectionMode::Local.into(),
        why: "the sandbox is on the server's machine".to_owned(),
    });
    sandbox.start = Some(start_report(started));
}

/// It runs, as `started` says.
pub(crate) fn ready(sandbox: &mut Sandbox, record: &Record, started: &Started) {
    apply_started(sandbox, record, started);
    sandbox.incarnation = started.incarnation.clone();
    sandbox.state_message = String::new();
    sandbox.set_state(match started.ending_ms {
        None => SandboxState::Ready,
        Some(_) => SandboxState::Suspending,
    });
}

/// It runs, and nobody knows yet how far its start came.
pub(crate) fn found_starting(sandbox: &mut Sandbox) {
    sandbox.incarnation = String::new();
    sandbox.state_message = "the server was restarted and finds it again".to_owned();
    sandbox.set_state(SandboxState::Resuming);
}

/// It does not run.
pub(crate) fn suspended(sandbox: &mut Sandbox, last_end: Option<IncarnationEnd>) {
    sandbox.incarnation = String::new();
    sandbox.last_end = last_end.or(sandbox.last_end.take());
    sandbox.state_message = String::new();
    sandbox.set_state(SandboxState::Suspended);
}

/// How an incarnation ended.
pub(crate) fn end(ended: &Ended) -> IncarnationEnd {
    IncarnationEnd {
        incarnation: ended.incarnation.clone(),
        cause: cause(ended.cause).into(),
        message: ended.message.clone(),
        ended_at: Some(timestamp(ended.at_ms)),
    }
}

/// The end of something whose monitor can't tell it any more.
pub(crate) fn untold_end(running: &Running, boot: &str, at_ms: u64) -> Ended {
    let (cause, message) = if running.boot_id == boot {
        (Cause::Crashed, "its monitor was killed")
    } else {
        (Cause::MachineLost, "the machine was restarted")
    };
    Ended {
        incarnation: running.incarnation.clone(),
        cause,
        message: message.to_owned(),
        at_ms,
    }
}

/// As it is found on disk. What runs is believed to run on, until its monitor says otherwise.
pub(crate) fn found(record: &Record, status: &Status, started: Option<&Started>, boot: &str) -> Sandbox {
    let mut sandbox = fresh(record);
    if let Some(started) = started {
        apply_started(&mut sandbox, record, started);
    }
    sandbox.last_end = status.last_end.as_ref().map(end);
    match (&status.running, started) {
        (Some(running), _) if running.boot_id != boot => {
            let ended = untold_end(running, boot, running.started_ms);
            suspended(&mut sandbox, Some(end(&ended)));
        }
        (Some(running), Some(started)) if started.is_of(running) => ready(&mut sandbox, record, started),
        (Some(_), _) => found_starting(&mut sandbox),
        (None, _) => suspended(&mut sandbox, None),
    }
    sandbox
}

/// Changes with every revision of a record.
pub(crate) fn etag(record: &Record) -> String {
    format!("{}.{}", record.uid, record.revision)
}

pub(crate) fn cause(cause: Cause) -> EndCause {
    match cause {
        Cause::Stopped => EndCause::Suspended,
        Cause::Deadline => EndCause::Deadline,
        Cause::Idle => EndCause::Idle,
        Cause::OutOfMemory => EndCause::OutOfMemory,
        Cause::Crashed => EndCause::Crashed,
        Cause::MachineLost => EndCause::MachineLost,
    }
}

fn isolation(mechanisms: &[Mechanism], required: &[String]) -> Vec<IsolationMechanism> {
    let show = |mechanism: &Mechanism| IsolationMechanism {
        mechanism: mechanism.mechanism.clone(),
        in_force: mechanism.in_force,
        why_not: mechanism.why_not.clone(),
        required: required.contains(&mechanism.mechanism),
    };
    mechanisms.iter().map(show).collect()
}

fn start_report(started: &Started) -> StartReport {
    let (kind, cold_reason, message) = if started.resumed {
        (
            StartKind::Resumed,
            ColdReason::Unspecified,
            "started again from its kept disk",
        )
    } else {
        let message = "there are no warm pools on this machine";
        (StartKind::Cold, ColdReason::NoPool, message)
    };
    let steps = started.steps.iter().map(|step| StartStep {
        name: step.name.clone(),
        duration: Some(duration(Duration::from_micros(step.micros))),
    });
    StartReport {
        kind: kind.into(),
        cold_reason: cold_reason.into(),
        message: message.to_owned(),
        total: Some(duration(Duration::from_micros(started.total_micros))),
        steps: steps.collect(),
        pool: None,
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Things for tests.

    use std::collections::BTreeMap;

    use sandgate_monitor::{IsolationLevel, Limits, Network, Root, Spec};
    use sandgate_provider::limits::DefaultSpans;

    use super::*;
    use crate::settings::{Template, TemplateRoot};

    pub(crate) fn template() -> Template {
        Template {
            root: TemplateRoot::Host { paths: Vec::new() },
            env: Vec::new(),
            workdir: "/workspace".to_owned(),
            user: "sandbox".to_owned(),
            network: Network::None,
            resources: Limits::default(),
            spans: DefaultSpans {
                ttl: Some(Duration::from_secs(3600)),
                idle: None,
            },
            require: Vec::new(),
            isolation: IsolationLevel::Full,
        }
    }

    pub(crate) fn record(name: &str, uid: &str) -> Record {
        Record {
            name: name.to_owned(),
            uid: uid.to_owned(),
            template: "default".to_owned(),
            created_ms: 1,
            deadline_ms: None,
            idle_limit_ms: None,
            labels: BTreeMap::new(),
            env: Vec::new(),
            revision: 1,
            spec: Spec {
                isolation: IsolationLevel::Full,
                root: Root::Rootfs { path: "/r".into() },
                uid_range: None,
                workdir: "/workspace".to_owned(),
                user: "root".to_owned(),
                network: Network::None,
                limits: Limits::default(),
                require: vec!["seccomp".to_owned()],
            },
        }
    }

    pub(crate) fn running(incarnation: &str, boot: &str) -> Running {
        Running {
            incarnation: incarnation.to_owned(),
            boot_id: boot.to_owned(),
            pid: 1,
            started_ms: 1,
            isolation: Vec::new(),
            steps: Vec::new(),
            cgroups: sandgate_monitor::Cgroups::default(),
        }
    }

    pub(crate) fn started(incarnation: &str) -> Started {
        Started {
            incarnation: incarnation.to_owned(),
            version: "1".to_owned(),
            capabilities: vec!["b".to_owned(), "a".to_owned()],
            isolation: vec![Mechanism {
                mechanism: "seccomp".to_owned(),
                in_force: true,
                why_not: String::new(),
            }],
            total_micros: 5,
            steps: Vec::new(),
            resumed: false,
            ending_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};

    #[test]
    fn after_a_restart_of_the_server_it_is_as_it_was() {
        let (record, started) = (record("a", "u"), started("i1"));
        let mut status = Status {
            running: Some(running("i1", "boot")),
            ..Status::default()
        };
        let seen = found(&record, &status, Some(&started), "boot");
        assert_eq!((seen.state(), seen.incarnation.as_str()), (SandboxState::Ready, "i1"));
        assert_eq!(seen.capabilities[0].name, "a");
        assert!(seen.isolation[0].required);

        let lost = found(&record, &status, Some(&started), "another boot");
        let last_end = lost.last_end.clone().unwrap();
        assert_eq!(
            (lost.state(), last_end.cause()),
            (SandboxState::Suspended, EndCause::MachineLost)
        );
        assert_eq!((last_end.incarnation.as_str(), lost.incarnation.as_str()), ("i1", ""));

        // Its start was not finished: nobody knows its name.
        let unknown = found(&record, &status, None, "boot");
        assert_eq!(
            (unknown.state(), unknown.incarnation.as_str()),
            (SandboxState::Resuming, "")
        );

        status.last_end = status.running.take().map(|running| untold_end(&running, "boot", 7));
        let ended = found(&record, &status, Some(&started), "boot");
        assert_eq!(ended.state(), SandboxState::Suspended);
        assert_eq!(ended.last_end.unwrap().cause(), EndCause::Crashed);
        assert_eq!(ended.capabilities.len(), 2);
    }
}
