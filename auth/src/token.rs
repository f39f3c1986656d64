//! The form of a token: `header.claims.signature`, each base64url without padding. Whatever could be written in two ways
//! is refused in all but one.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::claims::Claims;

/// Why a token is not good here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no token of ours, whoever signed it.
    #[error("the token is malformed: {0}")]
    Malformed(&'static str),
    /// It was signed with a key that is not published here.
    #[error("the token was signed with a key that is not known here")]
    UnknownKey,
    /// It was changed, or signed by somebody else.
    #[error("the token's signature is wrong")]
    Signature,
    /// It is for another sandbox.
    #[error("the token is for another sandbox")]
    Audience,
    /// It is for an earlier pod of this name.
    #[error("the token is for another pod of this name")]
    PodUid,
    /// It is for an earlier start of this sandbox.
    #[error("the token is for another incarnation of this sandbox")]
    Incarnation,
    /// It was good once.
    #[error("the token has expired")]
    Expired,
    /// It will be good later, or a clock is wrong.
    #[error("the token is from the future: compare the clocks")]
    NotYet,
    /// It was issued for longer than is accepted.
    #[error("the token lives for longer than 60 s")]
    LivesTooLong,
}

const ALGORITHM: &str = "EdDSA";
const TYPE: &str = "sandgate+jwt";
/// Longer ones are not looked at.
const MAX_BYTES: usize = 4_096;

/// Any other member, `crit` above all, would change what the token means, so it is refused.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
}

/// A token whose signature was not looked at yet.
#[derive(Debug)]
pub(crate) struct Unverified<'a> {
    pub(crate) key_id: String,
    signed: &'a str,
    claims: &'a str,
    signature: Signature,
}

pub(crate) fn sign(claims: &Claims, key_id: &str, key: &SigningKey) -> String {
    let header = Header {
        alg: ALGORITHM.into(),
        typ: TYPE.into(),
        kid: key_id.into(),
    };
    let mut token = part(&header);
    token.push('.');
    token.push_str(&part(claims));
    let signature = key.sign(token.as_bytes());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature.to_bytes(), &mut token);
    token
}

fn part(value: &impl Serialize) -> String {
    // Strings and numbers in a struct: there is nothing that could fail, and an empty part would be refused.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(value).unwrap_or_default())
}

// === impl Unverified ===

impl<'a> Unverified<'a> {
    pub(crate) fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_BYTES {
            return Err(TokenError::Malformed("it is too long"));
        }
        let three = || TokenError::Malformed("it does not have three parts");
        let (signed, signature) = token.rsplit_once('.').ok_or_else(three)?;
        let (header, claims) = signed.split_once('.').ok_or_else(three)?;
        let header: Header = serde_json::from_slice(&decode(header)?)
            .map_err(|_| TokenError::Malformed("its header is not one that is accepted"))?;
        if header.alg != ALGORITHM {
            return Err(TokenError::Malformed("its algorithm is not EdDSA"));
        }
        if header.typ != TYPE {
            return Err(TokenError::Malformed("it is of another type"));
        }
        let signature = Signature::from_slice(&decode(signature)?)
            .map_err(|_| TokenError::Malformed("its signature is not an Ed25519 one"))?;
        Ok(Self {
            key_id: header.kid,
            signed,
            claims,
            signature,
        })
    }

    pub(crate) fn verify(&self, key: &VerifyingKey) -> Result<Claims, TokenError> {
        key.verify_strict(self.signed.as_bytes(), &self.signature)
            .map_err(|_| TokenError::Signature)?;
        serde_json::from_slice(&decode(self.claims)?)
            .map_err(|_| TokenError::Malformed("its claims are not those that are needed"))
    }
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| TokenError::Malformed("a part is not base64url without padding"))
}
