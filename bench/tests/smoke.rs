//! The benchmarks themselves: a little of all that is measured works, and is written down.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::{fs, process::Command};

use serde_json::Value;

#[test]
fn all_that_is_measured_works_and_is_written_down() {
    let out = tempfile::tempdir().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_sandgate-bench"))
        .args(["--smoke", "--out"])
        .arg(out.path())
        .status()
        .unwrap();
    assert!(done.success());

    let figures = fs::read(out.path().join("benchmarks/figures.json")).unwrap();
    let figures: Value = serde_json::from_slice(&figures).unwrap();
    let page = fs::read_to_string(out.path().join("benchmarks.md")).unwrap();
    let figures = figures["figures"].as_array().unwrap();
    assert!(figures.len() > 30, "{figures:?}");
    for figure in figures {
        let value = figure["estimate"]["value"].as_f64();
        assert!(value.is_some_and(f64::is_finite), "{figure}");
        let name = figure["name"].as_str().unwrap();
        assert!(page.contains(name), "{name} is not on the page");
    }
    for chart in page.lines().filter_map(|line| line.split_once("](benchmarks/")) {
        let name = chart.1.trim_end_matches(')');
        let chart = fs::read_to_string(out.path().join("benchmarks").join(name)).unwrap();
        assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"), "{name}");
    }
}
