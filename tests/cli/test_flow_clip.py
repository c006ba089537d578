"""`protoformer flow` of a clip: a video, a folder or a pattern in, the motion as a video out."""

import json
import signal
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.flow.drawing import colorize_flow
from protoformer.io.formats import read_flo
from protoformer.io.image import write_image
from protoformer.video.reader import open_video

av = pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Make = Callable[..., Path]
Run = Callable[..., Any]
QUICK = ("--model", "tiny", "--num-updates", "1", "--scale", "2")


def noise(number: int, height: int = 32, width: int = 48) -> np.ndarray:
    coarse = np.random.default_rng(number).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3))
    return np.kron(coarse, np.ones((8, 8, 1)))[:height, :width].astype(np.uint8)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def times(path: str) -> list[Fraction]:
    return [frame.time for frame in open_video(path).frames()]


def seconds_of_sound(path: str) -> float:
    with av.open(path) as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
        return samples / container.streams.audio[0].rate


def done(outcome: Any) -> Any:
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    return outcome


@pytest.mark.parametrize(
    ("name", "codec", "pixels", "size"),
    [
        ("clip.mp4", "libx264", "yuv420p", (32, 48)),
        ("clip.mov", "libx264", "yuv422p10le", (32, 48)),
        ("clip.webm", "libvpx-vp9", "yuv420p", (31, 47)),
        ("clip.avi", "mjpeg", "yuvj420p", (33, 47)),
        ("clip.mkv", "ffv1", "bgra", (31, 48)),
    ],
)
def test_any_video_gives_a_frame_a_pair(
    place: Path, protoformer: Run, make_video: Make, name: str, codec: str, pixels: str, size: tuple[int, int]
) -> None:
    make_video(place / name, [noise(n, *size) for n in range(5)], codec, pixels)
    outcome = done(protoformer("flow", name, *QUICK, "-o", "out.mp4"))
    assert outcome.out.startswith(f"4 flows of {size[1]}x{size[0]} pixels, mean motion ")
    assert "; whole images, one at a time, " in outcome.out and outcome.out.endswith("wrote out.mp4\n")
    assert "colors are saturated at 2.00 px (given)" in outcome.out
    assert times("out.mp4") == [Fraction(n, 25) for n in range(4)]
    assert open_video("out.mp4").info.size == size
    assert sorted(path.name for path in place.iterdir()) == sorted([name, "out.mp4"])


def test_a_variable_rate_keeps_its_times_and_its_sound(place: Path, protoformer: Run, make_video: Make) -> None:
    ticks = [0, 3, 4, 9, 15, 24]
    make_video(place / "clip.mp4", [noise(n) for n in range(6)], times=ticks, sound="aac", rate=6, tick=Fraction(1, 30))
    done(protoformer("flow", "clip.mp4", *QUICK, "-o", "out.mp4"))
    assert times("out.mp4") == [Fraction(tick, 30) for tick in ticks[:-1]]
    assert seconds_of_sound("out.mp4") == pytest.approx(15 / 30 + 1 / 6, abs=0.15)


def test_a_part_has_the_sound_of_that_part(place: Path, protoformer: Run, make_video: Make) -> None:
    make_video(place / "clip.mp4", [noise(n) for n in range(50)], sound="aac")
    done(
        protoformer("flow", "clip.mp4", *QUICK, "-o", "out.mkv", "--start", "0.5", "--end", "1.5", "--frame-step", "5")
    )
    assert times("out.mkv") == [Fraction(n, 5) for n in range(4)]
    assert seconds_of_sound("out.mkv") == pytest.approx(0.8, abs=0.1)


def test_a_turned_video_is_upright(place: Path, protoformer: Run, make_video: Make) -> None:
    make_video(place / "clip.mp4", [noise(n) for n in range(3)], turn=(90,))
    done(protoformer("flow", "clip.mp4", *QUICK, "-o", "out.mp4", "--side-by-side"))
    assert open_video("out.mp4").info.size == (48, 64)


def test_a_folder_and_a_pattern_are_clips_at_a_given_rate(place: Path, protoformer: Run) -> None:
    (place / "frames").mkdir()
    for number in range(3):
        write_image(place / "frames" / f"{number}.png", noise(number))
    for source in ("frames", "frames/*.png"):
        done(protoformer("flow", source, *QUICK, "-o", "out.mp4", "--fps", "10"))
        assert times("out.mp4") == [0, Fraction(1, 10)]
    done(protoformer("flow", "frames", *QUICK))
    assert times("motion.mp4") == [0, Fraction(1, 25)]


def test_flo_files_hold_the_flow_of_the_library(place: Path, protoformer: Run, make_video: Make) -> None:
    clip = make_video(place / "clip.mkv", [noise(n) for n in range(4)], "ffv1", "bgr0")
    outcome = done(protoformer("flow", "clip.mkv", *QUICK, "--save-flo", "flows/all", "--frame-step", "2", "--json"))
    summary = json.loads(outcome.out)
    assert summary["written"] == ["flows/all"] and summary["flows"] == 1 and summary["scale_px"] is None
    assert sorted(path.name for path in place.rglob("*.*")) == ["000000.flo", "clip.mkv"]
    with pytest.warns(pf.UntrainedWarning):
        (step,) = pf.load("tiny").flow_video(clip, frame_step=2, num_updates=1)
    assert np.array_equal(read_flo("flows/all/000000.flo"), step.numpy())


def test_one_scale_serves_the_whole_clip(place: Path, protoformer: Run, make_video: Make) -> None:
    make_video(place / "clip.mkv", [noise(n) for n in range(4)], "ffv1", "bgr0")
    arguments = ("flow", "clip.mkv", "--model", "tiny", "-o", "out.mp4", "--save-flo", "flows", "--json")
    summary = json.loads(done(protoformer(*arguments)).out)
    assert summary["scale_px"] >= 1 and summary["tile"] is None and summary["batch"] == 1
    for frame in open_video("out.mp4").frames():
        flow = torch.from_numpy(read_flo(f"flows/{frame.number:06d}.flo")).permute(2, 0, 1)
        assert np.abs(frame.image.astype(int) - colorize_flow(flow, summary["scale_px"])).mean() < 4


def test_windows_and_memory_are_told(place: Path, protoformer: Run, make_video: Make) -> None:
    make_video(place / "clip.mp4", [noise(n, 64, 96) for n in range(2)])
    outcome = done(protoformer("flow", "clip.mp4", *QUICK, "-o", "out.mp4", "--tile", "40x64", "--warm-start"))
    assert "6 tiles of 40x64 per image, one at a time" in outcome.out
    outcome = done(protoformer("flow", "clip.mp4", *QUICK, "-o", "out.mp4", "--memory", "90 GiB", "--arrows"))
    assert "whole images" in outcome.out and "colors" not in outcome.out
    assert " arrows are 12 times as long as the motion; " in outcome.out


def test_two_images_may_go_in_windows(folder: Path, protoformer: Run) -> None:
    for number in range(2):
        write_image(folder / f"{number}.png", noise(number, 40, 50))
    pair = ("flow", "0.png", "1.png", "--model", "tiny", "-o", "m.flo")
    outcome = done(protoformer(*pair, "--tile", "32x32"))
    assert outcome.out.endswith(" px; 6 tiles of 32x32 per image, one at a time; wrote m.flo\n")
    assert read_flo("m.flo").shape == (40, 50, 2)
    for arguments in (("--tile", "none"), ("--memory", "80GB"), ("--tile", "64x64")):
        assert "window" not in done(protoformer(*pair, *arguments)).out
    outcome = protoformer(*pair, "--tile", "none", "--memory", "10MB")
    assert outcome.code == 2 and " 0 MiB are left for it" in outcome.errors[0]


@pytest.mark.parametrize(("flo", "sent", "code"), [(False, signal.SIGINT, 130), (True, signal.SIGTERM, 143)])
def test_a_stop_keeps_what_is_finished_under_a_name_of_its_own(
    place: Path,
    protoformer: Run,
    make_video: Make,
    monkeypatch: pytest.MonkeyPatch,
    flo: bool,
    sent: signal.Signals,
    code: int,
) -> None:
    before = signal.getsignal(sent)
    make_video(place / "clip.mp4", [noise(n) for n in range(9)], sound="aac")
    (place / "out.mp4").write_bytes(b"old")
    calls = []

    def interrupted(*arguments: Any, **_: Any) -> np.ndarray:
        calls.append(arguments)
        if len(calls) == 4:
            signal.raise_signal(sent)
        return noise(len(calls))

    monkeypatch.setattr("protoformer.flow.drawing.draw_flow_frame", interrupted)
    outcome = protoformer("flow", "clip.mp4", *QUICK, "-o", "out.mp4", *(("--save-flo", "flows") if flo else ()))
    assert outcome.code == code and outcome.out == "" and "Traceback" not in outcome.err
    assert signal.getsignal(sent) == before
    kept = "out.partial.mp4 and flows" if flo else "out.partial.mp4"
    assert outcome.errors == [f"protoformer: stopped after 3 flows; kept {kept}."]
    assert (place / "out.mp4").read_bytes() == b"old"
    assert times("out.partial.mp4") == [Fraction(n, 25) for n in range(3)]
    assert len(list(place.glob("flows/*"))) == (3 if flo else 0)


def test_ctrl_c_before_the_first_flow_keeps_nothing(
    place: Path, protoformer: Run, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_video(place / "clip.mp4", [noise(n) for n in range(3)])
    monkeypatch.setattr("protoformer.cli.flow.run_with_bar", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    outcome = protoformer("flow", "clip.mp4", *QUICK, "-o", "out.mp4")
    assert (outcome.code, outcome.errors) == (130, ["protoformer: stopped after 0 flows; kept nothing."])
    assert [path.name for path in place.iterdir()] == ["clip.mp4"]


def test_damage_is_noted(place: Path, protoformer: Run, make_video: Make) -> None:
    whole = make_video(place / "clip.mkv", [noise(n) for n in range(20)], "mpeg4", options={"g": "1"}).read_bytes()
    (place / "clip.mkv").write_bytes(whole[: len(whole) * 2 // 3])
    outcome = done(protoformer("flow", "clip.mkv", *QUICK, "-o", "out.mp4"))
    assert any("clip.mkv is truncated; its intact frames were used" in note for note in outcome.notes)
    assert 5 < len(times("out.mp4")) < 15
