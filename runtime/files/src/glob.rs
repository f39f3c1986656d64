//! Finding paths by pattern, over the descriptor-based walk. A directory in which nothing can match is not entered.

pub(crate) mod pattern;

use prost::Message as _;
use rustix::{fs::FileType, io::Errno};
use sandgate_proto::{
    runtime::v1::{GlobOp, GlobResult},
    v1::ErrorReason,
};

use self::pattern::{Pattern, Progress};
use crate::{
    error::{Error, Result},
    info,
    path::PathArg,
    view::View,
    walk::{Entry, Options, Step, Walker},
};

const DEFAULT_LIMIT: u32 = 1_000;
const MAX_LIMIT: u32 = 10_000;

struct Glob {
    pattern: Pattern,
    /// Of the directories from the start down to where the walk is.
    progress: Vec<Progress>,
    start: PathArg,
    directories: bool,
    limit: usize,
    budget: usize,
    result: GlobResult,
}

/// Lists what a pattern matches, in at most `budget` bytes of answer.
///
/// # Errors
/// `PatternInvalid`, or why the start can't be listed. What can't be read beneath it is left out, and counted.
pub fn run(view: &View, op: GlobOp, budget: usize) -> Result<GlobResult> {
    let pattern =
        Pattern::new(&op.pattern, op.include_hidden).map_err(|fault| Error::new(ErrorReason::PatternInvalid, fault))?;
    let start = view.path_or_start(&op.path, &op.path_raw)?;
    let limit = if op.limit == 0 { DEFAULT_LIMIT } else { op.limit };
    if limit > MAX_LIMIT {
        return Err(Error::invalid(format!("limit is more than {MAX_LIMIT}")));
    }
    let _acting = view.act()?;
    let directory = view.open_directory(&start)?;
    let options = Options {
        sorted: true,
        max_depth: 0,
    };
    let mut walker = Walker::new(directory, options).map_err(|error| Error::io(error, &start))?;
    let mut glob = Glob {
        progress: vec![pattern.start()],
        pattern,
        start,
        directories: op.include_directories,
        limit: limit as usize,
        budget,
        result: GlobResult::default(),
    };
    while !glob.result.truncated {
        match walker.next() {
            Some(Step::Entry(entry)) => glob.entry(&entry),
            Some(Step::Enter(entry)) => {
                if !glob.enters(&entry) {
                    walker.skip();
                }
            }
            // One that is gone hides nothing.
            Some(Step::Unreadable { error, .. }) => {
                glob.result.directories_unreadable += u64::from(error != Errno::NOENT);
            }
            None => break,
        }
    }
    Ok(glob.result)
}

// === impl Glob ===

impl Glob {
    fn entry(&mut self, entry: &Entry<'_>) {
        if entry.kind == FileType::Directory && !self.directories {
            return;
        }
        let progress = self
            .pattern
            .step(&self.progress[entry.depth - 1], entry.name.to_bytes());
        if !self.pattern.matches(&progress) {
            return;
        }
        // It may be gone by now, or be something else.
        let Ok(info) = info::of_name(self.start.join(entry.path), entry.dir, entry.file_name()) else {
            return;
        };
        let size = info.encoded_len() + 4;
        if self.result.entries.len() == self.limit || size > self.budget {
            self.result.truncated = true;
            return;
        }
        self.budget -= size;
        self.result.entries.push(info);
    }

    fn enters(&mut self, directory: &Entry<'_>) -> bool {
        self.progress.truncate(directory.depth);
        let progress = self
            .pattern
            .step(&self.progress[directory.depth - 1], directory.name.to_bytes());
        let enters = self.pattern.goes_on(&progress);
        self.progress.push(progress);
        enters
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{Permissions, create_dir_all, set_permissions, write},
        os::unix::fs::{PermissionsExt as _, symlink},
        path::{Path, PathBuf},
    };

    use sandgate_proto::runtime::v1::FileView;
    use tempfile::TempDir;

    use super::*;
    use crate::view::Defaults;

    fn view(root: &Path) -> View {
        view_of(root, "")
    }

    fn view_of(root: &Path, user: &str) -> View {
        let proto = FileView {
            root_dir: root.to_str().unwrap().to_owned(),
            user: user.to_owned(),
            ..FileView::default()
        };
        let cwd = PathBuf::from("/");
        View::open(&proto, &Defaults { user: None, cwd }).unwrap()
    }

    fn tree() -> TempDir {
        let root = TempDir::new().unwrap();
        for dir in ["src/deep", "src/.hidden", "a", ".git"] {
            create_dir_all(root.path().join(dir)).unwrap();
        }
        for file in [
            "src/a.rs",
            "src/deep/b.rs",
            "src/.hidden/c.rs",
            "a.rs",
            "a/z.rs",
            ".git/d.rs",
            "src/x.txt",
        ] {
            write(root.path().join(file), "12345").unwrap();
        }
        symlink("/etc", root.path().join("etc.rs")).unwrap();
        root
    }

    fn glob(view: &View, op: GlobOp) -> (Vec<String>, bool) {
        let result = run(view, op, 1 << 20).unwrap();
        (
            result.entries.into_iter().map(|info| info.path).collect(),
            result.truncated,
        )
    }

    fn op(pattern: &str) -> GlobOp {
        GlobOp {
            pattern: pattern.to_owned(),
            ..GlobOp::default()
        }
    }

    #[test]
    fn finds_what_matches_in_order() {
        let root = tree();
        let view = view(root.path());
        let all = ["/a.rs", "/a/z.rs", "/etc.rs", "/src/a.rs", "/src/deep/b.rs"];
        assert_eq!(glob(&view, op("**/*.rs")), (all.map(str::to_owned).to_vec(), false));
        let hidden = glob(
            &view,
            GlobOp {
                include_hidden: true,
                ..op("**/*.rs")
            },
        )
        .0;
        assert_eq!(hidden.len(), 7);
        assert!(hidden.is_sorted());
        assert_eq!(
            glob(
                &view,
                GlobOp {
                    path: "src".into(),
                    ..op("*.rs")
                }
            )
            .0,
            ["/src/a.rs"]
        );
        assert_eq!(glob(&view, op("{a,src/*}")).0, ["/src/a.rs", "/src/x.txt"]);
        let directories = glob(
            &view,
            GlobOp {
                include_directories: true,
                ..op("{a,src/*}")
            },
        )
        .0;
        assert_eq!(directories, ["/a", "/src/a.rs", "/src/deep", "/src/x.txt"]);
        assert_eq!(glob(&view, op("etc.rs/*")).0, Vec::<String>::new());
    }

    #[test]
    fn says_when_there_was_more() {
        let root = tree();
        let view = view(root.path());
        let limited = |limit| glob(&view, GlobOp { limit, ..op("**/*.rs") });
        assert_eq!(limited(2), (vec!["/a.rs".to_owned(), "/a/z.rs".to_owned()], true));
        assert!(!limited(5).1);
        let result = run(&view, op("**/*.rs"), 100).unwrap();
        assert!(result.truncated && result.encoded_len() <= 100 && !result.entries.is_empty());
    }

    #[test]
    fn says_how_many_directories_it_could_not_look_into() {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test needs root, to act as others"
        );
        let root = tree();
        let mode = |path: &str, mode| set_permissions(root.path().join(path), Permissions::from_mode(mode)).unwrap();
        mode("", 0o755);
        mode("src/deep", 0o700);
        mode("a", 0o700);
        let nobody = view_of(root.path(), "65534");
        let found = |op| {
            let result = run(&nobody, op, 1 << 20).unwrap();
            (result.entries.len(), result.directories_unreadable, result.truncated)
        };
        assert_eq!(found(op("**/*.rs")), (3, 2, false));
        // Nothing in the other one could match.
        assert_eq!(found(op("src/*/*.rs")), (0, 1, false));
        assert_eq!(found(op("*.rs")), (2, 0, false));
        assert_eq!(
            run(&view(root.path()), op("**"), 1 << 20)
                .unwrap()
                .directories_unreadable,
            0
        );
    }

    #[test]
    fn errors_have_their_reasons() {
        let root = tree();
        let view = view(root.path());
        let reason = |op| run(&view, op, 100).unwrap_err().reason;
        assert_eq!(reason(op("{a")), ErrorReason::PatternInvalid);
        assert_eq!(
            reason(GlobOp {
                path: "none".into(),
                ..op("*")
            }),
            ErrorReason::FileNotFound
        );
        assert_eq!(
            reason(GlobOp {
                path: "a.rs".into(),
                ..op("*")
            }),
            ErrorReason::FileNotDirectory
        );
        assert_eq!(
            reason(GlobOp {
                limit: 10_001,
                ..op("*")
            }),
            ErrorReason::InvalidArgument
        );
    }
}
