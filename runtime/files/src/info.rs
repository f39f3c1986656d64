//! What the file system says of a path, as the contract sends it.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use prost_types::Timestamp;
use rustix::fs::{self, AtFlags, FileType, Stat};
use sandgate_proto::runtime::v1::{self as proto, FileInfo};

use crate::{beneath, path};

/// Permission bits of a mode.
pub const PERMISSIONS: u32 = 0o7777;

/// Facts about an open file; `path` is how it is shown. Of a symlink (opened with `O_PATH`) its target too.
pub fn of_file(path: impl AsRef<Path>, file: &OwnedFd) -> rustix::io::Result<FileInfo> {
    of_stat_at(path, &fs::fstat(file)?, file, "")
}

/// Facts about a name in an open directory, which is not followed.
pub fn of_name(path: impl AsRef<Path>, directory: impl AsFd, name: impl AsRef<Path>) -> rustix::io::Result<FileInfo> {
    let name = name.as_ref();
    let stat = fs::statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
    of_stat_at(path, &stat, directory, name)
}

/// Facts that were gathered before. A symlink's target is left empty.
pub fn of_stat(path: impl AsRef<Path>, stat: &Stat) -> FileInfo {
    let (path, path_raw) = path::twins(path::bytes(path.as_ref()));
    FileInfo {
        path,
        path_raw,
        r#type: kind(FileType::from_raw_mode(stat.st_mode)).into(),
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: stat.st_mode & PERMISSIONS,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified: Some(modified(stat)),
        links: links(stat),
        inode: stat.st_ino,
        ..FileInfo::default()
    }
}

/// The time of the last change of the content.
pub fn modified(stat: &Stat) -> Timestamp {
    Timestamp {
        seconds: stat.st_mtime,
        nanos: i32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
    }
}

/// The contract's name for a type of file.
pub fn kind(kind: FileType) -> proto::FileType {
    match kind {
        FileType::RegularFile => proto::FileType::Regular,
        FileType::Directory => proto::FileType::Directory,
        FileType::Symlink => proto::FileType::Symlink,
        FileType::Fifo => proto::FileType::Fifo,
        FileType::Socket => proto::FileType::Socket,
        FileType::CharacterDevice => proto::FileType::CharacterDevice,
        FileType::BlockDevice => proto::FileType::BlockDevice,
        FileType::Unknown => proto::FileType::Unspecified,
    }
}

fn of_stat_at(
    path: impl AsRef<Path>,
    stat: &Stat,
    directory: impl AsFd,
    name: impl AsRef<Path>,
) -> rustix::io::Result<FileInfo> {
    let mut info = of_stat(path, stat);
    // The links of a process would tell what files this one has open.
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    if is_link && !beneath::belongs_to_process(directory.as_fd()).unwrap_or(true) {
        let target = fs::readlinkat(directory, name.as_ref(), Vec::new())?;
        (info.symlink_target, info.symlink_target_raw) = path::twins(target.as_bytes());
    }
    Ok(info)
}

/// Its type differs between architectures.
#[allow(clippy::useless_conversion, reason = "st_nlink is a u32 on some architectures")]
fn links(stat: &Stat) -> u64 {
    u64::from(stat.st_nlink)
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn tells_what_is_there() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("f");
        std::fs::write(&file, "four").unwrap();
        fs::chmod(&file, Mode::from_raw_mode(0o4751)).unwrap();
        let opened = fs::open(directory.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let info = of_name("/shown", &opened, "f").unwrap();
        assert_eq!(
            (info.path.as_str(), info.size, info.mode, info.links),
            ("/shown", 4, 0o4751, 1)
        );
        assert_eq!(info.r#type(), proto::FileType::Regular);
        assert!(info.modified.unwrap().seconds > 1_500_000_000);

        let link = directory.path().join("l");
        let target = OsStr::from_bytes(b"to/\xff");
        std::os::unix::fs::symlink(target, &link).unwrap();
        let itself = fs::open(&link, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
        for info in [of_file("/l", &itself).unwrap(), of_name("/l", &opened, "l").unwrap()] {
            assert_eq!(info.r#type(), proto::FileType::Symlink);
            assert_eq!(
                (info.symlink_target.as_str(), info.symlink_target_raw.as_ref()),
                ("", b"to/\xff".as_slice())
            );
            assert_eq!(info.size, 4);
        }
        assert_eq!(of_file("/", &opened).unwrap().r#type(), proto::FileType::Directory);
    }
}
