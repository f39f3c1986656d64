//! The one place where what callers see becomes what a runtime speaks, and back.
//!
//! The two packages are separate types, so that each can change by itself. Most value messages (what to run, what
//! happened, file operations and their results) are still the same on the wire; [`SameWire`] marks them, and a test
//! proves it from the descriptors. Those are converted by [`same_wire`]. Where shapes differ, which is in requests, the
//! conversion is written out and takes every field by name, so that a forgotten one does not compile.

mod exec;
mod files;
mod pairs;

use prost::{Message, bytes::Bytes};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;

pub use self::pairs::SameWire;

/// Something of the public API that has a counterpart in the runtime's.
///
/// The sandbox's name and `auto_resume` are the server's to act on: they have no counterpart and are left behind.
pub trait IntoRuntime {
    /// The counterpart.
    type Runtime;

    /// Converts it.
    ///
    /// # Errors
    /// When a part without which there is no counterpart is missing.
    fn into_runtime(self) -> Result<Self::Runtime, ConvertError>;
}

/// Something that a runtime sent and that callers may see.
pub trait IntoPublic {
    /// The counterpart.
    type Public;

    /// Converts it.
    ///
    /// # Errors
    /// When a part without which there is no counterpart is missing.
    fn into_public(self) -> Result<Self::Public, ConvertError>;
}

/// Why something has no counterpart.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConvertError {
    /// Nothing is set in a field of which one kind must be.
    #[error("{0} must be set")]
    Missing(&'static str),
    /// Two messages that were declared to be the same on the wire are not.
    #[error("messages differ on the wire: {0}")]
    Wire(#[from] prost::DecodeError),
}

// === impl ConvertError ===

impl From<ConvertError> for Refusal {
    fn from(error: ConvertError) -> Self {
        let message = error.to_string();
        match error {
            ConvertError::Missing(field) => Refusal::invalid(field, message),
            ConvertError::Wire(_) => Refusal::new(ErrorReason::Internal, message),
        }
    }
}

/// Converts a message to its twin in the other package, by its bytes.
///
/// # Errors
/// Never for pairs that pass the test beside [`SameWire`].
pub fn same_wire<A, B>(message: &A) -> Result<B, ConvertError>
where
    A: Message + SameWire<B>,
    B: Message + Default,
{
    // Decoding from `Bytes` shares the payloads of `bytes` fields instead of copying them a second time.
    Ok(B::decode(Bytes::from(message.encode_to_vec()))?)
}

fn same_wire_option<A, B>(message: Option<&A>) -> Result<Option<B>, ConvertError>
where
    A: Message + SameWire<B>,
    B: Message + Default,
{
    message.map(same_wire).transpose()
}

fn same_wire_all<A, B>(messages: &[A]) -> Result<Vec<B>, ConvertError>
where
    A: Message + SameWire<B>,
    B: Message + Default,
{
    messages.iter().map(same_wire).collect()
}
