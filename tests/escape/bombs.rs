//! Using up what all share: processes, memory, disk, open files. The one who does it is stopped, and nobody else is.

use std::time::Duration;

use sandgate::{Command, Event, Exec, Sandbox, v1};
use sandgate_tests::server::Server;

use super::{NOBODY, in_time, lacking, make, python, run, said, server, text, works};

/// Every process forks on and on, for at most a minute. One line when the kernel refuses.
const FORK_BOMB: &str = "
import os, time
end = time.monotonic() + 60
told = False
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            told = True
    except OSError as error:
        if not told:
            print('REFUSED', error.errno, flush=True)
        told = True
        time.sleep(0.01)
";
/// How many processes one can have.
const COUNT_PROCESSES: &str = "
import os, signal, time
children = []
try:
    while len(children) < 400:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        children.append(pid)
    print('ESCAPED', len(children))
except OSError as error:
    print('REFUSED', error.errno, len(children))
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
";
/// Half a gigabyte in one process.
const MEMORY_BOMB: &str = "
hoard = []
for _ in range(128):
    hoard.append(b'x' * (4 << 20))
print('ESCAPED')
";
/// The same in small processes, none of which is as large as the runtime.
const MEMORY_BOMBS: &str = "
import mmap, os, time
parent = os.getpid()
end = time.monotonic() + 3
pids = []
for _ in range(80):
    pid = os.fork()
    if pid == 0:
        hoard = mmap.mmap(-1, 3 << 20)
        for page in range(0, 3 << 20, 4096):
            hoard[page] = 1
        while time.monotonic() < end and os.getppid() == parent:
            time.sleep(0.05)
        os._exit(0)
    pids.append(pid)
killed = sum(os.WIFSIGNALED(os.waitpid(pid, 0)[1]) for pid in pids)
print('KILLED', killed)
";

/// Memory that is no process's, used up by one that is small and asks to be spared, as far as one may: everybody else is
/// killed first.
const SPARED: &str = "echo 0 > /proc/self/oom_score_adj; cat /dev/zero > /dev/shm/full; rm /dev/shm/full";
/// As large as it gets, and as many files as there can be.
const FILL: &str = "
import os
def fill(write):
    try:
        write()
        print('ESCAPED')
    except OSError as error:
        print('REFUSED', error.errno)
def one():
    with open('/workspace/fill', 'wb', 0) as file:
        for _ in range(200):
            file.write(b'x' * (1 << 20))
def many():
    for n in range(100_000):
        os.close(os.open(f'/tmp/{n}', os.O_CREAT))
fill(one)
fill(many)
print(os.stat('/workspace/fill').st_blocks * 512 >> 20)
for n in range(100_000):
    try:
        os.unlink(f'/tmp/{n}')
    except FileNotFoundError:
        break
os.unlink('/workspace/fill')
";

struct Two {
    server: Server,
    bomber: Sandbox,
    info: v1::Sandbox,
    neighbour: Sandbox,
}

async fn two(template: &str, uid: Option<u32>) -> Two {
    let server = server(uid).await;
    let client = server.client().await;
    let created = client.create().name("bomber").template(template).send().await.unwrap();
    let neighbour = make(&client, "default", "neighbour").await;
    Two {
        server,
        bomber: created.sandbox,
        info: created.info,
        neighbour,
    }
}

// === impl Two ===

impl Two {
    /// The one is as it was started, everybody lives, and nothing is left at the end.
    async fn end(self) {
        let now = self.bomber.get().await.unwrap();
        assert_eq!(now.incarnation, self.info.incarnation, "its PID 1 was another");
        for sandbox in [self.bomber, self.neighbour] {
            works(&sandbox).await;
            sandbox.delete().await.unwrap();
        }
        self.server.until_nothing_is_left().await;
    }
}

/// Follows until a line is written.
async fn first_words(exec: &mut Exec) -> String {
    loop {
        match exec.next().await.unwrap().unwrap() {
            Event::Output { data, .. } => return String::from_utf8_lossy(&data).into_owned(),
            Event::Started(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn fork_bomb(uid: Option<u32>) {
    let two = two("small", uid).await;
    let counted = said(&two.bomber, python(COUNT_PROCESSES)).await;
    let refused = counted.starts_with("REFUSED 11 ");
    if !refused {
        assert!(lacking(&two.info, "cgroup.pids").is_some(), "{counted}");
        return;
    }
    let mut bomb = two.bomber.exec(python(FORK_BOMB));
    let words = first_words(&mut bomb).await;
    assert!(words.starts_with("REFUSED 11"), "{words}");
    works(&two.neighbour).await;
    let another = make(two.neighbour.client(), "default", "another").await;
    works(&another).await;
    another.delete().await.unwrap();
    bomb.control().signal(9).await.unwrap();
    bomb.wait().await.unwrap();
    two.end().await;
}

#[tokio::test]
async fn a_fork_bomb_stops_at_the_limit_and_is_killed() {
    in_time(fork_bomb(None)).await;
}

#[tokio::test]
async fn a_fork_bomb_stops_where_the_server_is_an_ordinary_user() {
    in_time(fork_bomb(Some(NOBODY))).await;
}

#[tokio::test]
async fn deleting_a_sandbox_ends_its_fork_bomb() {
    in_time(async {
        let two = two("small", None).await;
        let mut bomb = two.bomber.exec(python(FORK_BOMB));
        first_words(&mut bomb).await;
        two.bomber.delete().await.unwrap();
        works(&two.neighbour).await;
        two.neighbour.delete().await.unwrap();
        two.server.until_nothing_is_left().await;
    })
    .await;
}

fn exit(answer: &v1::RunResponse) -> v1::ExecExit {
    let exec = answer.exec.clone().unwrap();
    exec.exit.unwrap_or_else(|| panic!("{:?}", exec.start_failure))
}

/// What is in the bomb's own exec is killed, and only that.
async fn memory_bomb(script: &str) {
    let two = two("small", None).await;
    assert_eq!(lacking(&two.info, "cgroup.memory"), None);
    let bystander = two.bomber.exec(Command::shell("exec sleep 1000").id("bystander"));
    works(&two.bomber).await;
    for _ in 0..3 {
        let answer = run(&two.bomber, python(script)).await;
        let exit = exit(&answer);
        let output = text(answer.stdout) + &text(answer.stderr);
        assert!(exit.out_of_memory > 0, "{exit:?} {output}");
        assert!(!output.contains("ESCAPED"), "{output}");
        works(&two.neighbour).await;
    }
    let alive = two.bomber.exec_info("bystander").await.unwrap();
    assert_eq!(alive.state(), v1::ExecState::Running, "{alive:?}");
    bystander.control().signal(9).await.unwrap();
    two.end().await;
}

#[tokio::test]
async fn a_process_that_wants_all_memory_is_killed_alone() {
    in_time(memory_bomb(MEMORY_BOMB)).await;
}

#[tokio::test]
async fn many_processes_that_want_all_memory_are_killed_alone() {
    in_time(memory_bomb(MEMORY_BOMBS)).await;
}

#[tokio::test]
async fn a_bomb_that_asks_to_be_spared_does_not_cost_the_runtime_its_life() {
    in_time(async {
        let two = two("tiny", None).await;
        for _ in 0..3 {
            let answer = run(&two.bomber, Command::shell(SPARED)).await;
            assert!(exit(&answer).out_of_memory > 0, "{answer:?}");
            // What it has left there is nobody's to be killed for.
            let remove = v1::RemoveOp {
                path: "/dev/shm/full".to_owned(),
                ..Default::default()
            };
            let op = v1::FileOp {
                op: Some(v1::file_op::Op::Remove(remove)),
            };
            two.bomber.file_ops(vec![op]).await.unwrap();
            works(&two.neighbour).await;
        }
        two.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_runtime_that_is_killed_for_want_of_memory_ends_as_that() {
    in_time(async {
        let two = two("tiny", None).await;
        // Memory of the runtime's own, and there is nobody else to be killed for it.
        let upload = two.bomber.upload("/dev/shm/full", vec![0; 60 << 20]).await;
        assert!(upload.is_err(), "it had room for {upload:?}");
        let now = two.bomber.get().await.unwrap();
        assert_eq!(now.state(), v1::SandboxState::Suspended, "{now:?}");
        let end = now.last_end.unwrap();
        assert_eq!(end.cause(), v1::EndCause::OutOfMemory, "{end:?}");
        works(&two.neighbour).await;
        two.bomber.resume().await.unwrap();
        works(&two.bomber).await;
        for sandbox in [two.bomber, two.neighbour] {
            sandbox.delete().await.unwrap();
        }
        two.server.until_nothing_is_left().await;
    })
    .await;
}

#[tokio::test]
async fn where_memory_is_not_limited_it_says_so() {
    in_time(async {
        let server = server(Some(NOBODY)).await;
        let client = server.client().await;
        let info = client.create().name("a").template("small").send().await.unwrap().info;
        for mechanism in ["cgroup.memory", "cgroup.pids", "disk.size", "uid.range"] {
            let why = lacking(&info, mechanism).unwrap_or_else(|| panic!("{mechanism} is said to be in force"));
            assert!(!why.is_empty());
        }
        for mechanism in [
            "namespace.user",
            "namespace.pid",
            "seccomp",
            "no_new_privs",
            "capabilities",
        ] {
            assert_eq!(lacking(&info, mechanism), None, "{mechanism}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_is_full_for_one_only() {
    in_time(async {
        let two = two("small-disk", None).await;
        assert_eq!(lacking(&two.info, "disk.size"), None);
        let full = said(&two.bomber, python(FILL)).await;
        let lines: Vec<_> = full.lines().collect();
        // ENOSPC.
        assert_eq!(lines[..2], ["REFUSED 28", "REFUSED 28"], "{full}");
        let megabytes: u32 = lines[2].parse().unwrap();
        assert!((8..64).contains(&megabytes), "{full}");
        let write = "dd if=/dev/zero of=/workspace/more bs=1M count=100 2>/dev/null && rm /workspace/more && echo ok";
        assert_eq!(said(&two.neighbour, Command::shell(write)).await, "ok\n");
        let disk = two.server.sandbox_dir("bomber");
        let used = sandgate_monitor::disk_bytes(&disk).unwrap().unwrap();
        assert!(used < 80 << 20, "{used} bytes outside");
        two.end().await;
    })
    .await;
}

async fn open_files(uid: Option<u32>) {
    let two = two("default", uid).await;
    let hoard = "
import os, time
held = []
try:
    for _ in range(100_000):
        held.append(os.open('/dev/null', os.O_RDONLY))
    print('ESCAPED', len(held), flush=True)
except OSError as error:
    print('REFUSED', error.errno, flush=True)
time.sleep(60)
";
    let mut hoarders = Vec::new();
    for _ in 0..2 {
        let mut exec = two.bomber.exec(python(hoard));
        assert_eq!(first_words(&mut exec).await.trim(), "REFUSED 24");
        hoarders.push(exec);
    }
    works(&two.bomber).await;
    works(&two.neighbour).await;
    let another = make(two.neighbour.client(), "default", "another").await;
    works(&another).await;
    another.delete().await.unwrap();
    for exec in hoarders {
        exec.control().signal(9).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), exec.wait())
            .await
            .unwrap()
            .unwrap();
    }
    two.end().await;
}

#[tokio::test]
async fn open_files_end_at_the_limit() {
    in_time(open_files(None)).await;
}

#[tokio::test]
async fn open_files_end_at_the_limit_where_the_server_is_an_ordinary_user() {
    in_time(open_files(Some(NOBODY))).await;
}
