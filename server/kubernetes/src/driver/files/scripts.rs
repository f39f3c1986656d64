//! The commands by which files are looked at and changed, and how what they say is read.
//!
//! They keep to what POSIX, busybox and GNU have in common. Paths are arguments, absolute ones, so that none is taken for an
//! option. A script fails with the words that the system itself has for it, which is how its failure is told.

use std::os::unix::ffi::OsStrExt as _;

use bytes::Bytes;
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{FileInfo, FileType},
    v1::ErrorReason,
};

use crate::driver::inside::Finished;

/// mode in hex, size, user, group, time of change, links, inode.
macro_rules! facts {
    () => {
        "'%f %s %u %g %Y %h %i'"
    };
}

/// STAT PATH FOLLOW
pub(super) const STAT: &str = concat!(
    "if [ \"$2\" = 1 ]; then stat -L -c ",
    facts!(),
    " \"$1\" || exit 1; exit 0; fi\nstat -c ",
    facts!(),
    " \"$1\" || exit 1\nif [ -L \"$1\" ]; then readlink \"$1\"; fi"
);

/// LIST DIRECTORY. For each kind of name: the names, each ended by NUL, one more NUL, then their facts.
pub(super) const LIST: &str = concat!(
    "if [ ! -d \"$1\" ]; then if [ -e \"$1\" ]; then echo 'Not a directory' >&2; else echo 'No such file or directory' >&2; fi; exit 1; fi\n",
    "cd \"$1\" || exit 1\n",
    "emit() { if [ $# -eq 1 ] && [ ! -e \"$1\" ] && [ ! -L \"$1\" ]; then return 0; fi\n",
    "printf '%s\\0' \"$@\"; printf '\\0'; stat -c ",
    facts!(),
    " -- \"$@\" || exit 75; }\n",
    "emit * && emit .[!.]* && emit ..?*"
);
/// Something went away while it was listed.
pub(super) const CHANGED: i32 = 75;

/// LINKS DIRECTORY NAME…: where they point, each ended by NUL.
pub(super) const LINKS: &str = "cd \"$1\" || exit 1\nshift\nfor f do printf '%s\\0' \"$(readlink -- \"$f\")\"; done";

/// READ PATH OFFSET COUNT
pub(super) const READ: &str = concat!(
    "if [ -d \"$1\" ]; then echo 'Is a directory' >&2; exit 1; fi\n",
    "stat -L -c ",
    facts!(),
    " \"$1\" || exit 1\nif [ ! -f \"$1\" ]; then echo 'Not a regular file' >&2; exit 1; fi\n",
    "if [ ! -r \"$1\" ]; then echo 'Permission denied' >&2; exit 1; fi\n",
    "tail -c +$(($2 + 1)) \"$1\" | head -c \"$3\""
);

/// LINES PATH FIRST COUNT MOST. After the facts: line ends in all, whether the last byte is one, where the window begins.
pub(super) const LINES: &str = concat!(
    "if [ -d \"$1\" ]; then echo 'Is a directory' >&2; exit 1; fi\n",
    "stat -L -c ",
    facts!(),
    " \"$1\" || exit 1\nif [ ! -f \"$1\" ]; then echo 'Not a regular file' >&2; exit 1; fi\n",
    "if [ ! -r \"$1\" ]; then echo 'Permission denied' >&2; exit 1; fi\n",
    "echo $(wc -l <\"$1\") $(tail -c 1 \"$1\" | wc -l) $(head -n \"$2\" \"$1\" | wc -c)\n",
    "if [ \"$3\" = 0 ]; then tail -n +$(($2 + 1)) \"$1\" | head -c \"$4\"\n",
    "else tail -n +$(($2 + 1)) \"$1\" | head -n \"$3\" | head -c \"$4\"; fi"
);

/// PREPARE PATH PARENTS: where the file really goes, behind symlinks.
pub(super) const PREPARE: &str = "p=$1\n\
    if [ -L \"$p\" ]; then p=$(readlink -f \"$p\") || exit 1; fi\n\
    if [ -d \"$p\" ]; then echo 'Is a directory' >&2; exit 1; fi\n\
    d=${p%/*}\n\
    if [ \"$2\" = 1 ]; then mkdir -p \"${d:-/}\" || exit 1; fi\n\
    if [ ! -d \"${d:-/}\" ]; then if [ -e \"$d\" ]; then echo 'Not a directory' >&2; else echo 'No such file or directory' >&2; fi; exit 1; fi\n\
    printf '%s' \"$p\"";

/// COMMIT TEMPORARY PATH SIZE MODE HOW TIME. A temporary file that is not whole is no file.
pub(super) const COMMIT: &str = "t=$1 p=$2\n\
    fail() { rm -f \"$t\"; if [ -n \"$1\" ]; then echo \"$1\" >&2; fi; exit 1; }\n\
    if [ \"$(($(wc -c <\"$t\")))\" -ne \"$3\" ]; then fail 'the content was cut on its way'; fi\n\
    if [ \"$5\" = append ]; then cat \"$t\" >>\"$p\" || fail; rm -f \"$t\"; if [ -n \"$4\" ]; then chmod \"$4\" \"$p\" || exit 1; fi; exit 0; fi\n\
    m=$4\n\
    if [ -z \"$m\" ]; then if [ -e \"$p\" ]; then m=$(stat -c %a \"$p\"); else m=644; fi; fi\n\
    chmod \"$m\" \"$t\" || fail\n\
    if [ -n \"$6\" ]; then touch -d \"@$6\" \"$t\" 2>/dev/null; fi\n\
    if [ \"$5\" = create ]; then ln \"$t\" \"$p\" || fail; rm -f \"$t\"; exit 0; fi\n\
    mv -f \"$t\" \"$p\" || fail";

/// MKDIR PATH PARENTS MODE
pub(super) const MKDIR: &str = "if [ \"$2\" = 1 ]; then if [ -d \"$1\" ]; then exit 0; fi; mkdir -p \"$1\" || exit 1; else mkdir \"$1\" || exit 1; fi\n\
    chmod \"${3:-755}\" \"$1\"";

/// PLACE TO OVERWRITE PARENTS, then the rest as `$from`: makes room at the place where something goes.
const PLACE: &str = "from=$1 to=$2\n\
    if [ ! -e \"$from\" ] && [ ! -L \"$from\" ]; then echo 'No such file or directory' >&2; exit 1; fi\n\
    if [ \"$4\" = 1 ]; then d=${to%/*}; mkdir -p \"${d:-/}\" || exit 1; fi\n\
    if [ \"$3\" != 1 ]; then if [ -e \"$to\" ] || [ -L \"$to\" ]; then echo 'File exists' >&2; exit 1; fi; fi\n";

/// MOVE FROM TO OVERWRITE PARENTS
pub(super) fn relocate() -> String {
    format!(
        "{PLACE}if [ -d \"$to\" ] && [ ! -L \"$to\" ]; then\n\
         if [ ! -d \"$from\" ] || [ -L \"$from\" ]; then echo 'Is a directory' >&2; exit 1; fi\n\
         rmdir \"$to\" || exit 1; fi\nmv -f \"$from\" \"$to\""
    )
}

/// COPY FROM TO OVERWRITE PARENTS RECURSIVE
pub(super) fn copy() -> String {
    format!(
        "{PLACE}if [ -d \"$from\" ] && [ ! -L \"$from\" ]; then\n\
         if [ \"$5\" != 1 ]; then echo 'Is a directory' >&2; exit 1; fi\n\
         mkdir -p \"$to\" && cp -pRP \"$from/.\" \"$to/\"\n\
         else if [ -d \"$to\" ] && [ ! -L \"$to\" ]; then echo 'Is a directory' >&2; exit 1; fi\n\
         cp -pRP \"$from\" \"$to.sandgate\" && mv -f \"$to.sandgate\" \"$to\"; fi"
    )
}

/// REMOVE PATH RECURSIVE MISSING_OK: how many it removed.
pub(super) const REMOVE: &str = "if [ ! -e \"$1\" ] && [ ! -L \"$1\" ]; then if [ \"$3\" = 1 ]; then echo 0; exit 0; fi; echo 'No such file or directory' >&2; exit 1; fi\n\
    if [ ! -d \"$1\" ] || [ -L \"$1\" ]; then rm -f \"$1\" && echo 1; exit; fi\n\
    if [ \"$2\" != 1 ]; then rmdir \"$1\" && echo 1; exit; fi\n\
    n=$(find \"$1\" | wc -l)\nrm -rf \"$1\" && echo $((n))";

/// SYMLINK TARGET PATH
pub(super) const SYMLINK: &str = "d=${2%/*}; mkdir -p \"${d:-/}\" && ln -s -- \"$1\" \"$2\"";

/// Reads one line of facts.
pub(super) fn facts(line: &[u8], path: &[u8]) -> Option<FileInfo> {
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.split_ascii_whitespace();
    let mode = u32::from_str_radix(words.next()?, 16).ok()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    let (size, user, group, changed, links, inode) = (number()?, number()?, number()?, number()?, number()?, number()?);
    let (path, path_raw) = text_or_raw(path);
    Some(FileInfo {
        path,
        path_raw,
        r#type: kind(mode).into(),
        size,
        mode: mode & 0o7777,
        uid: u32::try_from(user).ok()?,
        gid: u32::try_from(group).ok()?,
        modified: Some(prost_types::Timestamp {
            seconds: i64::try_from(changed).ok()?,
            nanos: 0,
        }),
        links,
        inode,
        ..FileInfo::default()
    })
}

fn kind(mode: u32) -> FileType {
    match mode & 0o17_0000 {
        0o10_0000 => FileType::Regular,
        0o04_0000 => FileType::Directory,
        0o12_0000 => FileType::Symlink,
        0o01_0000 => FileType::Fifo,
        0o14_0000 => FileType::Socket,
        0o02_0000 => FileType::CharacterDevice,
        0o06_0000 => FileType::BlockDevice,
        _ => FileType::Unspecified,
    }
}

/// Bytes as the contract tells them: as text, or raw where they are none.
pub(super) fn text_or_raw(bytes: &[u8]) -> (String, Bytes) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), Bytes::new()),
        Err(_) => (String::new(), Bytes::copy_from_slice(bytes)),
    }
}

/// The names and facts that LIST tells.
pub(super) fn entries(mut output: &[u8], directory: &str) -> Option<Vec<FileInfo>> {
    let mut all = Vec::new();
    while !output.is_empty() {
        let mut names = Vec::new();
        loop {
            let end = output.iter().position(|byte| *byte == 0)?;
            let name = &output[..end];
            output = &output[end + 1..];
            if name.is_empty() {
                break;
            }
            names.push(name);
        }
        for name in names {
            let end = output.iter().position(|byte| *byte == b'\n')?;
            let path = std::path::Path::new(directory).join(std::ffi::OsStr::from_bytes(name));
            all.push(facts(&output[..end], path.as_os_str().as_bytes())?);
            output = &output[end + 1..];
        }
    }
    Some(all)
}

/// What the failure of a script means.
pub(crate) fn failure(finished: &Finished, path: &str) -> Refusal {
    use ErrorReason as R;
    let said = String::from_utf8_lossy(&finished.stderr);
    let last = said.trim().lines().last().unwrap_or_default();
    let known = [
        ("No such file", R::FileNotFound),
        ("File exists", R::FileAlreadyExists),
        ("Is a directory", R::FileIsDirectory),
        ("Not a directory", R::FileNotDirectory),
        ("not empty", R::FileDirectoryNotEmpty),
        ("Not a regular file", R::FileNotRegular),
        ("ermission denied", R::FilePermissionDenied),
        ("not permitted", R::FilePermissionDenied),
        ("Read-only file system", R::FilePermissionDenied),
        ("No space left", R::DiskFull),
        ("Argument list too long", R::LimitReached),
    ];
    let reason = known
        .iter()
        .find(|(words, _)| last.contains(words))
        .map_or(R::FileIo, |(_, reason)| *reason);
    let message = if last.is_empty() {
        "a command in the sandbox failed"
    } else {
        last
    };
    Refusal::new(reason, format!("{path}: {message}")).with("path", path)
}
