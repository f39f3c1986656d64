//! Paths that callers name and that what runs inside has bent: links in the sandbox lead to places in the sandbox.

use std::fs;

use sandgate::{Command, Sandbox, v1};
use tokio_stream::StreamExt as _;

use super::{NOBODY, host::Host, in_time, make, python, run, said, server, text, works};

/// Descriptors that PID 1 may have.
const DESCRIPTORS: std::ops::Range<u32> = 0..32;
/// More than any path here is deep.
const UP: &str = "/../../../../../../../../../..";

/// Links with which one would get at a file of the host, if they were followed outside.
fn bent(path: &str) -> Vec<String> {
    let mut ways = vec![
        path.to_owned(),
        format!("{UP}{path}"),
        format!("..{UP}{path}"),
        format!("/proc/1/root{path}"),
        format!("/proc/self/root{path}"),
        format!("/proc/1/cwd{UP}{path}"),
        format!("/proc/self/cwd{UP}{path}"),
        format!("/proc/thread-self/root{path}"),
        format!("/dev/fd/9{UP}{path}"),
    ];
    ways.extend(DESCRIPTORS.map(|number| format!("/proc/self/fd/{number}{UP}{path}")));
    ways.extend(DESCRIPTORS.map(|number| format!("/proc/1/fd/{number}{UP}{path}")));
    ways
}

fn file_op(op: v1::file_op::Op) -> v1::FileOp {
    v1::FileOp { op: Some(op) }
}

async fn reading(template: &str, uid: Option<u32>) {
    let server = server(uid).await;
    let client = server.client().await;
    let host = Host::new();
    let sandbox = make(&client, template, "reader").await;
    let mut links = Vec::new();
    for file in &host.files {
        links.extend(bent(file.path().to_str().unwrap()));
    }
    links.extend(bent("/etc/shadow"));
    let script = "
import os, sys
for number, target in enumerate(sys.stdin.read().split()):
    os.symlink(target, f'/workspace/link{number}')
    os.symlink(os.path.dirname(target), f'/workspace/directory{number}')
";
    let mut making = sandbox.exec(python(script).stdin());
    let mut stdin = making.stdin().unwrap();
    stdin.write(links.join("\n")).await.unwrap();
    stdin.close().await.unwrap();
    assert!(making.wait().await.unwrap().success());
    let shadow = fs::read_to_string("/etc/shadow").unwrap();
    let secret = shadow.lines().next().unwrap();
    let outside = |found: &[u8]| {
        let found = String::from_utf8_lossy(found);
        found.contains(&host.secret) || found.contains(secret)
    };
    // The file is read where it is there, so that a failure says something.
    sandbox.upload("/tmp/there", "inside").await.unwrap();
    said(&sandbox, Command::shell("ln -s /tmp/there /workspace/fine")).await;
    assert_eq!(sandbox.download("/workspace/fine").await.unwrap(), "inside");
    let mut ops = Vec::new();
    for (number, target) in links.iter().enumerate() {
        let name = target.rsplit('/').next().unwrap();
        for path in [
            format!("/workspace/link{number}"),
            format!("/workspace/directory{number}/{name}"),
            target.clone(),
        ] {
            ops.push(file_op(v1::file_op::Op::Read(v1::ReadOp {
                path: path.clone(),
                ..Default::default()
            })));
            if number % 8 == 0
                && let Ok(found) = sandbox.download(&path).await
            {
                assert!(!outside(&found), "{path} -> {target}");
            }
        }
    }
    for ops in ops.chunks(500) {
        for result in sandbox.file_ops(ops.to_vec()).await.unwrap() {
            if let Some(v1::file_op_result::Result::Read(read)) = result.result {
                assert!(!outside(&read.content), "{read:?}");
            }
        }
    }
    let mut tar = std::pin::pin!(sandbox.download_tar("/workspace").await.unwrap());
    let mut whole = Vec::new();
    while let Some(chunk) = tar.next().await {
        whole.extend_from_slice(&chunk.unwrap());
    }
    assert!(!outside(&whole));
    host.assert_alone();
    sandbox.delete().await.unwrap();
}

#[tokio::test]
async fn links_are_read_inside() {
    in_time(reading("default", None)).await;
}

#[tokio::test]
async fn links_of_root_are_read_inside() {
    in_time(reading("root", None)).await;
}

#[tokio::test]
async fn links_are_read_inside_where_the_server_is_an_ordinary_user() {
    in_time(reading("default", Some(NOBODY))).await;
}

async fn writing(template: &str, uid: Option<u32>) {
    let server = server(uid).await;
    let client = server.client().await;
    let host = Host::new();
    let sandbox = make(&client, template, "writer").await;
    let theirs = tempfile::Builder::new().prefix("sandgate-").tempdir().unwrap();
    fs::set_permissions(theirs.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let target = theirs.path().to_str().unwrap();
    for (number, way) in bent(target).into_iter().enumerate() {
        let link = format!("/workspace/d{number}");
        let symlink = v1::SymlinkOp {
            path: link.clone(),
            target: way.clone(),
            ..Default::default()
        };
        sandbox
            .file_ops(vec![file_op(v1::file_op::Op::Symlink(symlink))])
            .await
            .unwrap();
        // Whether it is refused or made inside is another suite's question.
        let _ = sandbox.upload(&format!("{link}/file"), "written").await;
        let _ = sandbox.upload(&format!("{way}/file"), "written").await;
        assert_eq!(fs::read_dir(theirs.path()).unwrap().count(), 0, "{way}");
    }
    // A file of the host by its own name; the same name inside is the sandbox's own.
    let file = host.files.iter().find(|file| file.path().starts_with("/tmp")).unwrap();
    let path = file.path().to_str().unwrap();
    sandbox.upload(path, "of the sandbox").await.unwrap();
    assert_eq!(sandbox.download(path).await.unwrap(), "of the sandbox");
    host.assert_alone();
    archives(&sandbox, &host, target).await;
    assert_eq!(fs::read_dir(theirs.path()).unwrap().count(), 0);
    host.assert_alone();
    works(&sandbox).await;
    sandbox.delete().await.unwrap();
}

/// Entries that lead out by their names, through links before them, or by links to what is there already.
async fn archives(sandbox: &Sandbox, host: &Host, target: &str) {
    let file = host.files[0].path().to_str().unwrap();
    let link = |kind, name: &str, to: &str| (kind, name.to_owned(), to.to_owned());
    let (plain, symbolic, hard) = (tar::EntryType::Regular, tar::EntryType::Symlink, tar::EntryType::Link);
    let mut archives = vec![
        vec![link(plain, &format!("../../../../../../../..{file}"), "")],
        vec![link(plain, file, "")],
        vec![link(hard, "hard", file), link(plain, "hard", "")],
        vec![
            link(hard, "hard", &format!("../../../../../../../..{file}")),
            link(plain, "hard", ""),
        ],
        vec![link(tar::EntryType::Char, "device", "")],
        vec![link(tar::EntryType::Block, "disk", "")],
    ];
    for way in bent(target) {
        archives.push(vec![link(symbolic, "way", &way), link(plain, "way/file", "")]);
        archives.push(vec![
            link(symbolic, "leaf", &format!("{way}/file")),
            link(plain, "leaf", ""),
        ]);
    }
    for (number, entries) in archives.into_iter().enumerate() {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, to) in &entries {
            let mut header = tar::Header::new_gnu();
            // As it is: the builder's own way refuses such names.
            let field = &mut header.as_old_mut().name;
            if name.len() > field.len() {
                continue;
            }
            field[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o6777);
            if !to.is_empty() && to.len() <= 100 {
                header.set_link_name_literal(to).unwrap();
            }
            let content: &[u8] = if *kind == plain { b"written" } else { b"" };
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content).unwrap();
        }
        let whole = bytes::Bytes::from(builder.into_inner().unwrap());
        let into = format!("/workspace/archive{number}");
        let _ = sandbox.upload_tar(&into, tokio_stream::iter([whole])).await;
    }
    let devices = said(sandbox, Command::shell("find /workspace -type b -o -type c")).await;
    assert_eq!(devices, "");
}

#[tokio::test]
async fn nothing_is_written_outside() {
    in_time(writing("default", None)).await;
}

#[tokio::test]
async fn nothing_is_written_outside_for_root() {
    in_time(writing("root", None)).await;
}

#[tokio::test]
async fn nothing_is_written_outside_where_the_server_is_an_ordinary_user() {
    in_time(writing("default", Some(NOBODY))).await;
}

/// PID 1 works in directories outside, by descriptor. A command that began in one of them would walk up from there.
async fn beginning(template: &str, uid: Option<u32>) {
    let server = server(uid).await;
    let client = server.client().await;
    let host = Host::new();
    let sandbox = make(&client, template, "walker").await;
    let socket = host.socket();
    let relative = socket.to_str().unwrap().trim_start_matches('/');
    let look = format!("import os; print(os.path.exists({relative:?}), os.path.exists('workspace'))");
    // The same look succeeds from where the file is.
    assert_eq!(said(&sandbox, python(&look).cwd("/")).await, "False True\n");
    for process in ["self", "1"] {
        for number in DESCRIPTORS {
            let place = format!("/proc/{process}/fd/{number}");
            for cwd in [place.clone(), format!("{place}/.."), format!("{place}{UP}")] {
                let answer = run(&sandbox, python(&look).cwd(&cwd)).await;
                let exec = answer.exec.unwrap();
                assert!(exec.start_failure.is_some(), "{cwd}: {}", text(answer.stdout));
            }
            let program = format!("{place}{UP}/usr/bin/true");
            let answer = run(&sandbox, Command::new([program.clone()])).await;
            assert!(answer.exec.unwrap().start_failure.is_some(), "{program}");
        }
    }
    // By a link that was laid inside, which the caller knows nothing of.
    let lay = format!("for n in $(seq 0 31); do ln -s /proc/self/fd/$n{UP} /workspace/p$n; done");
    said(&sandbox, Command::shell(lay)).await;
    for number in DESCRIPTORS {
        let answer = run(&sandbox, python(&look).cwd(format!("/workspace/p{number}"))).await;
        assert!(answer.exec.unwrap().start_failure.is_some(), "{number}");
    }
    for root in ["/proc/self/root", "/proc/self/cwd", "/proc/self/root/../../.."] {
        let answer = run(&sandbox, python(&look).cwd(root)).await;
        assert_eq!(text(answer.stdout), "False True\n", "{root}");
    }
    host.assert_alone();
    sandbox.delete().await.unwrap();
}

#[tokio::test]
async fn no_command_begins_outside() {
    in_time(beginning("default", None)).await;
}

#[tokio::test]
async fn no_command_of_root_begins_outside() {
    in_time(beginning("root", None)).await;
}

#[tokio::test]
async fn no_command_begins_outside_where_the_server_is_an_ordinary_user() {
    in_time(beginning("default", Some(NOBODY))).await;
}
