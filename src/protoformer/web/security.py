"""The gate in front of gradio: it answers only what the page's own script asks for, and tells browsers to do the same.

gradio serves some eighty routes, among them ones that run ffmpeg on uploads, fetch other servers' files or edit the
program. `PageGuard` wraps the whole application, so a request passes these checks before any code of gradio sees it:
method and path are on the list, the host is one of this page, no other site sent it, its body is no longer than needed,
and whoever sent it has logged in where a password is set.
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

from protoformer.web.access import LoginThrottle, TrustedHosts, same_origin
from protoformer.web.components import require_gradio

_CACHED = re.compile("[0-9a-f]{64}")
"""The name of the folder in which gradio keeps one upload or download: a digest, salted, of what the file holds."""
REFUSED = "A file is not among the uploads of this page, or was deleted in the meantime; choose it again."


def served_file(path: object, root: Path) -> Path | None:
    """Check that a path from a client names a file that the page serves.

    Args:
        path: What the client sent.
        root: The folder of uploads and downloads, absolute and without symbolic links.

    Returns:
        The path, or None unless it is the absolute path of a regular file in a folder of gradio's below `root`, with no
        symbolic link and no `..` on the way. Files that are still being uploaded lie in `root` itself: not served.
    """
    if not isinstance(path, str) or "\0" in path:
        return None
    file = Path(path)
    try:
        if str(file) != path or str(file.resolve(strict=True)) != path:
            return None
        regular = stat.S_ISREG(file.lstat().st_mode)
    except (OSError, ValueError, RuntimeError):  # also names that no file can have, and links in a circle
        return None
    return file if regular and file.parent.parent == root and _CACHED.fullmatch(file.parent.name) else None


def check_files(value: object, root: Path) -> None:
    """Refuse a value from a client that names any other file, however deep in it.

    Raises:
        gradio.Error: The sentence that the client gets, the same whether or not such a file exists.
    """
    for path in _paths_in(value):
        if path is not None and served_file(path, root) is None:
            raise require_gradio().Error(REFUSED, print_exception=False)


def check_inputs(page: Any, root: Path) -> None:
    """Let a gradio page check the values of every request before it handles them.

    Args:
        page: The `gradio.Blocks`.
        root: The folder of uploads and downloads.
    """
    handle = page.preprocess_data

    async def preprocess_data(block_fn: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        check_files(inputs, root)
        return await handle(block_fn, inputs, *rest, **named)

    page.preprocess_data = preprocess_data


def _paths_in(value: object) -> Iterator[object]:
    """Every `path` of an object in decoded JSON. A stack, because a client may nest deeper than Python recurses."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            if "path" in current:
                yield current["path"]
            waiting.extend(current.values())
        elif isinstance(current, list | tuple):
            waiting.extend(current)


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
"""What a browser may load: gradio's own scripts are written into the page and compile templates, and no other's."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Sent with every answer."""

FILE_ROUTE = "/gradio_api/file="
LOGIN_ROUTE = "/login"
JSON_BYTES = 2**20
"""Length of a request that names files and settings; the page's own have some hundred bytes."""
MULTIPART_BYTES = 2**16
"""What a form adds to the file within it."""


@dataclass(frozen=True)
class Route:
    """A path that may be requested.

    methods: as in HTTP. pattern: of the whole path. body: bytes of it at most. public: whether it needs no login.
    """

    methods: frozenset[str]
    pattern: re.Pattern[str]
    body: int = 0
    public: bool = False


def page_routes(upload_bytes: int, with_login: bool) -> tuple[Route, ...]:
    """List what the page's script requests, recorded in a browser on every tab.

    Args:
        upload_bytes: The length of an upload at most.
        with_login: Whether there is a password to enter.
    """
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
        _route("POST", "/gradio_api/upload", upload_bytes + MULTIPART_BYTES),
        _route("POST", "/gradio_api/(?:queue/join|run/predict|cancel)", JSON_BYTES),
    )


def _route(methods: str, pattern: str, body: int = 0, public: bool = False) -> Route:
    return Route(frozenset(methods.split()), re.compile(pattern, re.ASCII | re.DOTALL), body, public)


class RefusedError(Exception):
    """An answer in place of gradio's: a status and a sentence."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


class PageGuard:
    """ASGI middleware that refuses whatever the page itself would not send."""

    def __init__(
        self,
        app: App,
        routes: Iterable[Route],
        hosts: TrustedHosts,
        root: Path,
        tokens: Callable[[], tuple[Container[str], Container[str]]] | None = None,
    ) -> None:
        """Wrap an application.

        Args:
            app: What answers the requests that pass.
            routes: The paths that may be requested.
            hosts: The names of this page.
            root: The folder of uploads and downloads; no other file is sent.
            tokens: Gives the names of the login cookies and the tokens that are valid; None where there is no password.
        """
        self.app, self.routes, self.hosts, self.root = app, tuple(routes), hosts, root
        self.tokens, self.throttle = tokens, LoginThrottle()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()  # the request to connect
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._finish(scope, message)
            await send(message)

        try:
            self._check(scope)
        except RefusedError as refusal:
            await _answer(refusal, guarded_send)
            return
        await self.app(scope, receive, guarded_send)

    def _check(self, scope: Message) -> None:
        """Raise a `RefusedError` for a request that must not reach gradio."""
        headers = _Headers(scope["headers"])
        authority = headers.only("host")
        forwarded = headers.get("x-forwarded-host")
        if authority is None or not self.hosts.trusts(authority):
            raise RefusedError(421, "this page is not served under that name; see --allowed-host.")
        if forwarded is not None and not self.hosts.trusts(forwarded.split(",")[0].strip()):
            raise RefusedError(421, "this page is not served under that name; see --allowed-host.")
        self._check_site(scope, headers, forwarded.split(",")[0].strip() if forwarded else authority)
        route = self._route(scope)
        self._check_body(scope, headers, route.body)
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
        """Refuse what another site's page made a browser send."""
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
    def _check_body(scope: Message, headers: "_Headers", most: int) -> None:
        """Refuse a body that is longer than its route needs, or that does not say how long it is."""
        length = headers.get("content-length")
        if headers.get("transfer-encoding") is not None or (scope["method"] == "POST" and length is None):
            raise RefusedError(411, "the length of the request must be given.")
        if length is not None and (not re.fullmatch("[0-9]{1,15}", length) or int(length) > most):
            raise RefusedError(413, "the request is larger than the maximum allowed size.")

    def _logged_in(self, headers: "_Headers") -> bool:
        assert self.tokens is not None
        names, tokens = self.tokens()
        cookies = (part.strip().partition("=") for part in (headers.get("cookie") or "").split(";"))
        return any(name in names and value in tokens for name, _, value in cookies)

    def _finish(self, scope: Message, message: Message) -> None:
        """Put the headers of the page in place of those that gradio or another part set."""
        kept = [
            (name, value.replace(b"SameSite=none", b"SameSite=lax") if name.lower() == b"set-cookie" else value)
            for name, value in message.get("headers", [])
            if name.lower().decode("latin-1") not in HEADERS and not name.lower().startswith(b"access-control-")
        ]
        message["headers"] = [*kept, *((name.encode(), value.encode()) for name, value in HEADERS.items())]
        if scope["path"] == LOGIN_ROUTE and message["status"] == 200:
            self.throttle.succeeded(_client(scope))


class _Headers:
    """Headers of a request by name."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.values: dict[str, list[str]] = {}
        for name, value in raw:
            self.values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def get(self, name: str) -> str | None:
        """All values of a name, joined as HTTP says; None where there is none."""
        return ", ".join(self.values[name]) if name in self.values else None

    def only(self, name: str) -> str | None:
        """The value of a name that was given exactly once."""
        values = self.values.get(name, [])
        return values[0] if len(values) == 1 else None


def _client(scope: Message) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""


async def _answer(refusal: RefusedError, send: Send) -> None:
    body = refusal.text.encode()
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **refusal.headers}
    if refusal.status in (411, 413):
        headers["connection"] = "close"  # the body was not read
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def guard_lifespan(routes: Iterable[Route], hosts: TrustedHosts, root: Path, with_login: bool) -> Any:
    """Make a lifespan handler that wraps gradio's application before it accepts the first connection.

    Middleware that is given to gradio lies within its own, which answers some requests by itself; this one lies outside
    all of them. The handler runs before the server listens.

    Args:
        routes: The paths that may be requested.
        hosts: The names of this page.
        root: The folder of uploads and downloads.
        with_login: Whether there is a password.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
        tokens = (lambda: (names, app.tokens)) if with_login else None
        app.middleware_stack = PageGuard(app.middleware_stack, routes, hosts, root, tokens)
        yield

    return lifespan
