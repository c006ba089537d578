"""`protoformer track`: a clip and boxes in, the clip with boxes drawn and a table out."""

import csv
import json
import signal
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import protoformer as pf
from protoformer.cli import track as track_clip
from protoformer.io.image import write_image
from protoformer.loading import NamedMethod
from protoformer.tracking.drawing import draw_targets
from protoformer.video.reader import open_video

av = pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Run = Callable[..., Any]
BOX = ("--box", "20,30,24,24")
FILTER = ("--method", "correlation")


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Callable[..., Path], moving_pattern: Callable[..., Any]
) -> Path:
    """The current folder, with clip.mp4, of eight frames and sound, in it."""
    monkeypatch.chdir(tmp_path)
    make_video(tmp_path / "clip.mp4", moving_pattern(8), sound="aac")
    return tmp_path


def rows(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines()))


def done(outcome: Any) -> Any:
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    return outcome


def test_a_score_that_is_no_number_is_null_or_nothing(
    place: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mad:
        def __init__(self, *_: object) -> None: ...

        def update(self, _: object) -> tuple[pf.TrackedBox, ...]:
            return (pf.TrackedBox((20.0, 30.0, 24.0, 24.0), float("nan"), True),)

    monkeypatch.setattr(track_clip, "load_method", lambda *_: NamedMethod(Mad, "mad", False))
    outcome = done(protoformer("track", "clip.mp4", *BOX, "--csv", "o.csv", "--json"))
    assert json.loads(outcome.out, parse_constant=pytest.fail)["targets"] == [{"mean_score": None, "lost_frames": 7}]
    assert [row["score"] for row in rows("o.csv")] == ["1.0000", *[""] * 7]


def test_boxes_are_drawn_and_written_down(place: Path, protoformer: Run) -> None:
    outcome = done(
        protoformer("track", "clip.mp4", *BOX, "--box", "90,60,20,20", *FILTER, "-o", "o.mp4", "--csv", "o.csv")
    )
    assert outcome.out.startswith("8 frames of 128x96 pixels, 2 targets, never lost; correlation; ")
    assert outcome.out.endswith(" frames/s; wrote o.mp4, o.csv\n")
    video = open_video("o.mp4")
    assert (video.info.size, video.info.has_audio, video.info.fps) == ((96, 128), True, 25)
    assert [frame.time for frame in video.frames()] == [Fraction(n, 25) for n in range(8)]
    found = rows("o.csv")
    assert list(found[0]) == ["frame", "time", "target", "x", "y", "w", "h", "score", "lost"]
    assert list(found[0].values()) == ["0", "0.000000", "1", "20.00", "30.00", "24.00", "24.00", "1.0000", "0"]
    assert [(row["frame"], row["target"]) for row in found] == [(str(n), t) for n in range(8) for t in "12"]
    assert [float(row["x"]) for row in found[::2]] == pytest.approx([20 + 3 * n for n in range(8)], abs=1)
    assert [float(row["time"]) for row in found[1::2]] == pytest.approx([n / 25 for n in range(8)])
    assert sorted(path.name for path in place.iterdir()) == ["clip.mp4", "o.csv", "o.mp4"]


def test_the_clip_shows_what_the_table_says(place: Path, protoformer: Run) -> None:
    done(protoformer("track", "clip.mp4", *BOX, *FILTER, "-o", "o.mp4", "--csv", "o.csv"))
    shown, read = list(open_video("o.mp4").frames()), list(open_video("clip.mp4").frames())
    row = rows("o.csv")[6]
    box = tuple(float(row[side]) for side in "xywh")
    expected = draw_targets(read[6].image, [pf.TrackedBox(box, float(row["score"]), False)])
    assert np.abs(shown[6].image.astype(int) - expected).mean() < 6


def test_of_a_box_that_reaches_beyond_the_frame_the_part_on_it_is_followed_and_told(
    place: Path, protoformer: Run
) -> None:
    cut = ("--box", "-10,30,34,24", "--box", "110,80,24,24", "--box", "10.1,20.2,30.3,40.4")
    outcome = done(protoformer("track", "clip.mp4", *BOX, *cut, *FILTER, "--csv", "o.csv", "--end", "0.08"))
    assert outcome.notes == [
        "note: the box -10,30,34,24 extends beyond the frame of 128x96 pixels; its visible part, 0,30,24,24, is "
        "tracked",
        "note: the box 110,80,24,24 extends beyond the frame of 128x96 pixels; its visible part, 110,80,18,16, is "
        "tracked",
    ]
    assert done(protoformer("track", "clip.mp4", *BOX, *FILTER, "--csv", "o.csv", "--end", "0.08")).notes == []


def test_a_table_alone_and_a_clip_by_default(place: Path, protoformer: Run) -> None:
    done(protoformer("track", "clip.mp4", *BOX, *FILTER, "--csv", "o.csv"))
    assert not (place / "track.mp4").exists()
    done(protoformer("track", "clip.mp4", *BOX, *FILTER))
    assert len(list(open_video("track.mp4").frames())) == 8


def test_a_part_of_a_clip_keeps_its_numbers_and_times(place: Path, protoformer: Run) -> None:
    part = ("--start", "0.08", "--end", "0.28", "--frame-step", "2", "--box", "26,30,24,24")
    summary = json.loads(done(protoformer("track", "clip.mp4", *part, *FILTER, "--csv", "o.csv", "--json")).out)
    assert summary["frames"] == 3 and summary["written"] == ["o.csv"] and summary["method"] == "correlation"
    assert summary["targets"][0]["lost_frames"] == 0 and 0 < summary["targets"][0]["mean_score"] <= 1
    found = rows("o.csv")
    assert [row["frame"] for row in found] == ["2", "4", "6"]
    assert [float(row["time"]) for row in found] == [0.08, 0.16, 0.24]
    assert [float(row["x"]) for row in found] == pytest.approx([26, 32, 38], abs=1)


def test_a_folder_is_a_clip_at_a_given_rate(place: Path, protoformer: Run, moving_pattern: Callable[..., Any]) -> None:
    (place / "frames").mkdir()
    for number, frame in enumerate(moving_pattern(3)):
        write_image(place / "frames" / f"{number}.png", frame)
    for source in ("frames", "frames/*.png"):
        done(protoformer("track", source, *BOX, *FILTER, "-o", "o.mp4", "--fps", "10"))
        assert [frame.time for frame in open_video("o.mp4").frames()] == [0, Fraction(1, 10), Fraction(2, 10)]


def test_the_model_gives_what_it_gives_in_python(place: Path, protoformer: Run) -> None:
    model = ("--model", "tiny", "--precision", "full", "--end", "0.12")
    outcome = done(protoformer("track", "clip.mp4", *BOX, "--box", "60,40,30,20", *model, "--csv", "o.csv"))
    assert "tiny (untrained)" in outcome.out and len(outcome.notes) == 1
    with pytest.warns(pf.UntrainedWarning):
        loaded = pf.load("tiny", "cpu", task="track")
    boxes = [(20, 30, 24, 24), (60, 40, 30, 20)]
    pf.save_tracks("python.csv", loaded.track("clip.mp4", boxes, end=0.12, precision="full"))
    for ours, theirs in zip(rows("o.csv"), rows("python.csv"), strict=True):
        assert [float(value) for value in ours.values()] == pytest.approx(
            [float(value) for value in theirs.values()], abs=0.02
        )


def test_ctrl_c_keeps_what_is_finished(place: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "o.mp4").write_bytes(b"old")
    calls: list[Any] = []

    def interrupted(frame: np.ndarray, targets: Any) -> np.ndarray:
        calls.append(targets)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return draw_targets(frame, targets)

    monkeypatch.setattr(track_clip, "draw_targets", interrupted)
    outcome = protoformer("track", "clip.mp4", *BOX, *FILTER, "-o", "o.mp4", "--csv", "o.csv")
    assert outcome.code == 130 and outcome.out == "" and "Traceback" not in outcome.err
    assert outcome.errors == ["protoformer: stopped after 3 frames; kept o.partial.mp4 and o.partial.csv."]
    assert (place / "o.mp4").read_bytes() == b"old" and not (place / "o.csv").exists()
    assert len(list(open_video("o.partial.mp4").frames())) == 3
    assert len(rows("o.partial.csv")) == 3


def test_damage_is_noted(place: Path, protoformer: Run, make_video: Any, moving_pattern: Callable[..., Any]) -> None:
    whole = make_video(place / "cut.mkv", moving_pattern(20), "mpeg4", options={"g": "1"}).read_bytes()
    (place / "cut.mkv").write_bytes(whole[: len(whole) * 2 // 3])
    outcome = done(protoformer("track", "cut.mkv", *BOX, *FILTER, "--csv", "o.csv"))
    assert any("cut.mkv is truncated; its intact frames were used" in note for note in outcome.notes)
    assert 5 < len(rows("o.csv")) < 20


def test_a_window_shows_every_frame_until_it_is_closed(
    place: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[np.ndarray] = []
    monkeypatch.setenv("DISPLAY", ":0")  # a screen that takes what it is given
    for name in ("namedWindow", "destroyWindow"):
        monkeypatch.setattr(cv2, name, lambda *_: None)
    monkeypatch.setattr(cv2, "imshow", lambda _, frame: shown.append(frame))
    monkeypatch.setattr(cv2, "getWindowProperty", lambda *_: 1.0)
    monkeypatch.setattr(cv2, "waitKey", lambda _: ord("q") if len(shown) == 3 else -1)
    outcome = done(protoformer("track", "clip.mp4", *BOX, *FILTER, "--window"))
    assert len(shown) == 3 and outcome.out.startswith("3 frames of 128x96 pixels") and "wrote" not in outcome.out
    assert not (place / "track.mp4").exists()
    shown.clear()
    done(protoformer("track", "clip.mp4", *BOX, *FILTER, "--window", "--csv", "o.csv"))
    assert len(shown) == 3 and len(rows("o.csv")) == 8  # what is written goes on without it
