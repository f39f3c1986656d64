//! What a model gets to see of an output: its ends, cut where a reader would cut.

use bytes::Bytes;
use sandgate_errors::Refusal;
use sandgate_output::Excerpt;
use sandgate_proto::runtime::v1::{BudgetedOutput, OutputBudget};

/// How much of each stream to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes from the start.
    pub head: u64,
    /// Bytes from the end.
    pub tail: u64,
}

const MAX: u64 = 1 << 20;
const DEFAULT: u64 = 32 << 10;
/// A character of UTF-8 has at most this many bytes.
const LONGEST_CHARACTER: usize = 4;

// === impl Budget ===

impl Budget {
    /// The budget that a caller asked for, or the default one.
    ///
    /// # Errors
    /// When it is larger than an answer can hold.
    pub fn check(budget: Option<OutputBudget>) -> Result<Self, Refusal> {
        let OutputBudget {
            head_bytes: head,
            tail_bytes: tail,
        } = budget.unwrap_or_default();
        match head.checked_add(tail) {
            Some(0) => Ok(Self {
                head: DEFAULT,
                tail: DEFAULT,
            }),
            Some(sum) if sum <= MAX => Ok(Self { head, tail }),
            _ => Err(Refusal::invalid("budget", "head and tail together are at most 1 MiB")),
        }
    }
}

/// Cuts an excerpt at line ends and characters, and counts what is left out.
#[must_use]
pub fn budgeted(excerpt: Excerpt) -> BudgetedOutput {
    let Excerpt {
        total,
        newlines,
        mut head,
        mut tail,
        ..
    } = excerpt;
    if (head.len() + tail.len()) as u64 != total {
        head.truncate(end_of_head(&head));
        tail = tail.slice(start_of_tail(&tail)..);
    } else if !tail.is_empty() {
        head = Bytes::from([head, tail].concat());
        tail = Bytes::new();
    }
    let shown = (head.len() + tail.len()) as u64;
    let lines = |bytes: &[u8]| memchr::memchr_iter(b'\n', bytes).count() as u64;
    BudgetedOutput {
        omitted_bytes: total.saturating_sub(shown),
        omitted_lines: newlines.saturating_sub(lines(&head) + lines(&tail)),
        total_bytes: total,
        head,
        tail,
    }
}

/// Behind the last line end if it is in the second half, else between two characters.
fn end_of_head(head: &[u8]) -> usize {
    match memchr::memrchr(b'\n', head) {
        Some(at) if at >= head.len() / 2 => at + 1,
        _ => {
            let cut = |length: usize| head.len() - length;
            // If what is there ends within a character, leave that character out.
            let partial = (1..LONGEST_CHARACTER.min(head.len() + 1)).find(|&n| is_partial(&head[cut(n)..]));
            partial.map_or(head.len(), cut)
        }
    }
}

/// Behind the first line end if it is in the first half, else between two characters.
fn start_of_tail(tail: &[u8]) -> usize {
    match memchr::memchr(b'\n', tail) {
        Some(at) if at < tail.len() / 2 => at + 1,
        _ => {
            let continuation = |byte: &&u8| **byte & 0xC0 == 0x80;
            let leading = tail.iter().take_while(continuation).count();
            // More than a character can have: it is no UTF-8, and any cut is as good.
            if leading < LONGEST_CHARACTER { leading } else { 0 }
        }
    }
}

/// The bytes begin a character and do not end it.
fn is_partial(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(head: &[u8], tail: &[u8], total: u64, newlines: u64) -> (String, String, u64, u64) {
        let output = budgeted(Excerpt {
            total,
            newlines,
            head: Bytes::copy_from_slice(head),
            tail: Bytes::copy_from_slice(tail),
            lost: 0,
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            text(&output.head),
            text(&output.tail),
            output.omitted_bytes,
            output.omitted_lines,
        )
    }

    #[test]
    fn nothing_is_cut_when_all_fits() {
        assert_eq!(cut(b"a\nb", b"", 3, 1), ("a\nb".into(), String::new(), 0, 0));
        assert_eq!(cut(b"a\n", b"b", 3, 1), ("a\nb".into(), String::new(), 0, 0));
    }

    #[test]
    fn cuts_at_line_ends() {
        assert_eq!(
            cut(b"one\ntwo\nth", b"ee\nfour\n", 100, 20),
            ("one\ntwo\n".into(), "four\n".into(), 87, 17)
        );
    }

    #[test]
    fn cuts_between_characters_where_lines_are_long() {
        let text = "x€y€".as_bytes();
        assert_eq!(cut(&text[..6], &text[2..], 100, 0).0, "x€y");
        assert_eq!(cut(&text[..3], &text[2..], 100, 0), ("x".into(), "y€".into(), 95, 0));
        assert_eq!(cut(b"", &[0x80; 8], 100, 0).2, 92);
    }

    #[test]
    fn budgets_are_bounded() {
        let check = |head_bytes, tail_bytes| Budget::check(Some(OutputBudget { head_bytes, tail_bytes }));
        assert_eq!(
            Budget::check(None).unwrap(),
            Budget {
                head: DEFAULT,
                tail: DEFAULT
            }
        );
        assert_eq!(check(0, 5).unwrap(), Budget { head: 0, tail: 5 });
        assert!(check(MAX, 1).is_err() && check(u64::MAX, u64::MAX).is_err());
    }
}
