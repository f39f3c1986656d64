//! What is measured.

pub(crate) mod commands;
pub(crate) mod files;
pub(crate) mod peers;
pub(crate) mod python;
pub(crate) mod sandboxes;
pub(crate) mod streams;

use sandgate_bench::measure::Estimate;
use sandgate_bench::report::{Figure, Goal, Report, Unit};

use crate::{floor::Floor, ours::Ours};

/// What all cases share.
pub(crate) struct Bench {
    pub(crate) report: Report,
    pub(crate) scale: Scale,
    pub(crate) ours: Ours,
    pub(crate) floor: Floor,
}

/// How much of it is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Just enough to see that everything works.
    smoke: bool,
}

/// A figure of one group, before it has a value.
pub(crate) struct Entry {
    group: &'static str,
    name: String,
    against: String,
    unit: Unit,
    goal: Option<Goal>,
}

// === impl Scale ===

impl Scale {
    pub(crate) fn new(smoke: bool) -> Self {
        Self { smoke }
    }

    pub(crate) fn is_smoke(self) -> bool {
        self.smoke
    }

    /// Rounds of something.
    pub(crate) fn rounds(self, whole: usize) -> usize {
        if self.smoke { 3 } else { whole }
    }

    /// Bytes of something, a multiple of a chunk.
    pub(crate) fn bytes(self, whole: usize) -> usize {
        if self.smoke { whole / 64 } else { whole }
    }

    /// A number of things to make.
    pub(crate) fn count(self, whole: usize) -> usize {
        if self.smoke { whole.div_ceil(50) } else { whole }
    }
}

// === impl Entry ===

impl Entry {
    pub(crate) fn cost(group: &'static str, name: impl Into<String>, against: impl Into<String>) -> Self {
        Self {
            group,
            name: name.into(),
            against: against.into(),
            unit: Unit::Cost,
            goal: None,
        }
    }

    pub(crate) fn speed(group: &'static str, name: impl Into<String>, against: impl Into<String>) -> Self {
        Self {
            unit: Unit::Speed,
            ..Self::cost(group, name, against)
        }
    }

    pub(crate) fn mebibytes(group: &'static str, name: impl Into<String>) -> Self {
        Self {
            unit: Unit::Mebibytes,
            ..Self::cost(group, name, "")
        }
    }

    pub(crate) fn at_most(mut self, goal: f64) -> Self {
        self.goal = Some(Goal::AtMost(goal));
        self
    }

    pub(crate) fn at_least(mut self, goal: f64) -> Self {
        self.goal = Some(Goal::AtLeast(goal));
        self
    }

    pub(crate) fn is(self, estimate: Estimate) -> Figure {
        let Self {
            group,
            name,
            against,
            unit,
            goal,
        } = self;
        Figure {
            group,
            name,
            against,
            unit,
            goal,
            estimate,
        }
    }
}
