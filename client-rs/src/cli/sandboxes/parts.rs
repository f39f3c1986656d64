//! The parts of a sandbox as they are printed.

use sandgate::v1;
use serde::Serialize;

use super::{seconds, time, with_why, word};
use crate::cli::output::{self, Cell};

/// Something that it can do.
#[derive(Debug, Serialize)]
pub(super) struct CapabilityView {
    name: String,
    pub(super) level: String,
    note: String,
}

/// What keeps it apart from its surroundings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IsolationView {
    pub(crate) mechanism: String,
    pub(crate) in_force: bool,
    pub(crate) required: bool,
    pub(crate) why_not: String,
}

/// How a rule of its policy is kept.
#[derive(Debug, Serialize)]
pub(super) struct EnforcementView {
    pub(super) rule: String,
    pub(super) level: String,
    pub(super) why: String,
}

/// How the server reaches it.
#[derive(Debug, Serialize)]
pub(crate) struct ConnectionView {
    pub(crate) mode: String,
    pub(crate) why: String,
}

/// How it was started.
#[derive(Debug, Serialize)]
pub(super) struct StartView {
    kind: String,
    cold_reason: Option<String>,
    message: String,
    total_seconds: Option<f64>,
    steps: Vec<StepView>,
}

/// A step of a start.
#[derive(Debug, Serialize)]
struct StepView {
    name: String,
    seconds: Option<f64>,
}

/// How the incarnation before ended.
#[derive(Debug, Serialize)]
pub(super) struct EndView {
    incarnation: String,
    cause: String,
    message: String,
    ended_at: Option<String>,
}

/// What it uses.
#[derive(Debug, Serialize)]
pub(super) struct UsageView {
    measured_at: Option<String>,
    cpu_seconds: Option<f64>,
    cpu_limit_millis: Option<u32>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    disk_limit_bytes: Option<u64>,
    processes: Option<u32>,
    processes_limit: Option<u32>,
}

// === impl parts ===

impl From<v1::Capability> for CapabilityView {
    fn from(capability: v1::Capability) -> Self {
        Self {
            level: word(capability.level().as_str_name(), "CAPABILITY_LEVEL_"),
            name: capability.name,
            note: capability.note,
        }
    }
}

impl From<v1::IsolationMechanism> for IsolationView {
    fn from(mechanism: v1::IsolationMechanism) -> Self {
        Self {
            mechanism: mechanism.mechanism,
            in_force: mechanism.in_force,
            required: mechanism.required,
            why_not: mechanism.why_not,
        }
    }
}

impl From<v1::RuleEnforcement> for EnforcementView {
    fn from(rule: v1::RuleEnforcement) -> Self {
        Self {
            level: word(rule.level().as_str_name(), "ENFORCEMENT_LEVEL_"),
            rule: rule.rule,
            why: rule.why,
        }
    }
}

impl From<v1::Connection> for ConnectionView {
    fn from(connection: v1::Connection) -> Self {
        Self {
            mode: word(connection.mode().as_str_name(), "CONNECTION_MODE_"),
            why: connection.why,
        }
    }
}

impl From<v1::StartReport> for StartView {
    fn from(start: v1::StartReport) -> Self {
        let cold = Some(start.cold_reason()).filter(|reason| *reason != v1::ColdReason::Unspecified);
        Self {
            kind: word(start.kind().as_str_name(), "START_KIND_"),
            cold_reason: cold.map(|reason| word(reason.as_str_name(), "COLD_REASON_")),
            message: start.message,
            total_seconds: seconds(start.total.as_ref()),
            steps: start
                .steps
                .into_iter()
                .map(|step| StepView {
                    seconds: seconds(step.duration.as_ref()),
                    name: step.name,
                })
                .collect(),
        }
    }
}

impl StartView {
    pub(super) fn line(&self) -> String {
        let millis = |seconds: &f64| format!("{:.1} ms", seconds * 1e3);
        let mut line = self.kind.clone();
        if let Some(total) = &self.total_seconds {
            line = format!("{line}, {}", millis(total));
        }
        let steps: Vec<String> = self
            .steps
            .iter()
            .filter_map(|step| Some(format!("{} {}", step.name, step.seconds.as_ref().map(millis)?)))
            .collect();
        if !steps.is_empty() {
            line = format!("{line} ({})", steps.join(", "));
        }
        with_why(&line, &self.message)
    }
}

impl From<v1::IncarnationEnd> for EndView {
    fn from(end: v1::IncarnationEnd) -> Self {
        Self {
            cause: word(end.cause().as_str_name(), "END_CAUSE_"),
            incarnation: end.incarnation,
            message: end.message,
            ended_at: time(end.ended_at.as_ref()),
        }
    }
}

impl EndView {
    pub(super) fn line(&self) -> String {
        let line = with_why(&self.cause, &self.message);
        match &self.ended_at {
            Some(at) => format!("{line} (at {at})"),
            None => line,
        }
    }
}

impl From<v1::Usage> for UsageView {
    fn from(usage: v1::Usage) -> Self {
        Self {
            measured_at: time(usage.measured_at.as_ref()),
            cpu_seconds: seconds(usage.cpu_time.as_ref()),
            cpu_limit_millis: usage.cpu_limit_millis,
            memory_bytes: usage.memory_bytes,
            memory_limit_bytes: usage.memory_limit_bytes,
            disk_bytes: usage.disk_bytes,
            disk_limit_bytes: usage.disk_limit_bytes,
            processes: usage.processes,
            processes_limit: usage.processes_limit,
        }
    }
}

impl UsageView {
    pub(super) fn facts(&self, fact: &mut dyn FnMut(&str, Cell)) {
        let mut of = |name: &str, used: Option<String>, limit: Option<String>| {
            let used = used.unwrap_or("not measured".into());
            let line = limit.map_or(used.clone(), |limit| format!("{used} of {limit}"));
            fact(name, line.into());
        };
        of(
            "cpu",
            self.cpu_seconds.map(|seconds| format!("{seconds:.2} s")),
            self.cpu_limit_millis
                .map(|millis| format!("{} processors", f64::from(millis) / 1e3)),
        );
        of(
            "memory",
            self.memory_bytes.map(output::bytes),
            self.memory_limit_bytes.map(output::bytes),
        );
        of(
            "disk",
            self.disk_bytes.map(output::bytes),
            self.disk_limit_bytes.map(output::bytes),
        );
        let number = |number: u32| number.to_string();
        of(
            "processes",
            self.processes.map(number),
            self.processes_limit.map(number),
        );
    }
}
