//! `make bench`: measures, prints, and writes the page in `docs/`.
#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that can't go on ends"
)]

mod cases;
mod floor;
mod ours;
mod peers;
mod work;

use std::path::{Path, PathBuf};

use clap::Parser;

use crate::cases::{Bench, Scale, commands, files, peers as peer_cases, python, sandboxes, streams};

/// Measures Sandgate against what this machine can do and against its peers. Needs root.
#[derive(Debug, Parser)]
struct Args {
    /// Measure only what has one of these in its name.
    only: Vec<String>,
    /// Do just enough of everything to see that it works.
    #[arg(long)]
    smoke: bool,
    /// Write the page, its charts and the figures there.
    #[arg(long)]
    out: Option<PathBuf>,
}

const PREFACE: &str = include_str!("preface.md");

// One thread, as the client of an agent has it.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    // The floor's processes are this program too.
    let words: Vec<String> = std::env::args().skip(1).take(2).collect();
    if let [role, socket] = &words[..]
        && floor::play(role, Path::new(socket)).await.is_some()
    {
        return;
    }
    let args = Args::parse();
    let mut bench = Bench {
        report: sandgate_bench::report::Report::default(),
        scale: Scale::new(args.smoke),
        ours: ours::Ours::start().await,
        floor: floor::Floor::start().await,
    };
    macro_rules! cases {
        ($($name:literal => $case:path,)+) => {$(
            if args.only.is_empty() || args.only.iter().any(|only| $name.contains(only.as_str())) {
                // What the case before has left to be written is not at the cost of this one.
                rustix::fs::sync();
                $case(&mut bench).await;
            }
        )+};
    }
    cases! {
        "run" => commands::one,
        "at-once" => commands::many,
        "stdout" => streams::stdout,
        "transfer" => files::large,
        "read" => files::small,
        // Before those that remove ten thousand files: ext4 then looks at each of them for every file that is made.
        "create" => sandboxes::one,
        "tar" => files::tar,
        "grep" => files::grep,
        "followers" => streams::followers,
        "stopped" => streams::stopped,
        "peers" => peer_cases::commands,
        "peers" => peer_cases::files,
        "python" => python::client,
        "scale" => sandboxes::many,
    }
    if let Some(out) = args.out {
        bench.report.write(&out, "benchmarks", PREFACE).unwrap();
    }
    let missed = bench.report.missed();
    if !missed.is_empty() {
        println!("\nmissed:");
        missed.iter().for_each(|line| println!("  {line}"));
    }
}
