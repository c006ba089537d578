"""Fixtures: a page served by `protoformer serve`, and a browser."""

import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync"]
TIMEOUT_MS = 30_000
"""Timeout of the browser, milliseconds."""


def missing_packages() -> str | None:
    """Return why the browser tests cannot run, or None."""
    packages = [name for name in ("gradio", "playwright") if importlib.util.find_spec(name) is None]
    absent = packages + ([] if shutil.which("chromium") else ["chromium"])
    return f"{' and '.join(absent)} not installed; `make test-web` does so" if absent else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `web` if something is missing."""
    reason = missing_packages()
    for item in items:
        if reason and item.get_closest_marker("web"):
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Response:
    """Response to an HTTP request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass(frozen=True)
class Served:
    """A running page.

    Attributes:
        address: URL.
        temporary: Folder that contains the folder of the page.
        process: The server.
    """

    address: str
    temporary: Path
    process: "subprocess.Popen[bytes]"

    @property
    def folder(self) -> Path:
        """The page's own folder."""
        (folder,) = self.temporary.glob("protoformer-web-*")
        return folder

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, client: str = "127.0.0.1"
    ) -> Response:
        """Send a request from a client address; a body that is not bytes is sent as JSON."""
        address = self.address.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=60, source_address=(client, 0))
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return Response(response.status, response.headers, content)

    def config(self, cookie: str = "") -> dict[str, Any]:
        """Return the components and events of the page; the cookie is that of a login."""
        config: dict[str, Any] = json.loads(self.request("GET", "/config", headers={"Cookie": cookie}).body)
        return config


@contextmanager
def serving(temporary: Path, *options: str, limited: bool = True, **environment: str) -> Iterator[Served]:
    """Run `protoformer serve` at a free port of this machine with the smallest models, and low limits by default."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    limits = ["--max-mb", "1", "--max-pixels", "80000", "--max-frames", "6", "--max-seconds", "60"] if limited else []
    models = ["--model", "tiny", "--depth-model", "tiny"]
    log = temporary / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "protoformer", "serve", "--port", str(port), *models, *limits, *options],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", **environment},
        )
    while " is at http" not in log.read_text():
        if process.poll() is not None:
            pytest.fail(f"the page did not start: {log.read_text()}")
        time.sleep(0.1)
    yield Served(f"http://127.0.0.1:{port}", temporary, process)
    process.terminate()
    process.wait(timeout=20)
    left = {path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")}
    assert left == {"log.txt"}  # every upload and result is gone with the page


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page with default options; environment variables of gradio have no effect."""
    with serving(tmp_path_factory.mktemp("served"), GRADIO_ALLOWED_PATHS="/", GRADIO_NUM_WORKERS="2") as page:
        yield page


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page without limits of frames and time, as this machine alone gets it."""
    with serving(tmp_path_factory.mktemp("local"), limited=False) as page:
        yield page


@pytest.fixture(scope="session")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page at all addresses of this machine, with a password from the environment."""
    folder = tmp_path_factory.mktemp("protected")
    with serving(
        folder, "--host", "0.0.0.0", "--allowed-host", "Lab.Example", PROTOFORMER_AUTH="ada:l0ve:lace"
    ) as page:
        yield page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield running
        running.close()


@contextmanager
def browsing(browser: Any, served: Served, width: int = 1280, height: int = 1000, **options: Any) -> Iterator[Any]:
    """Open the page in a new browser tab; all of its requests must go to the server, and no script may fail."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(TIMEOUT_MS)
    tab = context.new_page()
    urls: list[str] = []
    errors: list[str] = []
    tab.on("request", lambda request: urls.append(request.url))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(served.address)
    tab.wait_for_selector("#flow-compute-pair")
    yield tab
    context.close()
    assert all(url.startswith((served.address, "data:", "blob:")) for url in urls)
    assert not errors


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """A browser tab with the page of low limits."""
    with browsing(browser, served) as tab:
        yield tab


@pytest.fixture
def local_page(browser: Any, local: Served) -> Iterator[Any]:
    """A browser tab with the page without limits."""
    with browsing(browser, local) as tab:
        yield tab


@pytest.fixture
def two_images(tmp_path: Path) -> tuple[Path, Path]:
    """A 96x72 image, and the same image shifted by 3 pixels to the right."""
    pixels = np.random.default_rng(0).integers(0, 256, (18, 24, 3), dtype=np.uint8).repeat(4, axis=0).repeat(4, axis=1)
    paths = (tmp_path / "one.png", tmp_path / "two.png")
    for path, image in zip(paths, (pixels, np.roll(pixels, 3, axis=1)), strict=True):
        Image.fromarray(image).save(path)
    return paths
