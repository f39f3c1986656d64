//! Commands: run, followed, ended, asked for again.

use std::collections::BTreeMap;

use sandgate::{
    Command, Error, Exec,
    v1::{self, ErrorReason, ExecState, exec_exit::Status},
};
use sandgate_tests::{procs, told::Told};
use tokio::time;

use super::{Hands, RETRY, refusal};
use crate::{
    job::Job,
    place::{Ended, Life, Past},
};

const KILL: i32 = 9;
const TERM: i32 = 15;

// === impl Hands ===

impl Hands<'_> {
    pub(super) async fn run(&mut self, job: &Job) {
        let run = self.sandbox().run(job.command(&self.around.mark));
        let answer = run.send().await.unwrap();
        job.check_answer(&answer);
        assert_eq!(answer.exec.unwrap().incarnation, self.facts.incarnation);
    }

    pub(super) async fn stream(&mut self, job: &Job) {
        let mut exec = self.sandbox().exec(job.command(&self.around.mark));
        let (written, (told, error)) = match job.input() {
            Some(pieces) => {
                let writing = write(&mut exec, pieces);
                tokio::join!(writing, Told::follow(&mut exec))
            }
            None => (Ok(()), Told::follow(&mut exec).await),
        };
        assert!(error.is_none(), "{}: {error:?}", job.id);
        assert!(written.is_ok(), "{}: {written:?}", job.id);
        job.check_whole(&told);
    }

    pub(super) async fn start(&mut self, job: &Job, followed: bool) {
        let sandbox = self.sandbox();
        let info = sandbox.start(job.command(&self.around.mark)).await.unwrap();
        assert_eq!(
            (info.state(), &info.incarnation),
            (ExecState::Running, &self.facts.incarnation),
            "{info:?}"
        );
        // It is on the list of what was run.
        while sandbox.exec_info(&job.id).await.unwrap().written.unwrap().stdout == 0 {
            time::sleep(RETRY).await;
        }
        if followed {
            let attach = sandbox.expecting(&self.facts.incarnation).attach_exec(&job.id);
            let mut exec = attach.follow();
            let following = tokio::spawn(async move { Told::follow(&mut exec).await });
            self.facts.followers.insert(job.id.clone(), following);
        }
    }

    pub(super) async fn kill(&mut self, job: &Job) {
        match self.sandbox().signal_exec(&job.id, KILL).await {
            Ok(processes) => assert!(processes > 0, "{} had no process", job.id),
            // The answer was lost, and it is not sent twice to what is dead.
            Err(error) => assert_eq!(
                error.reason(),
                Some(ErrorReason::ExecNotRunning),
                "{}: {error:?}",
                job.id
            ),
        }
        let left = procs::marked(&job.mark(&self.around.mark));
        assert_eq!(left, [], "processes of {} are left", job.id);
        let all = self.told_again(job, Ended::Killed).await;
        if let Some((told, error)) = self.last_told(job).await {
            assert!(error.is_none(), "{}: {error:?}", job.id);
            assert_eq!(
                (told.stdout.len(), told.stderr.len(), told.total, told.exit),
                (all.stdout.len(), all.stderr.len(), all.total, all.exit),
                "two followers of {} were told different things",
                job.id
            );
            job.check_beginning(&told);
        }
    }

    /// Asks for one that has ended: it is found, not run again, and its output is what it was.
    pub(super) async fn recall(&mut self, past: &Past) {
        let Past { job, ended } = past;
        let (sandbox, command) = (self.sandbox(), job.command(&self.around.mark));
        let info = sandbox.exec_info(&job.id).await.unwrap();
        let again = sandbox.start(command).await.unwrap();
        assert_eq!(
            (again.state(), again.started_at, &again.incarnation, again.pid),
            (ExecState::Exited, info.started_at, &info.incarnation, info.pid),
            "{} was started again",
            job.id
        );
        let other = sandbox.start(Command::shell("echo other").id(&job.id)).await;
        assert_eq!(refusal(other), ErrorReason::ExecAlreadyExists);
        self.told_again(job, *ended).await;
    }

    /// A suspended sandbox runs nothing.
    pub(super) async fn refused(&mut self, job: &Job) {
        let run = self.sandbox().run(job.command(&self.around.mark)).send().await;
        assert_eq!(refusal(run), ErrorReason::SandboxSuspended);
    }

    /// Nothing runs in an incarnation that has ended, and nothing is woken for it.
    pub(super) async fn stale(&mut self, job: &Job) {
        let ended = self.facts.an_ended_one(self.place.life == Life::Ready);
        let sandbox = self.sandbox().expecting(ended).auto_resume(true);
        let run = sandbox.run(job.command(&self.around.mark)).send().await;
        assert_eq!(refusal(run), ErrorReason::SandboxRestarted);
    }

    /// Follows an ended command from its start, and holds what is told against what it must have done.
    async fn told_again(&self, job: &Job, ended: Ended) -> Told {
        let (told, error) = Told::follow(&mut self.sandbox().attach_exec(&job.id).follow()).await;
        assert!(error.is_none(), "{}: {error:?}", job.id);
        if ended == Ended::ByItself {
            job.check_whole(&told);
            return told;
        }
        job.check_beginning(&told);
        let status = told.exit.as_ref().and_then(|exit| exit.status);
        let by = match ended {
            Ended::Killed => vec![Status::Signal(KILL)],
            _ => vec![Status::Signal(TERM), Status::Signal(KILL)],
        };
        assert!(
            status.is_some_and(|status| by.contains(&status)),
            "{}: {status:?}",
            job.id
        );
        assert_eq!((told.started, told.total), (1, Some(told.offsets())));
        told
    }

    /// What the follower of a command was told that has ended, if there is one.
    pub(super) async fn last_told(&mut self, job: &Job) -> Option<(Told, Option<Error>)> {
        let follower = self.facts.followers.remove(&job.id)?;
        Some(follower.await.unwrap())
    }

    /// The sandbox knows all commands that were started in it and no others, and how each is.
    pub(super) async fn check_execs(&self) {
        let listed = self.sandbox().execs(false).await.unwrap();
        let count = listed.len();
        let found: BTreeMap<&str, bool> = listed
            .iter()
            .map(|exec| (exec.exec_id.as_str(), is_over(exec)))
            .collect();
        assert_eq!(found.len(), count, "an exec is listed twice: {listed:?}");
        let wanted = self.place.jobs().map(|(job, ended)| (job.id.as_str(), ended.is_some()));
        assert_eq!(found, wanted.collect());
    }
}

fn is_over(exec: &v1::ExecInfo) -> bool {
    match exec.state() {
        ExecState::Running => false,
        ExecState::Exited => true,
        other => panic!("{other:?}: {exec:?}"),
    }
}

/// Writes all pieces and then closes.
fn write(exec: &mut Exec, pieces: Vec<Vec<u8>>) -> impl Future<Output = sandgate::Result<()>> + use<> {
    let stdin = exec.stdin();
    async move {
        let mut stdin = stdin.unwrap();
        for piece in pieces {
            stdin.write(piece).await?;
        }
        stdin.close().await
    }
}
