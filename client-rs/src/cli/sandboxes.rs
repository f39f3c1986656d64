//! A sandbox as it is printed: the JSON that scripts rely on, the table of `ls` and the page of `get`.
//!
//! JSON values: times are RFC 3339 in UTC, spans are seconds, states and causes are the contract's words in lower case.
//! What is absent is null, so that every field is always there.

mod parts;

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, SystemTime},
};

use prost_types::Timestamp;
use sandgate::v1;
use serde::Serialize;

use self::parts::{CapabilityView, EndView, EnforcementView, StartView, UsageView};
pub(crate) use self::parts::{ConnectionView, IsolationView};
use super::{
    output::{Cell, Paint, Show, Table, Text},
    spans,
};

/// A sandbox.
#[derive(Debug, Serialize)]
pub(crate) struct SandboxView {
    pub(crate) name: String,
    uid: String,
    incarnation: String,
    template: String,
    pub(crate) state: String,
    pub(crate) state_message: String,
    created_at: Option<String>,
    deadline: Option<String>,
    idle_limit_seconds: Option<f64>,
    labels: BTreeMap<String, String>,
    etag: String,
    provider: String,
    driver: String,
    driver_version: String,
    capabilities: Vec<CapabilityView>,
    isolation: Vec<IsolationView>,
    enforcement: Vec<EnforcementView>,
    connection: Option<ConnectionView>,
    start: Option<StartView>,
    last_end: Option<EndView>,
    usage: Option<UsageView>,
    #[serde(skip)]
    times: Times,
}

/// The same as numbers, for text that counts from now.
#[derive(Debug, Default)]
struct Times {
    created_at: Option<SystemTime>,
    deadline: Option<SystemTime>,
}

/// Many, as `ls` prints them.
#[derive(Debug, Serialize)]
pub(crate) struct ListView {
    pub(crate) sandboxes: Vec<SandboxView>,
}

/// A value of an enum in the contract, in lower case and without its prefix.
pub(crate) fn word(full: &str, prefix: &str) -> String {
    full.strip_prefix(prefix).unwrap_or(full).to_ascii_lowercase()
}

/// A state's colour.
fn state_paint(state: &str) -> Paint {
    match state {
        "ready" => Paint::Green,
        "failed" => Paint::Red,
        "suspended" => Paint::Dim,
        _ => Paint::Yellow,
    }
}

/// A time as text.
pub(crate) fn time(time: Option<&Timestamp>) -> Option<String> {
    time.map(ToString::to_string)
}

fn seconds(span: Option<&prost_types::Duration>) -> Option<f64> {
    span.map(|span| spans::unwire(span).as_secs_f64())
}

fn instant(time: Option<&Timestamp>) -> Option<SystemTime> {
    time.and_then(|time| (*time).try_into().ok())
}

// === impl SandboxView ===

impl From<v1::Sandbox> for SandboxView {
    fn from(sandbox: v1::Sandbox) -> Self {
        Self {
            state: word(sandbox.state().as_str_name(), "SANDBOX_STATE_"),
            times: Times {
                created_at: instant(sandbox.created_at.as_ref()),
                deadline: instant(sandbox.deadline.as_ref()),
            },
            created_at: time(sandbox.created_at.as_ref()),
            deadline: time(sandbox.deadline.as_ref()),
            idle_limit_seconds: seconds(sandbox.idle_limit.as_ref()),
            labels: sandbox.labels.into_iter().collect(),
            capabilities: sandbox.capabilities.into_iter().map(CapabilityView::from).collect(),
            isolation: sandbox.isolation.into_iter().map(IsolationView::from).collect(),
            enforcement: sandbox.enforcement.into_iter().map(EnforcementView::from).collect(),
            connection: sandbox.connection.map(ConnectionView::from),
            start: sandbox.start.map(StartView::from),
            last_end: sandbox.last_end.map(EndView::from),
            usage: sandbox.usage.map(UsageView::from),
            name: sandbox.name,
            uid: sandbox.uid,
            incarnation: sandbox.incarnation,
            template: sandbox.template,
            state_message: sandbox.state_message,
            etag: sandbox.etag,
            provider: sandbox.provider,
            driver: sandbox.driver,
            driver_version: sandbox.driver_version,
        }
    }
}

impl SandboxView {
    fn age(&self) -> String {
        let age = self.times.created_at.map(|at| at.elapsed().unwrap_or_default());
        age.map(whole).unwrap_or_default()
    }

    fn ends_in(&self) -> String {
        let left = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or_default();
        self.times.deadline.map_or("never".into(), |at| whole(left(at)))
    }

    fn idle(&self) -> String {
        let span = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        match self.idle_limit_seconds.map(span) {
            None | Some(Duration::ZERO) => "none".into(),
            Some(limit) => spans::human(limit),
        }
    }

    fn labels(&self) -> String {
        let labels: Vec<String> = self
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        labels.join(",")
    }

    fn facts(&self) -> Table {
        let mut table = Table::default();
        let mut fact = |name: &str, value: Cell| table.row([Cell::painted(Paint::Dim, name), value]);
        fact("name", Cell::painted(Paint::Bold, &*self.name));
        let state = match self.state_message.is_empty() {
            true => self.state.clone(),
            false => format!("{}: {}", self.state, self.state_message),
        };
        fact("state", Cell::painted(state_paint(&self.state), state));
        fact("template", self.template.as_str().into());
        fact("uid", self.uid.as_str().into());
        fact("incarnation", none_if_empty(&self.incarnation).into());
        fact(
            "made",
            format!("{} ({} ago)", self.created_at.as_deref().unwrap_or("?"), self.age()).into(),
        );
        let deadline = self
            .deadline
            .as_ref()
            .map(|deadline| format!("{deadline} (in {})", self.ends_in()));
        fact("deadline", deadline.unwrap_or("none".into()).into());
        fact("idle limit", self.idle().into());
        fact("labels", none_if_empty(&self.labels()).into());
        fact("etag", self.etag.as_str().into());
        fact("made by", self.provider.as_str().into());
        fact("runs", format!("{} {}", self.driver, self.driver_version).trim().into());
        if let Some(connection) = &self.connection {
            fact("reached by", with_why(&connection.mode, &connection.why).into());
        }
        if let Some(start) = &self.start {
            fact("start", start.line().into());
        }
        if let Some(end) = &self.last_end {
            fact("last end", end.line().into());
        }
        if let Some(usage) = &self.usage {
            usage.facts(&mut fact);
        }
        table
    }
}

fn whole(span: Duration) -> String {
    spans::human(Duration::from_secs(span.as_secs()))
}

fn none_if_empty(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

pub(crate) fn with_why(what: &str, why: &str) -> String {
    match why.is_empty() {
        true => what.into(),
        false => format!("{what}: {why}"),
    }
}

impl Show for SandboxView {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        self.facts().print(to)?;
        if !self.isolation.is_empty() {
            to.line("")?;
            isolation_table(&self.isolation).print(to)?;
        }
        if !self.enforcement.is_empty() {
            to.line("")?;
            let mut table = Table::new(&["RULE", "KEPT FOR", "WHY"]);
            for rule in &self.enforcement {
                table.row([
                    rule.rule.as_str().into(),
                    rule.level.as_str().into(),
                    rule.why.as_str().into(),
                ]);
            }
            table.print(to)?;
        }
        Ok(())
    }
}

/// The table of isolation mechanisms.
pub(crate) fn isolation_table(isolation: &[IsolationView]) -> Table {
    let mut table = Table::new(&["ISOLATION", "IN FORCE", "WHY NOT"]);
    for mechanism in isolation {
        let in_force = match (mechanism.in_force, mechanism.required) {
            (true, _) => Cell::painted(Paint::Green, "yes"),
            (false, false) => Cell::painted(Paint::Yellow, "no"),
            (false, true) => Cell::painted(Paint::Red, "no (required)"),
        };
        table.row([
            mechanism.mechanism.as_str().into(),
            in_force,
            mechanism.why_not.as_str().into(),
        ]);
    }
    table
}

// === impl ListView ===

impl Show for ListView {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        if self.sandboxes.is_empty() && to.is_terminal() {
            return to.line("No sandboxes. Make one: sandgate create");
        }
        let mut table = Table::new(&["NAME", "STATE", "TEMPLATE", "AGE", "ENDS IN", "IDLE LIMIT", "LABELS"]);
        for sandbox in &self.sandboxes {
            table.row([
                sandbox.name.as_str().into(),
                Cell::painted(state_paint(&sandbox.state), sandbox.state.as_str()),
                sandbox.template.as_str().into(),
                sandbox.age().into(),
                sandbox.ends_in().into(),
                sandbox.idle().into(),
                sandbox.labels().into(),
            ]);
        }
        table.print(to)
    }
}

#[cfg(test)]
mod tests;
