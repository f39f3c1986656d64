//! Paths of a bad form are refused; odd names are ordinary names.

use super::*;

#[tokio::test]
async fn paths_of_a_bad_form_are_refused_by_every_operation() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        let inside = snapshot(&fence.root);
        let (long_path, long_name) = ("x/".repeat(2048), "n".repeat(256));
        for path in ["", "a\0b", "\0", "/dir/f\0", &long_path, &long_name] {
            for op in every_op(path, "/nothing") {
                // To these the empty path is the root; and a pattern is not a path.
                let start = path.is_empty() && matches!(op, Op::Glob(_) | Op::Grep(_));
                if start || matches!(&op, Op::Glob(glob) if glob.path == "/") {
                    continue;
                }
                let outcome = run_op(&mut client, &fence.view(), op.clone()).await;
                let reason = failed(&outcome).reason();
                let missing = matches!(&op, Op::Move(op) if op.from == "/nothing")
                    || matches!(&op, Op::Copy(op) if op.from == "/nothing");
                let expected = reason == ErrorReason::PathInvalid || (missing && reason == ErrorReason::FileNotFound);
                assert!(expected, "{path:?} {op:?}: {outcome:?}");
            }
        }
        // `x/` is a directory or nothing.
        for op in [
            write("new/", ""),
            touch("new/"),
            write("dir/.", ""),
            write("dir/..", ""),
            write("/", ""),
        ] {
            failed(&run_op(&mut client, &fence.view(), op).await);
        }
        let both = Op::Read(ReadOp {
            path: "dir/f".into(),
            path_raw: Bytes::from_static(b"dir/f"),
            ..Default::default()
        });
        assert_eq!(
            failed(&run_op(&mut client, &fence.view(), both).await).reason(),
            ErrorReason::InvalidArgument
        );
        assert_eq!(snapshot(&fence.root), inside);
        fence.check("bad forms");
    })
    .await;
}

#[tokio::test]
async fn names_that_are_not_utf8_are_ordinary_names() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let raw = Bytes::from_static(b"/\xff\xfe");
        let write = WriteOp {
            path_raw: raw.clone(),
            content: Bytes::from_static(b"odd"),
            ..Default::default()
        };
        let stat = StatOp {
            path_raw: raw.clone(),
            ..Default::default()
        };
        let hostile = Bytes::from_static(b"/\xff\xfe/../../outside/secret");
        let out = ReadOp {
            path_raw: hostile,
            ..Default::default()
        };
        let ops = vec![Op::Write(write), Op::Stat(stat), Op::Read(out), list("/", 1)];
        let outcomes = run_ops(&mut client, &fence.view(), ops).await;
        assert_eq!(files::info(outcomes[1].clone()).path_raw, raw);
        failed(&outcomes[2]);
        assert!(
            matches!(&outcomes[3], Outcome::List(list) if list.entries[0].path_raw == raw),
            "{outcomes:?}"
        );
        fence.check("raw names");
    })
    .await;
}

#[tokio::test]
async fn a_tilde_is_a_name() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let ops = vec![mkdir("~", false), write("~/f", "mine"), read("/~/f")];
        let outcomes = run_ops(&mut client, &fence.view(), ops).await;
        assert!(
            matches!(&outcomes[2], Outcome::Read(read) if &read.content[..] == b"mine"),
            "{outcomes:?}"
        );
        assert_eq!(fs::read(fence.root.join("~/f")).unwrap(), b"mine");
    })
    .await;
}
