"""Where the server is and how to be let in, from an address or from the environment.

Nothing here opens a connection, so that every rule can be tested with made-up variables.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ADDRESS = "http://127.0.0.1:7263"
SOCKET_FILE = "sandgate.sock"
TOKEN_FILE = "token"
_EXPECTED = "expected http://HOST:PORT or unix:///PATH"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to connect to."""

    address: str
    """`http://HOST:PORT` or `unix:///PATH`."""
    token: str | None = field(default=None, repr=False)
    """What to show it. Unix sockets want none: their mode is the guard."""

    @property
    def target(self) -> str:
        """The address as gRPC takes it."""
        if self.address.startswith("unix://"):
            return "unix:" + self.address.removeprefix("unix://")
        return self.address.removeprefix("http://")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def state_dir(env: Mapping[str, str], *, root: bool) -> Path:
    """The state directory that server and clients use unless they are told otherwise."""
    if named := env.get("SANDGATE_STATE_DIR"):
        return Path(named)
    if root:
        return Path("/var/lib/sandgate")
    for name, below in (("XDG_STATE_HOME", ""), ("HOME", ".local/state")):
        base = Path(env.get(name, ""))
        if base.is_absolute():
            return base / below / "sandgate"
    return Path("/var/lib/sandgate")


def resolve(
    address: str | None = None,
    token: str | None = None,
    env: Mapping[str, str] | None = None,
    *,
    root: bool | None = None,
) -> Endpoint:
    """The server that the arguments or else the environment name.

    Without an address it is the socket in the state directory if that is there and may be opened, else the default
    address. Without a token it is the one in the state directory, for addresses of this machine alone.
    """
    env = os.environ if env is None else env
    directory = state_dir(env, root=os.geteuid() == 0 if root is None else root)
    named = address or env.get("SANDGATE_ADDR")
    parsed = parse_address(named) if named else _default_address(directory)
    secret = token or env.get("SANDGATE_TOKEN")
    # The token of this machine's server is no business of another machine.
    if not secret and _is_loopback(parsed):
        secret = _read_token(directory / TOKEN_FILE)
    if secret and not (secret.isascii() and secret.isprintable() and " " not in secret):
        raise ConfigError("bad token: it has characters that no token has")
    return Endpoint(parsed, secret or None)


def parse_address(text: str) -> str:
    """An address in its full form."""

    def bad(why: str) -> ConfigError:
        return ConfigError(f"bad address {text!r}: {why}; {_EXPECTED}")

    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise bad("the path of a Unix socket must be absolute")
        return f"unix://{path}"
    if text.startswith("https:"):
        raise bad("this client speaks no TLS")
    if "://" in text and not text.startswith("http://"):
        raise bad("unknown kind of address")
    try:
        parts = urlsplit(text if text.startswith("http://") else f"http://{text}")
        port = parts.port
    except ValueError:
        raise bad("it is malformed") from None
    if not parts.hostname:
        raise bad("it is malformed")
    if port is None:
        raise bad("the port is missing")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise bad("it has more than host and port")
    return f"http://{parts.netloc}"


def _default_address(directory: Path) -> str:
    socket = directory / SOCKET_FILE
    return f"unix://{socket.absolute()}" if os.access(socket, os.R_OK | os.W_OK) else DEFAULT_ADDRESS


def _is_loopback(address: str) -> bool:
    if address.startswith("unix:"):
        return False
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_token(path: Path) -> str | None:
    """The token in a file; nothing if there is no file, as with a server of another state directory."""
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the token in {path}: {error}") from error
