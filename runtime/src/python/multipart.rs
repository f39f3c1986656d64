//! Forms with files in them (RFC 7578), read as they come: a part is handed on while the next bytes are on their way.

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use memchr::memmem::Finder;

/// A form that is being read.
pub(super) struct Multipart<B> {
    body: B,
    buffer: BytesMut,
    delimiter: Finder<'static>,
    place: Place,
}

/// The head of a part.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) file_name: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Before the first part, or within one.
    Content,
    /// Right behind a delimiter.
    Delimiter,
    End,
}

/// Why a form can't be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FormError {
    #[error("not a form: {0}")]
    Malformed(&'static str),
    #[error("the form was cut: {0}")]
    Cut(String),
}

/// The longest head of a part.
const MAX_HEAD: usize = 16 << 10;
/// The longest boundary, by RFC 2046.
const MAX_BOUNDARY: usize = 70;
/// The most that is handed on at once.
const MAX_CHUNK: usize = 256 << 10;

// === impl Multipart ===

impl<B: Body<Data = Bytes> + Unpin> Multipart<B>
where
    B::Error: std::fmt::Display,
{
    pub(super) fn new(body: B, content_type: &str) -> Result<Self, FormError> {
        let boundary = boundary(content_type)?;
        Ok(Self {
            body,
            // A delimiter begins with a line end, which the first one need not have.
            buffer: BytesMut::from("\r\n"),
            delimiter: Finder::new(&format!("\r\n--{boundary}")).into_owned(),
            place: Place::Content,
        })
    }

    /// The next part, past what is left of the one before.
    pub(super) async fn part(&mut self) -> Result<Option<Part>, FormError> {
        while self.chunk().await?.is_some() {}
        if self.place == Place::End {
            return Ok(None);
        }
        self.at_least(2).await?;
        if self.buffer.starts_with(b"--") {
            self.place = Place::End;
            // So that the connection can be used again.
            while self.more().await? {
                self.buffer.clear();
            }
            return Ok(None);
        }
        if !self.buffer.starts_with(b"\r\n") {
            return Err(FormError::Malformed("something stands behind a boundary"));
        }
        let head = loop {
            // The line end of the delimiter belongs to the search: a head may be empty.
            if let Some(end) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                break self.buffer.split_to(end + 4);
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(FormError::Malformed("the head of a part is too long"));
            }
            self.need_more().await?;
        };
        self.place = Place::Content;
        Part::parse(&head).map(Some)
    }

    /// The next bytes of this part; nothing at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, FormError> {
        if self.place != Place::Content {
            return Ok(None);
        }
        let length = self.delimiter.needle().len();
        loop {
            let found = self.delimiter.find(&self.buffer);
            // What could be the beginning of a delimiter waits for the rest.
            let sure = found.unwrap_or_else(|| (self.buffer.len() + 1).saturating_sub(length));
            match (found, sure) {
                (Some(0), _) => {
                    self.buffer.advance(length);
                    self.place = Place::Delimiter;
                    return Ok(None);
                }
                (_, 0) => self.need_more().await?,
                (_, sure) => return Ok(Some(self.buffer.split_to(sure.min(MAX_CHUNK)).freeze())),
            }
        }
    }

    async fn at_least(&mut self, bytes: usize) -> Result<(), FormError> {
        while self.buffer.len() < bytes {
            self.need_more().await?;
        }
        Ok(())
    }

    async fn need_more(&mut self) -> Result<(), FormError> {
        if self.more().await? {
            return Ok(());
        }
        Err(FormError::Cut("it has no last boundary".to_owned()))
    }

    async fn more(&mut self) -> Result<bool, FormError> {
        match self.body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.buffer.extend_from_slice(&data);
                }
                Ok(true)
            }
            Some(Err(error)) => Err(FormError::Cut(error.to_string())),
            None => Ok(false),
        }
    }
}

// === impl Part ===

impl Part {
    fn parse(head: &[u8]) -> Result<Self, FormError> {
        let head = std::str::from_utf8(head).map_err(|_| FormError::Malformed("the head of a part is not UTF-8"))?;
        for line in head.split("\r\n") {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            if !name.trim().eq_ignore_ascii_case("content-disposition") {
                continue;
            }
            let mut part = Self::default();
            let mut extended = None;
            for (name, value) in parameters(value) {
                match name.as_str() {
                    "name" => part.name = value,
                    "filename" => part.file_name = Some(value),
                    "filename*" => extended = extended_value(&value),
                    _ => {}
                }
            }
            part.file_name = extended.or(part.file_name);
            return Ok(part);
        }
        Err(FormError::Malformed("a part says not what it is"))
    }
}

fn boundary(content_type: &str) -> Result<String, FormError> {
    let kind = content_type.split(';').next().unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(FormError::Malformed("its type is not multipart/form-data"));
    }
    let boundary = parameters(content_type)
        .into_iter()
        .find(|(name, _)| name == "boundary");
    match boundary {
        Some((_, boundary)) if !boundary.is_empty() && boundary.len() <= MAX_BOUNDARY => Ok(boundary),
        _ => Err(FormError::Malformed("it has no valid boundary")),
    }
}

/// The parameters of a header's value: `; name=value` or `; name="value"`, in which a backslash goes before any character.
fn parameters(value: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = value.split_once(';').map_or("", |(_, rest)| rest);
    while let Some((name, after)) = rest.split_once('=') {
        let mut value = String::new();
        let mut characters = after.chars();
        if after.starts_with('"') {
            characters.next();
            while let Some(character) = characters.next() {
                match character {
                    '"' => break,
                    '\\' => value.extend(characters.next()),
                    other => value.push(other),
                }
            }
        }
        let remains = characters.as_str();
        let (plain, next) = remains.split_once(';').unwrap_or((remains, ""));
        if !after.starts_with('"') {
            value.push_str(plain.trim());
        }
        found.push((name.trim().to_ascii_lowercase(), value));
        rest = next;
    }
    found
}

/// A value that says its character set (RFC 8187): `UTF-8''name%20of%20file`.
fn extended_value(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    let decoded = percent_encoding::percent_decode_str(encoded).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=\"b--b\"";

    async fn read(form: &[u8], size: usize) -> Result<Vec<(Part, Vec<u8>)>, FormError> {
        let pieces: Vec<_> = form
            .chunks(size)
            .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let mut form = Multipart::new(StreamBody::new(stream::iter(pieces)), TYPE)?;
        let mut parts = Vec::new();
        while let Some(part) = form.part().await? {
            let mut content = Vec::new();
            while let Some(chunk) = form.chunk().await? {
                content.extend_from_slice(&chunk);
            }
            parts.push((part, content));
        }
        Ok(parts)
    }

    fn part(name: &str, file_name: Option<&str>) -> Part {
        Part {
            name: name.into(),
            file_name: file_name.map(Into::into),
        }
    }

    #[tokio::test]
    async fn any_pieces_give_the_same_parts() {
        let form = b"preamble\r\n--b--b\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nvalue\r\n\
            --b--b\r\ncontent-type: x\r\nCONTENT-DISPOSITION: form-data; name=file; filename=\"dir/a \\\"b\\\\c;d.txt\"\r\n\r\n\
            \r\n--b--\r\n--b-\r\n\0\xff-\r\n--b--b--\r\nepilogue";
        for size in 1..=form.len() {
            let parts = read(form, size).await.unwrap();
            assert_eq!(parts.len(), 2);
            assert_eq!(parts[0], (part("other", None), b"value".to_vec()));
            assert_eq!(parts[1].0, part("file", Some("dir/a \"b\\c;d.txt")));
            assert_eq!(parts[1].1, b"\r\n--b--\r\n--b-\r\n\0\xff-");
        }
    }

    #[tokio::test]
    async fn what_is_cut_or_malformed_is_an_error() {
        let form =
            b"--b--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\ncontent\r\n--b--b--";
        assert_eq!(read(form, 7).await.unwrap()[0].1, b"content");
        for cut in 0..form.len() {
            assert!(matches!(read(&form[..cut], 7).await, Err(FormError::Cut(_))), "{cut}");
        }
        let long = [b"--b--b\r\n".to_vec(), vec![b'x'; MAX_HEAD + 10]].concat();
        assert!(matches!(read(&long, 1_000).await, Err(FormError::Malformed(_))));
        assert!(matches!(read(b"--b--bX\r\n", 5).await, Err(FormError::Malformed(_))));
        for kind in [
            "text/plain; boundary=x",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            &format!("multipart/form-data; boundary={}", "x".repeat(71)),
        ] {
            assert!(boundary(kind).is_err(), "{kind}");
        }
    }

    #[test]
    fn names_of_files_come_in_two_forms() {
        let parse = |value: &str| Part::parse(format!("\r\nContent-Disposition: {value}\r\n\r\n").as_bytes()).unwrap();
        let name = |value: &str| parse(value).file_name;
        assert_eq!(name("form-data; name=\"file\"; filename=\"ä b\""), Some("ä b".into()));
        assert_eq!(
            name("form-data; name=\"file\"; filename=\"x\"; filename*=UTF-8''%C3%A4%20b"),
            Some("ä b".into())
        );
        assert_eq!(name("form-data; name=\"file\"; filename*=latin-1''%E4"), None);
        assert_eq!(parse("form-data; name=\"file\"").name, "file");
    }
}
