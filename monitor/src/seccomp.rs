//! System calls that no program in a sandbox needs, and that have opened sandboxes before.
//!
//! What container runtimes deny by default, and io_uring. The filters are laid over PID 1 and inherited by all.

use std::{collections::BTreeMap, io};

use sandgate_sys::Clone3Key;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, sock_filter,
};

/// Newer than libc's list; the number is the same everywhere.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;

/// Denied whatever the arguments.
const DENIED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    SYS_OPEN_TREE_ATTR,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
];

/// Answered as if the kernel had none, so that programs take their other way.
const ABSENT: &[libc::c_long] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
];

/// Flags of clone that make namespaces.
const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// Kinds of sockets that reach past the network: the machine's host, and the kernel's ciphers.
const SOCKETS: [u64; 2] = [libc::AF_VSOCK as u64, libc::AF_ALG as u64];

/// Personalities that change nothing but how a program sees itself. `u64::MAX` only asks.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: seccompiler::TargetArch = seccompiler::TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: seccompiler::TargetArch = seccompiler::TargetArch::aarch64;

// Of the kernel's classic BPF, and where a call's number and arguments are.
const LOAD_WORD: u16 = 0x20;
const LOAD_VALUE: u16 = 0x00;
const LOAD_INDEX: u16 = 0x61;
const STORE: u16 = 0x02;
const EXCLUSIVE_OR: u16 = 0xa4;
const OR_INDEX: u16 = 0x4c;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
const NUMBER: u32 = 0;
const THIRD_ARGUMENT: u32 = 16 + 2 * 8;

/// Lays the filters over this process. Other architectures' calls end it. Answers the key to `clone3`.
pub(crate) fn apply() -> io::Result<Clone3Key> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let key = Clone3Key::from_ne_bytes(random);
    for program in programs(key)? {
        apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(key)
}

fn programs(key: Clone3Key) -> io::Result<Vec<BpfProgram>> {
    // One action a filter, so there are several; and the kernel takes the strictest answer.
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    denied.insert(libc::SYS_clone, any_flag_of(NAMESPACES)?);
    denied.insert(libc::SYS_socket, one_of(&SOCKETS)?);
    denied.insert(libc::SYS_personality, vec![none_of(&PERSONALITIES)?]);
    let absent = ABSENT.iter().map(|call| (*call, Vec::new())).collect();
    let mut programs = vec![
        filter(denied, libc::EPERM)?,
        filter(absent, libc::ENOSYS)?,
        clone3_for(key),
    ];
    if cfg!(target_arch = "x86_64") {
        programs.push(without_x32());
    }
    Ok(programs)
}

fn filter(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> io::Result<BpfProgram> {
    let answer = SeccompAction::Errno(u32::try_from(errno).unwrap_or(1));
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, ARCHITECTURE).map_err(io::Error::other)?;
    BpfProgram::try_from(filter).map_err(io::Error::other)
}

/// x32 has the architecture of x86_64 and other numbers, which the filters would not know.
fn without_x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    vec![
        op(LOAD_WORD, 0, 0, NUMBER),
        op(JUMP_IF_GREATER_OR_EQUAL, 0, 1, X32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Hides `clone3` from whoever does not have the key in the third and the fourth argument, which it does not take. A wrong
/// key takes as long as a right one, however much of it is right.
fn clone3_for(key: Clone3Key) -> BpfProgram {
    const DIFFERENCE: u32 = 0;
    let compare = (0..4).flat_map(|word| {
        [
            op(LOAD_WORD, 0, 0, THIRD_ARGUMENT + 4 * word),
            op(EXCLUSIVE_OR, 0, 0, (key >> (32 * word)) as u32),
            op(LOAD_INDEX, 0, 0, DIFFERENCE),
            op(OR_INDEX, 0, 0, 0),
            op(STORE, 0, 0, DIFFERENCE),
        ]
    });
    let mut program = vec![
        op(LOAD_WORD, 0, 0, NUMBER),
        op(JUMP_IF_EQUAL, 1, 0, libc::SYS_clone3 as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(LOAD_VALUE, 0, 0, 0),
        op(STORE, 0, 0, DIFFERENCE),
    ];
    program.extend(compare);
    program.extend([
        op(JUMP_IF_EQUAL, 0, 1, 0),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ]);
    program
}

fn op(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// A rule for each bit: a comparison under a mask is for one value.
fn any_flag_of(flags: u64) -> io::Result<Vec<SeccompRule>> {
    let bits = (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| flags & bit != 0);
    bits.map(|bit| rule(vec![condition(SeccompCmpOp::MaskedEq(bit), bit)?]))
        .collect()
}

fn one_of(values: &[u64]) -> io::Result<Vec<SeccompRule>> {
    values
        .iter()
        .map(|value| rule(vec![condition(SeccompCmpOp::Eq, *value)?]))
        .collect()
}

fn none_of(values: &[u64]) -> io::Result<SeccompRule> {
    let conditions = values
        .iter()
        .map(|value| condition(SeccompCmpOp::Ne, *value))
        .collect::<io::Result<_>>()?;
    rule(conditions)
}

/// On the first argument.
fn condition(operator: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value).map_err(io::Error::other)
}

fn rule(conditions: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile() {
        assert_eq!(
            programs(1).unwrap().len(),
            if cfg!(target_arch = "x86_64") { 4 } else { 3 }
        );
    }
}
