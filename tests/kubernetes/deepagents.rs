//! LangChain's own suite for sandbox backends, from Python, on a sandbox of the cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{env, path::PathBuf};

use sandgate_kubernetes_tests::{Mode, Space};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn langchains_suite_passes() {
    let tools =
        env::var_os("SANDGATE_TOOLS").expect("SANDGATE_TOOLS names the directory for tools, as the Makefile does");
    let space = Space::new().await;
    let server = space.server(Mode::InCluster).await;
    let run = tokio::process::Command::new(PathBuf::from(tools).join("bin/pytest"))
        .args(["-c", "pyproject.toml", "-q", "tests/deepagents/test_suite.py"])
        .current_dir("../../clients/python")
        .env("SANDGATE_TEST_ADDR", format!("unix://{}", server.socket().display()))
        .env("SANDGATE_TEST_TEMPLATE", "default")
        .output();
    let run = run.await.unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    println!("{said}");
    assert!(run.status.success(), "{said}");
    // All of them, and deepagents' own seven failures beside ours.
    let last = said.lines().last().unwrap();
    assert!(last.contains("7 xfailed"), "{last}");
    space.close().await;
}
