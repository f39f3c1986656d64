//! What the fuzz targets share: a root with things around it that nothing may touch or tell of, and paths that are likely
//! to try.

use std::{
    cell::RefCell,
    ffi::OsString,
    fs,
    os::unix::{
        ffi::OsStringExt as _,
        fs::{MetadataExt as _, symlink},
    },
    path::{Path, PathBuf},
};

use arbitrary::Arbitrary;
use bytes::Bytes;
use prost::Message;
use sandgate_files::{Defaults, View, atomic::Shared};
use sandgate_proto::runtime::v1::{FileInfo, FileView};
use tempfile::TempDir;

/// Content and a name that only the outside has.
const SECRET: &str = "canary-1f0c7a52";

thread_local! {
    static OUTSIDE: RefCell<Option<(TempDir, Vec<Fact>)>> = const { RefCell::new(None) };
}

/// What must not change.
type Fact = (PathBuf, u64, u32, i64, i64, i64, i64, Vec<u8>);

/// A path, made of what is worth trying.
#[derive(Arbitrary, Clone, Debug)]
pub struct FuzzPath {
    absolute: bool,
    parts: Vec<Part>,
    slash: bool,
}

#[derive(Arbitrary, Clone, Debug)]
enum Part {
    A,
    B,
    C,
    Link,
    Up,
    Dot,
    Empty,
    Home,
    Proc,
    /// The way to the outside from the real root.
    Outside,
    Odd,
    Bytes(Vec<u8>),
}

/// One run: an empty root, and a view of it.
pub struct Run {
    outside: PathBuf,
    /// The view of the root.
    pub view: View,
    /// What calls share.
    pub shared: Shared,
}

// === impl FuzzPath ===

impl FuzzPath {
    /// The path as bytes.
    pub fn bytes(&self, outside: &Path) -> Vec<u8> {
        let mut path = Vec::new();
        if self.absolute {
            path.push(b'/');
        }
        for part in self.parts.iter().take(12) {
            match part {
                Part::A => path.push(b'a'),
                Part::B => path.push(b'b'),
                Part::C => path.push(b'c'),
                Part::Link => path.extend_from_slice(b"l"),
                Part::Up => path.extend_from_slice(b".."),
                Part::Dot => path.push(b'.'),
                Part::Empty => {}
                Part::Home => path.push(b'~'),
                Part::Proc => path.extend_from_slice(b"proc/self/root"),
                Part::Outside => path.extend_from_slice(outside.as_os_str().as_encoded_bytes()),
                Part::Odd => path.extend_from_slice(b"\xff"),
                Part::Bytes(bytes) => path.extend_from_slice(&bytes[..bytes.len().min(300)]),
            }
            path.push(b'/');
        }
        if !self.slash {
            path.pop();
        }
        path
    }
}

// === impl Run ===

impl Run {
    /// Begins with an empty root, some symlinks in it that lead out, and the outside as it always is.
    pub fn new() -> Self {
        let outside = OUTSIDE.with_borrow_mut(|outside| {
            let (directory, _) = outside.get_or_insert_with(make_outside);
            directory.path().to_owned()
        });
        let root = outside.join("root");
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).expect("root");
        fs::create_dir(root.join("a")).expect("a");
        fs::write(root.join("b"), "b").expect("b");
        symlink(&outside, root.join("l")).expect("l");
        symlink("../..", root.join("a/l")).expect("a/l");
        let view = FileView {
            root_dir_raw: Bytes::from(OsString::from(&root).into_vec()),
            ..FileView::default()
        };
        let cwd = PathBuf::from("/");
        Self {
            outside,
            view: View::open(&view, &Defaults { user: None, cwd }).expect("view"),
            shared: Shared::default(),
        }
    }

    /// The bytes of a path in this run.
    pub fn path(&self, path: &FuzzPath) -> Bytes {
        Bytes::from(path.bytes(&self.outside))
    }

    /// The root's own path in the real file system.
    pub fn root(&self) -> PathBuf {
        self.outside.join("root")
    }

    /// An answer may not hold anything of the outside.
    pub fn check_answer(&self, answer: &impl Message) {
        let bytes = answer.encode_to_vec();
        assert!(
            memchr::memmem::find(&bytes, SECRET.as_bytes()).is_none(),
            "the outside was revealed"
        );
    }

    /// A path that was found may not be one of the outside.
    pub fn check_info(&self, info: &FileInfo) {
        OUTSIDE.with_borrow(|outside| {
            let facts = outside.as_ref().map(|(_, facts)| facts.as_slice()).unwrap_or_default();
            assert!(facts.iter().all(|fact| fact.1 != info.inode), "{info:?} is outside");
        });
    }

    /// The outside must be as it was.
    pub fn check_outside(&self) {
        OUTSIDE.with_borrow(|outside| {
            let (directory, before) = outside.as_ref().expect("outside");
            assert_eq!(&facts(directory.path()), before, "the outside was changed");
        });
    }
}

impl Default for Run {
    fn default() -> Self {
        Self::new()
    }
}

fn make_outside() -> (TempDir, Vec<Fact>) {
    let directory = TempDir::new().expect("tempdir");
    fs::write(directory.path().join(SECRET), SECRET).expect("canary");
    fs::create_dir(directory.path().join("a")).expect("a");
    fs::write(directory.path().join("a").join("b"), SECRET).expect("canary");
    let facts = facts(directory.path());
    (directory, facts)
}

fn facts(directory: &Path) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut stack = vec![directory.to_owned()];
    while let Some(path) = stack.pop() {
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        if metadata.is_dir() {
            let entries = fs::read_dir(&path)
                .expect("entries")
                .map(|entry| entry.expect("entry").path());
            stack.extend(entries.filter(|entry| *entry != directory.join("root")));
        }
        let content = if metadata.is_file() {
            fs::read(&path).expect("content")
        } else {
            Vec::new()
        };
        // The times of the directory above the root change with the root itself.
        let times = if path == directory {
            (0, 0, 0, 0)
        } else {
            (
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            )
        };
        facts.push((
            path,
            metadata.ino(),
            metadata.mode(),
            times.0,
            times.1,
            times.2,
            times.3,
            content,
        ));
    }
    facts.sort();
    facts
}
