//! What a provider of sandboxes must promise, and what all of them share.
//!
//! A [`Provider`] makes and finds sandboxes. A [`Carrier`] yields a byte stream to what runs inside one: a Unix socket
//! here, a tunnel or a pod's address elsewhere. A [`Link`] speaks the runtime's protocol over whatever the carrier
//! gives. The [`Table`] is what a server knows of all sandboxes, and the feed of its changes.
#![forbid(unsafe_code)]

mod carrier;
pub mod finding;
pub mod inside;
mod labels;
pub mod limits;
mod link;
mod name;
mod provider;
mod selector;
mod table;

pub use sandgate_connection::{ByteStream, LineError};

pub use self::{
    carrier::Carrier,
    finding::{Finding, Verdict},
    labels::check_labels,
    link::{Conduit, Link},
    name::Name,
    provider::{Begun, Change, End, NewSandbox, Provider, Removed},
    selector::Selector,
    table::{Event, Position, Table},
};
