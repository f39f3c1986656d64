//! What is in a file: windows of it, and what writes and edits keep.

use super::*;

#[tokio::test]
async fn windows_of_bytes_and_lines() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        fs::write(runtime.workspace().join("f"), "zero\none\r\ntwo\nlast").unwrap();
        fs::write(runtime.workspace().join("b"), b"bin\0ary").unwrap();
        fs::write(runtime.workspace().join("e"), b"").unwrap();
        let window = |path: &str, window, max_bytes| {
            Op::Read(ReadOp {
                path: path.into(),
                window: Some(window),
                max_bytes,
                ..Default::default()
            })
        };
        let lines = |first, count, max| window("f", Window::Lines(LineWindow { first, count }), max);
        let bytes = |offset, length| window("f", Window::Bytes(ByteWindow { offset, length }), 0);
        let ops = vec![
            lines(1, 2, 0),
            lines(3, 0, 0),
            lines(9, 1, 0),
            lines(0, 0, 12),
            lines(0, 0, 2),
            bytes(5, 3),
            bytes(99, 1),
            read("b"),
            window("e", Window::Lines(LineWindow { first: 0, count: 0 }), 0),
        ];
        let outcomes = run_ops(&mut client, &view, ops).await;
        let facts = |at: usize| {
            let read = content(&outcomes[at]);
            let text = String::from_utf8_lossy(&read.content).into_owned();
            (
                text,
                read.offset,
                read.first_line,
                read.line_count,
                read.more_before,
                read.more_after,
            )
        };
        assert_eq!(facts(0), ("one\r\ntwo\n".into(), 5, 1, 2, true, true));
        assert_eq!(content(&outcomes[0]).total_lines, 4);
        assert_eq!(facts(1), ("last".into(), 14, 3, 1, true, false));
        let (text, _, _, count, before, after) = facts(2);
        assert_eq!((text.as_str(), count, before, after), ("", 0, true, false));
        assert_eq!(facts(3), ("zero\none\r\n".into(), 0, 0, 2, false, true));
        let (text, _, _, _, before, after) = facts(4);
        assert_eq!((text.as_str(), before, after), ("ze", false, true));
        assert_eq!(facts(5), ("one".into(), 5, 0, 0, true, true));
        let (text, _, _, _, before, after) = facts(6);
        assert_eq!((text.as_str(), before, after), ("", true, false));
        assert!(content(&outcomes[7]).binary && !content(&outcomes[5]).binary);
        assert_eq!(content(&outcomes[8]).total_lines, 0);
    })
    .await;
}

#[tokio::test]
async fn writes_and_edits_keep_what_they_should() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        fs::write(work.join("crlf"), "a\r\nb\r\nb\r\n").unwrap();
        fs::set_permissions(work.join("crlf"), fs::Permissions::from_mode(0o4750)).unwrap();
        std::os::unix::fs::chown(work.join("crlf"), Some(1234), Some(1234)).unwrap();
        fs::set_permissions(work.join("crlf"), fs::Permissions::from_mode(0o750)).unwrap();
        let all = Op::Edit(EditOp {
            path: "crlf".into(),
            old_text: Bytes::from_static(b"b\n"),
            new_text: Bytes::from_static(b"c\nd\n"),
            replace_all: true,
            ..Default::default()
        });
        let outcome = run_op(&mut client, &view, all).await;
        assert!(
            matches!(&outcome, Outcome::Edit(edit) if edit.replacements == 2),
            "{outcome:?}"
        );
        assert_eq!(fs::read(work.join("crlf")).unwrap(), b"a\r\nc\r\nd\r\nc\r\nd\r\n");
        let kept = fs::metadata(work.join("crlf")).unwrap();
        assert_eq!((kept.mode() & 0o7777, kept.uid(), kept.gid()), (0o750, 1234, 1234));
        let deep = Op::Write(WriteOp {
            path: "x/y/z".into(),
            content: Bytes::from_static(b"deep"),
            make_parents: true,
            mode: Some(0o601),
            ..Default::default()
        });
        assert_eq!(info(run_op(&mut client, &view, deep).await).mode, 0o601);
        let modified = Timestamp {
            seconds: 1_000_000_000,
            nanos: 123_456_789,
        };
        let old = Op::Touch(TouchOp {
            path: "x/y/z".into(),
            modified: Some(modified),
            ..Default::default()
        });
        assert_eq!(info(run_op(&mut client, &view, old).await).modified, Some(modified));
        let stale = FileVersion {
            version: Some(Version::Sha256(Bytes::from(vec![0; 32]))),
        };
        let guarded = Op::Write(WriteOp {
            path: "x/y/z".into(),
            expected: Some(stale),
            ..Default::default()
        });
        assert_eq!(
            failed(&run_op(&mut client, &view, guarded).await).reason(),
            ErrorReason::FileVersionMismatch
        );
        assert_eq!(fs::read(work.join("x/y/z")).unwrap(), b"deep");
    })
    .await;
}
