//! Where the server is and how to be let in, from an address or from the environment.
//!
//! Nothing here opens a connection, so that every rule can be tested with made-up variables.

use std::{
    env,
    ffi::OsString,
    fmt, fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use http::{HeaderValue, Uri, uri::PathAndQuery};
use rustix::fs::{Access, access};

use crate::error::{Error, Result};

/// Where a server listens unless it is told otherwise.
pub const DEFAULT_ADDRESS: &str = "http://127.0.0.1:7263";

const SOCKET_FILE: &str = "sandgate.sock";
const TOKEN_FILE: &str = "token";

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// HTTP/2 without TLS, which is only right on the machine itself.
    Http(Uri),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The secret that a server wants on TCP. Never shown.
#[derive(Clone)]
pub struct Token(HeaderValue);

/// A server to connect to.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Where it is.
    pub address: Address,
    /// What to show it. Unix sockets want none: their mode is the guard.
    pub token: Option<Token>,
}

/// The state directory that server and clients use unless they are told otherwise.
#[must_use]
pub fn default_state_dir() -> PathBuf {
    state_dir(&|name| env::var_os(name), rustix::process::geteuid().is_root())
}

fn state_dir(var: &dyn Fn(&str) -> Option<OsString>, root: bool) -> PathBuf {
    let absolute = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(dir) = var("SANDGATE_STATE_DIR").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    if root {
        return "/var/lib/sandgate".into();
    }
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| "/var/lib".into())
        .join("sandgate")
}

// === impl Endpoint ===

impl Endpoint {
    /// The server at that address, without a token.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self { address, token: None }
    }

    /// With this token.
    ///
    /// # Errors
    /// The token has characters that no token has.
    pub fn with_token(mut self, token: &str) -> Result<Self> {
        self.token = Some(token.parse()?);
        Ok(self)
    }

    /// As the environment says: `SANDGATE_ADDR` and `SANDGATE_TOKEN`; without an address the socket in the state
    /// directory if it is there and may be opened, else [`DEFAULT_ADDRESS`]; without a token the one in the state
    /// directory, for addresses of this machine.
    ///
    /// # Errors
    /// An address or token that is malformed, or a token file that is there and can't be read.
    pub fn from_env() -> Result<Self> {
        Self::resolve(None, None)
    }

    /// As [`Endpoint::from_env`], but with an address or token that comes before the environment's.
    ///
    /// # Errors
    /// As there.
    pub fn resolve(address: Option<&str>, token: Option<&str>) -> Result<Self> {
        let var = |name: &str| match (name, address, token) {
            ("SANDGATE_ADDR", Some(address), _) => Some(address.into()),
            ("SANDGATE_TOKEN", _, Some(token)) => Some(token.into()),
            _ => env::var_os(name),
        };
        Self::from_vars(&var, rustix::process::geteuid().is_root())
    }

    fn from_vars(var: &dyn Fn(&str) -> Option<OsString>, root: bool) -> Result<Self> {
        let state_dir = state_dir(var, root);
        let address = match text(var, "SANDGATE_ADDR")? {
            Some(address) => address.parse()?,
            None => default_address(&state_dir)?,
        };
        let token = match text(var, "SANDGATE_TOKEN")? {
            Some(token) => Some(token.parse()?),
            // The token of this machine's server is no business of another machine.
            None if address.is_loopback() => read_token(&state_dir.join(TOKEN_FILE))?,
            None => None,
        };
        Ok(Self { address, token })
    }
}

fn default_address(state_dir: &Path) -> Result<Address> {
    let socket = state_dir.join(SOCKET_FILE);
    match access(&socket, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Ok(Address::Unix(socket)),
        Err(_) => DEFAULT_ADDRESS.parse(),
    }
}

fn text(var: &dyn Fn(&str) -> Option<OsString>, name: &'static str) -> Result<Option<String>> {
    match var(name).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(value)) if value.is_empty() => Ok(None),
        Some(Ok(value)) => Ok(Some(value)),
        Some(Err(_)) => Err(Error::Setting {
            what: name.into(),
            why: "it is not UTF-8".into(),
        }),
    }
}

/// The token in a file; nothing if there is no file, as with a server of another state directory.
fn read_token(path: &Path) -> Result<Option<Token>> {
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::TokenFile {
            path: path.to_owned(),
            source,
        }),
    }
}

// === impl Address ===

impl Address {
    fn is_loopback(&self) -> bool {
        let Self::Http(uri) = self else {
            return false;
        };
        let host = uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::Setting {
            what: format!("address {text:?}"),
            why: format!("{why}; expected http://HOST:PORT or unix:///PATH"),
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(bad("the path of a Unix socket must be absolute")),
            };
        }
        if text.starts_with("https:") {
            return Err(bad("this client speaks no TLS"));
        }
        if text.contains("://") && !text.starts_with("http://") {
            return Err(bad("unknown kind of address"));
        }
        let full = if text.starts_with("http://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let uri: Uri = full.parse().map_err(|_| bad("it is malformed"))?;
        if uri.port_u16().is_none() {
            return Err(bad("the port is missing"));
        }
        match uri.path_and_query().map(PathAndQuery::as_str) {
            None | Some("" | "/") => Ok(Self::Http(uri)),
            Some(_) => Err(bad("it has a path")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(uri) => write!(f, "{}", uri.to_string().trim_end_matches('/')),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

// === impl Token ===

impl Token {
    /// The value of the `authorization` header.
    pub(crate) fn bearer(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(token: &str) -> Result<Self> {
        let bad = |why: &str| Error::Setting {
            what: "token".into(),
            why: why.into(),
        };
        if token.is_empty() {
            return Err(bad("it is empty"));
        }
        let mut value: HeaderValue = format!("Bearer {token}")
            .parse()
            .map_err(|_| bad("it has characters that no token has"))?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::PermissionsExt as _, net::UnixListener};

    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<Endpoint> {
        let var = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Endpoint::from_vars(&var, false)
    }

    fn bearer(endpoint: &Endpoint) -> Option<String> {
        endpoint
            .token
            .as_ref()
            .map(|token| token.bearer().to_str().unwrap().to_owned())
    }

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("http://127.0.0.1:7263", "http://127.0.0.1:7263"),
            ("http://127.0.0.1:7263/", "http://127.0.0.1:7263"),
            ("localhost:80", "http://localhost:80"),
            ("http://[::1]:7263", "http://[::1]:7263"),
            ("unix:///run/a b.sock", "unix:///run/a b.sock"),
            ("unix:/run/x", "unix:///run/x"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "http://",
            "http://host",
            "https://host:1",
            "ftp://host:1",
            "unix://relative",
            "unix:relative",
            "http://host:1/path",
            "http://host:99999",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("expected http://HOST:PORT"), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_state_directory_follows_the_user() {
        let dir = |vars: &[(&str, &str)], root| {
            state_dir(
                &|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()),
                root,
            )
        };
        assert_eq!(dir(&[("HOME", "/root")], true), Path::new("/var/lib/sandgate"));
        assert_eq!(
            dir(&[("HOME", "/home/u")], false),
            Path::new("/home/u/.local/state/sandgate")
        );
        assert_eq!(
            dir(&[("HOME", "/home/u"), ("XDG_STATE_HOME", "/s")], false),
            Path::new("/s/sandgate")
        );
        assert_eq!(
            dir(&[("HOME", "/home/u"), ("XDG_STATE_HOME", "rel")], false),
            Path::new("/home/u/.local/state/sandgate")
        );
        assert_eq!(dir(&[("SANDGATE_STATE_DIR", "/d")], true), Path::new("/d"));
    }

    #[test]
    fn the_socket_comes_before_tcp_and_the_file_gives_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_str().unwrap();
        let empty = from(&[("SANDGATE_STATE_DIR", state)]).unwrap();
        assert_eq!(
            (empty.address.to_string().as_str(), bearer(&empty)),
            (DEFAULT_ADDRESS, None)
        );

        fs::write(dir.path().join(TOKEN_FILE), "s3cret\n").unwrap();
        let tcp = from(&[("SANDGATE_STATE_DIR", state)]).unwrap();
        assert_eq!(bearer(&tcp).as_deref(), Some("Bearer s3cret"));

        let socket = dir.path().join(SOCKET_FILE);
        let _listener = UnixListener::bind(&socket).unwrap();
        let unix = from(&[("SANDGATE_STATE_DIR", state)]).unwrap();
        assert_eq!((unix.address.clone(), bearer(&unix)), (Address::Unix(socket), None));
    }

    #[test]
    fn variables_win_and_the_local_token_stays_local() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_str().unwrap();
        fs::write(dir.path().join(TOKEN_FILE), "s3cret\n").unwrap();
        let with = |addr, token| {
            let vars = [
                ("SANDGATE_STATE_DIR", state),
                ("SANDGATE_ADDR", addr),
                ("SANDGATE_TOKEN", token),
            ];
            bearer(&from(&vars).unwrap())
        };
        assert_eq!(with("http://127.0.0.1:1", "mine").as_deref(), Some("Bearer mine"));
        assert_eq!(with("http://127.0.0.1:1", "").as_deref(), Some("Bearer s3cret"));
        assert_eq!(with("http://localhost:1", "").as_deref(), Some("Bearer s3cret"));
        assert_eq!(with("http://[::1]:1", "").as_deref(), Some("Bearer s3cret"));
        assert_eq!(with("http://10.0.0.1:1", ""), None);
        assert_eq!(with("http://example.org:1", ""), None);
        assert_eq!(with("unix:///x", ""), None);
    }

    #[test]
    fn a_token_file_that_is_no_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(TOKEN_FILE)).unwrap();
        fs::set_permissions(dir.path().join(TOKEN_FILE), fs::Permissions::from_mode(0o700)).unwrap();
        let error = from(&[("SANDGATE_STATE_DIR", dir.path().to_str().unwrap())]).unwrap_err();
        assert!(matches!(error, Error::TokenFile { .. }), "{error:?}");
        assert!(error.to_string().contains(dir.path().to_str().unwrap()));
    }

    #[test]
    fn tokens_are_not_shown() {
        let endpoint = Endpoint::new("unix:///x".parse().unwrap())
            .with_token("hidden")
            .unwrap();
        assert!(!format!("{endpoint:?}").contains("hidden"));
        assert!("a\nb".parse::<Token>().is_err());
        assert!("".parse::<Token>().is_err());
    }
}
