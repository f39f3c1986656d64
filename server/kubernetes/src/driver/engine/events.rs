//! An exec's life as a stream of events, from wherever a caller left off.

use std::sync::Arc;

use sandgate_output::{FollowFrom, Follower, Item, Mark, Offsets, Stream};
use sandgate_proto::runtime::v1::{
    self as proto, ExecCaughtUp, ExecEnded, ExecEvent, ExecGap, ExecOutput, ExecStarted, OutputStream,
    exec_event::Event, follow_from::Place,
};

use super::exec::{Exec, Phase, offsets};

/// The events of one exec for one follower, which has its own place in the log.
pub(crate) struct Events {
    exec: Arc<Exec>,
    follower: Follower,
    sequence: u64,
    stage: Stage,
}

enum Stage {
    Begin,
    Log,
    Done,
}

// === impl Events ===

impl Events {
    /// Follows from a place. With `wait`, goes on until the output ends; without, until there is no more for now.
    pub(crate) fn new(exec: Arc<Exec>, from: Option<&proto::FollowFrom>, wait: bool) -> Self {
        let from = match from.and_then(|from| from.place.as_ref()) {
            None | Some(Place::Start(_)) => FollowFrom::Start,
            Some(Place::End(_)) => FollowFrom::End,
            Some(Place::Offsets(at)) => FollowFrom::Offsets(Offsets {
                stdout: at.stdout,
                stderr: at.stderr,
            }),
        };
        let follower = exec.log.follow(from, wait);
        Self {
            exec,
            follower,
            sequence: 0,
            stage: Stage::Begin,
        }
    }

    /// The next event; `None` at the end. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<ExecEvent> {
        let event = match self.stage {
            Stage::Begin => self.begin().await,
            Stage::Log => self.next_of_log().await,
            Stage::Done => return None,
        };
        Some(ExecEvent {
            exec_id: self.exec.id.clone(),
            sequence: self.sequence,
            event: Some(event),
        })
    }

    async fn begin(&mut self) -> Event {
        let _ = self.exec.settled().await;
        let status = self.exec.status.borrow().clone();
        if let Phase::StartFailed(failure) = status.phase {
            self.stage = Stage::Done;
            return Event::StartFailed(failure);
        }
        self.stage = Stage::Log;
        Event::Started(ExecStarted {
            pid: status.group,
            started_at: Some(self.exec.started_at.into()),
            incarnation: self.exec.incarnation.clone(),
        })
    }

    async fn next_of_log(&mut self) -> Event {
        match self.follower.next().await {
            Some(Item::Data {
                sequence,
                stream,
                offset,
                bytes,
            }) => {
                self.sequence = sequence;
                Event::Output(ExecOutput {
                    stream: name(stream).into(),
                    offset,
                    data: bytes,
                })
            }
            Some(Item::Gap { stream, from, to }) => Event::Gap(ExecGap {
                stream: name(stream).into(),
                from,
                to,
            }),
            Some(Item::Mark(Mark::Exited)) => self.exit(),
            Some(Item::Mark(Mark::Ended)) => {
                self.stage = Stage::Done;
                self.ended()
            }
            None => {
                self.stage = Stage::Done;
                Event::CaughtUp(ExecCaughtUp {
                    offsets: Some(offsets(self.follower.position())),
                })
            }
        }
    }

    fn exit(&self) -> Event {
        // The status is set before the mark, so that it is there when the mark is seen.
        match &self.exec.status.borrow().phase {
            Phase::Exited(exit) => Event::Exited(**exit),
            _ => Event::Exited(proto::ExecExit::default()),
        }
    }

    fn ended(&self) -> Event {
        // One that turned out, at its end, not to have been started: see `Inside::tells_start`.
        if let Phase::StartFailed(failure) = &self.exec.status.borrow().phase {
            return Event::StartFailed(failure.clone());
        }
        Event::Ended(ExecEnded {
            total: Some(offsets(self.exec.log.written())),
        })
    }
}

fn name(stream: Stream) -> OutputStream {
    match stream {
        Stream::Stdout => OutputStream::Stdout,
        Stream::Stderr => OutputStream::Stderr,
    }
}
