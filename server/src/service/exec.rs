//! Where a stream for an exec goes.

use sandgate_errors::Refusal;
use sandgate_proto::v1::{ExecRequest, exec_request::Request};

use crate::convert::{Address, Addressed as _};

/// The address in the first message.
pub(super) fn address(first: &ExecRequest) -> Result<Address<'_>, Refusal> {
    match &first.request {
        Some(Request::Start(start)) => Ok(start.address()),
        Some(Request::Attach(attach)) => Ok(attach.address()),
        _ => Err(Refusal::invalid("request", "the first message is start or attach")),
    }
}
