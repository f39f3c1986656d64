use std::{
    fs::{self, create_dir, create_dir_all, read_dir, read_link, symlink_metadata, write},
    os::unix::fs::{MetadataExt as _, symlink},
};

use bytes::Bytes;
use sandgate_proto::runtime::v1::TransferFormat;
use tar::{Builder, Header};

use super::{
    super::tests::{Fixture, failures},
    *,
};

/// An archive with names as they are given, whatever they are.
struct Tar {
    builder: Builder<Vec<u8>>,
}

impl Tar {
    fn new() -> Self {
        Self {
            builder: Builder::new(Vec::new()),
        }
    }

    fn add(mut self, kind: EntryType, name: &[u8], link: &[u8], content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o750 } else { 0o640 });
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.set_cksum();
        self.builder.append(&header, content).unwrap();
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.add(EntryType::Regular, name.as_bytes(), b"", content.as_bytes())
    }

    fn directory(self, name: &str) -> Self {
        self.add(EntryType::Directory, name.as_bytes(), b"", b"")
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.add(EntryType::Symlink, name.as_bytes(), target.as_bytes(), b"")
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.add(EntryType::Link, name.as_bytes(), target.as_bytes(), b"")
    }

    fn pax(mut self, key: &str, value: &[u8]) -> Self {
        self.builder.append_pax_extensions([(key, value)]).unwrap();
        self
    }

    fn bytes(self) -> Vec<u8> {
        self.builder.into_inner().unwrap()
    }
}

fn send(fixture: &Fixture, bytes: &[u8], chunk: usize) -> Result<UploadResponse> {
    let chunks = bytes
        .chunks(chunk)
        .map(|chunk| Ok(Message::Chunk(Bytes::copy_from_slice(chunk))));
    fixture.upload(TransferFormat::Tar, "/d", chunks.collect())
}

fn unpack(fixture: &Fixture, tar: Tar) -> (u64, Vec<(String, ErrorReason)>) {
    let response = send(fixture, &tar.bytes(), 1000).unwrap();
    fixture.assert_canary();
    (response.entries, failures(&response))
}

fn one(path: &str, reason: ErrorReason) -> Vec<(String, ErrorReason)> {
    vec![(path.to_owned(), reason)]
}

#[test]
fn names_stay_beneath_the_destination() {
    let fixture = Fixture::new();
    let tar = Tar::new()
        .file("/absolute", "1")
        .file("../canary", "2")
        .file("a/../../../canary", "3")
        .file("a/..", "4")
        .directory("..")
        .file("./dots/./b//c", "5")
        .directory("./")
        .file("", "6")
        .file("plain", "7");
    let (entries, failed) = unpack(&fixture, tar);
    assert_eq!(entries, 3);
    let reasons: Vec<ErrorReason> = failed.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(reasons[..4], [ErrorReason::PathOutsideRoot; 4]);
    assert_eq!(reasons[4..], [ErrorReason::PathInvalid]);
    assert_eq!(failed[0].0, "/d/../canary");
    assert_eq!(fs::read(fixture.at("d/absolute")).unwrap(), b"1");
    assert_eq!(fs::read(fixture.at("d/dots/b/c")).unwrap(), b"5");
}

#[test]
fn symlinks_that_were_unpacked_lead_nowhere_else() {
    let fixture = Fixture::new();
    write(fixture.at("beside"), "beside").unwrap();
    let outside = fixture.outside().to_str().unwrap().to_owned();
    let tar = Tar::new()
        .symlink("up", "..")
        .file("up/beside", "x")
        .symlink("absolute", &outside)
        .file("absolute/canary", "x")
        .file("absolute/new", "x")
        .directory("absolute/new")
        .symlink("relative", "../..")
        .file("relative/canary", "x")
        .symlink("to-file", "../beside")
        .file("to-file", "replaces the link")
        .symlink("proc", "/proc/self/cwd")
        .file("proc/x", "x")
        .directory("real")
        .symlink("inner", "real")
        .file("inner/f", "allowed")
        .directory("inner");
    let (entries, failed) = unpack(&fixture, tar);
    let paths: Vec<&str> = failed.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/d/up/beside",
            "/d/absolute/canary",
            "/d/absolute/new",
            "/d/absolute/new",
            "/d/relative/canary",
            "/d/proc/x"
        ]
    );
    assert!(
        failed.iter().all(|(_, reason)| *reason == ErrorReason::PathOutsideRoot),
        "{failed:?}"
    );
    assert_eq!(entries, 10);
    assert_eq!(fs::read(fixture.at("beside")).unwrap(), b"beside");
    assert_eq!(fs::read(fixture.at("d/to-file")).unwrap(), b"replaces the link");
    assert_eq!(fs::read(fixture.at("d/real/f")).unwrap(), b"allowed");
}

#[test]
fn a_directory_kept_open_is_not_used_after_its_name_changed() {
    let fixture = Fixture::new();
    let tar = Tar::new()
        .file("a/x", "1")
        .symlink("b", "a")
        .file("b/x", "2")
        .file("b/y", "3")
        .symlink("b", "../..")
        .file("b/z", "4");
    let (_, failed) = unpack(&fixture, tar);
    assert_eq!(failed, one("/d/b/z", ErrorReason::PathOutsideRoot));
    assert_eq!(fs::read(fixture.at("d/a/x")).unwrap(), b"2");
}

#[test]
fn hard_links_lead_to_files_in_the_destination() {
    let fixture = Fixture::new();
    write(fixture.at("beside"), "beside").unwrap();
    let outside = fixture.outside().join("canary").to_str().unwrap().to_owned();
    let tar = Tar::new()
        .file("a/f", "f")
        .link("b/l", "a/f")
        .link("abs", "/a/f")
        .file("old", "old")
        .link("old", "a/f")
        .link("old", "a/f")
        .link("out", "../beside")
        .link("canary", &outside)
        .symlink("s", "../../canary")
        .link("s2", "s")
        .symlink("dir", "../..")
        .link("through", "dir/canary")
        .link("missing", "nothing")
        .link("directory", "a");
    let (entries, failed) = unpack(&fixture, tar);
    assert_eq!(entries, 9);
    let expected = [
        ("/d/out", ErrorReason::PathOutsideRoot),
        ("/d/canary", ErrorReason::FileNotFound),
        ("/d/through", ErrorReason::PathOutsideRoot),
        ("/d/missing", ErrorReason::ArchiveInvalid),
        ("/d/directory", ErrorReason::ArchiveInvalid),
    ];
    assert_eq!(failed, expected.map(|(path, reason)| (path.to_owned(), reason)));
    let inode = fs::metadata(fixture.at("d/a/f")).unwrap().ino();
    for linked in ["d/b/l", "d/abs", "d/old"] {
        assert_eq!(fs::metadata(fixture.at(linked)).unwrap().ino(), inode, "{linked}");
    }
    assert!(symlink_metadata(fixture.at("d/s2")).unwrap().is_symlink());
    let names = read_dir(fixture.at("d")).unwrap().count();
    assert_eq!(names, 7, "a temporary name was left");
}

#[test]
fn special_entries_fail_alone() {
    let fixture = Fixture::new();
    let tar = Tar::new()
        .add(EntryType::Char, b"null", b"", b"")
        .add(EntryType::Block, b"disk", b"", b"")
        .add(EntryType::Fifo, b"fifo", b"", b"")
        .add(EntryType::new(b'Z'), b"unknown", b"", b"content is passed over")
        .add(
            EntryType::XGlobalHeader,
            b"pax_global_header",
            b"",
            b"18 comment=abcdef\n",
        )
        .add(EntryType::Continuous, b"contiguous", b"", b"file")
        .add(EntryType::Regular, b"old-style/", b"", b"")
        .file("file", "x");
    let (entries, failed) = unpack(&fixture, tar);
    assert_eq!(entries, 3);
    assert_eq!(failed.len(), 4);
    assert!(failed.iter().all(|(_, reason)| *reason == ErrorReason::ArchiveInvalid));
    assert!(fixture.at("d/old-style").is_dir());
    assert_eq!(read_dir(fixture.at("d")).unwrap().count(), 3);
}

#[test]
fn modes_times_and_what_is_there() {
    let fixture = Fixture::new();
    create_dir_all(fixture.at("d/exists")).unwrap();
    write(fixture.at("d/file"), "old").unwrap();
    create_dir(fixture.at("d/is-dir")).unwrap();
    let tar = Tar::new()
        .directory("exists")
        .file("exists/f", "1")
        .file("file", "new")
        .file("is-dir", "x")
        .directory("file")
        .pax("mtime", b"1234567890.5")
        .file("fraction", "")
        .pax("mtime", b"-1.25")
        .file("before", "")
        .pax("path", "ü".repeat(100).as_bytes())
        .file("short", "long")
        .file("twice", "1")
        .file("twice", "2");
    let (entries, failed) = unpack(&fixture, tar);
    assert_eq!(failed.len(), 2);
    assert_eq!(failed[0], ("/d/is-dir".to_owned(), ErrorReason::FileIsDirectory));
    assert_eq!(failed[1], ("/d/file".to_owned(), ErrorReason::FileNotDirectory));
    assert_eq!(entries, 8);
    let facts = |path: &str| {
        let metadata = fs::metadata(fixture.at(path)).unwrap();
        (metadata.mode() & 0o7777, metadata.mtime(), metadata.mtime_nsec())
    };
    assert_eq!(facts("d/exists"), (0o750, 1_000_000_000, 0));
    assert_eq!(facts("d/exists/f"), (0o640, 1_000_000_000, 0));
    assert_eq!(facts("d/fraction"), (0o640, 1_234_567_890, 500_000_000));
    assert_eq!(facts("d/before"), (0o640, -2, 750_000_000));
    assert_eq!(fs::read(fixture.at("d/twice")).unwrap(), b"2");
    assert_eq!(
        fs::read(fixture.at(&format!("d/{}", "ü".repeat(100)))).unwrap(),
        b"long"
    );
    assert_eq!(read_dir(fixture.at("d")).unwrap().count(), 7);
}

#[test]
fn odd_and_long_names() {
    let fixture = Fixture::new();
    let tar = Tar::new()
        .add(EntryType::Regular, b"\xff\xfe", b"", b"odd")
        .pax("path", "n".repeat(256).as_bytes())
        .file("a", "name too long")
        .pax("path", "d/".repeat(2100).as_bytes())
        .file("b", "path too long")
        .pax("path", b"with\0nul")
        .file("c", "nul")
        .pax("path", "d/".repeat(1000).as_bytes())
        .directory("d")
        .pax("linkpath", b"to\xff")
        .symlink("l", "x");
    let (entries, failed) = unpack(&fixture, tar);
    assert_eq!(entries, 3);
    assert_eq!(failed.len(), 3);
    assert!(
        failed.iter().all(|(_, reason)| *reason == ErrorReason::PathInvalid),
        "{failed:?}"
    );
    assert_eq!(fs::read(fixture.at("d").join(path_of(b"\xff\xfe"))).unwrap(), b"odd");
    assert_eq!(read_link(fixture.at("d/l")).unwrap(), path_of(b"to\xff"));
}

#[test]
fn damage_ends_the_call_and_keeps_what_was_whole() {
    let whole = Tar::new().file("a", "1").file("b", &"2".repeat(2000)).bytes();
    // In a header, in content, in padding, before and in the end.
    for cut in [100, 700, 1024, 1100, 1600, 3500, 3584] {
        let fixture = Fixture::new();
        let error = send(&fixture, &whole[..cut], 77).unwrap_err();
        assert_eq!(error.reason, ErrorReason::ArchiveInvalid, "{cut}");
        let entries = usize::from(cut > 512) + usize::from(cut >= 3536);
        assert_eq!(read_dir(fixture.at("d")).unwrap().count(), entries, "{cut}");
        assert!(
            error.message.ends_with(&format!("before that: {entries}")),
            "{}",
            error.message
        );
    }
    let fixture = Fixture::new();
    for bytes in [vec![b'x'; 2048], [&whole[..1024], &[b'x'; 512]].concat()] {
        assert_eq!(
            send(&fixture, &bytes, 512).unwrap_err().reason,
            ErrorReason::ArchiveInvalid
        );
    }
    assert_eq!(send(&fixture, &[], 1).unwrap().entries, 0);
    // Padding behind the end is no damage.
    let padded = [whole.as_slice(), &[0; 20_480]].concat();
    assert_eq!(send(&fixture, &padded, 4096).unwrap().entries, 2);
    fixture.assert_canary();
}

#[test]
fn sizes_that_lie_take_no_memory() {
    let fixture = Fixture::new();
    for (kind, size) in [
        (EntryType::Regular, 1 << 50),
        (EntryType::Regular, u64::MAX / 2),
        (EntryType::GNULongName, 1 << 40),
        (EntryType::XHeader, 1 << 40),
    ] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        header.as_old_mut().name[0] = b'f';
        header.set_cksum();
        let mut sent = 0_u64;
        // A sender that never ends by itself.
        let chunks = std::iter::once(Bytes::copy_from_slice(header.as_bytes()))
            .chain(std::iter::repeat_n(Bytes::from(vec![0; CHUNK]), 100))
            .inspect(|chunk| sent += chunk.len() as u64)
            .map(|chunk| Ok(Message::Chunk(chunk)))
            .collect();
        let error = fixture.upload(TransferFormat::Tar, "/d", chunks).unwrap_err();
        assert_eq!(error.reason, ErrorReason::ArchiveInvalid);
        assert_eq!(
            error.message.contains("too long"),
            kind != EntryType::Regular,
            "{}",
            error.message
        );
        assert_eq!(read_dir(fixture.at("d")).unwrap().count(), 0);
    }
}

#[test]
fn a_cut_stream_is_its_own_error() {
    let fixture = Fixture::new();
    let bytes = Tar::new().file("a", "1").file("b", &"2".repeat(2000)).bytes();
    let messages = vec![
        Ok(Message::Chunk(Bytes::copy_from_slice(&bytes[..2000]))),
        Err(Error::new(ErrorReason::Stopping, "cut")),
    ];
    let error = fixture.upload(TransferFormat::Tar, "/d", messages).unwrap_err();
    assert_eq!(error.reason, ErrorReason::Stopping);
    assert_eq!(read_dir(fixture.at("d")).unwrap().count(), 1);
    let messages = vec![Ok(Message::EntryEnd(Default::default()))];
    let error = fixture.upload(TransferFormat::Tar, "/d", messages).unwrap_err();
    assert_eq!(error.reason, ErrorReason::InvalidArgument);
}

#[test]
fn a_destination_that_is_a_way_out_is_refused() {
    let fixture = Fixture::new();
    symlink("../..", fixture.at("out")).unwrap();
    write(fixture.at("file"), "").unwrap();
    let bytes = Tar::new().file("canary", "x").bytes();
    for directory in ["/out/new", "/file", "/file/x"] {
        let chunks = vec![Ok(Message::Chunk(Bytes::copy_from_slice(&bytes)))];
        let _refused_or_inside = fixture.upload(TransferFormat::Tar, directory, chunks);
        fixture.assert_canary();
    }
}
