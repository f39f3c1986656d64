//! One connection of a server to the monitor.

use std::{
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use crate::control::{Request, Said, line};

/// A request is a few hundred bytes. Whoever sends more without an end is no server.
const LONGEST: usize = 1 << 20;

/// A connection, with what was heard of its next request.
pub(crate) struct Speaker {
    connection: UnixStream,
    heard: Vec<u8>,
    gone: bool,
}

// === impl Speaker ===

impl Speaker {
    pub(crate) fn new(connection: UnixStream) -> Self {
        Self {
            connection,
            heard: Vec::new(),
            gone: false,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Requests that are whole by now.
    pub(crate) fn hear(&mut self) -> Vec<Request> {
        let mut buffer = [0; 4096];
        loop {
            match self.connection.read(&mut buffer) {
                Ok(0) => self.gone = true,
                Ok(length) if self.heard.len() < LONGEST => {
                    self.heard.extend_from_slice(&buffer[..length]);
                    continue;
                }
                Ok(_) => self.gone = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => self.gone |= error.kind() != io::ErrorKind::WouldBlock,
            }
            break;
        }
        let mut requests = Vec::new();
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let rest = self.heard.split_off(end + 1);
            let line = std::mem::replace(&mut self.heard, rest);
            match serde_json::from_slice(&line) {
                Ok(request) => requests.push(request),
                Err(error) => {
                    eprintln!("sandgate-monitor: a request that can't be understood: {error}");
                    self.gone = true;
                }
            }
        }
        requests
    }

    /// Says it, or gives the connection up: a server that does not read is no reason to wait.
    pub(crate) fn say(&mut self, said: &Said) {
        let said = line(said).map_err(io::Error::from);
        if said.and_then(|line| self.connection.write_all(&line)).is_err() {
            self.gone = true;
        }
    }
}

impl AsFd for Speaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
