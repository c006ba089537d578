"""`protoformer stabilize`: a shaky clip in, a steady one and the path of its camera out."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.cli.stabilize import describe_scores
from protoformer.models.pretrained import packaged_weights
from protoformer.stabilization.metrics import stability_scores
from protoformer.video.reader import open_video

av = pytest.importorskip("av")
pytestmark = [
    pytest.mark.filterwarnings("always::protoformer.UntrainedWarning"),
    pytest.mark.skipif(packaged_weights("flow") is None, reason="the package brings no weights for flow"),
]
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A shaky clip of 8 frames of 128x96 pixels, with sound, and a small model, in a folder."""
    folder = tmp_path_factory.mktemp("shaky")
    random = np.random.default_rng(1)
    wide = cv2.resize(random.integers(0, 256, (22, 30, 3), dtype=np.uint8), (180, 132), interpolation=cv2.INTER_CUBIC)
    places = (90, 66) + 1.5 * random.normal(size=(8, 2))
    images = [cv2.getRectSubPix(wide, (128, 96), (float(x), float(y))) for x, y in places]
    with pytest.warns(pf.UntrainedWarning):
        pf.load("tiny", device="cpu", task="stabilize", stabilization={"field_window": 3}).save(
            folder / "small.safetensors"
        )
    return make_video(folder / "clip.mp4", images, sound="aac")


def done(outcome: Any) -> Any:
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    return outcome


def test_a_clip_is_made_steady_and_its_sound_and_times_are_kept(
    clip: Path, protoformer: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = ("--model", str(clip.parent / "small.safetensors"), "--device", "cpu")
    outcome = done(
        protoformer("stabilize", str(clip), *model, "--crop", "0.85", "--side-by-side", "--scores", "-o", "o.mp4")
    )
    assert outcome.out.startswith("8 frames of 128x96 pixels; 8") and "wrote o.mp4, o.html\n" in outcome.out
    assert "<h1>clip.mp4, stabilized</h1>" in Path("o.html").read_text()
    assert "\nbefore: cropping 1.000" in outcome.out and "\nafter: cropping 0." in outcome.out
    too_short = "too short to score: 8 frames, and it takes 101"
    assert outcome.out.count(f", stability {too_short}") == 2
    video = open_video("o.mp4")
    assert (video.info.size, video.info.has_audio, video.info.fps) == ((96, 256), True, 25)
    assert [frame.time for frame in video.frames()] == [Fraction(n, 25) for n in range(8)]
    page = Path("o.html").read_text()
    assert "horizontal camera path" in page and "degrees clockwise" in page and page.count(too_short) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.html", "o.mp4"]


def test_the_stability_of_a_clip_is_told_where_it_is_long_enough() -> None:
    still = torch.eye(3)
    long = stability_scores(still.expand(101, 3, 3), still.expand(100, 3, 3))
    assert describe_scores(long) == (
        "cropping 1.000, distortion 1.000, stability 1.000, of translation 1.000, of rotation 1.000"
    )
    short = stability_scores(still.expand(100, 3, 3), still.expand(99, 3, 3))
    assert describe_scores(short) == (
        "cropping 1.000, distortion 1.000, stability too short to score: 100 frames, and it takes 101"
    )


def test_one_image_is_a_clip_of_one_frame(clip: Path, protoformer: Run, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "frame1.png"), np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8))
    model = ("--model", str(clip.parent / "small.safetensors"), "--device", "cpu")
    outcome = done(
        protoformer("stabilize", str(tmp_path / "frame1.png"), *model, "--scores", "-o", str(tmp_path / "o.mp4"))
    )
    assert outcome.out.startswith("1 frame of 128x96 pixels; 100.0% of each side")
    assert outcome.out.count("too short to score: 1 frame, and it takes 101") == 2
    assert len(list(open_video(tmp_path / "o.mp4").frames())) == 1


def test_a_part_as_it_would_be_live_for_programs(clip: Path, protoformer: Run, tmp_path: Path) -> None:
    target = tmp_path / "live.mp4"
    options = ("--delay", "2", "--no-scores", "--start", "0.08", "--end", "0.24", "--json", "-o", str(target))
    small = ("--model", str(clip.parent / "small.safetensors"), "--device", "cpu")
    summary = json.loads(done(protoformer("stabilize", str(clip), *small, *options)).out)
    assert summary["frames"] == 4 and summary["scores"] is None and summary["cuts"] == [] and not summary["trained"]
    assert summary["stability_is_telling"] is None
    assert summary["written"] == [str(target), str(target.with_suffix(".html"))]
    assert len(list(open_video(target).frames())) == 4
    other = protoformer("stabilize", str(clip), *small, "--regressor", "grid", *options)
    assert other.code == 2 and "has the regressor field, not grid; choose field, or give" in other.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--strength", "3"), "a strength of 3 is out of range"),
        (("--crop", "wide"), "a crop is auto, none"),
        (("--crop", "0.2"), "a crop is auto, none"),
        (("--crop", "0.99999"), "from 0.5 to 0.999, not 0.99999"),
        (("--delay", "5", "--tripod"), "tripod mode needs the whole clip and cannot be combined with a delay"),
        (("--regressor", "spline"), "there is no regressor"),
        (("--fps", "3"), "--fps is for images"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    clip: Path, protoformer: Run, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    outcome = protoformer("stabilize", str(clip), "-o", str(tmp_path / "o.mp4"), *arguments)
    assert outcome.code == 2 and reason in outcome.err and not list(tmp_path.iterdir())


def test_clips_are_measured_beside_what_others_published(clip: Path, protoformer: Run, tmp_path: Path) -> None:
    names = (word for name in ("input", "field", "online") for word in ("--method", name))
    methods = (*names, "--model", str(clip.parent / "small.safetensors"))
    folder = ("evaluate", "stabilize", "--root", str(clip.parent), "--frames", "3")
    outcome = done(protoformer(*folder, *methods, "-o", str(tmp_path / "scores")))
    assert "clip.mp4" in outcome.out and "ProtoFormer, published (with StabNet)" in outcome.out
    *lines, told = outcome.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert told == "wrote {0}/clips.csv, {0}/scores.json".format(tmp_path / "scores")
    rows = (tmp_path / "scores" / "clips.csv").read_text().splitlines()
    assert rows[0].startswith("clip,method,cropping") and rows[1].startswith("clip.mp4,input,1.0000")
    found = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert found["rows"][1]["scores"]["frames"] == 3
    wrong = protoformer("evaluate", "stabilize", "--root", str(tmp_path / "scores"), "--method", "input")
    assert wrong.code == 2 and "holds no videos" in wrong.err
