"""`protoformer depth` of a clip: a video, a folder or a pattern in, its depth as a video out."""

import json
import signal
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protoformer.cli import depth as depth_clip
from protoformer.io.image import write_image
from protoformer.video.reader import open_video
from protoformer.viz.depth_colors import depth_to_color

av = pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Run = Callable[..., Any]
QUICK = ("--model", "tiny", "--num-updates", "1")


def noise(number: int, height: int = 32, width: int = 48) -> np.ndarray:
    coarse = np.random.default_rng(number).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3))
    return np.kron(coarse, np.ones((8, 8, 1)))[:height, :width].astype(np.uint8)


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path]) -> Path:
    """clip.mkv in the current folder, alone: 6 frames a second of uneven times, with sound."""
    monkeypatch.chdir(tmp_path)
    ticks = [0, 3, 4, 9, 15, 24]
    frames = [noise(number) for number in range(6)]
    return make_video(Path("clip.mkv"), frames, "ffv1", "bgr0", times=ticks, sound="aac", rate=6, tick=Fraction(1, 30))


def done(outcome: Any) -> Any:
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    return outcome


def times(path: str) -> list[float]:
    return [float(frame.time) for frame in open_video(path).frames()]


def test_every_frame_has_its_depth_its_time_and_the_sound(clip: Path, protoformer: Run) -> None:
    outcome = done(protoformer("depth", "clip.mkv", *QUICK, "-o", "out.mp4", "--side-by-side", "--save-npy", "n"))
    assert outcome.out.startswith("6 depth maps of 48x32 pixels, mean of the medians ")
    assert "temporally filtered" in outcome.out and outcome.out.endswith("wrote out.mp4, n\n")
    assert times("out.mp4") == pytest.approx([tick / 30 for tick in (0, 3, 4, 9, 15, 24)], abs=1e-3)
    assert open_video("out.mp4").info.size == (32, 96) and open_video("out.mp4").info.has_audio
    assert [path.name for path in sorted(Path("n").iterdir())] == [f"{number:06d}.npy" for number in range(6)]


def test_one_scale_of_colors_serves_the_whole_clip(clip: Path, protoformer: Run) -> None:
    arguments = ("-o", "out.mp4", "--save-npy", "n", "--no-steady", "--json", "--fov", "70")
    summary = json.loads(done(protoformer("depth", "clip.mkv", *QUICK, *arguments)).out)
    assert summary["depths"] == 6 and summary["camera"] == "given" and summary["steady"] is False
    assert summary["trained"] is False
    near, far = summary["colors_m"]
    for place, frame in enumerate(open_video("out.mp4").frames()):
        painted = depth_to_color(np.load(f"n/{place:06d}.npy"), near, far)
        assert np.abs(frame.image.astype(int) - painted).mean() < 6


def test_a_folder_and_a_pattern_are_clips(clip: Path, protoformer: Run) -> None:
    Path("frames").mkdir()
    for number in range(3):
        write_image(Path("frames") / f"{number}.png", noise(number))
    done(protoformer("depth", "frames", *QUICK, "--fps", "10", "--colors", "0.5,5"))
    assert times("depth.mp4") == pytest.approx([0, 0.1, 0.2])
    outcome = done(protoformer("depth", "frames/*.png", *QUICK, "--frame-step", "2", "--save-npy", "n"))
    assert sorted(path.name for path in Path("n").iterdir()) == ["000000.npy", "000002.npy"]
    assert "colors" not in outcome.out


def test_ctrl_c_keeps_what_is_finished(clip: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupted(*arguments: Any, **_: Any) -> np.ndarray:
        calls.append(arguments)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return noise(len(calls))

    monkeypatch.setattr("protoformer.depth.drawing.draw_depth_frame", interrupted)
    outcome = protoformer("depth", "clip.mkv", *QUICK, "-o", "out.mp4", "--colors", "1,9")
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.errors == ["protoformer: stopped after 3 depth maps; kept out.partial.mp4."]
    assert len(times("out.partial.mp4")) == 3 and not Path("out.mp4").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--format", "mm"), "--format is for images; leave it out for a video"),
        (("--ply",), "--ply is for images; leave it out for a video"),
        (("-o", "a.mp4", "-o", "b.mp4"), "a clip becomes one video; give one output"),
        (("-o", "clip.mkv"), "the output clip.mkv is also an input and would be lost"),
        (("-o", "depth.txt"), "depth.txt"),
        (("--start", "9"), "clip.mkv has no frame in this span; choose another"),
        (("--frame-step", "0"), "a frame step of 0 is not possible"),
    ],
)
def test_bad_input_is_one_sentence(clip: Path, protoformer: Run, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = protoformer("depth", "clip.mkv", *QUICK, *arguments)
    assert outcome.code == 2 and len(outcome.errors) == 1 and "Traceback" not in outcome.err
    assert outcome.errors[0].startswith(f"protoformer: {sentence}") and "; " in outcome.errors[0]
    assert [path.name for path in Path().iterdir()] == ["clip.mkv"]


def test_a_folder_that_cannot_be_is_found_before_the_first_look(
    clip: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("taken").write_text("a file")
    monkeypatch.setattr(depth_clip, "load", pytest.fail)
    outcome = protoformer("depth", "clip.mkv", *QUICK, "-o", "out.mp4", "--save-npy", "taken")
    assert outcome.code == 2 and len(outcome.errors) == 1 and "taken" in outcome.errors[0]
    assert sorted(path.name for path in Path().iterdir()) == ["clip.mkv", "taken"]


def test_a_clip_among_images_is_refused(clip: Path, protoformer: Run) -> None:
    write_image(Path("a.png"), noise(0))
    outcome = protoformer("depth", "a.png", "clip.mkv", *QUICK)
    assert outcome.errors == ["protoformer: clip.mkv is a video; give one video alone, or only images."]
