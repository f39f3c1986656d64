//! Reading without first filling the buffer with zeros.

use std::os::fd::AsFd;

use bytes::{BufMut as _, BytesMut};
use rustix::io::Errno;

/// Reads once, at most `most` bytes and at most what the buffer has room for, behind what is in the buffer.
///
/// # Errors
/// What `read(2)` says, but for EINTR.
pub fn read_into(fd: impl AsFd, buffer: &mut BytesMut, most: usize) -> Result<usize, Errno> {
    let room = buffer.spare_capacity_mut();
    let most = most.min(room.len());
    let length = loop {
        match rustix::io::read(&fd, &mut room[..most]) {
            Err(Errno::INTR) => {}
            other => break other?.0.len(),
        }
    };
    // SAFETY: the kernel has written this many bytes at the start of the room.
    unsafe { buffer.advance_mut(length) };
    Ok(length)
}
