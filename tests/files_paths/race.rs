//! Races: directories become symlinks that lead outside, while calls go through them.

use super::*;

/// A thread that swaps directories for symlinks that lead outside, until it is stopped.
struct Swapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

// === impl Swapper ===

impl Swapper {
    fn start(root: &Path, outside: &Path) -> Self {
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let pairs: Vec<(PathBuf, PathBuf, PathBuf)> = [
            ("swap", outside.to_owned()),
            ("rel", PathBuf::from("../outside")),
            ("a/b/deep", PathBuf::from("../../../outside")),
            ("tree/swap", outside.to_owned()),
        ]
        .into_iter()
        .map(|(name, target)| (root.join(name), root.join(format!("{name}.other")), target))
        .collect();
        for pair in &pairs {
            repair(pair);
        }
        let thread = thread::spawn({
            let (stop, swaps) = (stop.clone(), swaps.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    for pair in &pairs {
                        match renameat_with(CWD, &pair.0, CWD, &pair.1, RenameFlags::EXCHANGE) {
                            Ok(()) => _ = swaps.fetch_add(1, Ordering::Relaxed),
                            // An operation removed one of them.
                            Err(_) => repair(pair),
                        }
                    }
                }
            }
        });
        Self {
            stop,
            swaps,
            thread: Some(thread),
        }
    }

    fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed)
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Makes the directory and the symlink where they are missing. Others remove them at the same time.
fn repair((one, other, target): &(PathBuf, PathBuf, PathBuf)) {
    let is_link = |path: &Path| path.symlink_metadata().map(|metadata| metadata.is_symlink());
    let make = |path: &Path| {
        let _ = fs::create_dir_all(path.join("sub/deep"));
        for name in ["f", "sub/f", "sub/deep/f"] {
            let _ = fs::write(path.join(name), "inside");
        }
    };
    let _ = fs::create_dir_all(one.parent().unwrap());
    // Only what is no symlink is filled: the names are not ours alone, so a look at them is not enough.
    match (is_link(one), is_link(other)) {
        (Err(_), Ok(true)) | (Err(_), Err(_)) => {
            let fresh = one.with_extension("fresh");
            let _ = fs::remove_dir_all(&fresh);
            make(&fresh);
            let _ = fs::rename(&fresh, one);
            let _ = link(target, other);
        }
        (Err(_), Ok(false)) => _ = link(target, one),
        (Ok(false), Err(_)) => _ = link(target, other),
        (Ok(true), Err(_)) => {
            let fresh = one.with_extension("fresh");
            let _ = fs::remove_dir_all(&fresh);
            make(&fresh);
            let _ = fs::rename(&fresh, other);
        }
        (Ok(_), Ok(_)) => {}
    }
}

fn racing_op(random: &mut StdRng) -> Op {
    let top = ["/swap", "/rel", "/a/b/deep", "/tree/swap"][random.random_range(0..4)];
    let name = ["f", "sub/f", "sub/deep/f", "secret", "../outside/f", "sub/../f"][random.random_range(0..6)];
    let new = format!("new-{}", random.random_range(0..8));
    let (path, new) = (format!("{top}/{name}"), format!("{top}/{new}"));
    match random.random_range(0..26) {
        0 => stat(path),
        1 => stat_followed(path),
        2 => list(top, 1),
        3 => list("/", 4),
        4 | 5 => read(path),
        6 => write(path, "inside"),
        7 => write(new, "inside"),
        8 => write_as(path, "inside", WriteMode::Append),
        9 => write_as(new, "inside", WriteMode::CreateOnly),
        10 => edit(path, "n", "m"),
        11 => glob(top, "**/f"),
        12 => glob("/", "*/**"),
        13 => grep(top, "."),
        14 => grep("/", CONTENT),
        15 => mkdir(format!("{top}/sub/deep"), true),
        16 => mkdir(new, false),
        17 => relocate(path, new),
        18 => copy(top, format!("/copy-{}", random.random_range(0..4))),
        19 => copy(path, new),
        20 => remove(path, false),
        21 => remove(
            if random.random_bool(0.3) {
                "/tree".to_owned()
            } else {
                format!("{top}/sub")
            },
            true,
        ),
        22 => touch(new),
        23 => chmod(path, 0o600),
        24 => symlink(new, "f"),
        _ => hash(path),
    }
}

async fn race(mut client: Client, fence: Arc<Fence>, batches: usize, mut random: StdRng) -> (usize, usize) {
    let (mut good, mut bad) = (0, 0);
    for _ in 0..batches {
        let mut ops: Vec<_> = (0..500).map(|_| racing_op(&mut random)).collect();
        // So that what was copied or made does not pile up.
        for n in 0..4 {
            ops[400 + n] = remove(format!("/copy-{n}"), true);
            ops[450 + n] = remove(["/swap", "/rel", "/a/b/deep", "/tree/swap"][n], true);
        }
        let outcomes = run_ops(&mut client, &fence.view(), ops).await;
        for outcome in &outcomes {
            match outcome {
                Outcome::NotRun(_) => panic!("an operation was not run"),
                Outcome::Error(_) => bad += 1,
                Outcome::Read(read) => assert!(!read.content.starts_with(CONTENT.as_bytes()), "read from outside"),
                Outcome::Grep(grep) => {
                    let lines = grep.files.iter().flat_map(|file| &file.lines);
                    lines.for_each(|line| assert!(!line.text.starts_with(CONTENT.as_bytes()), "found outside"));
                }
                Outcome::Hash(hash) => assert_ne!(hash.size, SIZE as u64, "hashed outside"),
                _ => {}
            }
            good += usize::from(!matches!(outcome, Outcome::Error(_)));
            fence.check_outcome(outcome);
        }
        let text = format!("{outcomes:?}");
        assert!(
            !text.contains(CONTENT) && !text.contains(NAME),
            "an answer holds something from outside"
        );
    }
    (good, bad)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_operations_while_directories_become_links() {
    within(async {
        let fence = Arc::new(Fence::new().await);
        let mut random = seeded();
        let swapper = Swapper::start(&fence.root, &fence.outside);
        let mut racers = Vec::new();
        for _ in 0..4 {
            let random = StdRng::seed_from_u64(random.random());
            racers.push(tokio::spawn(race(
                fence.runtime.connect().await,
                fence.clone(),
                50,
                random,
            )));
        }
        let (mut good, mut bad) = (0, 0);
        for racer in racers {
            let (more_good, more_bad) = racer.await.unwrap();
            good += more_good;
            bad += more_bad;
        }
        let swaps = swapper.swaps();
        drop(swapper);
        println!("{good} operations went well, {bad} failed, {swaps} swaps");
        assert_eq!(good + bad, 100_000);
        assert!(good > 10_000 && bad > 10_000 && swaps > 10_000, "it was no race");
        fence.check("the race");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archives_and_downloads_while_directories_become_links() {
    within(async {
        let fence = Arc::new(Fence::new().await);
        let swapper = Swapper::start(&fence.root, &fence.outside);
        let mut entries: Vec<(String, EntryType, &str, &[u8])> = Vec::new();
        for n in 0..50 {
            for top in ["swap", "rel", "a/b/deep"] {
                entries.push((format!("{top}/f"), EntryType::Regular, "", b"inside"));
                entries.push((format!("{top}/sub/f"), EntryType::Regular, "", b"inside"));
                entries.push((format!("{top}/new-{n}/x/y"), EntryType::Regular, "", b"inside"));
                entries.push((format!("{top}/made-{n}"), EntryType::Directory, "", b""));
                entries.push((format!("{top}/link-{n}"), EntryType::Symlink, "f", b""));
                entries.push((format!("hard-{n}"), EntryType::Link, "swap/secret", b""));
                entries.push((format!("{top}/hard-{n}"), EntryType::Link, "swap/f", b""));
            }
        }
        let entries: Vec<_> = entries
            .iter()
            .map(|(name, kind, target, content)| (&name[..], *kind, *target, *content))
            .collect();
        let tar = archive(&entries);
        let mut client = fence.runtime.connect().await;
        let (mut good, mut bad) = (0, 0);
        for round in 0..20 {
            let answer = upload_tar(&mut client, &fence.view(), "/", &tar).await.unwrap();
            good += answer.entries;
            bad += answer.failures_total;
            fence.check_answer(&answer);
            let format = if round % 2 == 0 {
                TransferFormat::Files
            } else {
                TransferFormat::Tar
            };
            let down = download(
                &mut client,
                &fence.view(),
                &["/", "/swap", "/rel/f", "/a/b/deep"],
                format,
            )
            .await;
            let content = down
                .entries
                .iter()
                .map(|(_, content, _)| &content[..])
                .chain([&down.tar[..]]);
            for content in content {
                let text = String::from_utf8_lossy(content);
                assert!(!text.contains(CONTENT) && !text.contains(NAME), "sent from outside");
            }
            fence.check_answer(&down.failures);
        }
        let swaps = swapper.swaps();
        drop(swapper);
        println!("{good} entries unpacked, {bad} failed, {swaps} swaps");
        assert!(good > 100 && bad > 100 && swaps > 1_000, "it was no race");
        fence.check("the race");
        for n in 0..50 {
            assert!(
                fence.root.join(format!("hard-{n}")).symlink_metadata().is_err(),
                "a link to outside was made"
            );
        }
    })
    .await;
}
