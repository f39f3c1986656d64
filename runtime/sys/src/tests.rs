use std::{
    ffi::CString,
    fs::{self, File},
    io::{ErrorKind, Read as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    pipe::{PipeFlags, pipe_with},
};

use super::*;

fn command(argv: &[&str]) -> (Command, File) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    let strings = |of: &[&str]| of.iter().map(|s| CString::new(*s).unwrap()).collect::<Vec<_>>();
    let command = Command {
        programs: strings(&argv[..1]),
        argv: strings(argv),
        env: strings(&["PATH=/usr/bin:/bin", "A=b"]),
        stdio: Stdio::Given([null, write.try_clone().unwrap(), write]),
        terminal: false,
        cwd: c"/".into(),
        user: None,
        umask: 0o27,
        limits: vec![Limit::named("core", 0, 0).unwrap()],
        cgroup: None,
        memory_tasks: None,
        oom_score_adj: Some(500),
        descriptor_3: None,
    };
    (command, File::from(read))
}

fn output(command: Command, mut read: File) -> String {
    drop(command);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    text
}

fn wait_readable(fd: &impl std::os::fd::AsFd) {
    let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], None).unwrap();
}

#[test]
fn runs_with_env_umask_limits_and_oom_score() {
    let script = "echo $A $(umask) $(ulimit -c) $(cat /proc/self/oom_score_adj); exit 7";
    let (command, read) = command(&["/bin/sh", "-c", script]);
    let child = command.spawn().unwrap();
    assert_eq!(output(command, read), "b 0027 0 500\n");
    wait_readable(&child.pidfd);
    let exit = reap(child.pidfd.as_fd()).unwrap().unwrap();
    assert_eq!(exit.status, ExitStatus::Code(7));
    assert!(exit.max_rss > 0);
}

#[test]
fn no_path_of_a_command_leads_through_a_descriptor_of_ours() {
    use std::os::fd::AsRawFd as _;
    let dir = File::open("/tmp").unwrap();
    rustix::io::fcntl_setfd(&dir, rustix::io::FdFlags::empty()).unwrap();
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    // Other tests go on with it.
    hold_until_exec(Box::leak(Box::new(tempfile::tempfile().unwrap())));
    let (mut in_cwd, _read) = command(&["/bin/true"]);
    in_cwd.cwd = CString::new(link.clone()).unwrap();
    let (as_program, _read) = command(&[&format!("{link}/../bin/true")]);
    for (command, stage) in [(in_cwd, Stage::Cwd), (as_program, Stage::Exec)] {
        for failed in [command.spawn().map(drop), command.spawn_kept().map(drop)] {
            let failed = failed.unwrap_err();
            assert_eq!(
                (failed.stage, failed.source.raw_os_error()),
                (stage, Some(libc::ENOENT))
            );
        }
    }
}

#[test]
fn tells_what_failed() {
    let (mut c, _read) = command(&["/no/such/program"]);
    let error = c.spawn().unwrap_err();
    assert_eq!(
        (error.stage, error.source.raw_os_error()),
        (Stage::Exec, Some(libc::ENOENT))
    );
    c.cwd = c"/no/such/directory".into();
    assert_eq!(c.spawn().unwrap_err().stage, Stage::Cwd);
    assert_eq!(c.spawn_kept().unwrap_err().stage, Stage::Cwd);
    c.cwd = c"/".into();
    c.programs = vec![c"/etc/passwd".into(), c"/bin/true".into()];
    let child = c.spawn().unwrap();
    wait_readable(&child.pidfd);
    assert_eq!(reap(child.pidfd.as_fd()).unwrap().unwrap().status, ExitStatus::Code(0));
}

/// A group in the cgroup2 tree, removed with the value.
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let is_unified = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
        let mount = mounts.lines().find(is_unified).expect("a cgroup2 tree");
        let path = Path::new(mount.split(' ').nth(1).unwrap()).join(format!("sandgate-sys-{}", std::process::id()));
        fs::create_dir(&path).expect("a cgroup2 tree that is ours: the tests want root");
        Self(path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        while fs::remove_dir(&self.0).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {}
    }
}

#[test]
fn begins_in_its_group_without_waiting() {
    let group = Group::new();
    let entrance: Arc<OwnedFd> = Arc::new(File::open(&group.0).unwrap().into());
    let script = "echo $A $(umask); tail -n1 /proc/self/cgroup; read line < /proc/$$/oom_score_adj; exit 7";
    let (mut good, read) = command(&["/bin/sh", "-c", script]);
    good.cgroup = Some(entrance.clone());
    // All at once, and the failures between them.
    let begun: Vec<_> = (0..20).map(|_| good.begin().unwrap().expect("clone3")).collect();
    let (mut bad, _read) = command(&["/no/such/program"]);
    bad.cgroup = Some(entrance);
    let failed: Vec<_> = (0..20).map(|_| bad.begin().unwrap().expect("clone3")).collect();
    for child in failed {
        let error = child.wait().unwrap_err();
        assert_eq!(
            (error.stage, error.source.raw_os_error()),
            (Stage::Exec, Some(libc::ENOENT))
        );
    }
    let score = || fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let own = score();
    for child in begun {
        let child = child.wait().unwrap();
        wait_readable(&child.pidfd);
        assert_eq!(reap(child.pidfd.as_fd()).unwrap().unwrap().status, ExitStatus::Code(7));
    }
    assert_eq!(score(), own, "a child's score became ours");
    let said = output(good, read);
    assert_eq!(said.matches("b 0027\n").count(), 20, "{said}");
    assert_eq!(
        said.matches(&format!("/sandgate-sys-{}\n", std::process::id())).count(),
        20,
        "{said}"
    );
}

#[test]
fn a_keeper_tells_the_exit_and_stays_for_orphans() {
    let script = "setsid sh -c 'sleep 0.3 & exec sleep 0.2' & kill -9 $$";
    let (command, read) = command(&["/bin/sh", "-c", script]);
    let keeper = command.spawn_kept().unwrap();
    wait_readable(&keeper.reports());
    let (exit, alone) = keeper.exit().unwrap();
    assert_eq!((exit.status, alone), (ExitStatus::Signal(9), false));
    let still = fs::read_to_string(format!("/proc/{}/stat", keeper.pid.as_raw_nonzero())).unwrap();
    assert!(still.contains("(sandgate-keeper)") && !still.contains(") Z"), "{still}");
    assert_eq!(output(command, read), "");
    wait_readable(&keeper.pidfd);
    keeper.wait_and_release();
}

#[test]
fn spawning_leaves_no_zombie_and_no_descriptor() {
    let count = || fs::read_dir("/proc/self/fd").unwrap().count();
    let (c, _read) = command(&["/bin/true"]);
    let before = count();
    for _ in 0..50 {
        let child = c.spawn().unwrap();
        wait_readable(&child.pidfd);
        assert!(reap(child.pidfd.as_fd()).unwrap().is_some());
        let keeper = c.spawn_kept().unwrap();
        wait_readable(&keeper.pidfd);
        keeper.wait_and_release();
    }
    // Other tests open and close descriptors at the same time.
    assert!(count() < before + 40, "{} then {}", before, count());
}
