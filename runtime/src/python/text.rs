//! Bytes as the inside of a JSON string, piece by piece.

/// What is not UTF-8 becomes U+FFFD. A character that is cut between two pieces does not.
#[derive(Debug, Default)]
pub(super) struct JsonText {
    /// The beginning of a character: at most three bytes.
    begun: Vec<u8>,
}

const REPLACEMENT: &str = "\u{fffd}";

// === impl JsonText ===

impl JsonText {
    /// The next piece.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let joined;
        let mut rest = bytes;
        if !self.begun.is_empty() {
            joined = [std::mem::take(&mut self.begun).as_slice(), bytes].concat();
            rest = &joined;
        }
        let mut text = String::with_capacity(rest.len() + rest.len() / 8);
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    escape(valid, &mut text);
                    return text;
                }
                Err(error) => error,
            };
            let (valid, invalid) = rest.split_at(error.valid_up_to());
            escape(std::str::from_utf8(valid).unwrap_or_default(), &mut text);
            match error.error_len() {
                Some(length) => {
                    text.push_str(REPLACEMENT);
                    rest = &invalid[length..];
                }
                None => {
                    self.begun = invalid.to_vec();
                    return text;
                }
            }
        }
    }

    /// What is left when no more comes.
    pub(super) fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.begun).is_empty() {
            ""
        } else {
            REPLACEMENT
        }
    }
}

fn escape(text: &str, out: &mut String) {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    out.push_str(quoted.get(1..quoted.len() - 1).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_good_as_the_whole() {
        let bytes = b"plain \"quoted\" \\ \n\0 \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 bad \xff \xe2\x82 \xc3";
        let expected = serde_json::to_string(&String::from_utf8_lossy(bytes)).unwrap();
        for size in 1..=bytes.len() {
            let mut text = JsonText::default();
            let mut read: String = bytes.chunks(size).map(|piece| text.push(piece)).collect();
            read.push_str(text.finish());
            assert_eq!(format!("\"{read}\""), expected, "pieces of {size}");
        }
    }
}
