//! What a sandbox sends is not trusted: nothing is written beside the destination, whatever links lead where.

use std::{fs, os::unix::fs::symlink};

use serde_json::json;

use super::stage::Stage;

#[tokio::test]
async fn links_that_lead_out_are_not_made() {
    let stage = Stage::new().await;
    stage.write("precious/file", "mine");
    stage
        .sh(
            "mkdir -p d/sub; echo fine > d/file; ln -s file d/inside; ln -s /etc/passwd d/absolute; \
             ln -s ../../precious d/sub/up; ln -s .. d/parent; mkfifo d/fifo; ln d/file d/hard",
        )
        .await;
    let did = stage.run(&["cp", "-r", "demo:d", "out"]).await;
    assert_eq!(did.code, Some(1), "{did:?}");
    for line in [
        "sandgate: absolute: the link to /etc/passwd leads out of the destination: make it with --keep-links\n",
        "sandgate: parent: the link to .. leads out of the destination: make it with --keep-links\n",
        "sandgate: sub/up: the link to ../../precious leads out of the destination: make it with --keep-links\n",
        "sandgate: /fifo: sockets, FIFOs and devices are not sent (FILE_NOT_REGULAR)\n",
    ] {
        assert!(did.err.contains(line), "{line:?} is not in {}", did.err);
    }
    assert_eq!(stage.read("out/inside"), b"fine\n");
    for name in ["out/absolute", "out/parent", "out/sub/up", "out/fifo"] {
        assert!(fs::symlink_metadata(stage.path(name)).is_err(), "{name}");
    }
    let did = stage.run(&["-o", "json", "cp", "-r", "demo:d", "again"]).await;
    let report: serde_json::Value = serde_json::from_slice(&did.out).unwrap();
    assert_eq!(
        (did.code, &report["failed"], did.err.as_str()),
        (Some(1), &json!(4), "")
    );
}

#[tokio::test]
async fn links_that_are_there_are_not_followed() {
    let stage = Stage::new().await;
    stage.write("precious/file", "mine");
    // Kept from a first copy, and a directory in the next; or planted by somebody else.
    stage.sh("mkdir d; ln -s ../precious d/sub").await;
    stage.ok(&["cp", "-r", "--keep-links", "demo:d", "out"]).await;
    assert_eq!(
        fs::read_link(stage.path("out/sub")).unwrap().to_str(),
        Some("../precious")
    );
    stage
        .sh("rm d/sub; mkdir d/sub; echo evil > d/sub/file; echo evil > d/sub/more")
        .await;
    fs::create_dir(stage.path("planted")).unwrap();
    symlink("../precious", stage.path("planted/sub")).unwrap();
    for (out, options) in [("out/.", &[][..]), ("planted", &["--keep-links"])] {
        stage.run(&[&["cp", "-r"], options, &["demo:d/.", out]].concat()).await;
        assert_eq!(stage.read("precious/file"), b"mine");
        assert_eq!(fs::read_dir(stage.path("precious")).unwrap().count(), 1);
    }
    // A file in place of a link replaces the link, not what it leads to.
    stage.sh("rm -r d; mkdir d; echo new > d/link").await;
    fs::create_dir(stage.path("linked")).unwrap();
    symlink("../precious/file", stage.path("linked/link")).unwrap();
    stage.ok(&["cp", "-r", "demo:d/.", "linked"]).await;
    assert_eq!(
        (stage.read("precious/file"), stage.read("linked/link")),
        (b"mine".to_vec(), b"new\n".to_vec())
    );
    assert!(!stage.path("linked/link").is_symlink());
}

#[tokio::test]
async fn a_tree_that_changes_while_it_is_sent_stays_inside() {
    let stage = Stage::new().await;
    stage.write("precious/file", "mine");
    let flip = "mkdir d; while [ ! -e stop ]; do mkdir d/x && echo evil > d/x/file; rm -r d/x; ln -s ../precious d/x; rm d/x; done";
    stage
        .ok(&["exec", "demo", "--detach", "--id", "flip", "--", "sh", "-c", flip])
        .await;
    // Each copy goes onto what the ones before have left.
    for _ in 0..20 {
        let did = stage.run(&["cp", "-r", "--keep-links", "demo:d", "out"]).await;
        assert!(matches!(did.code, Some(0 | 1)), "{did:?}");
        assert_eq!(stage.read("precious/file"), b"mine");
        assert_eq!(fs::read_dir(stage.path("precious")).unwrap().count(), 1);
    }
    stage.sh("touch stop").await;
}

#[tokio::test]
async fn names_and_output_can_not_drive_a_terminal() {
    let stage = Stage::new().await;
    stage.sh("printf x > \"$(printf 'a\\033[2Jb\\nc')\"").await;
    // Bytes for programs, as they are.
    assert_eq!(stage.ok(&["files", "ls", "demo:."]).await, "a\u{1b}[2Jb\nc\n");
    let json = stage.json(&["files", "ls", "demo:."]).await;
    assert_eq!(json["files"][0]["path"], "/workspace/a\u{1b}[2Jb\nc");
    // Messages for people are not.
    let did = stage.run(&["files", "cat", "demo:\u{1b}[2J"]).await;
    assert_eq!(
        (did.code, did.err.as_str()),
        (
            Some(1),
            "sandgate: /workspace/\\u{1b}[2J: No such file or directory (FILE_NOT_FOUND)\n"
        )
    );
}
