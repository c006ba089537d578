"""Requests that no browser on the page would send, against a real server."""

import asyncio
import http.client
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protoformer.web.access import AllowedHosts
from protoformer.web.security import PageGuard, page_routes

pytestmark = pytest.mark.web

FILES = {"image", "video"}
"""Types of components whose value is a file."""
NUM_FILE_EVENTS, NUM_HTML_EVENTS, NUM_EXAMPLES = 16, 7, 21
"""Events of all tabs that take a file, those that also take boxes or a span, and examples."""
IMAGE_TYPES = ["image", "number", "radio", "state", "state"]
"""Inputs of the depth of an image."""
UPLOAD = {"meta": {"_type": "gradio.FileData"}}
VALUES = {"number": 0, "slider": 1, "checkbox": False, "state": None, "html": [[2, 2, 20, 20]]}
"""A value for each other type of component; for a trim control it is None."""


def file_events(server: Any) -> Iterator[tuple[int, list[str], list[Any]]]:
    """Every event that takes a file: its number, the types of its inputs, and ordinary values for them."""
    page = server.config()
    components = {each["id"]: each for each in page["components"]}
    for event in page["dependencies"]:
        given = [components[number] for number in event["inputs"]]
        types = [each["type"] for each in given]
        if FILES & set(types):
            trims = [str(each["props"].get("elem_id")).endswith("-trim") for each in given]
            values = [VALUES.get(each["type"], each["props"].get("value")) for each in given]
            yield event["id"], types, [None if trim else value for trim, value in zip(trims, values, strict=True)]


def completed(server: Any, number: int, data: list[Any]) -> dict[str, Any]:
    """Join the queue and wait for the end of the job."""
    session = uuid.uuid4().hex
    joined = server.request(
        "POST", "/gradio_api/queue/join", {"data": data, "fn_index": number, "session_hash": session}
    )
    assert joined.status == 200, joined.body
    stream = server.request("GET", f"/gradio_api/queue/data?session_hash={session}").body
    (ended,) = (json.loads(line[6:]) for line in stream.splitlines() if b'"process_completed"' in line)
    message: dict[str, Any] = ended
    return message


def uploaded(server: Any, path: Path) -> str:
    """Upload a file and return its path on the server."""
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n\r\n'.encode()
    answer = server.request(
        "POST",
        "/gradio_api/upload",
        head + path.read_bytes() + b"\r\n--x--\r\n",
        {"Content-Type": "multipart/form-data; boundary=x"},
    )
    (stored,) = json.loads(answer.body)
    return str(stored)


@pytest.fixture(scope="module")
def secrets(
    tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path], moving_pattern: Callable[..., Any]
) -> dict[str, Path]:
    """An image and a clip of this machine that every tab could open."""
    folder = tmp_path_factory.mktemp("private")
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "secret.png")
    return {"image": folder / "secret.png", "video": make_video(folder / "secret.mp4", moving_pattern(3))}


@pytest.fixture
def planted(served: Any) -> Iterator[Path]:
    """A folder among the uploads."""
    folder = served.folder / "served" / ("0" * 64)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("meta", [{}, UPLOAD], ids=["plain", "marked"])
@pytest.mark.parametrize("way", ["absolute", "dots", "link", "linked folder", "pipe", "folder", "relative"])
def test_no_tab_opens_a_path_that_is_not_an_upload(
    served: Any, secrets: dict[str, Path], planted: Path, way: str, meta: dict[str, Any]
) -> None:
    def forged(kind: str) -> str:
        secret = secrets[kind]
        inside = planted / secret.name
        if way == "absolute":
            return str(secret)
        if way == "dots":
            return f"{planted}/{os.path.relpath(secret, planted)}"
        if way == "relative":
            return os.path.relpath(secret)
        if way == "link":
            inside.unlink(missing_ok=True)
            inside.symlink_to(secret)
        elif way == "linked folder":
            (planted / "linked").unlink(missing_ok=True)
            (planted / "linked").symlink_to(secret.parent)
            return str(planted / "linked" / secret.name)
        elif way == "pipe":
            inside.unlink(missing_ok=True)
            os.mkfifo(inside)
        else:
            inside.mkdir(exist_ok=True)
        return str(inside)

    events = list(file_events(served))
    assert len(events) == NUM_FILE_EVENTS
    for number, types, values in events:
        data = [{"path": forged(t), **meta} if t in FILES else v for t, v in zip(types, values, strict=True)]
        ended = completed(served, number, data)
        assert ended["success"] is False, (types, ended)
        assert str(secrets["image"].parent) not in json.dumps(ended)
        assert ended["output"]["error"] is None or "choose it again" in ended["output"]["error"]


def test_an_upload_is_opened(served: Any, secrets: dict[str, Path]) -> None:
    paths = {kind: uploaded(served, path) for kind, path in secrets.items()}
    for number, types, values in file_events(served):
        data = [{"path": paths[t], **UPLOAD} if t in FILES else v for t, v in zip(types, values, strict=True)]
        ended = completed(served, number, data)
        assert ended["success"] is True, (types, ended)
        assert "pf-error" not in json.dumps(ended)
    number = next(number for number, types, _ in file_events(served) if "image" in types)
    gone = completed(served, number, [{"path": f"{paths['image']}.gone"}] * 4)
    assert "choose it again" in gone["output"]["error"]


def test_examples_of_the_page_are_opened(served: Any) -> None:
    page = served.config()
    types = {each["id"]: each["type"] for each in page["components"]}
    takers = [event for event in file_events(served) if "state" in event[1]]  # the computations
    examples = [
        event
        for event in page["dependencies"]
        if not event["inputs"] and event["outputs"] and {types[number] for number in event["outputs"]} <= FILES
    ]
    assert len(examples) == NUM_EXAMPLES
    for event in examples:
        offered = completed(served, event["id"], [])["output"]["data"]
        kinds = [types[number] for number in event["outputs"]]
        number, given, values = next(each for each in takers if [t for t in each[1] if t in FILES] == kinds)
        data = [*offered, *values[len(offered) :]]
        ended = completed(served, number, data)
        assert ended["success"] is True and "choose it again" not in json.dumps(ended), (given, ended)


def test_states_of_the_page_cannot_be_sent(served: Any, secrets: dict[str, Path]) -> None:
    victim = served.folder / "results" / "victim"
    victim.mkdir(parents=True, exist_ok=True)
    clip = {"path": uploaded(served, secrets["video"]), **UPLOAD}
    clips = [each for each in file_events(served) if "video" in each[1] and "state" in each[1]]
    for forged in (str(victim), {"__type__": "update", "value": str(victim)}):
        for number, types, values in clips:
            given = {"video": clip, "state": forged}
            assert completed(served, number, [given.get(t, v) for t, v in zip(types, values, strict=True)])["success"]
    assert victim.is_dir()
    page = served.config()
    (slide, *_) = (each for each in page["dependencies"] if not each["queue"])
    body = {"data": [1, str(victim)], "fn_index": slide["id"], "session_hash": uuid.uuid4().hex}
    answer = served.request("POST", "/gradio_api/run/predict", body)
    assert answer.status == 200 and str(victim) not in answer.body.decode()


def test_boxes_that_hold_a_file_are_refused(served: Any, secrets: dict[str, Path]) -> None:
    events = [(number, types) for number, types, _ in file_events(served) if "html" in types]
    assert len(events) == NUM_HTML_EVENTS
    clip = {"path": uploaded(served, secrets["video"]), **UPLOAD}
    for number, types in events:
        for forged in ({"path": str(secrets["image"])}, [[{"a": {"path": str(secrets["image"]), **UPLOAD}}]]):
            given = {"video": clip, "html": forged, "slider": 1, "radio": "any", "number": 0, "checkbox": False}
            ended = completed(served, number, [given.get(kind) for kind in types])
            assert ended["success"] is False and "choose it again" in ended["output"]["error"]


@pytest.mark.parametrize(
    "span", [[5], [2, 1], [None, 0], [-1, 1], ["0", "1"], [0, 1e999], [[0], [1]], {}, "0,1", 7, [0, 1, 2], [True, None]]
)
def test_forged_spans_of_a_clip_give_a_message(served: Any, secrets: dict[str, Path], span: Any) -> None:
    clip = {"path": uploaded(served, secrets["video"]), **UPLOAD}
    number, types, values = next(
        event
        for event in file_events(served)
        if event[1] == ["video", "html", "state"]  # flow of a clip
    )
    data = [{"video": clip, "html": span}.get(kind, value) for kind, value in zip(types, values, strict=True)]
    ended = completed(served, number, data)
    assert ended["success"] is True
    assert "pf-error" in json.dumps(ended) or span == [True, None]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", f"/gradio_api/{name}") for name in ("process_recording", "component_server", "reset")),
        *(("POST", f"/gradio_api/{name}") for name in ("run/flow_pair", "api/predict", "call/flow_pair")),
        *(("POST", f"/gradio_api/{name}") for name in ("vibe-edit", "vibe-code", "undo-vibe-edit", "stream/x")),
        *(("POST", f"/gradio_api/{name}") for name in ("call/v2/slid", "run-history/connect", "mcp", "mcp/")),
        *(("GET", f"/gradio_api/{name}") for name in ("vibe-code", "deep_link?session_hash=a", "info", "openapi.json")),
        *(("GET", f"/gradio_api/{name}") for name in ("file/etc/passwd", "proxy=https://a.hf.space/", "runs", "user")),
        *(
            ("GET", f"/gradio_api/{name}")
            for name in ("custom_component/1/client/component/a.js", "dev/reload", "token")
        ),
        *(("GET", f"/gradio_api/{name}") for name in ("queue/status", "login_check", "stream/a/b/1/playlist.m3u8")),
        *(("GET", f"/gradio_api/{name}") for name in ("call/a/b", "profiling/traces", "mcp/sse", "theme.css")),
        *(
            ("GET", name)
            for name in ("/monitoring", "/monitoring/summary", "/docs", "/redoc", "/openapi.json", "/logout")
        ),
        *(
            ("GET", name)
            for name in ("/manifest.json", "/pwa_icon", "/robots.txt", "/svelte/a.js", "/login/huggingface")
        ),
        *(("GET", name) for name in ("/?deep_link=x", "/config?deep_link=../a", "//", "/index.html", "/assets/../a")),
        *((method, "/") for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")),
        *((method, "/gradio_api/queue/join") for method in ("GET", "HEAD", "OPTIONS", "PUT")),
        ("POST", "/login"),  # there is no password here
        ("POST", "/gradio_api/queue/join/"),
        ("POST", "/gradio_api//queue/join"),
        ("POST", "/gradio_api/upload%2f"),
    ],
)
def test_other_routes_of_gradio_are_not_served(served: Any, method: str, path: str) -> None:
    answer = served.request(method, path, None if method in ("GET", "HEAD", "TRACE") else b"{}")
    assert answer.status == 404
    assert answer.body in (b"there is nothing here.", b"")


def test_a_playlist_is_not_run_through_ffmpeg(served: Any, secrets: dict[str, Path]) -> None:
    playlist = f"#EXTM3U\n#EXTINF:1,\n{secrets['video']}\n#EXT-X-ENDLIST\n".encode()
    head = b'--x\r\nContent-Disposition: form-data; name="video"; filename="a.mp4"\r\n\r\n'
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = served.request("POST", "/gradio_api/process_recording", head + playlist + b"\r\n--x--\r\n", form)
    assert answer.status == 404


def test_no_websocket_is_opened(served: Any) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
    assert served.request("GET", "/gradio_api/queue/join", headers=upgrade).status in (403, 404)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def application(*_: Any) -> None:
        raise AssertionError("a websocket reached the application")

    guard = PageGuard(application, page_routes(1, False), AllowedHosts("127.0.0.1"), Path("/nowhere"))
    asyncio.run(guard({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "localhost.evil.example", "192.168.1.5:{port}"]
)
def test_the_page_has_no_other_name(served: Any, host: str) -> None:
    host = host.format(port=served.address.rsplit(":", 1)[1])
    for method, path in (("GET", "/"), ("GET", "/config"), ("POST", "/gradio_api/queue/join")):
        answer = served.request(method, path, b"{}" if method == "POST" else None, {"Host": host})
        assert answer.status == 421 and b"not served under that name" in answer.body
    assert served.request("GET", "/config", headers={"X-Forwarded-Host": host}).status == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:80", "127.0.0.1:1"])
def test_names_of_this_machine_are_allowed(served: Any, host: str) -> None:
    assert served.request("GET", "/config", headers={"Host": host}).status == 200
    assert served.request("GET", "/config", headers={"Host": host, "Origin": f"http://{host.lower()}"}).status == 200


@pytest.mark.parametrize("headers", [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "document"},
])  # fmt: skip
def test_other_sites_can_do_nothing(served: Any, headers: dict[str, str]) -> None:
    body = {"data": [], "fn_index": 0, "session_hash": "a"}
    for path in ("/gradio_api/queue/join", "/gradio_api/run/predict", "/gradio_api/upload"):
        assert served.request("POST", path, body, {**headers, "Content-Type": "text/plain"}).status == 403
    for path in ("/config", "/gradio_api/queue/data?session_hash=a", "/gradio_api/heartbeat/a"):
        assert served.request("GET", path, headers=headers).status == 403


def test_a_link_leads_to_the_page_and_a_frame_does_not(served: Any) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert served.request("GET", "/", headers={**link, "Sec-Fetch-Dest": "document"}).status == 200
    assert served.request("GET", "/", headers={**link, "Sec-Fetch-Dest": "iframe"}).status == 403


def test_every_response_has_security_headers(served: Any) -> None:
    unknown = {"data": [], "fn_index": 10**6, "session_hash": "a"}
    answers = {
        200: served.request("GET", "/"),
        403: served.request("GET", "/", headers={"Origin": "http://evil.example"}),
        404: served.request("GET", "/nowhere"),
        422: served.request("POST", "/gradio_api/queue/join", b"no json"),
        500: served.request("POST", "/gradio_api/queue/join", unknown),
    }
    for status, answer in answers.items():
        assert answer.status == status
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert answer.headers["Access-Control-Allow-Origin"] is None
        assert b"Traceback" not in answer.body and b"site-packages" not in answer.body
    assert answers[500].body == b"Internal Server Error"


def test_the_page_contains_no_path_of_the_server(served: Any) -> None:
    private = [str(served.folder), str(Path.cwd()), str(Path.home()), "site-packages", "/tmp"]
    for path in ("/", "/config"):
        text = served.request("GET", path).body.decode()
        assert [each for each in private if f'"{each}' in text or f"/{each}/" in text] == []
    (number,) = (number for number, types, _ in file_events(served) if types == IMAGE_TYPES)
    for data in ([[], 0, "any", None, None], [{"path": None}, "x", "any", None, None], [None, 0, {}, None, None], []):
        ended = completed(served, number, data)
        assert [each for each in (*private, "Traceback") if each in json.dumps(ended)] == []


def test_a_request_that_is_too_long_is_refused_before_it_is_read(served: Any) -> None:
    for path, length in (("/gradio_api/queue/join", 2 * 10**6), ("/gradio_api/upload", 10**9), ("/config", 1)):
        method = "GET" if path == "/config" else "POST"
        answer = served.request(method, path, headers={"Content-Length": str(length)})
        assert answer.status == 413 and b"maximum" in answer.body
    chunked = served.request(
        "POST", "/gradio_api/queue/join", b"2\r\n{}\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"}
    )
    assert chunked.status in (400, 411)
    deep = b'{"data": [' + b"[" * 400_000 + b"]" * 400_000 + b'], "fn_index": 0, "session_hash": "a"}'
    assert served.request("POST", "/gradio_api/queue/join", deep).status in (400, 422, 500)
    assert served.request("GET", "/config").status == 200


def test_forty_jobs_at_once_leave_the_page_running(served: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (280, 280, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    path, session = uploaded(served, tmp_path / "large.png"), uuid.uuid4().hex
    (number,) = (number for number, types, _ in file_events(served) if types[:3] == ["image", "image", "radio"])
    body = {"data": [{"path": path}, {"path": path}, "flow", None, None], "fn_index": number, "session_hash": session}
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: served.request("POST", "/gradio_api/queue/join", body), range(40)))
    refused = [answer for answer in answers if answer.status != 200]
    assert refused and all(answer.status == 503 and b"Queue is full" in answer.body for answer in refused)
    assert served.request("GET", "/config").status == 200
    connection = http.client.HTTPConnection(served.address.removeprefix("http://"), timeout=60)
    connection.request("GET", f"/gradio_api/queue/data?session_hash={session}")
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()  # a client that disconnects is removed from the queue
    empty = [None, None, "flow", None, None]
    assert "Choose an image first." in json.dumps(completed(served, number, empty))
