//! Private keys as they lie in a directory.

use std::{fs, io, path::Path};

use ed25519_dalek::{
    SigningKey,
    pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, KeypairBytes, spki::der::pem::LineEnding},
};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;

use crate::{
    directory::Look,
    jwk::{key_id, to_jwks},
};

/// The file whose content names the key that signs.
const CURRENT: &str = "current";

/// Why keys could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file or the directory could not be read.
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
    /// A file is there and is not what it should be.
    #[error("{0}: {1}")]
    Invalid(String, String),
    /// The directory holds no key.
    #[error("{0}: no private key (*.pem) is there")]
    NoKey(String),
}

/// The private keys of a server at one time. The one that signs comes first.
#[derive(Debug)]
pub struct Keyring(Vec<PrivateKey>);

#[derive(Debug)]
pub(crate) struct PrivateKey {
    stem: String,
    pub(crate) id: String,
    pub(crate) key: SigningKey,
}

/// A private key that nobody has had. It has no `Debug`, so that it does not end up in a log.
pub struct NewKey {
    /// What goes into a file `<name>.pem`: PKCS#8, as OpenSSL writes it too.
    pub pem: String,
    /// The id under which it is published.
    pub id: String,
}

// === impl Keyring ===

impl Keyring {
    pub(crate) fn read(dir: &Path, look: &Look) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        // In the order of their names, so that the last one is the newest if names are dates or numbers.
        for path in look.names().map(|name| dir.join(name)) {
            if path.extension().is_some_and(|extension| extension == "pem") {
                keys.push(PrivateKey::read(&path)?);
            }
        }
        let current = match fs::read_to_string(dir.join(CURRENT)) {
            Ok(name) => Some(name.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(KeyError::Io(dir.join(CURRENT).display().to_string(), error)),
        };
        let signs = match &current {
            Some(name) => keys.iter().position(|key| key.stem == *name).ok_or_else(|| {
                let message = format!("it names {name:?}, and there is no such key");
                KeyError::Invalid(dir.join(CURRENT).display().to_string(), message)
            })?,
            None => (keys.len().checked_sub(1)).ok_or_else(|| KeyError::NoKey(dir.display().to_string()))?,
        };
        let first = keys.remove(signs);
        keys.insert(0, first);
        Ok(Self(keys))
    }

    pub(crate) fn current(&self) -> &PrivateKey {
        &self.0[0]
    }

    /// The seeds of the keys with their ids, for what else is to be kept secret with them. The one that signs is first.
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &[u8; 32])> {
        self.0.iter().map(|key| (key.id.as_str(), key.key.as_bytes()))
    }

    /// The public keys of all, as a JSON Web Key Set.
    pub fn jwks(&self) -> Value {
        to_jwks(self.0.iter().map(|key| (key.id.as_str(), key.key.verifying_key())))
    }
}

// === impl PrivateKey ===

impl PrivateKey {
    fn read(path: &Path) -> Result<Self, KeyError> {
        let name = || path.display().to_string();
        let pem = fs::read_to_string(path).map_err(|error| KeyError::Io(name(), error))?;
        let key = SigningKey::from_pkcs8_pem(&pem)
            .map_err(|error| KeyError::Invalid(name(), format!("not an Ed25519 key in PKCS#8 PEM: {error}")))?;
        Ok(Self {
            stem: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            id: key_id(&key.verifying_key()),
            key,
        })
    }
}

// === impl NewKey ===

impl NewKey {
    /// Makes one.
    ///
    /// # Errors
    /// The kernel has no random bytes to give.
    pub fn generate() -> io::Result<Self> {
        let mut seed = [0; 32];
        getrandom(&mut seed, GetRandomFlags::empty())?;
        let key = SigningKey::from_bytes(&seed);
        // Without the public key, which is the older version of the format and the one that every tool reads.
        let pair = KeypairBytes {
            secret_key: seed,
            public_key: None,
        };
        let pem = pair.to_pkcs8_pem(LineEnding::LF).map_err(io::Error::other)?;
        Ok(Self {
            pem: pem.as_str().to_owned(),
            id: key_id(&key.verifying_key()),
        })
    }
}
