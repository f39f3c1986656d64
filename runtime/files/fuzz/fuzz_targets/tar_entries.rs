//! Any archive: nothing outside of the destination is changed.
#![no_main]

use std::fs;

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use sandgate_files::transfer;
use sandgate_files_fuzz::{FuzzPath, Run};
use sandgate_proto::runtime::v1::{TransferFormat, UploadStart, upload_request::Message};
use tar::{Builder, EntryType, Header};

#[derive(Arbitrary, Debug)]
struct Archive {
    members: Vec<Member>,
    /// Bytes to change afterwards, which mostly breaks a checksum.
    flips: Vec<(u16, u8)>,
    tail: Vec<u8>,
    cut: Option<u16>,
    chunk: u8,
}

#[derive(Arbitrary, Debug)]
struct Member {
    kind: Kind,
    name: FuzzPath,
    link: FuzzPath,
    /// Names in PAX records.
    pax: bool,
    mode: u16,
    content: Vec<u8>,
    /// Bytes of the header to change before its checksum is made.
    patch: Vec<(u16, u8)>,
}

#[derive(Arbitrary, Debug)]
enum Kind {
    File,
    Directory,
    Symlink,
    Link,
    Other(u8),
}

impl Member {
    fn append(&self, run: &Run, builder: &mut Builder<Vec<u8>>) {
        let (name, link) = (run.path(&self.name), run.path(&self.link));
        if self.pax {
            let records = [("path", name.as_ref()), ("linkpath", link.as_ref())];
            let _ = builder.append_pax_extensions(records);
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(match self.kind {
            Kind::File => EntryType::Regular,
            Kind::Directory => EntryType::Directory,
            Kind::Symlink => EntryType::Symlink,
            Kind::Link => EntryType::Link,
            Kind::Other(byte) => EntryType::new(byte),
        });
        // The owner keeps the right to clean up.
        header.set_mode(u32::from(self.mode) | 0o700);
        header.set_size(self.content.len() as u64);
        let fields = header.as_old_mut();
        for (field, value) in [(&mut fields.name, &name), (&mut fields.linkname, &link)] {
            let length = value.len().min(field.len());
            field[..length].copy_from_slice(&value[..length]);
        }
        for (at, byte) in self.patch.iter().take(4) {
            header.as_mut_bytes()[usize::from(*at) % 512] = *byte;
        }
        header.set_cksum();
        let _ = builder.append(&header, self.content.as_slice());
    }
}

impl Archive {
    fn bytes(&self, run: &Run) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for member in self.members.iter().take(16) {
            member.append(run, &mut builder);
        }
        let mut bytes = builder.into_inner().unwrap_or_default();
        bytes.extend_from_slice(&self.tail);
        let length = bytes.len();
        for (at, byte) in self.flips.iter().take(4) {
            bytes[usize::from(*at) % length] ^= byte;
        }
        if let Some(cut) = self.cut {
            bytes.truncate(usize::from(cut));
        }
        bytes
    }
}

fuzz_target!(|archive: Archive| {
    let run = Run::new();
    fs::write(run.root().join("beside"), "beside").expect("beside");
    let bytes = archive.bytes(&run);
    let chunks = bytes.chunks(usize::from(archive.chunk) * 16 + 1);
    let messages = chunks.map(|chunk| Ok(Message::Chunk(Bytes::copy_from_slice(chunk))));
    let start = UploadStart {
        format: TransferFormat::Tar.into(),
        directory: "/d".to_owned(),
        ..UploadStart::default()
    };
    if let Ok(answer) = transfer::upload(&run.view, &start, &run.shared, messages) {
        run.check_answer(&answer);
    }
    run.check_outside();
    let mut names: Vec<_> = fs::read_dir(run.root())
        .expect("root")
        .map(|entry| entry.expect("entry").file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["a", "b", "beside", "d", "l"],
        "something was unpacked beside the destination"
    );
    assert_eq!(fs::read(run.root().join("b")).expect("b"), b"b");
    assert_eq!(fs::read(run.root().join("beside")).expect("beside"), b"beside");
});
