"""What one client may upload, and what happens to more."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from protoformer.web.limits import Limits, UploadLimit, UploadQuota

LIMITS = Limits(max_megabytes=1, max_pixels=10_000, max_frames=5, max_seconds=60, max_jobs=1)


class Clock:
    """Seconds that a test can let pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_bytes_per_client_are_limited(tmp_path: Path) -> None:
    clock = Clock()
    quota = UploadQuota(LIMITS, tmp_path, 1800, clock)
    for _ in range(10):
        clock.now += 1
        assert quota.refusal("10.0.0.1", 10**6) == ""
    assert quota.refusal("10.0.0.1", 1) == "The limit is 10 MB of uploads per client; try again in half an hour."
    assert quota.refusal("10.0.0.2", 10**6) == ""
    clock.now = 1801  # the first one does not count any more
    assert quota.refusal("10.0.0.1", 10**6) == ""
    assert quota.refusal("10.0.0.1", 10**6).startswith("The limit is 10 MB of uploads")


def test_the_files_per_client_are_limited(tmp_path: Path) -> None:
    quota = UploadQuota(LIMITS, tmp_path, 1800, Clock())
    for _ in range(LIMITS.client_files):
        assert quota.refusal("10.0.0.1", 1) == ""
    assert quota.refusal("10.0.0.1", 1).startswith(f"The limit is {LIMITS.client_files} uploads per client")


def test_an_ipv6_network_is_one_client(tmp_path: Path) -> None:
    quota = UploadQuota(LIMITS, tmp_path, 1800, Clock())
    for number in range(10):
        assert quota.refusal(f"2001:db8:0:1::{number}", 10**6) == ""
    assert quota.refusal("2001:db8:0:1:ffff::", 10**6) != ""
    assert quota.refusal("2001:db8:0:2::1", 10**6) == ""
    assert quota.refusal("::ffff:10.0.0.1", 10**6) == "" == quota.refusal("testclient", 10**6)


def test_large_files_and_uploads_to_a_full_page_are_refused(tmp_path: Path) -> None:
    quota = UploadQuota(LIMITS, tmp_path, 1800, Clock())
    assert quota.refusal("10.0.0.1", 2 * 10**6) == "The file is too large: the limit is 1 MB; make it smaller."
    with (tmp_path / "full").open("wb") as file:
        file.truncate(LIMITS.total_bytes)
    assert quota.refusal("10.0.0.1", 10) == "The storage of this page is full; try again in half an hour."


async def _read(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads what it is sent and says how much that was."""
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


def upload(quota: UploadQuota, body: bytes, path: str = "/gradio_api/upload", step: int = 7, **headers: str) -> Any:
    """(status, text) of a request that comes in pieces of `step` bytes."""
    pieces = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
    sent: list[Any] = []

    async def receive() -> Any:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"content-length": str(len(body)), "content-type": "multipart/form-data; boundary=xyz", **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "client": ("10.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in named.items() if value],
    }
    # In a thread of its own: a browser that other tests drive has a loop in this one.
    with ThreadPoolExecutor() as threads:
        threads.submit(asyncio.run, UploadLimit(_read, quota)(scope, receive, send)).result()
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.fixture
def quota(tmp_path: Path) -> UploadQuota:
    return UploadQuota(LIMITS, tmp_path, 1800, Clock())


def test_uploads_pass_until_the_quota_is_used(quota: UploadQuota) -> None:
    assert upload(quota, bytes(1000)) == (200, "1000")
    assert [upload(quota, bytes(10**6), step=10**6)[0] for _ in range(11)] == [200] * 9 + [413] * 2
    assert "try again in half an hour" in upload(quota, bytes(10**6), step=10**6)[1]
    # Other requests are not limited.
    assert upload(quota, bytes(1000), "/gradio_api/queue/join") == (200, "1000")


def test_an_upload_says_how_long_it_is(quota: UploadQuota) -> None:
    assert upload(quota, bytes(1000), **{"content-length": ""})[0] == 411
    assert upload(quota, bytes(1000), **{"content-length": "9" * 19})[0] == 413
    assert upload(quota, bytes(1000), **{"content-length": "9" * 5000})[0] == 411


def test_a_request_holds_few_files(quota: UploadQuota) -> None:
    assert upload(quota, b"--xyz\r\n\r\n1\r\n" * 2 + b"--xyz--")[0] == 200
    for step in (1, 3, 50, 1000):  # a mark may be cut anywhere
        assert upload(quota, b"--xyz\r\n\r\n1\r\n" * 100 + b"--xyz--", step=step) == (
            413,
            "Too many files at once; upload one at a time.",
        )


def test_unfinished_uploads_count_towards_the_total(tmp_path: Path) -> None:
    quota = UploadQuota(LIMITS, tmp_path, 1800, Clock())
    length = 10**6
    for number in range(LIMITS.total_bytes // length):
        assert quota.refusal(f"10.0.{number // 250}.{number % 250}", length) == ""
    assert quota.refusal("10.9.0.1", length).startswith("The storage of this page is full")
    quota.finish(length)
    assert quota.refusal("10.9.0.1", length) == ""


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; xboundary=a", "multipart/form-data; boundary=a; boundary=b"]
)
def test_a_form_without_one_boundary_is_refused(tmp_path: Path, kind: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    limit = UploadLimit(None, UploadQuota(LIMITS, tmp_path, 1800, Clock()))
    headers = [(b"content-length", b"10"), (b"content-type", kind.encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/gradio_api/upload",
        "headers": headers,
        "client": ("10.0.0.1", 1),
    }
    with ThreadPoolExecutor(1) as pool:  # the browser's tests leave an event loop running in this thread
        pool.submit(lambda: asyncio.run(limit(scope, None, send))).result()
    assert sent[0]["status"] == 400
