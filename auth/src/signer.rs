//! The server's side: it signs.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::{
    claims::Claims,
    directory::{Look, Pace},
    keyring::{KeyError, Keyring},
    token,
};

/// How often the directory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// Signs tokens with the private keys of a directory, which it reads again when they change.
#[derive(Debug)]
pub struct Signer {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    keyring: Arc<Keyring>,
    look: Look,
    pace: Pace,
}

// === impl Signer ===

impl Signer {
    /// Reads the private keys in a directory: `*.pem`, PKCS#8. A file `current` names the one that signs, without the
    /// `.pem`; else the last by name signs.
    ///
    /// # Errors
    /// There is no key, or one that can't be read.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, KeyError> {
        let dir = dir.into();
        let look = look(&dir)?;
        let keyring = Arc::new(Keyring::read(&dir, &look)?);
        let state = State {
            keyring,
            look,
            pace: Pace::begun(LOOK_EVERY),
        };
        Ok(Self {
            dir,
            state: Mutex::new(state),
        })
    }

    /// A token that says this.
    pub fn token(&self, claims: &Claims) -> String {
        let keyring = self.keyring();
        let current = keyring.current();
        token::sign(claims, &current.id, &current.key)
    }

    /// The public keys of all private ones, as a JSON Web Key Set. Publish it before a new key signs.
    pub fn jwks(&self) -> Value {
        self.keyring().jwks()
    }

    /// The keys as they are now.
    pub fn keyring(&self) -> Arc<Keyring> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.pace.due() {
            state.refresh(&self.dir);
        }
        state.keyring.clone()
    }
}

// === impl State ===

impl State {
    /// Reads the keys if they have changed. What can't be read leaves the old ones in use: better than none.
    fn refresh(&mut self, dir: &Path) {
        let outcome = look(dir).and_then(|look| {
            if look == self.look {
                return Ok(None);
            }
            let keyring = Keyring::read(dir, &look);
            self.look = look;
            keyring.map(Some)
        });
        match outcome {
            Ok(Some(keyring)) => {
                tracing::info!(current = keyring.current().id, "the keys that sign have changed");
                self.keyring = Arc::new(keyring);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the keys that sign have changed and can't be read; the old ones stay")
            }
        }
    }
}

fn look(dir: &Path) -> Result<Look, KeyError> {
    Look::at(dir).map_err(|error| KeyError::Io(dir.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::NewKey;

    fn ids(signer: &Signer) -> Vec<String> {
        let keyring = signer.keyring();
        keyring.secrets().map(|(id, _)| id.to_owned()).collect()
    }

    #[test]
    fn a_new_key_is_published_before_it_signs() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (NewKey::generate().unwrap(), NewKey::generate().unwrap());
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert!(matches!(Signer::open(dir.path()), Err(KeyError::NoKey(_))));
        write("2026-01.pem", &old.pem);
        write("current", "2026-01\n");
        let signer = Signer::open(dir.path()).unwrap();
        assert_eq!(ids(&signer), std::slice::from_ref(&old.id));

        let refresh = || signer.state.lock().unwrap().refresh(dir.path());
        write("2026-02.pem", &new.pem);
        refresh();
        assert_eq!(ids(&signer), [old.id.clone(), new.id.clone()]);
        assert_eq!(signer.jwks()["keys"].as_array().unwrap().len(), 2);
        write("current", "2026-03");
        refresh();
        assert_eq!(ids(&signer)[0], old.id, "a name of no key leaves things as they are");
        write("current", "2026-02");
        refresh();
        assert_eq!(ids(&signer), [new.id.clone(), old.id.clone()]);
        fs::remove_file(dir.path().join("current")).unwrap();
        refresh();
        assert_eq!(ids(&signer)[0], new.id, "the last by name");
    }
}
