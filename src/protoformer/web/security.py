"""Request filter in front of gradio: allowed routes, hosts, origins, body sizes, login and file paths.

gradio serves about eighty routes; some run ffmpeg on uploads, fetch files from other servers or edit the program.
`PageGuard` wraps the whole application, so that every request is checked before any code of gradio handles it.
"""

import math
import re
import stat
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from protoformer.web.access import AllowedHosts, LoginThrottle, same_origin
from protoformer.web.components import require_gradio
from protoformer.web.limits import FORM_BYTES, send_text

_FILE_FOLDER = re.compile("[0-9a-f]{64}")
"""Name of gradio's folder of one upload or download: a salted digest of the file."""
_NO_SUCH_FILE = "A file is not among the uploads of this page, or was deleted in the meantime; choose it again."


def served_file(path: object, root: Path) -> Path | None:
    """Check that a path from a client names a file that the page may send or open.

    Args:
        path: Value sent by the client.
        root: Folder of uploads and downloads, absolute and without symbolic links.

    Returns:
        The path if it is absolute, without `..` and symbolic links, and names a regular file in one of gradio's folders
        below `root`; else None. Incomplete uploads lie directly in `root` and are refused.
    """
    if not isinstance(path, str) or "\0" in path:
        return None
    file = Path(path)
    try:
        if str(file) != path or str(file.resolve(strict=True)) != path:
            return None
        regular = stat.S_ISREG(file.lstat().st_mode)
    except (OSError, ValueError, RuntimeError):  # also for invalid names and circular links
        return None
    return file if regular and file.parent.parent == root and _FILE_FOLDER.fullmatch(file.parent.name) else None


def check_files(value: object, root: Path) -> None:
    """Refuse a value from a client that contains, at any depth, the path of a file that is not served.

    Raises:
        gradio.Error: With the same message whether or not such a file exists.
    """
    for path in _paths_in(value):
        if path is not None and served_file(path, root) is None:
            raise require_gradio().Error(_NO_SUCH_FILE, print_exception=False)


def check_inputs(page: Any, root: Path) -> None:
    """Make a `gradio.Blocks` check the input values of every request; root is the folder of uploads and downloads."""
    original = page.preprocess_data

    async def preprocess_data(block_fn: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        check_files(inputs, root)
        return await original(block_fn, inputs, *rest, **named)

    page.preprocess_data = preprocess_data


def _paths_in(value: object) -> Iterator[object]:
    """Yield every `path` entry of decoded JSON, iteratively: a client may nest deeper than the recursion limit."""
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, dict):
            if "path" in current:
                yield current["path"]
            stack.extend(current.values())
        elif isinstance(current, list | tuple):
            stack.extend(current)


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
"""Content security policy: only resources of this server. gradio's inline scripts compile templates at run time."""
HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every response."""

FILE_ROUTE = "/gradio_api/file="
LOGIN_ROUTE = "/login"
JSON_BYTES = 2**20
"""Maximum size of a JSON request; those of the page have some hundred bytes."""


@dataclass(frozen=True)
class Route:
    """An allowed route.

    Attributes:
        methods: HTTP methods.
        pattern: Regular expression of the whole path.
        max_bytes: Maximum size of the body.
        public: Whether the route is served without login.
    """

    methods: frozenset[str]
    pattern: re.Pattern[str]
    max_bytes: int = 0
    public: bool = False


def page_routes(upload_bytes: int, with_login: bool) -> tuple[Route, ...]:
    """Return the routes that the page's script requests, as recorded in a browser on every tab."""
    name, session = r"(?:[\w@+-][\w.@+-]*/)*[\w@+-][\w.@+-]*", r"[\w-]{1,64}"
    login = [_route("POST", LOGIN_ROUTE, 2**13, public=True)] if with_login else []
    return (
        *login,
        _route("GET HEAD", "/", public=True),
        _route("GET", rf"/(?:assets|static)/{name}", public=True),
        _route("GET", "/theme\\.css|/favicon\\.ico", public=True),
        _route("GET", "/gradio_api/startup-events", public=True),  # requested once by gradio itself
        _route("GET", "/config|/gradio_api/app_id"),  # after a lost connection
        _route("GET", rf"/gradio_api/heartbeat/{session}"),
        _route("GET", "/gradio_api/queue/data|/gradio_api/upload_progress"),
        _route("GET HEAD", rf"{FILE_ROUTE}.+"),
        _route("POST", "/gradio_api/upload", upload_bytes + FORM_BYTES),
        _route("POST", "/gradio_api/(?:queue/join|run/predict|cancel)", JSON_BYTES),
    )


def _route(methods: str, pattern: str, max_bytes: int = 0, public: bool = False) -> Route:
    return Route(frozenset(methods.split()), re.compile(pattern, re.ASCII | re.DOTALL), max_bytes, public)


class RefusedError(Exception):
    """A refused request, with the status, text and headers of the response."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


class PageGuard:
    """ASGI middleware that refuses every request that the page itself would not send.

    Args:
        app: Wrapped application.
        routes: Allowed routes.
        hosts: Allowed host names.
        root: Folder of uploads and downloads; no other file is sent.
        tokens: Returns the names of the login cookies and the valid tokens; None without a password.
    """

    def __init__(
        self,
        app: App,
        routes: Iterable[Route],
        hosts: AllowedHosts,
        root: Path,
        tokens: Callable[[], tuple[Container[str], Container[str]]] | None = None,
    ) -> None:
        self.app, self.routes, self.hosts, self.root = app, tuple(routes), hosts, root
        self.tokens, self.throttle = tokens, LoginThrottle()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()  # the connection request
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._set_headers(scope, message)
            await send(message)

        try:
            self._check(scope)
        except RefusedError as refusal:
            await send_text(guarded_send, refusal.status, refusal.text, **refusal.headers)
            return
        await self.app(scope, receive, guarded_send)

    def _check(self, scope: Message) -> None:
        """Raise `RefusedError` for a request that must not reach gradio."""
        headers = _Headers(scope["headers"])
        authority = headers.only("host")
        forwarded = headers.get("x-forwarded-host")
        public_host = forwarded.split(",")[0].strip() if forwarded is not None else authority
        if authority is None or public_host is None or not all(map(self.hosts.allows, (authority, public_host))):
            raise RefusedError(421, "this page is not served under that name; see --allowed-host.")
        self._check_site(scope, headers, public_host)
        route = self._route(scope)
        self._check_body(scope, headers, route.max_bytes)
        if not route.public and self.tokens is not None and not self._logged_in(headers):
            raise RefusedError(401, "log in first.")
        path = scope["path"]
        if path.startswith(FILE_ROUTE) and served_file(path.removeprefix(FILE_ROUTE), self.root) is None:
            raise RefusedError(404, "there is no such file among the uploads and results of this page.")
        if path == LOGIN_ROUTE:
            seconds = self.throttle.wait(_client(scope))
            if seconds > 0:
                raise RefusedError(429, "too many attempts to log in.", **{"retry-after": str(math.ceil(seconds))})

    @staticmethod
    def _check_site(scope: Message, headers: "_Headers", authority: str) -> None:
        """Refuse requests that another site made a browser send."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and not same_origin(origin, authority):
            raise RefusedError(403, "requests of other sites are refused.")
        link = scope["path"] == "/" and scope["method"] == "GET" and headers.get("sec-fetch-dest") == "document"
        if site not in (None, "same-origin", "none") and not link:
            raise RefusedError(403, "requests of other sites are refused.")

    def _route(self, scope: Message) -> Route:
        for route in self.routes:
            if scope["method"] in route.methods and route.pattern.fullmatch(scope["path"]):
                break
        else:
            raise RefusedError(404, "there is nothing here.")
        if "deep_link" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True):
            raise RefusedError(404, "there is nothing here.")
        return route

    @staticmethod
    def _check_body(scope: Message, headers: "_Headers", max_bytes: int) -> None:
        """Refuse a body that is larger than its route allows, or has no declared length."""
        length = headers.get("content-length")
        if headers.get("transfer-encoding") is not None or (scope["method"] == "POST" and length is None):
            raise RefusedError(411, "the length of the request must be given.")
        if length is not None and (not re.fullmatch("[0-9]{1,15}", length) or int(length) > max_bytes):
            raise RefusedError(413, "the request is larger than the maximum allowed size.")

    def _logged_in(self, headers: "_Headers") -> bool:
        assert self.tokens is not None
        names, tokens = self.tokens()
        cookies = (part.strip().partition("=") for part in (headers.get("cookie") or "").split(";"))
        return any(name in names and value in tokens for name, _, value in cookies)

    def _set_headers(self, scope: Message, message: Message) -> None:
        """Replace the security headers that gradio set by those of the page."""
        kept = [
            (name, value.replace(b"SameSite=none", b"SameSite=lax") if name.lower() == b"set-cookie" else value)
            for name, value in message.get("headers", [])
            if name.lower().decode("latin-1") not in HEADERS and not name.lower().startswith(b"access-control-")
        ]
        message["headers"] = [*kept, *((name.encode(), value.encode()) for name, value in HEADERS.items())]
        if scope["path"] == LOGIN_ROUTE and message["status"] == 200:
            self.throttle.reset(_client(scope))


class _Headers:
    """Request headers by lowercase name."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.values: dict[str, list[str]] = {}
        for name, value in raw:
            self.values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def get(self, name: str) -> str | None:
        """Return all values of a header, joined by commas; None if it is missing."""
        return ", ".join(self.values[name]) if name in self.values else None

    def only(self, name: str) -> str | None:
        """Return the value of a header that occurs exactly once; else None."""
        values = self.values.get(name, [])
        return values[0] if len(values) == 1 else None


def _client(scope: Message) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""


def guard_lifespan(routes: Iterable[Route], hosts: AllowedHosts, root: Path, with_login: bool) -> Any:
    """Return a lifespan handler that wraps gradio's application before it accepts connections.

    Middleware passed to gradio runs inside gradio's own, which answers some requests itself; this wrapper is outermost.
    Arguments as for `PageGuard`.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
        tokens = (lambda: (names, app.tokens)) if with_login else None
        app.middleware_stack = PageGuard(app.middleware_stack, routes, hosts, root, tokens)
        yield

    return lifespan
