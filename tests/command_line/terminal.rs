//! A terminal of the test's own, and a command on it.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::Stdio,
    sync::{Arc, Mutex},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize},
};
use tokio::process::{Child, Command};

use super::stage::{Stage, in_time, until};

/// A terminal: what is typed goes to the command, what it prints is kept.
pub(crate) struct Terminal {
    master: File,
    /// The command's side, held open so that it outlives the command.
    slave: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
}

// === impl Terminal ===

impl Terminal {
    pub(crate) fn new(columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
        let master = File::from(master);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, kept) = (master.try_clone().unwrap(), Arc::clone(&seen));
        // Ends when the terminal does: without a command's side, reading it fails.
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut chunk) {
                kept.lock().unwrap().extend_from_slice(&chunk[..read]);
            }
        });
        let terminal = Self { master, slave, seen };
        terminal.resize(columns, rows);
        terminal
    }

    /// Starts `sandgate` with this as its controlling terminal.
    pub(crate) fn begin(&self, stage: &Stage, args: &[&str], vars: &[(&str, &str)]) -> Child {
        let sandgate = stage.server.cli(args);
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(sandgate.get_program())
            .args(sandgate.get_args())
            .env_clear()
            .envs(sandgate.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("TERM", "xterm")
            .envs(vars.iter().copied())
            .current_dir(stage.path(""))
            .stdin(self.side())
            .stdout(self.side())
            .stderr(self.side())
            .kill_on_drop(true);
        command.spawn().unwrap()
    }

    /// The same to its end: its code, and all that the terminal showed.
    pub(crate) async fn run(&self, stage: &Stage, args: &[&str], vars: &[(&str, &str)]) -> (Option<i32>, String) {
        let child = self.begin(stage, args, vars);
        let code = exit_code(child).await;
        // A last word, so that all before it was read.
        File::from(self.slave.try_clone().unwrap()).write_all(b"<end>").unwrap();
        self.until("<end>").await;
        (code, self.text().replace("<end>", ""))
    }

    fn side(&self) -> Stdio {
        self.slave.try_clone().unwrap().into()
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_col: columns,
            ws_row: rows,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, size).unwrap();
    }

    pub(crate) fn type_in(&self, keys: &[u8]) {
        (&self.master).write_all(keys).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until it shows this.
    pub(crate) async fn until(&self, text: &str) {
        let begun = std::time::Instant::now();
        while !self.text().contains(text) {
            assert!(
                begun.elapsed() < super::stage::PATIENCE,
                "{text:?} does not come: {}",
                self.text()
            );
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// How keys are treated.
    pub(crate) fn modes(&self) -> String {
        let modes: Termios = tcgetattr(&self.slave).unwrap();
        format!("{modes:?}")
    }

    /// Waits until every key is passed on as it is.
    pub(crate) async fn until_raw(&self) {
        until("the terminal is not raw", async || {
            let modes = tcgetattr(&self.slave).unwrap().local_modes;
            !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
        })
        .await;
    }
}

/// Waits for a command's end.
pub(crate) async fn exit_code(mut child: Child) -> Option<i32> {
    in_time(child.wait()).await.unwrap().code()
}
