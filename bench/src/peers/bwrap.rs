//! bubblewrap: new namespaces for each command.

use std::process::Command;

use super::run;
use crate::work::NOTHING;

const ARGUMENTS: [&str; 11] = [
    "--unshare-all",
    "--die-with-parent",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
];

pub(crate) async fn run_one() {
    run(Command::new("bwrap").args(ARGUMENTS).args(NOTHING));
}
