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

/// Gives memory back that the heaps hold and nobody uses, if that is more than `spare` bytes. By itself glibc gives back only
/// what lies behind the last piece in use, so that one piece of a busy hour keeps all of it. Whoever allocates meanwhile
/// waits for a few milliseconds. Other libraries do it themselves.
///
/// # Errors
/// When the kernel does not say how much we have.
pub fn give_back_memory(spare: usize) -> std::io::Result<()> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: only looks.
        let heaps = unsafe { libc::mallinfo2() };
        // Not what is free, of which much may have been given back before.
        if resident()?.saturating_sub(heaps.uordblks + heaps.hblkhd) > spare {
            // SAFETY: takes from what is free alone.
            unsafe { libc::malloc_trim(spare) };
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = spare;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn memory_between_pieces_in_use_is_given_back() {
        let piece = || vec![1_u8; 50_000];
        let mut pieces: Vec<_> = (0..4_000).map(|_| piece()).collect();
        let mut number = 0;
        pieces.retain(|_| {
            number += 1;
            number % 100 == 0
        });
        let before = resident().unwrap();
        give_back_memory(usize::MAX).unwrap();
        assert!(resident().unwrap() + (20 << 20) > before, "there was room to spare");
        give_back_memory(16 << 20).unwrap();
        let after = resident().unwrap();
        assert!(after + (150 << 20) < before, "{before} and then {after}");
        assert_eq!(pieces.len(), 40);
    }
}
