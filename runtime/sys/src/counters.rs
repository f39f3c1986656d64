//! Counters that outlive a crash of the process.
//!
//! They lie in a file mapped into memory, so that counting is a store and not a system call, and the kernel still has
//! the last value when the process is killed.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAIR: usize = 16;

/// A file of pairs of counters.
#[derive(Debug)]
pub struct Counters {
    base: *mut u8,
    slots: usize,
}

// SAFETY: the mapping is shared memory that is only touched through atomics.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

// === impl Counters ===

impl Counters {
    /// What an earlier process left in the file; nothing if there is none.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn left_behind(path: &Path) -> io::Result<Vec<[u64; 2]>> {
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Ok(bytes
            .chunks_exact(PAIR)
            .map(|pair| [number(&pair[..8]), number(&pair[8..])])
            .collect())
    }

    /// Makes the file anew with all counters at zero.
    ///
    /// # Errors
    /// When the file can't be written or mapped.
    pub fn create(path: &Path, slots: usize) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        // Written out, not left as a hole: a store into a hole of a full disk is a SIGBUS.
        file.write_all(&vec![0; slots * PAIR])?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file that is as long as the mapping.
        let base = unsafe { mmap(ptr::null_mut(), slots * PAIR, access, MapFlags::SHARED, &file, 0)? };
        Ok(Self {
            base: base.cast(),
            slots,
        })
    }

    /// How many pairs there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Sets a pair. A slot that does not exist is ignored.
    pub fn store(&self, slot: usize, pair: [u64; 2]) {
        for (index, value) in pair.into_iter().enumerate() {
            if slot < self.slots {
                // SAFETY: in the mapping, and aligned: the mapping is page-aligned and a pair is two u64.
                let counter = unsafe { &*self.base.add(slot * PAIR + index * 8).cast::<AtomicU64>() };
                counter.store(value.to_le(), Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it.
        let _ = unsafe { munmap(self.base.cast(), self.slots * PAIR) };
    }
}
