//! `/etc`, reduced to what programs need. What may hold a secret of the machine's owner stays outside, also where its
//! mode lets everybody read it: proxies, registries and tokens are configured in such files.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use sandgate_monitor::Network;

use super::{Entry, Skeleton};

/// Copied from the machine, if it is there: a file, a link, or all of a directory.
const COPIED: [&str; 41] = [
    "alternatives",
    "bash.bashrc",
    "bindresvport.blacklist",
    "debian_version",
    "ethertypes",
    "fedora-release",
    "fonts",
    "gai.conf",
    "glvnd",
    "host.conf",
    "inputrc",
    "issue",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "mailcap",
    "mime.types",
    "networks",
    "os-release",
    "perl",
    "pki",
    "profile",
    "protocols",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "skel",
    "ssl",
    "system-release",
    "terminfo",
    "timezone",
    "vim",
    "xattr.conf",
];
/// The same, by how the name begins.
const COPIED_PREFIXES: [&str; 5] = ["ca-certificates", "java-", "ld-musl-", "ImageMagick-", "python3"];
/// Names that are left out wherever they are.
const LEFT_OUT: [&str; 1] = ["private"];
const KEY_ENDINGS: [&str; 4] = ["key", "p12", "pfx", "password"];
const KEY_MARK: &[u8] = b"PRIVATE KEY-----";
const LARGEST: u64 = 16 << 20;
const DEEPEST: usize = 12;

const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const NSSWITCH: &str = "\
passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
";
const GROUP: &str = "root:x:0:\ntty:x:5:\nsandbox:x:1000:\nnogroup:x:65534:\n";

/// Plans `/etc`.
pub(super) fn fill(skeleton: &mut Skeleton, host: &Path, network: Network) {
    let etc = host.join("etc");
    let mut names: Vec<_> = fs::read_dir(&etc)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        if COPIED.contains(&name.as_str()) || COPIED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            copy(skeleton, &etc.join(&name), &Path::new("etc").join(&name), 0);
        }
    }
    skeleton.put_text("etc/passwd", passwd(host));
    skeleton.put_text("etc/group", GROUP);
    skeleton.put_text("etc/hosts", HOSTS);
    skeleton.put_text("etc/nsswitch.conf", NSSWITCH);
    if network == Network::Host {
        // Often a link into /run, which is not there inside.
        if let Ok(text) = fs::read(etc.join("resolv.conf")) {
            skeleton.put_text("etc/resolv.conf", text);
        }
    }
}

fn passwd(host: &Path) -> String {
    let bash = host.join("usr/bin/bash").exists() || host.join("bin/bash").exists();
    let shell = if bash { "/bin/bash" } else { "/bin/sh" };
    format!(
        "root:x:0:0:root:/root:{shell}\n\
         sandbox:x:1000:1000:sandbox:/home/sandbox:{shell}\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
}

/// Copies what everybody may read.
fn copy(skeleton: &mut Skeleton, from: &Path, to: &Path, depth: usize) {
    let Ok(about) = fs::symlink_metadata(from) else {
        return;
    };
    let mode = about.permissions().mode();
    let open_to_all = mode & 0o004 != 0;
    if about.is_symlink() {
        if let Ok(target) = fs::read_link(from) {
            skeleton.put(to, Entry::Link { target });
        }
    } else if about.is_dir() {
        let left_out = to
            .file_name()
            .is_some_and(|name| LEFT_OUT.iter().any(|left_out| name == *left_out));
        if !open_to_all || mode & 0o001 == 0 || left_out || depth > DEEPEST {
            return;
        }
        skeleton.put(to, Entry::Directory { mode: 0o755, owner: 0 });
        for entry in fs::read_dir(from).into_iter().flatten().flatten() {
            copy(skeleton, &entry.path(), &to.join(entry.file_name()), depth + 1);
        }
    } else if about.is_file() && open_to_all && about.size() <= LARGEST && !is_key(to) {
        match fs::read(from) {
            Ok(content) if !holds_key(&content) => {
                let mode = 0o644 | (mode & 0o111);
                skeleton.put(to, Entry::File { mode, content });
            }
            _ => {}
        }
    }
}

fn is_key(path: &Path) -> bool {
    path.extension()
        .is_some_and(|ending| KEY_ENDINGS.iter().any(|key| ending == *key))
}

fn holds_key(content: &[u8]) -> bool {
    memchr::memmem::find(content, KEY_MARK).is_some()
}
