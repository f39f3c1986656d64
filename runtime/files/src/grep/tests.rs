use std::{
    ffi::OsStr,
    fs::{create_dir_all, write},
    io::{Seek as _, Write as _},
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
};

use prost::Message as _;
use sandgate_proto::runtime::v1::FileView;
use tempfile::TempDir;

use super::*;
use crate::view::Defaults;

const BUDGET: usize = 3 << 20;

fn view(root: &Path) -> View {
    let proto = FileView {
        root_dir: root.to_str().unwrap().to_owned(),
        ..FileView::default()
    };
    let cwd = PathBuf::from("/");
    View::open(&proto, &Defaults { user: None, cwd }).unwrap()
}

fn tree(files: &[(&str, &str)]) -> (TempDir, View) {
    let root = TempDir::new().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        create_dir_all(path.parent().unwrap()).unwrap();
        write(path, content).unwrap();
    }
    let view = view(root.path());
    (root, view)
}

fn op(pattern: &str) -> GrepOp {
    GrepOp {
        pattern: pattern.to_owned(),
        ..GrepOp::default()
    }
}

/// As grep prints it: `path:number:text`, with `-` for context lines.
fn print(result: &GrepResult) -> Vec<String> {
    let mut lines = Vec::new();
    for file in &result.files {
        for line in &file.lines {
            let mark = if line.context { '-' } else { ':' };
            lines.push(format!(
                "{}{mark}{}{mark}{}",
                file.path,
                line.number,
                String::from_utf8_lossy(&line.text)
            ));
        }
    }
    lines
}

fn grep(view: &View, op: GrepOp) -> Vec<String> {
    print(&run(view, op, BUDGET).unwrap())
}

#[test]
fn finds_lines_in_order_of_paths() {
    let (_root, view) = tree(&[
        ("b/x", "one\ntwo\r\nthree"),
        ("b.c", "Two\n"),
        ("a", "nothing\n"),
        ("c", "a.b\naxb\n"),
        (".h/f", "two\n"),
    ]);
    assert_eq!(grep(&view, op("tw.")), ["/.h/f:1:two", "/b/x:2:two"]);
    assert_eq!(
        grep(
            &view,
            GrepOp {
                ignore_case: true,
                ..op("TWO$")
            }
        ),
        ["/.h/f:1:two", "/b.c:1:Two"]
    );
    assert_eq!(
        grep(
            &view,
            GrepOp {
                literal: true,
                ..op("a.b")
            }
        ),
        ["/c:1:a.b"]
    );
    assert_eq!(
        grep(
            &view,
            GrepOp {
                skip_hidden: true,
                ..op("^two")
            }
        ),
        ["/b/x:2:two"]
    );
    assert_eq!(
        grep(
            &view,
            GrepOp {
                path: "b/x".into(),
                ..op("three")
            }
        ),
        ["/b/x:3:three"]
    );
    assert_eq!(
        grep(
            &view,
            GrepOp {
                path: "b".into(),
                ..op("three")
            }
        ),
        ["/b/x:3:three"]
    );
    let result = run(&view, op("nowhere"), BUDGET).unwrap();
    assert_eq!(
        (result.files_searched, result.files.len(), result.truncated),
        (5, 0, false)
    );
}

#[test]
fn context_and_limits() {
    let (_root, view) = tree(&[("f", "1\nx2\n3\n4\n5\n6\nx7\nx8\n9\n"), ("g", "x\nx\nx\n")]);
    let context = GrepOp { context: 1, ..op("x") };
    assert_eq!(
        grep(
            &view,
            GrepOp {
                path: "f".into(),
                ..context.clone()
            }
        ),
        ["/f-1-1", "/f:2:x2", "/f-3-3", "/f-6-6", "/f:7:x7", "/f:8:x8", "/f-9-9"]
    );
    let result = run(
        &view,
        GrepOp {
            max_per_file: 1,
            ..context.clone()
        },
        BUDGET,
    )
    .unwrap();
    assert_eq!(print(&result), ["/f-1-1", "/f:2:x2", "/f-3-3", "/g:1:x"]);
    assert!(result.truncated);
    let result = run(
        &view,
        GrepOp {
            max_total: 1,
            ..context.clone()
        },
        BUDGET,
    )
    .unwrap();
    assert_eq!(print(&result), ["/f-1-1", "/f:2:x2", "/f-3-3"]);
    assert!(result.truncated);
    let result = run(
        &view,
        GrepOp {
            max_total: 4,
            ..op("x")
        },
        BUDGET,
    )
    .unwrap();
    assert_eq!((print(&result).len(), result.truncated), (4, true));
    let result = run(
        &view,
        GrepOp {
            max_total: 6,
            max_per_file: 3,
            ..op("x")
        },
        BUDGET,
    )
    .unwrap();
    assert_eq!((print(&result).len(), result.truncated), (6, false));
}

#[test]
fn an_answer_keeps_to_its_budget() {
    let long = format!("{}\n", "x".repeat(100_000)).repeat(3);
    let (_root, view) = tree(&[("a", &long), ("b", "x\n")]);
    let result = run(&view, op("x"), BUDGET).unwrap();
    assert_eq!(result.files[0].lines[0].text.len(), 64 * 1024);
    assert!(!result.truncated);
    for budget in [0, 10, 70_000, 150_000, 190_000] {
        let result = run(&view, op("x"), budget).unwrap();
        assert!(
            result.truncated && result.encoded_len() <= budget + 64,
            "{budget}: {}",
            result.encoded_len()
        );
    }
}

#[test]
fn binary_unreadable_and_odd_files() {
    let (root, view) = tree(&[("bin", "x\n\0\n"), ("text", "x\n")]);
    write(root.path().join(OsStr::from_bytes(b"n\xff")), b"x\xfe\n").unwrap();
    symlink("/etc/passwd", root.path().join("link")).unwrap();
    symlink("text", root.path().join("inner")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.path().join("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let result = run(&view, op("x"), BUDGET).unwrap();
    assert_eq!(
        (result.files_searched, result.files_binary, result.files_unreadable),
        (2, 1, 0)
    );
    assert_eq!(result.files[0].path_raw.as_ref(), b"/n\xff");
    assert_eq!(result.files[0].lines[0].text.as_ref(), b"x\xfe");
    assert_eq!(result.files[1].path, "/text");
    let fifo = run(
        &view,
        GrepOp {
            path: "fifo".into(),
            ..op("x")
        },
        BUDGET,
    )
    .unwrap_err();
    assert_eq!(fifo.reason, ErrorReason::FileNotRegular);
}

#[test]
fn include_and_exclude() {
    let (_root, view) = tree(&[
        ("a.rs", "x\n"),
        ("a.py", "x\n"),
        ("src/b.rs", "x\n"),
        ("src/gen/c.rs", "x\n"),
        ("target/d.rs", "x\n"),
    ]);
    let table: &[(&[&str], &[&str], &[&str])] = &[
        (&["*.rs"], &[], &["/a.rs", "/src/b.rs", "/src/gen/c.rs", "/target/d.rs"]),
        (&["*.rs"], &["target"], &["/a.rs", "/src/b.rs", "/src/gen/c.rs"]),
        (&["*.rs", "*.py"], &["target/", "gen"], &["/a.py", "/a.rs", "/src/b.rs"]),
        (&["src/*.rs"], &[], &["/src/b.rs"]),
        (&["src/**/*.rs"], &["**/c.*"], &["/src/b.rs"]),
        (&["/*.{rs,py}"], &["a.py"], &["/a.rs"]),
        (&[], &["*"], &[]),
    ];
    for (include, exclude, expected) in table {
        let strings = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
        let op = GrepOp {
            include: strings(include),
            exclude: strings(exclude),
            ..op("x")
        };
        let result = run(&view, op, BUDGET).unwrap();
        let files: Vec<&str> = result.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(&files, expected, "{include:?} {exclude:?}");
    }
}

#[test]
fn ignore_files_are_honoured_only_when_asked() {
    let (root, view) = tree(&[
        (".gitignore", "*.log\n/build\n# comment\n!keep.log\n"),
        ("a.log", "x\n"),
        ("keep.log", "x\n"),
        ("build/f", "x\n"),
        ("sub/build/f", "x\n"),
        ("sub/.gitignore", "!b.log\n"),
        ("sub/b.log", "x\n"),
        ("sub/c.log", "x\n"),
        ("z/.ignore", "f\n"),
        ("z/f", "x\n"),
        ("z/g", "x\n"),
    ]);
    // It leads nowhere, or out: it is not read.
    symlink("/etc/passwd", root.path().join("sub/.ignore")).unwrap();
    assert_eq!(run(&view, op("x"), BUDGET).unwrap().files.len(), 8);
    let honoured = grep(
        &view,
        GrepOp {
            honour_ignore_files: true,
            ..op("x")
        },
    );
    assert_eq!(
        honoured,
        ["/keep.log:1:x", "/sub/b.log:1:x", "/sub/build/f:1:x", "/z/g:1:x"]
    );
}

#[test]
fn many_files_give_the_same_answer_as_few() {
    let root = TempDir::new().unwrap();
    let mut expected = Vec::new();
    for dir in 0..40 {
        create_dir_all(root.path().join(format!("d{dir}"))).unwrap();
        for file in 0..50 {
            let path = format!("d{dir}/f{file}");
            write(
                root.path().join(&path),
                format!("needle {path}\n{}", "hay\n".repeat(file)),
            )
            .unwrap();
            expected.push(format!("/{path}:1:needle {path}"));
        }
    }
    expected.sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));
    let view = view(root.path());
    let all = run(
        &view,
        GrepOp {
            max_total: 100_000,
            ..op("needle")
        },
        BUDGET,
    )
    .unwrap();
    assert_eq!(print(&all), expected);
    assert_eq!((all.files_searched, all.truncated), (2000, false));
    let some = run(
        &view,
        GrepOp {
            max_total: 700,
            ..op("needle")
        },
        BUDGET,
    )
    .unwrap();
    assert_eq!(print(&some), expected[..700]);
    assert!(some.truncated);
}

#[test]
fn errors_have_their_reasons() {
    let (_root, view) = tree(&[("a", "")]);
    let reason = |op| run(&view, op, BUDGET).unwrap_err().reason;
    assert_eq!(reason(op("(")), ErrorReason::PatternInvalid);
    assert_eq!(reason(op("")), ErrorReason::PatternInvalid);
    assert_eq!(reason(op("a\nb")), ErrorReason::PatternInvalid);
    assert_eq!(
        reason(GrepOp {
            include: vec!["[".into()],
            ..op("x")
        }),
        ErrorReason::PatternInvalid
    );
    assert_eq!(
        reason(GrepOp {
            path: "none".into(),
            ..op("x")
        }),
        ErrorReason::FileNotFound
    );
    assert_eq!(
        reason(GrepOp {
            context: 101,
            ..op("x")
        }),
        ErrorReason::InvalidArgument
    );
    assert_eq!(
        reason(GrepOp {
            max_total: 100_001,
            ..op("x")
        }),
        ErrorReason::InvalidArgument
    );
}

/// What is read at once is searched as what is read in pieces.
#[test]
fn small_files_are_searched_like_others() {
    let pieces: [&[u8]; 9] = [
        b"needle",
        b"hay",
        b"\n",
        b"\r\n",
        b" ",
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        "größe\n".as_bytes(),
    ];
    let mut searched = [0; 2];
    for seed in 0..2_000_u64 {
        // A small generator: the case is its number.
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % bound as u64).unwrap()
        };
        let content: Vec<u8> = (0..next(30))
            .flat_map(|_| pieces[next(pieces.len())])
            .copied()
            .collect();
        let op = GrepOp {
            context: u32::try_from(next(3)).unwrap(),
            ..op("needle|^$")
        };
        // Who stops early may not have read as far as to a NUL.
        let is_limited = !content.contains(&0);
        let limits = Limits {
            per_file: if is_limited { next(3) as u64 } else { 0 },
            total: if is_limited { 1 + next(5) as u64 } else { 1_000 },
            bytes: BUDGET,
        };
        let (matcher, mut searcher) = (search::matcher(&op).unwrap(), search::searcher(&op));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content).unwrap();
        let stat = fs::fstat(&file).unwrap();
        file.rewind().unwrap();
        let mut buffer = Vec::new();
        let whole = read_small(&mut buffer, &file, &stat);
        assert_eq!(whole, Some(content.as_slice()).filter(|content| !content.is_empty()));
        let whole = search::search(&mut searcher, &matcher, limits, Text::Whole(&content)).unwrap();
        let parts = search::search(&mut searcher, &matcher, limits, Text::In(&file)).unwrap();
        searched[usize::from(matches!(whole, Outcome::Binary))] += 1;
        assert_eq!(format!("{whole:?}"), format!("{parts:?}"), "seed {seed}: {content:?}");
    }
    assert!(searched.iter().all(|count| *count > 100), "{searched:?}");
}

#[test]
fn what_is_not_as_it_was_said_to_be_is_read_in_pieces() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"needle\n").unwrap();
    let stat = fs::fstat(&file).unwrap();
    file.write_all(b"more\n").unwrap();
    assert_eq!(read_small(&mut Vec::new(), &file, &stat), None);
    file.set_len(SMALL as u64).unwrap();
    let stat = fs::fstat(&file).unwrap();
    assert_eq!(read_small(&mut Vec::new(), &file, &stat), None);
    file.set_len(SMALL as u64 - 1).unwrap();
    let stat = fs::fstat(&file).unwrap();
    assert_eq!(
        read_small(&mut Vec::new(), &file, &stat).map(<[u8]>::len),
        Some(SMALL - 1)
    );
}
