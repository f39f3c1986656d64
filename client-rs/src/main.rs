//! The `sandgate` command line.
#![forbid(unsafe_code)]

mod cli;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use tokio::runtime::Builder;

/// Sandgate itself failed.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            _ = writeln!(io::stderr(), "sandgate: can't start threads: {error}");
            return ExitCode::from(FAILED);
        }
    };
    let code = runtime.block_on(cli::run(cli));
    // A thread may be blocked in a read of stdin, which nothing ends.
    runtime.shutdown_background();
    code
}
