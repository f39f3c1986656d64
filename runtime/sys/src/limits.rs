//! Limits of our own processes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::spawn::Limit;

/// Makes a write past the file size limit fail, as a full disk does, where it would end the process by SIGXFSZ.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Raises our own limit of open descriptors as far as it goes: each command takes a few. Answers the limit as it was, for
/// programs that take more descriptors for a reason to take more time (they close them all, or poll by `select`).
#[must_use]
pub fn raise_descriptor_limit() -> Option<Limit> {
    let before = getrlimit(Resource::Nofile);
    let (soft, hard) = (before.current?, before.maximum?);
    let raised = Rlimit {
        current: Some(hard),
        maximum: Some(hard),
    };
    setrlimit(Resource::Nofile, raised).ok()?;
    Limit::named("nofile", soft, hard)
}

/// Makes all threads share this many heaps. glibc makes one for each thread, up to eight a processor, and what is free in one
/// is of no use to the others: a server of a thousand sandboxes had twice the memory. Other libraries do not.
pub fn share_heaps(most: usize) {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, i32::try_from(most).unwrap_or(i32::MAX))
    };
    #[cfg(not(target_env = "gnu"))]
    let _ = most;
}

/// Memory that the heaps hold and nobody uses. By itself glibc gives back only what lies behind the last piece in use, so that
/// one piece of a busy hour keeps all of it. Other libraries give it back themselves.
#[derive(Debug)]
pub struct SpareMemory {
    #[cfg_attr(not(target_env = "gnu"), expect(dead_code, reason = "nothing is to be done"))]
    most: usize,
    /// How much could not be given back: pages with a piece in use, code, stacks.
    #[cfg(target_env = "gnu")]
    stuck: usize,
}

impl SpareMemory {
    /// `most`: how many bytes may lie idle.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            #[cfg(target_env = "gnu")]
            stuck: 0,
        }
    }

    /// Gives back what lies idle, if that is too much. Whoever allocates meanwhile waits for a few milliseconds, so what stayed
    /// when this was last done is not tried again and again.
    ///
    /// # Errors
    /// When the kernel does not say how much we have.
    #[cfg(target_env = "gnu")]
    pub fn give_back(&mut self) -> std::io::Result<()> {
        let idle = idle()?;
        self.stuck = self.stuck.min(idle);
        if idle - self.stuck > self.most {
            // SAFETY: takes from what is free alone.
            unsafe { libc::malloc_trim(0) };
            self.stuck = self::idle()?;
        }
        Ok(())
    }

    /// Does nothing here.
    ///
    /// # Errors
    /// None.
    #[cfg(not(target_env = "gnu"))]
    pub fn give_back(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Bytes that we have and do not use. Not what the heaps call free, of which much may have been given back before.
#[cfg(target_env = "gnu")]
fn idle() -> std::io::Result<usize> {
    // SAFETY: only looks.
    let heaps = unsafe { libc::mallinfo2() };
    Ok(resident()?.saturating_sub(heaps.uordblks + heaps.hblkhd))
}

/// Bytes of memory that are ours alone.
#[cfg(target_env = "gnu")]
fn resident() -> std::io::Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let mut pages = statm
        .split(' ')
        .skip(1)
        .map_while(|number| number.parse::<usize>().ok());
    let (all, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    Ok(all.saturating_sub(shared) * rustix::param::page_size())
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn memory_between_pieces_in_use_is_given_back() {
        let piece = || vec![1_u8; 50_000];
        let mut pieces: Vec<_> = (0..4_000).map(|_| piece()).collect();
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 100 == 0
        });
        let before = resident().unwrap();
        SpareMemory::new(usize::MAX).give_back().unwrap();
        assert!(resident().unwrap() + (20 << 20) > before, "there was room to spare");
        let mut spare = SpareMemory::new(16 << 20);
        spare.give_back().unwrap();
        let after = resident().unwrap();
        assert!(after + (150 << 20) < before, "{before} and then {after}");
        assert!(spare.stuck > 0, "code and stacks can't be given back");
        assert_eq!(pieces.len(), 40);
    }
}
