//! Help, completions and man pages, which need no server.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
};

use super::stage::Stage;

/// The commands that a help lists.
fn commands(help: &str) -> Vec<String> {
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Every command, as one would type it.
async fn all(stage: &Stage) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for name in commands(&stage.ok(&["-h"]).await) {
        if name == "files" {
            for inner in commands(&stage.ok(&["files", "-h"]).await) {
                all.push(vec![name.clone(), inner]);
            }
        }
        all.push(vec![name]);
    }
    assert!(all.len() > 25, "{all:?}");
    all
}

#[tokio::test]
async fn every_command_has_help_and_a_page() {
    let mut stage = Stage::empty().await;
    stage.server.kill();
    assert_eq!(stage.ok(&["man", "pages/deep"]).await, "");
    let mut pages: BTreeSet<String> = fs::read_dir(stage.path("pages/deep"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(pages.remove("sandgate.1"));
    for command in all(&stage).await {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = stage.ok(&[&words[..], &["--help"]].concat()).await;
        assert!(
            help.contains("Usage: sandgate ") && help.contains("Examples:"),
            "{words:?}: {help}"
        );
        let page = format!("sandgate-{}.1", command.join("-"));
        assert!(pages.remove(&page), "{page} is missing");
        let text = String::from_utf8(stage.read(&format!("pages/deep/{page}"))).unwrap();
        assert!(text.contains(".TH ") && text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert_eq!(pages, BTreeSet::new(), "pages of no command");
    assert!(stage.ok(&["--version"]).await.starts_with("sandgate 0."));
    stage.write("file", "");
    let did = stage.run(&["man", "file/below"]).await;
    assert_eq!(
        (did.code, did.err.as_str()),
        (Some(1), "sandgate: file/below: Not a directory\n")
    );
}

#[tokio::test]
async fn shells_take_their_completions() {
    let stage = Stage::empty().await;
    for shell in ["bash", "zsh", "fish"] {
        let script = stage.ok(&["completion", shell]).await;
        assert!(script.len() > 1000 && script.contains("sandgate"), "{shell}");
        stage.write(shell, script);
        let checked = Command::new(shell)
            .args(["-n", shell])
            .current_dir(stage.path(""))
            .output();
        match checked {
            Ok(output) => assert!(output.status.success(), "{shell}: {output:?}"),
            // Only bash is part of the base system.
            Err(error) => assert!(shell != "bash", "{error}"),
        }
    }
    let complete = |words: &str| {
        let script = format!(
            ". ./bash; COMP_WORDS=(sandgate {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _sandgate sandgate \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash")
            .args(["-c", &script])
            .current_dir(stage.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete("cre"), "create\n");
    assert_eq!(complete("files gr"), "grep\n");
    assert_eq!(complete("create --tt"), "--ttl\n");
}
