//! System calls by number, with nothing around them.
//!
//! A child that shares its parent's memory shares the parent thread's `errno` too, so the code that runs there must not
//! go through libc. Each call answers what the kernel did: a negative number is an errno.

use std::arch::asm;

/// Makes system call `number`.
///
/// # Safety
/// As for the system call itself: pointers among the arguments must be valid for what the kernel does with them.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn syscall(number: i64, args: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 convention: number in rax, arguments in rdi, rsi, rdx, r10, r8; rcx and r11 are clobbered.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes system call `number`.
///
/// # Safety
/// As for the system call itself: pointers among the arguments must be valid for what the kernel does with them.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn syscall(number: i64, args: [usize; 5]) -> isize {
    let result: isize;
    // SAFETY: the AArch64 convention: number in x8, arguments in x0 to x4, the result in x0.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            options(nostack),
        );
    }
    result
}
