//! `clone3`, which puts a child into a cgroup before its first instruction.
//!
//! A process that moves itself to another cgroup waits until every processor has passed through the scheduler, 10 ms and
//! more. A child that begins there does not. libc has no wrapper for `clone3`, and one is needed: a child that shares our
//! memory must not return from the call on our stack.

use std::{arch::asm, io, os::fd::RawFd, sync::OnceLock};

use crate::child::Plan;

// libc's own constants are too narrow for their values.
pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// Told to the kernel with each call, in registers that it does not look at.
static KEY: OnceLock<Clone3Key> = OnceLock::new();

/// Opens `clone3` to whoever knows it, where a filter hides it from everybody else. What a process may not do with `clone` is
/// told by its flags. Those of `clone3` are behind a pointer, which no filter can follow; but a filter sees all registers.
pub type Clone3Key = u128;

/// The environment variable that tells a runtime its key, in hexadecimal digits.
pub const CLONE3_KEY: &str = "SANDGATE_CLONE3_KEY";

/// Says with which key this process may use `clone3`. The first word counts.
pub fn use_clone3_key(key: Clone3Key) {
    let _ = KEY.set(key);
}

/// Clones a child that shares our memory, in the cgroup of that directory. It handles no signal; what is ignored stays so.
/// Answers its process id at once; its descriptor is stored in `pidfd`.
///
/// # Errors
/// ENOSYS where the kernel has no clone3, or where a filter hides it.
///
/// # Safety
/// All signals are blocked. `plan` and the stack of `size` bytes from `stack` stay valid until the child has called exec or
/// ended.
pub(crate) unsafe fn clone3_into(
    plan: &Plan,
    stack: *mut u8,
    size: usize,
    cgroup: RawFd,
    pidfd: &mut RawFd,
) -> io::Result<i32> {
    extern "C" fn follow(plan: *const Plan) {
        // SAFETY: `clone3_into` passed a plan that outlives us, and we are its child.
        unsafe { (*plan).run() };
    }
    // SAFETY: all fields are numbers, and zero means nothing wanted.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    let flags = libc::CLONE_VM | libc::CLONE_PIDFD;
    args.flags = u64::from(flags as u32) | CLONE_INTO_CGROUP | CLONE_CLEAR_SIGHAND;
    args.pidfd = &raw mut *pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.stack = stack as u64;
    args.stack_size = size as u64;
    args.cgroup = cgroup as u64;
    // SAFETY: the stack is the caller's promise, and the arguments are the kernel's own structure.
    let result = unsafe { call(&args, KEY.get().copied().unwrap_or_default(), follow, plan) };
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Ok(pid),
        Ok(error) => Err(io::Error::from_raw_os_error(-error)),
        Err(_) => Err(io::ErrorKind::Other.into()),
    }
}

type Entry = extern "C" fn(*const Plan);

/// The call itself. The child finds its own stack empty and everything else as we left it, so it takes what it needs from
/// registers that the kernel keeps, and ends without ever returning.
///
/// # Safety
/// As `clone3_into`.
#[cfg(target_arch = "x86_64")]
unsafe fn call(args: &libc::clone_args, key: Clone3Key, entry: Entry, plan: &Plan) -> isize {
    let result: isize;
    // SAFETY: number in rax, arguments in rdi and rsi, the key in the next two; rcx and r11 are clobbered. The stack's top is a multiple of 16, as
    // a call wants it.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "call r8",
            "mov edi, 127",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") args,
            in("rsi") size_of::<libc::clone_args>(),
            in("rdx") key as u64,
            in("r10") (key >> 64) as u64,
            in("r8") entry,
            in("r9") plan,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The same.
///
/// # Safety
/// As `clone3_into`.
#[cfg(target_arch = "aarch64")]
unsafe fn call(args: &libc::clone_args, key: Clone3Key, entry: Entry, plan: &Plan) -> isize {
    let result: isize;
    // SAFETY: number in x8, arguments in x0 and x1, the key in the next two; the kernel keeps all registers but x0.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x5",
            "blr x4",
            "mov x0, 127",
            "mov x8, {exit}",
            "svc 0",
            "brk 1",
            "2:",
            exit = const libc::SYS_exit_group,
            in("x8") libc::SYS_clone3,
            inlateout("x0") args => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x2") key as u64,
            in("x3") (key >> 64) as u64,
            in("x4") entry,
            in("x5") plan,
            options(nostack),
        );
    }
    result
}
