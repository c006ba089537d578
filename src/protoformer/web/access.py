"""Access to the web page: credentials, allowed host names and origins, and a limit on login attempts."""

import hashlib
import hmac
import ipaddress
import re
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from protoformer.errors import InputError

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_LOCAL_NAME = "localhost"


@dataclass(frozen=True)
class Credentials:
    """User and password. Neither appears in `repr`, so that no log line or traceback contains them."""

    user: str = field(repr=False)
    password: str = field(repr=False)

    def match(self, user: str, password: str) -> bool:
        """Compare in constant time."""
        pairs = ((user, self.user), (password, self.password))
        equal = [hmac.compare_digest(_digest(given), _digest(own)) for given, own in pairs]
        return all(equal)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _parse_credentials(text: str, source: str) -> Credentials:
    """Split `user:password` at the first colon; error messages name its source but do not contain it."""
    user, colon, password = text.partition(":")
    if not colon or not user.strip() or not password or any(ord(letter) < 32 for letter in text):
        raise InputError(f"{source} must be one line of user:password, and neither may be empty.")
    return Credentials(user.strip(), password)


def _read_credentials(path: Path) -> Credentials:
    """Read `user:password` from the first line of a file."""
    try:
        with path.open(encoding="utf-8") as file:
            line = file.readline(4096)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--auth-file {path} cannot be read: {error}.") from None
    return _parse_credentials(line.rstrip("\r\n"), f"the first line of --auth-file {path}")


def choose_credentials(
    auth: str | None, auth_file: Path | None, no_auth: bool, host: str, names: tuple[str, ...] = ()
) -> Credentials | None:
    """Return the credentials that the options of `protoformer serve` set.

    A page that other machines can reach needs a password, or an explicit `--no-auth`.

    Args:
        auth: Value of `--auth` or of its environment variable.
        auth_file: Value of `--auth-file`.
        no_auth: Whether `--no-auth` is given.
        host: Address to listen at.
        names: Further host names of the page; with one, other machines reach it through a proxy.

    Raises:
        InputError: If options contradict each other or are malformed, or if a password is missing.
    """
    if (auth is not None) + (auth_file is not None) + no_auth > 1:
        raise InputError(
            "--auth (or PROTOFORMER_AUTH), --auth-file and --no-auth exclude each other; give one of them."
        )
    if auth is not None:
        return _parse_credentials(auth, "--auth (or PROTOFORMER_AUTH)")
    if auth_file is not None:
        return _read_credentials(auth_file)
    if no_auth:
        return None
    options = public_options(host, names)
    if options:
        raise InputError(
            f"{options[0]} lets other machines use the page; add --auth-file FILE (user:password), "
            "or --no-auth to let anyone in."
        )
    return None


def public_options(host: str, names: tuple[str, ...] = ()) -> list[str]:
    """Return the options, such as "--host 0.0.0.0", by which other machines reach the page.

    An allowed name is local only if it is "localhost" or a loopback address. What another name resolves to on this
    machine does not matter: its own name is often 127.0.1.1 in /etc/hosts, and a proxy may serve it to others.
    """
    options = [] if is_loopback(host) else [f"--host {host}"]
    for name in names:
        address = _address(bare_address(name))
        if name.lower() != _LOCAL_NAME and (address is None or not address.is_loopback):
            options.append(f"--allowed-host {name}")
    return options


def is_loopback(host: str) -> bool:
    """Return whether an address or host name can be reached from this machine only."""
    bare = bare_address(host)
    address = _address(bare)
    if address is not None:
        return address.is_loopback
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(bare, None)}
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses)


def bare_address(host: str) -> str:
    """Remove the brackets of an IPv6 address in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def url_host(host: str) -> str:
    """Write a host as in a URL: IPv6 in brackets."""
    bare = bare_address(host)
    return f"[{bare}]" if ":" in bare else bare


class AllowedHosts:
    """Host names of the page, at any port.

    With DNS rebinding, another site can make a browser send requests to this server, but only under a host name of that
    site. Allowed are the names of this machine, the given names, and, if other machines can reach the page, all numeric
    addresses.

    Args:
        host: Address or name that the page listens at.
        names: Further names or addresses, without port.

    Raises:
        InputError: If a name is not a host name.
    """

    def __init__(self, host: str, names: tuple[str, ...] = ()) -> None:
        self.any_address = not is_loopback(host)
        self.names = {_LOCAL_NAME, bare_address(host).lower()}
        for name in names:
            match = _AUTHORITY.fullmatch(url_host(name).lower())
            if match is None or match["port"] is not None:
                raise InputError(
                    f"--allowed-host {name} is not a host name; give it as in pf.example.org, without port."
                )
            self.names.add(bare_address(name).lower())

    def allows(self, authority: str) -> bool:
        """Return whether a `Host` header, `name` or `name:port`, names this page."""
        match = _AUTHORITY.fullmatch(authority.lower())
        if match is None:
            return False
        name = match["v6"] or match["name"]
        address = _address(name)
        if (match["v6"] is not None) != isinstance(address, ipaddress.IPv6Address):
            return False
        return name in self.names or (address is not None and (self.any_address or address.is_loopback))


def same_origin(origin: str, authority: str) -> bool:
    """Return whether an `Origin` header matches the `Host` header of the same request."""
    scheme, separator, rest = origin.lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return bool(separator) and port is not None and rest.removesuffix(port) == authority.lower().removesuffix(port)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class LoginThrottle:
    """Limits the login attempts from one address (of IPv6, from one /64 network)."""

    MAX_ATTEMPTS = 10
    SECONDS = 60.0
    _MAX_CLIENTS = 4096

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._attempts: dict[str, deque[float]] = {}

    def wait(self, client: str) -> float:
        """Count a login attempt and return the seconds to wait before it is allowed, 0 if it is allowed now.

        The attempt is counted before the password is compared, so that parallel attempts are limited, too.
        """
        now, key = self._clock(), client_network(client)
        if key not in self._attempts and len(self._attempts) >= self._MAX_CLIENTS:
            self._attempts = {k: v for k, v in self._attempts.items() if now - v[-1] < self.SECONDS}
            if len(self._attempts) >= self._MAX_CLIENTS:
                return self.SECONDS
        attempts = self._attempts.setdefault(key, deque(maxlen=self.MAX_ATTEMPTS))
        if len(attempts) == self.MAX_ATTEMPTS and now - attempts[0] < self.SECONDS:
            return self.SECONDS - (now - attempts[0])
        attempts.append(now)
        return 0.0

    def reset(self, client: str) -> None:
        """Clear the attempts of a client that logged in."""
        self._attempts.pop(client_network(client), None)


def client_network(client: str) -> str:
    """Return the key of a client: its IPv4 address, or its IPv6 /64 network, which one customer typically has."""
    address = _address(client.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return client
