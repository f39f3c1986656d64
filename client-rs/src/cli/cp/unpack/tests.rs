//! Hostile archives, and honest ones.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use tar::{Builder, Header};
use tempfile::TempDir;

use super::*;

/// An archive whose names and links are what they are given as, unlike those that the crate would make.
#[derive(Default)]
struct Forged(Vec<u8>);

impl Forged {
    fn add(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o4755);
        header.set_mtime(1_000_000);
        header.set_size(content.len() as u64);
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.add(EntryType::Regular, name, "", content.as_bytes())
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.add(EntryType::Symlink, name, target, b"")
    }

    fn directory(self, name: &str) -> Self {
        self.add(EntryType::Directory, name, "", b"")
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }

    /// Unpacks in `outer/dst`, beside which a victim lies.
    fn unpack(self, keep_links: bool) -> (TempDir, Unpacked) {
        let outer = outer();
        let unpacked = unpack(self.end().as_slice(), &outer.path().join("dst"), keep_links).unwrap();
        assert_untouched(&outer);
        (outer, unpacked)
    }
}

fn outer() -> TempDir {
    let outer = tempfile::tempdir().unwrap();
    fs::create_dir(outer.path().join("dst")).unwrap();
    fs::create_dir(outer.path().join("victim")).unwrap();
    fs::write(outer.path().join("victim/file"), "precious").unwrap();
    outer
}

fn assert_untouched(outer: &TempDir) {
    let mut names: Vec<_> = fs::read_dir(outer.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["dst", "victim"]);
    assert_eq!(fs::read_dir(outer.path().join("victim")).unwrap().count(), 1);
    assert_eq!(
        fs::read_to_string(outer.path().join("victim/file")).unwrap(),
        "precious"
    );
}

#[test]
fn an_honest_tree_is_made() {
    let (outer, unpacked) = Forged::default()
        .directory("./")
        .directory("d/")
        .file("d/f", "content")
        .link("d/l", "f")
        .link("up", "d/f")
        .file("made/on/the/way", "x")
        .unpack(false);
    assert_eq!(
        (unpacked.entries, unpacked.bytes, unpacked.failed),
        (5, 8, 0),
        "{unpacked:?}"
    );
    let dst = outer.path().join("dst");
    assert_eq!(fs::read_to_string(dst.join("up")).unwrap(), "content");
    assert_eq!(fs::read_to_string(dst.join("made/on/the/way")).unwrap(), "x");
    let found = fs::metadata(dst.join("d/f")).unwrap();
    assert_eq!(
        (found.mode() & 0o7000, found.mode() & 0o700, found.mtime()),
        (0, 0o700, 1_000_000)
    );
    assert_eq!(fs::metadata(dst.join("d")).unwrap().mtime(), 1_000_000);
}

#[test]
fn absolute_and_dotted_names_fail_alone() {
    for hostile in [
        "/tmp/sandgate-escaped",
        "../victim/file",
        "a/../../victim/file",
        "..",
        "//x",
        "./../x",
    ] {
        let (outer, unpacked) = Forged::default().file(hostile, "evil").file("good", "x").unpack(true);
        assert_eq!((unpacked.entries, unpacked.failed), (1, 1), "{hostile}: {unpacked:?}");
        assert!(outer.path().join("dst/good").exists(), "{hostile}");
    }
}

#[test]
fn links_of_the_archive_are_never_followed() {
    // Also when the caller wants links that lead out.
    for target in ["../victim", "/", "."] {
        let (_outer, unpacked) = Forged::default()
            .link("l", target)
            .file("l/file", "evil")
            .file("l/new", "evil")
            .directory("l/dir")
            .link("l/link", "x")
            .unpack(true);
        assert_eq!((unpacked.entries, unpacked.failed), (1, 4), "{target}: {unpacked:?}");
    }
}

#[test]
fn a_file_replaces_a_link_and_not_what_it_leads_to() {
    let (outer, unpacked) = Forged::default()
        .link("l", "../victim/file")
        .file("l", "mine")
        .unpack(true);
    assert_eq!(unpacked.failed, 0);
    let path = outer.path().join("dst/l");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read_to_string(path).unwrap(), "mine");
}

#[test]
fn links_that_were_there_are_not_followed_either() {
    let outer = outer();
    let dst = outer.path().join("dst");
    symlink("../victim", dst.join("l")).unwrap();
    let archive = Forged::default().file("l/file", "evil").directory("l").end();
    let unpacked = unpack(archive.as_slice(), &dst, false).unwrap();
    assert_eq!((unpacked.entries, unpacked.failed), (0, 2), "{unpacked:?}");
    assert_untouched(&outer);
}

#[test]
fn links_that_lead_out_are_only_made_if_asked_for() {
    let hostile = || {
        Forged::default()
            .link("a", "/etc")
            .link("b", "../victim")
            .link("here", ".")
            .link("c", "here/..")
            .directory("d")
            .link("d/e", "../../victim")
            .link("d/fine", "../here")
    };
    let (outer, unpacked) = hostile().unpack(false);
    assert_eq!((unpacked.entries, unpacked.failed), (3, 4), "{unpacked:?}");
    for missing in ["a", "b", "c", "d/e"] {
        assert!(
            fs::symlink_metadata(outer.path().join("dst").join(missing)).is_err(),
            "{missing}"
        );
    }
    let (_outer, unpacked) = hostile().unpack(true);
    assert_eq!((unpacked.entries, unpacked.failed), (7, 0), "{unpacked:?}");
}

#[test]
fn directories_made_over_links_at_the_end_change_nothing_outside() {
    // The directory is replaced by a link before its mode and time are set.
    let (_outer, unpacked) = Forged::default()
        .directory("d")
        .link("d", "../victim")
        .directory("d")
        .unpack(true);
    // A link can't replace a directory, so the directory stays.
    assert_eq!((unpacked.entries, unpacked.failed), (2, 1), "{unpacked:?}");
}

#[test]
fn devices_hard_links_and_unknown_types_are_not_made() {
    let (outer, unpacked) = Forged::default()
        .add(EntryType::Char, "null", "", b"")
        .add(EntryType::Block, "disk", "", b"")
        .add(EntryType::Fifo, "fifo", "", b"")
        .add(EntryType::Link, "hard", "../victim/file", b"")
        .add(EntryType::new(b'Z'), "odd", "", b"content is passed over")
        .file("good", "x")
        .unpack(true);
    assert_eq!((unpacked.entries, unpacked.failed), (1, 5), "{unpacked:?}");
    assert_eq!(fs::read_dir(outer.path().join("dst")).unwrap().count(), 1);
}

#[test]
fn sparse_entries_and_endless_names_end_it() {
    let outer = outer();
    let dst = outer.path().join("dst");
    let sparse = Forged::default().add(EntryType::GNUSparse, "s", "", b"").end();
    assert!(unpack(sparse.as_slice(), &dst, false).is_err());

    let name = vec![b'n'; 2 << 20];
    let long = Forged::default()
        .add(EntryType::GNULongName, "././@LongLink", "", &name)
        .file("x", "")
        .end();
    let error = unpack(long.as_slice(), &dst, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    assert_eq!(fs::read_dir(&dst).unwrap().count(), 0);
}

#[test]
fn a_large_file_is_not_taken_for_headers() {
    let content = vec![b'x'; 3 << 20];
    let (_outer, unpacked) = Forged::default()
        .add(EntryType::Regular, "../no", "", &content)
        .add(EntryType::Regular, "yes", "", &content)
        .unpack(false);
    assert_eq!((unpacked.entries, unpacked.bytes, unpacked.failed), (1, 3 << 20, 1));
}

#[test]
fn a_cut_leaves_the_old_file_and_nothing_beside_it() {
    let outer = outer();
    let dst = outer.path().join("dst");
    fs::write(dst.join("f"), "old").unwrap();
    let mut archive = Forged::default().file("f", &"new".repeat(1000)).end();
    archive.truncate(1024);
    unpack(archive.as_slice(), &dst, false).unwrap_err();
    assert_eq!(fs::read_to_string(dst.join("f")).unwrap(), "old");
    assert_eq!(fs::read_dir(&dst).unwrap().count(), 1);
}

#[test]
fn directories_without_write_permission_are_filled_first() {
    let mut builder = Builder::new(Vec::new());
    let mut add = |kind, name: &str, mode, content: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, content).unwrap();
    };
    add(EntryType::Directory, "d", 0o555, b"");
    add(EntryType::Regular, "d/f", 0o444, b"x");
    let archive = builder.into_inner().unwrap();
    let outer = outer();
    let dst = outer.path().join("dst");
    let unpacked = unpack(archive.as_slice(), &dst, false).unwrap();
    assert_eq!(unpacked.failed, 0, "{unpacked:?}");
    let mode = fs::metadata(dst.join("d")).unwrap().mode() & 0o777;
    assert_eq!(mode & 0o222, 0, "{mode:o}");
    // So that the directory can be removed by an ordinary user.
    fs::set_permissions(dst.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Makes every header's checksum right again, so that the damage is taken for what the sender meant.
fn checksums(archive: &mut [u8]) {
    for header in archive
        .chunks_exact_mut(512)
        .filter(|block| block[257..262] == *b"ustar")
    {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

#[test]
fn damaged_archives_never_panic_and_never_leave_the_destination() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut state = seed;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    let whole = Forged::default()
        .directory("d")
        .file("d/f", "content")
        .link("d/l", "../d")
        .add(EntryType::GNULongName, "././@LongLink", "", &[b'n'; 300])
        .file("short", "x")
        .end();
    let outer = outer();
    for _ in 0..2_000 {
        let mut damaged = whole.clone();
        for _ in 0..=next() % 4 {
            let at = next() % damaged.len();
            damaged[at] = u8::try_from(next() & 0xff).unwrap();
        }
        if next() % 2 == 0 {
            checksums(&mut damaged);
        }
        damaged.truncate(damaged.len() - next() % 600);
        _ = unpack(damaged.as_slice(), &outer.path().join("dst"), false);
    }
    assert_untouched(&outer);
}
