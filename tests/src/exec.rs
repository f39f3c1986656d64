//! Execs in a few words: start, look, follow.

use std::time::{Duration, Instant};

use rand::Rng as _;
use sandgate_proto::runtime::v1::{
    ExecInfo, ExecSpec, FollowExecRequest, FollowExecResponse, FollowFrom, FollowTarget, GetExecRequest, StopRequest,
    exec_event::Event, follow_from::Place,
};
use tonic::Streaming;

use crate::{Client, next_event, start_request};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts an exec, and insists that this call started it.
pub async fn start(client: &mut Client, id: &str, spec: ExecSpec) -> ExecInfo {
    let answer = client.start_exec(start_request(id, spec)).await.unwrap().into_inner();
    assert!(answer.started, "{id} was there before");
    answer.exec.unwrap()
}

/// An exec as it is now.
pub async fn get(client: &mut Client, id: &str) -> ExecInfo {
    let request = GetExecRequest { exec_id: id.to_owned() };
    client.get_exec(request).await.unwrap().into_inner().exec.unwrap()
}

/// Waits until an exec is as wanted.
pub async fn until(client: &mut Client, id: &str, wanted: impl Fn(&ExecInfo) -> bool) -> ExecInfo {
    let begun = Instant::now();
    loop {
        let exec = get(client, id).await;
        if wanted(&exec) {
            return exec;
        }
        assert!(begun.elapsed() < PATIENCE, "it never became so: {exec:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asks the runtime to end, and to give what runs that many seconds.
pub async fn stop_with_grace(client: &mut Client, seconds: i64) {
    let grace = Some(prost_types::Duration { seconds, nanos: 0 });
    let request = StopRequest {
        grace,
        ..Default::default()
    };
    client.stop(request).await.unwrap();
}

/// One exec to follow from a place.
#[must_use]
pub fn target(id: &str, place: Place) -> FollowTarget {
    FollowTarget {
        exec_id: id.to_owned(),
        from: Some(FollowFrom { place: Some(place) }),
    }
}

/// Follows an exec from a place, and insists that the first event is its start.
pub async fn follow(client: &mut Client, id: &str, place: Place) -> Streaming<FollowExecResponse> {
    let request = FollowExecRequest {
        targets: vec![target(id, place)],
        ..Default::default()
    };
    let mut events = client.follow_exec(request).await.unwrap().into_inner();
    let first = next_event(&mut events).await.expect("a start");
    assert!(matches!(first.event, Some(Event::Started(_))), "{first:?}");
    events
}

/// Bytes that nobody guesses.
#[must_use]
pub fn random_bytes(rng: &mut rand::rngs::StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes[..]);
    bytes
}
