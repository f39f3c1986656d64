//! Files: written, read back, removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use sandgate::v1::{self, ErrorReason, FileType, file_op::Op, file_op_result::Result as Outcome};
use sandgate_tests::told::assert_same;
use sha2::{Digest as _, Sha256};
use tokio::time::{self, Instant};

use super::{Hands, PATIENCE, RETRY, answered};
use crate::{
    job::{Job, RUNS},
    place::Content,
};

const WORKSPACE: &str = "/workspace/";
/// Until the runtime has noticed that an upload was cut, what there was of it may lie beside the file.
const LITTER: Duration = Duration::from_secs(20);

// === impl Hands ===

impl Hands<'_> {
    /// An upload whose connection is lost leaves the old file or the new one, whole. Then it is made again.
    pub(super) async fn upload(&mut self, path: &'static str, content: Content) {
        let bytes = Bytes::from(content.bytes());
        let begun = Instant::now();
        while let Err(error) = self.sandbox().upload(path, bytes.clone()).await {
            assert!(
                error.is_unavailable() && begun.elapsed() < PATIENCE,
                "{path}: {error:?}"
            );
            self.check_old_or_new(path, &bytes).await;
            time::sleep(RETRY).await;
        }
        self.check_content(path, &bytes).await;
    }

    async fn check_old_or_new(&self, path: &'static str, new: &[u8]) {
        let sandbox = self.sandbox();
        let old = self.place.files.get(path).map(|content| content.bytes());
        match (answered(|| sandbox.download(path)).await, old) {
            (Ok(found), Some(old)) if found == old => {}
            (Ok(found), _) => assert_same(path, &found, new),
            (Err(error), None) => assert_eq!(error.reason(), Some(ErrorReason::FileNotFound), "{path}: {error:?}"),
            (Err(error), Some(_)) => panic!("{path}: {error:?}"),
        }
    }

    async fn check_content(&self, path: &'static str, wanted: &[u8]) {
        let sandbox = self.sandbox();
        let found = answered(|| sandbox.download(path)).await;
        let found = found.unwrap_or_else(|error| panic!("{path}: {error:?}"));
        assert_same(path, &found, wanted);
    }

    pub(super) async fn read_back(&mut self, path: &'static str) {
        self.check_content(path, &self.place.files[path].bytes()).await;
    }

    pub(super) async fn remove(&mut self, path: &'static str) {
        let remove = Op::Remove(v1::RemoveOp {
            path: path.to_owned(),
            ..Default::default()
        });
        match &self.file_ops(vec![remove]).await[..] {
            [Outcome::Remove(removed)] => assert_eq!(removed.removed, 1, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
        let sandbox = self.sandbox();
        let gone = answered(|| sandbox.download(path)).await.unwrap_err();
        assert_eq!(gone.reason(), Some(ErrorReason::FileNotFound), "{path}: {gone:?}");
    }

    /// The workspace has the files that were uploaded, the list of commands, and nothing else. Every command is on the
    /// list once. One more may have run meanwhile.
    pub(super) async fn check_files(&self, more: Option<&Job>) {
        let mut runs: Vec<&str> = self.place.jobs().map(|(job, _)| job.id.as_str()).collect();
        runs.extend(more.map(|job| job.id.as_str()));
        runs.sort_unstable();
        let mut wanted: BTreeSet<String> = self.place.files.keys().map(|path| (*path).to_owned()).collect();
        if !runs.is_empty() {
            wanted.insert(RUNS.to_owned());
        }
        let begun = Instant::now();
        loop {
            let found = self.listed().await;
            if found == wanted {
                break;
            }
            assert!(begun.elapsed() < LITTER, "{found:?}, not {wanted:?}");
            time::sleep(RETRY).await;
        }
        self.check_hashes().await;
        if !runs.is_empty() {
            self.check_runs(&runs).await;
        }
    }

    async fn check_runs(&self, wanted: &[&str]) {
        let sandbox = self.sandbox();
        let text = answered(|| sandbox.download(RUNS)).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let mut found: Vec<&str> = text.lines().collect();
        found.sort_unstable();
        assert_eq!(found, wanted, "each command ran once");
    }

    async fn check_hashes(&self) {
        let files: BTreeMap<_, _> = self.place.files.iter().collect();
        let hash = |path: &&str| {
            Op::Hash(v1::HashOp {
                path: path.to_string(),
                ..Default::default()
            })
        };
        if files.is_empty() {
            return;
        }
        let outcomes = self.file_ops(files.keys().map(|path| hash(path)).collect()).await;
        for ((path, content), outcome) in files.into_iter().zip(outcomes) {
            let wanted = Sha256::digest(content.bytes());
            match outcome {
                Outcome::Hash(hash) => assert!(
                    hash.sha256[..] == wanted[..] && hash.size == content.length as u64,
                    "{path} has another content"
                ),
                other => panic!("{path}: {other:?}"),
            }
        }
    }

    /// All regular files in the workspace.
    async fn listed(&self) -> BTreeSet<String> {
        let list = Op::List(v1::ListOp {
            path: WORKSPACE.to_owned(),
            depth: 8,
            ..Default::default()
        });
        let outcomes = self.file_ops(vec![list]).await;
        let [Outcome::List(list)] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        let files = list.entries.iter().filter(|entry| entry.r#type() == FileType::Regular);
        files
            .map(|file| file.path.strip_prefix(WORKSPACE).unwrap().to_owned())
            .collect()
    }

    async fn file_ops(&self, ops: Vec<Op>) -> Vec<Outcome> {
        let ops = ops.into_iter().map(|op| v1::FileOp { op: Some(op) }).collect();
        let results = self.sandbox().file_ops(ops).await.unwrap();
        results.into_iter().map(|result| result.result.unwrap()).collect()
    }
}
