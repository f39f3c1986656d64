//! The Kubernetes provider keeps the promises of every provider, in every way to reach a sandbox.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use sandgate_kubernetes_tests::{Kubernetes, Mode, Space};
use sandgate_tests::conformance;

/// Each case in a namespace of its own, in which no claim is left after it.
macro_rules! cases {
    ($mode:ident, $variant:ident: $($case:ident),+ $(,)?) => {
        mod $mode {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let case = async {
                        let space = Space::new().await;
                        let mut world = Kubernetes(space.server(Mode::$variant).await);
                        conformance::$case(&mut world).await;
                        space.close().await;
                    };
                    tokio::time::timeout(Duration::from_secs(300), case).await.unwrap();
                }
            )+
        }
    };
}

macro_rules! in_modes {
    ($($mode:ident: $variant:ident),+ $(,)?) => {$(
        cases! { $mode, $variant:
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
    )+};
}

in_modes! { tunnel: Tunnel, gateway: Gateway, direct: Direct, in_cluster: InCluster }
