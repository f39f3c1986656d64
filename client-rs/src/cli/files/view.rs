//! Files as they are printed.

use std::io;

use sandgate::v1::{FileInfo, FileType};
use serde::Serialize;

use crate::cli::{
    output::{self, Cell, Paint, Show, Table, Text},
    place,
    sandboxes::{time, word},
};

/// A file. Where a name is not UTF-8, `path` shows it with replacement characters and `path_base64` has its bytes.
#[derive(Debug, Serialize)]
pub(super) struct FileView {
    pub(super) path: String,
    path_base64: Option<String>,
    r#type: String,
    size: u64,
    mode: String,
    uid: u32,
    gid: u32,
    modified: Option<String>,
    symlink_target: Option<String>,
    links: u64,
    inode: u64,
    #[serde(skip)]
    info: FileInfo,
}

/// Files of one directory or one search.
#[derive(Debug, Serialize)]
pub(super) struct FilesView {
    pub(super) files: Vec<FileView>,
    pub(super) truncated: bool,
    /// Of a search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) directories_unreadable: Option<u64>,
    #[serde(skip)]
    pub(super) style: Style,
}

/// How a list of files is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// The last part of each path.
    Names,
    /// Paths.
    Paths,
    /// A table with everything.
    Long,
}

// === impl FileView ===

impl From<FileInfo> for FileView {
    fn from(info: FileInfo) -> Self {
        let target = place::unwire(&info.symlink_target, &info.symlink_target_raw);
        Self {
            path: place::shown(&place::unwire(&info.path, &info.path_raw)),
            path_base64: (!info.path_raw.is_empty()).then(|| output::base64(&info.path_raw)),
            r#type: word(info.r#type().as_str_name(), "FILE_TYPE_"),
            size: info.size,
            mode: format!("{:04o}", info.mode),
            uid: info.uid,
            gid: info.gid,
            modified: time(info.modified.as_ref()),
            symlink_target: (info.r#type() == FileType::Symlink).then(|| place::shown(&target)),
            links: info.links,
            inode: info.inode,
            info,
        }
    }
}

impl FileView {
    fn raw_path(&self) -> Vec<u8> {
        place::unwire(&self.info.path, &self.info.path_raw)
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    fn raw_name(&self) -> Vec<u8> {
        let path = self.raw_path();
        path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec()
    }

    fn paint(&self) -> Paint {
        match self.info.r#type() {
            FileType::Directory => Paint::Blue,
            FileType::Symlink => Paint::Yellow,
            FileType::Regular if self.info.mode & 0o111 != 0 => Paint::Green,
            _ => Paint::Plain,
        }
    }

    /// `drwxr-xr-x`, as `ls -l` has it.
    fn permissions(&self) -> String {
        let kind = match self.info.r#type() {
            FileType::Directory => 'd',
            FileType::Symlink => 'l',
            FileType::Fifo => 'p',
            FileType::Socket => 's',
            FileType::CharacterDevice => 'c',
            FileType::BlockDevice => 'b',
            FileType::Regular => '-',
            FileType::Unspecified => '?',
        };
        let mode = self.info.mode;
        let bit = |bit: u32, letter: char| if mode & bit != 0 { letter } else { '-' };
        let execute = |execute: u32, special: u32, letter: char| match (mode & execute != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        };
        [
            kind,
            bit(0o400, 'r'),
            bit(0o200, 'w'),
            execute(0o100, 0o4000, 's'),
            bit(0o040, 'r'),
            bit(0o020, 'w'),
            execute(0o010, 0o2000, 's'),
            bit(0o004, 'r'),
            bit(0o002, 'w'),
            execute(0o001, 0o1000, 't'),
        ]
        .into_iter()
        .collect()
    }

    fn row(&self) -> Vec<Cell> {
        let name = match &self.symlink_target {
            Some(target) => format!("{} -> {target}", self.path),
            None => self.path.clone(),
        };
        // To the second is enough for people.
        let modified = self.modified.as_deref().unwrap_or_default();
        let modified = modified
            .get(..19)
            .map_or(modified.to_owned(), |whole| format!("{whole}Z"));
        vec![
            self.permissions().into(),
            format!("{}:{}", self.uid, self.gid).into(),
            output::bytes(self.size).into(),
            modified.into(),
            Cell::painted(self.paint(), name),
        ]
    }

    /// One line for each fact.
    pub(super) fn facts(&self) -> Table {
        let mut table = Table::default();
        let mut fact = |name: &str, value: Cell| table.row([Cell::painted(Paint::Dim, name), value]);
        fact("path", Cell::painted(Paint::Bold, self.path.as_str()));
        fact("type", self.r#type.as_str().into());
        if let Some(target) = &self.symlink_target {
            fact("leads to", target.as_str().into());
        }
        fact("size", format!("{} ({})", self.size, output::bytes(self.size)).into());
        fact("mode", format!("{} ({})", self.mode, self.permissions()).into());
        fact("owner", format!("{}:{}", self.uid, self.gid).into());
        fact("modified", self.modified.as_deref().unwrap_or("?").into());
        fact("links", self.links.to_string().into());
        fact("inode", self.inode.to_string().into());
        table
    }
}

// === impl FilesView ===

impl Show for FilesView {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        match self.style {
            Style::Long => {
                let mut table = Table::default();
                self.files.iter().for_each(|file| table.row(file.row()));
                table.print(to)
            }
            Style::Names => self.lines(to, FileView::raw_name),
            Style::Paths => self.lines(to, FileView::raw_path),
        }
    }
}

impl FilesView {
    /// Names for people, or bytes for programs.
    fn lines(&self, to: &mut Text<'_>, name: impl Fn(&FileView) -> Vec<u8>) -> io::Result<()> {
        for file in &self.files {
            let name = name(file);
            if to.is_terminal() {
                let end = if file.info.r#type() == FileType::Directory {
                    "/"
                } else {
                    ""
                };
                to.painted(file.paint(), &format!("{}{end}", place::shown(&name)))?;
            } else {
                to.bytes(&name)?;
                to.bytes(b"\n")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(path: &str, kind: FileType, mode: u32) -> FileInfo {
        FileInfo {
            path: path.into(),
            r#type: kind.into(),
            size: 2048,
            mode,
            uid: 1000,
            gid: 1000,
            modified: Some(prost_types::Timestamp {
                seconds: 1_700_000_000,
                nanos: 5,
            }),
            links: 1,
            inode: 7,
            ..FileInfo::default()
        }
    }

    fn shown(style: Style, files: Vec<FileInfo>) -> String {
        let view = FilesView {
            files: files.into_iter().map(FileView::from).collect(),
            truncated: false,
            directories_unreadable: None,
            style,
        };
        let mut out = Vec::new();
        view.text(&mut Text::plain(&mut out)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_json_of_a_file_is_stable() {
        let view = FileView::from(file("/a/b", FileType::Regular, 0o644));
        assert_eq!(
            serde_json::to_value(view).unwrap(),
            json!({"path": "/a/b", "path_base64": null, "type": "regular", "size": 2048, "mode": "0644",
                   "uid": 1000, "gid": 1000, "modified": "2023-11-14T22:13:20.000000005Z",
                   "symlink_target": null, "links": 1, "inode": 7})
        );
        let raw = FileInfo {
            path_raw: b"/\xff".as_slice().into(),
            symlink_target: "x".into(),
            ..file("", FileType::Symlink, 0o777)
        };
        let json = serde_json::to_value(FileView::from(raw)).unwrap();
        assert_eq!(
            (&json["path"], &json["path_base64"]),
            (&json!("/\u{fffd}"), &json!("L/8="))
        );
        assert_eq!(json["symlink_target"], "x");
    }

    #[test]
    fn permissions_look_like_those_of_ls() {
        for (kind, mode, shown) in [
            (FileType::Regular, 0o644, "-rw-r--r--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Regular, 0o4755, "-rwsr-xr-x"),
            (FileType::Regular, 0o2644, "-rw-r-Sr--"),
            (FileType::Symlink, 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(FileView::from(file("/x", kind, mode)).permissions(), shown);
        }
    }

    #[test]
    fn lists_are_names_paths_or_a_table() {
        let files = || {
            let link = FileInfo {
                symlink_target: "b".into(),
                ..file("/d/l", FileType::Symlink, 0o777)
            };
            vec![file("/d/b", FileType::Regular, 0o644), link]
        };
        assert_eq!(shown(Style::Names, files()), "b\nl\n");
        assert_eq!(shown(Style::Paths, files()), "/d/b\n/d/l\n");
        assert_eq!(
            shown(Style::Long, files()),
            "-rw-r--r--  1000:1000  2.0 KiB  2023-11-14T22:13:20Z  /d/b\n\
             lrwxrwxrwx  1000:1000  2.0 KiB  2023-11-14T22:13:20Z  /d/l -> b\n"
        );
    }
}
