//! Making a sandbox: what its monitor needs and rustix does not offer.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use rustix::process::Pid;

use crate::{clone3::CLONE_INTO_CGROUP, spawn::Spawned};

/// Namespaces that a new process gets.
#[derive(Debug, Clone, Copy)]
pub struct Namespaces {
    /// Its own network. The other kinds it always has: user, mount, pid, ipc, uts.
    pub network: bool,
}

/// What a mount is from now on.
#[derive(Debug, Clone, Copy)]
pub enum MountChange<'fd> {
    /// Read-only, without devices, and no program gains rights.
    Harmless,
    /// Files belong to whom the user namespace behind this descriptor maps their owners to.
    Mapped(BorrowedFd<'fd>),
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;
const KEYCTL_JOIN_SESSION_KEYRING: usize = 1;
const LOOP_SET_FD: libc::c_ulong = 0x4C00;
const LOOP_SET_STATUS64: libc::c_ulong = 0x4C04;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// How often another process may take the free loop device before us.
const LOOP_TRIES: u32 = 32;

#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

/// Copies this process into new namespaces, in the cgroup of that directory. The copy runs `body` and ends with what it
/// returns.
///
/// # Errors
/// When this process has more than one thread, since the others would be missing in the copy; or when the kernel refuses.
pub fn clone_into_namespaces(
    namespaces: Namespaces,
    cgroup: Option<BorrowedFd<'_>>,
    body: impl FnOnce() -> i32,
) -> io::Result<Spawned> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process of several threads can't be copied"));
    }
    let mut flags =
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if namespaces.network {
        flags |= libc::CLONE_NEWNET;
    }
    let mut pidfd: i32 = -1;
    // SAFETY: all fields are numbers, and zero means nothing wanted.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = u64::from((flags | libc::CLONE_PIDFD) as u32);
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM this is a fork: the copy has memory and stack of its own. We are single-threaded, so no
    // lock is held by a thread that the copy lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match pid {
        0 => {
            // What we hold back from ourselves is not held back from a program.
            unblock_signals();
            let code = body();
            // SAFETY: ends the copy, without running what the original registered for its own end.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let pid = pid.filter(|_| pidfd >= 0).ok_or_else(io::Error::last_os_error)?;
            // SAFETY: the kernel has just made this descriptor for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Spawned { pid, pidfd })
        }
    }
}

/// Gives this process its own view of cgroups, beginning at those that it is in.
///
/// # Errors
/// When the kernel refuses.
pub fn unshare_cgroup() -> io::Result<()> {
    // SAFETY: changes what this process sees of cgroups, and nothing in its memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }).map(drop)
}

/// Changes a mount that is not attached yet and, if `recursive`, all below it.
///
/// # Errors
/// When the kernel refuses, as for a file system that can't map owners.
pub fn change_mount(mount: impl AsFd, change: MountChange<'_>, recursive: bool) -> io::Result<()> {
    let (set, userns_fd) = match change {
        MountChange::Harmless => (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0),
        MountChange::Mapped(userns) => (MOUNT_ATTR_IDMAP, userns.as_raw_fd() as u64),
    };
    let attr = MountAttr {
        set,
        clear: 0,
        propagation: 0,
        userns_fd,
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the attributes are what the kernel expects, with their size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    check(done as i32).map(drop)
}

/// Becomes the program behind a descriptor. Returns only if that failed.
#[must_use]
pub fn exec_descriptor(program: impl AsFd, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| {
        strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([ptr::null()])
            .collect::<Vec<_>>()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end in a null pointer and point at strings that live until the call returns.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_fd().as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Leaves the keyring of whoever started us for an empty one.
///
/// # Errors
/// When the kernel has none to give.
pub fn leave_session_keyring() -> io::Result<()> {
    // SAFETY: a null name asks for a keyring without one.
    let done = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            KEYCTL_JOIN_SESSION_KEYRING,
            ptr::null::<libc::c_char>(),
        )
    };
    check(done as i32).map(drop)
}

/// Brings the loopback interface of our network namespace up.
///
/// # Errors
/// When there is none.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: makes a descriptor, which is checked.
    let socket = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: it was just made and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: plain data; an all-zero name ends at its first byte.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }).map(drop)
}

/// Makes a block device of a file, and gives it with its path. The device is free again when nobody uses it any more.
///
/// # Errors
/// When there is no loop device to be had.
pub fn attach_loop(file: impl AsFd) -> io::Result<(fs::File, String)> {
    let control = fs::File::options().read(true).write(true).open("/dev/loop-control")?;
    let mut last = io::Error::other("no loop device is free");
    for _ in 0..LOOP_TRIES {
        // SAFETY: takes no argument and answers with a number.
        let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })?;
        let path = format!("/dev/loop{number}");
        let device = fs::File::options().read(true).write(true).open(&path)?;
        // SAFETY: the argument is a descriptor.
        match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_FD as _, file.as_fd().as_raw_fd()) }) {
            Ok(_) => {}
            // Another process was faster.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                last = error;
                continue;
            }
            Err(error) => return Err(error),
        }
        // SAFETY: plain data, zero means nothing special.
        let mut info: LoopInfo64 = unsafe { std::mem::zeroed() };
        info.flags = LO_FLAGS_AUTOCLEAR;
        // SAFETY: LOOP_SET_STATUS64 reads a loop_info64, which this is.
        check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64 as _, &raw const info) })?;
        return Ok((device, path));
    }
    Err(last)
}

/// Holds back the signals that ask a process to end, and gives a descriptor that is readable once one has come.
///
/// # Errors
/// When no descriptor is to be had.
pub fn termination_signals() -> io::Result<OwnedFd> {
    held_back(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT])
}

/// Holds back the signals that tell of a child's end, and gives a descriptor that is readable once one has come. In this
/// thread and those that it starts from now on: no thread is woken by them, and none runs a handler.
///
/// # Errors
/// When no descriptor is to be had.
pub fn child_signals() -> io::Result<OwnedFd> {
    // Ignored, as whoever started us may have left it, it would make the kernel forget how children ended.
    // SAFETY: the default is no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    held_back(&[libc::SIGCHLD])
}

fn held_back(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: a set is plain data, filled in by these calls; the mask is this thread's own.
    let descriptor = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    let descriptor = check(descriptor)?;
    // SAFETY: it was just made and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn unblock_signals() {
    // SAFETY: as above.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// A C string for `exec_descriptor`.
///
/// # Errors
/// When there is a NUL byte in it.
pub fn c_string(text: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(text).map_err(io::Error::from)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
