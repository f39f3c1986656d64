//! `sandgate` as a person or a script uses it, against the real server and real sandboxes: what every command prints, as
//! text and as JSON, where it prints it, and what it exits with.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "command_line/connect.rs"]
mod connect;
#[path = "command_line/copy.rs"]
mod copy;
#[path = "command_line/doctor.rs"]
mod doctor;
#[path = "command_line/exec.rs"]
mod exec;
#[path = "command_line/files.rs"]
mod files;
#[path = "command_line/follow.rs"]
mod follow;
#[path = "command_line/hostile.rs"]
mod hostile;
#[path = "command_line/library.rs"]
mod library;
#[path = "command_line/life.rs"]
mod life;
#[path = "command_line/pages.rs"]
mod pages;
#[path = "command_line/pipes.rs"]
mod pipes;
#[path = "command_line/ps.rs"]
mod ps;
#[path = "command_line/refused.rs"]
mod refused;
#[path = "command_line/run.rs"]
mod run;
#[path = "command_line/signals.rs"]
mod signals;
#[path = "command_line/stage.rs"]
mod stage;
#[path = "command_line/terminal.rs"]
mod terminal;
#[path = "command_line/tty.rs"]
mod tty;
#[path = "command_line/watch.rs"]
mod watch;
