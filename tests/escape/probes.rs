//! Attempts that are one system call or a few: see `probes.py`.

use std::process::Command as Process;

use sandgate::Command;

use super::{
    NOBODY,
    host::{Facts, Host},
    in_time, make, python, run, said, server, text,
};

const PROBES: &str = include_str!("probes.py");
const INSIDE: &str = "of the sandbox's own";

/// Attempts with what became of them.
fn outcomes(output: &str) -> Vec<(&str, &str)> {
    let mut lines: Vec<_> = output.lines().filter_map(|line| line.split_once(' ')).collect();
    let (last, _) = lines.pop().unwrap_or_default();
    assert_eq!(last, "done", "{output}");
    lines
}

fn assert_all_refused(output: &str) {
    let outcomes = outcomes(output);
    let not: Vec<_> = outcomes
        .iter()
        .filter(|(_, said)| !said.starts_with("REFUSED"))
        .collect();
    assert!(not.is_empty(), "{not:#?}");
    assert!(outcomes.len() > 300, "{} attempts only", outcomes.len());
}

async fn attempts(template: &str, uid: Option<u32>) {
    let arch = std::env::consts::ARCH;
    assert_eq!(arch, "x86_64", "the system calls of probes.py are those of x86_64");
    let server = server(uid).await;
    let client = server.client().await;
    let host = Host::new();
    let (own, other) = (
        make(&client, template, "own").await,
        make(&client, template, "other").await,
    );
    said(&other, Command::shell("echo theirs > /workspace/secret")).await;
    if template == "root" {
        said(&own, Command::shell(format!("echo {INSIDE:?} > /etc/shadow"))).await;
    }
    let facts = |control| {
        host.facts(&Facts {
            server: &server,
            own: "own",
            other: "other",
            inside: INSIDE,
            control,
        })
    };
    let answer = run(&own, python(PROBES).env("FACTS", facts(false))).await;
    let output = text(answer.stdout);
    println!("{output}{}", text(answer.stderr));
    assert_all_refused(&output);
    host.assert_alone();
    // The same from outside, where it is no escape.
    let control = Process::new("/usr/bin/python3")
        .args(["-I", "-S", "-c", PROBES])
        .env("FACTS", facts(true))
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&control.stdout);
    let outcomes = outcomes(&output);
    let not: Vec<_> = outcomes
        .iter()
        .filter(|(_, said)| !said.starts_with("ESCAPED"))
        .collect();
    assert!(not.is_empty(), "they would fail anywhere: {not:#?}");
    assert!(outcomes.len() > 50, "{} controls only", outcomes.len());
    for sandbox in [own, other] {
        super::works(&sandbox).await;
        sandbox.delete().await.unwrap();
    }
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn an_ordinary_user_inside_does_not_get_out() {
    in_time(attempts("default", None)).await;
}

#[tokio::test]
async fn root_inside_does_not_get_out() {
    in_time(attempts("root", None)).await;
}

#[tokio::test]
async fn nobody_gets_out_where_the_server_is_an_ordinary_user() {
    in_time(attempts("default", Some(NOBODY))).await;
}
