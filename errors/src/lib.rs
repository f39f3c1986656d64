//! The one place where a refusal becomes a gRPC status.
//!
//! The reasons live in `sandgate/v1/errors.proto`. Server and runtime both send them, so what belongs to a reason (its
//! gRPC code, its name on the wire) and how it travels (`google.rpc.ErrorInfo` and friends) is here, once.
#![forbid(unsafe_code)]

mod reason;
mod refusal;

pub use self::{
    reason::{code, from_name, name},
    refusal::{DOMAIN, Refusal, status},
};
