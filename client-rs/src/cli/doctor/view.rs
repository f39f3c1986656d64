//! What the doctor says.

use std::io;

use sandgate::v1::Sandbox;
use serde::Serialize;

use crate::cli::{
    Failure,
    output::{Cell, Paint, Show, Table, Text},
    sandboxes::{ConnectionView, IsolationView, isolation_table, with_why},
};

/// The whole examination.
#[derive(Debug, Default, Serialize)]
pub(super) struct View {
    pub(super) ok: bool,
    #[serde(flatten)]
    pub(super) finding: Finding,
    provider: Option<String>,
    driver: Option<String>,
    driver_version: Option<String>,
    template: Option<String>,
    connection: Option<ConnectionView>,
    pub(super) checks: Vec<Check>,
    pub(super) isolation: Vec<IsolationView>,
    pub(super) tools: Vec<Tool>,
}

/// How the server was found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Finding {
    pub(super) address: Option<String>,
    pub(super) address_from: Option<String>,
    pub(super) token_from: Option<String>,
}

/// One essential thing.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    name: &'static str,
    pub(super) ok: bool,
    detail: String,
    reason: Option<String>,
    hint: Option<&'static str>,
}

/// A program that agents like to have.
#[derive(Debug, Serialize)]
pub(super) struct Tool {
    name: &'static str,
    found: bool,
    version: Option<String>,
}

// === impl View ===

impl View {
    /// Notes how a check went. Answers with what it was for.
    pub(super) fn check<T>(&mut self, name: &'static str, outcome: Result<(String, T), Failure>) -> Option<T> {
        match outcome {
            Ok((detail, found)) => {
                self.checks.push(Check {
                    name,
                    ok: true,
                    detail,
                    reason: None,
                    hint: None,
                });
                Some(found)
            }
            Err(failure) => {
                self.checks.push(Check {
                    name,
                    ok: false,
                    detail: failure.line(),
                    reason: failure.reason(),
                    hint: failure.hint(),
                });
                None
            }
        }
    }

    /// Notes what a sandbox tells of the server and of its own isolation.
    pub(super) fn look_at(&mut self, sandbox: &Sandbox) {
        self.provider = Some(sandbox.provider.clone());
        self.driver = Some(sandbox.driver.clone());
        self.driver_version = Some(sandbox.driver_version.clone());
        self.template = Some(sandbox.template.clone());
        self.connection = sandbox.connection.clone().map(ConnectionView::from);
        self.isolation = sandbox.isolation.iter().cloned().map(IsolationView::from).collect();
        let lacking: Vec<&str> = self
            .isolation
            .iter()
            .filter(|mechanism| mechanism.required && !mechanism.in_force)
            .map(|mechanism| mechanism.mechanism.as_str())
            .collect();
        let outcome = match lacking.as_slice() {
            [] => Ok(("everything that the template requires is in force".to_owned(), ())),
            lacking => Err(Failure::Other(format!(
                "required and not in force: {}",
                lacking.join(", ")
            ))),
        };
        _ = self.check("isolation", outcome);
    }

    fn facts(&self) -> Table {
        let mut table = Table::default();
        let mut fact = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                table.row([Cell::painted(Paint::Dim, name), value.into()]);
            }
        };
        let address = self.finding.address.as_ref().zip(self.finding.address_from.as_ref());
        fact(
            "address",
            address.map(|(address, from)| format!("{address} (from {from})")),
        );
        fact("token", self.finding.token_from.clone());
        fact("provider", self.provider.clone());
        let driver = self.driver.as_ref().zip(self.driver_version.as_ref());
        fact(
            "runs",
            driver.map(|(driver, version)| format!("{driver} {version}").trim().to_owned()),
        );
        fact("template", self.template.clone());
        let reached = self.connection.as_ref();
        fact("reached by", reached.map(|way| with_why(&way.mode, &way.why)));
        table
    }
}

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        self.facts().print(to)?;
        to.line("")?;
        let mut checks = Table::default();
        for check in &self.checks {
            let mark = match check.ok {
                true => Cell::painted(Paint::Green, "ok"),
                false => Cell::painted(Paint::Red, "FAILED"),
            };
            checks.row([mark, check.name.into(), check.detail.as_str().into()]);
            if let Some(hint) = check.hint {
                checks.row(["".into(), "".into(), hint.into()]);
            }
        }
        checks.print(to)?;
        if !self.isolation.is_empty() {
            to.line("")?;
            isolation_table(&self.isolation).print(to)?;
        }
        if !self.tools.is_empty() {
            to.line("")?;
            let mut tools = Table::new(&["TOOL", "INSIDE"]);
            for tool in &self.tools {
                let version = tool.version.as_deref().filter(|version| !version.is_empty());
                let inside = match tool.found {
                    true => Cell::painted(Paint::Green, version.unwrap_or("yes")),
                    false => Cell::painted(Paint::Yellow, "no"),
                };
                tools.row([tool.name.into(), inside]);
            }
            tools.print(to)?;
        }
        to.line("")?;
        let lacking = self.isolation.iter().filter(|mechanism| !mechanism.in_force).count();
        match self.ok {
            true if lacking > 0 => {
                let (all, line) = (self.isolation.len(), "Everything essential works, but");
                let line = format!("{line} {lacking} of {all} mechanisms of isolation are not in force.");
                to.painted(Paint::Yellow, &line)
            }
            true => to.painted(Paint::Green, "Everything essential works."),
            false => {
                // It has the rights and the configuration to find out, which a caller does not.
                to.line("Where the server runs, `sandgate-server doctor` says what it lacks.")?;
                to.painted(Paint::Red, "Something essential does not work.")
            }
        }
    }
}

// === impl Tool ===

impl Tool {
    /// A tool, with its version if it was found.
    pub(super) fn new(name: &'static str, version: Option<String>) -> Self {
        Self {
            name,
            found: version.is_some(),
            version,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandgate::v1::{Connection, ConnectionMode, ErrorReason, IsolationMechanism};
    use serde_json::json;

    use super::*;

    fn sandbox(required: bool) -> Sandbox {
        Sandbox {
            provider: "local".into(),
            connection: Some(Connection {
                mode: ConnectionMode::Tunnel.into(),
                why: "asked for".into(),
            }),
            isolation: vec![IsolationMechanism {
                mechanism: "landlock".into(),
                in_force: false,
                why_not: "the kernel has none".into(),
                required,
            }],
            ..Sandbox::default()
        }
    }

    #[test]
    fn what_is_not_in_force_is_only_a_fault_if_it_is_required() {
        for required in [false, true] {
            let mut view = View::default();
            view.look_at(&sandbox(required));
            assert_eq!(view.checks[0].ok, !required);
            assert_eq!(view.checks[0].detail.contains("landlock"), required);
        }
    }

    #[test]
    fn a_failed_check_says_what_to_do() {
        let mut view = View::default();
        let refusal = sandgate_errors::status(ErrorReason::Unauthenticated, "no token");
        assert!(view.check::<()>("server", Err(refusal.into())).is_none());
        assert!(view.check("server", Ok(("answers".into(), ()))).is_some());
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["checks"][0]["reason"], "UNAUTHENTICATED");
        assert!(json["checks"][0]["hint"].as_str().unwrap().contains("SANDGATE_TOKEN"));
        assert_eq!(
            json["checks"][1],
            json!({"name": "server", "ok": true, "detail": "answers", "reason": null, "hint": null})
        );
    }

    #[test]
    fn the_json_has_every_field() {
        let mut view = View::default();
        view.finding.address = Some("unix:///x".into());
        view.tools.push(Tool::new("git", None));
        view.tools.push(Tool::new("node", Some("v22".into())));
        let json = serde_json::to_value(&view).unwrap();
        for field in [
            "ok",
            "address",
            "address_from",
            "token_from",
            "provider",
            "driver",
            "driver_version",
            "template",
            "connection",
        ] {
            assert!(json.get(field).is_some(), "{field}");
        }
        assert_eq!(
            json["tools"],
            json!([{"name": "git", "found": false, "version": null}, {"name": "node", "found": true, "version": "v22"}])
        );
    }

    #[test]
    fn the_page_tells_checks_isolation_and_tools() {
        let mut view = View::default();
        view.look_at(&sandbox(false));
        view.tools.push(Tool::new("git", None));
        let mut out = Vec::new();
        view.text(&mut Text::plain(&mut out)).unwrap();
        let page = String::from_utf8(out).unwrap();
        for part in [
            "reached by  tunnel: asked for",
            "ok  isolation  everything",
            "landlock   no        the kernel has none",
            "git   no",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
    }
}
