//! The shape of the JSON is what scripts rely on: a change here breaks them.

use serde_json::{Value, json};

use super::*;

fn sample() -> v1::Sandbox {
    let time = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let span = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    v1::Sandbox {
        name: "demo".into(),
        uid: "u1".into(),
        incarnation: "i1".into(),
        template: "default".into(),
        state: v1::SandboxState::Ready.into(),
        created_at: time(1_700_000_000),
        deadline: time(4_102_444_800),
        idle_limit: span(600, 0),
        labels: [("team".to_owned(), "red".to_owned())].into(),
        etag: "e1".into(),
        capabilities: vec![v1::Capability {
            name: "exec.resume".into(),
            level: v1::CapabilityLevel::Full.into(),
            note: String::new(),
        }],
        isolation: vec![v1::IsolationMechanism {
            mechanism: "landlock".into(),
            in_force: false,
            why_not: "the kernel has none".into(),
            required: false,
        }],
        connection: Some(v1::Connection {
            mode: v1::ConnectionMode::Local.into(),
            why: String::new(),
        }),
        start: Some(v1::StartReport {
            kind: v1::StartKind::Cold.into(),
            cold_reason: v1::ColdReason::NoPool.into(),
            total: span(0, 20_500_000),
            steps: vec![v1::StartStep {
                name: "root".into(),
                duration: span(0, 5_000_000),
            }],
            ..v1::StartReport::default()
        }),
        last_end: Some(v1::IncarnationEnd {
            incarnation: "i0".into(),
            cause: v1::EndCause::OutOfMemory.into(),
            message: "killed".into(),
            ended_at: time(1_700_000_100),
        }),
        usage: Some(v1::Usage {
            memory_bytes: Some(1 << 20),
            memory_limit_bytes: Some(2 << 30),
            cpu_time: span(1, 500_000_000),
            ..v1::Usage::default()
        }),
        provider: "local".into(),
        driver: "sandgate-runtime".into(),
        driver_version: "0.1.0".into(),
        ..v1::Sandbox::default()
    }
}

#[test]
fn the_json_of_a_sandbox_is_stable() {
    let json = serde_json::to_value(SandboxView::from(sample())).unwrap();
    assert_eq!(
        json,
        json!({
            "name": "demo", "uid": "u1", "incarnation": "i1", "template": "default",
            "state": "ready", "state_message": "",
            "created_at": "2023-11-14T22:13:20Z", "deadline": "2100-01-01T00:00:00Z", "idle_limit_seconds": 600.0,
            "labels": {"team": "red"}, "etag": "e1",
            "provider": "local", "driver": "sandgate-runtime", "driver_version": "0.1.0",
            "capabilities": [{"name": "exec.resume", "level": "full", "note": ""}],
            "isolation": [
                {"mechanism": "landlock", "in_force": false, "required": false, "why_not": "the kernel has none"},
            ],
            "enforcement": [],
            "connection": {"mode": "local", "why": ""},
            "start": {
                "kind": "cold", "cold_reason": "no_pool", "message": "", "total_seconds": 0.0205,
                "steps": [{"name": "root", "seconds": 0.005}],
            },
            "last_end": {
                "incarnation": "i0", "cause": "out_of_memory", "message": "killed",
                "ended_at": "2023-11-14T22:15:00Z",
            },
            "usage": {
                "measured_at": null, "cpu_seconds": 1.5, "cpu_limit_millis": null,
                "memory_bytes": 1_048_576, "memory_limit_bytes": 2_147_483_648_u64,
                "disk_bytes": null, "disk_limit_bytes": null, "processes": null, "processes_limit": null,
            },
        })
    );
}

#[test]
fn every_field_is_there_even_when_it_is_empty() {
    let full = serde_json::to_value(SandboxView::from(sample())).unwrap();
    let empty = serde_json::to_value(SandboxView::from(v1::Sandbox::default())).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&full), keys(&empty));
    assert_eq!(empty["state"], "unspecified");
    assert_eq!(empty["deadline"], Value::Null);
}

#[test]
fn the_page_tells_usage_isolation_and_the_last_end() {
    let mut out = Vec::new();
    SandboxView::from(sample()).text(&mut Text::plain(&mut out)).unwrap();
    let page = String::from_utf8(out).unwrap();
    for part in [
        "deadline     2100-01-01T00:00:00Z (in ",
        "idle limit   10m",
        "labels       team=red",
        "start        cold, 20.5 ms (root 5.0 ms)",
        "last end     out_of_memory: killed (at 2023-11-14T22:15:00Z)",
        "memory       1.0 MiB of 2.0 GiB",
        "disk         not measured",
        "ISOLATION  IN FORCE  WHY NOT",
        "landlock   no        the kernel has none",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
}

#[test]
fn the_list_has_a_head_and_a_row_for_each() {
    let list = ListView {
        sandboxes: vec![sample().into()],
    };
    let mut out = Vec::new();
    list.text(&mut Text::plain(&mut out)).unwrap();
    let lines = String::from_utf8(out).unwrap();
    let mut lines = lines.lines();
    assert!(lines.next().unwrap().starts_with("NAME  STATE  TEMPLATE"));
    assert!(lines.next().unwrap().starts_with("demo  ready  default"));
    assert!(lines.next().is_none());
}
