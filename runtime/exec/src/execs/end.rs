//! The end of execs: of all at once when the sandbox stops, of old records one by one.

use std::time::{Duration, SystemTime};

use super::{Execs, SWEEP};
use crate::{id::digest, journal::Entry};

impl Execs {
    /// Ends every process and puts everything on disk. Nothing can be started from then on.
    pub async fn stop(&self, grace: Option<Duration>) {
        self.table().stopping = true;
        self.0.launcher.dismiss().await;
        let execs = self.list();
        let started = async {
            for exec in &execs {
                exec.started().await;
            }
        };
        // Not for ever: a start can be stuck in a file system that does not answer.
        let _ = tokio::time::timeout(SWEEP, started).await;
        let trees = || {
            execs
                .iter()
                .filter(|exec| exec.is_alive())
                .filter_map(|exec| exec.live.get())
                .map(|live| &live.tree)
        };
        if let Some(grace) = grace {
            trees().for_each(|tree| drop(tree.terminate()));
            let all_dead = async {
                for exec in &execs {
                    exec.dead().await;
                }
            };
            let _ = tokio::time::timeout(grace, all_dead).await;
        }
        // All at once, and not for ever: what the kernel does not let go of must not hold back the end.
        let killing: Vec<_> = execs
            .iter()
            .filter(|exec| exec.is_alive())
            .map(|exec| exec.kill())
            .collect();
        // Neither must followers that hold a writer back. What is left is no more than the pipes hold.
        execs.iter().for_each(|exec| exec.log.release());
        let over = async {
            for killed in killing {
                let _ = killed.await;
            }
            for exec in &execs {
                exec.over().await;
                exec.saved().await;
            }
        };
        if tokio::time::timeout(SWEEP, over).await.is_err() {
            tracing::warn!("some execs are not over; what is known of them is put on disk");
        }
        for exec in &execs {
            if let Err(error) = exec.log.flush().await {
                tracing::error!(exec = exec.id, %error, "output could not be put on disk");
            }
        }
    }

    /// Drops records of execs that are over, beyond the number and the age that are kept. Their ids stay taken.
    pub(super) async fn drop_old(&self) {
        for id in self.old() {
            if let Err(error) = self.0.journal.append(&Entry {
                id: id.clone(),
                ..Entry::default()
            }) {
                tracing::warn!(exec = id, %error, "an old record could not be dropped");
                return;
            }
            {
                let mut table = self.table();
                table.spent.insert(digest(&id));
                table.execs.remove(&id);
                table.order.retain(|known| *known != id);
            }
            if let Err(error) = self.0.store.remove(&id).await {
                tracing::warn!(exec = id, %error, "old output could not be removed");
            }
        }
    }

    /// For how long there will be nothing to let go of if no exec comes. `None`: there is something now, or may be soon.
    pub(super) fn quiet_for(&self) -> Option<Duration> {
        if !self.0.launcher.is_at_rest() {
            return None;
        }
        let settings = &self.0.launcher.settings;
        let table = self.table();
        if table.execs.len() > settings.keep_finished {
            return None;
        }
        table.execs.values().try_fold(Duration::MAX, |quiet, exec| {
            let age = exec.status.borrow().over_at?.elapsed().unwrap_or_default();
            Some(quiet.min(settings.keep_for.saturating_sub(age)))
        })
    }

    fn old(&self) -> Vec<String> {
        let settings = &self.0.launcher.settings;
        let table = self.table();
        let over: Vec<(&String, SystemTime)> = table
            .order
            .iter()
            .filter_map(|id| Some((id, table.execs.get(id)?.status.borrow().over_at?)))
            .collect();
        let too_many = over.len().saturating_sub(settings.keep_finished);
        let too_old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > settings.keep_for);
        let old = over
            .iter()
            .enumerate()
            .filter(|(place, (_, at))| *place < too_many || too_old(at));
        old.map(|(_, (id, _))| (*id).clone()).collect()
    }
}
