//! Components of the cluster, stopped for a while.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use sandgate_kubernetes_tests::Cluster;
use tokio::task::spawn_blocking;

/// A component that does not run. It does again after this.
pub(crate) struct Stopped {
    directory: PathBuf,
    component: &'static str,
    is_back: bool,
}

/// A kubelet that finds its node short of memory, and evicts pods one after the other.
pub(crate) struct Pressure {
    configuration: PathBuf,
    before: String,
}

// === impl Stopped ===

impl Stopped {
    /// Ends a component by a signal.
    pub(crate) async fn by(signal: &'static str, component: &'static str, cluster: &Cluster) -> Self {
        let scratch = cluster.scratch.clone();
        let directory = scratch.expect("components can be stopped in a cluster of scripts/cluster alone");
        let stopped = Self {
            directory: directory.clone(),
            component,
            is_back: false,
        };
        script(&directory, &["stop", component, signal]).await;
        stopped
    }

    /// Starts it, and waits until it works.
    pub(crate) async fn start(mut self) {
        script(&self.directory, &["start", self.component]).await;
        self.is_back = true;
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.is_back {
            let _ = run(&self.directory, &["start", self.component]);
        }
    }
}

/// Has something done to the cluster, off the threads that tests run on.
async fn script(cluster: &Path, arguments: &[&'static str]) {
    let (cluster, arguments) = (cluster.to_owned(), arguments.to_vec());
    spawn_blocking(move || {
        let done = run(&cluster, &arguments).unwrap();
        assert!(done.success(), "{arguments:?}: {done:?}");
    })
    .await
    .unwrap();
}

fn run(cluster: &Path, arguments: &[&str]) -> io::Result<ExitStatus> {
    // Tests run in the directory of their package.
    let mut script = Command::new("../../scripts/cluster");
    script.arg("--dir").arg(cluster).args(arguments).status()
}

// === impl Pressure ===

impl Pressure {
    /// Has the kubelet want more free memory than any node has.
    pub(crate) async fn begin(cluster: &Cluster) -> Self {
        let kubelet = Stopped::by("TERM", "kubelet", cluster).await;
        let configuration = kubelet.directory.join("config/kubelet.yaml");
        let before = fs::read_to_string(&configuration).unwrap();
        let wanted = before.replace("memory.available: 100Mi", "memory.available: 99%");
        assert_ne!(wanted, before, "the kubelet is configured in another way");
        let pressure = Self { configuration, before };
        fs::write(&pressure.configuration, wanted).unwrap();
        kubelet.start().await;
        pressure
    }

    /// Has it want what it wanted before. One that was started anew remembers no pressure.
    pub(crate) async fn end(mut self, cluster: &Cluster) {
        let kubelet = Stopped::by("TERM", "kubelet", cluster).await;
        self.restore();
        kubelet.start().await;
    }

    fn restore(&mut self) {
        fs::write(&self.configuration, std::mem::take(&mut self.before)).unwrap();
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        if self.before.is_empty() {
            return;
        }
        let directory = self.configuration.ancestors().nth(2).unwrap().to_owned();
        let _ = run(&directory, &["stop", "kubelet"]);
        self.restore();
        let _ = run(&directory, &["start", "kubelet"]);
    }
}
