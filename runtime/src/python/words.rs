//! A command line as words, exactly as Python's `shlex.split` has it, which the API is defined by.
//!
//! There is no shell: nothing is expanded, and `#` begins no comment. The crate of that name differs in just this.

/// The words of a command line.
///
/// # Errors
/// A quote that is not closed, or a backslash with nothing behind it, in Python's words.
pub(super) fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match character {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\\' => word
                .get_or_insert_default()
                .push(rest.next().ok_or("No escaped character")?),
            quote @ ('\'' | '"') => quoted(quote, &mut rest, word.get_or_insert_default())?,
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Takes up to the closing quote. Within double quotes a backslash goes before a quote or a backslash only.
fn quoted(quote: char, rest: &mut impl Iterator<Item = char>, word: &mut String) -> Result<(), &'static str> {
    loop {
        match rest.next().ok_or("No closing quotation")? {
            character if character == quote => return Ok(()),
            '\\' if quote == '"' => match rest.next().ok_or("No escaped character")? {
                escaped @ ('"' | '\\') => word.push(escaped),
                other => word.extend(['\\', other]),
            },
            other => word.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    // What python3 -c 'import shlex, sys; print(shlex.split(sys.argv[1]))' says.
    #[test]
    fn splits_as_python_does() {
        for (line, words) in [
            ("", &[][..]),
            ("  \t\n", &[]),
            ("echo a  b", &["echo", "a", "b"]),
            ("echo 'a b' \"c d\"", &["echo", "a b", "c d"]),
            ("a'b'\"c\"d", &["abcd"]),
            ("''", &[""]),
            ("x \"\" y", &["x", "", "y"]),
            ("echo #no comment", &["echo", "#no", "comment"]),
            ("a\\ b", &["a b"]),
            ("a\\\nb", &["a\nb"]),
            ("\"a\\$b\\\"c\\\\d\\n\"", &["a\\$b\"c\\d\\n"]),
            ("'a\\b'", &["a\\b"]),
            ("$HOME *.py | x && y", &["$HOME", "*.py", "|", "x", "&&", "y"]),
            ("a\u{a0}b", &["a\u{a0}b"]),
        ] {
            assert_eq!(split(line).unwrap(), words, "{line:?}");
        }
        assert_eq!(split("echo 'a"), Err("No closing quotation"));
        assert_eq!(split("echo \"a"), Err("No closing quotation"));
        assert_eq!(split("echo a\\"), Err("No escaped character"));
        assert_eq!(split("echo \"a\\"), Err("No escaped character"));
    }
}
