//! `files`: every operation, as text and as JSON.

use serde_json::{Value, json};

use super::stage::{Stage, fields};

const FILE: [&str; 11] = [
    "gid",
    "inode",
    "links",
    "mode",
    "modified",
    "path",
    "path_base64",
    "size",
    "symlink_target",
    "type",
    "uid",
];

async fn with_files() -> Stage {
    let stage = Stage::new().await;
    stage
        .sh(
            "mkdir -p src/deep; printf 'alpha\\nbeta\\ngamma\\n' > src/a.txt; echo 'beta two' > src/deep/b.txt; \
             printf '\\377\\000' > src/bin; ln -s a.txt src/link; echo hidden > src/.dot; chmod 640 src/a.txt",
        )
        .await;
    stage
}

fn paths(value: &Value) -> Vec<&str> {
    let files = value["files"].as_array().unwrap();
    files.iter().map(|file| file["path"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn ls_stat_and_find() {
    let stage = with_files().await;
    assert_eq!(
        stage.ok(&["files", "ls", "demo:src"]).await,
        ".dot\na.txt\nbin\ndeep\nlink\n"
    );
    let json = stage.json(&["files", "ls", "demo:/workspace/src"]).await;
    assert_eq!(
        (fields(&json), fields(&json["files"][1])),
        (vec!["files", "truncated"], FILE.to_vec())
    );
    assert_eq!(paths(&json)[1], "/workspace/src/a.txt");
    let deep = stage.ok(&["files", "ls", "--depth", "2", "demo:src"]).await;
    assert!(deep.contains("/workspace/src/deep/b.txt\n"), "{deep}");
    let long = stage.ok(&["files", "ls", "-l", "demo:src"]).await;
    assert!(long.contains("-rw-r-----  1000:1000  17 B  "), "{long}");
    assert!(long.contains("/workspace/src/link -> a.txt\n"), "{long}");

    let json = stage.json(&["files", "stat", "demo:src/a.txt", "demo:src/link"]).await;
    let (file, link) = (&json["files"][0], &json["files"][1]);
    assert_eq!(fields(file), FILE);
    assert_eq!(
        (&file["type"], &file["size"], &file["mode"], &file["uid"]),
        (&json!("regular"), &json!(17), &json!("0640"), &json!(1000))
    );
    assert_eq!(
        (&link["type"], &link["symlink_target"]),
        (&json!("symlink"), &json!("a.txt"))
    );
    let followed = stage.json(&["files", "stat", "-L", "demo:src/link"]).await;
    assert_eq!(followed["files"][0]["type"], "regular");
    let text = stage.ok(&["files", "stat", "demo:src/a.txt"]).await;
    assert!(
        text.contains("size      17 (17 B)\nmode      0640 (-rw-r-----)\n"),
        "{text}"
    );

    assert_eq!(
        stage.ok(&["files", "find", "demo:src", "**/*.txt"]).await,
        "/workspace/src/a.txt\n/workspace/src/deep/b.txt\n"
    );
    let json = stage
        .json(&["files", "find", "--dirs", "--hidden", "demo:src", "**"])
        .await;
    assert_eq!(
        (fields(&json), &json["truncated"], &json["directories_unreadable"]),
        (
            vec!["directories_unreadable", "files", "truncated"],
            &json!(false),
            &json!(0)
        )
    );
    assert!(
        paths(&json).contains(&"/workspace/src/.dot") && paths(&json).contains(&"/workspace/src/deep"),
        "{json}"
    );
    let few = stage.run(&["files", "find", "--limit", "1", "demo:src"]).await;
    assert_eq!((few.code, few.text().lines().count()), (Some(0), 1));
    assert_eq!(
        few.err,
        "sandgate: there are more: raise --limit, or narrow the pattern\n"
    );
    assert_eq!(
        stage.json(&["files", "find", "--limit", "1", "demo:src"]).await["truncated"],
        true
    );
}

#[tokio::test]
async fn cat_prints_files_and_lines() {
    let stage = with_files().await;
    let both = stage
        .ok(&["files", "cat", "demo:src/a.txt", "demo:src/deep/b.txt"])
        .await;
    assert_eq!(both, "alpha\nbeta\ngamma\nbeta two\n");
    assert_eq!(stage.run(&["files", "cat", "demo:src/bin"]).await.out, b"\xff\0");
    for (range, lines) in [
        ("2:3", "beta\ngamma\n"),
        ("2:", "beta\ngamma\n"),
        (":1", "alpha\n"),
        ("2", "beta\n"),
        ("9:", ""),
    ] {
        assert_eq!(
            stage.ok(&["files", "cat", "--lines", range, "demo:src/a.txt"]).await,
            lines,
            "{range}"
        );
    }
    let json = stage.json(&["files", "cat", "demo:src/a.txt", "demo:src/bin"]).await;
    assert_eq!(
        json["files"][0],
        json!({"path": "/workspace/src/a.txt", "size": 17, "offset": 0, "content": "alpha\nbeta\ngamma\n",
               "content_base64": null, "binary": false, "more_before": false, "more_after": false, "total_lines": null})
    );
    assert_eq!(
        (&json["files"][1]["content_base64"], &json["files"][1]["binary"]),
        (&json!("/wA="), &json!(true))
    );
    let json = stage.json(&["files", "cat", "--lines", "2:2", "demo:src/a.txt"]).await;
    assert_eq!(
        (
            &json["files"][0]["content"],
            &json["files"][0]["total_lines"],
            &json["files"][0]["more_after"]
        ),
        (&json!("beta\n"), &json!(3), &json!(true))
    );
}

#[tokio::test]
async fn grep_finds_or_exits_with_1() {
    let stage = with_files().await;
    assert_eq!(
        stage.ok(&["files", "grep", "demo:src", "^bet"]).await,
        "/workspace/src/a.txt:2:beta\n/workspace/src/deep/b.txt:1:beta two\n"
    );
    assert_eq!(
        stage
            .ok(&[
                "files",
                "grep",
                "-iF",
                "-C",
                "1",
                "--include",
                "a.*",
                "demo:src",
                "BETA"
            ])
            .await,
        "/workspace/src/a.txt-1-alpha\n/workspace/src/a.txt:2:beta\n/workspace/src/a.txt-3-gamma\n"
    );
    let json = stage.json(&["files", "grep", "demo:src", "two"]).await;
    assert_eq!(
        fields(&json),
        [
            "files",
            "files_binary",
            "files_searched",
            "files_unreadable",
            "truncated"
        ]
    );
    assert_eq!(
        json["files"],
        json!([{"path": "/workspace/src/deep/b.txt", "path_base64": null,
                "lines": [{"number": 1, "text": "beta two", "context": false}]}])
    );
    let nothing = stage.run(&["files", "grep", "demo:src", "delta"]).await;
    assert_eq!(
        (nothing.code, nothing.text().as_str(), nothing.err.as_str()),
        (Some(1), "", "")
    );
    let nothing = stage.run(&["-o", "json", "files", "grep", "demo:src", "delta"]).await;
    let json: Value = serde_json::from_slice(&nothing.out).unwrap();
    assert_eq!((nothing.code, &json["files"]), (Some(1), &json!([])));
    let more = stage.run(&["files", "grep", "--limit", "1", "demo:src", "."]).await;
    assert_eq!(
        (more.code, more.err.as_str()),
        (
            Some(0),
            "sandgate: there is more: raise --limit, or narrow the search\n"
        )
    );
    let bad = stage.run(&["files", "grep", "demo:src", "x("]).await;
    assert_eq!((bad.code, bad.text().as_str()), (Some(1), ""));
    assert!(
        bad.err.contains("unclosed group") && bad.err.ends_with("(PATTERN_INVALID)\n"),
        "{}",
        bad.err
    );
    assert!(!bad.err.contains("\\n"), "lines are lines: {}", bad.err);
}

#[tokio::test]
async fn edit_mkdir_mv_and_rm() {
    let stage = with_files().await;
    assert_eq!(
        stage
            .ok(&["files", "edit", "demo:src/a.txt", "--old", "beta", "--new", "BETA"])
            .await,
        "/workspace/src/a.txt: 1 replacement\n"
    );
    let json = stage
        .json(&["files", "edit", "demo:src/a.txt", "--old", "a", "--new", "o", "--all"])
        .await;
    assert_eq!(
        (fields(&json), &json["replacements"]),
        (vec!["file", "replacements"], &json!(4))
    );
    assert_eq!(fields(&json["file"]), FILE);
    assert_eq!(
        stage.ok(&["files", "cat", "demo:src/a.txt"]).await,
        "olpho\nBETA\ngommo\n"
    );

    assert_eq!(stage.ok(&["files", "mkdir", "-p", "demo:x/y/z", "demo:w"]).await, "");
    let json = stage.json(&["files", "mkdir", "-m", "700", "demo:private"]).await;
    assert_eq!(fields(&json), ["files"]);
    assert_eq!(
        (&json["files"][0]["mode"], &json["files"][0]["type"]),
        (&json!("0700"), &json!("directory"))
    );

    assert_eq!(
        stage
            .ok(&["files", "mv", "-p", "demo:src/a.txt", "demo:x/q/moved"])
            .await,
        ""
    );
    let json = stage
        .json(&["files", "mv", "-f", "demo:x/q/moved", "demo:src/deep/b.txt"])
        .await;
    assert_eq!(
        (fields(&json), &json["file"]["path"]),
        (vec!["file"], &json!("/workspace/src/deep/b.txt"))
    );
    assert_eq!(stage.sh("head -n 1 src/deep/b.txt; ls x/q").await, "olpho\n");

    assert_eq!(stage.ok(&["files", "rm", "demo:src/link"]).await, "");
    assert_eq!(stage.ok(&["files", "rm", "-f", "demo:src/link"]).await, "");
    let json = stage.json(&["files", "rm", "-r", "demo:x", "demo:w"]).await;
    assert_eq!(
        json,
        json!({"removed": [{"sandbox": "demo", "path": "x", "removed": 4, "error": null},
                           {"sandbox": "demo", "path": "w", "removed": 1, "error": null}]})
    );
    assert_eq!(stage.sh("ls").await, "private\nsrc\n");
}

#[tokio::test]
async fn what_fails_says_why() {
    let stage = with_files().await;
    for (args, told) in [
        (
            &["files", "ls", "demo:missing"][..],
            "/workspace/missing: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["files", "ls", "demo:src/a.txt"],
            "/workspace/src/a.txt: Not a directory (FILE_NOT_DIRECTORY)\n",
        ),
        (
            &["files", "cat", "demo:src"],
            "/workspace/src: it is a directory (FILE_IS_DIRECTORY)\n  `sandgate cp -r` copies directories, `sandgate \
             files ls` lists them.\n",
        ),
        (
            &["files", "cat", "demo:missing"],
            "/workspace/missing: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["files", "stat", "demo:missing"],
            "/workspace/missing: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["files", "find", "demo:missing"],
            "/workspace/missing: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["files", "grep", "demo:missing", "x"],
            "/workspace/missing: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["files", "edit", "demo:src/a.txt", "--old", "zzz", "--new", "y"],
            "/workspace/src/a.txt: the text does not occur in the file (EDIT_NO_MATCH)\n",
        ),
        (
            &["files", "mkdir", "demo:src"],
            "/workspace/src: File exists (FILE_ALREADY_EXISTS)\n  `files mv` replaces a file with -f; `files mkdir` takes a \
             directory that is there with -p.\n",
        ),
        (
            &["files", "mkdir", "demo:no/where"],
            "/workspace/no/where: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["files", "mkdir", "demo:/etc/x"],
            "/etc/x: Permission denied (FILE_PERMISSION_DENIED)\n  Act as another user with --user.\n",
        ),
        (
            &["files", "mv", "demo:missing", "demo:x"],
            "/workspace/missing: No such file or directory (FILE_NOT_FOUND)\n",
        ),
        (
            &["files", "mv", "demo:src/bin", "demo:src/a.txt"],
            "/workspace/src/a.txt: File exists (FILE_ALREADY_EXISTS)\n  `files mv` replaces a file with -f; `files mkdir` \
             takes a directory that is there with -p.\n",
        ),
    ] {
        stage.refused(args, 1, &format!("sandgate: {told}")).await;
    }
    let ambiguous = stage
        .run(&["files", "edit", "demo:src/a.txt", "--old", "a", "--new", "b"])
        .await;
    assert_eq!(ambiguous.code, Some(1));
    assert!(
        ambiguous
            .err
            .contains("(EDIT_AMBIGUOUS)\n  Give more of the text around it, or replace all with --all.\n"),
        "{ambiguous:?}"
    );

    // All are tried, and each is told.
    let rm = stage
        .run(&[
            "files",
            "rm",
            "demo:missing",
            "demo:src/deep",
            "demo:src/bin",
            "nobody:x",
        ])
        .await;
    assert_eq!((rm.code, rm.text().as_str()), (Some(125), ""));
    assert_eq!(
        rm.told(),
        "sandgate: demo: /workspace/missing: No such file or directory (FILE_NOT_FOUND)\n\
         sandgate: demo: /workspace/src/deep: Directory not empty (FILE_DIRECTORY_NOT_EMPTY)\n  Remove what is in it too \
         with -r.\n\
         sandgate: nobody: there is no sandbox nobody (SANDBOX_NOT_FOUND, request ID)\n  `sandgate ls` shows those that \
         exist.\n"
    );
    assert_eq!(stage.sh("ls src").await, "a.txt\ndeep\nlink\n");
    let rm = stage.run(&["-o", "json", "files", "rm", "demo:missing"]).await;
    let json: Value = serde_json::from_slice(&rm.out).unwrap();
    assert_eq!(
        (rm.code, &json["removed"][0]["error"]["reason"]),
        (Some(1), &json!("FILE_NOT_FOUND"))
    );
}
