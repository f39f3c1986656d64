//! Things of the host that nobody inside may find.

use std::{
    fs,
    io::Write as _,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::PermissionsExt as _,
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
};

use sandgate_tests::{new_id, server::Server};
use tempfile::NamedTempFile;

/// Places where a host has what a sandbox has no business with.
const PLACES: [&str; 6] = ["/root", "/home", "/var/tmp", "/run", "/tmp", "/srv"];
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// Files, ports and sockets, as long as it lives.
pub(crate) struct Host {
    pub(crate) secret: String,
    pub(crate) files: Vec<NamedTempFile>,
    tcp: TcpListener,
    abstract_name: String,
    _abstract: UnixListener,
    unix: UnixListener,
    dir: tempfile::TempDir,
}

/// What an attempt is told of the host.
pub(crate) struct Facts<'a> {
    pub(crate) server: &'a Server,
    pub(crate) own: &'a str,
    pub(crate) other: &'a str,
    /// Occurs in files that are the sandbox's own.
    pub(crate) inside: &'a str,
    pub(crate) control: bool,
}

// === impl Host ===

impl Host {
    pub(crate) fn new() -> Self {
        let secret = new_id("secret");
        let name = new_id("canary");
        let files = PLACES.iter().filter(|place| Path::new(place).is_dir()).map(|place| {
            let mut file = tempfile::Builder::new().prefix(&name).tempfile_in(place).unwrap();
            file.write_all(secret.as_bytes()).unwrap();
            // Only where it lies keeps it from others.
            fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).unwrap();
            file
        });
        let files = files.collect();
        let abstract_name = new_id("abstract");
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let dir = tempfile::Builder::new().prefix("sandgate-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let unix = UnixListener::bind(dir.path().join("open")).unwrap();
        fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        Self {
            secret,
            files,
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            _abstract: UnixListener::bind_addr(&address).unwrap(),
            abstract_name,
            unix,
            dir,
        }
    }

    /// A socket in a directory that is open to all.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("open")
    }

    /// Nobody has come in.
    pub(crate) fn assert_alone(&self) {
        self.tcp.set_nonblocking(true).unwrap();
        self.unix.set_nonblocking(true).unwrap();
        assert!(self.tcp.accept().is_err(), "somebody came over TCP");
        assert!(self.unix.accept().is_err(), "somebody came over a Unix socket");
        for file in &self.files {
            assert_eq!(
                fs::read_to_string(file.path()).unwrap(),
                self.secret,
                "{:?}",
                file.path()
            );
        }
    }

    /// As JSON. None of the strings needs more than what Debug does.
    pub(crate) fn facts(&self, facts: &Facts<'_>) -> String {
        let server = facts.server;
        let canaries: Vec<_> = self.files.iter().map(NamedTempFile::path).collect();
        let namespaces: Vec<_> = NAMESPACES
            .iter()
            .map(|kind| {
                format!(
                    "{kind:?}: {:?}",
                    fs::read_link(format!("/proc/self/ns/{kind}")).unwrap()
                )
            })
            .collect();
        let other_file = server.sandbox_dir(facts.other).join("disk/upper/workspace/secret");
        let host_name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let fields = [
            format!("\"control\": {}", facts.control),
            format!("\"canary\": {:?}", self.secret),
            format!("\"canaries\": {canaries:?}"),
            format!("\"inside\": {:?}", facts.inside),
            format!("\"state_dir\": {:?}", server.state_dir()),
            format!("\"own_dir\": {:?}", server.sandbox_dir(facts.own)),
            format!("\"other_file\": {other_file:?}"),
            format!("\"other_pid\": {}", server.sandbox_pid(facts.other)),
            format!("\"server_pid\": {}", server.pid()),
            format!("\"server_port\": {}", listening(server.pid())),
            format!("\"namespaces\": {{{}}}", namespaces.join(", ")),
            format!("\"host_name\": {:?}", host_name.trim()),
            format!("\"host_port\": {}", self.tcp.local_addr().unwrap().port()),
            format!("\"host_socket\": {:?}", self.socket()),
            format!("\"abstract\": {:?}", self.abstract_name),
            "\"cgroup_parent\": \"sandgate-test-\"".to_owned(),
        ];
        format!("{{{}}}", fields.join(", "))
    }
}

/// The TCP port that a process listens on.
fn listening(pid: u32) -> u16 {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let sockets: Vec<_> = descriptors
        .filter_map(|each| fs::read_link(each.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens = fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]);
        let (_, port) = fields[1].split_once(':')?;
        listens.then(|| u16::from_str_radix(port, 16).unwrap())
    });
    port.expect("the server listens on TCP")
}
