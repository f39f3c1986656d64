//! Which events a follower was given, so that each comes once across any number of streams.

use std::collections::VecDeque;

use bytes::Bytes;

use super::event::{Event, OutputStream};
use crate::v1::{self, exec_event::Event as Wire};

/// What was given so far. Its offsets are where the next stream begins.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    seen: v1::ExecOffsets,
    started: Option<v1::ExecStarted>,
    exited: bool,
    ended: bool,
}

// === impl Tracker ===

impl Tracker {
    /// Begins behind the bytes that were seen before.
    pub(crate) fn new(seen: v1::ExecOffsets) -> Self {
        Self {
            seen,
            ..Self::default()
        }
    }

    /// Where the next stream begins.
    pub(crate) fn seen(&self) -> v1::ExecOffsets {
        self.seen
    }

    /// What the first `started` said. With it the exec is known to run, and is only attached to.
    pub(crate) fn started(&self) -> Option<&v1::ExecStarted> {
        self.started.as_ref()
    }

    /// Nothing follows.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Takes an event of the current stream and gives what is new in it.
    pub(crate) fn take(&mut self, event: Wire, new: &mut VecDeque<Event>) {
        match event {
            Wire::Started(started) if self.started.is_none() => {
                self.started = Some(started.clone());
                new.push_back(Event::Started(started));
            }
            Wire::StartFailed(failure) => {
                self.ended = true;
                new.push_back(Event::StartFailed(failure));
            }
            Wire::Output(output) => {
                if let Some(stream) = OutputStream::from_wire(output.stream) {
                    self.output(stream, output.offset, output.data, new);
                }
            }
            Wire::Gap(gap) => {
                if let Some(stream) = OutputStream::from_wire(gap.stream) {
                    self.skip_to(stream, gap.to, new);
                }
            }
            Wire::Exited(exit) if !self.exited => {
                self.exited = true;
                new.push_back(Event::Exited(exit));
            }
            Wire::Ended(ended) => {
                let total = ended.total.unwrap_or(self.seen);
                self.skip_to(OutputStream::Stdout, total.stdout, new);
                self.skip_to(OutputStream::Stderr, total.stderr, new);
                self.ended = true;
                new.push_back(Event::Ended(total));
            }
            Wire::Started(_) | Wire::Exited(_) | Wire::Heartbeat(_) | Wire::CaughtUp(_) => {}
        }
    }

    fn output(&mut self, stream: OutputStream, offset: u64, mut data: Bytes, new: &mut VecDeque<Event>) {
        // A stream that jumps without saying so has lost bytes all the same, and that is never silent.
        self.skip_to(stream, offset, new);
        let repeated = self.at(stream).saturating_sub(offset);
        match usize::try_from(repeated) {
            Ok(repeated) if repeated < data.len() => drop(data.split_to(repeated)),
            _ => return,
        }
        let offset = *self.at(stream);
        *self.at(stream) += data.len() as u64;
        new.push_back(Event::Output { stream, offset, data });
    }

    fn skip_to(&mut self, stream: OutputStream, to: u64, new: &mut VecDeque<Event>) {
        let seen = self.at(stream);
        if to > *seen {
            let from = std::mem::replace(seen, to);
            new.push_back(Event::Gap { stream, from, to });
        }
    }

    fn at(&mut self, stream: OutputStream) -> &mut u64 {
        match stream {
            OutputStream::Stdout => &mut self.seen.stdout,
            OutputStream::Stderr => &mut self.seen.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputStream::{Stderr, Stdout};

    fn output(stream: OutputStream, offset: u64, data: &'static str) -> Wire {
        let wire = match stream {
            Stdout => v1::OutputStream::Stdout,
            Stderr => v1::OutputStream::Stderr,
        };
        Wire::Output(v1::ExecOutput {
            stream: wire.into(),
            offset,
            data: Bytes::from_static(data.as_bytes()),
        })
    }

    fn told(tracker: &mut Tracker, event: Wire) -> Vec<String> {
        let mut new = VecDeque::new();
        tracker.take(event, &mut new);
        new.iter()
            .map(|event| match event {
                Event::Output { stream, offset, data } => {
                    format!("{stream:?} {offset} {}", String::from_utf8_lossy(data))
                }
                Event::Gap { stream, from, to } => format!("{stream:?} gap {from} {to}"),
                other => format!("{other:?}")
                    .split(['(', ' '])
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            })
            .collect()
    }

    #[test]
    fn bytes_come_once_whatever_is_repeated() {
        let mut tracker = Tracker::default();
        for (event, expected) in [
            (output(Stdout, 0, "abc"), vec!["Stdout 0 abc"]),
            (output(Stdout, 0, "abc"), vec![]),
            (output(Stdout, 1, "bcde"), vec!["Stdout 3 de"]),
            (output(Stderr, 0, "x"), vec!["Stderr 0 x"]),
            (output(Stdout, 5, ""), vec![]),
            (output(Stdout, 5, "f"), vec!["Stdout 5 f"]),
        ] {
            assert_eq!(told(&mut tracker, event), expected);
        }
        assert_eq!(tracker.seen(), v1::ExecOffsets { stdout: 6, stderr: 1 });
    }

    #[test]
    fn what_is_missing_is_told() {
        let gap = |from, to| {
            Wire::Gap(v1::ExecGap {
                stream: v1::OutputStream::Stdout.into(),
                from,
                to,
            })
        };
        let mut tracker = Tracker::new(v1::ExecOffsets { stdout: 10, stderr: 0 });
        for (event, expected) in [
            (gap(5, 10), vec![]),
            (gap(8, 12), vec!["Stdout gap 10 12"]),
            (output(Stdout, 12, "a"), vec!["Stdout 12 a"]),
            (output(Stdout, 20, "b"), vec!["Stdout gap 13 20", "Stdout 20 b"]),
            (
                Wire::Ended(v1::ExecEnded {
                    total: Some(v1::ExecOffsets { stdout: 21, stderr: 3 }),
                }),
                vec!["Stderr gap 0 3", "Ended"],
            ),
        ] {
            assert_eq!(told(&mut tracker, event), expected);
        }
        assert!(tracker.ended());
    }

    #[test]
    fn life_is_told_once() {
        let mut tracker = Tracker::default();
        let started = Wire::Started(v1::ExecStarted {
            incarnation: "i".into(),
            ..Default::default()
        });
        assert_eq!(told(&mut tracker, started.clone()), ["Started"]);
        assert_eq!(told(&mut tracker, started), [""; 0]);
        assert_eq!(told(&mut tracker, Wire::Exited(v1::ExecExit::default())), ["Exited"]);
        assert_eq!(told(&mut tracker, Wire::Exited(v1::ExecExit::default())), [""; 0]);
        assert_eq!(told(&mut tracker, Wire::Heartbeat(v1::Heartbeat {})), [""; 0]);
        assert_eq!(tracker.started().map(|started| started.incarnation.as_str()), Some("i"));
        assert!(!tracker.ended());
    }
}
