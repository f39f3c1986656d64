//! Public keys as JSON (RFC 7517, RFC 8037).

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::VerifyingKey;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The file that holds the public keys, in the directory that a runtime is given.
pub const JWKS_FILE: &str = "jwks.json";

/// Public keys by their ids.
pub(crate) type PublicKeys = HashMap<String, VerifyingKey>;

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    x: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
}

/// The name of a key: its thumbprint (RFC 7638), so that it is the same wherever the key lies.
pub(crate) fn key_id(key: &VerifyingKey) -> String {
    // The members that the thumbprint is made of, in their order.
    let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, coordinate(key));
    URL_SAFE_NO_PAD.encode(Sha256::digest(canonical))
}

/// A set of public keys, to be published.
pub(crate) fn to_jwks<'a>(keys: impl Iterator<Item = (&'a str, VerifyingKey)>) -> Value {
    let keys: Vec<Value> = keys
        .map(|(id, key)| {
            json!({"kty": "OKP", "crv": "Ed25519", "x": coordinate(&key), "kid": id, "alg": "EdDSA", "use": "sig"})
        })
        .collect();
    json!({ "keys": keys })
}

/// The keys of a set that we can use. Others may be there for others; one that is broken spoils the set.
pub(crate) fn from_jwks(text: &[u8]) -> Result<PublicKeys, String> {
    let jwks: Jwks = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    jwks.keys.into_iter().filter(Jwk::is_ours).map(Jwk::read).collect()
}

fn coordinate(key: &VerifyingKey) -> String {
    URL_SAFE_NO_PAD.encode(key.as_bytes())
}

// === impl Jwk ===

impl Jwk {
    fn is_ours(&self) -> bool {
        let is_or_missing = |value: &Option<String>, wanted| value.as_deref().is_none_or(|value| value == wanted);
        self.kty == "OKP"
            && self.crv.as_deref() == Some("Ed25519")
            && is_or_missing(&self.alg, "EdDSA")
            && is_or_missing(&self.purpose, "sig")
    }

    fn read(self) -> Result<(String, VerifyingKey), String> {
        let wrong = || "an Ed25519 key in it has no valid x".to_owned();
        let bytes = URL_SAFE_NO_PAD
            .decode(self.x.unwrap_or_default())
            .map_err(|_| wrong())?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| wrong())?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| wrong())?;
        Ok((self.kid.unwrap_or_else(|| key_id(&key)), key))
    }
}
