//! What goes wrong while a sandbox is made, and what is told of it.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::{control::Failure, status::Mechanism};

/// What the half of the set-up that is inside tells the half that is outside.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// A mechanism is not in force.
    Lacks(Mechanism),
    /// A step is done.
    Step(String),
    /// It can't be done.
    Failed(Failure),
}

/// Says which step an error belongs to.
pub(crate) trait During<T> {
    /// The step was `what`.
    fn during(self, what: impl fmt::Display) -> Result<T, Failure>;
    /// The step was `what`, without which there is no such mechanism.
    fn needed_for(self, mechanism: &str, what: impl fmt::Display) -> Result<T, Failure>;
}

// === impl During ===

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            mechanism: None,
            message: format!("{what}: {}", error.into()),
        })
    }

    fn needed_for(self, mechanism: &str, what: impl fmt::Display) -> Result<T, Failure> {
        self.during(what).map_err(|failure| Failure {
            mechanism: Some(mechanism.to_owned()),
            ..failure
        })
    }
}

// === impl Mechanism ===

impl Mechanism {
    /// One that is not in force.
    pub(crate) fn lacking(mechanism: &str, why_not: impl fmt::Display) -> Self {
        Self {
            mechanism: mechanism.to_owned(),
            in_force: false,
            why_not: why_not.to_string(),
        }
    }
}

/// All mechanisms, of which those in `lacking` are not in force.
pub(crate) fn all_but(lacking: &[Mechanism]) -> Vec<Mechanism> {
    let in_force = |name: &str| Mechanism {
        mechanism: name.to_owned(),
        in_force: true,
        why_not: String::new(),
    };
    let of = |name: &&str| {
        lacking
            .iter()
            .find(|lack| lack.mechanism == *name)
            .cloned()
            .unwrap_or_else(|| in_force(name))
    };
    crate::status::mechanism::ALL.iter().map(of).collect()
}

/// Refuses to go on without what the template requires.
pub(crate) fn check_required(required: &[String], lacking: &[Mechanism]) -> Result<(), Failure> {
    match lacking.iter().find(|lack| required.contains(&lack.mechanism)) {
        None => Ok(()),
        Some(lack) => Err(Failure {
            mechanism: Some(lack.mechanism.clone()),
            message: format!(
                "the template requires {}, which is not to be had: {}",
                lack.mechanism, lack.why_not
            ),
        }),
    }
}
