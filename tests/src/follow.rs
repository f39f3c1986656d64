//! Following an exec to its end.

use sandgate_proto::runtime::v1::{
    ExecEnded, ExecEvent, ExecExit, ExecGap, ExecOffsets, FollowExecRequest, FollowFrom, FollowTarget, OutputStream,
    StartFailure, exec_event::Event, follow_from::Place,
};

use crate::runtime::Client;

/// All that a follower was told, checked for order as it came.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes of stdout from the first offset followed.
    pub stdout: Vec<u8>,
    /// Bytes of stderr, likewise.
    pub stderr: Vec<u8>,
    /// The interleaving: stream and length of each piece.
    pub order: Vec<(OutputStream, usize)>,
    /// What was missing.
    pub gaps: Vec<ExecGap>,
    /// The exit.
    pub exit: Option<ExecExit>,
    /// The end.
    pub ended: Option<ExecEnded>,
    /// It could not be started.
    pub start_failure: Option<StartFailure>,
    /// Bytes of each stream that had come when the exit came.
    pub at_exit: Option<ExecOffsets>,
    /// Offsets to go on from.
    pub next: ExecOffsets,
}

// === impl Output ===

impl Output {
    /// Begins at these offsets.
    #[must_use]
    pub fn at(next: ExecOffsets) -> Self {
        Self {
            next,
            ..Default::default()
        }
    }

    /// Takes an event. Fails on a byte that is doubled or left out without a gap.
    pub fn take(&mut self, event: ExecEvent) {
        match event.event.expect("an event says what happened") {
            Event::Output(output) => {
                let stream = output.stream();
                let (next, bytes) = match stream {
                    OutputStream::Stdout => (&mut self.next.stdout, &mut self.stdout),
                    OutputStream::Stderr => (&mut self.next.stderr, &mut self.stderr),
                    OutputStream::Unspecified => panic!("output without a stream"),
                };
                assert_eq!(output.offset, *next, "{stream:?} is out of order");
                assert!(!output.data.is_empty() && output.data.len() <= 64 << 10);
                *next += output.data.len() as u64;
                bytes.extend_from_slice(&output.data);
                self.order.push((stream, output.data.len()));
            }
            Event::Gap(gap) => {
                let next = match gap.stream() {
                    OutputStream::Stdout => &mut self.next.stdout,
                    OutputStream::Stderr => &mut self.next.stderr,
                    OutputStream::Unspecified => panic!("a gap without a stream"),
                };
                assert_eq!(gap.from, *next, "a gap begins where the last byte ended");
                assert!(gap.to > gap.from);
                *next = gap.to;
                self.gaps.push(gap);
            }
            Event::Exited(exit) => {
                self.at_exit = Some(self.next);
                self.exit = Some(exit);
            }
            Event::Ended(ended) => self.ended = Some(ended),
            Event::StartFailed(failure) => self.start_failure = Some(failure),
            Event::Started(_) | Event::Heartbeat(_) | Event::CaughtUp(_) => {}
        }
    }
}

/// Follows an exec from the offsets to its end.
pub async fn collect(client: &mut Client, exec_id: &str, from: ExecOffsets) -> Output {
    let from = FollowFrom {
        place: Some(Place::Offsets(from)),
    };
    let next = match from.place {
        Some(Place::Offsets(next)) => next,
        _ => ExecOffsets::default(),
    };
    let targets = vec![FollowTarget {
        exec_id: exec_id.to_owned(),
        from: Some(from),
    }];
    let request = FollowExecRequest {
        targets,
        ..Default::default()
    };
    let mut events = client.follow_exec(request).await.unwrap().into_inner();
    let mut output = Output::at(next);
    while let Some(event) = next_event(&mut events).await {
        output.take(event);
    }
    output
}

/// The next event of a followed exec.
pub async fn next_event(
    events: &mut tonic::Streaming<sandgate_proto::runtime::v1::FollowExecResponse>,
) -> Option<ExecEvent> {
    let message = events.message().await.expect("the stream goes on");
    message.map(|message| message.event.expect("an event"))
}
