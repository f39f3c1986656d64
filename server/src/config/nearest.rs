//! "Did you mean …?"

/// What to say to somebody who gave `wrong` where one of `known` was expected.
pub(super) fn among(wrong: &str, known: &[&str]) -> String {
    let all = known.join(", ");
    match nearest(wrong, known) {
        Some(near) => format!("did you mean {near:?}? (one of: {all})"),
        None => format!("expected one of: {all}"),
    }
}

/// The one that `wrong` is most likely a slip of the keyboard for.
pub(super) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().map(|name| (distance(wrong, name), *name)).min()?;
    (near.0 <= (wrong.len() / 3).max(2)).then_some(near.1)
}

/// Edits (insert, delete, replace one character) between two words.
pub(super) fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, want) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("log", "log", 0),
            ("listn", "listen", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), want, "{a} {b}");
            assert_eq!(distance(b, a), want, "{b} {a}");
        }
    }

    #[test]
    fn only_what_is_near_is_suggested() {
        assert_eq!(nearest("limit", &["listen", "limits"]), Some("limits"));
        assert_eq!(nearest("quota", &["listen", "limits"]), None);
        assert_eq!(nearest("x", &[]), None);
    }
}
