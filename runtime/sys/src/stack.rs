//! A stack for a child that shares our memory.

use std::{cell::RefCell, io, ptr};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const GUARD: usize = 4096;
const MOST_SPARE: usize = 4;

/// A mapped stack with a guard page below it.
pub(crate) struct Stack {
    base: *mut u8,
}

thread_local! {
    /// Some that were used, for the next starts from this thread.
    static SPARE: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

// SAFETY: the mapping belongs to the value, whichever thread holds it.
unsafe impl Send for Stack {}

// === impl Stack ===

impl Stack {
    pub(crate) const SIZE: usize = 64 * 1024;

    pub(crate) fn new() -> io::Result<Self> {
        match SPARE.try_with(|spare| spare.borrow_mut().pop()) {
            Ok(Some(spare)) => Ok(spare),
            _ => Self::map(),
        }
    }

    /// Keeps it for the next one. Whoever ran on it has ended or become another program.
    pub(crate) fn spare(self) {
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MOST_SPARE {
                spare.push(self);
            }
        });
    }

    fn map() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice, and a guard page in it.
        unsafe {
            let base = mmap_anonymous(ptr::null_mut(), Self::SIZE, access, MapFlags::PRIVATE | MapFlags::STACK)?;
            let stack = Self { base: base.cast() };
            mprotect(base, GUARD, MprotectFlags::empty())?;
            Ok(stack)
        }
    }

    /// Its lowest address.
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.base
    }

    /// The address just above the stack, where a child begins.
    pub(crate) fn top(&mut self) -> *mut u8 {
        self.base.wrapping_add(Self::SIZE)
    }

    /// The top of the lower half, for a child of the one that runs on the upper half.
    pub(crate) fn middle(&mut self) -> *mut u8 {
        self.base.wrapping_add(Self::SIZE / 2)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever ran on it has ended.
        let _ = unsafe { munmap(self.base.cast(), Self::SIZE) };
    }
}
