//! The form of a frame (RFC 6455, section 5.2).

use std::io;

/// What a frame is for. There is no text in a stream of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Continuation,
    Binary,
    Close,
    Ping,
    Pong,
}

/// What comes before the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The last frame of its message.
    pub(crate) last: bool,
    pub(crate) kind: Kind,
    pub(crate) mask: Option<Mask>,
    pub(crate) length: u64,
}

/// What a client XORs its payload with, so that a proxy that takes it for HTTP can't be fed with requests.
pub(crate) type Mask = [u8; 4];

/// The longest header that we write or read.
pub(crate) const MAX_HEADER: usize = 14;
/// The longest payload of Close, Ping and Pong.
pub(crate) const MAX_CONTROL: usize = 125;
/// The longest payload that is accepted. What is larger is no stream of ours.
const MAX_PAYLOAD: u64 = 1 << 20;

pub(crate) fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

// === impl Kind ===

impl Kind {
    pub(crate) fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }

    fn code(self) -> u8 {
        match self {
            Self::Continuation => 0,
            Self::Binary => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }

    fn from_code(code: u8) -> io::Result<Self> {
        match code {
            0 => Ok(Self::Continuation),
            2 => Ok(Self::Binary),
            8 => Ok(Self::Close),
            9 => Ok(Self::Ping),
            10 => Ok(Self::Pong),
            1 => Err(invalid("a WebSocket frame of text where bytes are expected")),
            _ => Err(invalid("a WebSocket frame of an unknown kind")),
        }
    }
}

// === impl Header ===

impl Header {
    /// The header at the beginning of some bytes and its length, or nothing if it is not all there yet.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let [first, second, rest @ ..] = bytes else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err(invalid("a WebSocket frame of an extension that was not agreed on"));
        }
        let (last, kind) = (first & 0x80 != 0, Kind::from_code(first & 0x0f)?);
        let (length, rest) = match second & 0x7f {
            126 => match rest.split_first_chunk() {
                Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk() {
                Some((length, rest)) => (u64::from_be_bytes(*length), rest),
                None => return Ok(None),
            },
            length => (u64::from(length), rest),
        };
        if length > MAX_PAYLOAD {
            return Err(invalid("a WebSocket frame is larger than 1 MiB"));
        }
        if kind.is_control() && (!last || length > MAX_CONTROL as u64) {
            return Err(invalid("a WebSocket control frame is in parts or too long"));
        }
        let (mask, rest) = match (second & 0x80 != 0, rest.split_first_chunk()) {
            (false, _) => (None, rest),
            (true, Some((mask, rest))) => (Some(*mask), rest),
            (true, None) => return Ok(None),
        };
        let header = Self {
            last,
            kind,
            mask,
            length,
        };
        Ok(Some((header, bytes.len() - rest.len())))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        out.push(self.kind.code() | if self.last { 0x80 } else { 0 });
        match self.length {
            length @ 0..126 => out.push(masked | length as u8),
            length @ 126..=0xffff => {
                out.push(masked | 126);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                out.push(masked | 127);
                out.extend_from_slice(&length.to_be_bytes());
            }
        }
        out.extend_from_slice(self.mask.as_ref().map_or(&[][..], |mask| mask));
    }
}

/// Masks bytes, or unmasks them. They begin at `offset` of the payload.
pub(crate) fn apply_mask(bytes: &mut [u8], mut mask: Mask, offset: u64) {
    mask.rotate_left((offset % 4) as usize);
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for length in [0, 1, 125, 126, 127, 0xffff, 0x1_0000, MAX_PAYLOAD] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let header = Header {
                    last: length % 2 == 0,
                    kind: Kind::Binary,
                    mask,
                    length,
                };
                let mut bytes = Vec::new();
                header.write(&mut bytes);
                assert!(bytes.len() <= MAX_HEADER);
                for cut in 0..bytes.len() {
                    assert_eq!(Header::parse(&bytes[..cut]).unwrap(), None);
                }
                let read = (header, bytes.len());
                bytes.push(0);
                assert_eq!(Header::parse(&bytes).unwrap(), Some(read));
            }
        }
    }

    #[test]
    fn what_is_no_frame_of_ours_is_refused() {
        for bytes in [
            &[0x81, 0][..],                          // text
            &[0xc2, 0],                              // an extension
            &[0x83, 0],                              // an unknown kind
            &[0x09, 0],                              // a ping in parts
            &[0x89, 126, 0, 126],                    // a long ping
            &[0x82, 127, 0, 0, 0, 0, 0, 0x10, 0, 1], // over 1 MiB
            &[0x82, 127, 0xff, 0, 0, 0, 0, 0, 0, 0], // absurd
        ] {
            assert!(Header::parse(bytes).is_err(), "{bytes:x?}");
        }
    }

    #[test]
    fn a_mask_goes_on_where_it_was() {
        let plain: Vec<u8> = (0..100).collect();
        let mask = [0x12, 0x34, 0x56, 0x78];
        let mut whole = plain.clone();
        apply_mask(&mut whole, mask, 0);
        let one_by_one: Vec<u8> = plain
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        assert_eq!(whole, one_by_one);
        for cut in 0..100 {
            let mut parts = plain.clone();
            let (first, second) = parts.split_at_mut(cut);
            apply_mask(first, mask, 0);
            apply_mask(second, mask, cut as u64);
            assert_eq!(parts, whole, "{cut}");
        }
    }
}
