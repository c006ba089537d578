import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def build_png() -> Callable[..., bytes]:
    """Assemble a png by hand from samples (HxW or HxWxC), so that no encoder stands between the test and the bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def build(
        samples: np.ndarray,
        color_type: int,
        extra: dict[bytes, bytes] | None = None,
        size: tuple[int, int] | None = None,
    ) -> bytes:
        height, width = samples.shape[:2]
        declared = size or (width, height)
        depth = 8 * samples.dtype.itemsize
        rows = samples.astype(samples.dtype.newbyteorder(">")).reshape(height, -1)
        raw = b"".join(b"\0" + row.tobytes() for row in rows)
        return (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", *declared, depth, color_type, 0, 0, 0))
            + b"".join(chunk(kind, body) for kind, body in (extra or {}).items())
            + chunk(b"IDAT", zlib.compress(raw))
            + chunk(b"IEND", b"")
        )

    return build


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    """The folder of public benchmark samples beside the checkout."""
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the benchmark samples are not beside this checkout")
    return folder


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every write fail when it must reach the disk."""

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


@pytest.fixture
def served() -> Callable[..., AbstractContextManager[str]]:
    """Send bytes to the first who connects, in pieces with a pause after each, as a context manager: the address."""

    @contextmanager
    def send(data: bytes, pieces: int = 1, pause: float = 0.0, head: bytes = b"") -> Iterator[str]:
        server = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with server, suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(head)
                    size = max(1, -(-len(data) // pieces))
                    for start in range(0, len(data), size):
                        connection.sendall(data[start : start + size])
                        time.sleep(pause)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)

    return send
