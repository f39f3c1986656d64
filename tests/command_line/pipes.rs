//! Readers that leave, as `| head -1` does: no panic, no complaint, and nothing runs on for nobody.

use std::process::Stdio;

use serde_json::json;

use super::stage::{Did, Stage, finish, in_time, noise};

/// With a stdout that nobody reads.
async fn unread(stage: &Stage, args: &[&str]) -> Did {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = stage.command(args);
    command.stdout(writer);
    finish(command).await
}

#[tokio::test]
async fn a_reader_that_leaves_is_no_failure() {
    let stage = Stage::new().await;
    stage.write("big", noise(8 << 20));
    stage.ok(&["cp", "big", "demo:big"]).await;
    stage
        .ok(&["exec", "demo", "--id", "done", "--", "sh", "-c", "yes | head -n 100000"])
        .await;
    for args in [
        &["ls"][..],
        &["-o", "json", "ls"],
        &["get", "demo"],
        &["ps", "demo"],
        &["watch"],
        &["-o", "json", "watch"],
        &["create", "demo"],
        &["resume", "demo"],
        &["update", "demo", "--idle", "none"],
        &["cp", "demo:big", "-"],
        &["cp", "-r", "demo:/workspace", "-"],
        &["files", "cat", "demo:big"],
        &["files", "ls", "demo:/usr/bin"],
        &["files", "find", "demo:/etc"],
        &["files", "stat", "demo:big"],
        &["follow", "demo", "done"],
        &["completion", "bash"],
        &["--help"],
    ] {
        let did = unread(&stage, args).await;
        assert_eq!((did.code, did.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[tokio::test]
async fn a_command_that_writes_to_nobody_is_ended() {
    let stage = Stage::new().await;
    for args in [
        &["exec", "demo", "--", "yes"][..],
        &["-o", "json", "exec", "demo", "--", "yes"],
    ] {
        let did = unread(&stage, args).await;
        assert_eq!((did.code, did.err.as_str()), (Some(141), ""), "{args:?}");
    }
    // As a shell has it.
    let sandgate = sandgate_tests::server::cli_binary();
    let mut shell = tokio::process::Command::new("bash");
    shell
        .arg("-c")
        .arg("\"$0\" exec demo -- yes | head -n 1; echo ${PIPESTATUS[@]}")
        .arg(sandgate)
        .env("SANDGATE_ADDR", format!("unix://{}", stage.server.socket().display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let did = finish(shell).await;
    assert_eq!((did.text().as_str(), did.err.as_str()), ("y\n141 0\n", ""));
    stage.until_idle().await;
    let execs = stage.json(&["ps", "demo"]).await;
    for exec in execs["execs"].as_array().unwrap() {
        assert_eq!(exec["exit"]["signal_name"], json!("PIPE"), "{exec}");
    }
}

#[tokio::test]
async fn a_full_disk_is_a_failure() {
    let stage = Stage::new().await;
    let mut command = stage.command(&["ls"]);
    command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let did = finish(command).await;
    assert_eq!(
        (did.code, did.err.as_str()),
        (Some(125), "sandgate: can't write to stdout: No space left on device\n")
    );
}

#[tokio::test]
async fn closed_streams_are_no_panic() {
    let stage = Stage::new().await;
    let sandgate = sandgate_tests::server::cli_binary();
    for (line, code) in [
        ("ls >&-", 125),
        ("exec demo -i -- true <&-", 0),
        ("exec demo -- sh -c 'echo x >&2; exit 3' 2>&-", 3),
        ("get nobody 2>&-", 125),
    ] {
        let mut shell = tokio::process::Command::new("bash");
        shell
            .arg("-c")
            .arg(format!("\"$0\" {line}"))
            .arg(&sandgate)
            .env("SANDGATE_ADDR", format!("unix://{}", stage.server.socket().display()));
        let did = Did::from(in_time(shell.output()).await.unwrap());
        assert!(!did.err.contains("panicked"), "{line}: {did:?}");
        // Rust opens /dev/null in place of closed streams, so that a file takes none of their numbers.
        assert!(
            did.code == Some(code) || line.starts_with("ls") && did.code == Some(0),
            "{line}: {did:?}"
        );
    }
}
