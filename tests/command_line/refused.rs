//! Lines that make no sense, and sandboxes that are not there.

use super::stage::Stage;

#[tokio::test]
async fn a_wrong_line_says_what_is_meant() {
    let stage = Stage::empty().await;
    for (line, told) in [
        (
            "lss",
            "unrecognized subcommand 'lss'\n\n  tip: a similar subcommand exists: 'ls'",
        ),
        ("files lss demo:.", "tip: a similar subcommand exists: 'ls'"),
        (
            "create --tt 1h",
            "unexpected argument '--tt' found\n\n  tip: a similar argument exists: '--ttl'",
        ),
        ("create a b", "unexpected argument 'b' found"),
        (
            "create --ttl soon",
            "'soon' for '--ttl <SPAN>': expected a span such as 90s, 10m, 1h30m or 7d",
        ),
        (
            "create --ttl 10",
            "'10' for '--ttl <SPAN>': 10 of what? expected a span",
        ),
        ("create --label nonsense", "'nonsense' for '--label <KEY=VALUE>'"),
        ("run", "required arguments were not provided:\n  <COMMAND>..."),
        ("exec", "<NAME>\n  <COMMAND>..."),
        ("exec demo", "<COMMAND>..."),
        (
            "exec demo --env =x -- true",
            "'=x' for '--env <NAME=VALUE>': expected NAME=VALUE",
        ),
        ("exec demo --timeout soon -- true", "'soon' for '--timeout <SPAN>'"),
        (
            "exec demo --detach -i -- true",
            "'--detach' cannot be used with '--interactive'",
        ),
        (
            "exec demo --detach -t -- true",
            "'--detach' cannot be used with '--tty'",
        ),
        ("shell", "<NAME>"),
        ("follow demo", "<EXEC>"),
        ("ps", "<NAME>"),
        ("kill demo", "<EXEC>"),
        (
            "kill demo x --signal FOO",
            "'FOO' for '--signal <SIGNAL>': expected a name such as TERM, or a number from 1 to 64",
        ),
        ("get", "<NAME>"),
        ("update demo --ttl 1h --deadline none", "cannot be used with"),
        (
            "update demo --deadline soon",
            "expected a time such as 2030-01-31T12:00:00Z, or none",
        ),
        ("suspend", "<NAME>"),
        ("resume", "<NAME>"),
        ("rm", "<NAME>..."),
        ("cp one", "<DST>"),
        (
            "files ls demo",
            "'demo' for '<NAME:PATH>': expected NAME:/path, a path in a sandbox",
        ),
        ("files cat --lines 0 demo:x", "expected FIRST:LAST, lines count from 1"),
        ("files edit demo:x --old a", "--new <TEXT>"),
        ("files mkdir -m 9 demo:x", "expected octal digits such as 755"),
        ("files find --limit 0 demo:x", "0 is not in 1..=10000"),
        ("completion", "<SHELL>"),
        ("completion bassh", "tip: a similar value exists: 'bash'"),
        ("man", "<DIR>"),
        (
            "-o xml ls",
            "'xml' for '--output <FORMAT>'\n  [possible values: text, json]",
        ),
        ("", "Usage: sandgate [OPTIONS] <COMMAND>"),
    ] {
        let args: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let did = stage.run(&args).await;
        assert_eq!((did.code, did.text().as_str()), (Some(64), ""), "{line}");
        assert!(did.err.contains(told), "{line}: {told:?} is not in {}", did.err);
        assert!(!did.err.contains('\x1b'), "{line}");
    }
    let across = "sandgate: both paths must be in one sandbox: between two, use `sandgate cp`\n  `--help` shows how.\n";
    stage.refused(&["files", "mv", "demo:x", "other:x"], 64, across).await;
}

#[tokio::test]
async fn no_such_sandbox() {
    let stage = Stage::empty().await;
    stage.write("file", "x");
    let told = "sandgate: there is no sandbox nobody (SANDBOX_NOT_FOUND, request ID)\n  `sandgate ls` shows those that \
                exist.\n";
    for line in [
        "exec nobody -- true",
        "exec nobody --detach -- true",
        "shell nobody",
        "follow nobody x",
        "follow nobody x --new",
        "ps nobody",
        "kill nobody x",
        "get nobody",
        "update nobody --ttl 1h",
        "update nobody --label a=b",
        "suspend nobody",
        "resume nobody",
        "cp file nobody:x",
        "cp nobody:x file",
        "cp nobody:x -",
        "cp nobody:x somebody:x",
        "files ls nobody:.",
        "files cat nobody:x",
        "files stat nobody:x",
        "files find nobody:.",
        "files grep nobody:. x",
        "files edit nobody:x --old a --new b",
        "files mv nobody:x nobody:y",
        "files mkdir nobody:x",
    ] {
        stage.refused(&line.split(' ').collect::<Vec<_>>(), 125, told).await;
    }
}

#[tokio::test]
async fn a_suspended_sandbox_is_not_woken_by_itself() {
    let stage = Stage::new().await;
    stage.sh("echo x > x").await;
    stage.ok(&["exec", "demo", "--id", "old", "--", "true"]).await;
    stage.ok(&["suspend", "demo"]).await;
    let told = "sandgate: sandbox demo is suspended; resume it, or ask for auto_resume (SANDBOX_SUSPENDED, request ID)\n  \
                Bring it back with `sandgate resume`.\n";
    for line in [
        "exec demo -- true",
        "follow demo old",
        "ps demo",
        "kill demo old",
        "files ls demo:.",
        "files cat demo:x",
        "files stat demo:x",
        "files find demo:.",
        "files grep demo:. x",
        "files edit demo:x --old a --new b",
        "files mv demo:x demo:y",
        "files mkdir demo:y",
    ] {
        stage.refused(&line.split(' ').collect::<Vec<_>>(), 125, told).await;
    }
    // Looking at it, and changing when it ends, wakes nothing.
    stage.ok(&["get", "demo"]).await;
    stage.ok(&["update", "demo", "--ttl", "1h"]).await;
    assert_eq!(stage.json(&["get", "demo"]).await["state"], "suspended");
    assert_eq!(stage.ok(&["files", "cat", "--resume", "demo:x"]).await, "x\n");
    assert_eq!(stage.json(&["get", "demo"]).await["state"], "ready");
}
