//! `cp`: files and directories both ways, and streams.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

use serde_json::json;

use super::stage::{Stage, noise};

/// What is in an archive: names with their content; a directory's ends with `/`, a link's content is its target.
fn entries(archive: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(archive);
    let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        let mut entry = entry.unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        if let Some(target) = entry.link_name().unwrap() {
            content = target.display().to_string();
        }
        (entry.path().unwrap().display().to_string(), content)
    };
    archive.entries().unwrap().map(read).collect()
}

#[tokio::test]
async fn a_file_goes_in_and_comes_out() {
    let stage = Stage::new().await;
    let binary: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    stage.write("in.bin", &binary);
    fs::set_permissions(stage.path("in.bin"), fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(stage.ok(&["cp", "in.bin", "demo:/workspace"]).await, "");
    let report = stage.json(&["cp", "in.bin", "demo:sub/dir/other"]).await;
    assert_eq!(
        report,
        json!({"entries": 1, "bytes": 70_000, "failed": 0, "failures": []})
    );
    stage.ok(&["cp", "in.bin", "demo:new/"]).await;
    assert_eq!(
        stage.sh("find . -type f -printf '%p %m %s\\n' | sort").await,
        "./in.bin 750 70000\n./new/in.bin 750 70000\n./sub/dir/other 750 70000\n"
    );

    assert_eq!(stage.ok(&["cp", "demo:in.bin", "out.bin"]).await, "");
    let report = stage.json(&["cp", "demo:/workspace/in.bin", "out.bin"]).await;
    assert_eq!(
        report,
        json!({"entries": 1, "bytes": 70_000, "failed": 0, "failures": []})
    );
    assert!(stage.read("out.bin") == binary);
    let found = fs::metadata(stage.path("out.bin")).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o750);
    assert_eq!(
        found.modified().unwrap(),
        fs::metadata(stage.path("in.bin")).unwrap().modified().unwrap()
    );
    // A directory that is there is copied into.
    fs::create_dir(stage.path("dir")).unwrap();
    stage.ok(&["cp", "demo:in.bin", "dir"]).await;
    assert!(stage.read("dir/in.bin") == binary);
    // What was there is replaced; a link stays, and what it leads to is replaced.
    stage.write("target", "old");
    symlink("target", stage.path("link")).unwrap();
    stage.ok(&["cp", "demo:in.bin", "link"]).await;
    assert!(stage.read("target") == binary && stage.path("link").is_symlink());
}

#[tokio::test]
async fn sixty_four_mebibytes_arrive_unchanged() {
    let stage = Stage::new().await;
    let big = noise(64 << 20);
    stage.write("big", &big);
    let report = stage.json(&["cp", "big", "demo:big"]).await;
    assert_eq!((&report["bytes"], &report["failed"]), (&json!(64 << 20), &json!(0)));
    let here = Command::new("sha256sum")
        .arg("big")
        .current_dir(stage.path(""))
        .output()
        .unwrap();
    assert_eq!(stage.sh("sha256sum big").await, String::from_utf8(here.stdout).unwrap());
    stage.ok(&["cp", "demo:big", "back"]).await;
    assert!(stage.read("back") == big);
}

#[tokio::test]
async fn a_directory_goes_in_and_comes_out() {
    let stage = Stage::new().await;
    stage.write("tree/one", "1");
    stage.write("tree/sub/two", "2");
    fs::create_dir(stage.path("tree/empty")).unwrap();
    symlink("sub/two", stage.path("tree/link")).unwrap();
    fs::set_permissions(stage.path("tree/one"), fs::Permissions::from_mode(0o600)).unwrap();
    let found = "./empty d 755 \n./link l 777 sub/two\n./one f 600 \n./sub d 755 \n./sub/two f 644 \n";
    for (target, inside) in [("demo:", "tree"), ("demo:new", "new"), ("demo:new", "new/tree")] {
        let report = stage.json(&["cp", "-r", "tree", target]).await;
        assert_eq!(
            (&report["entries"], &report["failed"]),
            (&json!(5), &json!(0)),
            "{report}"
        );
        let script = format!(
            "cd {inside} && find . -mindepth 1 -maxdepth 2 -not -path './tree*' -printf '%p %y %m %l\\n' | sort"
        );
        assert_eq!(stage.sh(&script).await, found, "{target}");
    }

    assert_eq!(stage.ok(&["cp", "-r", "demo:tree", "out"]).await, "");
    assert_eq!(
        (stage.read("out/one"), stage.read("out/sub/two")),
        (b"1".to_vec(), b"2".to_vec())
    );
    assert!(stage.path("out/empty").is_dir());
    assert_eq!(fs::read_link(stage.path("out/link")).unwrap().to_str(), Some("sub/two"));
    assert_eq!(
        fs::metadata(stage.path("out/one")).unwrap().permissions().mode() & 0o777,
        0o600
    );
    // Into a directory that is there; or only what is in it.
    stage.ok(&["cp", "-r", "demo:tree", "out"]).await;
    assert_eq!(stage.read("out/tree/one"), b"1");
    fs::create_dir(stage.path("flat")).unwrap();
    stage.ok(&["cp", "-r", "demo:tree/.", "flat"]).await;
    assert_eq!(stage.read("flat/one"), b"1");
    let report = stage.json(&["cp", "-r", "demo:tree", "counted"]).await;
    assert_eq!((&report["entries"], &report["bytes"]), (&json!(5), &json!(2)));
}

#[tokio::test]
async fn streams_are_files_too() {
    let stage = Stage::new().await;
    let data = noise(3_000_001);
    let did = stage.feed(&["cp", "-", "demo:stream"], &data).await;
    assert_eq!((did.code, did.err.as_str()), (Some(0), ""));
    let did = stage.run(&["cp", "demo:stream", "-"]).await;
    assert_eq!((did.code, did.err.as_str()), (Some(0), ""));
    assert!(did.out == data);
    // stdout has the content, also with -o json.
    assert!(stage.run(&["-o", "json", "cp", "demo:stream", "-"]).await.out == data);
    stage.feed(&["cp", "-", "demo:nothing"], b"").await;
    assert_eq!(stage.sh("stat -c %s nothing").await, "0\n");

    stage
        .sh("mkdir -p d/sub; echo 1 > d/one; echo 2 > d/sub/two; ln -s one d/link")
        .await;
    let did = stage.run(&["cp", "-r", "demo:d", "-"]).await;
    assert_eq!(did.code, Some(0), "{}", did.err);
    let found = entries(&did.out);
    assert_eq!(
        (found["one"].as_str(), found["sub/two"].as_str(), found["link"].as_str()),
        ("1\n", "2\n", "one")
    );
    let fed = stage.feed(&["cp", "-r", "-", "demo:again"], &did.out).await;
    assert_eq!((fed.code, fed.err.as_str()), (Some(0), ""));
    assert_eq!(
        stage.sh("cat again/one again/sub/two; readlink again/link").await,
        "1\n2\none\n"
    );
}

#[tokio::test]
async fn between_sandboxes_and_within_one() {
    let stage = Stage::new().await;
    stage.ok(&["create", "other"]).await;
    stage
        .sh("mkdir -p d/sub; echo 1 > d/one; echo 2 > d/sub/two; chmod 711 d/one")
        .await;
    stage.ok(&["cp", "demo:d/one", "other:"]).await;
    stage.ok(&["cp", "-r", "demo:d", "other:tree"]).await;
    let script = "stat -c '%n %a' one; cat tree/one tree/sub/two";
    assert_eq!(
        stage.ok(&["exec", "other", "--", "sh", "-c", script]).await,
        "one 711\n1\n2\n"
    );
    let report = stage.json(&["cp", "demo:d/one", "demo:copy"]).await;
    assert_eq!(report, json!({"entries": 1, "bytes": 2, "failed": 0, "failures": []}));
    stage.ok(&["cp", "-r", "demo:d", "demo:e"]).await;
    assert_eq!(stage.sh("cat copy e/sub/two").await, "1\n2\n");
}

#[tokio::test]
async fn what_can_not_be_copied_is_told() {
    let stage = Stage::new().await;
    stage.write("file", "x");
    stage.write("dir/file", "x");
    stage.sh("mkdir there; echo x > there/file").await;
    for (args, code, told) in [
        (
            &["cp", "missing", "demo:x"][..],
            1,
            "sandgate: missing: No such file or directory\n",
        ),
        (
            &["cp", "demo:missing", "x"],
            1,
            "sandgate: /workspace/missing: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["cp", "dir", "demo:x"],
            64,
            "sandgate: dir is a directory: copy it with -r\n  `--help` shows how.\n",
        ),
        (
            &["cp", "demo:there", "x"],
            64,
            "sandgate: demo:there is a directory: copy it with -r\n  `--help` shows how.\n",
        ),
        (
            &["cp", "demo:there", "-"],
            64,
            "sandgate: demo:there is a directory: copy it with -r\n  `--help` shows how.\n",
        ),
        (
            &["cp", "demo:there/file", "no/such/dir"],
            1,
            "sandgate: no/such/dir: No such file or directory\n",
        ),
        (
            &["cp", "demo:there/file", "file/below"],
            1,
            "sandgate: file/below: Not a directory\n",
        ),
        (&["cp", "-r", "demo:there", "file"], 1, "sandgate: file: File exists\n"),
        (
            &["cp", "file", "demo:there/file/below"],
            1,
            "sandgate: /workspace/there/file/below: Not a directory (FILE_NOT_DIRECTORY)\n",
        ),
        (
            &["cp", "a", "b"],
            64,
            "sandgate: neither side is in a sandbox: write it as NAME:/path\n  `--help` shows how.\n",
        ),
        (
            &["cp", "file", "nobody:x"],
            125,
            "sandgate: there is no sandbox nobody (SANDBOX_NOT_FOUND, request ID)\n  `sandgate ls` shows those that \
             exist.\n",
        ),
    ] {
        stage.refused(args, code, told).await;
    }
    assert_eq!(stage.read("file"), b"x");

    // Entries that fail are part of the report.
    let args = ["cp", "file", "demo:/etc/"];
    let did = stage.run(&args).await;
    assert_eq!(
        (did.code, did.text().as_str(), did.err.as_str()),
        (
            Some(1),
            "",
            "sandgate: /etc/file: Permission denied (FILE_PERMISSION_DENIED)\n"
        )
    );
    let did = stage.run(&[&["-o", "json"], &args[..]].concat()).await;
    let report: serde_json::Value = serde_json::from_slice(&did.out).unwrap();
    let failure = json!({"path": "/etc/file", "reason": "FILE_PERMISSION_DENIED", "message": "Permission denied"});
    assert_eq!(
        report,
        json!({"entries": 0, "bytes": 0, "failed": 1, "failures": [failure]})
    );
    assert_eq!((did.code, did.err.as_str()), (Some(1), ""));
    let did = stage.feed(&["cp", "-", "demo:there"], b"x").await;
    assert_eq!(
        (did.code, did.err.as_str()),
        (
            Some(1),
            "sandgate: /workspace/there: Is a directory (FILE_IS_DIRECTORY)\n"
        )
    );
    // Another user may.
    let mkdir = [
        "exec",
        "demo",
        "--user",
        "root",
        "--",
        "mkdir",
        "-m",
        "755",
        "/tmp/roots",
    ];
    stage.ok(&mkdir).await;
    assert_eq!(stage.run(&["cp", "file", "demo:/tmp/roots/"]).await.code, Some(1));
    stage.ok(&["cp", "--user", "root", "file", "demo:/tmp/roots/"]).await;
    assert_eq!(stage.sh("stat -c %u /tmp/roots/file").await, "0\n");
}

#[tokio::test]
async fn a_suspended_sandbox_is_woken_if_asked_for() {
    let stage = Stage::new().await;
    stage.write("file", "x");
    stage.ok(&["suspend", "demo"]).await;
    let suspended = "sandgate: sandbox demo is suspended; resume it, or ask for auto_resume (SANDBOX_SUSPENDED, request \
                     ID)\n  Bring it back with `sandgate resume`.\n";
    stage.refused(&["cp", "file", "demo:x"], 125, suspended).await;
    stage.refused(&["cp", "demo:x", "y"], 125, suspended).await;
    stage.ok(&["cp", "--resume", "file", "demo:x"]).await;
    assert_eq!(stage.ok(&["cp", "demo:x", "-"]).await, "x");
}
