//! What the API server has and the watches may not have told yet. Another replica may have written it a moment ago, and
//! whoever was told of it there asks here.

use std::{collections::HashSet, time::Duration};

use kube::api::ListParams;
use sandgate_errors::Refusal;
use sandgate_provider::Selector;
use tokio::time::Instant;

use crate::{
    memo::{MANAGED_BY, MANAGER, Memo},
    shared::{Shared, failed},
    view::Facts,
    world::Key,
};

/// How long a watch may be behind what was asked for.
const NEWS: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(100);

// === impl Shared ===

impl Shared {
    /// Has the table show all sandboxes that match as they are now, and no other.
    pub(crate) async fn refresh(&self, selector: &Selector) -> Result<(), Refusal> {
        let (before, _) = self.table().snapshot(selector);
        let selected = match selector.to_string() {
            all if all.is_empty() => format!("{MANAGED_BY}={MANAGER}"),
            some => format!("{MANAGED_BY}={MANAGER},{some}"),
        };
        let selected = ListParams::default().labels(&selected);
        let (mut there, mut fresh) = (HashSet::new(), Vec::new());
        for namespace in &self.settings.namespaces {
            let listed = self.claims(namespace).list(&selected).await;
            let listed = listed.map_err(|error| failed("the claims can't be listed", &error))?;
            for claim in listed.items.into_iter().filter(|claim| Memo::of(claim).is_some()) {
                let (key, uid) = (Key::of(&claim.metadata), claim.metadata.uid.clone().unwrap_or_default());
                if before.iter().all(|known| known.uid != uid) {
                    fresh.push(key.clone());
                }
                there.insert(uid);
                self.world.put_claim(claim);
            }
        }
        // What is not there is gone, or does not match any more: the watch will tell.
        let is_told = |uid: &str| there.contains(uid);
        let untold: Vec<_> = before.iter().filter(|known| !is_told(&known.uid)).collect();
        let told = self.table().wait(NEWS, |now| {
            let stays = |name: &str, uid: &str| {
                now.get(name)
                    .is_some_and(|now| now.uid == uid && selector.matches(&now.labels))
            };
            untold.iter().all(|known| !stays(&known.name, &known.uid))
        });
        let _ = told.await;
        self.settle(&fresh).await;
        Ok(())
    }

    /// Waits until the watches have told as much of claims as their writers knew: whether their pods are there, and that
    /// they were started.
    pub(crate) async fn settle(&self, keys: &[Key]) {
        let mut ticks = self.table().ticks();
        let until = Instant::now() + NEWS;
        let is_behind = |key: &Key| self.world.look(key, |facts, _| is_behind(facts)).unwrap_or(false);
        while keys.iter().any(is_behind) && Instant::now() < until {
            self.news(&mut ticks, LOOK).await;
        }
    }
}

/// Whether a sandbox was ready a moment ago, or will be in a moment.
fn is_behind(facts: &Facts<'_>) -> bool {
    let is_unseen = facts.memo.started.is_some() && facts.pod.is_none() && !facts.is_asleep();
    is_unseen || facts.wants_greeting()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{claim, claim_object, provider};

    #[tokio::test(start_paused = true)]
    async fn what_another_server_made_or_removed_is_known_by_the_next_list() {
        let memo = Memo::default();
        let mut theirs = claim("new", "n", 7, &memo);
        theirs["metadata"]["labels"]["team"] = "red".into();
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [theirs]});
        let (shared, log) = provider(move |_| (200, list.clone()));
        let mut old = claim("old", "o", 5, &memo);
        old["metadata"]["labels"]["team"] = "red".into();
        shared.world.put_claim(claim_object(&old));
        let selector = Selector::parse("s", "team=red").unwrap();
        let watch = async {
            // The watch is a moment behind.
            tokio::time::sleep(NEWS / 2).await;
            shared.world.drop_claim(&Key::new("ns", "old"), Some("o"));
        };
        let (refreshed, ()) = tokio::join!(shared.refresh(&selector), watch);
        refreshed.unwrap();
        let (listed, _) = shared.table().list(&selector, "", 10);
        let names: Vec<_> = listed.iter().map(|each| each.name.as_str()).collect();
        assert_eq!(names, ["new"]);
        let asked = log.lock().unwrap();
        assert!(
            asked.iter().all(|asked| asked.query.contains("team+in+%28red%29")),
            "{asked:?}"
        );
        // Who read it before it went has nothing to tell.
        shared.world.put_claim(claim_object(&old));
        assert!(shared.table().get("old").is_none());
    }
}
