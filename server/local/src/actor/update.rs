//! Changing what can be changed.

use std::sync::Arc;

use sandgate_errors::Refusal;
use sandgate_monitor::{Record, control::Request, now_ms};
use sandgate_proto::v1::{ErrorReason, Sandbox};
use sandgate_provider::{Change, inside};

use super::{Actor, failed};
use crate::sandbox;

// === impl Actor ===

impl Actor {
    pub(super) async fn update(&mut self, change: Change) -> Result<Arc<Sandbox>, Refusal> {
        let etag = sandbox::etag(&self.record);
        if change.etag.as_ref().is_some_and(|seen| *seen != etag) {
            let message = "the sandbox has changed since; look at it again and decide anew";
            return Err(Refusal::new(ErrorReason::EtagMismatch, message).with("etag", etag));
        }
        let limits_change = change.end.is_some() || change.idle_limit.is_some();
        let record = self.changed(change)?;
        let (written, dir) = (record.clone(), self.slot.place.get());
        let written = Self::blocking(move || written.write(&dir)).await;
        written.map_err(|error| failed("the sandbox's record can't be written", &error))?;
        self.record = record;
        sandbox::apply_record(Arc::make_mut(&mut self.sandbox), &self.record);
        let told = if limits_change {
            self.tell_limits().await
        } else {
            Ok(())
        };
        let now = self.publish();
        told.map(|()| now)
    }

    fn changed(&self, change: Change) -> Result<Record, Refusal> {
        let settings = &self.shared.settings;
        let template = settings.templates.get(&self.record.template);
        let mut record = self.record.clone();
        if let Some(end) = change.end {
            record.deadline_ms =
                settings
                    .limits
                    .spans
                    .deadline(end, template.map(|template| template.spans), now_ms())?;
        }
        if let Some(idle) = change.idle_limit {
            record.idle_limit_ms = settings
                .limits
                .spans
                .idle(Some(idle), template.map(|template| template.spans))?;
        }
        if let Some(labels) = change.labels {
            record.labels = labels;
        }
        record.revision += 1;
        Ok(record)
    }

    /// Monitor and runtime each keep the limits.
    async fn tell_limits(&mut self) -> Result<(), Refusal> {
        // One that has ended is noticed by itself, and the next one reads the record.
        let _ = self.ask(&Request::Reread).await;
        if self.running.is_none() {
            return Ok(());
        }
        let told = inside::set_limits(
            &self.slot.link(),
            self.record.deadline_ms,
            self.record.idle_limit_ms,
            now_ms(),
        )
        .await;
        told.map_err(|status| {
            let message = format!(
                "the change is noted, and what runs inside could not be told ({}); try again",
                status.message()
            );
            Refusal::new(ErrorReason::SandboxUnreachable, message)
        })
    }
}
