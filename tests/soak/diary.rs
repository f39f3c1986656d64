//! What was done and when, for whoever has to find out what went wrong.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Entries of each that are kept.
const KEPT: usize = 60;

/// The last things that each did.
#[derive(Debug)]
pub(crate) struct Diary {
    begun: Instant,
    entries: Mutex<BTreeMap<String, VecDeque<(Duration, String)>>>,
}

// === impl Diary ===

impl Diary {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            entries: Mutex::default(),
        }
    }

    pub(crate) fn note(&self, who: &str, what: &str) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let own = entries.entry(who.to_owned()).or_default();
        own.push_back((self.begun.elapsed(), format!("{who}: {what}")));
        if own.len() > KEPT {
            own.pop_front();
        }
    }

    /// Prints what there is of these, in the order in which it happened.
    pub(crate) fn tell(&self, of: &[&str]) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told: Vec<_> = of.iter().filter_map(|who| entries.get(*who)).flatten().collect();
        told.sort();
        for (when, what) in told {
            println!("{:9.3} {what}", when.as_secs_f64());
        }
    }
}
