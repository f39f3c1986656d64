//! Generates Rust from the contract at build time, in pure Rust (`protox`): no system `protoc` is needed.

use std::{env, fs, io, path::PathBuf};

use prost::Message as _;

const FILES: &[&str] = &[
    "sandgate/runtime/v1/exec.proto",
    "sandgate/runtime/v1/files.proto",
    "sandgate/runtime/v1/runtime_service.proto",
    "sandgate/v1/errors.proto",
    "sandgate/v1/exec.proto",
    "sandgate/v1/files.proto",
    "sandgate/v1/sandbox.proto",
    "sandgate/v1/sandbox_service.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // tonic-prost-build does not emit these for file descriptor sets.
    println!("cargo:rerun-if-changed=sandgate");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR"))?);
    fs::write(out.join("sandgate.binpb"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
