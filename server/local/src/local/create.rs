//! Create: get or make.

use std::{collections::BTreeSet, sync::Arc};

use sandgate_errors::Refusal;
use sandgate_monitor::{Record, Spec, Variable, now_ms};
use sandgate_proto::v1::{ConnectionMode, EnvVar, ErrorReason};
use sandgate_provider::{Begun, NewSandbox};
use tokio::time::Instant;

use super::stopping;
use crate::{
    actor::{Actor, Origin, too_many},
    ranges::Lease,
    settings::Template,
    shared::{RETRY_AFTER, Shared, unique},
    slot::{News, Slot, Slots},
};

/// What a name stands for.
enum Named {
    Made(Begun),
    There(Arc<Slot>),
    Leaving(Arc<Slot>),
}

// === impl Shared ===

impl Shared {
    pub(super) async fn create(self: &Arc<Self>, wanted: NewSandbox, asked: Instant) -> Result<Begun, Refusal> {
        refuse_what_is_for_kubernetes(&wanted)?;
        let template = match wanted.template.as_str() {
            "" => self.settings.default_template.clone(),
            name => name.to_owned(),
        };
        loop {
            if self.is_closing() {
                return Err(stopping());
            }
            match self.get_or_make(&wanted, &template, asked)? {
                Named::Made(begun) => return Ok(begun),
                Named::There(slot) => {
                    if let Some(begun) = self.resume(&slot).await {
                        return Ok(begun);
                    }
                }
                Named::Leaving(slot) => {
                    let stays_or_gone = |news: &News| news.gone || !news.leaving();
                    let _ = slot.news.subscribe().wait_for(stays_or_gone).await;
                }
            }
        }
    }

    /// Finds the name or takes it, in one step: of many who come at once one makes the sandbox.
    fn get_or_make(self: &Arc<Self>, wanted: &NewSandbox, template: &str, asked: Instant) -> Result<Named, Refusal> {
        let mut slots = self.slots();
        let Some(slot) = slots.by_name.get(&wanted.name) else {
            return self.make(&mut slots, wanted, template, asked).map(Named::Made);
        };
        if slot.news.borrow().leaving() {
            return Ok(Named::Leaving(Arc::clone(slot)));
        }
        if slot.template != template {
            let message = format!(
                "sandbox {} exists and was made from template {:?}, not {template:?}",
                wanted.name, slot.template
            );
            return Err(Refusal::new(ErrorReason::SandboxAlreadyExists, message).with("template", &slot.template));
        }
        Ok(Named::There(Arc::clone(slot)))
    }

    fn make(
        self: &Arc<Self>,
        slots: &mut Slots,
        wanted: &NewSandbox,
        template: &str,
        asked: Instant,
    ) -> Result<Begun, Refusal> {
        let (Some(settings), Some(root)) = (self.settings.templates.get(template), self.roots.get(template)) else {
            return Err(self.no_template(template));
        };
        let limits = &self.settings.limits;
        let now = now_ms();
        let deadline_ms = limits.spans.deadline(wanted.end, Some(settings.spans), now)?;
        let idle_limit_ms = limits.spans.idle(wanted.idle_limit, Some(settings.spans))?;
        let live = Arc::clone(&self.live).try_acquire_owned();
        let live = live.map_err(|_| too_many(limits.sandboxes))?;
        let range = match &self.ranges {
            Some(ranges) => Some(ranges.take().ok_or_else(no_uids)?),
            None => None,
        };
        let record = Record {
            name: wanted.name.to_string(),
            uid: unique()?,
            template: template.to_owned(),
            created_ms: now,
            deadline_ms,
            idle_limit_ms,
            labels: wanted.labels.clone(),
            env: merge_env(settings, &wanted.env),
            revision: 1,
            spec: Spec {
                isolation: settings.isolation,
                root: root.clone(),
                uid_range: range.as_ref().map(Lease::range),
                workdir: settings.workdir.clone(),
                user: settings.user.clone(),
                network: settings.network,
                limits: settings.resources.clone(),
                require: settings.require.clone(),
            },
        };
        let dir = self.store.unfinished(&record.uid);
        let (slot, inbox) = Slot::new(wanted.name.clone(), record.uid.clone(), template.to_owned(), dir);
        slots.by_name.insert(slot.name.clone(), Arc::clone(&slot));
        let mut actor = Actor::new(Arc::clone(self), slot, inbox, record);
        actor.live = Some(live);
        actor.range = range;
        let sandbox = self.table.put(Arc::clone(&actor.sandbox));
        tokio::spawn(actor.run(Origin::New(asked)));
        Ok(Begun {
            sandbox,
            created: true,
            resumed: false,
        })
    }

    fn no_template(&self, name: &str) -> Refusal {
        let known: Vec<_> = self.settings.templates.keys().map(String::as_str).collect();
        let message = format!("there is no template {name:?}; there are: {}", known.join(", "));
        Refusal::new(ErrorReason::TemplateNotFound, message)
    }
}

fn no_uids() -> Refusal {
    let message = "no uids are left for another sandbox; delete one";
    Refusal::new(ErrorReason::LimitReached, message).with_retry_after(RETRY_AFTER)
}

fn refuse_what_is_for_kubernetes(wanted: &NewSandbox) -> Result<(), Refusal> {
    let refuse = |field: &str, what: &str| {
        let message = format!("{what} on Kubernetes; this server makes sandboxes on its own machine");
        Err(Refusal::invalid(field, message))
    };
    if !wanted.warm_pool.is_empty() {
        return refuse("warm_pool", "there are warm pools only");
    }
    if !wanted.volumes.is_empty() {
        return refuse("volumes", "there are volumes only");
    }
    match wanted.connection_mode {
        ConnectionMode::Unspecified | ConnectionMode::Local => Ok(()),
        mode => refuse(
            "connection_mode",
            &format!("{} is a way to sandboxes", mode.as_str_name()),
        ),
    }
}

/// The template's environment, then the caller's, who wins. Each name once.
fn merge_env(template: &Template, caller: &[EnvVar]) -> Vec<Variable> {
    let ours = template.env.iter().map(|(name, value)| Variable {
        name: name.clone(),
        value: value.clone(),
        raw: Vec::new(),
    });
    let theirs = caller.iter().map(|variable| Variable {
        name: variable.name.clone(),
        value: variable.value.clone(),
        raw: variable.value_raw.to_vec(),
    });
    let all: Vec<_> = ours.chain(theirs).collect();
    let mut seen = BTreeSet::new();
    let mut merged: Vec<_> = all
        .into_iter()
        .rev()
        .filter(|variable| seen.insert(variable.name.clone()))
        .collect();
    merged.reverse();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::testing::template;

    #[test]
    fn the_callers_environment_wins() {
        let mut template = template();
        template.env = vec![("A".into(), "t".into()), ("B".into(), "t".into())];
        let var = |name: &str, value: &str| EnvVar {
            name: name.to_owned(),
            value: value.to_owned(),
            value_raw: Default::default(),
        };
        let merged = merge_env(&template, &[var("B", "1"), var("C", "c"), var("B", "2")]);
        let pairs: Vec<_> = merged.iter().map(|v| (v.name.as_str(), v.value.as_str())).collect();
        assert_eq!(pairs, [("A", "t"), ("C", "c"), ("B", "2")]);
    }
}
