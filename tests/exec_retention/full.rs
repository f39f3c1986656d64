//! Output that can't be spilled is lost, and nothing else.

use super::*;

/// A small file system over a directory. It goes with the value.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(at: PathBuf, size: &str) -> Self {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&at)
            .status();
        assert!(mount.unwrap().success(), "this test needs root, to mount");
        Self(at)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Runs far more output than memory holds, and says what was left of it.
async fn run_without_room(runtime: &Runtime) -> Output {
    let mut client = runtime.connect().await;
    let source = Source::new(runtime, 6 * MIB, 2 * MIB);
    start(&mut client, "roomless", shell("cat err >&2 & cat out; wait")).await;
    let exec = ended(&mut client, "roomless").await;
    assert!(succeeded(&exec), "{exec:?}");
    let output = collect(&mut client, "roomless", ExecOffsets::default()).await;
    source.check(&output);
    assert!(!output.gaps.is_empty(), "there was room after all");
    // Another one is as well off.
    start(&mut client, "next", shell("head -c 100000 out")).await;
    assert!(succeeded(&ended(&mut client, "next").await));
    let next = collect(&mut client, "next", ExecOffsets::default()).await;
    assert!(next.gaps.is_empty() && next.stdout == source.stdout[..100_000]);
    output
}

#[tokio::test]
async fn a_full_disk_makes_a_gap_and_fails_nothing() {
    let runtime = Runtime::with_args(&["--memory-bytes", "1048576"]).await;
    let _full = Tmpfs::new(runtime.state_dir().join("output"), "512k");
    let output = run_without_room(&runtime).await;
    assert!(output.stdout.len() + output.stderr.len() >= MIB / 2);
}

#[tokio::test]
async fn a_broken_disk_makes_a_gap_and_fails_nothing() {
    let runtime = Runtime::with_args(&["--memory-bytes", "1048576"]).await;
    let spill = runtime.state_dir().join("output");
    fs::remove_dir_all(&spill).unwrap();
    fs::write(&spill, "not a directory").unwrap();
    let output = run_without_room(&runtime).await;
    assert!(output.stdout.len() + output.stderr.len() >= MIB / 2);
}

#[tokio::test]
async fn where_nothing_can_be_spilled_a_held_process_still_waits() {
    let runtime = Runtime::with_args(&["--memory-bytes", "1048576"]).await;
    let _full = Tmpfs::new(runtime.state_dir().join("output"), "64k");
    let mut client = runtime.connect().await;
    let source = Source::new(&runtime, 8 * MIB, 4 * MIB);
    let spec = ExecSpec {
        retain_bytes: 64 * MIB as u64,
        ..held()
    };
    let (_requests, mut events) = exec_stream(&mut client, "stuck", spec).await;
    let exec = stand_still(&mut client, "stuck").await;
    assert_eq!(exec.state(), ExecState::Running, "{exec:?}");
    let mut output = Output::default();
    while let Some(event) = next_on(&mut events).await {
        output.take(event);
    }
    assert!(output.gaps.is_empty(), "{:?}", output.gaps);
    source.check(&output);
}
