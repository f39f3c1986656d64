//! The prepared root of the `host` kind: mount points for the machine's own directories, and the few files that programs
//! want to find.
//!
//! It is written once and named by its content. A machine that has changed gets another one; sandboxes that exist keep
//! theirs.

mod etc;
mod host_paths;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};
use sandgate_monitor::{Network, Root, layout, remove_tree};
use sha2::{Digest as _, Sha256};

pub(crate) use self::host_paths::HostPathError;

/// Directories at the top that hold programs. Links on some machines, directories on others.
const SYSTEM: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What a program expects to be there, and may write to.
const DIRECTORIES: [(&str, u32); 20] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("home/sandbox", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];
/// Directories of the user that commands run as, unless the template says otherwise. They are made his here: a change of
/// owner in the sandbox would copy them.
const USERS: [&str; 2] = ["home/sandbox", "workspace"];
const LINKS: [(&str, &str); 3] = [
    ("etc/mtab", "/proc/self/mounts"),
    ("var/lock", "/run/lock"),
    ("var/run", "/run"),
];

/// A root that is to be written.
#[derive(Debug, Default)]
pub(crate) struct Skeleton {
    entries: BTreeMap<PathBuf, Entry>,
    shown: Vec<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32, owner: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: PathBuf },
}

// === impl Skeleton ===

impl Skeleton {
    /// Looks at the machine below `host`, which is `/` but in tests.
    ///
    /// # Errors
    /// When a path of the configuration can't be shown.
    pub(crate) fn plan(host: &Path, network: Network, paths: &[PathBuf], state: &Path) -> Result<Self, HostPathError> {
        let mut skeleton = Self::default();
        for (path, mode) in DIRECTORIES {
            let owner = if USERS.contains(&path) { layout::USER } else { 0 };
            skeleton.put(path, Entry::Directory { mode, owner });
        }
        for (path, target) in LINKS {
            let target = target.into();
            skeleton.put(path, Entry::Link { target });
        }
        skeleton.shown.push("/usr".into());
        skeleton.system(host);
        etc::fill(&mut skeleton, host, network);
        for path in host_paths::check(host, paths, state)? {
            skeleton.show(&path);
        }
        Ok(skeleton)
    }

    /// Writes it below `roots`, unless it is there.
    ///
    /// # Errors
    /// When the disk refuses it; nothing is left then.
    pub(crate) fn install(self, roots: &Path) -> io::Result<Root> {
        let skeleton = roots.join(self.hash());
        if !skeleton.is_dir() {
            let aside = roots.join(format!(".new-{}", std::process::id()));
            remove_tree(&aside)?;
            let written = self.write(&aside).and_then(|()| fs::rename(&aside, &skeleton));
            if let Err(error) = written {
                let _ = remove_tree(&aside);
                return Err(error);
            }
        }
        Ok(Root::Host {
            skeleton,
            shown: self.shown,
        })
    }

    fn put(&mut self, path: impl Into<PathBuf>, entry: Entry) {
        self.entries.insert(path.into(), entry);
    }

    fn put_text(&mut self, path: &str, text: impl Into<Vec<u8>>) {
        let content = text.into();
        self.put(path, Entry::File { mode: 0o644, content });
    }

    /// The directories beside `/usr`, as they are on the machine.
    fn system(&mut self, host: &Path) {
        for name in SYSTEM {
            let path = host.join(name);
            if let Ok(target) = fs::read_link(&path) {
                self.put(name, Entry::Link { target });
            } else if path.is_dir() {
                self.show(&Path::new("/").join(name));
            }
        }
    }

    /// Shows a directory of the machine, unless one above it is shown.
    fn show(&mut self, path: &Path) {
        if self.shown.iter().any(|shown| path.starts_with(shown)) {
            return;
        }
        let inner = path.strip_prefix("/").unwrap_or(path);
        let mut above: Vec<_> = inner.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        above.reverse();
        // Behind a link into a directory that is shown.
        if above
            .iter()
            .any(|path| matches!(self.entries.get(*path), Some(Entry::Link { .. })))
        {
            return;
        }
        for directory in above {
            let entry = self.entries.entry(directory.to_owned());
            // The sandbox's user has to pass through, also where it may not look around.
            let above = Entry::Directory { mode: 0o755, owner: 0 };
            if let Entry::Directory { mode, .. } = entry.or_insert(above) {
                *mode |= 0o111;
            }
        }
        self.shown.push(path.to_owned());
    }

    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update(bytes.len().to_le_bytes());
            hash.update(bytes);
        };
        for (path, entry) in &self.entries {
            add(path.as_os_str().as_encoded_bytes());
            match entry {
                Entry::Directory { mode, owner } => add(format!("d{mode:o} {owner}").as_bytes()),
                Entry::File { mode, content } => {
                    add(format!("f{mode:o}").as_bytes());
                    add(content);
                }
                Entry::Link { target } => {
                    add(b"l");
                    add(target.as_os_str().as_encoded_bytes());
                }
            }
        }
        hash.finalize()
            .iter()
            .take(12)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    fn write(&self, root: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o755).create(root)?;
        fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
        // Parents come before what is in them: paths are sorted.
        for (path, entry) in &self.entries {
            entry.write(&root.join(path))?;
        }
        let root = rustix::fs::open(
            root,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // It is named by what is in it: a crash of the machine must not leave the name and lose the rest.
        Ok(rustix::fs::syncfs(root)?)
    }
}

// === impl Entry ===

impl Entry {
    fn write(&self, path: &Path) -> io::Result<()> {
        let mode = match self {
            Self::Link { target } => return std::os::unix::fs::symlink(target, path),
            Self::Directory { mode, owner } => {
                fs::create_dir(path)?;
                // An ordinary user's sandboxes have no other user than root.
                if *owner != 0 && rustix::process::geteuid().is_root() {
                    std::os::unix::fs::chown(path, Some(*owner), Some(*owner))?;
                }
                *mode
            }
            Self::File { mode, content } => {
                let mut options = fs::File::options();
                let mut file = options.write(true).create_new(true).mode(*mode).open(path)?;
                io::Write::write_all(&mut file, content)?;
                *mode
            }
        };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of our own making.
    fn machine() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        let at = |path: &str| host.path().join(path);
        for dir in [
            "usr/bin",
            "lib64",
            "etc/ssl/certs",
            "etc/ssl/private",
            "etc/alternatives",
            "opt/python",
            "state",
        ] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        std::os::unix::fs::symlink("usr/bin", at("bin")).unwrap();
        std::os::unix::fs::symlink("/usr/bin/vim", at("etc/alternatives/vi")).unwrap();
        for (file, mode) in [
            ("etc/ssl/certs/ca.crt", 0o644),
            ("etc/ssl/certs/closed.crt", 0o600),
            ("etc/ssl/private/host.pem", 0o644),
            ("etc/ssl/certs/host.key", 0o644),
            ("etc/shadow", 0o644),
            ("etc/resolv.conf", 0o644),
            ("etc/gitconfig", 0o644),
            ("etc/services", 0o755),
        ] {
            fs::write(at(file), file).unwrap();
            fs::set_permissions(at(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::write(at("etc/ssl/certs/bundle.pem"), "-----BEGIN RSA PRIVATE KEY-----\nx").unwrap();
        host
    }

    fn plan(host: &Path, network: Network, paths: &[&str]) -> Result<Skeleton, HostPathError> {
        let paths: Vec<_> = paths.iter().map(PathBuf::from).collect();
        Skeleton::plan(host, network, &paths, Path::new("/state"))
    }

    #[test]
    fn programs_find_what_they_need_and_secrets_stay_outside() {
        let host = machine();
        let roots = tempfile::tempdir().unwrap();
        let root = plan(host.path(), Network::None, &["/opt/python"]).unwrap();
        let Root::Host { skeleton, shown } = root.install(roots.path()).unwrap() else {
            panic!("another kind of root");
        };
        assert_eq!(shown, ["/usr", "/lib64", "/opt/python"].map(PathBuf::from));
        let at = |path: &str| skeleton.join(path);
        assert_eq!(fs::read_link(at("bin")).unwrap(), Path::new("usr/bin"));
        assert_eq!(
            fs::read_link(at("etc/alternatives/vi")).unwrap(),
            Path::new("/usr/bin/vim")
        );
        for there in [
            "lib64",
            "usr",
            "opt/python",
            "workspace",
            "home/sandbox",
            "etc/ssl/certs/ca.crt",
            "etc/services",
        ] {
            assert!(at(there).exists(), "{there}");
        }
        for absent in [
            "etc/shadow",
            "etc/resolv.conf",
            "etc/gitconfig",
            "etc/ssl/private",
            "etc/ssl/certs/closed.crt",
            "etc/ssl/certs/host.key",
            "etc/ssl/certs/bundle.pem",
            "state",
        ] {
            assert!(!at(absent).exists(), "{absent}");
        }
        let mode = |path: &str| fs::metadata(at(path)).unwrap().permissions().mode() & 0o7777;
        let modes = [
            mode("tmp"),
            mode("var/tmp"),
            mode("root"),
            mode("etc/services"),
            mode(""),
        ];
        assert_eq!(modes, [0o1777, 0o1777, 0o700, 0o755, 0o755]);
        let passwd = fs::read_to_string(at("etc/passwd")).unwrap();
        assert!(passwd.contains("sandbox:x:1000:1000:"), "{passwd}");
    }

    #[test]
    fn the_name_is_the_content() {
        let host = machine();
        let roots = tempfile::tempdir().unwrap();
        let name = |network| match plan(host.path(), network, &[]).unwrap().install(roots.path()) {
            Ok(Root::Host { skeleton, .. }) => skeleton,
            other => panic!("{other:?}"),
        };
        let first = name(Network::None);
        assert_eq!(first, name(Network::None));
        let with_network = name(Network::Host);
        assert_ne!(first, with_network);
        assert!(with_network.join("etc/resolv.conf").exists());
        fs::write(host.path().join("etc/services"), "changed").unwrap();
        assert_ne!(first, name(Network::None));
        assert_eq!(fs::read_dir(roots.path()).unwrap().count(), 3);
    }

    #[test]
    fn this_machine_can_be_shown() {
        let roots = tempfile::tempdir().unwrap();
        let root = Skeleton::plan(Path::new("/"), Network::Host, &[], Path::new("/nowhere")).unwrap();
        let Root::Host { skeleton, .. } = root.install(roots.path()).unwrap() else {
            panic!("another kind of root");
        };
        assert!(!skeleton.join("etc/shadow").exists());
        assert!(skeleton.join("etc/passwd").exists());
    }
}
