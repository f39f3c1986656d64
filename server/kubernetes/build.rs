//! Generates the client for sandboxd, in pure Rust as the contract's own code: see `proto/build.rs`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // tonic-prost-build does not emit these for file descriptor sets.
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["process.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}
