"""Attempts to get out, each in a process of its own. One line each: NAME REFUSED why | NAME ESCAPED how | NAME BROKEN why.

Runs inside of a sandbox, where every attempt must be refused; and outside with CONTROL set, where those that do no harm
must succeed: an attempt that fails everywhere shows nothing.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import traceback

FACTS = json.loads(os.environ["FACTS"])
CONTROL = FACTS["control"]
ROOT_INSIDE = os.geteuid() == 0
# As we were started. The number that is gone is that of the list itself.
LEFT_OPEN = [n for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.lexists(f"/proc/self/fd/{n}")]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# What a refusal may look like. EINVAL, EFAULT and the like mean that the kernel looked at the arguments: it was let in.
DENIED = {errno.EPERM, errno.EACCES, errno.ENOSYS}
HIDDEN = DENIED | {errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENXIO}
READ_ONLY = HIDDEN | {errno.EROFS}
UNREACHABLE = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENOENT, errno.EACCES, errno.EPERM}

PROBES = []


def probe(refusals=DENIED, control=False):
    """An attempt: escaped if it returns. `control`: it succeeds for the host's root, and does no harm."""

    def register(body):
        PROBES.append((body.__name__, body, refusals, control))
        return body

    return register


def family(name, refusals=DENIED, control=False, **cases):
    """The same attempt with one thing different."""

    def register(body):
        for case, argument in cases.items():
            attempt = lambda argument=argument: body(argument)
            PROBES.append((f"{name}_{case}", attempt, refusals, control))
        return body

    return register


class Refused(Exception):
    """What was attempted did not happen, and no error says so."""


def call(number, *arguments):
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def read(path):
    with open(path, "rb") as file:
        return file.read(4096)


def open_for_writing(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK))


# === files of the host ===


@probe(HIDDEN, control=True)
def host_shadow():
    # The same path may be there inside, made by the sandbox's own root.
    found = read("/etc/shadow")
    if FACTS["inside"] in found.decode(errors="replace"):
        raise Refused("it is the sandbox's own")
    return found[:8]


def canary(path):
    found = read(path)
    if FACTS["canary"].encode() not in found:
        raise Refused("another file")
    return path


for number, path in enumerate(FACTS["canaries"]):
    where = path.strip("/").split("/")[0]
    family(f"host_file_{number}", HIDDEN, control=True, **{where: path})(canary)
    for way in ("/proc/1/root", "/proc/1/cwd", "/proc/self/root/..", "/proc/self/cwd/../../../.."):
        label = way.strip("/").replace("/", "_").replace("..", "up")
        family(f"host_file_{number}_by", HIDDEN, **{label: way + path})(canary)


@probe(HIDDEN)
def any_name_of_the_host():
    for top, directories, files in os.walk("/"):
        if top == "/":
            # The first two are the kernel's, the third is the host's and meant to be seen.
            directories[:] = [d for d in directories if d not in ("proc", "sys", "usr")]
        for name in directories + files:
            if any(name == os.path.basename(path) for path in FACTS["canaries"]) or name == "sandgate.sock":
                return os.path.join(top, name)
    raise Refused("not found")


@family("server", HIDDEN, control=True, state=FACTS["state_dir"], sandboxes=FACTS["state_dir"] + "/sandboxes")
def server_directory(path):
    return os.listdir(path)


@probe(HIDDEN, control=True)
def server_token():
    return read(FACTS["state_dir"] + "/token")


@probe(HIDDEN, control=True)
def other_sandboxes_file():
    return read(FACTS["other_file"])


@probe(HIDDEN, control=True)
def other_sandboxes_root():
    return os.listdir(f"/proc/{FACTS['other_pid']}/root")


@probe()
def breaking_out_of_chroot():
    os.chdir("/")
    inner = tempfile.mkdtemp(dir="/tmp")
    os.chroot(inner)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    for path in FACTS["canaries"]:
        if os.path.exists(path):
            return path
    raise Refused("the top is the sandbox's")


# === processes of the host ===


@probe(HIDDEN, control=True)
def seeing_host_processes():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = read(f"/proc/{pid}/cmdline")
        except OSError:
            continue
        if b"sandgate-server" in command or b"sandgate-monitor" in command:
            if FACTS["state_dir"].encode() in command:
                return pid
    raise Refused("none is seen")


@family("signalling", {errno.ESRCH, errno.EPERM}, control=True, server=FACTS["server_pid"], other=FACTS["other_pid"])
def signalling(pid):
    if os.path.exists(f"/proc/{pid}") and not CONTROL:
        raise Refused("that number is a process of the sandbox")
    os.kill(pid, 0)


@family("namespace_shared", **{kind: kind for kind in FACTS["namespaces"]})
def namespace_shared(kind):
    own = os.readlink(f"/proc/self/ns/{kind}")
    if own != FACTS["namespaces"][kind]:
        raise Refused(own)
    return own


@probe(HIDDEN)
def host_name():
    if socket.gethostname() == FACTS["host_name"]:
        return FACTS["host_name"]
    raise Refused("another")


# === PID 1 ===


@family(
    "pid1_read", HIDDEN, environ="environ", maps="maps", mem="mem", auxv="auxv", stack="stack", io="io",
    smaps="smaps", exe="exe", syscall="syscall", task_mem="task/1/mem", pagemap="pagemap",
)
def pid1_read(name):
    return read(f"/proc/1/{name}")


@family("pid1_list", HIDDEN, cwd="cwd/", root="root/", map_files="map_files")
def pid1_list(name):
    return os.listdir(f"/proc/1/{name}")


@probe(HIDDEN)
def pid1_descriptors():
    # Root inside sees their numbers, and not what they are.
    for number in os.listdir("/proc/1/fd"):
        try:
            return os.readlink(f"/proc/1/fd/{number}")
        except OSError as error:
            if error.errno not in HIDDEN:
                raise
    raise Refused("numbers only")


@family("pid1_link", HIDDEN, exe="exe", cwd="cwd", root="root")
def pid1_link(name):
    return os.readlink(f"/proc/1/{name}")


@family("pid1_write", READ_ONLY | {errno.ETXTBSY}, exe="exe", mem="mem")
def pid1_write(name):
    open_for_writing(f"/proc/1/{name}")


@family("pid1_descriptor", HIDDEN, **{str(number): number for number in range(64)})
def pid1_descriptor(number):
    os.open(f"/proc/1/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)


@probe(DENIED)
def pid1_process_vm_readv():
    buffer = ctypes.create_string_buffer(64)
    local = struct.pack("QQ", ctypes.addressof(buffer), 64)
    remote = struct.pack("QQ", 0x400000, 64)
    call(310, 1, local, 1, remote, 1, 0)


@family("pid1_ptrace", attach=16, seize=0x4206)
def pid1_ptrace(request):
    call(101, request, 1, 0, 0)


@family("pid1_pidfd_getfd", **{str(number): number for number in (2, 6, 9)})
def pid1_pidfd_getfd(number):
    call(438, call(434, 1, 0), number, 0)


@probe()
def pid1_kcmp():
    call(312, 1, os.getpid(), 0, 0, 0)


@probe(DENIED | {errno.ESRCH})
def keepers_of_commands():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name = read(f"/proc/{pid}/comm").strip()
        except OSError:
            continue
        if name in (b"sandgate-keeper", b"sandgate-runtime"):
            call(101, 0x4206, int(pid), 0, 0)
    raise Refused("there is none")


@probe()
def descriptors_left_open():
    # They would be the runtime's: directories outside of the sandbox among them.
    if LEFT_OPEN:
        return LEFT_OPEN
    raise Refused("none")


# === mounts ===


@family("mount", tmpfs=b"tmpfs", proc=b"proc", sysfs=b"sysfs", cgroup2=b"cgroup2", overlay=b"overlay", devpts=b"devpts")
def mount(kind):
    call(165, b"none", tempfile.mkdtemp().encode(), kind, 0, 0)


@probe(control=True)
def mount_in_its_own_namespace():
    if CONTROL:
        call(272, 0x20000)
        call(165, b"none", b"/", 0, 0x44000, 0)
    call(165, b"none", tempfile.mkdtemp().encode(), b"tmpfs", 0, 0)


@probe()
def mount_bind():
    call(165, b"/usr", tempfile.mkdtemp().encode(), 0, 0x1000, 0)


@family("mount_remount", usr=b"/usr", sysctls=b"/proc/sys", sys=b"/sys")
def mount_remount(path):
    call(165, b"none", path, 0, 0x20 | 0x1000, 0)


@family("umount", usr=b"/usr", sysctls=b"/proc/sys", proc=b"/proc", root=b"/")
def umount(path):
    call(166, path, 2)


@probe()
def mount_propagation():
    call(165, b"none", b"/", 0, 0x104000, 0)


@family("fsopen", control=True, tmpfs=b"tmpfs", ext4=b"ext4")
def fsopen(kind):
    call(430, kind, 0)


@family("open_tree", control=True, plain=428)
def open_tree(number):
    call(number, -100, b"/usr", 1)


@probe(DENIED)
def open_tree_attr():
    call(467, -100, b"/usr", 1, struct.pack("QQQQ", 0, 1, 0, 0), 32)


@probe()
def move_mount():
    call(429, -1, b"", -100, b"/mnt", 4)


@probe()
def fsmount():
    call(432, -1, 0, 0)


@probe()
def fspick():
    call(433, -100, b"/", 0)


@probe()
def fsconfig():
    call(431, -1, 6, 0, 0, 0)


@probe()
def mount_setattr():
    call(442, -100, b"/usr", 0, struct.pack("QQQQ", 0, 1, 0, 0), 32)


@probe()
def pivot_root():
    call(155, b"/tmp", b"/tmp")


# === namespaces ===

NAMESPACES = {
    "user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "network": 0x40000000,
    "ipc": 0x8000000, "uts": 0x4000000, "cgroup": 0x2000000, "user_and_mount": 0x10020000,
}


@family("unshare", DENIED | {errno.ENOSPC}, control=True, time=0x80, **NAMESPACES)
def unshare(flags):
    call(272, flags)


@family("clone", DENIED | {errno.ENOSPC}, control=True, **NAMESPACES)
def clone(flags):
    if call(56, flags | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


@family("clone3", DENIED | {errno.ENOSPC}, control=True, **NAMESPACES)
def clone3(flags, *key):
    arguments = ctypes.create_string_buffer(struct.pack("Q" * 11, flags, 0, 0, 0, signal.SIGCHLD, *[0] * 6))
    if call(435, arguments, 88, *key) == 0:
        os._exit(0)


@family("clone3_with_key", DENIED | {errno.ENOSPC}, control=True, zero=0, ones=2**64 - 1, guessed=0x5A17D6A7E)
def clone3_with_key(key):
    """The runtime may call it, with a key in arguments that the kernel does not look at."""
    clone3(NAMESPACES["mount"], ctypes.c_uint64(key), ctypes.c_uint64(key))


@probe(DENIED | {errno.ENOSPC})
def user_namespace_from_a_thread():
    outcome = []

    def attempt():
        try:
            outcome.append(call(272, 0x10000000))
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    if isinstance(outcome[0], OSError):
        raise outcome[0]


@probe(DENIED | {errno.ENOSPC})
def user_namespace_from_another_program():
    script = "import os; os.unshare(0x10000000)" if hasattr(os, "unshare") else (
        "import ctypes, sys; l = ctypes.CDLL(None, use_errno=True);"
        "sys.exit(0 if l.unshare(0x10000000) == 0 else 100 + (ctypes.get_errno() != 1))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", f"import os\npid = os.fork()\nif pid: exit(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))\n{script}"])
    if done.returncode != 0:
        raise Refused(done.returncode)


@family("setns", HIDDEN, user="user", mnt="mnt", pid="pid", net="net", ipc="ipc", uts="uts")
def setns(kind):
    call(308, os.open(f"/proc/self/ns/{kind}", os.O_RDONLY), 0)


@family("setns_of_pid1", HIDDEN, mnt="mnt", net="net")
def setns_of_pid1(kind):
    call(308, os.open(f"/proc/1/ns/{kind}", os.O_RDONLY), 0)


# === devices ===


@family("mknod", control=True, mem=(stat.S_IFCHR, 1, 1), null=(stat.S_IFCHR, 1, 3), disk=(stat.S_IFBLK, 254, 0), loop=(stat.S_IFBLK, 7, 0))
def mknod(device):
    kind, major, minor = device
    directory = tempfile.mkdtemp()
    path = os.path.join(directory, "device")
    os.mkfifo(path)
    os.unlink(path)
    try:
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
    finally:
        if os.path.exists(path):
            os.unlink(path)
        os.rmdir(directory)


@family(
    "device", HIDDEN, mem="/dev/mem", kmsg="/dev/kmsg", port="/dev/port", loop="/dev/loop-control", fuse="/dev/fuse",
    disk="/dev/vda", kvm="/dev/kvm", tun="/dev/net/tun", vsock="/dev/vsock", console="/dev/console",
)
def device(path):
    os.open(path, os.O_RDONLY | os.O_NONBLOCK)


@probe()
def devices_beyond_the_few():
    few = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "fd", "stdin", "stdout", "stderr", "pts", "shm"}
    more = set(os.listdir("/dev")) - few
    if more:
        return more
    raise Refused("none")


# === networks ===


@family(
    "socket", DENIED | {errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT},
    raw=(2, 3, 1), raw_udp=(2, 3, 17), raw6=(10, 3, 58), packet=(17, 3, 0x300), packet_datagrams=(17, 2, 0x300),
    vsock=(40, 1, 0), alg=(38, 5, 0), xdp=(44, 3, 0), key=(15, 3, 2),
)
def strange_socket(arguments):
    call(41, *arguments)


@probe(control=True)
def raw_socket():
    call(41, 2, 3, 1)


@probe()
def interfaces_beyond_the_loopback():
    more = [name for _, name in socket.if_nameindex() if name != "lo"]
    if more and any(not (int(read(f"/sys/class/net/{name}/flags"), 16) & 1) for name in more):
        # Fallback tunnels that some kernels put into every network; they are down.
        more = [name for name in more if int(read(f"/sys/class/net/{name}/flags"), 16) & 1]
    if more:
        return more
    raise Refused("none")


@probe()
def bringing_an_interface_down():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0))


@family("host_port", UNREACHABLE, control=True, listener=FACTS["host_port"])
def host_port(port):
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


if FACTS["server_port"]:
    family("host_port", UNREACHABLE, control=True, server=FACTS["server_port"])(host_port)


@probe(UNREACHABLE)
def a_way_out():
    # Sends nothing: it only asks for a route.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("192.0.2.1", 9))


@probe(UNREACHABLE, control=True)
def host_abstract_socket():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\0" + FACTS["abstract"])


@probe()
def host_sockets_in_the_list():
    text = read("/proc/net/unix").decode()
    if FACTS["abstract"] in text or "sandgate.sock" in text:
        return text
    raise Refused("none is listed")


@family(
    "unix_socket", UNREACHABLE | {errno.ENOTDIR}, control=True,
    server=FACTS["state_dir"] + "/sandgate.sock", host=FACTS["host_socket"],
)
def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)


@family(
    "own_socket", UNREACHABLE | {errno.ENOTDIR}, control=True,
    runtime=FACTS["own_dir"] + "/socket", monitor=FACTS["own_dir"] + "/control",
)
def own_socket(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)


# === /proc and /sys ===


@family(
    "proc_write", READ_ONLY,
    core_pattern="sys/kernel/core_pattern", modprobe="sys/kernel/modprobe", userns="sys/user/max_user_namespaces",
    forward="sys/net/ipv4/ip_forward", ports="sys/net/ipv4/ip_unprivileged_port_start", hostname="sys/kernel/hostname",
    drop_caches="sys/vm/drop_caches", overcommit="sys/vm/overcommit_memory", sysrq="sys/kernel/sysrq",
    sysrq_trigger="sysrq-trigger", kcore="kcore", irq="irq/default_smp_affinity", mtrr="mtrr", kmsg="kmsg",
    shmmax="sys/kernel/shmmax", pid_max="sys/kernel/pid_max", ns_last_pid="sys/kernel/ns_last_pid", ptrace="sys/kernel/yama/ptrace_scope",
)
def proc_write(name):
    open_for_writing(f"/proc/{name}")


@family("proc_read", HIDDEN, kcore="kcore", kmsg="kmsg", kpageflags="kpageflags", vmallocinfo="vmallocinfo")
def proc_read(name):
    return read(f"/proc/{name}")


@probe()
def kernel_addresses():
    for line in open("/proc/kallsyms"):
        if line.split()[0].strip("0"):
            return line
    raise Refused("all are zero")


def writable_files(top):
    # A file of a process is that process's own business; what is under others' numbers is tried above.
    for directory, directories, files in os.walk(top):
        if directory == "/proc":
            directories[:] = [d for d in directories if not d.isdigit() and d not in ("self", "thread-self", "net")]
        for name in files:
            path = os.path.join(directory, name)
            if os.path.islink(path):
                continue
            try:
                open_for_writing(path)
            except OSError:
                continue
            yield path


@family("anything_writable", proc="/proc", sys="/sys")
def anything_writable(top):
    found = list(writable_files(top))
    if found:
        return found
    raise Refused("nothing")


@family("oom_score", DENIED, own="self", pid1="1")
def oom_score(pid):
    with open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("-1")


@family("user_map", DENIED | {errno.EINVAL}, uid="uid_map", gid="gid_map", groups="setgroups")
def user_map(name):
    with open(f"/proc/self/{name}", "w") as file:
        file.write("allow" if name == "setgroups" else "0 0 1")


@family("cgroup", READ_ONLY | {errno.ENOENT}, v2="/sys/fs/cgroup/x", v1="/sys/fs/cgroup/memory/x", unified="/sys/fs/cgroup/unified/x")
def cgroup(path):
    os.mkdir(path)


@probe()
def cgroup_of_the_host():
    paths = [line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup")]
    if any(FACTS["cgroup_parent"] in path for path in paths):
        return paths
    raise Refused("the sandbox sees its own")


# === keys, time, modules, and the rest of the kernel ===


@probe()
def key_added():
    call(248, b"user", b"sandgate", b"x", 1, -3)


@probe()
def key_requested():
    call(249, b"user", b"sandgate", 0, -3)


@family("keyctl", get_session=(0, -3, 0), get_user=(0, -4, 1), join=(1, 0), read=(11, -3, 0, 0))
def keyctl(arguments):
    call(250, *arguments)


@probe(control=True)
def time_of_day():
    # Sets nothing, for whoever may.
    call(164, 0, 0)


@probe()
def time_clock():
    call(227, 0, struct.pack("qq", 0, 2_000_000_000))


@probe()
def time_adjusted():
    call(159, ctypes.create_string_buffer(struct.pack("I", 0x8000) + b"\0" * 512))


@probe()
def time_clock_adjusted():
    call(305, 0, ctypes.create_string_buffer(struct.pack("I", 0x8000) + b"\0" * 512))


# Their arguments make no sense, so that even for whoever is let in nothing happens.
NONSENSE = {
    "init_module": (175, 0, 0, 0), "finit_module": (313, -1, 0, 0), "delete_module": (176, 0, 0),
    "kexec_load": (246, 0, 999, 0, 0x80000000), "kexec_file_load": (320, -1, -1, 0, 0, 0x80000000),
    "reboot": (169, 1, 2, 3, 0), "swapon": (167, b"/nowhere", 0), "swapoff": (168, b"/nowhere"),
    "acct": (163, b"/nowhere/x"), "quotactl": (179, -1, 0, 0, 0), "bpf": (321, 999, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, 0x40000000), "syslog": (103, 10, 0, 0),
    "open_by_handle_at": (304, -1, 0, 0), "name_to_handle_at": (303, -100, b"/", 0, 0, 0),
    "fanotify_init": (300, 0x80000000, 0), "iopl": (172, 4), "ioperm": (173, 0x80, 1, 0),
    "io_uring_setup": (425, 0, 0), "io_uring_enter": (426, -1, 0, 0, 0, 0, 0), "io_uring_register": (427, -1, 0, 0, 0),
    "move_pages": (279, 0, 0, 0, 0, 0, 0xFF), "mbind": (237, 0, 0, 99, 0, 0, 0), "set_mempolicy": (238, 99, 0, 0),
    "vhangup": (153,), "lookup_dcookie": (212, 0, 0, 0), "nfsservctl": (180,), "sysfs": (139, 99),
    "ustat": (136, 0, 0), "uselib": (134, 0), "sysctl": (156, 0), "personality_no_random": (135, 0x40000),
    "personality_read_implies_exec": (135, 0x400000), "sethostname": (170, b"x", 1), "setdomainname": (171, b"x", 1),
}
# What the host's root is let into on any kernel that we run on.
LET_IN = ("reboot", "swapon", "syslog", "personality_no_random", "io_uring_setup")


@family("call", DENIED, **NONSENSE)
def nonsense(arguments):
    call(*arguments)


@family("call_let_in", DENIED, control=True, **{name: NONSENSE[name] for name in LET_IN})
def nonsense_let_in(arguments):
    try:
        call(*arguments)
    except OSError as error:
        if error.errno in DENIED or not CONTROL:
            raise


@probe(control=True)
def call_32_bits():
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # push rbx; mov eax, 20 (getpid of i386); int 0x80; pop rbx; ret
    code.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    pid = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if pid != os.getpid():
        raise Refused(pid)


@probe()
def call_x32():
    call(0x40000000 | 39)


@probe()
def priority_raised():
    os.setpriority(os.PRIO_PROCESS, 0, -5)


@probe()
def scheduled_as_real_time():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


@family("limit_raised", DENIED | {errno.EINVAL}, files=7, processes=6, core=4)
def limit_raised(resource):
    import resource as limits

    soft, hard = limits.getrlimit(resource)
    if hard == limits.RLIM_INFINITY:
        raise Refused("there is none")
    try:
        limits.setrlimit(resource, (soft, hard + 1))
    except ValueError as error:
        raise Refused(error)


# === rights ===

# chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service, sys_chroot, setfcap
KEPT = {0, 1, 3, 4, 5, 6, 7, 10, 18, 31}


@family("capabilities", effective="CapEff", permitted="CapPrm", bounding="CapBnd", inheritable="CapInh", ambient="CapAmb")
def capabilities(name):
    value = int(next(l.split()[1] for l in open("/proc/self/status") if l.startswith(name)), 16)
    allowed = KEPT if ROOT_INSIDE or name == "CapBnd" else set()
    more = {bit for bit in range(64) if value >> bit & 1} - allowed
    if more:
        return more
    raise Refused(hex(value))


@probe()
def new_privileges_possible():
    status = read("/proc/self/status").decode()
    if "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status:
        raise Refused("no_new_privs and seccomp are on")
    return status


def as_another(program, arguments):
    """Runs a program as the user 1000 where we may become it, and gives what it says."""
    pid_map = read("/proc/self/uid_map").split()
    if ROOT_INSIDE and int(pid_map[2]) > 1000:
        change = lambda: (os.setgroups([]), os.setresgid(1000, 1000, 1000), os.setresuid(1000, 1000, 1000))
    else:
        change = None
    return subprocess.run([program, *arguments], preexec_fn=change, capture_output=True, text=True).stdout.split()


def copied_python():
    directory = tempfile.mkdtemp(dir="/tmp")
    os.chmod(directory, 0o755)
    copy = os.path.join(directory, "python")
    with open(os.path.realpath(sys.executable), "rb") as source, open(copy, "wb") as target:
        target.write(source.read())
    os.chmod(copy, 0o755)
    return copy


TELL = "import os; print(os.geteuid(), [l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')][0])"


@probe()
def setuid_program():
    copy = copied_python()
    os.chmod(copy, 0o6755)
    uid, effective = as_another(copy, ["-I", "-S", "-c", TELL])
    before = os.geteuid() if not ROOT_INSIDE else None
    single = ROOT_INSIDE and int(read("/proc/self/uid_map").split()[2]) == 1
    if single or int(uid) in (before, 1000) and int(effective, 16) == 0:
        raise Refused(uid)
    return uid, effective


@probe()
def file_capabilities():
    copy = copied_python()
    # Version 2, effective: everything.
    os.setxattr(copy, "security.capability", struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0))
    said = as_another(copy, ["-I", "-S", "-c", TELL])
    if not said:
        raise Refused("it does not start")
    more = {bit for bit in range(64) if int(said[1], 16) >> bit & 1} - KEPT
    single = int(read("/proc/self/uid_map").split()[2]) == 1
    if more or (not single and int(said[1], 16)):
        return said
    raise Refused(said[1])


@probe()
def setuid_programs_of_the_host():
    for name in ("su", "sudo", "mount", "newgrp", "passwd", "chsh"):
        path = f"/usr/bin/{name}"
        if os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID and not os.statvfs(path).f_flag & os.ST_NOSUID:
            return path
    raise Refused("they lie in a mount without setuid")


# === what is shown of the host ===


@family("host_directory_write", READ_ONLY, usr="/usr", bin="/usr/bin", lib="/usr/lib")
def host_directory_write(path):
    os.mkdir(path + "/sandgate-escape")


@family("host_program_write", READ_ONLY | {errno.ETXTBSY}, python=os.path.realpath("/usr/bin/python3"), env="/usr/bin/env")
def host_program_write(path):
    open_for_writing(path)


@probe(READ_ONLY)
def host_program_mode():
    os.chmod("/usr/bin/env", 0o755)


@probe(READ_ONLY)
def host_program_times():
    os.utime("/usr/bin/env")


@probe(READ_ONLY | {errno.EXDEV, errno.EBUSY})
def host_directory_renamed():
    os.rename("/usr", "/usr2")


@family("mount_point_replaced", READ_ONLY | {errno.EBUSY, errno.EXDEV}, proc="/proc", dev="/dev", sys="/sys", usr="/usr")
def mount_point_replaced(path):
    os.rename(path, path + "2")


def attempt(body, refusals):
    try:
        return f"ESCAPED {body()!r}"
    except Refused as why:
        return f"REFUSED {why}"
    except OSError as error:
        name = errno.errorcode.get(error.errno, str(error.errno))
        return f"REFUSED {name}" if error.errno in refusals else f"ESCAPED the kernel looked at it: {name}"
    except BaseException:
        return "BROKEN " + traceback.format_exc().strip().replace("\n", " | ")


def main():
    for name, body, refusals, control in PROBES:
        if CONTROL and not control:
            continue
        reader, writer = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            os.close(reader)
            os.write(writer, attempt(body, refusals).encode()[:1000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            said = file.read().decode(errors="replace")
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            said = "REFUSED SIGSYS" if number == signal.SIGSYS else f"BROKEN signal {number}"
        print(name, said or "BROKEN no word", flush=True)
    print("done", len(PROBES), flush=True)


main()
