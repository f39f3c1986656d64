//! The environment that a caller gave must be given again after each restart, by any replica, and a claim is plain text.
//! So it is kept there sealed, with a key that is made from the servers' signing keys.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use prost::Message as _;
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
    rand::{SecureRandom as _, SystemRandom},
};
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{ConfiguredEnv, EnvVar},
    v1::ErrorReason,
};

const PURPOSE: &[u8] = b"sandgate.dev/v1 environment";
/// Annotations of one object have 256 KiB together.
const MAX_SEALED: usize = 160 << 10;

/// A key of the servers, with its id.
pub(crate) type Secret<'a> = (&'a str, &'a [u8; 32]);

/// Seals an environment for one claim, with the first of `secrets`. `None`: there is nothing to seal.
///
/// # Errors
/// INVALID_ARGUMENT when it is too large.
pub(crate) fn seal(env: &[EnvVar], place: &str, secret: Secret<'_>) -> Result<Option<String>, Refusal> {
    if env.is_empty() {
        return Ok(None);
    }
    let fault = |_| Refusal::new(ErrorReason::Internal, "the environment can't be sealed");
    let mut bytes = ConfiguredEnv { vars: env.to_vec() }.encode_to_vec();
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(fault)?;
    let aad = Aad::from(place.as_bytes());
    let sealing = key(secret.1).map_err(fault)?;
    sealing
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut bytes)
        .map_err(fault)?;
    bytes.splice(0..0, nonce);
    let sealed = format!("{}.{}", secret.0, BASE64.encode(bytes));
    if sealed.len() > MAX_SEALED {
        let message = "at most about 120 KiB on Kubernetes, where it is kept in an annotation";
        return Err(Refusal::invalid("env", message));
    }
    Ok(Some(sealed))
}

/// Opens what `seal` made for that claim.
///
/// # Errors
/// SANDBOX_FAILED when no key fits.
pub(crate) fn open<'a>(
    sealed: &str,
    place: &str,
    mut secrets: impl Iterator<Item = Secret<'a>>,
) -> Result<Vec<EnvVar>, Refusal> {
    let opened = sealed.split_once('.').and_then(|(id, text)| {
        let (_, secret) = secrets.find(|(known, _)| *known == id)?;
        let mut bytes = BASE64.decode(text).ok()?;
        let nonce = bytes.first_chunk::<NONCE_LEN>().copied()?;
        let mut sealed = bytes.split_off(NONCE_LEN);
        let key = key(secret).ok()?;
        let aad = Aad::from(place.as_bytes());
        let plain = key
            .open_in_place(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .ok()?;
        ConfiguredEnv::decode(&*plain).ok()
    });
    opened.map(|env| env.vars).ok_or_else(|| {
        let message = "its environment can't be opened: the key that it was sealed with is not among the server's keys";
        Refusal::new(ErrorReason::SandboxFailed, message)
    })
}

fn key(secret: &[u8; 32]) -> Result<LessSafeKey, ring::error::Unspecified> {
    let derived = Salt::new(HKDF_SHA256, &[]).extract(secret);
    let material = derived.expand(&[PURPOSE], &CHACHA20_POLY1305)?;
    Ok(LessSafeKey::new(UnboundKey::from(material)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> Vec<EnvVar> {
        vec![EnvVar {
            name: "TOKEN".to_owned(),
            value: "hunter2".to_owned(),
            ..EnvVar::default()
        }]
    }

    #[test]
    fn only_the_key_that_sealed_it_opens_it_and_only_there() {
        let (old, new) = (("old", &[1; 32]), ("new", &[2; 32]));
        let sealed = seal(&env(), "ns/a", old).unwrap().unwrap();
        assert!(!sealed.contains("hunter2"));
        assert_eq!(open(&sealed, "ns/a", [new, old].into_iter()).unwrap(), env());
        assert!(open(&sealed, "ns/b", [old].into_iter()).is_err());
        assert!(open(&sealed, "ns/a", [new].into_iter()).is_err());
        assert!(open(&sealed, "ns/a", [("old", &[2; 32])].into_iter()).is_err());
        for wrong in ["", "old", "old.", "old.AAAA", "old.!"] {
            assert!(open(wrong, "ns/a", [old].into_iter()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nothing_is_not_sealed_and_too_much_is_refused() {
        assert_eq!(seal(&[], "ns/a", ("k", &[1; 32])).unwrap(), None);
        let large = EnvVar {
            name: "A".to_owned(),
            value: "x".repeat(200 << 10),
            ..EnvVar::default()
        };
        assert!(seal(&[large], "ns/a", ("k", &[1; 32])).is_err());
    }
}
