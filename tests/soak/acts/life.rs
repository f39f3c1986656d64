//! Made, suspended, resumed, deleted.

use std::{collections::HashMap, time::Duration};

use sandgate::{
    Create,
    v1::{self, EndCause, ErrorReason, SandboxState},
};
use sandgate_tests::procs;

use super::{Hands, answered, refusal};
use crate::{
    job::Job,
    place::{Ended, Life},
};

const LABEL: &str = "soak";

// === impl Hands ===

impl Hands<'_> {
    fn creation(&self) -> Create {
        let Self {
            client, place, around, ..
        } = self;
        client
            .create()
            .name(&place.name)
            .template(place.template)
            .ttl(around.ttl)
    }

    pub(super) async fn create(&mut self) {
        // Whether it was `created` is not known: a repeat after a lost answer finds what the first call made.
        let made = self.creation().send().await.unwrap();
        assert_eq!(made.info.state(), SandboxState::Ready, "{:?}", made.info);
        assert!(!made.resumed, "{:?}", made.info);
        self.facts.born(&made.info.uid, &made.info.incarnation);
        self.check_files(None).await;
    }

    pub(super) async fn find(&mut self) {
        let found = self.creation().send().await.unwrap();
        assert!(!found.created && !found.resumed, "{:?}", found.info);
        self.check_ready(&found.info);
    }

    pub(super) async fn miss(&mut self) {
        let sandbox = self.sandbox();
        for outcome in [
            sandbox.get().await.map(drop),
            sandbox.attach().await.map(drop),
            sandbox.resume().await.map(drop),
            sandbox.suspend(None).await.map(drop),
            sandbox.execs(false).await.map(drop),
            answered(|| sandbox.download("a")).await.map(drop),
        ] {
            assert_eq!(refusal(outcome), ErrorReason::SandboxNotFound);
        }
        let deleted = sandbox.delete().await.unwrap();
        assert!(!deleted.existed, "{deleted:?}");
    }

    pub(super) async fn label(&mut self, label: u32) {
        let labels = HashMap::from([(LABEL.to_owned(), label.to_string())]);
        let labelled = self.sandbox().set_labels(labels.clone()).await.unwrap();
        assert_eq!(labelled.labels, labels);
    }

    /// By the incarnation, so that a call whose answer was lost does not meet the next one.
    pub(super) async fn suspend(&mut self, grace: Duration) {
        let sandbox = self.sandbox().expecting(&self.facts.incarnation);
        let suspended = sandbox.suspend(Some(grace)).await.unwrap();
        self.check_suspended(&suspended);
        self.nothing_runs();
        // The latter to one that came back before the end.
        let ended = [ErrorReason::SandboxRestarted, ErrorReason::SandboxSuspended];
        self.followers_were_told(&ended).await;
    }

    pub(super) async fn suspend_again(&mut self) {
        self.check_suspended(&self.sandbox().suspend(None).await.unwrap());
    }

    pub(super) async fn resume(&mut self) {
        let resumed = self.sandbox().resume().await.unwrap();
        self.check_woken(&resumed);
    }

    pub(super) async fn attach(&mut self) {
        let attached = self.sandbox().attach().await.unwrap();
        self.check_woken(&attached);
    }

    pub(super) async fn resume_by_create(&mut self) {
        let found = self.creation().send().await.unwrap();
        assert!(!found.created, "{:?}", found.info);
        self.check_woken(&found.info);
    }

    pub(super) async fn resume_by_run(&mut self, job: &Job) {
        let run = self.sandbox().auto_resume(true).run(job.command(&self.around.mark));
        let answer = run.send().await.unwrap();
        job.check_answer(&answer);
        let woken = self.sandbox().get().await.unwrap();
        assert_eq!(answer.exec.unwrap().incarnation, woken.incarnation);
        self.check_woken(&woken);
    }

    /// By the uid, so that a call whose answer was lost does not meet the next one.
    pub(super) async fn delete(&mut self, grace: Option<Duration>) {
        let request = v1::DeleteRequest {
            sandbox: self.place.name.clone(),
            expected_uid: self.facts.uid.clone(),
            grace: grace.map(|grace| grace.try_into().unwrap()),
        };
        let delete = || {
            let (mut raw, request) = (self.client.raw(), request.clone());
            async move { Ok(raw.delete(request).await?.into_inner()) }
        };
        let deleted = answered(delete).await.unwrap();
        // A repeat finds nothing.
        if deleted.existed {
            assert_eq!(
                (&deleted.uid, &deleted.incarnation),
                (&self.facts.uid, &self.facts.incarnation)
            );
        }
        self.nothing_runs();
        let dir = self.around.state_dir.join("sandboxes").join(&self.place.name);
        assert!(!dir.exists(), "{} is left", dir.display());
        assert_eq!(refusal(self.sandbox().get().await), ErrorReason::SandboxNotFound);
        // The last when the server was killed in the time of grace: its processes end, and it waits for a repeat.
        let gone = [
            ErrorReason::SandboxNotFound,
            ErrorReason::SandboxRestarted,
            ErrorReason::SandboxSuspended,
        ];
        self.followers_were_told(&gone).await;
    }

    /// It is what it must be, in every respect.
    pub(crate) async fn audit(&mut self) {
        match self.place.life {
            Life::Absent => assert_eq!(refusal(self.sandbox().get().await), ErrorReason::SandboxNotFound),
            Life::Suspended => self.check_suspended(&self.sandbox().get().await.unwrap()),
            Life::Ready => {
                self.check_ready(&self.sandbox().get().await.unwrap());
                self.check_execs().await;
                self.check_files(None).await;
            }
        }
    }

    /// Files and records outlived a suspension. A command may have run since.
    pub(super) async fn check_kept(&mut self, since: Option<&Job>) {
        let place = self.place;
        self.check_files(since).await;
        for past in &place.past {
            if past.ended == Ended::Stopped {
                self.recall(past).await;
            }
        }
    }

    /// The incarnation has ended, and with it the followers of its commands: for one of these reasons, or because they
    /// were told the end first.
    async fn followers_were_told(&mut self, reasons: &[ErrorReason]) {
        let place = self.place;
        for job in &place.running {
            let Some((told, error)) = self.last_told(job).await else {
                continue;
            };
            job.check_beginning(&told);
            match &error {
                None => assert!(told.total.is_some(), "{} ended without a word", job.id),
                Some(error) => {
                    let why = error.reason().unwrap_or_default();
                    assert!(reasons.contains(&why), "{}: {error:?}", job.id);
                }
            }
        }
    }

    fn check_ready(&self, info: &v1::Sandbox) {
        assert_eq!(info.state(), SandboxState::Ready, "{info:?}");
        assert_eq!(
            (&info.uid, &info.incarnation),
            (&self.facts.uid, &self.facts.incarnation),
            "{info:?}"
        );
        self.check_labels(info);
    }

    fn check_woken(&mut self, info: &v1::Sandbox) {
        self.facts.woken(&info.incarnation);
        self.check_ready(info);
        let end = info.last_end.as_ref().unwrap();
        assert_eq!(end.cause(), EndCause::Suspended, "{info:?}");
    }

    fn check_suspended(&self, info: &v1::Sandbox) {
        let end = info.last_end.clone().unwrap_or_default();
        assert_eq!(
            (info.state(), info.incarnation.as_str(), &info.uid),
            (SandboxState::Suspended, "", &self.facts.uid),
            "{info:?}"
        );
        assert_eq!(
            (end.cause(), &end.incarnation),
            (EndCause::Suspended, &self.facts.incarnation),
            "{info:?}"
        );
        self.check_labels(info);
    }

    fn check_labels(&self, info: &v1::Sandbox) {
        let label = self.place.label.map(|label| label.to_string());
        assert_eq!(info.labels.get(LABEL), label.as_ref(), "{info:?}");
    }

    /// No process of a command is there any more.
    fn nothing_runs(&self) {
        for job in &self.place.running {
            let left = procs::marked(&job.mark(&self.around.mark));
            assert_eq!(left, [], "processes of {} are left", job.id);
        }
    }
}
