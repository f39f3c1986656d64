//! A filter that makes programs see a kernel without `clone3`.
//!
//! What a sandbox may not do with `clone` is told by its flags. Those of `clone3` are behind a pointer, which no filter can
//! follow, so it has to look absent; programs then use `clone`. The runtime itself needs `clone3`, so this is laid over each
//! child, and not over all of the sandbox.

/// A program and its instructions, at an address that does not change.
pub(crate) struct Filter {
    pub(crate) program: libc::sock_fprog,
}

// SAFETY: what the pointer leads to is constant.
unsafe impl Sync for Filter {}

const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const NUMBER: u32 = 0;
const ANSWER: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Other architectures have other numbers; none of them gets here, since the sandbox's own filters end such a program.
static INSTRUCTIONS: [libc::sock_filter; 4] = [
    step(LOAD_WORD, 0, 0, NUMBER),
    step(JUMP_IF_EQUAL, 0, 1, libc::SYS_clone3 as u32),
    step(RETURN, 0, 0, ANSWER),
    step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
];

pub(crate) static WITHOUT_CLONE3: Filter = Filter {
    program: libc::sock_fprog {
        len: INSTRUCTIONS.len() as u16,
        filter: (&raw const INSTRUCTIONS).cast_mut().cast(),
    },
};

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}
