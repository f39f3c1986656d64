//! A bar for each figure of a group, with its interval and its goal.

use std::fmt::Write as _;

use super::{Figure, Goal};

const WIDTH: f64 = 880.0;
const ROW: f64 = 34.0;
const LEFT: f64 = 430.0;
const RIGHT: f64 = 90.0;
const MET: &str = "#2f7d4f";
const MISSED: &str = "#b5452c";
const TOLD: &str = "#5b6b7f";

/// The chart as an SVG document. Bars are drawn on a scale of their own per group, from zero.
pub(super) fn draw(figures: &[Figure]) -> String {
    let goal = |figure: &Figure| match figure.goal {
        Some(Goal::AtMost(goal) | Goal::AtLeast(goal)) => Some(goal),
        None => None,
    };
    let reach = |figure: &Figure| figure.estimate.high.max(goal(figure).unwrap_or(0.0));
    let longest = figures.iter().map(reach).fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value / longest).clamp(0.0, 1.0);
    let height = ROW * figures.len() as f64 + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (row, figure) in figures.iter().enumerate() {
        let y = 6.0 + ROW * row as f64;
        let middle = y + ROW / 2.0;
        let estimate = figure.estimate;
        let colour = match (figure.goal, figure.is_missed()) {
            (None, _) => TOLD,
            (_, true) => MISSED,
            (_, false) => MET,
        };
        let label = match figure.against.as_str() {
            "" => figure.name.clone(),
            against => format!("{} / {against}", figure.name),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#222222\">{}</text>",
            LEFT - 8.0,
            middle + 4.0,
            escaped(&label)
        );
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
            y + 7.0,
            x(estimate.value) - LEFT,
            ROW - 14.0
        );
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"#111111\" stroke-width=\"1.5\"/>",
            x(estimate.low),
            x(estimate.high)
        );
        if let Some(goal) = goal(figure) {
            let _ = writeln!(
                svg,
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" stroke=\"#c9a227\" stroke-width=\"3\"/>",
                x(goal),
                y + 3.0,
                y + ROW - 3.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#222222\">{}</text>",
            WIDTH - RIGHT + 8.0,
            middle + 4.0,
            figure.unit.show(estimate.value)
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
