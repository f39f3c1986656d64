//! What a page is made of: fenced blocks, tables, anchors.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A fenced block: what stands behind the fence, and the lines.
pub(crate) struct Block {
    pub(crate) place: String,
    pub(crate) info: String,
    pub(crate) text: String,
}

/// A request in JSON, to be sent as it is.
pub(crate) struct Request {
    pub(crate) place: String,
    pub(crate) method: String,
    pub(crate) json: String,
}

pub(crate) fn root() -> PathBuf {
    // Cargo runs tests in their package. The directory of the build may be another clone's that is gone.
    PathBuf::from("..")
}

pub(crate) fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// All that users read.
pub(crate) fn pages() -> Vec<PathBuf> {
    let named = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "bench/README.md",
        "client-rs/README.md",
        "clients/README.md",
        "deploy/README.md",
    ];
    let docs = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = named.iter().map(|name| root().join(name)).chain(docs).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

pub(crate) fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open.as_mut()) {
            (Some(info), None) => {
                let place = format!("{}:{}", page.file_name().unwrap().display(), number + 1);
                open = Some(Block {
                    place,
                    info: info.to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block has no end", page.display());
    blocks
}

/// The blocks of a page of that kind.
pub(crate) fn blocks_of(page: &str, info: &str) -> Vec<Block> {
    let mut blocks = blocks(&root().join(page));
    blocks.retain(|block| block.info == info);
    assert!(!blocks.is_empty(), "{page} has no block of {info:?}");
    blocks
}

/// The requests on a page to that service.
pub(crate) fn requests(page: &Path, service: &str) -> Vec<Request> {
    let prefix = format!("json {service}/");
    let request = |block: Block| {
        Some(Request {
            place: block.place,
            method: block.info.strip_prefix(&prefix)?.to_owned(),
            json: block.text,
        })
    };
    blocks(page).into_iter().filter_map(request).collect()
}

/// What follows the comment that begins with `mark`.
fn after<'a>(text: &'a str, mark: &str) -> &'a str {
    let (_, rest) = text
        .split_once(&format!("<!-- {mark}"))
        .unwrap_or_else(|| panic!("there is no <!-- {mark}"));
    rest
}

/// The rows of the table that a comment announces.
pub(crate) fn table(page: &str, mark: &str) -> Vec<String> {
    let text = read(page);
    let lines = after(&text, mark)
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    lines.skip(2).map(str::to_owned).collect()
}

/// The words in code style in the paragraph that a comment announces.
pub(crate) fn words(page: &str, mark: &str) -> Vec<String> {
    let text = read(page);
    let paragraph = after(&text, mark).split("\n\n").nth(1).unwrap();
    paragraph.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What is in code style in the first cell of a row.
pub(crate) fn first_word(row: &str) -> &str {
    row.split('`').nth(1).unwrap()
}

pub(crate) fn anchors(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -".contains(*c))
            .collect::<String>()
            .replace(' ', "-")
    };
    text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}
