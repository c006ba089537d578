"""A command that is stopped from outside while it writes a video."""

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from protoformer.cli.terminal import interruptible
from protoformer.video.reader import open_video

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals on Windows")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_ends_with_the_code_of_its_signal_once_all_is_tidied_up(sent: signal.Signals, code: int) -> None:
    before, happened = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(typer.Exit) as ended, interruptible(lambda _: happened.append("reported")):
        try:
            signal.raise_signal(sent)
            happened.append("went on")
        finally:
            happened.append("tidied up")
    assert (ended.value.exit_code, happened) == (code, ["tidied up", "reported"])
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_request_to_terminate_what_is_stopping_changes_nothing(sent: signal.Signals, code: int) -> None:
    happened = []

    def report(_: KeyboardInterrupt) -> None:
        signal.raise_signal(signal.SIGTERM)
        happened.append("reported")

    with pytest.raises(typer.Exit) as ended, interruptible(report):
        try:
            signal.raise_signal(sent)
        finally:
            signal.raise_signal(signal.SIGTERM)
            happened.append("tidied up")
    assert (ended.value.exit_code, happened) == (code, ["tidied up", "reported"])


def test_a_terminated_command_keeps_its_frames_and_leaves_nothing_hidden(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_video: Callable[..., Path],
    started: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = np.random.default_rng(0).integers(0, 256, (200, 64, 96, 3), dtype=np.uint8)
    make_video(tmp_path / "clip.mp4", list(frames))
    (tmp_path / "out.mp4").write_bytes(b"old")
    quick = ("--model", "tiny", "--num-updates", "1", "--scale", "2")
    with started("flow", "clip.mp4", *quick, "-o", "out.mp4") as running:
        until(lambda: list(tmp_path.glob(".*.part")), running)
        time.sleep(0.2)  # somewhere within the video
        running.terminate()
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (143, "") and "Traceback" not in err, err
    told = re.fullmatch(r"protoformer: stopped after (\d+) flows?; kept out\.partial\.mp4\.", err.splitlines()[-1])
    assert told is not None, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "out.mp4", "out.partial.mp4"]
    assert (tmp_path / "out.mp4").read_bytes() == b"old"
    assert len(list(open_video(tmp_path / "out.partial.mp4").frames())) == int(told[1]) >= 1
