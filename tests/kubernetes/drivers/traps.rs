//! What is known to go wrong with those that are not ours, and must not go wrong for callers.

use sandgate::{Command, Sandbox, v1};
use sandgate_kubernetes_tests::{Mode, until};
use sandgate_tests::conformance::{new_name, sh};

use super::{in_time, stage};

macro_rules! trapped {
    ($($name:ident: $driver:literal, $mode:ident, $outlives:literal);+ $(;)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            in_time(async {
                let (space, mut server) = stage($driver, Mode::$mode).await;
                let made = server.client().await.create().name(new_name()).send().await.unwrap();
                nobody_waits_for_stdin(&made.sandbox).await;
                children_do_not_hold_the_exit(&made.sandbox).await;
                long_commands_are_refused(&made.sandbox).await;
                let before = begin(&made.sandbox).await;
                server.kill();
                server.restart().await;
                let found = server.client().await.sandbox(&made.info.name);
                nothing_runs_again(&found, before, $outlives).await;
                found.delete().await.unwrap();
                space.close().await;
            })
            .await;
        }
    )+};
}

trapped! {
    sandboxd: "sandboxd", InCluster, false;
    python_runtime: "python-runtime", InCluster, true;
    exec: "exec", Tunnel, true;
}

/// Who was not given a stdin reads its end.
async fn nobody_waits_for_stdin(sandbox: &Sandbox) {
    assert_eq!(sh(sandbox, "cat; echo over").await, "over\n");
}

/// What a command leaves running keeps its output open, and its exit is told nevertheless.
async fn children_do_not_hold_the_exit(sandbox: &Sandbox) {
    assert_eq!(sh(sandbox, "sleep 600 & echo done").await, "done\n");
}

/// What holds up the python-runtime never gets there.
async fn long_commands_are_refused(sandbox: &Sandbox) {
    for length in [64 << 10, 128 << 10, 1 << 20] {
        let long = Command::shell(format!(": {}", "x".repeat(length)));
        let refused = sandbox.run(long).send().await.unwrap_err();
        assert_eq!(
            refused.reason(),
            Some(v1::ErrorReason::InvalidArgument),
            "{length}: {refused:?}"
        );
    }
    let fits = format!(": {}; echo fits", "x".repeat(50_000));
    assert_eq!(sh(sandbox, &fits).await, "fits\n");
}

/// Starts a command that runs for long, and gives its process.
async fn begin(sandbox: &Sandbox) -> String {
    sandbox.start(lasting()).await.unwrap();
    until(async || sh(sandbox, "cat begun 2>/dev/null || true").await.ends_with('\n')).await;
    sh(sandbox, "cat begun").await.trim().to_owned()
}

fn lasting() -> Command {
    Command::shell("echo $$ >>begun; exec sleep 600").id("lasting")
}

/// The server that held the stream is gone. Whether the command is gone too is the driver's way; it is not run twice.
async fn nothing_runs_again(sandbox: &Sandbox, process: String, outlives: bool) {
    let again = sandbox.run(lasting()).send().await;
    match again {
        Ok(done) => {
            let failure = done.exec.unwrap().start_failure.unwrap();
            assert!(failure.message.contains("not run again"), "{failure:?}");
        }
        Err(error) => assert_eq!(error.reason(), Some(v1::ErrorReason::ExecExpired), "{error:?}"),
    }
    assert_eq!(sh(sandbox, "cat begun").await.trim(), process);
    let lives = format!("test -d /proc/{process} && echo lives || echo gone");
    if outlives {
        assert_eq!(sh(sandbox, &lives).await, "lives\n");
    } else {
        until(async || sh(sandbox, &lives).await == "gone\n").await;
    }
}
