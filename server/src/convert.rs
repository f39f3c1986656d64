//! The one place where what callers see becomes what a runtime speaks, and back.
//!
//! The two packages are separate types, so that each can change by itself. Answers, and most value messages (what to
//! run, file operations), are still the same on the wire; [`SameWire`] marks them, and a test proves it from the
//! descriptors. So an answer is never converted: what the runtime sent is decoded at once as what callers see, which
//! [`Call`] says for each call. Requests differ, and lose what is the server's to act on. Their conversion takes every
//! field by name, so that a forgotten one does not compile.

mod calls;
mod exec;
mod files;
mod pairs;

use prost::{Message, bytes::Bytes};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;

pub use self::{calls::Call, pairs::SameWire};

/// Something of the public API that has a counterpart in the runtime's.
///
/// The sandbox's name and `auto_resume` are the server's to act on: they have no counterpart and are left behind.
pub trait IntoRuntime {
    /// The counterpart.
    type Runtime: Message + 'static;

    /// Converts it.
    ///
    /// # Errors
    /// When a part without which there is no counterpart is missing.
    fn into_runtime(self) -> Result<Self::Runtime, ConvertError>;
}

/// A request that says which sandbox it is for.
pub trait Addressed {
    /// Where it goes.
    fn address(&self) -> Address<'_>;
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address<'a> {
    /// The sandbox's name.
    pub sandbox: &'a str,
    /// The incarnation that the caller expects; empty: any.
    pub expected_incarnation: &'a str,
    /// Resume the sandbox first, if it is suspended.
    pub auto_resume: bool,
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

/// Fields that hold messages with a twin.
trait IntoTwin<Twin> {
    fn into_twin(self) -> Result<Twin, ConvertError>;
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

// === impl IntoTwin ===

impl<A, B> IntoTwin<Option<B>> for Option<A>
where
    A: Message + SameWire<B>,
    B: Message + Default,
{
    fn into_twin(self) -> Result<Option<B>, ConvertError> {
        self.as_ref().map(same_wire).transpose()
    }
}

impl<A, B> IntoTwin<Vec<B>> for Vec<A>
where
    A: Message + SameWire<B>,
    B: Message + Default,
{
    fn into_twin(self) -> Result<Vec<B>, ConvertError> {
        self.iter().map(same_wire).collect()
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

/// Requests for one sandbox, field by field: those that `move` as they are, those that hold messages with a `twin`, and
/// whether the request `expects` an incarnation and can ask to resume.
macro_rules! requests {
    ($($name:ident {
        $(expects: $expected:ident,)?
        $(resumes: $resumes:ident,)?
        moves: [$($moved:ident),*],
        twins: [$($twin:ident),*] $(,)?
    })+) => {$(
        impl IntoRuntime for public::$name {
            type Runtime = runtime::$name;

            fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
                let Self { sandbox: _, $($expected,)? $($resumes: _,)? $($moved,)* $($twin,)* } = self;
                Ok(runtime::$name {
                    $($expected,)?
                    $($moved,)*
                    $($twin: $crate::convert::IntoTwin::into_twin($twin)?,)*
                })
            }
        }

        impl $crate::convert::Addressed for public::$name {
            fn address(&self) -> $crate::convert::Address<'_> {
                let address = $crate::convert::Address {
                    sandbox: &self.sandbox,
                    expected_incarnation: "",
                    auto_resume: false,
                };
                $(let address = $crate::convert::Address { expected_incarnation: &self.$expected, ..address };)?
                $(let address = $crate::convert::Address { auto_resume: self.$resumes, ..address };)?
                address
            }
        }
    )+};
}
use requests;
