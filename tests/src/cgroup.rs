//! Cgroups of a test's own, as a server would give them to a runtime.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Directories in the cgroup2 tree and, where there is one, in the v1 memory tree. Removed with the value.
pub struct TestCgroup {
    /// In the cgroup2 tree.
    pub unified: PathBuf,
    /// In the v1 memory tree.
    pub memory: Option<PathBuf>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

// === impl TestCgroup ===

impl TestCgroup {
    pub(crate) fn new() -> Self {
        let name = format!(
            "sandgate-test-runtime-{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let unified = own("cgroup2", None).expect("a cgroup2 tree is mounted").join(&name);
        fs::create_dir(&unified).expect("this test needs root, to make a cgroup");
        let memory = own("cgroup", Some("memory")).map(|parent| parent.join(&name));
        if let Some(memory) = &memory {
            fs::create_dir(memory).unwrap();
        }
        Self { unified, memory }
    }

    /// Names of the execs' groups that are there now.
    #[must_use]
    pub fn groups(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.unified).unwrap().map(|entry| entry.unwrap());
        let dirs = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        dirs.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        for root in [Some(&self.unified), self.memory.as_ref()].into_iter().flatten() {
            for entry in fs::read_dir(root).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    let _ = fs::write(entry.path().join("cgroup.kill"), "1");
                    remove(&entry.path());
                }
            }
            remove(root);
        }
    }
}

fn remove(group: &Path) {
    for _ in 0..500 {
        if fs::remove_dir(group).is_ok() || !group.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("could not remove {}", group.display());
}

/// Our own group in the tree of that type: the one place where we may surely make others.
fn own(kind: &str, controller: Option<&str>) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| {
            fields[2] == kind && controller.is_none_or(|name| fields[3].split(',').any(|option| option == name))
        })?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let found = match controller {
            Some(name) => controllers.split(',').any(|each| each == name),
            None => controllers.is_empty(),
        };
        found.then(|| path.trim_start_matches('/').to_owned())
    })?;
    Some(Path::new(mount[1]).join(path))
}
