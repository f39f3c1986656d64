//! More directories of the machine that a template shows: which may be, and which would open what must stay shut.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

/// Made anew for each sandbox. The machine's own would show the machine.
const OWN: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];
/// Would hide what is prepared.
const WHOLE: [&str; 4] = ["/", "/etc", "/tmp", "/var"];

/// Why a directory can't be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostPathError {
    #[error("{0}: expected an absolute path without `.` and `..`")]
    Form(PathBuf),
    #[error("{0}: {1}")]
    Missing(PathBuf, #[source] io::Error),
    #[error("{0}: not a directory")]
    NotDirectory(PathBuf),
    #[error("{0}: sandboxes have one of their own; the machine's can't be shown")]
    Own(PathBuf),
    #[error("{0}: the server's state directory would be shown with it")]
    State(PathBuf),
}

/// Checks directories below `host`, which is `/` but in tests.
pub(super) fn check(host: &Path, paths: &[PathBuf], state: &Path) -> Result<Vec<PathBuf>, HostPathError> {
    paths.iter().map(|path| check_one(host, path, state)).collect()
}

fn check_one(host: &Path, path: &Path, state: &Path) -> Result<PathBuf, HostPathError> {
    let inner = path
        .strip_prefix("/")
        .map_err(|_| HostPathError::Form(path.to_owned()))?;
    if !inner.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(HostPathError::Form(path.to_owned()));
    }
    let outside = host.join(inner);
    let missing = |error| HostPathError::Missing(path.to_owned(), error);
    let real = fs::canonicalize(&outside).map_err(missing)?;
    if !real.is_dir() {
        return Err(HostPathError::NotDirectory(path.to_owned()));
    }
    let host = fs::canonicalize(host).map_err(missing)?;
    let real = Path::new("/").join(real.strip_prefix(&host).unwrap_or(&real));
    // Without a slash at its end.
    let path: PathBuf = Path::new("/").join(inner.components().collect::<PathBuf>());
    let seen = [&path, &real];
    let own = |seen: &&PathBuf| {
        OWN.iter().any(|own| seen.starts_with(own)) || WHOLE.iter().any(|whole| seen.as_path() == Path::new(whole))
    };
    if seen.iter().any(own) {
        return Err(HostPathError::Own(path));
    }
    if seen
        .iter()
        .any(|seen| state.starts_with(seen) || seen.starts_with(state))
    {
        return Err(HostPathError::State(path));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_show_the_machine_or_our_state_is_refused() {
        let host = tempfile::tempdir().unwrap();
        let at = |path: &str| host.path().join(path);
        for dir in ["srv/data/state/roots", "opt/python", "run/user", "etc", "proc"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        fs::write(at("opt/file"), "").unwrap();
        std::os::unix::fs::symlink("data", at("srv/link")).unwrap();
        std::os::unix::fs::symlink("../opt/python", at("srv/python")).unwrap();
        let state = Path::new("/srv/data/state");
        let check = |path: &str| check(host.path(), &[path.into()], state);
        for bad in [
            "/",
            "/proc",
            "/run/user",
            "/etc",
            "/srv",
            "/srv/data",
            "/srv/data/state",
            "/srv/data/state/roots",
            "/srv/link",
            "/opt/../srv",
            "opt/python",
            "/opt/file",
            "/missing",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        for good in ["/opt/python", "/opt", "/srv/python"] {
            assert_eq!(check(good).unwrap(), [PathBuf::from(good)]);
        }
        assert_eq!(check("/opt/python/").unwrap(), [PathBuf::from("/opt/python")]);
    }
}
