//! Page and resume tokens: where a caller was, and with which selector. They are kept by callers only, so that any server
//! understands them after any restart.

use sandgate_errors::Refusal;
use sandgate_provider::{Position, Selector, Table};

/// The token for the page behind the sandbox of that name.
pub(super) fn page(selector: &Selector, last: &str) -> String {
    bind(selector, last)
}

/// The name behind which the page of a token begins. An empty token begins at the start.
pub(super) fn page_after<'a>(selector: &Selector, token: &'a str) -> Result<&'a str, Refusal> {
    if token.is_empty() {
        return Ok("");
    }
    unbind(selector, token)
        .ok_or_else(|| Refusal::invalid("page_token", "not a token that this call gave with this label_selector"))
}

/// The token for a watch that has told everything up to `position`.
pub(super) fn resume(selector: &Selector, table: &Table, position: Position) -> String {
    bind(selector, &table.token(position))
}

/// The place where a watch goes on. `None`: it begins with all there are.
pub(super) fn resume_at(selector: &Selector, table: &Table, token: &str) -> Option<Position> {
    table.position(unbind(selector, token)?)
}

fn bind(selector: &Selector, place: &str) -> String {
    format!("{:016x}.{place}", mark(selector))
}

fn unbind<'a>(selector: &Selector, token: &'a str) -> Option<&'a str> {
    let (mark, place) = token.split_once('.')?;
    (u64::from_str_radix(mark, 16).ok()? == self::mark(selector)).then_some(place)
}

/// FNV-1a of the selector: the same in every version and on every machine, which std does not promise of its hashes. It
/// guards against mistakes, not against malice.
fn mark(selector: &Selector) -> u64 {
    selector.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use sandgate_proto::v1::ErrorReason;

    use super::*;

    fn selector(text: &str) -> Selector {
        Selector::parse("label_selector", text).unwrap()
    }

    #[test]
    fn a_page_token_leads_on_with_its_own_selector_only() {
        let (red, blue) = (selector("team=red"), selector("team=blue"));
        let token = page(&red, "box-7");
        assert_eq!(page_after(&red, &token), Ok("box-7"));
        assert_eq!(page_after(&selector(" team == red"), &token), Ok("box-7"));
        assert_eq!(page_after(&red, ""), Ok(""));
        for wrong in [token.as_str(), "box-7", "x.box-7", "."] {
            let refusal = page_after(&blue, wrong).unwrap_err();
            assert_eq!(refusal.reason, ErrorReason::InvalidArgument, "{wrong}");
            assert_eq!(refusal.field.as_deref(), Some("page_token"));
        }
    }

    #[test]
    fn a_resume_token_of_something_else_begins_anew() {
        let (red, all) = (selector("team=red"), Selector::all());
        let table = Table::new("e");
        let (_, position) = table.snapshot(&all);
        let token = resume(&red, &table, position);
        assert_eq!(resume_at(&red, &table, &token), Some(position));
        assert_eq!(resume_at(&all, &table, &token), None);
        assert_eq!(resume_at(&red, &Table::new("f"), &token), None);
        assert_eq!(resume_at(&red, &table, "nonsense"), None);
        assert_eq!(resume_at(&red, &table, ""), None);
    }
}
