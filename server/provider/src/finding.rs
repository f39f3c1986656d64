//! What an examination of a set-up finds, for whoever runs the server.

use std::fmt;

/// How good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but not all of it, or not for everybody.
    Warning,
    /// It does not work.
    Problem,
}

/// One thing that was looked at. Written as one line: `problem  WHAT: DETAIL; WHAT TO DO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How good it is.
    pub verdict: Verdict,
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub detail: String,
    /// What to do. Empty: nothing.
    pub advice: String,
}

// === impl Finding ===

impl Finding {
    /// As it should be.
    pub fn ok(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, what, detail, "")
    }

    /// Not all of it works.
    pub fn warning(what: impl Into<String>, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, what, detail, advice)
    }

    /// It does not work.
    pub fn problem(what: impl Into<String>, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Verdict::Problem, what, detail, advice)
    }

    /// Of whatever verdict.
    pub fn new(
        verdict: Verdict,
        what: impl Into<String>,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            verdict,
            what: what.into(),
            detail: detail.into(),
            advice: advice.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        };
        // What others say may have lines of its own.
        let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(f, "{word:<8} {}: {}", self.what, line(&self.detail))?;
        match self.advice.as_str() {
            "" => Ok(()),
            advice => write!(f, "; {}", line(advice)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line() {
        assert_eq!(
            Finding::ok("cluster", "Kubernetes v1").to_string(),
            "ok       cluster: Kubernetes v1"
        );
        let problem = Finding::problem("keys", "none\n  there", "make one");
        assert_eq!(problem.to_string(), "problem  keys: none there; make one");
    }
}
