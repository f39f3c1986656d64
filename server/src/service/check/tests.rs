//! Each rule of the contract, kept and broken.

use prost::bytes::Bytes;
use sandgate_proto::v1::{CreateRequest, create_request, sandbox_settings};

use super::*;

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

fn mask(paths: &[&str]) -> Option<FieldMask> {
    Some(FieldMask {
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
    })
}

fn field(refused: Result<impl std::fmt::Debug, Refusal>) -> String {
    let refusal = refused.unwrap_err();
    assert_eq!(refusal.reason, ErrorReason::InvalidArgument);
    refusal.field.unwrap()
}

fn var(name: &str, value: &[u8]) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: String::new(),
        value_raw: Bytes::copy_from_slice(value),
    }
}

fn volume(name: impl Into<String>, bytes: u64) -> Volume {
    Volume {
        name: name.into(),
        bytes,
        storage_class: String::new(),
    }
}

#[test]
fn an_empty_request_wants_a_sandbox_with_all_defaults() {
    let one = wanted(CreateRequest::default()).unwrap();
    let other = wanted(CreateRequest::default()).unwrap();
    assert!(one.unnamed && one.name != other.name);
    assert!(one.name.as_str().starts_with("sandbox-"), "{}", one.name);
    assert_eq!((one.end, one.idle_limit), (End::Default, None));
    assert_eq!(one.connection_mode, ConnectionMode::Unspecified);
}

#[test]
fn what_is_asked_for_is_wanted() {
    let wanted = wanted(CreateRequest {
        name: "box".into(),
        template: "t".into(),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        env: vec![var("A", b"=\xff")],
        end: Some(create_request::End::Ttl(seconds(5))),
        idle_limit: Some(seconds(0)),
        warm_pool: "p".into(),
        connection_mode: ConnectionMode::Tunnel.into(),
        volumes: vec![volume("v", 1)],
        no_wait: true,
        max_wait: None,
    })
    .unwrap();
    assert!(!wanted.unnamed);
    assert_eq!(wanted.name.as_str(), "box");
    assert_eq!(wanted.template, "t");
    assert_eq!(wanted.labels["a"], "b");
    assert_eq!(wanted.env.len(), 1);
    assert_eq!(wanted.end, End::After(Duration::from_secs(5)));
    assert_eq!(wanted.idle_limit, Some(Duration::ZERO));
    assert_eq!(wanted.warm_pool, "p");
    assert_eq!(wanted.connection_mode, ConnectionMode::Tunnel);
    assert_eq!(wanted.volumes.len(), 1);
}

#[test]
fn each_broken_rule_names_its_field() {
    let none = CreateRequest::default;
    let cases = [
        (
            "name",
            CreateRequest {
                name: "No".into(),
                ..none()
            },
        ),
        (
            "labels",
            CreateRequest {
                labels: [("k8s.io/x".into(), String::new())].into(),
                ..none()
            },
        ),
        (
            "ttl",
            CreateRequest {
                end: Some(create_request::End::Ttl(seconds(0))),
                ..none()
            },
        ),
        (
            "ttl",
            CreateRequest {
                end: Some(create_request::End::Ttl(seconds(-1))),
                ..none()
            },
        ),
        (
            "ttl",
            CreateRequest {
                end: Some(create_request::End::Ttl(seconds(i64::MAX))),
                ..none()
            },
        ),
        (
            "deadline",
            CreateRequest {
                end: Some(create_request::End::Deadline(at(1))),
                ..none()
            },
        ),
        (
            "deadline",
            CreateRequest {
                end: Some(create_request::End::Deadline(at(i64::MAX))),
                ..none()
            },
        ),
        (
            "idle_limit",
            CreateRequest {
                idle_limit: Some(seconds(-1)),
                ..none()
            },
        ),
        (
            "connection_mode",
            CreateRequest {
                connection_mode: 99,
                ..none()
            },
        ),
        (
            "volumes.bytes",
            CreateRequest {
                volumes: vec![volume("v", 0)],
                ..none()
            },
        ),
        (
            "volumes.name",
            CreateRequest {
                volumes: vec![volume("v", 1), volume("v", 1)],
                ..none()
            },
        ),
        (
            "volumes",
            CreateRequest {
                volumes: (0..17).map(|i| volume(i.to_string(), 1)).collect(),
                ..none()
            },
        ),
        (
            "env.name",
            CreateRequest {
                env: vec![var("", b"x")],
                ..none()
            },
        ),
        (
            "env.name",
            CreateRequest {
                env: vec![var("A=B", b"x")],
                ..none()
            },
        ),
        (
            "env.value",
            CreateRequest {
                env: vec![var("A", b"x\0")],
                ..none()
            },
        ),
    ];
    for (expected, request) in cases {
        let shown = format!("{request:?}");
        assert_eq!(field(wanted(request)), expected, "{shown}");
    }
}

#[test]
fn the_environment_may_be_256_kib_and_no_more() {
    let env = |bytes: usize| CreateRequest {
        env: vec![var("A", &vec![b'x'; bytes - 1])],
        ..CreateRequest::default()
    };
    assert!(wanted(env(256 << 10)).is_ok());
    assert_eq!(field(wanted(env((256 << 10) + 1))), "env");
}

#[test]
fn waits_and_graces_have_defaults_and_bounds() {
    assert_eq!(wait(false, None), Ok(DEFAULT_WAIT));
    assert_eq!(wait(true, Some(seconds(7))), Ok(Duration::ZERO));
    assert_eq!(wait(false, Some(seconds(3600))), Ok(MAX_WAIT));
    assert_eq!(field(wait(false, Some(seconds(3601)))), "max_wait");
    assert_eq!(field(wait(false, Some(seconds(-1)))), "max_wait");
    assert_eq!(grace(None), Ok(None));
    assert_eq!(suspend_grace(None), Ok(Duration::from_secs(5)));
    assert_eq!(suspend_grace(Some(seconds(0))), Ok(Duration::ZERO));
    assert_eq!(grace(Some(seconds(300))), Ok(Some(MAX_GRACE)));
    assert_eq!(field(grace(Some(seconds(301)))), "grace");
}

#[test]
fn a_mask_takes_what_it_names_and_nothing_else() {
    let settings = SandboxSettings {
        end: Some(sandbox_settings::End::Ttl(seconds(9))),
        idle_limit: Some(seconds(3)),
        labels: [("a".to_owned(), "b".to_owned())].into(),
    };
    let taken = change(mask(&["idle_limit"]), Some(settings.clone()), String::new()).unwrap();
    assert_eq!(taken.idle_limit, Some(Duration::from_secs(3)));
    assert!(taken.end.is_none() && taken.labels.is_none() && taken.etag.is_none());

    let taken = change(mask(&["ttl", "labels", "ttl"]), Some(settings), "e".into()).unwrap();
    assert_eq!(taken.end, Some(End::After(Duration::from_secs(9))));
    assert_eq!(taken.labels.unwrap()["a"], "b");
    assert_eq!((taken.idle_limit, taken.etag.as_deref()), (None, Some("e")));
}

#[test]
fn what_is_named_and_not_set_is_set_to_nothing() {
    let nothing = change(mask(&["deadline", "idle_limit", "labels"]), None, String::new()).unwrap();
    assert_eq!(nothing.end, Some(End::Never));
    assert_eq!(nothing.idle_limit, Some(Duration::ZERO));
    assert!(nothing.labels.unwrap().is_empty());
}

#[test]
fn a_wrong_mask_is_refused() {
    let ttl = Some(SandboxSettings {
        end: Some(sandbox_settings::End::Ttl(seconds(9))),
        ..Default::default()
    });
    let none = String::new;
    assert_eq!(field(change(None, ttl.clone(), none())), "update_mask");
    assert_eq!(field(change(mask(&[]), ttl.clone(), none())), "update_mask");
    assert_eq!(field(change(mask(&["end"]), ttl.clone(), none())), "update_mask");
    assert_eq!(field(change(mask(&["labels.a"]), ttl.clone(), none())), "update_mask");
    assert_eq!(
        field(change(mask(&["ttl", "deadline"]), ttl.clone(), none())),
        "update_mask"
    );
    assert_eq!(field(change(mask(&["deadline"]), ttl, none())), "update_mask");
    let past = Some(SandboxSettings {
        end: Some(sandbox_settings::End::Deadline(at(5))),
        ..Default::default()
    });
    assert_eq!(field(change(mask(&["deadline"]), past, none())), "settings.deadline");
}
