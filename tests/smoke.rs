//! The first things anyone would try.
#![allow(clippy::unwrap_used, reason = "tests")]

use sandgate_proto::runtime::v1::{ExecOffsets, ExecState, exec_exit::Status};
use sandgate_tests::{Runtime, argv, collect, new_id, run_request, shell};

#[tokio::test]
async fn runs_a_command_with_and_without_cgroups() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        let id = new_id("run");
        let spec = shell("echo out; echo err >&2; pwd; exit 3");
        let answer = client.run(run_request(&id, spec)).await.unwrap().into_inner();
        let exec = answer.exec.unwrap();
        assert_eq!(exec.state(), ExecState::Exited, "{exec:?}");
        assert_eq!(exec.exit.unwrap().status, Some(Status::Code(3)));
        let expected = format!("out\n{}\n", runtime.workspace().display());
        assert_eq!(String::from_utf8_lossy(&answer.stdout.unwrap().head), expected);
        assert_eq!(&answer.stderr.unwrap().head[..], b"err\n");
        let output = collect(&mut client, &id, ExecOffsets::default()).await;
        assert_eq!(
            (output.stdout.len(), &output.stderr[..]),
            (expected.len(), &b"err\n"[..])
        );
        let missing = client
            .run(run_request(&new_id("no"), argv(&["no-such-program"])))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(missing.exec.unwrap().state(), ExecState::StartFailed);
    }
}
