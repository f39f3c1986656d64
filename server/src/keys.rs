//! `sandgate-server keys`: private keys in a directory, as the server on Kubernetes signs with them.
//!
//! A new key must be published before it signs, or sandboxes refuse it. So `current` always names the one that signs, and
//! making a key never changes which that is.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use sandgate_auth::{KeyError, NewKey, Signer};

/// The file whose content names the key that signs.
const CURRENT: &str = "current";
const PEM: &str = "pem";

/// Why keys can't be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// Something in the directory can't be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// The kernel gives no random numbers.
    #[error("can't make a key: {0}")]
    Random(#[source] io::Error),
    /// The name would not be one everywhere.
    #[error("{0:?} is no name for a key: expected letters, digits, dashes, dots and underscores")]
    Name(String),
    /// A key of that name is there.
    #[error("{0}: there is a key of that name")]
    Taken(PathBuf),
    /// No key of that name is there.
    #[error("{dir}: there is no key {name:?}; {known}")]
    Unknown {
        /// The directory.
        dir: PathBuf,
        /// What was asked for.
        name: String,
        /// What is there.
        known: String,
    },
    /// What is there can't be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
}

/// Makes a key, and tells what to do with it. Only the first one of a directory signs at once.
///
/// # Errors
/// When the directory can't be written.
pub fn new(dir: &Path, name: Option<&str>) -> Result<String, KeysError> {
    let failed = |error| KeysError::Io(dir.to_owned(), error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(failed)?;
    let known = names(dir)?;
    let name = match name {
        Some(name) if is_name(name) => name.to_owned(),
        Some(name) => return Err(KeysError::Name(name.to_owned())),
        None => next(&known),
    };
    let path = dir.join(format!("{name}.{PEM}"));
    if known.contains(&name) {
        return Err(KeysError::Taken(path));
    }
    // Else the last by name signs, which the new one may be.
    let signs = match (current(dir)?, known.last()) {
        (Some(signs), _) => Some(signs),
        (None, Some(last)) => {
            set_current(dir, last)?;
            Some(last.clone())
        }
        (None, None) => None,
    };
    let key = NewKey::generate().map_err(KeysError::Random)?;
    write_new(&path, &key.pem).map_err(|error| KeysError::Io(path.clone(), error))?;
    let made = format!("made {} with id {}\n", path.display(), key.id);
    let dir_shown = dir.display();
    let then = match signs {
        None => {
            set_current(dir, &name)?;
            "It signs. Publish its public key: sandgate-server keys jwks".to_owned() + &format!(" {dir_shown}\n")
        }
        Some(signs) => format!(
            "{signs} still signs. Publish the public keys first: sandgate-server keys jwks {dir_shown}\nWhen every sandbox has \
             them: sandgate-server keys use {dir_shown} {name}\n"
        ),
    };
    Signer::open(dir)?;
    Ok(made + &then)
}

/// The public keys of a directory, as a JSON Web Key Set.
///
/// # Errors
/// When they can't be read.
pub fn jwks(dir: &Path) -> Result<String, KeysError> {
    Ok(format!("{:#}\n", Signer::open(dir)?.jwks()))
}

/// Lets another key sign.
///
/// # Errors
/// When it is not there, or can't be read.
pub fn switch(dir: &Path, name: &str) -> Result<String, KeysError> {
    let known = names(dir)?;
    if !known.iter().any(|known| known == name) {
        return Err(KeysError::Unknown {
            dir: dir.to_owned(),
            name: name.to_owned(),
            known: match known.as_slice() {
                [] => "there are none".to_owned(),
                known => format!("there are: {}", known.join(", ")),
            },
        });
    }
    let before = current(dir)?;
    set_current(dir, name)?;
    if let Err(error) = Signer::open(dir) {
        if let Some(before) = before {
            set_current(dir, &before)?;
        }
        return Err(error.into());
    }
    Ok(format!("{name} signs. Servers notice within seconds.\n"))
}

/// Keys that are there, in order.
fn names(dir: &Path) -> Result<Vec<String>, KeysError> {
    let failed = |error| KeysError::Io(dir.to_owned(), error);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == PEM) {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Names are keys of a Secret too.
fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=200).contains(&name.len()) && name.chars().all(inner) && !name.starts_with(['.', '-'])
}

fn next(known: &[String]) -> String {
    let numbers = known
        .iter()
        .filter_map(|name| name.strip_prefix("key-")?.parse::<u32>().ok());
    format!("key-{}", numbers.max().unwrap_or(0).saturating_add(1))
}

fn current(dir: &Path) -> Result<Option<String>, KeysError> {
    let path = dir.join(CURRENT);
    match fs::read_to_string(&path) {
        Ok(name) => Ok(Some(name.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(KeysError::Io(path, error)),
    }
}

/// Writes aside and renames in: a server may be reading.
fn set_current(dir: &Path, name: &str) -> Result<(), KeysError> {
    let (path, aside) = (dir.join(CURRENT), dir.join(".current.new"));
    let write = || {
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        write_new(&aside, &format!("{name}\n"))?;
        fs::rename(&aside, &path)
    };
    write().map_err(|error| KeysError::Io(path.clone(), error))
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn signing(dir: &Path) -> String {
        let keyring = Signer::open(dir).unwrap().keyring();
        keyring.secrets().next().unwrap().0.to_owned()
    }

    fn count(dir: &Path) -> usize {
        let jwks: String = jwks(dir).unwrap();
        jwks.matches("\"x\"").count()
    }

    #[test]
    fn a_key_signs_only_when_it_is_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("keys");
        assert!(new(&dir, None).unwrap().contains("It signs."));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&dir), mode(&dir.join("key-1.pem"))), (0o700, 0o600));
        let first = signing(&dir);
        let told = new(&dir, None).unwrap();
        assert!(
            told.contains("key-1 still signs") && told.contains("keys use"),
            "{told}"
        );
        assert_eq!((signing(&dir), count(&dir)), (first.clone(), 2));
        assert!(switch(&dir, "key-2").unwrap().starts_with("key-2 signs"));
        assert_ne!(signing(&dir), first);
        fs::remove_file(dir.join("key-1.pem")).unwrap();
        new(&dir, None).unwrap();
        assert!(dir.join("key-3.pem").exists(), "a name is not used again");
    }

    #[test]
    fn a_directory_without_current_keeps_the_key_that_signs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        new(dir, Some("b")).unwrap();
        fs::remove_file(dir.join(CURRENT)).unwrap();
        let before = signing(dir);
        new(dir, Some("c")).unwrap();
        assert_eq!(signing(dir), before);
        assert_eq!(fs::read_to_string(dir.join(CURRENT)).unwrap(), "b\n");
    }

    #[test]
    fn what_can_not_be_is_refused_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(matches!(jwks(dir), Err(KeysError::Keys(_))));
        new(dir, Some("a")).unwrap();
        for name in ["", "../a", "x/y", ".hidden", "-x", "two words"] {
            assert!(matches!(new(dir, Some(name)), Err(KeysError::Name(_))), "{name}");
        }
        assert!(matches!(new(dir, Some("a")), Err(KeysError::Taken(_))));
        let error = switch(dir, "z").unwrap_err().to_string();
        assert!(error.ends_with("there are: a"), "{error}");
        // A file that is no key spoils all.
        fs::write(dir.join("broken.pem"), "nonsense").unwrap();
        assert!(matches!(switch(dir, "broken"), Err(KeysError::Keys(_))));
        assert_eq!(fs::read_to_string(dir.join(CURRENT)).unwrap(), "a\n");
        assert_eq!(fs::read_dir(dir).unwrap().count(), 3, "nothing is left aside");
    }
}
