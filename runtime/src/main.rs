//! `sandgate-runtime`: see the library.

use std::process::ExitCode;

use clap::Parser as _;
use sandgate_runtime::{Args, EX_USAGE};

// musl's own allocator makes everything 2 to 4 times slower (docs/runtime.md has the figures).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match Args::try_parse() {
        Ok(args) => sandgate_runtime::run(args),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() {
                ExitCode::from(EX_USAGE)
            } else {
                ExitCode::SUCCESS
            }
        }
    }
}
