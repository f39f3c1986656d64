//! From HTTP/1.1 to a WebSocket, on both sides (RFC 6455, section 4).

use std::io;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use rustix::rand::{GetRandomFlags, getrandom};
use sha1::{Digest as _, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{PROTOCOL, stream::WebSocket};

/// The answer to an upgrade was another one. It is inside the `io::Error` of [`client`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the upgrade to a WebSocket was answered with {status}: {text}")]
pub struct Refused {
    /// What was answered. A proxy that does not find the sandbox says so by this.
    pub status: StatusCode,
    /// The beginning of what it said.
    pub text: String,
}

/// A request that is no upgrade to our WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadUpgrade(&'static str);

const VERSION: &str = "13";
/// What both sides put behind the key.
const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The most that an answer may have before its body.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
/// The most that is told of a refusal.
const MAX_TEXT: usize = 300;

/// Asks for a WebSocket on a fresh connection, with headers of one's own.
///
/// # Errors
/// The connection ended, or the answer is another one: then the error holds a [`Refused`] and is of the kind
/// `ConnectionRefused`.
///
/// # Caveats
/// It waits for as long as the other side does: set a time limit around it.
pub async fn client<S>(mut io: S, authority: &str, path: &str, headers: &HeaderMap) -> io::Result<WebSocket<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut nonce = [0; 16];
    getrandom(&mut nonce, GetRandomFlags::empty())?;
    let key = STANDARD.encode(nonce);
    io.write_all(&request(authority, path, headers, &key)?).await?;
    io.flush().await?;
    let (head, received) = read_head(&mut io).await?;
    check_answer(&head, &key, &received)?;
    Ok(WebSocket::client(io, &received))
}

/// The headers with which a request for our WebSocket is answered, beside the status 101.
///
/// # Errors
/// The request is another one.
pub fn answer(headers: &HeaderMap) -> Result<HeaderMap, BadUpgrade> {
    if !has_token(headers, &UPGRADE, "websocket") || !has_token(headers, &CONNECTION, "upgrade") {
        return Err(BadUpgrade("this is for WebSockets: upgrade"));
    }
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != VERSION)
    {
        return Err(BadUpgrade("only version 13 of WebSockets is spoken"));
    }
    if !has_token(headers, &SEC_WEBSOCKET_PROTOCOL, PROTOCOL) {
        return Err(BadUpgrade("only the subprotocol sandgate.v1 is spoken"));
    }
    let no_key = BadUpgrade("Sec-WebSocket-Key is missing or is not 16 bytes in base64");
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or(no_key)?;
    if STANDARD.decode(key).map_err(|_| no_key)?.len() != 16 {
        return Err(no_key);
    }
    let accepted = HeaderValue::try_from(accept(key.as_bytes())).map_err(|_| no_key)?;
    Ok(HeaderMap::from_iter([
        (CONNECTION, HeaderValue::from_static("upgrade")),
        (UPGRADE, HeaderValue::from_static("websocket")),
        (SEC_WEBSOCKET_ACCEPT, accepted),
        (SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL)),
    ]))
}

/// What proves that the other side understood the key.
fn accept(key: &[u8]) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(SUFFIX).finalize())
}

fn request(authority: &str, path: &str, headers: &HeaderMap, key: &str) -> io::Result<Vec<u8>> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain(authority) || !is_plain(path) || !path.starts_with('/') {
        let message = format!("{authority}{path} is not an address that can be asked for");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut request = format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: {VERSION}\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {PROTOCOL}\r\n"
    )
    .into_bytes();
    for (name, value) in headers {
        request.extend_from_slice(name.as_str().as_bytes());
        request.extend_from_slice(b": ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    Ok(request)
}

/// Reads an answer up to its body, and what came with it of the rest.
async fn read_head(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(http::Response<()>, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(1_024);
    loop {
        if io.read_buf(&mut bytes).await? == 0 {
            let message = "the connection ended before the upgrade to a WebSocket was answered";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        if let Some((head, length)) = parse_head(&bytes)? {
            return Ok((head, bytes.split_off(length)));
        }
        if bytes.len() > MAX_HEAD {
            return Err(not_http("its head is too long"));
        }
    }
}

fn parse_head(bytes: &[u8]) -> io::Result<Option<(http::Response<()>, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(not_http(error)),
    };
    let mut head = http::Response::new(());
    *head.status_mut() = StatusCode::from_u16(parsed.code.unwrap_or_default()).map_err(not_http)?;
    for header in parsed.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(not_http)?;
        let value = HeaderValue::from_bytes(header.value).map_err(not_http)?;
        head.headers_mut().append(name, value);
    }
    Ok(Some((head, length)))
}

fn not_http(why: impl std::fmt::Display) -> io::Error {
    let message = format!("the upgrade to a WebSocket was not answered in HTTP/1.1: {why}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn check_answer(head: &http::Response<()>, key: &str, received: &[u8]) -> io::Result<()> {
    let refused = |text: String| {
        let status = head.status();
        io::Error::new(io::ErrorKind::ConnectionRefused, Refused { status, text })
    };
    if head.status() != StatusCode::SWITCHING_PROTOCOLS {
        let text = &received[..received.len().min(MAX_TEXT)];
        return Err(refused(String::from_utf8_lossy(text).into_owned()));
    }
    let is = |name, expected: &str| head.headers().get(name).is_some_and(|value| value == expected);
    if !has_token(head.headers(), &UPGRADE, "websocket")
        || !is(SEC_WEBSOCKET_ACCEPT, &accept(key.as_bytes()))
        || !is(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
    {
        return Err(refused("it is not the WebSocket that was asked for".to_owned()));
    }
    Ok(())
}

/// Whether a header that holds a list has a word, in any case.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> HeaderMap {
        HeaderMap::from_iter([
            (CONNECTION, HeaderValue::from_static("keep-alive, Upgrade")),
            (UPGRADE, HeaderValue::from_static("WebSocket")),
            (SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")),
            (SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==")),
            (SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("other, sandgate.v1")),
        ])
    }

    #[test]
    fn answers_as_the_standard_has_it() {
        let answer = answer(&asked()).unwrap();
        // The example of RFC 6455, section 1.3.
        assert_eq!(answer[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer[SEC_WEBSOCKET_PROTOCOL], PROTOCOL);
    }

    #[test]
    fn every_part_of_the_request_is_needed() {
        for name in [
            CONNECTION,
            UPGRADE,
            SEC_WEBSOCKET_VERSION,
            SEC_WEBSOCKET_KEY,
            SEC_WEBSOCKET_PROTOCOL,
        ] {
            let mut headers = asked();
            headers.insert(&name, HeaderValue::from_static("other"));
            assert!(answer(&headers).is_err(), "{name}");
            headers.remove(&name);
            assert!(answer(&headers).is_err(), "{name}");
        }
    }

    #[test]
    fn an_address_can_not_smuggle_a_header() {
        for (authority, path) in [
            ("a\r\nX: y", "/"),
            ("a", "/ HTTP/1.1\r\nX: y"),
            ("a", "p"),
            ("a b", "/"),
        ] {
            assert!(
                request(authority, path, &HeaderMap::new(), "k").is_err(),
                "{authority}{path}"
            );
        }
    }
}
