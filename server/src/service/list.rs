//! List: pages of sandboxes.

use std::sync::Arc;

use prost::Message as _;
use sandgate_errors::Refusal;
use sandgate_proto::v1::{ListRequest, ListResponse};
use sandgate_provider::{Selector, Table};

use super::tokens;

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 500;
/// No message is over 3 MiB. Labels can make a sandbox large, so a page may have to end early.
const PAGE_BYTES: usize = 2 << 20;

pub(super) fn list(table: &Table, request: &ListRequest) -> Result<ListResponse, Refusal> {
    let size = match usize::try_from(request.page_size).unwrap_or(usize::MAX) {
        0 => DEFAULT_PAGE,
        size if size <= MAX_PAGE => size,
        _ => return Err(Refusal::invalid("page_size", "at most 500")),
    };
    let selector = Selector::parse("label_selector", &request.label_selector)?;
    let after = tokens::page_after(&selector, &request.page_token)?;
    let (mut page, mut more) = table.list(&selector, after, size);
    let fitting = fitting(page.iter().map(|sandbox| sandbox.encoded_len()));
    if fitting < page.len() {
        page.truncate(fitting);
        more = true;
    }
    let next_page_token = match page.last() {
        Some(last) if more => tokens::page(&selector, &last.name),
        _ => String::new(),
    };
    Ok(ListResponse {
        sandboxes: page.into_iter().map(Arc::unwrap_or_clone).collect(),
        next_page_token,
    })
}

/// How many messages of these sizes fit in a page. One always does.
fn fitting(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fits = |size: &usize| {
        bytes += size;
        bytes <= PAGE_BYTES
    };
    sizes.take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use sandgate_proto::v1::Sandbox;

    use super::*;

    fn table(count: usize) -> Table {
        let table = Table::new("e");
        for i in 0..count {
            table.put(Sandbox {
                name: format!("box-{i:04}"),
                labels: [("odd".to_owned(), (i % 2 == 1).to_string())].into(),
                ..Sandbox::default()
            });
        }
        table
    }

    #[test]
    fn pages_lead_through_all_that_match_once() {
        let table = table(25);
        let mut request = ListRequest {
            label_selector: "odd=true".into(),
            page_size: 5,
            ..Default::default()
        };
        let mut names = Vec::new();
        let mut pages = 0;
        loop {
            let page = list(&table, &request).unwrap();
            pages += 1;
            names.extend(page.sandboxes.into_iter().map(|sandbox| sandbox.name));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        let expected: Vec<_> = (0..25).filter(|i| i % 2 == 1).map(|i| format!("box-{i:04}")).collect();
        assert_eq!((names, pages), (expected, 3));
        request.label_selector = String::new();
        assert!(list(&table, &request).is_err(), "a token of another selector");
    }

    #[test]
    fn sizes_have_a_default_and_a_bound() {
        let table = table(600);
        let page = |page_size| {
            list(
                &table,
                &ListRequest {
                    page_size,
                    ..Default::default()
                },
            )
        };
        assert_eq!(page(0).unwrap().sandboxes.len(), 100);
        assert_eq!(page(500).unwrap().sandboxes.len(), 500);
        assert_eq!(page(501).unwrap_err().field.as_deref(), Some("page_size"));
    }

    #[test]
    fn a_page_ends_before_it_is_too_large_and_is_never_empty() {
        assert_eq!(fitting([PAGE_BYTES / 2; 5].into_iter()), 2);
        assert_eq!(fitting([PAGE_BYTES * 2; 5].into_iter()), 1);
        assert_eq!(fitting([1; 5].into_iter()), 5);
    }
}
