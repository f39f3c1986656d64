//! What the suites on a real cluster share: the cluster, a namespace of a test's own, and servers that use it.
//!
//! The tests run in the cluster's network: `scripts/cluster with cargo test -p sandgate-kubernetes-tests --test NAME`, as
//! `make test` does. `SANDGATE_TEST_KUBECONFIG` names a cluster that is there already.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "for tests")]

mod chart;
mod cluster;
mod objects;
mod space;
mod volumes;
mod world;

pub use self::{
    chart::{Chart, RELEASE, chart_values, rendered},
    cluster::Cluster,
    objects::{POOL, RUNTIME_PORT, Version, plain_template, pool, runtime_template},
    space::{Mode, Space, until},
    world::Kubernetes,
};
