"""The demonstration page and its pictures."""

import io
from collections.abc import Callable
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protoformer as pf
from protoformer.cli import demo, footage
from protoformer.io.formats import read_flo
from protoformer.io.image import read_image
from protoformer.synthetic.families import FAMILIES
from protoformer.video.reader import DEMO_CLIPS
from protoformer.viz.report import encode_webp

CLIPS = Path(pf.__file__).parent / "assets" / "clips"


class Images(HTMLParser):
    """The sources of the images on a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.fixture
def tiny_clip(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_video: Callable[..., Path],
    moving_pattern: Callable[..., list[np.ndarray]],
) -> Path:
    """A clip of 6 frames of 128x96 pixels in place of the packaged ones."""
    path = make_video(tmp_path / "clip.mp4", moving_pattern(6))
    monkeypatch.setattr(footage, "demo_clip", lambda _: path)
    for name, value in {
        "HEAD": (20, 30, 24, 24),
        "TRACK_SHOWN": (0, 5),
        "TEARS_SPAN": (None, None),
        "TEARS_SHOWN": 1,
    }.items():
        monkeypatch.setattr(footage, name, value)
    monkeypatch.setattr(demo, "SCENES", {"objects": (10, (96, 128))})
    monkeypatch.setattr(demo, "FAMILIES", {"objects": FAMILIES["objects"]})
    return path


def test_the_demonstration_leaves_a_page_videos_and_the_motion(tmp_path: Path, tiny_clip: Path, protoformer) -> None:
    output = tmp_path / "new" / "demo"
    outcome = protoformer("demo", "-o", str(output))
    assert outcome.code == 0 and outcome.errors == []
    assert str(output / "index.html") in outcome.out
    motion = read_flo(output / "motion.flo")
    assert np.isfinite(motion).all()
    for name in ("first.png", "second.png", "motion.png"):
        assert read_image(output / name).shape[:2] == motion.shape[:2]
    sizes = {"tasks": (192, 256), "track": (96, 128), "steady": (96, 128)}
    assert {name: pf.open_video(output / f"{name}.mp4").info.size for name in sizes} == sizes
    html = (output / "index.html").read_text()
    assert html.startswith("<!doctype html>") and footage.CREDITS in html
    kinds = ("data:image/png;base64,", "data:image/webp;base64,")
    sources = Images(html).sources
    assert sources and all(source.startswith(kinds) for source in sources)
    assert not list(output.glob(".*"))
    titles = [part.split("</h2>")[0] for part in html.split("<h2>")[1:]]  # real footage comes first
    synthetic = [title.startswith("Synthetic") for title in titles]
    first = synthetic.index(True)
    assert first == 5 and all(synthetic[first:-1]) and titles[-1] == "Models"


def test_the_attribution_on_the_page_is_that_of_the_package() -> None:
    text = (CLIPS / "ATTRIBUTION.md").read_text()
    assert "(CC) Blender Foundation" in text and "(CC) Blender Foundation" in footage.CREDITS
    for part in ("mango.blender.org", "CC BY 3.0", "public domain", "imageio"):
        assert part in text and part in footage.CREDITS


def test_hand_drawn_box_and_shown_frames_are_in_the_clip() -> None:
    info = pf.open_video(pf.demo_clip("cockatoo")).info
    x, y, width, height = footage.HEAD
    assert 0 <= x < x + width <= info.size[1] and 0 <= y < y + height <= info.size[0]
    assert max(*footage.TRACK_SHOWN, *footage.EXPLAINED) < info.num_frames
    tears = pf.open_video(pf.demo_clip(DEMO_CLIPS[1])).info
    start, end = footage.TEARS_SPAN
    assert (end - start) * tears.fps / 2 - 1 > footage.TEARS_SHOWN and end <= tears.duration


def test_an_animation_has_the_frames_and_the_rate() -> None:
    frames = [np.full((20, 30, 3), value, np.uint8) for value in (0, 100, 200)]
    image = Image.open(io.BytesIO(encode_webp(frames, 20.0)))
    assert (image.format, image.n_frames, image.info["loop"]) == ("WEBP", 3, 0)
    image.seek(2)
    image.load()
    assert image.info["duration"] == 50 and abs(int(np.asarray(image.convert("RGB")).mean()) - 200) < 3


def test_a_label_covers_only_a_corner() -> None:
    white = np.full((100, 200, 3), 255, np.uint8)
    drawn = footage.draw_label(white, "flow")
    assert (drawn[:20, :60] != white[:20, :60]).any() and np.array_equal(drawn[20:], white[20:])
    assert np.array_equal(drawn[:, 60:], white[:, 60:])


def test_before_and_after_show_the_middle_of_both_frames() -> None:
    ramp = np.broadcast_to(np.arange(80, dtype=np.uint8)[None, :, None], (40, 80, 3))
    (drawn,) = footage.draw_before_after([pf.StabilizedFrame(Fraction(0), ramp, ramp + 100)])
    assert np.array_equal(drawn[-1, :, 0], [*range(20, 60), *range(120, 160)])


def test_a_section_shows_what_was_followed() -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", "cpu", task="track")
    section = demo.tracking_section(model, shown=(0, 2))
    assert [figure.caption for figure in section.figures] == ["frame 1", "frame 3"]
    assert all(figure.content.shape == (240, 320, 3) for figure in section.figures)  # type: ignore[union-attr]
    assert "Over 3 frames" in section.text and "(a perfect track has 95)" in section.text


def test_without_weights_there_is_no_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "packaged_weights", lambda _: None)
    assert demo.tracking_sections() == ()
