//! The child that waits for the next command: whatever is done to it, commands run once and as they were asked to.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// The child that waits, once commands have followed each other.
async fn waiting_child(runtime: &Runtime, client: &mut Client) -> Pid {
    for _ in 0..1_000 {
        stdout(client, shell("true")).await;
        if let Some(child) = children(runtime).first() {
            return *child;
        }
    }
    panic!("no child waits");
}

/// Children of the runtime, while no command runs.
fn children(runtime: &Runtime) -> Vec<Pid> {
    let pid = runtime.pid();
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let words = list.split_whitespace();
    words
        .filter_map(|word| Pid::from_raw(word.parse().unwrap()))
        .filter(|child| is_alive(*child))
        .collect()
}

fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

async fn until_gone(pid: Pid) {
    let gone = async {
        while is_alive(pid) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
}

/// Another process that traces one, and does not wait for its end before it is told to.
struct Tracer(std::process::Child);

impl Tracer {
    fn of(pid: Pid) -> Self {
        // It goes on at every stop: the kernel stops it when it is sent SIGCONT.
        let script = "import ctypes, os, select, sys
pid, seize, go_on, any_child = int(sys.argv[1]), 0x4206, 7, 0x40000000
ptrace = ctypes.CDLL(None).ptrace
sys.exit('refused') if ptrace(seize, pid, None, None) else print('traced', flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    seen = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT | any_child)
    if seen and seen.si_code == os.CLD_TRAPPED:
        ptrace(go_on, pid, None, None)
os.waitpid(pid, any_child)";
        let mut tracer = std::process::Command::new("python3")
            .args(["-c", script, &pid.to_string()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 7];
        std::io::Read::read_exact(tracer.stdout.as_mut().unwrap(), &mut said).unwrap();
        Self(tracer)
    }

    fn let_go(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

#[tokio::test]
async fn it_becomes_the_next_command() {
    let runtime = Runtime::with_cgroups(true).await;
    let mut client = runtime.connect().await;
    let child = waiting_child(&runtime, &mut client).await;
    let answer = run(&mut client, shell("echo $$; echo error >&2; exit 3")).await;
    assert_eq!(answer.exec.as_ref().unwrap().pid, child.as_raw_nonzero().get() as u32);
    assert_eq!(status(&answer), Some(Status::Code(3)));
    assert_eq!(answer.stdout.unwrap().head, format!("{}\n", child.as_raw_nonzero()));
    assert_eq!(answer.stderr.unwrap().head, "error\n");
    // All that a command may ask for.
    waiting_child(&runtime, &mut client).await;
    let spec = ExecSpec {
        umask: Some(0o027),
        cwd: "/usr".into(),
        env: vec![EnvVar {
            name: "A".into(),
            value: "b".into(),
            ..Default::default()
        }],
        stderr: StderrMode::Merged.into(),
        ..shell(
            "pwd; umask; echo $A; echo error >&2; ls /proc/self/fd | tr '\\n' ' '; cat; sleep 0.1; cat /proc/self/oom_score_adj",
        )
    };
    assert_eq!(stdout(&mut client, spec).await, "/usr\n0027\nb\nerror\n0 1 2 3 500\n");
    // What can't be started is told as ever.
    waiting_child(&runtime, &mut client).await;
    let answer = run(&mut client, argv(&["no-such-program"])).await;
    assert_eq!(answer.exec.unwrap().start_failure.unwrap().reason(), Reason::NotFound);
}

/// It is looked at a moment after it has begun, when it may have children, and may have left them.
#[tokio::test]
async fn its_children_die_before_the_runtime() {
    let runtime = Runtime::with_cgroups(true).await;
    let mut client = runtime.connect().await;
    let score =
        "(for n in $(seq 1000); do [ $(cat /proc/self/oom_score_adj) = 500 ] && break; sleep 0.01; done; echo $n)";
    let child = waiting_child(&runtime, &mut client).await;
    let scores = stdout(&mut client, shell(format!("{score} & {score} & wait"))).await;
    assert_eq!(
        scores.lines().filter(|tries| *tries != "1000").count(),
        2,
        "{scores} of {child:?}"
    );
    let child = waiting_child(&runtime, &mut client).await;
    stdout(&mut client, shell(format!("{score} > tried & exit"))).await;
    let left = "for n in $(seq 1500); do [ -s tried ] && break; sleep 0.01; done; cat tried";
    let tried = stdout(&mut client, shell(left)).await;
    assert!(!["", "1000"].contains(&tried.trim()), "{tried} of {child:?}");
}

/// One that has ended can't be waited for until whoever traces it lets go. What it left behind writes meanwhile.
#[tokio::test]
async fn traced_at_its_end_its_output_is_read() {
    let runtime = Runtime::with_cgroups(true).await;
    let mut client = runtime.connect().await;
    let child = waiting_child(&runtime, &mut client).await;
    let mut tracer = Tracer::of(child);
    let written = runtime.workspace().join("written");
    let script = "(head -c 1000000 /dev/zero; touch written) & exit 3";
    let let_go = async {
        timeout(PATIENCE, async {
            while !written.exists() {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("nobody reads");
        tracer.let_go();
    };
    let (answer, ()) = tokio::join!(run(&mut client, shell(script)), let_go);
    assert_eq!(answer.exec.as_ref().unwrap().pid, child.as_raw_nonzero().get() as u32);
    assert_eq!(status(&answer), Some(Status::Code(3)));
}

#[tokio::test]
async fn stopped_or_killed_it_is_in_nobodys_way() {
    let runtime = Runtime::with_cgroups(true).await;
    let mut client = runtime.connect().await;
    let child = waiting_child(&runtime, &mut client).await;
    kill_process(child, Signal::STOP).unwrap();
    assert_eq!(stdout(&mut client, shell("echo went on")).await, "went on\n");
    for signal in [Signal::KILL, Signal::TERM] {
        let child = waiting_child(&runtime, &mut client).await;
        kill_process(child, signal).unwrap();
        if signal == Signal::KILL {
            until_gone(child).await;
        }
        let counted = "echo once >> counted; wc -l < counted; rm counted";
        assert_eq!(stdout(&mut client, shell(counted)).await, "1\n", "{signal:?}");
    }
}

/// A kernel that is out of memory for commands could choose it, and the runtime with it, whose memory it shares.
#[tokio::test]
async fn none_waits_beside_a_command() {
    let runtime = Runtime::with_cgroups(true).await;
    let mut client = runtime.connect().await;
    let child = waiting_child(&runtime, &mut client).await;
    // It can't become this one.
    let spec = ExecSpec {
        stdin: StdinMode::Open.into(),
        ..argv(&["sleep", "600"])
    };
    let sleeping = start(&mut client, "sleep", spec).await;
    assert!(!is_alive(child));
    for _ in 0..20 {
        stdout(&mut client, shell("true")).await;
        let others = children(&runtime)
            .into_iter()
            .filter(|child| child.as_raw_nonzero().get() as u32 != sleeping.pid);
        assert_eq!(others.count(), 0);
    }
}

#[tokio::test]
async fn it_goes_with_the_runtime_and_after_a_while() {
    let mut runtime = Runtime::with_cgroups(true).await;
    let mut client = runtime.connect().await;
    let child = waiting_child(&runtime, &mut client).await;
    runtime.kill();
    until_gone(child).await;
    runtime.restart().await;
    let mut client = runtime.connect().await;
    let child = waiting_child(&runtime, &mut client).await;
    until_gone(child).await;
    assert_eq!(stdout(&mut client, shell("echo again")).await, "again\n");
    let child = waiting_child(&runtime, &mut client).await;
    client.stop(StopRequest::default()).await.unwrap();
    runtime.wait().await;
    assert!(!is_alive(child));
}
