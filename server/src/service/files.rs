//! Where an upload goes.

use sandgate_errors::Refusal;
use sandgate_proto::v1::{UploadRequest, upload_request::Message};

use crate::convert::{Address, Addressed as _};

/// The address in the first message.
pub(super) fn address(first: &UploadRequest) -> Result<Address<'_>, Refusal> {
    match &first.message {
        Some(Message::Start(start)) => Ok(start.address()),
        _ => Err(Refusal::invalid("message", "the first message is start")),
    }
}
