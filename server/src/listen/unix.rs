//! The Unix socket.

use std::{fs, io, os::fd::AsRawFd as _, os::unix::fs::FileTypeExt as _, path::Path};

use rustix::{
    fs::{Mode, OFlags, chmod},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_socket, listen, socket_with},
};
use tokio::net::UnixListener;

const BACKLOG: i32 = 1024;

/// Makes the socket `name` in `dir`, for its owner alone. One that a killed server left is replaced: the lock on the
/// directory says that it is nobody's.
pub(super) fn bind(dir: &Path, name: &str) -> io::Result<UnixListener> {
    let path = dir.join(name);
    match fs::symlink_metadata(&path) {
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(&path)?,
        Ok(_) => return Err(io::Error::other("something that is no socket is in the way: remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // A socket's path has 107 bytes at most; this one is short however long the directory's is.
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    bind_socket(&socket, &SocketAddrUnix::new(&short)?)?;
    // Nobody can connect until it listens.
    chmod(&short, Mode::RUSR | Mode::WUSR)?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_long_path_works_and_only_its_owner_can_open_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("d".repeat(120)).join("e".repeat(120));
        fs::create_dir_all(&dir).unwrap();
        let listener = bind(&dir, "s").unwrap();
        let mode = fs::metadata(dir.join("s")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let handle = rustix::fs::open(&dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let short = format!("/proc/self/fd/{}/s", handle.as_raw_fd());
        let (connected, accepted) = tokio::join!(UnixStream::connect(short), listener.accept());
        connected.unwrap();
        accepted.unwrap();
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        drop(bind(temp.path(), "s").unwrap());
        assert!(temp.path().join("s").exists());
        drop(bind(temp.path(), "s").unwrap());
        fs::write(temp.path().join("file"), "precious").unwrap();
        let error = bind(temp.path(), "file").unwrap_err();
        assert!(error.to_string().contains("in the way"), "{error}");
        assert_eq!(fs::read(temp.path().join("file")).unwrap(), b"precious");
    }
}
