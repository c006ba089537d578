"""Commands with live sources: an address is processed as it comes, and ends in good order."""

import json
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protoformer.tracking import baselines
from protoformer.video.reader import open_video

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Run = Callable[..., Any]
Served = Callable[..., AbstractContextManager[str]]
COMMANDS = {
    "flow": ("flow", "--model", "tiny", "--num-updates", "1"),
    "depth": ("depth", "--model", "tiny", "--num-updates", "1"),
    "track": ("track", "--method", "correlation", "--box", "20,20,16,16"),
    "stabilize": ("stabilize", "--model", "tiny", "--delay", "2"),
    "explain": ("explain", "--model", "tiny"),
    "segment": ("segment", "--model", "tiny"),
}


@pytest.fixture
def stream(make_video: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A transport stream of 8 frames of 64x48 pixels; the current folder is empty."""
    coarse = np.random.default_rng(0).integers(0, 256, (8, 10, 3))
    frames = [np.roll(np.kron(coarse, np.ones((8, 8, 1))).astype(np.uint8), n, axis=1)[:48, :64] for n in range(8)]
    path = make_video(tmp_path / "clip.ts", [np.ascontiguousarray(frame) for frame in frames], options={"g": "2"})
    monkeypatch.chdir(tmp_path)
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stream_becomes_a_video(command: str, stream: bytes, served: Served, protoformer: Run) -> None:
    name, *options = COMMANDS[command]
    with served(stream) as address:
        outcome = protoformer(name, f"tcp://{address}", "--no-drop", *options, "-o", "out.mp4", "--json")
    assert outcome.code == 0, outcome.err
    count = 7 if command == "flow" else 8
    summary = json.loads(outcome.out)
    assert (summary["dropped"], summary["timed_out"], summary["width"]) == (0, False, 64)
    saved = list(open_video("out.mp4").frames())
    assert [round(25 * frame.time) for frame in saved] == list(range(count))
    assert [path.name for path in Path().iterdir()] == ["out.mp4"]


def test_ctrl_c_ends_a_stream_and_keeps_the_video(
    stream: bytes, served: Served, started: Callable[..., Any], until: Callable[..., None]
) -> None:
    with (
        served(20 * stream, pieces=100, pause=0.05) as address,
        started("track", f"tcp://{address}", *COMMANDS["track"][1:], "-o", "out.mp4", "--no-drop") as running,
    ):
        until(lambda: list(Path().glob(".*.part")), running)
        time.sleep(1)  # a second of the stream
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (0, "")
    assert "frames of 64x48 pixels" in out and "wrote out.mp4" in out
    assert len(list(open_video("out.mp4").frames())) >= 5


def test_dropped_frames_and_silence_are_noted(
    stream: bytes, served: Served, protoformer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = baselines.BaselineTracker.update

    def slow(self: Any, frame: Any) -> Any:
        time.sleep(0.15)
        return update(self, frame)

    monkeypatch.setattr(baselines.BaselineTracker, "update", slow)
    with served(6 * stream, pieces=24, pause=0.06) as address:
        outcome = protoformer("track", f"tcp://{address}", *COMMANDS["track"][1:], "--csv", "t.csv", "--timeout", "2")
    assert outcome.code == 0
    (note,) = outcome.notes
    assert note.endswith("dropped to keep up; --no-drop processes all")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("track", "97", "--box", "1,1,9,9"), "there is no camera 97; connect it"),
        (("flow", "tcp://127.0.0.1:9", "--timeout", "1"), "tcp://127.0.0.1:9 cannot be opened"),
        (("depth", "ftp://127.0.0.1/a"), "ftp://127.0.0.1/a is not an address of a known kind"),
        (("flow", "clip.mp4", "--drop"), "--drop is for cameras, addresses and pipes; leave it out for clip.mp4"),
        (("explain", "clip.mp4", "--timeout", "3"), "--timeout is for cameras, addresses and pipes"),
    ],
)
def test_a_source_that_cannot_be_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, stream: bytes, protoformer: Run
) -> None:
    Path("clip.mp4").write_bytes(stream)
    outcome = protoformer(*arguments)
    assert outcome.code == 2 and len(outcome.errors) == 1 and sentence in outcome.errors[0]


def test_options_that_need_the_whole_clip_are_refused(stream: bytes, served: Served, protoformer: Run) -> None:
    for option in (("--tripod",), ("--scores",), ("--path", "p.html")):
        with served(stream) as address:
            outcome = protoformer("stabilize", f"tcp://{address}", *option)
        assert outcome.code == 2
        assert f"{option[0]} is for videos that can be read twice; leave it out" in outcome.errors[0]
