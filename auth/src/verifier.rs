//! The runtime's side: it verifies.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use crate::{
    claims::{Claims, Expected, seconds},
    directory::{Look, Pace},
    jwk::{JWKS_FILE, PublicKeys, from_jwks},
    keyring::KeyError,
    token::{TokenError, Unverified},
};

/// How often the directory is looked at, so that a key that was taken back is.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often an unknown key id makes us read the keys. Anybody can make one up.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Tokens that are remembered. A server has a few for one runtime in the minute that they live.
const REMEMBER: usize = 256;

/// Verifies tokens with the public keys of a directory, which it reads again when they change.
#[derive(Debug)]
pub struct Verifier {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    keys: PublicKeys,
    look: Option<Look>,
    looks: Pace,
    reads: Pace,
    /// Claims of tokens whose signature was found right: a call costs no second one.
    verified: HashMap<String, Claims>,
}

// === impl Verifier ===

impl Verifier {
    /// Reads the public keys: [`JWKS_FILE`] in a directory. There may be none yet; a token with an unknown key makes it
    /// read them again, at most once a second.
    ///
    /// # Errors
    /// The file is not there or holds something else.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, KeyError> {
        let dir = dir.into();
        let look = Look::at(&dir).ok();
        let state = State {
            keys: read(&dir)?,
            look,
            looks: Pace::begun(LOOK_EVERY),
            reads: Pace::at_once(READ_EVERY),
            verified: HashMap::new(),
        };
        Ok(Self {
            dir,
            state: Mutex::new(state),
        })
    }

    /// What a token says, if it is good here and now.
    ///
    /// # Errors
    /// It is not, for the reason given.
    pub fn verify(&self, token: &str, expected: &Expected, now: SystemTime) -> Result<Claims, TokenError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looks.due() {
            state.refresh(&self.dir);
        }
        if let Some(claims) = state.verified.get(token) {
            claims.check(expected, now)?;
            return Ok(claims.clone());
        }
        let unverified = Unverified::parse(token)?;
        if !state.keys.contains_key(&unverified.key_id) && state.reads.due() {
            state.reread(&self.dir);
        }
        let key = state.keys.get(&unverified.key_id).ok_or(TokenError::UnknownKey)?;
        let claims = unverified.verify(key)?;
        claims.check(expected, now)?;
        state.remember(token, &claims, now);
        Ok(claims)
    }
}

// === impl State ===

impl State {
    fn refresh(&mut self, dir: &Path) {
        let look = Look::at(dir).ok();
        if look != self.look {
            self.look = look;
            self.reread(dir);
        }
    }

    /// What can't be read leaves the old keys in use: a mount that is just being replaced must not lock the server out.
    fn reread(&mut self, dir: &Path) {
        match read(dir) {
            Ok(keys) => {
                self.keys = keys;
                self.verified.clear();
            }
            Err(error) => tracing::warn!(%error, "the public keys can't be read again; the old ones stay"),
        }
    }

    fn remember(&mut self, token: &str, claims: &Claims, now: SystemTime) {
        if self.verified.len() >= REMEMBER {
            let now = seconds(now);
            self.verified.retain(|_, claims| claims.expires_at > now);
        }
        if self.verified.len() < REMEMBER {
            self.verified.insert(token.to_owned(), claims.clone());
        }
    }
}

fn read(dir: &Path) -> Result<PublicKeys, KeyError> {
    let path = dir.join(JWKS_FILE);
    let name = || path.display().to_string();
    let text = fs::read(&path).map_err(|error| KeyError::Io(name(), error))?;
    from_jwks(&text).map_err(|error| KeyError::Invalid(name(), error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{NewKey, Scope, Signer};

    #[test]
    fn a_key_that_was_taken_back_is_no_longer_good() {
        let (private, public) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(private.path().join("a.pem"), NewKey::generate().unwrap().pem).unwrap();
        let signer = Signer::open(private.path()).unwrap();
        let file = public.path().join(JWKS_FILE);
        fs::write(&file, signer.jwks().to_string()).unwrap();
        let verifier = Verifier::open(public.path()).unwrap();
        let expected = Expected {
            audience: "here".into(),
            pod_uid: None,
            incarnation: "i".into(),
        };
        let token = signer.token(&Claims::new("here", Scope::Hello, Duration::from_secs(30)));
        let now = SystemTime::now();
        verifier.verify(&token, &expected, now).unwrap();
        assert_eq!(verifier.state.lock().unwrap().verified.len(), 1);

        let refresh = || verifier.state.lock().unwrap().refresh(public.path());
        fs::write(&file, "half a file").unwrap();
        refresh();
        verifier.verify(&token, &expected, now).unwrap();
        fs::write(&file, json!({"keys": []}).to_string()).unwrap();
        refresh();
        assert_eq!(verifier.verify(&token, &expected, now), Err(TokenError::UnknownKey));
    }
}
