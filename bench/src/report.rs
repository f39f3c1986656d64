//! What was measured, for people and for programs.

mod chart;

use std::{fmt::Write as _, fs, io, path::Path};

use serde::Serialize;

use crate::measure::Estimate;

/// All figures of a run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    figures: Vec<Figure>,
}

/// One comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The work that it belongs to: a heading on the page.
    pub group: &'static str,
    /// What was measured.
    pub name: String,
    /// What it was measured against.
    pub against: String,
    /// What the numbers are.
    pub unit: Unit,
    /// What we want it to be. `None`: it is only told.
    pub goal: Option<Goal>,
    /// What it is.
    pub estimate: Estimate,
}

/// What a figure's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Our cost as a multiple of the other's: less is better.
    Cost,
    /// Our speed as a multiple of the other's: more is better.
    Speed,
    /// Mebibytes.
    Mebibytes,
}

/// What we want.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

// === impl Report ===

impl Report {
    /// Takes a figure, and prints it.
    #[allow(clippy::print_stdout, reason = "this is the output of the program")]
    pub fn add(&mut self, figure: Figure) {
        if self.figures.last().is_none_or(|last| last.group != figure.group) {
            println!("\n{}", figure.group);
        }
        println!("  {}", figure.line());
        self.figures.push(figure);
    }

    /// Names of the figures whose goal is missed.
    #[must_use]
    pub fn missed(&self) -> Vec<String> {
        let missed = self.figures.iter().filter(|figure| figure.is_missed());
        missed
            .map(|figure| format!("{}: {}", figure.group, figure.line()))
            .collect()
    }

    /// Writes `NAME.json`, `NAME.md` and, in a directory NAME, a chart for each group.
    ///
    /// # Errors
    /// When a file can't be written.
    pub fn write(&self, dir: &Path, name: &str, preface: &str) -> io::Result<()> {
        let charts = dir.join(name);
        fs::create_dir_all(&charts)?;
        fs::write(charts.join("figures.json"), serde_json::to_string_pretty(self)? + "\n")?;
        let mut page = preface.to_owned();
        for group in self.figures.chunk_by(|one, next| one.group == next.group) {
            let Some(first) = group.first() else { continue };
            let chart = format!("{}.svg", file_name(first.group));
            fs::write(charts.join(&chart), chart::draw(group))?;
            let _ = write!(page, "\n## {}\n\n![{0}]({name}/{chart})\n\n", first.group);
            page += "| measured | against | is | of 95 in 100 | goal | |\n|---|---|---|---|---|---|\n";
            for figure in group {
                let _ = writeln!(page, "{}", figure.row());
            }
        }
        fs::write(dir.join(format!("{name}.md")), page)
    }
}

// === impl Figure ===

impl Figure {
    /// Whether the whole interval lies beyond the goal.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        match self.goal {
            Some(Goal::AtMost(most)) => self.estimate.low > most,
            Some(Goal::AtLeast(least)) => self.estimate.high < least,
            None => false,
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.goal, self.is_missed()) {
            (None, _) => "",
            (_, true) => "missed",
            (_, false) => "met",
        }
    }

    fn goal(&self) -> String {
        match self.goal {
            Some(Goal::AtMost(most)) => format!("≤ {}", self.unit.show(most)),
            Some(Goal::AtLeast(least)) => format!("≥ {}", self.unit.show(least)),
            None => String::new(),
        }
    }

    fn line(&self) -> String {
        let Self {
            name,
            against,
            unit,
            estimate,
            ..
        } = self;
        let against = if against.is_empty() {
            String::new()
        } else {
            format!(" / {against}")
        };
        let goal = match self.goal {
            Some(_) => format!("; goal {}: {}", self.goal(), self.verdict()),
            None => String::new(),
        };
        format!(
            "{name}{against}: {} [{} to {}]{goal}",
            unit.show(estimate.value),
            unit.show(estimate.low),
            unit.show(estimate.high),
        )
    }

    fn row(&self) -> String {
        let Self {
            name,
            against,
            unit,
            estimate,
            ..
        } = self;
        format!(
            "| {name} | {against} | **{}** | {} to {} | {} | {} |",
            unit.show(estimate.value),
            unit.show(estimate.low),
            unit.show(estimate.high),
            self.goal(),
            self.verdict(),
        )
    }
}

// === impl Unit ===

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Cost | Self::Speed if value >= 100.0 => format!("{value:.0} ×"),
            Self::Cost | Self::Speed if value >= 10.0 => format!("{value:.1} ×"),
            Self::Cost | Self::Speed => format!("{value:.2} ×"),
            Self::Mebibytes => format!("{value:.1} MiB"),
        }
    }
}

fn file_name(group: &str) -> String {
    let lower = group.to_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(goal: Goal, low: f64, high: f64) -> Figure {
        Figure {
            group: "Group",
            name: "work".into(),
            against: "limit".into(),
            unit: Unit::Cost,
            goal: Some(goal),
            estimate: Estimate {
                value: f64::midpoint(low, high),
                low,
                high,
                rounds: 9,
            },
        }
    }

    #[test]
    fn a_goal_is_missed_only_by_the_whole_interval() {
        assert!(!figure(Goal::AtMost(1.3), 1.2, 1.5).is_missed());
        assert!(figure(Goal::AtMost(1.3), 1.4, 1.5).is_missed());
        assert!(!figure(Goal::AtLeast(0.7), 0.6, 0.8).is_missed());
        assert!(figure(Goal::AtLeast(0.7), 0.5, 0.6).is_missed());
    }

    #[test]
    fn a_page_has_a_chart_for_each_group() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Report::default();
        report.add(figure(Goal::AtMost(1.3), 1.4, 1.5));
        report.write(dir.path(), "page", "# Page\n").unwrap();
        let page = fs::read_to_string(dir.path().join("page.md")).unwrap();
        assert!(
            page.starts_with("# Page\n\n## Group\n\n![Group](page/group.svg)\n"),
            "{page}"
        );
        assert!(
            page.contains("| work | limit | **1.45 ×** | 1.40 × to 1.50 × | ≤ 1.30 × | missed |"),
            "{page}"
        );
        assert!(
            fs::read_to_string(dir.path().join("page/group.svg"))
                .unwrap()
                .starts_with("<svg")
        );
        assert_eq!(report.missed().len(), 1);
    }
}
