//! Who may call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandgate_auth::{Claims, Scope};
use sandgate_proto::{
    runtime::v1::{FollowExecRequest, FollowStart, HelloRequest, ListExecsRequest, follow_from::Place},
    v1::ErrorReason,
};
use sandgate_tests::{Client, Output, in_time, new_id, next_event, reason, run_request, shell, start_request, target};
use tonic::Code;

use crate::around::{Keys, Networked, with_token};

const HELLO: HelloRequest = HelloRequest { generation: 1 };

async fn both_ways(net: &Networked) -> [Client; 2] {
    [net.tcp().await, net.websocket().await]
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test]
async fn a_good_token_opens_everything() {
    let net = Networked::start(&[]).await;
    for mut client in both_ways(&net).await {
        let hello = client.hello(net.good(HELLO)).await.unwrap().into_inner();
        assert_eq!(hello.incarnation, net.incarnation);
        assert!(!hello.capabilities.iter().any(|name| name == "api.python"));
        let request = run_request(&new_id("run"), shell("echo over the network"));
        let answer = client.run(net.good(request)).await.unwrap().into_inner();
        assert_eq!(&answer.stdout.unwrap().head[..], b"over the network\n");
    }
}

#[tokio::test]
async fn nothing_else_opens_anything() {
    let net = Networked::start(&[]).await;
    let signer = net.keys.signer();
    let changed = |change: fn(&mut Claims)| {
        let mut claims = net.claims();
        change(&mut claims);
        signer.token(&claims)
    };
    let good = signer.token(&net.claims());
    let (body, _) = good.rsplit_once('.').unwrap();
    let unauthenticated = [
        ("garbage", "garbage".to_owned()),
        ("empty", String::new()),
        ("unsigned", format!("{body}.")),
        ("tampered", good.replacen("ey", "fy", 1)),
        ("other keys", Keys::new().signer().token(&net.claims())),
        (
            "stolen",
            changed(|claims| claims.audience = "cluster.test/default/pod-2".into()),
        ),
        (
            "expired",
            changed(|claims| (claims.issued_at, claims.expires_at) = (now() - 61, now() - 1)),
        ),
        ("too long", changed(|claims| claims.expires_at = claims.issued_at + 61)),
        (
            "future",
            changed(|claims| (claims.issued_at, claims.expires_at) = (now() + 30, now() + 60)),
        ),
        ("no pod", changed(|claims| claims.pod_uid = None)),
        ("no incarnation", changed(|claims| claims.incarnation = None)),
        ("hello only", changed(|claims| claims.scope = Scope::Hello)),
    ];
    let restarted = [
        ("other pod", changed(|claims| claims.pod_uid = Some("another".into()))),
        (
            "other start",
            changed(|claims| claims.incarnation = Some("another".into())),
        ),
    ];
    for mut client in both_ways(&net).await {
        let mut refused = async |what: &str, request| {
            let status = client.run(request).await.expect_err(what);
            (status.code(), reason(&status))
        };
        let run = || run_request(&new_id("never"), shell("true"));
        let answer = refused("no token", tonic::Request::new(run())).await;
        assert_eq!(answer, (Code::Unauthenticated, ErrorReason::Unauthenticated));
        let mut twice = with_token(run(), &good);
        twice
            .metadata_mut()
            .append("authorization", format!("Bearer {good}").parse().unwrap());
        assert_eq!(refused("two tokens", twice).await.0, Code::Unauthenticated);
        for (what, token) in &unauthenticated {
            let answer = refused(what, with_token(run(), token)).await;
            assert_eq!(answer, (Code::Unauthenticated, ErrorReason::Unauthenticated), "{what}");
        }
        for (what, token) in &restarted {
            let answer = refused(what, with_token(run(), token)).await;
            assert_eq!(answer, (Code::Aborted, ErrorReason::SandboxRestarted), "{what}");
        }
        let hello = changed(|claims| (claims.scope, claims.incarnation) = (Scope::Hello, None));
        client.hello(with_token(HELLO, &hello)).await.unwrap();
    }
    // Nothing was run, and the Unix socket asks for nothing.
    let mut client = net.runtime.connect().await;
    let execs = client
        .list_execs(ListExecsRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(execs.execs, []);
}

#[tokio::test]
async fn a_stream_outlives_its_token() {
    let net = Networked::start(&[]).await;
    let mut client = net.tcp().await;
    let id = new_id("long");
    let spec = shell("for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 0.5; done");
    client.start_exec(net.good(start_request(&id, spec))).await.unwrap();
    let signer = net.keys.signer();
    let short = Claims {
        expires_at: now() + 2,
        ..net.claims()
    };
    let token = signer.token(&short);
    let request = FollowExecRequest {
        targets: vec![target(&id, Place::Start(FollowStart {}))],
        ..Default::default()
    };
    let mut events = client
        .follow_exec(with_token(request, &token))
        .await
        .unwrap()
        .into_inner();
    let mut output = Output::default();
    while let Some(event) = in_time(next_event(&mut events)).await {
        output.take(event);
    }
    assert_eq!(output.stdout, b"1\n2\n3\n4\n5\n6\n7\n8\n");
    let late = client.hello(with_token(HELLO, &token)).await.unwrap_err();
    assert_eq!(late.code(), Code::Unauthenticated, "{late}");
}

#[tokio::test]
async fn a_new_key_needs_no_restart() {
    let net = Networked::start(&[]).await;
    let mut client = net.tcp().await;
    client.hello(net.good(HELLO)).await.unwrap();
    net.keys.add("second");
    let status = client.hello(net.good(HELLO)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    net.keys.publish();
    let known = async {
        while client.hello(net.good(HELLO)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    in_time(known).await;
}
