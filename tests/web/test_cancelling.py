"""Computations that are canceled, or whose client disconnects, on a running page."""

import http.client
import json
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.web

TIMEOUT = 30
"""Timeout of requests, seconds."""


class Client:
    """A session with the page, as gradio's own client has one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.session = uuid.uuid4().hex
        with urllib.request.urlopen(f"{address}/config", timeout=TIMEOUT) as answer:
            calls = json.load(answer)["dependencies"]
        self.functions = {call["api_name"]: call["id"] for call in calls}

    def post(self, path: str, body: bytes, kind: str = "application/json") -> Any:
        request = urllib.request.Request(f"{self.address}/gradio_api/{path}", body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def upload(self, path: Path) -> dict[str, Any]:
        head = f'--xyz\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n\r\n'
        (stored,) = self.post(
            "upload", head.encode() + path.read_bytes() + b"\r\n--xyz--\r\n", "multipart/form-data; boundary=xyz"
        )
        return {"path": stored, "meta": {"_type": "gradio.FileData"}}

    def join(self, name: str, data: list[Any]) -> str:
        body = {"data": data, "fn_index": self.functions[name], "session_hash": self.session}
        return str(self.post("queue/join", json.dumps(body).encode())["event_id"])

    def cancel(self, name: str, event: str) -> None:
        body = {"session_hash": self.session, "fn_index": self.functions[name], "event_id": event}
        self.post("cancel", json.dumps(body).encode())

    def listen(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Open the stream of messages to this session; the caller closes it."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.address).netloc, timeout=TIMEOUT)
        connection.request("GET", f"/gradio_api/queue/data?session_hash={self.session}")
        return connection, connection.getresponse()


def wait_for_message(stream: http.client.HTTPResponse, wanted: str) -> dict[str, Any]:
    """The first message of a kind."""
    for line in stream:
        if line.startswith(b"data: "):
            message: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if message["msg"] == wanted:
                return message
    raise AssertionError(f"there was no message {wanted}")


def results_of(served: Any) -> set[Path]:
    (folder,) = served.temporary.glob("protoformer-web-*")
    return set((folder / "results").glob("*"))


def wait_for(fact: Callable[[], bool]) -> bool:
    end = time.monotonic() + TIMEOUT
    while not fact() and time.monotonic() < end:
        time.sleep(0.05)
    return fact()


@pytest.fixture
def clip(make_video: Callable[..., Path], tmp_path: Path) -> Path:
    noise = np.random.default_rng(1).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    return make_video(tmp_path / "clip.mp4", [np.roll(noise, 2 * n, axis=1) for n in range(6)])


@pytest.mark.parametrize("way", ["disconnect", "cancel"])
def test_a_canceled_computation_leaves_nothing_and_the_next_one_runs(served: Any, clip: Path, way: str) -> None:
    before = results_of(served)
    client = Client(served.address)
    event = client.join("flow_clip", [client.upload(clip), None, None])
    connection, stream = client.listen()
    wait_for_message(stream, "process_starts")
    assert wait_for(lambda: len(results_of(served) - before) == 1)
    if way == "cancel":
        client.cancel("flow_clip", event)
        wait_for_message(stream, "process_completed")
    stream.close()
    connection.close()
    assert wait_for(lambda: results_of(served) <= before)
    another = Client(served.address)
    another.join("flow_clip", [another.upload(clip), None, None])
    connection, stream = another.listen()
    assert wait_for_message(stream, "process_completed")["success"]
    stream.close()
    connection.close()
    assert len(results_of(served) - before) == 1  # the result of the second client is kept


def test_an_upload_over_the_quota_is_refused_before_it_is_read(served: Any) -> None:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(served.address).netloc, timeout=TIMEOUT)
    connection.putrequest("POST", "/gradio_api/upload")
    connection.putheader("Content-Type", "multipart/form-data; boundary=xyz")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    with connection.getresponse() as answer:
        assert (answer.status, answer.read()) == (413, b"the request is larger than the maximum allowed size.")
    connection.close()
