//! The thread that starts monitors.
//!
//! A program that is started gets a copy of its starter's table of descriptors, and closes one after the other again. A server
//! with a thousand sandboxes holds thousands, for which each monitor took a millisecond or two longer. This thread has a table
//! of its own with next to nothing in it; what a monitor is to have is sent to it.

use std::{
    ffi::{OsStr, OsString},
    io::{self, IoSlice, IoSliceMut, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixStream as StdStream},
    },
    process::{Command, Stdio},
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
    process::Pid,
};
use tokio::{io::AsyncReadExt as _, net::UnixStream};

/// The way to the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Spawner(OwnedFd);

/// What is sent with an order.
struct Sent {
    stdin: OwnedFd,
    stderr: OwnedFd,
    /// Takes the pid, or an error's number, negative.
    answer: OwnedFd,
}

/// A program that is being started.
#[derive(Debug)]
pub(crate) struct Starting(StdStream);

/// Room for a program's path and its arguments.
const ROOM: usize = 16 << 10;
/// Descriptors that are sent at once.
const SENT: usize = 3;

// === impl Spawner ===

impl Spawner {
    pub(crate) fn new() -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        sandgate_sys::with_own_descriptors("spawner", theirs, |orders| {
            if let Err(error) = follow(&orders) {
                tracing::error!(%error, "no monitor can be started any more; the server has to be started again");
            }
        })?;
        Ok(Self(ours))
    }

    /// Has a program started, with nothing in its environment and these two descriptors.
    pub(crate) fn start(&self, words: &[OsString], stdin: OwnedFd, stderr: OwnedFd) -> io::Result<Starting> {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
        let words = words.join(&0);
        if words.len() > ROOM {
            return Err(io::ErrorKind::ArgumentListTooLong.into());
        }
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let sent = [stdin.as_fd(), stderr.as_fd(), theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&sent));
        retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(&words)], &mut control, SendFlags::NOSIGNAL))?;
        Ok(Starting(ours))
    }
}

// === impl Starting ===

impl Starting {
    /// Waits until the program has begun. It is our child, and is to be waited for.
    pub(crate) async fn started(self) -> io::Result<Pid> {
        let number = UnixStream::from_std(self.0)?.read_i32().await?;
        Pid::from_raw(number.max(0)).ok_or_else(|| io::Error::from_raw_os_error(-number))
    }
}

/// Does what is ordered until nobody is left to order anything.
fn follow(orders: &OwnedFd) -> io::Result<()> {
    let mut words = vec![0; ROOM];
    while let Some((length, sent)) = receive(orders, &mut words)? {
        let Some(Sent { stdin, stderr, answer }) = sent else {
            continue;
        };
        let started = start(&words[..length], stdin, stderr);
        let number = started.unwrap_or_else(|error| -error.raw_os_error().unwrap_or_else(|| Errno::IO.raw_os_error()));
        // Whoever asked may be gone.
        let _ = StdStream::from(answer).write_all(&number.to_be_bytes());
    }
    Ok(())
}

/// The next order, if there will be one. Without descriptors where the kernel had no room for them.
fn receive(orders: &OwnedFd, words: &mut [u8]) -> io::Result<Option<(usize, Option<Sent>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = retry_on_intr(|| {
        let words = &mut [IoSliceMut::new(words)];
        recvmsg(orders, words, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if got.bytes == 0 {
        return Ok(None);
    }
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let mut next = || descriptors.next();
    let sent = match (next(), next(), next()) {
        (Some(stdin), Some(stderr), Some(answer)) => Some(Sent { stdin, stderr, answer }),
        _ => None,
    };
    Ok(Some((got.bytes, sent)))
}

fn start(words: &[u8], stdin: OwnedFd, stderr: OwnedFd) -> io::Result<i32> {
    let mut words = words.split(|byte| *byte == 0).map(OsStr::from_bytes);
    // Nothing here may make std fork: see `std::os::unix::process::CommandExt`.
    let mut command = Command::new(words.next().unwrap_or_default());
    command
        .args(words)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::null())
        .stderr(Stdio::from(stderr));
    let child = command.spawn()?;
    i32::try_from(child.id()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd as _};

    use rustix::{
        io::{FdFlags, fcntl_setfd},
        process::{WaitOptions, waitpid},
    };

    use super::*;

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[tokio::test]
    async fn each_program_has_its_own_connection_and_no_other_descriptor() {
        // Left open for whoever is started from the process's own table.
        let held = || {
            let held = null();
            fcntl_setfd(&held, FdFlags::empty()).unwrap();
            held
        };
        let before = held();
        let spawner = Spawner::new().unwrap();
        let since = held();
        let script = format!(
            "read word; for leak in {} {}; do test -e /proc/$$/fd/$leak && word=leaked; done; echo $word >&0",
            before.as_raw_fd(),
            since.as_raw_fd()
        );
        let mut started = Vec::new();
        for number in 0..20 {
            let (ours, theirs) = StdStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let starting = spawner.start(&words(&["/bin/sh", "-c", &script]), theirs.into(), null());
            (&ours).write_all(format!("word {number}\n").as_bytes()).unwrap();
            started.push((number, UnixStream::from_std(ours).unwrap(), starting.unwrap()));
        }
        for (number, mut connection, starting) in started {
            let pid = starting.started().await.unwrap();
            let mut said = String::new();
            connection.read_to_string(&mut said).await.unwrap();
            assert_eq!(said, format!("word {number}\n"));
            waitpid(Some(pid), WaitOptions::empty()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_an_error_and_the_next_one_starts() {
        let spawner = Spawner::new().unwrap();
        let start = async |program: &str| {
            let starting = spawner.start(&words(&[program]), null(), null())?;
            starting.started().await
        };
        let error = start("/no/such/program").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = start(&"x".repeat(ROOM + 1)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ArgumentListTooLong);
        let pid = start("/bin/true").await.unwrap();
        waitpid(Some(pid), WaitOptions::empty()).unwrap();
    }
}
