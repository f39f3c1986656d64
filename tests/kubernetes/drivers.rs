//! What runs in a pod need not be ours: the same promises, as far as the table of docs/drivers.md goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "drivers/birth.rs"]
mod birth;
#[path = "drivers/probes.rs"]
mod probes;
#[path = "drivers/table.rs"]
mod table;
#[path = "drivers/traps.rs"]
mod traps;

use std::time::Duration;

use sandgate_kubernetes_tests::{Kubernetes, Mode, Space};
use sandgate_tests::{conformance, server::Server};

/// A namespace with a template of the driver's name, and a server that takes that one where none is named.
async fn stage(driver: &str, mode: Mode) -> (Space, Server) {
    let space = Space::new().await;
    space.create_driver_template(driver).await;
    if mode == Mode::Gateway {
        space.make_gateway().await;
    }
    let config = space.config(mode).replace(
        "default_template = \"default\"",
        &format!("default_template = {driver:?}"),
    );
    let server = Server::with_config(&config).await;
    (space, server)
}

/// Nothing may hang. The longest make dozens of pods, one after the other.
async fn in_time(case: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(900), case).await.unwrap();
}

/// The cases of every provider, each in a namespace of its own, in which no claim is left after it.
macro_rules! conforms {
    ($module:ident, $driver:literal, $mode:ident: $($case:ident),+ $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    in_time(async {
                        let (space, server) = stage($driver, Mode::$mode).await;
                        conformance::$case(&mut Kubernetes(server)).await;
                        space.close().await;
                    })
                    .await;
                }
            )+
        }
    };
}

macro_rules! with_drivers {
    ($($module:ident: $driver:literal, $mode:ident);+ $(;)?) => {$(
        conforms! { $module, $driver, $mode:
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

with_drivers! {
    sandboxd: "sandboxd", Tunnel;
    python_runtime: "python-runtime", InCluster;
    exec: "exec", Tunnel;
}
