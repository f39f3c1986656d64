//! From a checked request to a running program: descriptors, environment, user, cgroup, clone.
//!
//! Some of that may block, so it is done by a thread for that. What is most frequent does not.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags, open, openat2},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, getegid, geteuid, getgroups},
    pty::{OpenptFlags, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use sandgate_files::User;
use sandgate_proto::runtime::v1::{StartFailure, start_failure::Reason};
use sandgate_sys::{Begun, Command, Credentials, Keeper, SpawnError, Stage, Stdio, Watched};

use crate::{
    children::{Awaited, Children},
    home::Homes,
    ready::Bench,
    settings::Settings,
    spec::{Env, Program, Spec, Terminal},
    tree::{Descent, ExecGroup, Roots, Tree},
};

/// A program that runs, and all the ends that the runtime holds of it.
pub(crate) struct Launched {
    pub(crate) pid: Pid,
    pub(crate) leader: Leader,
    pub(crate) tree: Tree,
    pub(crate) ends: Ends,
    pub(crate) begun: Instant,
}

/// How the program's end is learned of.
pub(crate) enum Leader {
    /// Our own child.
    Direct(OwnedFd, Awaited),
    /// The same, which was waited for until its end or for a while.
    Watched(Watched, Awaited),
    /// A keeper's child.
    Kept(Keeper, Awaited),
}

/// What a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaits {
    /// The program's start, or that it could not be started.
    Start,
    /// Its end. It need not be told when it begins.
    End,
}

/// What outlives one launch.
pub(crate) struct Launcher {
    pub(crate) settings: Settings,
    pub(crate) roots: Option<Roots>,
    pub(crate) children: Children,
    pub(crate) homes: Homes,
    pub(crate) bench: Bench,
}

/// Our ends of a program's streams.
pub(crate) struct Ends {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) terminal: Option<OwnedFd>,
}

/// One argument may have 128 KiB with its NUL; a longer script is passed as a file.
const MAX_ARGUMENT: usize = 128 * 1024 - 1;
/// Closes descriptor 3 before the script's own first command, on its own first line, so that line numbers stay right.
const SCRIPT_PRELUDE: &[u8] = b"exec 3<&-;";
const SHELL: &CStr = c"/bin/sh";
pub(crate) const OOM_SCORE_ADJ: i32 = 500;
/// Many programs end within this time. Until then nobody who waits for the end alone looks at what they do: on the same
/// processor that would be at their cost. What they write meanwhile waits in the pipe.
const QUIET: Duration = Duration::from_millis(2);
const BUSY_TRIES: usize = 10;
const BUSY_WAIT: Duration = Duration::from_millis(5);
/// The sandbox may have something else at /dev/null, which must not hold us up.
const NOTHING: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
/// Of a name in a message.
const MAX_SHOWN: usize = 256;

// === impl Launcher ===

impl Launcher {
    /// Starts a program. Blocking.
    pub(crate) fn launch(&self, spec: &Spec, env: &[(Vec<u8>, Vec<u8>)]) -> Result<Launched, StartFailure> {
        let group = self
            .roots
            .as_ref()
            .map(Roots::enter)
            .transpose()
            .map_err(|e| resources(&e))?;
        let user = self.user(&spec.user)?;
        let home = self.homes.of(&user);
        let (command, ends) = self.prepare(spec, env, user, &home, group.as_ref())?;
        let begun = Instant::now();
        let (pid, leader, tree) = self.start(&command, group).map_err(|error| failure(&error, &command))?;
        Ok(Launched {
            pid,
            leader,
            tree,
            ends,
            begun,
        })
    }

    /// Starts a program without blocking. `None`: that is not possible, and nothing was done.
    pub(crate) async fn launch_at_once(
        &self,
        spec: &Spec,
        env: &[(Vec<u8>, Vec<u8>)],
        awaits: Awaits,
    ) -> Option<Result<Launched, StartFailure>> {
        // To find a user is to read files; a long script is written to one.
        let long = matches!(&spec.program, Program::Shell(script) if script.len() > MAX_ARGUMENT);
        if long || spec.pty.is_some() || !spec.user.is_empty() {
            return None;
        }
        let user = self.user("").ok()?;
        let home = self.homes.known(&user)?;
        if let Some(launched) = self.launch_ready(spec, env, &user, &home, awaits).await {
            return Some(launched);
        }
        self.dismiss().await;
        let group = self.roots.as_ref()?.enter_idle()?;
        let (command, ends) = match self.prepare(spec, env, user, &home, Some(&group)) {
            Ok(prepared) => prepared,
            Err(failure) => return Some(Err(failure)),
        };
        let begun = Instant::now();
        let (child, awaited) = {
            let starting = self.children.starting();
            let child = command.begin().inspect_err(|_| group.spoil());
            match child.transpose()? {
                Ok(child) => {
                    let awaited = starting.await_child(child.pid);
                    (child, awaited)
                }
                Err(error) => return Some(Err(explained(error, command).await)),
            }
        };
        launched(child, awaited, group, ends, begun, command, awaits).await
    }

    fn prepare(
        &self,
        spec: &Spec,
        env: &[(Vec<u8>, Vec<u8>)],
        user: User,
        home: &str,
        group: Option<&ExecGroup>,
    ) -> Result<(Command, Ends), StartFailure> {
        let env = self.environment(spec, env, home);
        let (stdio, ends) = Ends::open(spec, &user).map_err(|e| resources(&e))?;
        let mut command = self.command(spec, env, Stdio::Given(stdio))?;
        command.user = credentials(user);
        if let Some(group) = group {
            (command.cgroup, command.memory_tasks) = group.entrances();
        }
        Ok((command, ends))
    }

    fn start(&self, command: &Command, group: Option<ExecGroup>) -> Result<(Pid, Leader, Tree), SpawnError> {
        let starting = self.children.starting();
        Ok(match group {
            Some(group) => {
                let child = patiently(|| command.spawn()).inspect_err(|error| {
                    if matches!(error.stage, Stage::Clone | Stage::Cgroup) {
                        group.spoil();
                    }
                })?;
                let awaited = starting.await_child(child.pid);
                (child.pid, Leader::Direct(child.pidfd, awaited), Tree::Group(group))
            }
            None => {
                let keeper = match patiently(|| command.spawn_kept()) {
                    // Killed by its own command before it could tell us: what runs now is nobody's.
                    Err(error) if error.source.kind() == io::ErrorKind::UnexpectedEof => {
                        drop(starting);
                        self.children.kill_strays_now();
                        return Err(error);
                    }
                    spawned => spawned?,
                };
                let awaited = starting.await_child(keeper.pid);
                let descent = Descent::of(keeper.pid);
                (keeper.program, Leader::Kept(keeper, awaited), Tree::Kept(descent))
            }
        })
    }

    fn user(&self, wanted: &str) -> Result<User, StartFailure> {
        let own = || User {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: getgroups()
                .unwrap_or_default()
                .into_iter()
                .map(|gid| gid.as_raw())
                .collect(),
        };
        if wanted.is_empty() {
            return Ok(self.settings.user.clone().unwrap_or_else(own));
        }
        User::find(wanted).map_err(|error| start_failure(Reason::BadUser, error.message))
    }

    pub(crate) fn environment(&self, spec: &Spec, configured: &[(Vec<u8>, Vec<u8>)], home: &str) -> Env {
        let mut env = BTreeMap::new();
        let mut set = |name: &[u8], value: &[u8]| drop(env.insert(name.to_vec(), value.to_vec()));
        if !spec.clear_env {
            set(b"PATH", self.settings.path.as_bytes());
            set(b"HOME", home.as_bytes());
            set(b"LANG", b"C.UTF-8");
            configured.iter().for_each(|(name, value)| set(name, value));
        }
        if let Some(terminal) = &spec.pty {
            set(b"TERM", terminal.term.as_bytes());
        }
        spec.env.iter().for_each(|(name, value)| set(name, value));
        env.into_iter().collect()
    }

    pub(crate) fn command(&self, spec: &Spec, env: Env, stdio: Stdio) -> Result<Command, StartFailure> {
        let (argv, script) = match &spec.program {
            Program::Argv(argv) => (argv.clone(), None),
            Program::Shell(script) => shell(script).map_err(|e| resources(&e))?,
        };
        let path = env
            .iter()
            .find(|(name, _)| name == b"PATH")
            .map_or(self.settings.path.as_bytes(), |(_, path)| path);
        Ok(Command {
            programs: candidates(argv.first().map(CString::as_c_str).unwrap_or(SHELL), path),
            argv,
            env: env
                .into_iter()
                .filter_map(|(name, value)| CString::new([name, value].join(&b'=')).ok())
                .collect(),
            stdio,
            terminal: spec.pty.is_some(),
            cwd: spec.cwd.clone(),
            user: None,
            umask: spec.umask,
            // What the program gets is not what the runtime took for itself.
            limits: self.settings.descriptors.iter().chain(&spec.limits).copied().collect(),
            cgroup: None,
            memory_tasks: None,
            oom_score_adj: Some(OOM_SCORE_ADJ),
            descriptor_3: script,
        })
    }
}

// === impl Ends ===

impl Ends {
    /// The program's ends, and ours.
    fn open(spec: &Spec, user: &User) -> io::Result<([OwnedFd; 3], Self)> {
        if let Some(terminal) = &spec.pty {
            return Self::terminal(terminal, user);
        }
        Self::pipes(spec.stdin, spec.merged)
    }

    pub(crate) fn pipes(stdin: bool, merged: bool) -> io::Result<([OwnedFd; 3], Self)> {
        let (stdin, child_stdin) = if stdin {
            let (read, write) = pipe()?;
            (Some(write), read)
        } else {
            (None, open("/dev/null", NOTHING, Mode::empty())?)
        };
        let (stdout, child_stdout) = pipe()?;
        let (stderr, child_stderr) = if merged {
            (None, child_stdout.try_clone()?)
        } else {
            let (read, write) = pipe()?;
            (Some(read), write)
        };
        for end in [stdin.as_ref(), Some(&stdout), stderr.as_ref()].into_iter().flatten() {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let ends = Self {
            stdin,
            stdout,
            stderr,
            terminal: None,
        };
        Ok(([child_stdin, child_stdout, child_stderr], ends))
    }

    fn terminal(terminal: &Terminal, user: &User) -> io::Result<([OwnedFd; 3], Self)> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&master)?;
        resize(&master, terminal.columns, terminal.rows)?;
        let slave =
            rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        // So that programs can open it by its name. Refused where the runtime is not root, and then not needed.
        let _ = rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(user.uid)), None);
        rustix::io::ioctl_fionbio(&master, true)?;
        let child = [slave.try_clone()?, slave.try_clone()?, slave];
        let (stdin, reader) = (master.try_clone()?, master.try_clone()?);
        let ends = Self {
            stdin: Some(stdin),
            stdout: reader,
            stderr: None,
            terminal: Some(master),
        };
        Ok((child, ends))
    }
}

/// Waits until a child is the program. `None`: it could not be for a reason that may be gone by now, and nothing was done.
pub(crate) async fn launched(
    child: Begun,
    awaited: Awaited,
    group: ExecGroup,
    ends: Ends,
    begun: Instant,
    command: Command,
    awaits: Awaits,
) -> Option<Result<Launched, StartFailure>> {
    let pid = child.pid;
    let leader = match awaits {
        Awaits::Start => child.finished().await.map(|child| Leader::Direct(child.pidfd, awaited)),
        Awaits::End => child.finished_quietly(QUIET).await.map(|child| {
            if !child.is_ended || group.populated() {
                group.set_oom_scores(OOM_SCORE_ADJ);
            }
            Leader::Watched(child, awaited)
        }),
    };
    Some(match leader {
        Ok(leader) => Ok(Launched {
            pid,
            leader,
            tree: Tree::Group(group),
            ends,
            begun,
        }),
        Err(error) if error.source.raw_os_error() == Some(libc::ETXTBSY) => return None,
        Err(error) => {
            // It may have been the program already, and have children.
            if group.populated() {
                let _ = group.kill();
            }
            if matches!(error.stage, Stage::Cgroup | Stage::Parked) {
                group.spoil();
            }
            if error.stage == Stage::Parked {
                return None;
            }
            Err(explained(error, command).await)
        }
    })
}

/// Starts a program that was perhaps written just now: it may be open for writing a moment longer, in a child of ours that
/// has not become its own program yet.
fn patiently<T>(start: impl Fn() -> Result<T, SpawnError>) -> Result<T, SpawnError> {
    for _ in 0..BUSY_TRIES {
        match start() {
            Err(error) if error.source.raw_os_error() == Some(libc::ETXTBSY) => std::thread::sleep(BUSY_WAIT),
            outcome => return outcome,
        }
    }
    start()
}

/// Sets a terminal's size.
pub(crate) fn resize(master: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(master, size)?)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// `sh -c script`, or the same through a file where the script is too long for an argument.
fn shell(script: &[u8]) -> io::Result<(Vec<CString>, Option<OwnedFd>)> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let call = |script: CString| vec![SHELL.to_owned(), c"-c".to_owned(), script];
    if script.len() <= MAX_ARGUMENT {
        return Ok((call(CString::new(script).map_err(invalid)?), None));
    }
    let mut file = File::from(rustix::fs::memfd_create("sandgate-script", MemfdFlags::CLOEXEC)?);
    file.write_all(SCRIPT_PRELUDE)?;
    file.write_all(script)?;
    Ok((call(c". /proc/self/fd/3".to_owned()), Some(file.into())))
}

/// The paths to try for a program, as execvp would.
fn candidates(program: &CStr, path: &[u8]) -> Vec<CString> {
    let name = program.to_bytes();
    if name.contains(&b'/') {
        return vec![program.to_owned()];
    }
    let join = |dir: &[u8]| CString::new([if dir.is_empty() { b"." } else { dir }, name].join(&b'/')).ok();
    path.split(|byte| *byte == b':').filter_map(join).collect()
}

/// Who to become; nobody if the runtime is that user already.
pub(crate) fn credentials(user: User) -> Option<Credentials> {
    let same = geteuid().as_raw() == user.uid && getegid().as_raw() == user.gid;
    (!same).then_some(Credentials {
        uid: user.uid,
        gid: user.gid,
        groups: user.groups,
    })
}

fn start_failure(reason: Reason, message: impl Into<String>) -> StartFailure {
    StartFailure {
        reason: reason.into(),
        message: message.into(),
    }
}

fn resources(error: &io::Error) -> StartFailure {
    start_failure(Reason::NoResources, format!("could not set up the command: {error}"))
}

/// As `failure`, without blocking: it looks at paths of the command's.
async fn explained(error: SpawnError, command: Command) -> StartFailure {
    let explained = tokio::task::spawn_blocking(move || failure(&error, &command)).await;
    explained.unwrap_or_else(|error| resources(&io::Error::other(error)))
}

fn failure(error: &SpawnError, command: &Command) -> StartFailure {
    let os = &error.source;
    let shown = |name: &CStr| name.to_string_lossy().chars().take(MAX_SHOWN).collect::<String>();
    let program = command.argv.first().map(|name| shown(name)).unwrap_or_default();
    let from = Path::new(OsStr::from_bytes(command.cwd.to_bytes()));
    // Our own descriptors lead out of the sandbox; the child had none of them.
    let exists = |path: &CString| {
        let path = from.join(OsStr::from_bytes(path.to_bytes()));
        openat2(CWD, path, OFlags::PATH, Mode::empty(), ResolveFlags::NO_MAGICLINKS).is_ok()
    };
    let there = command.programs.iter().any(exists);
    let cwd = shown(&command.cwd);
    match (error.stage, os.raw_os_error()) {
        (Stage::Exec, Some(libc::ENOENT)) if there => {
            start_failure(Reason::NotFound, format!("{program}: its interpreter was not found"))
        }
        (Stage::Exec, Some(libc::ENOENT | libc::ENOTDIR)) => {
            start_failure(Reason::NotFound, format!("{program}: no such program"))
        }
        (Stage::Exec, Some(libc::ENOEXEC)) => {
            let message = format!("{program}: not a program the kernel runs; does the script lack its #! line?");
            start_failure(Reason::NotExecutable, message)
        }
        (Stage::Exec, Some(libc::E2BIG)) => start_failure(
            Reason::TooLong,
            "arguments and environment are larger than the kernel takes",
        ),
        (Stage::Exec, Some(libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE)) | (Stage::Clone, _) => {
            resources(os)
        }
        (Stage::Exec, _) => start_failure(Reason::NotExecutable, format!("{program}: {os}")),
        (Stage::Cwd, _) => start_failure(Reason::BadCwd, format!("working directory {cwd}: {os}")),
        (Stage::User, _) => start_failure(Reason::BadUser, format!("the runtime may not become that user: {os}")),
        (Stage::Limit, _) => start_failure(Reason::BadLimit, format!("a resource limit may not be set so: {os}")),
        (stage, _) => start_failure(Reason::Unspecified, format!("{stage:?}: {os}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_as_execvp_does() {
        assert_eq!(candidates(c"a/b", b"/bin"), [c"a/b".to_owned()]);
        assert_eq!(
            candidates(c"ls", b"/bin::/x"),
            [c"/bin/ls".to_owned(), c"./ls".into(), c"/x/ls".into()]
        );
    }

    #[test]
    fn a_long_script_goes_by_file() {
        let (argv, file) = shell(&vec![b'#'; MAX_ARGUMENT]).unwrap();
        assert!(file.is_none() && argv.len() == 3);
        let (argv, file) = shell(&vec![b'#'; MAX_ARGUMENT + 1]).unwrap();
        assert!(file.is_some() && argv[2].to_bytes() == b". /proc/self/fd/3");
    }
}
