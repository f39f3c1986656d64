//! The watched directories of one subscriber: which watch is which path. A renamed directory keeps its watch, so names are
//! kept per directory and a path is put together on the way up.

use std::collections::HashMap;

/// The directories.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: HashMap<i32, Node>,
}

#[derive(Debug)]
struct Node {
    /// None: it is the directory that was asked for.
    parent: Option<(i32, Vec<u8>)>,
    children: HashMap<Vec<u8>, i32>,
}

// === impl Tree ===

impl Tree {
    /// Adds a directory, in the place of another one that had its name. Returns watches that are not needed any more.
    pub(super) fn insert(&mut self, wd: i32, parent: Option<(i32, &[u8])>) -> Vec<i32> {
        let mut gone = Vec::new();
        if let Some((parent, name)) = parent {
            match self.child(parent, name) {
                Some(old) if old == wd => return gone,
                Some(old) => gone = self.remove(old),
                None => {}
            }
            // A bind mount can show one directory at two places, and a lost move can make it look so: the new one counts.
            if self.nodes.contains_key(&wd) {
                self.rename(wd, parent, name);
                return gone;
            }
            if let Some(node) = self.nodes.get_mut(&parent) {
                node.children.insert(name.to_vec(), wd);
            }
        }
        let parent = parent.map(|(parent, name)| (parent, name.to_vec()));
        self.nodes.entry(wd).or_insert(Node {
            parent,
            children: HashMap::new(),
        });
        gone
    }

    /// Removes a directory and all beneath it. Returns their watches.
    pub(super) fn remove(&mut self, wd: i32) -> Vec<i32> {
        self.detach(wd);
        let mut removed = Vec::new();
        let mut stack = vec![wd];
        while let Some(wd) = stack.pop() {
            if let Some(node) = self.nodes.remove(&wd) {
                removed.push(wd);
                stack.extend(node.children.into_values());
            }
        }
        removed
    }

    /// Gives a directory another place.
    pub(super) fn rename(&mut self, wd: i32, parent: i32, name: &[u8]) {
        if wd == parent || self.is_beneath(parent, wd) {
            return;
        }
        self.detach(wd);
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children.insert(name.to_vec(), wd);
        }
        if let Some(node) = self.nodes.get_mut(&wd) {
            node.parent = Some((parent, name.to_vec()));
        }
    }

    pub(super) fn contains(&self, wd: i32) -> bool {
        self.nodes.contains_key(&wd)
    }

    /// It is the directory that was asked for.
    pub(super) fn is_root(&self, wd: i32) -> bool {
        self.nodes.get(&wd).is_some_and(|node| node.parent.is_none())
    }

    pub(super) fn child(&self, parent: i32, name: &[u8]) -> Option<i32> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    /// The path of `name` in a directory, relative to the one that was asked for. `None` if that is not known.
    pub(super) fn path(&self, wd: i32, name: &[u8]) -> Option<Vec<u8>> {
        let mut components = vec![name];
        let mut node = self.nodes.get(&wd)?;
        while let Some((parent, name)) = &node.parent {
            components.push(name);
            node = self.nodes.get(parent)?;
        }
        components.reverse();
        Some(components.join(&b'/'))
    }

    pub(super) fn watches(&self) -> impl Iterator<Item = i32> {
        self.nodes.keys().copied()
    }

    fn detach(&mut self, wd: i32) {
        let Some((parent, name)) = self.nodes.get(&wd).and_then(|node| node.parent.clone()) else {
            return;
        };
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children.remove(&name);
        }
    }

    fn is_beneath(&self, mut wd: i32, above: i32) -> bool {
        while let Some((parent, _)) = self.nodes.get(&wd).and_then(|node| node.parent.as_ref()) {
            if *parent == above {
                return true;
            }
            wd = *parent;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_renames() {
        let mut tree = Tree::default();
        tree.insert(1, None);
        tree.insert(2, Some((1, b"a")));
        tree.insert(3, Some((2, b"b")));
        assert_eq!(tree.path(3, b"f").unwrap(), b"a/b/f");
        tree.rename(2, 1, b"c");
        assert_eq!(tree.path(3, b"f").unwrap(), b"c/b/f");
        assert_eq!((tree.child(1, b"a"), tree.child(1, b"c")), (None, Some(2)));
        // Into itself it can't be, whatever was lost.
        tree.rename(2, 3, b"x");
        assert_eq!(tree.path(3, b"f").unwrap(), b"c/b/f");
        assert!(tree.is_root(1) && !tree.is_root(2));
        let mut removed = tree.remove(2);
        removed.sort_unstable();
        assert_eq!(removed, [2, 3]);
        assert_eq!(tree.path(3, b"f"), None);
    }

    #[test]
    fn a_new_directory_takes_the_place_of_an_old_one() {
        let mut tree = Tree::default();
        tree.insert(1, None);
        tree.insert(2, Some((1, b"a")));
        tree.insert(3, Some((2, b"b")));
        let mut gone = tree.insert(4, Some((1, b"a")));
        gone.sort_unstable();
        assert_eq!(gone, [2, 3]);
        assert_eq!(tree.insert(4, Some((1, b"a"))), [0; 0]);
        assert_eq!(tree.path(4, b"x").unwrap(), b"a/x");
    }
}
