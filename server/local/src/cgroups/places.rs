//! What /proc says of our own place in each cgroup tree.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::SERVER;

/// Controllers of v1 that are of use.
const USED: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];

/// Our own place in each tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) v1: BTreeMap<String, Place>,
    pub(super) unified: Option<Place>,
}

/// Our own place in one tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the tree is mounted.
    mount: PathBuf,
    /// The directory of our own group, or of the one above it where we stepped aside before.
    pub(super) own: PathBuf,
}

struct Mount {
    root: String,
    point: PathBuf,
    kind: Kind,
}

enum Kind {
    V1(Vec<String>),
    V2,
}

// === impl Places ===

impl Places {
    /// From the texts of /proc/self/cgroup and /proc/self/mountinfo.
    pub(super) fn parse(cgroup: &str, mountinfo: &str) -> Self {
        let mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).collect();
        let mut places = Self::default();
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(own)) = (fields.next(), fields.next()) else {
                continue;
            };
            if controllers.is_empty() {
                let mount = mounts.iter().find(|mount| matches!(mount.kind, Kind::V2));
                places.unified = mount.and_then(|mount| mount.place(own));
                continue;
            }
            for controller in controllers.split(',').filter(|c| USED.contains(c)) {
                let mount = mounts.iter().find(|mount| mount.has(controller));
                if let Some(place) = mount.and_then(|mount| mount.place(own)) {
                    places.v1.insert(controller.to_owned(), place);
                }
            }
        }
        places
    }
}

// === impl Place ===

impl Place {
    /// The configured group of this tree, or `name` below our own.
    pub(super) fn below(&self, parent: Option<&Path>, name: &str) -> PathBuf {
        match parent {
            Some(parent) => self.mount.join(parent.strip_prefix("/").unwrap_or(parent)),
            None => self.own.join(name),
        }
    }
}

// === impl Mount ===

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ').skip(3);
        let (root, point) = (unescape(head.next()?), unescape(head.next()?));
        let mut tail = tail.split(' ');
        let kind = match tail.next()? {
            "cgroup2" => Kind::V2,
            "cgroup" => Kind::V1(tail.nth(1)?.split(',').map(str::to_owned).collect()),
            _ => return None,
        };
        Some(Self {
            root,
            point: point.into(),
            kind,
        })
    }

    fn has(&self, controller: &str) -> bool {
        matches!(&self.kind, Kind::V1(controllers) if controllers.iter().any(|c| c == controller))
    }

    /// The directory of a group. `None`: it is outside of what is mounted.
    fn place(&self, own: &str) -> Option<Place> {
        let inner = Path::new(own).strip_prefix(&self.root).ok()?;
        if own.split('/').any(|part| part == "..") {
            return None;
        }
        let stepped_aside = matches!(self.kind, Kind::V2) && inner.ends_with(SERVER);
        let inner = if stepped_aside { inner.parent()? } else { inner };
        Some(Place {
            mount: self.point.clone(),
            own: self.point.join(inner),
        })
    }
}

/// Undoes how the kernel writes blanks: `\040`.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        match code {
            Some(code) => {
                whole.push(char::from(code));
                whole.push_str(part.get(3..).unwrap_or_default());
            }
            None => {
                whole.push('\\');
                whole.push_str(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(places: &Places, controller: &str) -> PathBuf {
        places.v1[controller].own.clone()
    }

    #[test]
    fn each_controller_has_its_own_place_on_a_hybrid_machine() {
        let cgroup = "9:name=systemd:/\n8:pids:/\n4:memory:/process_api/9c\n2:cpuacct:/\n1:cpu:/\n0::/\n";
        let mountinfo = "\
            31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
            33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let places = Places::parse(cgroup, mountinfo);
        assert_eq!(
            own(&places, "memory"),
            Path::new("/sys/fs/cgroup/memory/process_api/9c")
        );
        assert_eq!(own(&places, "pids"), Path::new("/sys/fs/cgroup/pids"));
        assert_eq!(places.v1.len(), 4);
        let unified = places.unified.unwrap();
        assert_eq!(unified.below(None, "x"), Path::new("/sys/fs/cgroup/unified/x"));
        assert_eq!(
            unified.below(Some(Path::new("/a/b")), "x"),
            Path::new("/sys/fs/cgroup/unified/a/b")
        );
    }

    #[test]
    fn controllers_that_share_a_tree_are_both_found() {
        let mountinfo = "1 0 0:1 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let places = Places::parse("4:cpu,cpuacct:/user.slice\n", mountinfo);
        for controller in ["cpu", "cpuacct"] {
            assert_eq!(own(&places, controller), Path::new("/cg/cpu,cpuacct/user.slice"));
        }
        assert_eq!(places.unified, None);
    }

    #[test]
    fn in_a_container_only_what_is_mounted_counts() {
        let mountinfo = "1 0 0:1 /docker/ab /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n";
        let place = |cgroup| Places::parse(cgroup, mountinfo).unified.map(|place| place.own);
        assert_eq!(place("0::/docker/ab/in\n"), Some("/sys/fs/cgroup/in".into()));
        assert_eq!(place("0::/docker/ab\n"), Some("/sys/fs/cgroup/".into()));
        assert_eq!(place("0::/docker/ab/in/server\n"), Some("/sys/fs/cgroup/in".into()));
        assert_eq!(place("0::/system.slice\n"), None);
        assert_eq!(place("0::/docker/ab/../x\n"), None);
    }

    #[test]
    fn nonsense_is_passed_over() {
        assert_eq!(
            Places::parse("x\n::\n5:memory\n", "a b c\n1 2 3 - cgroup\n"),
            Places::default()
        );
        assert_eq!(unescape("/a\\040b\\134c\\x"), "/a b\\c\\x");
    }
}
