//! The sandbox's own disk: a directory, or a file system of a fixed size in a file.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown},
    },
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::{AtFlags, Gid, Mode, Uid, chownat, mkdirat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen},
};

use crate::{
    layout,
    record::UidRange,
    status::{Mechanism, mechanism},
};

const LAYERS: [&str; 2] = ["upper", "work"];

/// Makes what is missing of the disk. Gives the mount of its file system if its size is limited, and otherwise why not.
pub(crate) fn prepare(limit: Option<u64>, range: Option<UidRange>) -> io::Result<Result<OwnedFd, Mechanism>> {
    // Root inside is somebody else outside, and has to pass through to its mount points and layers.
    fs::set_permissions(".", fs::Permissions::from_mode(0o711))?;
    for dir in [layout::DISK, "lower", "root"] {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    let why = match (limit, range) {
        (None, _) => "the template sets no such limit".to_owned(),
        (Some(_), None) => "only the host's root can mount a file system of a fixed size".to_owned(),
        (Some(bytes), Some(range)) => match limited(bytes, range) {
            Ok(mount) => return Ok(Ok(mount)),
            Err(error) => format!("a file system in a file: {error}"),
        },
    };
    for layer in LAYERS {
        let layer = Path::new(layout::DISK).join(layer);
        match fs::DirBuilder::new().mode(0o755).create(&layer) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.and_then(|()| match range {
                Some(range) => chown(&layer, Some(range.first), Some(range.first)),
                None => Ok(()),
            })?,
        }
    }
    Ok(Err(Mechanism::lacking(mechanism::DISK, why)))
}

/// Mounts a file as a file system that nobody else sees: the mount is not attached anywhere yet.
fn limited(bytes: u64, range: UidRange) -> io::Result<OwnedFd> {
    let image = Path::new(layout::IMAGE);
    if !image.exists() {
        make_image(image, bytes)?;
    }
    let file = fs::File::options().read(true).write(true).open(image)?;
    let (device, path) = sandgate_sys::attach_loop(&file)?;
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", path.as_str())?;
    fsconfig_create(&context)?;
    let mount = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )?;
    drop(device);
    for layer in LAYERS {
        match mkdirat(&mount, layer, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let (uid, gid) = (Uid::from_raw(range.first), Gid::from_raw(range.first));
                chownat(&mount, layer, Some(uid), Some(gid), AtFlags::empty())?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(mount)
}

fn make_image(image: &Path, bytes: u64) -> io::Result<()> {
    let aside = image.with_extension("new");
    fs::File::create(&aside)?.set_len(bytes)?;
    let arguments = [
        "-q",
        "-F",
        "-m",
        "0",
        "-E",
        "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
    ];
    let made = Command::new("mkfs.ext4")
        .args(arguments.map(OsStr::new))
        .arg(&aside)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        return Err(io::Error::other(format!("mkfs.ext4: {}", said.trim())));
    }
    fs::rename(aside, image)
}
