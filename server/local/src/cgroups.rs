//! Where sandboxes can have cgroups: found in what the kernel says of us, never assumed, never mounted.
//!
//! Controllers may be in a tree each (v1), in one (v2) or nowhere, and our own place may differ from tree to tree.

mod places;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process,
};

use sandgate_monitor::control::CgroupParents;

use self::places::{Place, Places};

/// Our groups are below this one.
const NAME: &str = "sandgate";
/// In cgroup2 a group with processes can't give controllers to groups below it: the server moves into this one.
const SERVER: &str = "server";
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// Directories in which sandboxes get their cgroups.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    parents: CgroupParents,
}

// === impl Cgroups ===

impl Cgroups {
    /// Why some can't be had, for a person.
    pub(crate) fn why_not(&self) -> String {
        let problems = self.parents.why_not.iter();
        let lines: Vec<_> = problems.map(|(what, problem)| format!("{what}: {problem}")).collect();
        lines.join("; ")
    }

    /// Finds them, and makes them where that can be.
    pub(crate) fn find(parent: Option<&Path>) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let places = Places::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        Self::make(&places, parent)
    }

    fn make(places: &Places, parent: Option<&Path>) -> Self {
        let mut parents = CgroupParents::default();
        let mut problems = BTreeMap::new();
        for (controller, place) in &places.v1 {
            match usable(place, parent) {
                Ok(dir) => drop(parents.v1.insert(controller.clone(), dir)),
                Err(problem) => drop(problems.insert(controller.clone(), problem)),
            }
        }
        if let Some(place) = &places.unified {
            match unified(place, parent, &mut problems) {
                Ok((dir, controllers)) => {
                    parents.unified = Some(dir);
                    parents.unified_controllers = controllers;
                }
                Err(problem) => drop(problems.insert(CgroupParents::UNIFIED.to_owned(), problem)),
            }
        }
        for controller in CONTROLLERS {
            let has =
                parents.v1.contains_key(controller) || parents.unified_controllers.iter().any(|c| c == controller);
            if !has {
                let problem = || "no cgroup tree that we may write to has this controller".to_owned();
                problems.entry(controller.to_owned()).or_insert_with(problem);
            }
        }
        parents.why_not = problems;
        Self { parents }
    }

    /// The directories, which are there for certain: another server with the same ones may have ended meanwhile.
    pub(crate) fn parents(&self) -> CgroupParents {
        for dir in self.parents.v1.values().chain(&self.parents.unified) {
            let _ = fs::create_dir(dir);
        }
        self.parents.clone()
    }

    /// Removes what is empty. What is not belongs to sandboxes that live on, or that are still being cleared away.
    pub(crate) fn remove(&self) {
        for dir in self.parents.v1.values().chain(&self.parents.unified) {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// The directory, if groups can be made in it.
fn usable(place: &Place, parent: Option<&Path>) -> Result<PathBuf, String> {
    let dir = place.below(parent, NAME);
    // A configured one may have some above it; the tree itself is there or not.
    let made = fs::metadata(&place.own)
        .and_then(|_| fs::create_dir_all(&dir))
        .and_then(|()| try_group(&dir));
    made.map(|()| dir.clone()).map_err(|error| {
        format!(
            "{} can't be used ({error}); run as root or with a delegated cgroup, or set cgroup_parent",
            dir.display()
        )
    })
}

/// One name for all: what a server that was killed right here has left, the next one removes.
fn try_group(dir: &Path) -> io::Result<()> {
    let probe = dir.join("probe");
    match fs::create_dir(&probe) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match fs::remove_dir(&probe) {
        // Another one was quicker.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The directory in the cgroup2 tree, and the controllers that groups in it have.
fn unified(
    place: &Place,
    parent: Option<&Path>,
    problems: &mut BTreeMap<String, String>,
) -> Result<(PathBuf, Vec<String>), String> {
    let dir = place.below(parent, NAME);
    let above = dir.parent().unwrap_or(&dir);
    let offered = words(&above.join("cgroup.controllers"));
    let wanted: Vec<_> = CONTROLLERS
        .into_iter()
        .filter(|c| offered.iter().any(|o| o == c))
        .collect();
    let dir = usable(place, parent)?;
    if wanted.is_empty() {
        return Ok((dir, Vec::new()));
    }
    if place.own == above && above.join("cgroup.type").exists() {
        step_aside(above).map_err(|error| format!("can't leave {} for a group in it: {error}", above.display()))?;
    }
    let mut given = Vec::new();
    for controller in wanted {
        let enable = |group: &Path| fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
        match enable(above).and_then(|()| enable(&dir)) {
            Ok(()) => given.push(controller.to_owned()),
            Err(error) => {
                let problem = format!(
                    "{} does not pass it on ({error}); give the server a cgroup of its own, as systemd does with Delegate=yes",
                    above.display()
                );
                problems.insert(controller.to_owned(), problem);
            }
        }
    }
    Ok((dir, given))
}

/// Moves this process into a group of its own.
fn step_aside(own: &Path) -> io::Result<()> {
    let dir = own.join(SERVER);
    match fs::create_dir(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(dir.join("cgroup.procs"), process::id().to_string())
}

fn words(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_had_is_named_and_what_cannot_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display();
        fs::create_dir_all(dir.path().join("memory/mine")).unwrap();
        fs::create_dir_all(dir.path().join("unified")).unwrap();
        let mounts = format!(
            "1 0 0:1 / {root}/memory rw - cgroup cgroup rw,memory\n\
             2 0 0:2 / {root}/pids rw - cgroup cgroup rw,pids\n\
             3 0 0:3 / {root}/unified rw - cgroup2 cgroup2 rw\n"
        );
        let places = Places::parse("4:memory:/mine\n3:pids:/\n0::/\n", &mounts);
        let Cgroups { parents } = Cgroups::make(&places, None);
        assert_eq!(parents.v1["memory"], dir.path().join("memory/mine/sandgate"));
        assert_eq!(parents.unified, Some(dir.path().join("unified/sandgate")));
        assert_eq!(parents.unified_controllers, Vec::<String>::new());
        assert!(!parents.v1.contains_key("pids"));
        let lacking: Vec<_> = parents.why_not.keys().map(String::as_str).collect();
        assert_eq!(lacking, ["cpu", "pids"]);
        let cgroups = Cgroups::make(&places, Some(Path::new("/elsewhere")));
        assert_eq!(cgroups.parents.v1["memory"], dir.path().join("memory/elsewhere"));
        cgroups.remove();
        assert!(!dir.path().join("memory/elsewhere").exists());
    }
}
