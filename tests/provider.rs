//! The local provider keeps the promises of every provider.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use sandgate::Client;
use sandgate_tests::{
    conformance::{self, World},
    server::Server,
};

struct Local(Server);

impl World for Local {
    async fn client(&self) -> Client {
        self.0.client().await
    }

    async fn replace_server(&mut self) {
        self.0.kill();
        self.0.restart().await;
    }

    fn other_template(&self) -> &str {
        "other"
    }
}

/// Each case in a server of its own, after which nothing is left.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            let case = async {
                let mut world = Local(Server::with_config("[template.other]\n").await);
                conformance::$case(&mut world).await;
                world.0.until_nothing_is_left().await;
            };
            tokio::time::timeout(Duration::from_secs(180), case).await.unwrap();
        }
    )+};
}

cases! {
    a_new_sandbox_tells_everything,
    a_stream_carries_both_ways,
    a_watch_tells_every_change,
    another_server_sees_the_same,
    bad_requests_are_refused,
    commands_run,
    create_is_get_or_create,
    creates_at_once_make_one,
    deadline_and_idle_limit_are_kept,
    delete_and_create_at_once,
    delete_frees_the_name,
    files_go_in_and_out,
    lists_by_label_and_in_pages,
    suspend_and_resume_at_once,
    suspend_keeps_the_disk_and_ends_processes,
    updates_follow_mask_and_etag,
}
