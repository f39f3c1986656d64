//! The token that callers on TCP must show. Any user of this machine can connect to a port; only ours can read the file.

use std::{
    fmt::{self, Write as _},
    fs::{self, File},
    hint,
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::rand::{GetRandomFlags, getrandom};

use super::{OTHERS, StateError};

/// The secret, and where it lies.
#[derive(Clone)]
pub struct Token {
    secret: String,
    path: PathBuf,
}

const BYTES: usize = 32;
const LENGTHS: std::ops::RangeInclusive<usize> = 32..=256;

// === impl Token ===

impl Token {
    pub(super) fn read_or_make(dir: &Path) -> Result<Self, StateError> {
        let path = dir.join("token");
        let unusable = |error| StateError::TokenUnusable(path.clone(), error);
        let secret = match read(&path)? {
            Some(secret) => secret,
            None => make(dir, &path).map_err(unusable)?,
        };
        Ok(Self { secret, path })
    }

    /// Reads one that somebody chose, for several servers. Who else may read it is that person's business: a mounted
    /// Secret is a symlink, and is its group's too.
    pub(super) fn read_shared(path: &Path) -> Result<Self, StateError> {
        let unusable = |error| StateError::TokenUnusable(path.to_owned(), error);
        let file = File::open(path).map_err(unusable)?;
        let secret = secret_in(&file).map_err(unusable)?;
        Ok(Self {
            secret: secret.ok_or_else(|| StateError::SharedTokenMalformed(path.to_owned()))?,
            path: path.to_owned(),
        })
    }

    /// Whether it is the same, in a time that says nothing about how much of it is.
    #[must_use]
    pub fn is(&self, shown: &str) -> bool {
        let (ours, theirs) = (self.secret.as_bytes(), shown.as_bytes());
        let differing = ours
            .iter()
            .zip(theirs)
            .fold(0, |all, (a, b)| hint::black_box(all | (a ^ b)));
        ours.len() == theirs.len() && differing == 0
    }

    /// Where callers find it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Nothing if there is no file.
fn read(path: &Path) -> Result<Option<String>, StateError> {
    let unusable = |error| StateError::TokenUnusable(path.to_owned(), error);
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = match File::options().read(true).custom_flags(nofollow).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error)),
    };
    let meta = file.metadata().map_err(unusable)?;
    if meta.mode() & OTHERS != 0 {
        return Err(StateError::TokenOpen {
            path: path.to_owned(),
            mode: meta.mode() & 0o7777,
        });
    }
    match secret_in(&file).map_err(unusable)? {
        Some(secret) => Ok(Some(secret)),
        None => Err(StateError::TokenMalformed(path.to_owned())),
    }
}

/// Nothing if what is in the file is no token.
fn secret_in(file: &File) -> io::Result<Option<String>> {
    let mut text = Vec::new();
    let most = u64::try_from(*LENGTHS.end() + 2).unwrap_or(u64::MAX);
    file.take(most).read_to_end(&mut text)?;
    let secret = text.trim_ascii();
    let good = LENGTHS.contains(&secret.len()) && secret.iter().all(u8::is_ascii_graphic);
    Ok(good.then(|| String::from_utf8_lossy(secret).into_owned()))
}

/// Writes aside and renames in, so that a server killed meanwhile leaves no half token.
fn make(dir: &Path, path: &Path) -> io::Result<String> {
    let secret = random_hex()?;
    let aside = dir.join("token.new");
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(&aside)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    Ok(secret)
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    let mut hex = String::with_capacity(2 * BYTES);
    for byte in bytes {
        // Writing to a string does not fail.
        _ = write!(hex, "{byte:02x}");
    }
    Ok(hex)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_only_for_us() {
        let dir = tempfile::tempdir().unwrap();
        let first = Token::read_or_make(dir.path()).unwrap();
        assert_eq!(first.secret.len(), 64);
        assert_eq!(fs::metadata(first.path()).unwrap().mode() & 0o7777, 0o600);
        assert!(!format!("{first:?}").contains(&first.secret));
        let second = Token::read_or_make(dir.path()).unwrap();
        assert_eq!(first.secret, second.secret);
        let elsewhere = Token::read_or_make(tempfile::tempdir().unwrap().path()).unwrap();
        assert_ne!(first.secret, elsewhere.secret);
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::read_or_make(dir.path()).unwrap();
        let secret = token.secret.clone();
        assert!(token.is(&secret));
        for wrong in [
            "",
            &secret[1..],
            &secret[..63],
            &format!("{secret}0"),
            &secret.to_uppercase(),
            &"0".repeat(64),
        ] {
            assert!(!token.is(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_token_that_was_chosen_is_read_as_kubernetes_mounts_it() {
        let dir = tempfile::tempdir().unwrap();
        let (real, path) = (dir.path().join("..data"), dir.path().join("token"));
        std::os::unix::fs::symlink("..data", &path).unwrap();
        let missing = Token::read_shared(&path).unwrap_err().to_string();
        assert!(missing.contains(path.to_str().unwrap()), "{missing}");
        fs::write(&real, format!("{}\n", "t".repeat(32))).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o444)).unwrap();
        let token = Token::read_shared(&path).unwrap();
        assert!(token.is(&"t".repeat(32)));
        assert_eq!(token.path(), path);
        for text in ["", "short", &"ä".repeat(40), &"x".repeat(300), &"two words ".repeat(5)] {
            fs::remove_file(&real).unwrap();
            fs::write(&real, text).unwrap();
            let error = Token::read_shared(&path).unwrap_err();
            assert!(matches!(error, StateError::SharedTokenMalformed(_)), "{text}: {error}");
        }
    }

    #[test]
    fn a_token_that_others_can_read_or_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::read_or_make(dir.path()).unwrap();
        for mode in [0o644, 0o640, 0o604, 0o602] {
            fs::set_permissions(token.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = Token::read_or_make(dir.path()).unwrap_err();
            assert!(matches!(error, StateError::TokenOpen { .. }), "{error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        fs::set_permissions(token.path(), fs::Permissions::from_mode(0o600)).unwrap();
        for text in ["", "short", &"ä".repeat(40), &"x".repeat(300), &"two words ".repeat(5)] {
            fs::write(token.path(), text).unwrap();
            let error = Token::read_or_make(dir.path()).unwrap_err();
            assert!(matches!(error, StateError::TokenMalformed(_)), "{text}: {error}");
        }
        fs::remove_file(token.path()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", token.path()).unwrap();
        assert!(matches!(
            Token::read_or_make(dir.path()),
            Err(StateError::TokenUnusable(..))
        ));
    }
}
