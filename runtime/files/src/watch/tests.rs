use std::{
    ffi::OsStr,
    fs::{create_dir, create_dir_all, remove_dir, remove_dir_all, remove_file, rename, write},
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use sandgate_proto::runtime::v1::FileView;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::view::Defaults;

struct Fixture {
    directory: TempDir,
    watches: Watches,
    runtime: Runtime,
}

impl Fixture {
    fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            watches: Watches::default(),
            runtime: Builder::new_current_thread().enable_time().build().unwrap(),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn view(&self) -> Arc<View> {
        let proto = FileView {
            root_dir: self.directory.path().to_str().unwrap().to_owned(),
            ..FileView::default()
        };
        let cwd = PathBuf::from("/");
        Arc::new(View::open(&proto, &Defaults { user: None, cwd }).unwrap())
    }

    fn watch(&self, path: &str, recursive: bool, queue: usize) -> Result<Subscription> {
        let request = WatchFilesRequest {
            path: path.to_owned(),
            recursive,
            ..WatchFilesRequest::default()
        };
        self.watches.subscribe_with(self.view(), &request, queue)
    }

    fn started(&self, path: &str, recursive: bool) -> Subscription {
        let mut subscription = self.watch(path, recursive, 1 << 14).unwrap();
        let first = self.next(&mut subscription).unwrap();
        assert_eq!(first.kind(), Kind::Watching);
        subscription
    }

    fn next(&self, subscription: &mut Subscription) -> Option<FileEvent> {
        let next = async { tokio::time::timeout(Duration::from_secs(20), subscription.next()).await };
        self.runtime.block_on(next).expect("an event was missing")
    }

    /// Events up to the making of `marker`, as text. Repeated modifications are one.
    fn until(&self, subscription: &mut Subscription, marker: &str) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        loop {
            let event = self.next(subscription).expect("it ended");
            if event.path == marker && event.kind() != Kind::Deleted {
                return seen;
            }
            let text = text(&event);
            if seen.last() != Some(&text) {
                seen.push(text);
            }
        }
    }
}

fn text(event: &FileEvent) -> String {
    let kind = match event.kind() {
        Kind::Created => "+",
        Kind::Modified => "~",
        Kind::Deleted => "-",
        Kind::Moved => return format!("{}>{}", event.moved_from, event.path),
        Kind::Overflow => return "overflow".to_owned(),
        other => return format!("{other:?}"),
    };
    format!("{kind}{}{}", event.path, if event.directory { "/" } else { "" })
}

#[test]
fn tells_what_happens_in_a_directory() {
    let fixture = Fixture::new();
    create_dir(fixture.at("d")).unwrap();
    create_dir(fixture.at("d/sub")).unwrap();
    let mut events = fixture.started("d", false);
    write(fixture.at("d/f"), "x").unwrap();
    rename(fixture.at("d/f"), fixture.at("d/g")).unwrap();
    remove_file(fixture.at("d/g")).unwrap();
    create_dir(fixture.at("d/e")).unwrap();
    remove_dir(fixture.at("d/e")).unwrap();
    write(fixture.at("in"), "").unwrap();
    rename(fixture.at("in"), fixture.at("d/in")).unwrap();
    rename(fixture.at("d/in"), fixture.at("out")).unwrap();
    write(fixture.at("d/sub/unseen"), "").unwrap();
    write(fixture.at("d/end"), "").unwrap();
    assert_eq!(
        fixture.until(&mut events, "/d/end"),
        [
            "+/d/f",
            "~/d/f",
            "/d/f>/d/g",
            "-/d/g",
            "+/d/e/",
            "-/d/e/",
            "+/d/in",
            "-/d/in"
        ]
    );
}

#[test]
fn recursive_watches_follow_directories() {
    let fixture = Fixture::new();
    create_dir_all(fixture.at("a/b")).unwrap();
    create_dir_all(fixture.at("outside/deep")).unwrap();
    let root = Fixture::new();
    symlink(root.directory.path(), fixture.at("a/link")).unwrap();
    let mut events = fixture.started("a", true);
    write(fixture.at("a/b/f"), "").unwrap();
    rename(fixture.at("a/b"), fixture.at("a/c")).unwrap();
    write(fixture.at("a/c/g"), "").unwrap();
    write(root.at("elsewhere"), "").unwrap();
    rename(fixture.at("a/c"), fixture.at("gone")).unwrap();
    write(fixture.at("gone/unseen"), "").unwrap();
    write(fixture.at("a/end"), "").unwrap();
    assert_eq!(
        fixture.until(&mut events, "/a/end"),
        ["+/a/b/f", "/a/b>/a/c", "+/a/c/g", "-/a/c/"]
    );
    rename(fixture.at("outside"), fixture.at("a/in")).unwrap();
    let mut moved_in = vec![
        text(&fixture.next(&mut events).unwrap()),
        text(&fixture.next(&mut events).unwrap()),
    ];
    moved_in.sort();
    assert_eq!(moved_in, ["+/a/in/", "+/a/in/deep/"]);
    write(fixture.at("a/in/deep/f"), "").unwrap();
    assert_eq!(text(&fixture.next(&mut events).unwrap()), "+/a/in/deep/f");
}

#[test]
fn nothing_in_new_directories_is_missed() {
    let fixture = Fixture::new();
    let mut events = fixture.started("/", true);
    let count = 300;
    // Faster than any watch can be added.
    for number in 0..count {
        create_dir_all(fixture.at(&format!("d{number}/x/y"))).unwrap();
        write(fixture.at(&format!("d{number}/x/y/f")), "").unwrap();
        write(fixture.at(&format!("d{number}/g")), "").unwrap();
    }
    write(fixture.at("end"), "").unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for event in fixture.until(&mut events, "/end") {
        *seen.entry(event).or_insert(0) += 1;
    }
    assert!(!seen.contains_key("overflow"), "the queue is too short for this test");
    // What is made in a directory that was just found may be reported after the end.
    let missing = |seen: &std::collections::BTreeMap<String, i32>| {
        (0..count).any(|n| {
            !["/", "/x/", "/x/y/", "/g", "/x/y/f"]
                .iter()
                .all(|rest| seen.contains_key(&format!("+/d{n}{rest}")))
        })
    };
    while missing(&seen) {
        *seen.entry(text(&fixture.next(&mut events).unwrap())).or_insert(0) += 1;
    }
    for (event, times) in seen {
        assert!(times == 1 || event.starts_with('~'), "{event} came {times} times");
    }
}

#[test]
fn odd_names_and_own_temporaries() {
    let fixture = Fixture::new();
    let mut events = fixture.started("/", true);
    let odd = fixture.directory.path().join(OsStr::from_bytes(b"\xff\n"));
    write(&odd, "").unwrap();
    let event = fixture.next(&mut events).unwrap();
    assert_eq!(
        (event.path.as_str(), event.path_raw.as_ref()),
        ("", b"/\xff\n".as_slice())
    );
    let temporary = fixture.at(crate::litter::temporary_name().unwrap().to_str().unwrap());
    write(&temporary, "").unwrap();
    rename(&temporary, fixture.at("f")).unwrap();
    write(fixture.at("end"), "").unwrap();
    assert_eq!(fixture.until(&mut events, "/end").last().unwrap(), "~/f");
}

#[test]
fn a_slow_subscriber_is_told_of_its_loss_and_nobody_else() {
    let fixture = Fixture::new();
    let mut quick = fixture.started("/", true);
    let mut slow = fixture.watch("/", true, 4).unwrap();
    for number in 0..20 {
        create_dir(fixture.at(&number.to_string())).unwrap();
    }
    write(fixture.at("end"), "").unwrap();
    assert_eq!(fixture.until(&mut quick, "/end").len(), 20);
    let seen: Vec<String> = (0..5).map(|_| text(&fixture.next(&mut slow).unwrap())).collect();
    assert_eq!(seen, ["Watching", "+/0/", "+/1/", "+/2/", "overflow"]);
    write(fixture.at("after"), "").unwrap();
    let seen = fixture.until(&mut slow, "/after");
    assert!(seen.iter().all(|event| event == "+/end"), "{seen:?}");
}

#[test]
fn a_full_kernel_queue_is_an_overflow_and_new_directories_are_found() {
    let fixture = Fixture::new();
    let mut events = fixture.started("/", true);
    let state = fixture.watches.inner.lock();
    let live = state.live.clone().unwrap();
    drop(state);
    {
        // As if the kernel had dropped what was reported of this directory.
        let mut state = fixture.watches.inner.lock();
        create_dir(fixture.at("unseen")).unwrap();
        let mut lost = Batch::default();
        lost.read(&live.inotify);
        lost.reports.clear();
        lost.reports.push(events::Report::overflow());
        state.handle(&mut lost, &live);
    }
    write(fixture.at("unseen/f"), "").unwrap();
    assert_eq!(text(&fixture.next(&mut events).unwrap()), "overflow");
    write(fixture.at("unseen/g"), "").unwrap();
    let seen = fixture.until(&mut events, "/unseen/g");
    assert!(seen.iter().all(|event| event.ends_with("/unseen/f")), "{seen:?}");
}

#[test]
fn the_end_of_the_directory_ends_the_watch() {
    let fixture = Fixture::new();
    create_dir_all(fixture.at("a/b")).unwrap();
    create_dir(fixture.at("c")).unwrap();
    let mut removed = fixture.started("a", true);
    let mut renamed = fixture.started("c", false);
    remove_dir_all(fixture.at("a")).unwrap();
    assert_eq!(text(&fixture.next(&mut removed).unwrap()), "-/a/b/");
    assert_eq!(fixture.next(&mut removed).unwrap().kind(), Kind::RootGone);
    assert_eq!(fixture.next(&mut removed), None);
    rename(fixture.at("c"), fixture.at("d")).unwrap();
    assert_eq!(fixture.next(&mut renamed).unwrap().kind(), Kind::RootGone);
    assert_eq!(fixture.next(&mut renamed), None);
}

#[test]
fn watches_that_nobody_uses_are_removed() {
    let fixture = Fixture::new();
    create_dir_all(fixture.at("a/b")).unwrap();
    let mut outer = fixture.started("/", true);
    let inner = fixture.started("a", true);
    let watched = |live: &Live| {
        let info = std::fs::read_to_string(format!(
            "/proc/self/fdinfo/{}",
            std::os::fd::AsRawFd::as_raw_fd(&live.inotify)
        ));
        info.unwrap().lines().filter(|line| line.starts_with("inotify")).count()
    };
    let live = fixture.watches.inner.lock().live.clone().unwrap();
    assert_eq!(watched(&live), 3);
    drop(inner);
    write(fixture.at("a/b/f"), "").unwrap();
    assert_eq!(text(&fixture.next(&mut outer).unwrap()), "+/a/b/f");
    assert_eq!(watched(&live), 3);
    remove_dir_all(fixture.at("a")).unwrap();
    write(fixture.at("end"), "").unwrap();
    fixture.until(&mut outer, "/end");
    while watched(&live) != 1 {
        std::thread::yield_now();
    }
    drop(outer);
    while fixture.watches.inner.lock().live.is_some() {
        std::thread::yield_now();
    }
    let mut again = fixture.started("/", false);
    write(fixture.at("again"), "").unwrap();
    assert_eq!(text(&fixture.next(&mut again).unwrap()), "+/again");
}

#[test]
fn errors_have_their_reasons() {
    let fixture = Fixture::new();
    write(fixture.at("f"), "").unwrap();
    let reason = |path: &str| fixture.watch(path, true, 8).unwrap_err().reason;
    assert_eq!(reason("none"), ErrorReason::FileNotFound);
    assert_eq!(reason("f"), ErrorReason::FileNotDirectory);
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOSPC] {
        assert_eq!(limit(errno).reason, ErrorReason::WatchLimit);
    }
    assert!(Path::new(&fixture.at("f")).exists());
}
