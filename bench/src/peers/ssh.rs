//! ssh to this machine, with one connection for all commands, and a server that is the benchmark's own.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::{Daemon, free_port, run};

pub(crate) struct Ssh {
    // In the order in which they end.
    _connection: Daemon,
    _server: Daemon,
    dir: TempDir,
}

/// sshd hands a command to the user's shell, after the profile in the user's home. Here that shell is `sh`, and there is
/// no profile: otherwise those would be measured. All of it is seen by this sshd alone.
const SERVE: &str = "mount --bind \"$1/passwd\" /etc/passwd && mount --bind \"$1/shadow\" /etc/shadow && \
                     mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f \"$1/server\"";

// === impl Ssh ===

impl Ssh {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        configure(dir.path(), port);
        let mut server = Daemon::start("unshare", |command| {
            command
                .args(["--mount", "--propagation", "private", "sh", "-c", SERVE, "sh"])
                .arg(dir.path())
        });
        server.until_it_listens(port).await;
        let mut connection = Daemon::start("ssh", |command| {
            command
                .arg("-F")
                .arg(dir.path().join("client"))
                .args(["-M", "-N", "peer"])
        });
        let socket = dir.path().join("connection");
        connection.until(|| socket.exists()).await;
        Self {
            _connection: connection,
            _server: server,
            dir,
        }
    }

    /// The server's side puts `sh -c` in front.
    pub(crate) async fn run(&self) {
        let mut ssh = Command::new("ssh");
        run(ssh.arg("-F").arg(self.dir.path().join("client")).args(["peer", "true"]));
    }
}

fn configure(dir: &Path, port: u16) {
    let at = dir.display();
    for key in ["host", "user"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key));
        run(keygen.stdout(Stdio::null()));
    }
    let passwd = format!("root:x:0:0::{at}:/bin/sh\nsshd:x:65534:65534::/run/sshd:/usr/sbin/nologin\n");
    let shadow = "root:*:1:0:99999:7:::\n".to_owned();
    let server = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\nStrictModes no\n\
         UsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nLogLevel FATAL\n"
    );
    let client = format!(
        "Host peer\nHostName 127.0.0.1\nPort {port}\nUser root\nIdentityFile {at}/user\nIdentitiesOnly yes\n\
         UserKnownHostsFile /dev/null\nStrictHostKeyChecking no\nBatchMode yes\nLogLevel ERROR\nControlPath {at}/connection\n"
    );
    for (name, text) in [
        ("passwd", passwd),
        ("shadow", shadow),
        ("server", server),
        ("client", client),
    ] {
        fs::write(dir.join(name), text).unwrap();
    }
}
