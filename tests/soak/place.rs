//! What must be true of a sandbox, by what was done to it so far. Nothing here comes from the server, so that what is done
//! next follows from the seed alone.

use std::collections::BTreeMap;

use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};

use crate::{
    job::Job,
    plan::{Step, Wake},
};

/// A sandbox as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) template: &'static str,
    pub(crate) life: Life,
    /// By path in the workspace.
    pub(crate) files: BTreeMap<&'static str, Content>,
    pub(crate) label: Option<u32>,
    /// Commands that run until they are ended.
    pub(crate) running: Vec<Job>,
    /// Commands that have ended.
    pub(crate) past: Vec<Past>,
    /// Incarnations that have ended, also those of sandboxes that had the name before.
    pub(crate) ended: u32,
}

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Absent,
    Ready,
    Suspended,
}

/// A command that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) job: Job,
    pub(crate) ended: Ended,
}

/// What ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    ByItself,
    Killed,
    /// The sandbox was suspended.
    Stopped,
}

/// What is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) seed: u64,
    pub(crate) length: usize,
}

// === impl Place ===

impl Place {
    pub(crate) fn new(name: String, template: &'static str) -> Self {
        Self {
            name,
            template,
            life: Life::Absent,
            files: BTreeMap::new(),
            label: None,
            running: Vec::new(),
            past: Vec::new(),
            ended: 0,
        }
    }

    /// All commands that were ever started in it, with what ended them.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (&Job, Option<Ended>)> {
        let past = self.past.iter().map(|past| (&past.job, Some(past.ended)));
        past.chain(self.running.iter().map(|job| (job, None)))
    }

    /// Takes what was done to it as done.
    pub(crate) fn take(&mut self, step: &Step) {
        match step {
            Step::Create => self.life = Life::Ready,
            Step::Run(job) | Step::Stream(job) => self.past(job.clone(), Ended::ByItself),
            Step::Start { job, .. } => self.running.push(job.clone()),
            Step::Kill(index) => {
                let job = self.running.remove(*index);
                self.past(job, Ended::Killed);
            }
            Step::Upload { path, content } => drop(self.files.insert(path, *content)),
            Step::Remove(path) => drop(self.files.remove(path)),
            Step::Label(label) => self.label = Some(*label),
            Step::Suspend { .. } => {
                self.life = Life::Suspended;
                self.ended += 1;
                for job in std::mem::take(&mut self.running) {
                    self.past(job, Ended::Stopped);
                }
            }
            Step::Resume(wake) => {
                self.life = Life::Ready;
                if let Wake::Run(job) = wake {
                    self.past(job.clone(), Ended::ByItself);
                }
            }
            Step::Delete { .. } => {
                let ended = self.ended + u32::from(self.life == Life::Ready);
                *self = Self {
                    ended,
                    ..Self::new(std::mem::take(&mut self.name), self.template)
                };
            }
            Step::Find
            | Step::Miss
            | Step::Recall(_)
            | Step::ReadBack(_)
            | Step::SuspendAgain
            | Step::Refused(_)
            | Step::Stale(_)
            | Step::Audit => {}
        }
    }

    fn past(&mut self, job: Job, ended: Ended) {
        self.past.push(Past { job, ended });
    }
}

// === impl Content ===

impl Content {
    pub(crate) fn bytes(self) -> Vec<u8> {
        // A prime number, so that pieces that are swapped are noticed.
        let mut block = vec![0; 997];
        StdRng::seed_from_u64(self.seed).fill_bytes(&mut block);
        let mut bytes = block.repeat(self.length / block.len() + 1);
        bytes.truncate(self.length);
        bytes
    }
}
