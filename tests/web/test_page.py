"""File access through the running page."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

pytestmark = pytest.mark.web


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=../../../../../../etc/passwd",
        "/gradio_api/file=%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/gradio_api/file={served}/../../../../../../../../etc/passwd",
        "/gradio_api/file={examples}/drive-1.png",
        "/gradio_api/file=pyproject.toml",
        "/gradio_api/file=http://127.0.0.1:{port}/config",
        "/gradio_api/proxy=http://127.0.0.1:{port}/config",
        "/static/../../../../../../etc/passwd",
        "/assets/..%2f..%2f..%2f..%2f..%2f..%2fetc/passwd",
    ],
)
def test_no_other_file_can_be_read(served: Any, path: str) -> None:
    (folder,) = served.temporary.glob("protoformer-web-*")
    names = {"served": folder / "served", "examples": folder / "examples", "port": served.address.rsplit(":", 1)[1]}
    assert (names["examples"] / "drive-1.png").exists()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(served.address + path.format(**names), timeout=20)
    with refused.value as answer:
        assert answer.code in (403, 404)
        assert b"root:" not in answer.read()


@pytest.mark.parametrize("path", ["/etc/passwd", "{examples}/drive-1.png", "http://127.0.0.1:{port}/config"])
def test_a_forged_upload_is_not_opened(served: Any, path: str) -> None:
    (folder,) = served.temporary.glob("protoformer-web-*")
    path = path.format(examples=folder / "examples", port=served.address.rsplit(":", 1)[1])
    with urllib.request.urlopen(f"{served.address}/config", timeout=20) as answer:
        calls = json.load(answer)["dependencies"]
    (number,) = (call["id"] for call in calls if call["api_name"] == "flow_pair")
    upload = {"path": path, "meta": {"_type": "gradio.FileData"}}
    body = {"data": [upload, upload, None], "fn_index": number, "session_hash": f"forged{len(path)}"}
    request = urllib.request.Request(
        f"{served.address}/gradio_api/queue/join", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20):
        pass
    events_url = f"{served.address}/gradio_api/queue/data?session_hash={body['session_hash']}"
    with urllib.request.urlopen(events_url, timeout=20) as events:
        ended = next(line for line in events if b"process_completed" in line)
    assert json.loads(ended.removeprefix(b"data: "))["success"] is False
