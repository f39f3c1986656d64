//! `sandgate-monitor DIR [--new]`: makes the sandbox whose record lies in DIR, and stays beside it.
#![forbid(unsafe_code)]

use std::{env, ffi::OsString, path::Path, process::ExitCode};

const USAGE: &str =
    "usage: sandgate-monitor DIR [--new]\n\nStarted by sandgate-server, with a control connection as stdin.";
/// `EX_USAGE` of sysexits.h.
const EX_USAGE: u8 = 64;

fn main() -> ExitCode {
    // What the server's own starter left open is no business of a sandbox.
    sandgate_sys::inherit_nothing();
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let (dir, new) = match &args[..] {
        [dir] if !dir.to_string_lossy().starts_with('-') => (dir, false),
        [dir, flag] if flag == "--new" => (dir, true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(EX_USAGE);
        }
    };
    match sandgate_monitor::run(Path::new(dir), new) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandgate-monitor: {}: {error}", dir.to_string_lossy());
            ExitCode::FAILURE
        }
    }
}
