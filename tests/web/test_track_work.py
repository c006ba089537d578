"""What the tracking tab does, without a browser and without gradio."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.loading import load_method
from protoformer.video.reader import open_video
from protoformer.web import track as track_tab
from protoformer.web.limits import Limits
from protoformer.web.site import Site, load_view
from protoformer.web.track import first_frame, track_clip

ROOM = Limits(megabytes=10, pixels=20_000, frames=5, seconds=60, jobs=1)
BOX = (20, 30, 24, 24)


@pytest.fixture
def clip(tmp_path: Path, make_video: Callable[..., Path], moving_pattern: Callable[..., list[np.ndarray]]) -> Path:
    return make_video(tmp_path / "clip.mp4", moving_pattern(4))


def test_the_first_frame_is_shown_to_draw_on(clip: Path) -> None:
    view = first_frame(ROOM, clip)
    assert (view["width"], view["height"]) == (128, 96)
    assert view["image"].startswith("data:image/jpeg;base64,")


def test_a_clip_gives_files_and_a_frame_for_every_place_of_the_slider(clip: Path, tmp_path: Path) -> None:
    told: list[float] = []
    answer = track_clip(
        load_method("correlation"), ROOM, clip, [BOX, (90, 60, 20, 20)], tmp_path, lambda share, _: told.append(share)
    )
    assert answer.frames == 4 and answer.summary == "4 frames of 128x96 pixels, 2 targets, never lost."
    assert told == [0.25, 0.5, 0.75, 1.0]
    video = open_video(answer.video)
    assert (video.info.size, len(list(video.frames()))) == ((96, 128), 4)
    assert len(list(csv.DictReader(answer.table.read_text().splitlines()))) == 8
    views = [load_view(tmp_path, place) for place in range(4)]
    assert len({view["image"] for view in views}) == 4
    assert views[0]["lines"][0] == "target 1  x = 20.0  y = 30.0  w = 24.0  h = 24.0 px  score 1.00"
    assert len(views[3]["lines"]) == 2


def test_what_cannot_be_followed_is_a_sentence(
    clip: Path, tmp_path: Path, make_video: Callable[..., Path], moving_pattern: Callable[..., list[np.ndarray]]
) -> None:
    method = load_method("correlation")
    with pytest.raises(InputError, match="draw a box around something"):
        track_clip(method, ROOM, clip, [], tmp_path)
    with pytest.raises(InputError, match="there are 21 boxes and the limit is 20"):
        track_clip(method, ROOM, clip, [BOX] * 21, tmp_path)
    with pytest.raises(InputError, match="lies outside the frame"):
        track_clip(method, ROOM, clip, [(500, 0, 9, 9)], tmp_path)
    long = make_video(tmp_path / "long.mp4", moving_pattern(6))
    with pytest.raises(InputError, match="more than 5 frames"):
        track_clip(method, ROOM, long, [BOX], tmp_path)
    with pytest.raises(InputError, match="the limit is 100; scale it down"):
        first_frame(Limits(10, 100, 5, 60, 1), clip)
    with pytest.raises(InputError, match="stopped after 0 seconds"):
        track_clip(method, Limits(10, 20_000, 5, 0.0, 1), clip, [BOX], tmp_path)
    (tmp_path / "text.mp4").write_text("this is no video")
    with pytest.raises(InputError, match="not a video of a known kind"):
        first_frame(ROOM, tmp_path / "text.mp4")


def test_the_tab_says_whether_its_tracker_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_tab, "EXAMPLE", ("A chase", "chase", 1, 1))  # of one frame, to be quick
    own = track_tab.TrackTab(Site("tiny", tmp_path, ROOM, track_model="tiny"))
    assert own.method.label == "tiny (untrained)" and own.notice == track_tab.UNTRAINED
    tab = track_tab.TrackTab(Site("tiny", tmp_path, ROOM))
    assert tab.method.label == "track" and tab.notice == ""
