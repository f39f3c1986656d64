//! The Sandgate contract as Rust types: `v1` is what callers see, `runtime::v1` is what the server says to a
//! sandbox. Everything here is generated from `proto/sandgate`; logic never sits beside it.
#![allow(missing_docs, reason = "the comments of the .proto files are the documentation")]
#![allow(
    clippy::doc_lazy_continuation,
    clippy::doc_overindented_list_items,
    clippy::large_enum_variant,
    reason = "generated"
)]

/// What the server says to the runtime inside a sandbox.
pub mod runtime {
    /// Version 1 of the runtime's API.
    pub mod v1 {
        tonic::include_proto!("sandgate.runtime.v1");
    }
}

/// Version 1 of the public API.
pub mod v1 {
    tonic::include_proto!("sandgate.v1");
}

/// The compiled descriptors of all packages, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandgate.binpb"));
