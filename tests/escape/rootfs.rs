//! A root of one's own: root inside writes where it likes and gives files to whom it likes, and what it was made from stays
//! as it is.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command as Process,
};

use sandgate::Command;
use sandgate_tests::server::{Server, ServerOptions};

use super::{in_time, lacking, make, said};

const PROGRAMS: [&str; 9] = [
    "/bin/sh",
    "/bin/cat",
    "/bin/chown",
    "/bin/ls",
    "/bin/mkdir",
    "/bin/rm",
    "/bin/mv",
    "/usr/bin/id",
    "/usr/bin/stat",
];

/// A few programs of the host with their libraries.
fn small_root(root: &Path) {
    for dir in ["bin", "dev", "etc", "proc", "sys", "tmp", "usr/bin", "var/lib"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234::/:/bin/sh\n",
    )
    .unwrap();
    fs::write(root.join("etc/kept"), "as it was").unwrap();
    symlink("kept", root.join("etc/link")).unwrap();
    for program in PROGRAMS {
        copy(program, root);
        let libraries = Process::new("ldd").arg(program).output().unwrap();
        let libraries = String::from_utf8(libraries.stdout).unwrap();
        let paths = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        paths.for_each(|path| copy(path, root));
    }
}

fn copy(path: &str, root: &Path) {
    let to = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(fs::canonicalize(path).unwrap(), &to).unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Mode, owner, group, size, time of the last change, and content.
type Facts = (u32, u32, u32, u64, i64, Vec<u8>);

fn picture(root: &Path) -> BTreeMap<PathBuf, Facts> {
    let mut seen = BTreeMap::new();
    let mut look = vec![root.to_owned()];
    while let Some(path) = look.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let content = if found.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let facts = (
            found.mode(),
            found.uid(),
            found.gid(),
            found.len(),
            found.mtime_nsec(),
            content,
        );
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            look.push(entry.path());
        }
        seen.insert(path, facts);
    }
    seen
}

#[tokio::test]
async fn root_writes_everywhere_and_the_template_stays() {
    in_time(async {
        let root = tempfile::Builder::new().prefix("sandgate-").tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        small_root(root.path());
        let before = picture(root.path());
        let config = format!("[template.own]\nroot = \"rootfs\"\nrootfs = {:?}\n", root.path());
        let server = Server::start_with(ServerOptions {
            config,
            ..ServerOptions::default()
        })
        .await;
        let client = server.client().await;
        let (one, two) = (make(&client, "own", "one").await, make(&client, "own", "two").await);
        let script = "set -e
            id -u
            echo changed > /etc/kept; echo new > /etc/new; echo lib > /var/lib/x; echo top > /top
            mkdir /opt; echo deep > /opt/deep; rm /etc/link; mv /etc/passwd /etc/passwd.old; mv /etc/passwd.old /etc/passwd
            echo x >> /bin/cat.new; chown 1234:1234 /etc/new; chown 65533 /opt; chown -h 7:8 /bin/cat
            stat -c '%u:%g' /etc/new /opt /bin/cat
            cat /etc/kept";
        assert_eq!(said(&one, Command::shell(script)).await, "0\n1234:1234\n65533:0\n7:8\nchanged\n");
        // The uid of the host behind one of theirs is in the sandbox's own range, and no other sandbox's.
        let uid = |name: &str| fs::metadata(server.sandbox_dir(name).join("disk/upper")).unwrap().uid();
        let theirs = fs::metadata(server.sandbox_dir("one").join("disk/upper/etc/new")).unwrap().uid();
        assert_eq!(theirs, uid("one") + 1234);
        assert!(uid("one") >= 1 << 16 && uid("two").abs_diff(uid("one")) >= 1 << 16);
        assert_eq!(said(&two, Command::shell("cat /etc/link")).await, "as it was");
        assert_eq!(lacking(&one.get().await.unwrap(), "uid.range"), None);
        one.suspend(None).await.unwrap();
        one.resume().await.unwrap();
        assert_eq!(said(&one, Command::shell("cat /etc/kept /opt/deep; id -u")).await, "changed\ndeep\n0\n");
        assert_eq!(said(&one, Command::new(["/usr/bin/id", "-u"]).user("app")).await, "1234\n");
        for sandbox in [one, two] {
            sandbox.delete().await.unwrap();
        }
        server.until_nothing_is_left().await;
        let after = picture(root.path());
        for (path, facts) in &before {
            assert!(after.get(path) == Some(facts), "{} has changed", path.display());
        }
        assert_eq!(after.len(), before.len());
    })
    .await;
}

#[tokio::test]
async fn what_is_shown_of_the_host_stays_for_root_too() {
    in_time(async {
        let server = super::server(None).await;
        let client = server.client().await;
        let sandbox = make(&client, "root", "changer").await;
        let roots = server.state_dir().join("roots");
        let before = picture(&roots);
        let script = "set -e
            echo changed >> /etc/passwd; rm -rf /etc/ssl /srv /opt; echo x > /new; chmod 700 /etc /tmp
            rm /etc/hosts; mkdir /etc/hosts; chown 5:5 /var";
        said(&sandbox, Command::shell(script)).await;
        assert!(picture(&roots) == before, "the skeleton was changed");
        let other = make(&client, "root", "other").await;
        assert!(
            !said(&other, Command::shell("cat /etc/passwd"))
                .await
                .contains("changed")
        );
        for sandbox in [sandbox, other] {
            sandbox.delete().await.unwrap();
        }
        server.until_nothing_is_left().await;
    })
    .await;
}
