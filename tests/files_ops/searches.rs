//! Lists in pages, and searches with their options.

use super::*;

async fn pages(client: &mut Client, view: &FileView, depth: u32, page_size: u32) -> Vec<PathBuf> {
    let (mut paths, mut page_token) = (Vec::new(), String::new());
    loop {
        let op = Op::List(ListOp {
            path: "/".into(),
            depth,
            page_size,
            page_token,
            ..Default::default()
        });
        let outcome = run_op(client, view, op).await;
        let Outcome::List(page) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(page.entries.len() <= page_size as usize);
        paths.extend(page.entries.iter().map(|entry| path_of(&entry.path, &entry.path_raw)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return paths;
        }
    }
}

#[tokio::test]
async fn lists_come_in_pages_and_lose_no_name() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let mut expected = BTreeSet::new();
        for n in 0..5_000_u32 {
            let mut name = match n % 5 {
                0 => b"d0/".to_vec(),
                1 => b"d0.x/".to_vec(),
                _ => Vec::new(),
            };
            name.extend_from_slice(format!("{n:04}").as_bytes());
            // Every byte that a name may hold, somewhere.
            let odd = (n % 256) as u8;
            if odd != 0 && odd != b'/' {
                name.push(odd);
            }
            let path = Path::new(OsStr::from_bytes(&name)).to_owned();
            fs::create_dir_all(work.join(path.parent().unwrap())).unwrap();
            fs::write(work.join(&path), "").unwrap();
            expected.insert(Path::new("/").join(path));
        }
        expected.extend(["/d0".into(), "/d0.x".into()]);
        let view = rooted(&work);
        for page_size in [97, 1_000, 10_000] {
            let listed = pages(&mut client, &view, 3, page_size).await;
            let by_bytes = |paths: &[PathBuf]| {
                paths
                    .iter()
                    .map(|path| path.as_os_str().as_bytes().to_vec())
                    .collect::<Vec<_>>()
            };
            assert!(by_bytes(&listed).is_sorted(), "sorted by path, bytewise");
            assert_eq!(listed.len(), expected.len(), "none twice");
            assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
        }
        let flat = pages(&mut client, &view, 0, 500).await;
        assert_eq!(flat.len(), 3_002);
        let bad = Op::List(ListOp {
            path: "/".into(),
            page_token: "no token".into(),
            ..Default::default()
        });
        assert_eq!(
            failed(&run_op(&mut client, &view, bad).await).reason(),
            ErrorReason::InvalidArgument
        );
    })
    .await;
}

#[tokio::test]
async fn searches_have_their_options() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        fs::create_dir_all(work.join("src/deep")).unwrap();
        for (name, text) in [
            ("src/a.rs", "before\nNeedle one\nafter\nneedle two\n"),
            ("src/deep/b.rs", "needle\n"),
            ("src/c.txt", "needle (x)\n"),
            (".hidden", "needle\n"),
            ("binary", "needle\0\n"),
            (".gitignore", "c.txt\n"),
        ] {
            fs::write(work.join(name), text).unwrap();
        }
        let search = |op: GrepOp| Op::Grep(GrepOp { path: "/".into(), ..op });
        let needle = || GrepOp {
            pattern: "needle".into(),
            ..Default::default()
        };
        let ops = vec![
            search(needle()),
            search(GrepOp {
                ignore_case: true,
                context: 1,
                include: vec!["a.rs".into()],
                ..needle()
            }),
            search(GrepOp {
                skip_hidden: true,
                honour_ignore_files: true,
                ..needle()
            }),
            search(GrepOp {
                pattern: "(x)".into(),
                literal: true,
                ..Default::default()
            }),
            search(GrepOp {
                max_total: 1,
                ..needle()
            }),
            search(GrepOp {
                exclude: vec!["src".into()],
                ..needle()
            }),
            glob("/", "src/**/*.rs"),
            glob("/src", "*"),
            glob("/", "*.{rs,txt}"),
        ];
        let outcomes = run_ops(&mut client, &view, ops).await;
        let found = |at: usize| match &outcomes[at] {
            Outcome::Grep(grep) => grep,
            other => panic!("{other:?}"),
        };
        let names = |at: usize| {
            found(at)
                .files
                .iter()
                .map(|file| file.path.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(0), ["/.hidden", "/src/a.rs", "/src/c.txt", "/src/deep/b.rs"]);
        assert_eq!((found(0).files_binary, found(0).files_unreadable), (1, 0));
        let lines: Vec<_> = found(1).files[0]
            .lines
            .iter()
            .map(|line| (line.number, line.context))
            .collect();
        assert_eq!(lines, [(1, true), (2, false), (3, true), (4, false)]);
        assert_eq!(names(2), ["/src/a.rs", "/src/deep/b.rs"]);
        assert_eq!(names(3), ["/src/c.txt"]);
        assert_eq!(
            (names(4).len(), found(4).truncated, found(0).truncated),
            (1, true, false)
        );
        assert_eq!(names(5), ["/.hidden"]);
        let globbed = |at: usize| match &outcomes[at] {
            Outcome::Glob(glob) => glob.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(globbed(6), ["/src/a.rs", "/src/deep/b.rs"]);
        assert_eq!(globbed(7), ["/src/a.rs", "/src/c.txt", "/src/deep"]);
        assert!(globbed(8).is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_glob_tells_of_what_it_could_not_look_into() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        for (path, mode) in [("open", 0o755), ("closed", 0o700)] {
            fs::create_dir(work.join(path)).unwrap();
            fs::write(work.join(path).join("f"), "").unwrap();
            fs::set_permissions(work.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        for (user, pattern, found, unreadable) in [
            ("", "**/f", vec!["/closed/f", "/open/f"], 0),
            ("nobody", "**/f", vec!["/open/f"], 1),
            ("nobody", "open/*", vec!["/open/f"], 0),
        ] {
            let view = FileView {
                user: user.into(),
                ..rooted(&work)
            };
            let outcome = run_op(&mut client, &view, glob("/", pattern)).await;
            let Outcome::Glob(globbed) = outcome else {
                panic!("{outcome:?}")
            };
            let names: Vec<_> = globbed.entries.iter().map(|entry| entry.path.as_str()).collect();
            assert_eq!(
                (names, globbed.directories_unreadable, globbed.truncated),
                (found, unreadable, false)
            );
        }
    })
    .await;
}
