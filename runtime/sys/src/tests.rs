use std::{
    ffi::CString,
    fs::{self, File},
    io::Read as _,
    os::fd::{AsFd as _, OwnedFd},
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
        stdio: [null, write.try_clone().unwrap(), write],
        terminal: false,
        cwd: c"/".into(),
        user: None,
        umask: 0o27,
        limits: vec![Limit::named("core", 0, 0).unwrap()],
        cgroup: None,
        memory_tasks: None,
        hide_clone3: false,
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
