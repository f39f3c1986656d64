//! The reasons stand in three places: the enum with its comments, the code in Rust, and the page for users. Here they
//! are held against each other.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use sandgate_errors::{code, from_name, name};
use sandgate_proto::v1::ErrorReason;
use tonic::Code;

const PAGE: &str = include_str!("../../docs/errors.md");
const FILE: &str = "sandgate/v1/errors.proto";

/// All reasons that are ever sent, each with the gRPC code that the comment of its value begins with.
fn in_contract() -> BTreeMap<&'static str, String> {
    let files = FileDescriptorSet::decode(sandgate_proto::FILE_DESCRIPTOR_SET)
        .unwrap()
        .file;
    let file = files.iter().find(|file| file.name() == FILE).unwrap();
    let comments: BTreeMap<_, _> = file
        .source_code_info
        .iter()
        .flat_map(|info| &info.location)
        .map(|location| (location.path.as_slice(), location.leading_comments()))
        .collect();
    let mut reasons = BTreeMap::new();
    for (index, value) in file.enum_type[0].value.iter().enumerate().skip(1) {
        let reason = ErrorReason::from_str_name(value.name()).unwrap();
        // Field 5 of a file are its enums, field 2 of an enum its values.
        let comment = comments[&[5, 0, 2, i32::try_from(index).unwrap()][..]];
        let (code, _) = comment.trim().split_once('.').unwrap();
        reasons.insert(name(reason), code.to_owned());
    }
    reasons
}

/// `InvalidArgument` as `INVALID_ARGUMENT`.
fn spelled(code: Code) -> String {
    let mut out = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

/// The rows of the page's tables, without heads: their cells.
fn rows() -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| -> Vec<&str> { line.trim_matches('|').split('|').map(str::trim).collect() };
    PAGE.lines().filter(|line| line.starts_with("| `")).map(cells).collect()
}

#[test]
fn the_code_of_each_reason_is_what_the_contract_says() {
    let contract = in_contract();
    assert!(contract.len() > 40, "only {} reasons found", contract.len());
    for (reason, said) in contract {
        assert_eq!(spelled(code(from_name(reason).unwrap())), said, "{reason}");
    }
}

#[test]
fn the_page_names_each_reason_once_with_its_code() {
    let mut on_page = BTreeMap::new();
    for row in rows() {
        let [reason, code, from, when, remedy] = row[..] else {
            panic!("not five cells: {row:?}")
        };
        let reason = reason.trim_matches('`');
        assert!(
            on_page.insert(reason, code.to_owned()).is_none(),
            "{reason} is there twice"
        );
        let senders = ["both", "runtime", "runtime, later", "server", "server, later"];
        assert!(senders.contains(&from), "{reason}: from {from}");
        assert!(
            when.ends_with('.') && remedy.ends_with('.'),
            "{reason}: say when, and what to do"
        );
    }
    assert_eq!(on_page, in_contract());
}
