"""A clip that cannot be used, or an output that cannot be written: code 2, one sentence, and the folder as it was."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protoformer.io.image import write_image

av = pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Run = Callable[..., Any]


def images(count: int, size: tuple[int, int] = (32, 48)) -> list[np.ndarray]:
    return [np.full((*size, 3), 30 * number, np.uint8) for number in range(count)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path]) -> Path:
    """The current folder, with clip.mp4, of four frames, in it."""
    monkeypatch.chdir(tmp_path)
    make_video(tmp_path / "clip.mp4", images(4))
    return tmp_path


@pytest.fixture
def refuse(place: Path, protoformer: Run) -> Callable[..., str]:
    """Run the command on a clip that must be refused; return its one sentence."""

    def contents() -> dict[str, bytes | None]:
        return {str(path): None if path.is_dir() else path.read_bytes() for path in place.rglob("*")}

    def run(source: str = "clip.mp4", *options: str, output: str | None = "out.mp4") -> str:
        before = contents()
        written = () if output is None else ("-o", output)
        outcome = protoformer(
            "flow", source, "--model", "tiny", "--num-updates", "1", "--scale", "1", *written, *options
        )
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        (sentence,) = outcome.errors
        assert sentence.startswith("protoformer: ") and sentence.endswith(".") and "; " in sentence
        assert "Traceback" not in outcome.err
        assert contents() == before
        return sentence

    return run


def sound_alone(path: Path) -> None:
    with av.open(str(path), "w") as target:
        stream = target.add_stream("aac", rate=48000, layout="mono")
        samples = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.int16), format="s16", layout="mono")
        samples.sample_rate, samples.pts = 48000, 0
        target.mux(stream.encode(samples))
        target.mux(stream.encode(None))


def test_files_that_are_no_videos(place: Path, refuse: Callable[..., str]) -> None:
    (place / "empty.mp4").touch()
    assert "empty.mp4 is an empty file" in refuse("empty.mp4")
    (place / "text.mp4").write_text("this is no video\n" * 50)
    assert "text.mp4 is not a video of a known kind" in refuse("text.mp4")
    sound_alone(place / "sound.mp4")
    assert "sound.mp4 holds sound but no video" in refuse("sound.mp4")
    whole = (place / "clip.mp4").read_bytes()
    (place / "cut.mp4").write_bytes(whole[: whole.index(b"moov") - 4])
    assert "cut.mp4 is a video that was cut short, without its index" in refuse("cut.mp4")
    assert "none.mp4 does not exist" in refuse("none.mp4")
    assert "no file matches none*.png" in refuse("none*.png")


def test_clips_without_two_frames(place: Path, refuse: Callable[..., str], make_video: Callable[..., Path]) -> None:
    make_video(place / "one.mp4", images(1))
    assert "one.mp4 has one frame in this span; flow needs two" in refuse("one.mp4")
    write_image(place / "one.png", images(1)[0])
    assert "one.png is a single image; give a second one, or a video." in refuse("one.png")
    assert "clip.mp4 has no frame in this span" in refuse("clip.mp4", "--start", "5")
    assert "clip.mp4 has one frame in this span" in refuse("clip.mp4", "--frame-step", "9")


def test_frames_that_change_their_size(place: Path, refuse: Callable[..., str]) -> None:
    (place / "frames").mkdir()
    for number, size in enumerate([(32, 48)] * 3 + [(32, 40)]):
        write_image(place / "frames" / f"{number}.png", images(1, size)[0])
    assert "3.png is 40x32 where the images before it are 48x32; give images of one size" in refuse("frames")


def test_outputs_that_cannot_be(place: Path, refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the folder nowhere does not exist" in refuse(output="nowhere/out.mp4")
    (place / "folder.mp4").mkdir()
    assert "folder.mp4 is a folder" in refuse(output="folder.mp4")
    assert "out.flo does not end in" in refuse(output="out.flo")
    assert "the output clip.mp4 is also an input" in refuse(output="./clip.mp4")
    assert "give one output" in refuse("clip.mp4", "-o", "other.mp4")
    assert "the folder clip.mp4 cannot be made" in refuse("clip.mp4", "--save-flo", "clip.mp4", output=None)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "out.mp4 could not be written (No space left on device)" in refuse()


def test_options_that_cannot_be(refuse: Callable[..., str]) -> None:
    assert "give an end after the start" in refuse("clip.mp4", "--start", "2", "--end", "1")
    assert "a frame step of 0 is not possible" in refuse("clip.mp4", "--frame-step", "0")
    assert "colors cannot be saturated at -1 pixels" in refuse("clip.mp4", "--scale", "-1")
    assert "there is no precision 'double'" in refuse("clip.mp4", "--precision", "double")
    assert "a tile is auto, none or HEIGHTxWIDTH" in refuse("clip.mp4", "--tile", "10x10")
    assert "'much' is not a size; " in refuse("clip.mp4", "--memory", "much")
    assert " 0 MiB are left for it" in refuse("clip.mp4", "--memory", "1MB")
    assert "--format is for two images; leave it out" in refuse("clip.mp4", "--format", "flo")
    assert "--fps is for images, and clip.mp4 is a video" in refuse("clip.mp4", "--fps", "10")


@pytest.mark.parametrize("option", [("--arrows",), ("--start", "1"), ("--scale", "2"), ("--drop",), ("--timeout", "2")])
def test_options_of_clips_are_none_of_two_images(place: Path, protoformer: Run, option: tuple[str, ...]) -> None:
    outcome = protoformer("flow", "a.png", "b.png", *option)
    assert outcome.code == 2
    assert outcome.errors == [f"protoformer: {option[0]} is for videos; leave it out for two images."]
