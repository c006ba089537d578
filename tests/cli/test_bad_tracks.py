"""A clip, a box or an option with which nothing can be followed: code 2, one sentence, and the folder as it was."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from protoformer.io.image import write_image

pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Refuse = Callable[..., str]


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path], moving_pattern: Callable[..., Any]
) -> Path:
    """The current folder, with clip.mp4, of three frames, in it."""
    monkeypatch.chdir(tmp_path)
    make_video(tmp_path / "clip.mp4", moving_pattern(3))
    return tmp_path


@pytest.fixture
def refuse(place: Path, protoformer: Callable[..., Any]) -> Refuse:
    """Run the command so that it must refuse; return its one sentence."""

    def contents() -> dict[str, bytes | None]:
        return {str(path): None if path.is_dir() else path.read_bytes() for path in place.rglob("*")}

    def run(
        *options: str, source: str = "clip.mp4", box: str | None = "20,30,24,24", method: str = "correlation"
    ) -> str:
        before = contents()
        boxes = () if box is None else ("--box", box)
        outcome = protoformer("track", source, *boxes, "--method", method, *options)
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        (sentence,) = outcome.errors
        assert sentence.startswith("protoformer: ") and sentence.endswith(".") and "; " in sentence
        assert "Traceback" not in outcome.err and contents() == before
        return sentence

    return run


def test_boxes_that_cannot_be(refuse: Refuse) -> None:
    assert "there is no target; give a --box X,Y,W,H" in refuse(box=None)
    for text in ("1,2,3", "1,2,3,4,5", "a,b,c,d", "", "1 2 3 4", "1,2,,4"):
        assert f"a box is X,Y,W,H, four numbers of pixels such as 51,47,25,62, not {text!r}" in refuse(box=text)
    assert "the box 1,2,nan,4 has a number that is not finite" in refuse(box="1,2,nan,4")
    assert "not finite" in refuse(box="1,2,inf,4")
    assert "the box 5,5,0,9 has no area" in refuse(box="5,5,0,9")
    assert "the box 5,5,9,-9 has no area" in refuse(box="5,5,9,-9")
    assert "the box 128,5,9,9 lies outside the frame of 128x96 pixels" in refuse(box="128,5,9,9")
    assert "lies outside the frame" in refuse("--box", "-20,5,9,9")


def test_clips_that_cannot_be(place: Path, refuse: Refuse, make_video: Callable[..., Path]) -> None:
    (place / "text.mp4").write_text("this is no video\n" * 50)
    assert "text.mp4 is not a video of a known kind" in refuse(source="text.mp4")
    assert "none.mp4 does not exist" in refuse(source="none.mp4")
    assert "no file matches none*.png" in refuse(source="none*.png")
    make_video(place / "one.mp4", [np.zeros((96, 128, 3), np.uint8)])
    assert "one.mp4 has one frame in this span; tracking needs two" in refuse(source="one.mp4")
    write_image(place / "one.png", np.zeros((96, 128, 3), np.uint8))
    assert "one.png has one frame in this span" in refuse("--csv", "out.csv", source="one.png")
    assert "clip.mp4 has no frame in this span" in refuse("--start", "5")
    assert "clip.mp4 has one frame in this span" in refuse("--frame-step", "9")


def test_outputs_that_cannot_be(place: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the folder nowhere does not exist" in refuse("-o", "nowhere/out.mp4")
    assert "the folder nowhere does not exist" in refuse("--csv", "nowhere/out.csv")
    (place / "folder.mp4").mkdir()
    assert "folder.mp4 is a folder" in refuse("-o", "folder.mp4")
    assert "out.txt does not end in" in refuse("-o", "out.txt")
    assert "out.txt does not end in .csv" in refuse("--csv", "out.txt")
    assert "the output clip.mp4 is also an input" in refuse("-o", "./clip.mp4")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "out.mp4 could not be written (No space left on device)" in refuse("-o", "out.mp4")
    assert "out.csv could not be written (No space left on device)" in refuse("--csv", "out.csv")


def test_options_that_cannot_be(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no method 'magic'; choose model, correlation, mil, kcf, csrt" in refuse(method="magic")
    monkeypatch.delattr(cv2, "TrackerKCF", raising=False)
    assert "pip install opencv-contrib-python-headless" in refuse(method="kcf")
    assert "correlation takes no --model, --device or --precision" in refuse("--model", "tiny")
    assert "there is no precision 'double'" in refuse("--model", "tiny", "--precision", "double", method="model")
    assert "there is no model 'huge'" in refuse("--model", "huge", method="model")
    assert "give an end after the start" in refuse("--start", "2", "--end", "1")
    assert "one frame in 0 cannot be taken" in refuse("--frame-step", "0")
    assert "cannot have 0.0 frames per second" in refuse("--fps", "0")


def test_a_window_needs_a_screen_and_an_opencv_that_draws_on_it(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for display in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(display, raising=False)
    assert "there is no screen to open a window on; leave out --window." in refuse("--window")
    monkeypatch.setenv("DISPLAY", ":0")

    def headless(*_: object) -> None:
        raise cv2.error("The function is not implemented.")

    monkeypatch.setattr(cv2, "namedWindow", headless)
    assert "the OpenCV that is installed opens no windows" in refuse("--window")
