//! The state directory: everything of the server's that outlives it. One server at a time, and nobody else's business.

mod lock;
mod token;

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use self::lock::Lock;

pub use self::token::Token;

/// The state directory, while this server has it.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    token: Token,
    _lock: Lock,
}

/// Why the state directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It can't be made or looked at.
    #[error("can't use the state directory {0}: {1}")]
    Unusable(PathBuf, #[source] io::Error),
    /// Others could get at what is in it.
    #[error("others can enter the state directory {path} (mode {mode:04o}): run `chmod 700 {path}`")]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is somebody else's.
    #[error(
        "the state directory {path} belongs to user {owner}: run the server as that user, or use another --state-dir"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Another server has it.
    #[error("another server uses the state directory {path} ({holder}): stop it, or use another --state-dir")]
    Taken {
        /// The directory.
        path: PathBuf,
        /// Who has it.
        holder: String,
    },
    /// The token can't be read or made.
    #[error("can't use the token file {0}: {1}")]
    TokenUnusable(PathBuf, #[source] io::Error),
    /// Others could read the token.
    #[error(
        "others can read the token file {path} (mode {mode:04o}): run `chmod 600 {path}`, or remove it to get a new one"
    )]
    TokenOpen {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// There is no token in the file.
    #[error("the token file {0} holds no token of 32 to 256 printable characters: remove it to get a new one")]
    TokenMalformed(PathBuf),
    /// There is no token in the file that the configuration names.
    #[error("token_file: {0} must hold a token of 32 to 256 printable characters")]
    SharedTokenMalformed(PathBuf),
}

const OTHERS: u32 = 0o077;

// === impl StateDir ===

impl StateDir {
    /// Makes the directory if need be, takes it for this server, and reads the token: from `token_file`, or from a file
    /// of its own, which it makes if there is none.
    ///
    /// # Errors
    /// When another server has it, or others could get at what is in it.
    pub fn open(path: &Path, token_file: Option<&Path>) -> Result<Self, StateError> {
        let unusable = |error| StateError::Unusable(path.to_owned(), error);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(path).map_err(unusable)?;
        let meta = fs::metadata(path).map_err(unusable)?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(StateError::Foreign {
                path: path.to_owned(),
                owner: meta.uid(),
            });
        }
        if meta.mode() & OTHERS != 0 {
            return Err(StateError::Open {
                path: path.to_owned(),
                mode: meta.mode() & 0o7777,
            });
        }
        // The one that is open stays the same whatever becomes of links in its path.
        let path = path.canonicalize().map_err(unusable)?;
        let lock = Lock::take(&path)?;
        let token = match token_file {
            Some(file) => Token::read_shared(file)?,
            None => Token::read_or_make(&path)?,
        };
        Ok(Self {
            path,
            token,
            _lock: lock,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What callers on TCP must know.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }
}
