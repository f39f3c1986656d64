//! runc: a container for each command, and a command in a container that runs.

use std::{
    cell::Cell,
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PATIENCE, run};
use crate::work::NOTHING;

pub(crate) struct Runc {
    dir: TempDir,
    /// Ends when its stdin does, that is with this process, however that ends.
    container: Child,
    made: Cell<u32>,
}

/// Bundles: what a container is made from.
const LASTING: &str = "lasting";
const ONE: &str = "one";

// === impl Runc ===

impl Runc {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        bundle(&dir.path().join(LASTING), &["/bin/cat"]);
        bundle(&dir.path().join(ONE), &NOTHING);
        let container = runc(dir.path())
            .args(["run", "--bundle"])
            .arg(dir.path().join(LASTING))
            .arg(id(LASTING))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("`scripts/need peers` brings runc");
        let runc = Self {
            dir,
            container,
            made: Cell::new(0),
        };
        let begun = Instant::now();
        while !runc.is_running() {
            assert!(begun.elapsed() < PATIENCE, "no container");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        runc
    }

    fn is_running(&self) -> bool {
        let state = runc(self.dir.path()).args(["state", &id(LASTING)]).output().unwrap();
        let state: Value = serde_json::from_slice(&state.stdout).unwrap_or_default();
        state["status"] == "running"
    }

    /// In a container of its own.
    pub(crate) async fn run(&self) {
        self.made.set(self.made.get() + 1);
        let name = id(&format!("{ONE}-{}", self.made.get()));
        let bundle = self.dir.path().join(ONE);
        run(runc(self.dir.path()).args(["run", "--bundle"]).arg(bundle).arg(name));
    }

    /// In the one that runs.
    pub(crate) async fn exec(&self) {
        run(runc(self.dir.path()).arg("exec").arg(id(LASTING)).args(NOTHING));
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        drop(self.container.stdin.take());
        let _ = self.container.wait();
    }
}

fn runc(dir: &Path) -> Command {
    let mut command = Command::new("runc");
    command.arg("--root").arg(dir.join("state"));
    command
}

/// Containers of all processes share the names of their cgroups.
fn id(name: &str) -> String {
    format!("sandgate-bench-{}-{name}", std::process::id())
}

/// The container that runc itself proposes, with this machine's programs in it.
fn bundle(dir: &Path, program: &[&str]) {
    let root = dir.join("rootfs");
    for directory in ["usr", "etc", "proc", "dev", "sys"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for (name, target) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        symlink(target, root.join(name)).unwrap();
    }
    run(Command::new("runc").args(["spec", "--bundle"]).arg(dir));
    let file = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["process"]["args"] = json!(program);
    config["process"]["terminal"] = json!(false);
    let usr = json!({"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]});
    config["mounts"].as_array_mut().unwrap().push(usr);
    fs::write(file, config.to_string()).unwrap();
}
