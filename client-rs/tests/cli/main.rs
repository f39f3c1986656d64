//! The command line as a whole, against a fake server: what it prints, where, and what it exits with.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![forbid(unsafe_code)]

mod fake;

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use sandgate::v1::{SandboxDeleted, WatchResponse, WatchSynced, watch_response::Event};
use serde_json::{Value, json};
use tempfile::TempDir;

use self::fake::{Fake, TOKEN, entries};

/// A fake server, and a directory to work in.
struct Stage {
    fake: Fake,
    dir: TempDir,
}

/// What a command did.
#[derive(Debug)]
struct Did {
    code: i32,
    out: String,
    err: String,
}

impl Stage {
    fn new() -> Self {
        Self {
            fake: Fake::start(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// With a sandbox `demo` that holds a few files.
    fn with_files() -> Self {
        let stage = Self::new();
        let mut world = stage.fake.world();
        world.make("demo");
        for (path, content) in [("/w/a.txt", "alpha"), ("/w/sub/b.txt", "beta"), ("/w/empty/", "")] {
            world.files.insert(path.into(), content.into());
        }
        drop(world);
        stage
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandgate"));
        command
            .args(args)
            .env_clear()
            .env("SANDGATE_ADDR", &self.fake.address)
            .env("SANDGATE_TOKEN", TOKEN)
            .env("SANDGATE_STATE_DIR", self.dir.path().join("no-state"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Did {
        did(self.command(args).output().unwrap())
    }

    fn feed(&self, args: &[&str], input: &[u8]) -> Did {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may have ended already, which its exit says better.
        _ = child.stdin.take().unwrap().write_all(input);
        did(child.wait_with_output().unwrap())
    }

    fn json(&self, args: &[&str]) -> Value {
        let did = self.run(&[args, &["-o", "json"]].concat());
        assert_eq!(did.code, 0, "{did:?}");
        serde_json::from_str(&did.out).unwrap()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

fn did(output: Output) -> Did {
    Did {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn ok(did: Did) -> String {
    assert_eq!((did.code, did.err.as_str()), (0, ""), "{did:?}");
    did.out
}

#[test]
fn create_prints_the_name_and_waits_on() {
    let stage = Stage::new();
    assert_eq!(ok(stage.run(&["create", "demo", "--label", "team=red"])), "demo\n");
    assert_eq!(ok(stage.run(&["create"])), "made-up\n");
    let json = stage.json(&["create", "demo"]);
    assert_eq!((&json["created"], &json["resumed"]), (&json!(false), &json!(false)));
    assert_eq!(
        (&json["sandbox"]["name"], &json["sandbox"]["state"]),
        (&json!("demo"), &json!("ready"))
    );
    let at_once = stage.json(&["create", "demo", "--no-wait"]);
    assert_eq!(at_once["sandbox"]["state"], "creating");
}

#[test]
fn ls_takes_every_page() {
    let stage = Stage::new();
    for name in ["a", "b", "c"] {
        stage.fake.world().make(name);
    }
    let names: Vec<Value> = stage.json(&["ls"])["sandboxes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    let text = ok(stage.run(&["ls"]));
    assert_eq!(text.lines().count(), 4);
    assert!(!text.contains('\x1b'));
}

#[test]
fn get_suspend_and_resume() {
    let stage = Stage::with_files();
    assert!(ok(stage.run(&["get", "demo"])).contains("seccomp    yes"));
    assert_eq!(stage.json(&["get", "demo"])["isolation"][0]["mechanism"], "seccomp");
    assert_eq!(
        ok(stage.run(&["suspend", "demo", "--grace", "0s"])),
        "demo is suspended\n"
    );
    assert_eq!(stage.json(&["suspend", "demo"])["sandbox"]["state"], "suspended");
    assert_eq!(ok(stage.run(&["resume", "demo"])), "demo is ready\n");
    assert_eq!(stage.json(&["resume", "demo"])["resumed"], true);
}

#[test]
fn rm_tries_all_and_fails_for_failures_only() {
    let stage = Stage::with_files();
    stage.fake.world().make("other");
    let mixed = stage.run(&["rm", "demo", "stuck", "missing", "other"]);
    assert_eq!(mixed.code, 125);
    assert_eq!(mixed.out, "demo removed\nmissing does not exist\nother removed\n");
    assert_eq!(
        mixed.err,
        "sandgate: stuck: it is stuck (INTERNAL, request req-7)\n  This is a fault of Sandgate: please report it with \
         the request id.\n"
    );
    assert!(stage.fake.world().sandboxes.is_empty());
    assert_eq!(ok(stage.run(&["rm", "missing"])), "missing does not exist\n");
    assert_eq!(stage.json(&["rm", "missing"])["removed"][0]["existed"], false);
}

#[test]
fn update_merges_labels_with_what_others_changed_meanwhile() {
    let stage = Stage::with_files();
    stage.fake.world().rivals = 2;
    let json = stage.json(&["update", "demo", "--label", "mine=1"]);
    assert_eq!(json["labels"], json!({"mine": "1", "rival-0": "", "rival-1": ""}));
    let etags: Vec<String> = stage
        .fake
        .world()
        .updates
        .iter()
        .map(|update| update.etag.clone())
        .collect();
    assert_eq!(etags, ["e1", "e1+", "e1++"]);

    // With the caller's own etag there is one try.
    stage.fake.world().rivals = 1;
    let refused = stage.run(&["update", "demo", "--label", "mine=2", "--etag", "e1"]);
    assert_eq!(refused.code, 125);
    assert!(
        refused
            .err
            .starts_with("sandgate: it has changed (ETAG_MISMATCH, request req-7)\n"),
        "{refused:?}"
    );
}

#[test]
fn watch_goes_on_where_it_was() {
    let stage = Stage::new();
    let sandbox = stage.fake.world().make("demo");
    let event = |event, token: &str| WatchResponse {
        event: Some(event),
        resume_token: token.into(),
    };
    let deleted = SandboxDeleted {
        name: "demo".into(),
        message: "its deadline was reached".into(),
        ..SandboxDeleted::default()
    };
    stage.fake.world().watches = [
        vec![
            event(Event::Sandbox(sandbox), ""),
            event(Event::Synced(WatchSynced {}), "t1"),
        ],
        vec![event(Event::Deleted(deleted), "t2")],
        vec![],
    ]
    .into();
    let did = stage.run(&["watch"]);
    assert_eq!(
        did.out,
        "demo ready\n-- up to date\ndemo gone: its deadline was reached\n"
    );
    assert_eq!(did.code, 125, "the play is over: {did:?}");
    assert_eq!(stage.fake.world().tokens, ["", "t1", "t2", "t2"]);
    assert!(
        did.err
            .contains("the server stops (STOPPING, request req-7); trying to go on"),
        "{did:?}"
    );
}

#[test]
fn files_go_in() {
    let stage = Stage::with_files();
    stage.write("in.txt", "content");
    ok(stage.run(&["cp", "in.txt", "demo:/w"]));
    ok(stage.run(&["cp", "in.txt", "demo:/w/other"]));
    ok(stage.run(&["cp", "in.txt", "demo:/new/"]));
    let big = vec![b'x'; 300_000];
    ok(stage.feed(&["cp", "-", "demo:/w/stdin"], &big));
    let world = stage.fake.world();
    for path in ["/w/in.txt", "/w/other", "/new/in.txt"] {
        assert_eq!(world.files[path], b"content", "{path}");
    }
    assert_eq!(world.files["/w/stdin"], big);
}

#[test]
fn a_refused_upload_ends_at_once_also_while_stdin_is_open() {
    let stage = Stage::with_files();
    let mut child = stage
        .command(&["cp", "-", "demo:/refused/x"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take();
    let did = did(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(did.code, 125);
    assert!(
        did.err
            .starts_with("sandgate: not there (FILE_PERMISSION_DENIED, request req-7)\n"),
        "{did:?}"
    );
}

#[test]
fn directories_go_in_as_a_tar() {
    let stage = Stage::with_files();
    stage.write("dir/one", "1");
    stage.write("dir/sub/two", "2");
    let refused = stage.run(&["cp", "dir", "demo:/w"]);
    assert_eq!((refused.code, refused.err.contains("-r")), (64, true), "{refused:?}");
    for (source, target, directory) in [
        ("dir", "demo:/w", "/w/dir"),
        ("dir/.", "demo:/w", "/w"),
        ("dir", "demo:/new", "/new"),
        ("dir", "demo:/new/", "/new/"),
    ] {
        ok(stage.run(&["cp", "-r", source, target]));
        let (to, tar) = stage.fake.world().tar.take().unwrap();
        assert_eq!(to, directory);
        let found = entries(&tar);
        assert_eq!((found["one"].as_str(), found["sub/two"].as_str()), ("1", "2"));
    }
}

#[test]
fn files_come_out() {
    let stage = Stage::with_files();
    assert_eq!(ok(stage.run(&["cp", "demo:/w/a.txt", "-"])), "alpha");
    ok(stage.run(&["cp", "demo:/w/a.txt", "here"]));
    fs::create_dir(stage.path("dir")).unwrap();
    ok(stage.run(&["cp", "demo:/w/a.txt", "dir"]));
    assert_eq!(
        (stage.read("here"), stage.read("dir/a.txt")),
        ("alpha".into(), "alpha".into())
    );
    let json = stage.json(&["cp", "demo:/w/a.txt", "here"]);
    assert_eq!(json, json!({"entries": 1, "bytes": 5, "failed": 0, "failures": []}));
    assert_eq!(ok(stage.run(&["files", "cat", "demo:/w/a.txt"])), "alpha");

    let missing = stage.run(&["cp", "demo:/w/none", "here"]);
    assert_eq!(
        (missing.code, missing.err.as_str()),
        (1, "sandgate: /w/none: refused (FILE_NOT_FOUND)\n")
    );
    let nowhere = stage.run(&["cp", "demo:/w/a.txt", "no/such/dir"]);
    assert_eq!(nowhere.code, 1, "{nowhere:?}");
    assert!(nowhere.err.starts_with("sandgate: no/such/dir: "), "{nowhere:?}");
}

#[test]
fn a_download_that_is_cut_leaves_what_was_there() {
    let stage = Stage::with_files();
    stage.fake.world().files.insert("/w/big".into(), vec![b'x'; 1 << 20]);
    stage.fake.world().cut = true;
    stage.write("big", "old");
    let cut = stage.run(&["cp", "demo:/w/big", "big"]);
    assert_eq!(cut.code, 125, "{cut:?}");
    assert!(cut.err.contains("the download was cut"), "{cut:?}");
    assert_eq!(stage.read("big"), "old");
    assert_eq!(fs::read_dir(stage.dir.path()).unwrap().count(), 1);
}

#[test]
fn directories_come_out() {
    let stage = Stage::with_files();
    ok(stage.run(&["cp", "-r", "demo:/w", "new"]));
    assert_eq!(
        (stage.read("new/a.txt"), stage.read("new/sub/b.txt")),
        ("alpha".into(), "beta".into())
    );
    ok(stage.run(&["cp", "-r", "demo:/w", "new"]));
    assert_eq!(stage.read("new/w/a.txt"), "alpha");
    ok(stage.run(&["cp", "-r", "demo:/w/.", "new"]));
    let tar = stage.command(&["cp", "-r", "demo:/w", "-"]).output().unwrap();
    assert_eq!(entries(&tar.stdout)["a.txt"], "alpha");
}

#[test]
fn a_hostile_archive_stays_inside() {
    let stage = Stage::with_files();
    stage.write("victim", "precious");
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    archive.append_link(&mut header, "up", "..").unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(4);
    archive.append_data(&mut header, "up/victim", &b"evil"[..]).unwrap();
    archive.append_data(&mut header, "fine", &b"good"[..]).unwrap();
    stage.fake.world().forged = Some(archive.into_inner().unwrap());
    // Without the link there is a directory of its name in its place.
    for (extra, failed) in [
        (&[][..], "sandgate: up: "),
        (&["--keep-links"], "sandgate: up/victim: "),
    ] {
        let did = stage.run(&[&["cp", "-r", "demo:/w", "dst"], extra].concat());
        assert_eq!(did.code, 1, "{did:?}");
        assert!(did.err.starts_with(failed), "{did:?}");
        assert_eq!(
            (stage.read("victim"), stage.read("dst/fine")),
            ("precious".into(), "good".into())
        );
        _ = fs::remove_dir_all(stage.path("dst"));
    }
}

#[test]
fn from_one_sandbox_to_another() {
    let stage = Stage::with_files();
    stage.fake.world().make("other");
    ok(stage.run(&["cp", "demo:/w/a.txt", "other:/copy"]));
    ok(stage.run(&["cp", "-r", "demo:/w", "other:/tree"]));
    let world = stage.fake.world();
    assert_eq!(world.files["/copy"], b"alpha");
    let (to, tar) = world.tar.as_ref().unwrap();
    assert_eq!((to.as_str(), entries(tar)["sub/b.txt"].as_str()), ("/tree", "beta"));
}

#[test]
fn file_commands_print_and_exit() {
    let stage = Stage::with_files();
    assert_eq!(ok(stage.run(&["files", "ls", "demo:/w"])), "a.txt\n\nb.txt\n");
    assert_eq!(stage.json(&["files", "ls", "demo:/w"])["files"][0]["path"], "/w/a.txt");
    assert!(ok(stage.run(&["files", "stat", "demo:/w/a.txt"])).contains("size      5 (5 B)"));
    assert_eq!(
        ok(stage.run(&["files", "grep", "demo:/w", "alph"])),
        "/w/a.txt:1:alpha\n"
    );
    let nothing = stage.run(&["files", "grep", "demo:/w", "gamma"]);
    assert_eq!((nothing.code, nothing.out.as_str(), nothing.err.as_str()), (1, "", ""));
    let rm = stage.run(&["files", "rm", "demo:/w/none", "demo:/w/a.txt"]);
    assert_eq!(rm.code, 1);
    assert_eq!(rm.err, "sandgate: demo: /w/none: refused (FILE_NOT_FOUND)\n");
    assert!(!stage.fake.world().files.contains_key("/w/a.txt"));
    let across = stage.run(&["files", "mv", "demo:/a", "other:/b"]);
    assert_eq!(across.code, 64, "{across:?}");
    let directory = stage.run(&["files", "cat", "demo:/w"]);
    assert_eq!((directory.code, directory.out.as_str()), (1, ""));
}

#[test]
fn the_doctor_makes_a_sandbox_and_removes_it() {
    let stage = Stage::new();
    let page = ok(stage.run(&["doctor"]));
    for part in [
        "(from SANDGATE_ADDR)",
        "token     SANDGATE_TOKEN",
        "seccomp    yes",
        "git      git version 2",
        "python3  no",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    let json = stage.json(&["doctor"]);
    assert_eq!((&json["ok"], &json["provider"]), (&json!(true), &json!("local")));
    let names: Vec<&str> = json["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["server", "create", "isolation", "run", "remove"]);
    assert!(stage.fake.world().sandboxes.is_empty());

    let failed = stage.run(&["doctor", "--template", "none"]);
    assert_eq!(failed.code, 1);
    assert!(
        failed
            .out
            .contains("FAILED  create  no template none (TEMPLATE_NOT_FOUND, request req-7)"),
        "{failed:?}"
    );
    let nowhere = stage.run(&["doctor", "--addr", "unix:///no/such/socket"]);
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.out.contains("FAILED  server"), "{nowhere:?}");
}

#[test]
fn refusals_say_what_to_do() {
    let stage = Stage::new();
    let missing = stage.run(&["get", "none"]);
    assert_eq!(missing.code, 125);
    assert_eq!(
        missing.err,
        "sandgate: no sandbox none (SANDBOX_NOT_FOUND, request req-7)\n  `sandgate ls` shows those that exist.\n"
    );
    let json = stage.run(&["get", "none", "-o", "json"]);
    let error: Value = serde_json::from_str(&json.err).unwrap();
    assert_eq!(
        (json.code, json.out.as_str(), &error["error"]["reason"]),
        (125, "", &json!("SANDBOX_NOT_FOUND"))
    );

    let stranger = stage.run(&["ls", "--token", "wrong"]);
    assert_eq!(stranger.code, 125);
    assert!(
        stranger.err.contains("UNAUTHENTICATED") && stranger.err.contains("SANDGATE_TOKEN"),
        "{stranger:?}"
    );

    let nobody = stage.run(&["ls", "--addr", "unix:///no/such/socket"]);
    assert_eq!(nobody.code, 125);
    assert!(nobody.err.contains("sandgate-server"), "{nobody:?}");
}

#[test]
fn wrong_lines_exit_with_64() {
    let stage = Stage::new();
    for line in [
        "nonsense",
        "create --ttl soon",
        "get",
        "update demo",
        "cp a b",
        "ls --addr ftp://x",
        "files ls /no/sandbox",
        "completion cobol",
    ] {
        let did = stage.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((did.code, did.out.as_str()), (64, ""), "{line}: {did:?}");
    }
    assert_eq!(stage.run(&["--help"]).code, 0);
    assert_eq!(stage.run(&["--version"]).code, 0);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let stage = Stage::with_files();
    stage.fake.world().files.insert("/w/big".into(), vec![b'x'; 4 << 20]);
    for args in [
        &["ls"][..],
        &["cp", "demo:/w/big", "-"],
        &["completion", "bash"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = stage.command(args).stdout(writer).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn man_pages_are_written() {
    let stage = Stage::new();
    ok(stage.run(&["man", "pages"]));
    assert!(Path::new(&stage.path("pages/sandgate-cp.1")).exists());
}
