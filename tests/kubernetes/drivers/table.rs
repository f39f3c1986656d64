//! The table of docs/drivers.md, which a test of the provider holds to the list that the code uses.

use std::{collections::BTreeMap, fs};

use sandgate::v1::CapabilityLevel;

/// What a driver can do by that page, of all that there is. `None`: it can't.
pub(crate) fn table(driver: &str) -> BTreeMap<String, Option<CapabilityLevel>> {
    let page = fs::read_to_string("../../docs/drivers.md").unwrap();
    let (_, rest) = page.split_once("<!-- capabilities: begin").unwrap();
    let (table, _) = rest.split_once("<!-- capabilities: end").unwrap();
    let mut rows = table.lines().filter(|line| line.starts_with('|')).map(cells);
    let column = rows.next().unwrap().iter().position(|name| *name == driver).unwrap();
    let rows = rows.skip(1).map(|row| {
        let level = match row[column] {
            "yes" => Some(CapabilityLevel::Full),
            "–" => None,
            part => part.starts_with("in part").then_some(CapabilityLevel::Limited),
        };
        (row[0].trim_matches('`').to_owned(), level)
    });
    let rows: BTreeMap<_, _> = rows.collect();
    assert!(rows.len() > 20, "{rows:?}");
    rows
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}
