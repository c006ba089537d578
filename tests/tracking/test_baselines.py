"""Baseline trackers behind the interface of the network's tracker."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from protoformer.errors import InputError
from protoformer.tracking.baselines import TRACKERS, BaselineTracker, check_tracker
from protoformer.tracking.result import check_boxes

Clip = Callable[..., list[np.ndarray]]


@pytest.mark.parametrize("name", list(TRACKERS))
def test_every_tracker_that_is_there_follows_a_pattern(name: str, moving_pattern: Clip) -> None:
    try:
        check_tracker(name)
    except InputError as error:
        pytest.skip(str(error))
    frames = moving_pattern(6)
    tracker = BaselineTracker(name, frames[0], [(20, 30, 24, 24)])
    for frame in frames[1:]:
        (target,) = tracker.update(frame)
    assert not target.lost
    assert target.box[:2] == pytest.approx((35, 30), abs=4)


@pytest.mark.parametrize("box", [(-1e7, -1e7, 3e7, 3e7), (0, 0, 128, 96), (-5, 80, 30, 30), (127.6, 95.6, 9, 9)])
def test_of_a_box_that_sticks_out_the_part_in_the_frame_is_followed(
    box: tuple[float, ...], moving_pattern: Clip
) -> None:
    frames = moving_pattern(3)
    tracker = BaselineTracker("correlation", frames[0], [box])
    for frame in frames[1:]:
        (target,) = tracker.update(frame)
    assert np.isfinite(target.box).all() and target.box[2] <= 1.2 * 128 and target.box[3] <= 1.2 * 96


def test_what_opencv_cannot_follow_is_a_sentence(moving_pattern: Clip) -> None:
    (frame,) = moving_pattern(1)
    for box in ((60, 50, 4, 30), (125, 40, 30, 30)):
        with pytest.raises(InputError, match="need boxes of 5 pixels or more a side in the frame; give a larger one"):
            BaselineTracker("mil", frame, [box])
    with pytest.raises(InputError, match="mil cannot track this box in frames of 128x96 pixels; give another one"):
        BaselineTracker("mil", frame, [(0, 0, 128, 96)])


def test_targets_do_not_know_of_one_another(moving_pattern: Clip) -> None:
    frames = moving_pattern(4)
    boxes = [(20, 30, 24, 24), (80, 50, 20, 20)]
    together = BaselineTracker("correlation", frames[0], boxes)
    apart = [BaselineTracker("correlation", frames[0], [box]) for box in boxes]
    for frame in frames[1:]:
        assert together.update(frame) == tuple(tracker.update(frame)[0] for tracker in apart)


def test_any_kind_of_image_gives_the_same(moving_pattern: Clip) -> None:
    first, second = moving_pattern(2)
    output = []
    for kind in (np.asarray, Image.fromarray, lambda image: torch.from_numpy(image).permute(2, 0, 1) / 255):
        tracker = BaselineTracker("correlation", kind(first), torch.tensor([[20.0, 30.0, 24.0, 24.0]]))
        output.append(tracker.update(kind(second)))
    assert output[0] == output[1] == output[2]


def test_a_tracker_can_begin_anew(moving_pattern: Clip) -> None:
    frames = moving_pattern(5)
    tracker = BaselineTracker("correlation", frames[0], [(20, 30, 24, 24)])
    tracker.reset(frames[3], [(29, 30, 24, 24)])
    assert tracker.update(frames[4])[0].box[:2] == pytest.approx((32, 30), abs=1)


def test_frames_have_one_size(moving_pattern: Clip) -> None:
    tracker = BaselineTracker("correlation", moving_pattern(1)[0], [(20, 30, 24, 24)])
    with pytest.raises(InputError, match="the frame is 64x96 where the first was 128x96; give frames of one size"):
        tracker.update(np.zeros((96, 64, 3), np.uint8))


def test_what_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="there is no method 'magic'; choose model, correlation, mil, kcf, csrt"):
        check_tracker("magic")
    monkeypatch.delattr(cv2, "TrackerCSRT", raising=False)
    with pytest.raises(InputError, match="csrt is not in the OpenCV that is installed; pip install opencv-contrib"):
        check_tracker("csrt")


@pytest.mark.parametrize(
    ("boxes", "sentence"),
    [
        ([], "there is no box to track"),
        (5, "a box is four numbers, x, y, width and height in pixels, not 5"),
        (torch.tensor(5.0), "a box is four numbers, x, y, width and height in pixels, not 5.0"),
        ([(1, 2, 3)], "four numbers, x, y, width and height, and not 3"),
        ([(1, 2, 3, "wide")], "a box is four numbers"),
        ([(1, 2, float("nan"), 4)], "the box 1,2,nan,4 has a number that is not finite"),
        ([(1, 2, float("inf"), 4)], "not finite"),
        ([(1, 2, 0, 4)], "the box 1,2,0,4 has no area"),
        ([(1, 2, 5, -4)], "has no area"),
        ([(10, 10, 5, 5), (40, 5, 5, 5)], "the box 40,5,5,5 lies outside the frame of 40x30 pixels"),
        ([(-5, 5, 5, 5)], "outside the frame"),
        ([(5, 30, 5, 5)], "outside the frame"),
    ],
)
def test_boxes_that_cannot_be_followed(boxes: list[tuple[float, ...]], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_boxes(boxes, (30, 40))


def test_boxes_may_be_one_alone_many_or_a_tensor_and_stick_out() -> None:
    assert check_boxes((1, 2, 3, 4), (30, 40)) == ((1, 2, 3, 4),)
    assert check_boxes(torch.tensor([[-1.5, 2, 3, 40], [39, 29, 9, 9]]), (30, 40)) == (
        (-1.5, 2, 3, 40),
        (39, 29, 9, 9),
    )
