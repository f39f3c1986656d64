//! Files in and out of the sandbox: streams of entries, tar streams, and single files a chunk a call.
//!
//! Everything here blocks, and holds a bounded amount of memory whatever the sizes are. The service runs it on a thread
//! of its own and connects it to the network by bounded channels: an upload pulls its messages from an iterator, a
//! download pushes them to a function.

mod chunked;
mod directories;
mod download;
mod incoming;
mod tar_in;
mod tar_out;
mod upload;

pub use self::{chunked::ChunkedUploads, download::download, upload::upload};

/// Bytes of content in one message.
const CHUNK: usize = 64 * 1024;

#[cfg(test)]
mod tests;
