//! Tells systemd how far the server is, if systemd asked (`Type=notify`).

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

/// Ready to serve.
pub const READY: &str = "READY=1";
/// About to end.
pub const STOPPING: &str = "STOPPING=1";

/// Sends `state` to the socket that `NOTIFY_SOCKET` names; does nothing without one.
///
/// # Errors
/// When there is one and it takes nothing.
pub fn notify(socket: Option<&str>, state: &str) -> io::Result<()> {
    let Some(name) = socket.filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let addr = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &addr)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_arrives_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let abstract_name = format!("sandgate-notify-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        for (socket, name) in [
            (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
            (UnixDatagram::bind_addr(&addr).unwrap(), format!("@{abstract_name}")),
        ] {
            notify(Some(&name), READY).unwrap();
            let mut word = [0; 32];
            let len = socket.recv(&mut word).unwrap();
            assert_eq!(&word[..len], READY.as_bytes());
        }
        notify(None, READY).unwrap();
        assert!(notify(Some("/no/such/socket"), READY).is_err());
    }
}
