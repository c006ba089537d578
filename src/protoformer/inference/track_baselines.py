"""Trackers that need no weights, to compare with: a correlation filter of our own, and OpenCV's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from protoformer.errors import InputError
from protoformer.inference.correlation_filter import LOST_BELOW, CorrelationFilter
from protoformer.inference.images import ImageLike, as_frame
from protoformer.inference.track_boxes import Box, Boxes, checked_boxes
from protoformer.inference.track_frames import check_size
from protoformer.inference.track_results import TrackedBox

Pixels = npt.NDArray[np.uint8]
OPENCV_SMALLEST = 5
"""Pixels of a side of a box that OpenCV's trackers are given: of a smaller one some look for features without end."""
Follow = Callable[[Pixels], TrackedBox]
"""Looks for one target in the next frame, uint8 H x W x 3 RGB."""


def _correlation(frame: Pixels, box: Box) -> Follow:
    learned = CorrelationFilter(frame, box)

    def follow(frame: Pixels) -> TrackedBox:
        found = learned.follow(frame)
        return TrackedBox(found.box, found.peak, found.peak < LOST_BELOW)

    return follow


def _of_opencv(kind: str, frame: Pixels, box: Box) -> Follow:
    if min(box[2:]) < OPENCV_SMALLEST:
        raise InputError(
            f"OpenCV's trackers need boxes of {OPENCV_SMALLEST} pixels or more a side in the frame; give a larger one, "
            "or choose another method."
        )
    cv2.setRNGSeed(0)  # some learn from random patches
    tracker: Any = getattr(cv2, kind).create()
    left, top, right, bottom = round(box[0]), round(box[1]), round(box[0] + box[2]), round(box[1] + box[3])
    tracker.init(_bgr(frame), (left, top, max(1, right - left), max(1, bottom - top)))
    latest = box

    def follow(frame: Pixels) -> TrackedBox:
        nonlocal latest
        seen, found = tracker.update(_bgr(frame))
        if seen:
            x, y, wide, high = (float(value) for value in found)
            latest = (x, y, wide, high)
        return TrackedBox(latest, 1.0 if seen else 0.0, not seen)

    return follow


_OF_OPENCV = {"mil": "TrackerMIL", "kcf": "TrackerKCF", "csrt": "TrackerCSRT"}
TRACKERS: dict[str, Callable[[Pixels, Box], Follow]] = {
    "correlation": _correlation,
    **{name: partial(_of_opencv, kind) for name, kind in _OF_OPENCV.items()},
}
"""By name. Those of OpenCV say whether they see the target, and nothing finer: their score is 1 or 0."""


def check_tracker(name: str) -> None:
    """Refuse a tracker that is not known, or that the OpenCV of this machine does not have."""
    if name not in TRACKERS:
        raise InputError(f"there is no method {name!r}; choose model, {', '.join(TRACKERS)}.")
    if name in _OF_OPENCV and not hasattr(cv2, _OF_OPENCV[name]):
        raise InputError(
            f"{name} is not in the OpenCV that is installed; pip install opencv-contrib-python-headless in its place."
        )


class BaselineTracker:
    """Follows boxes from frame to frame as `Tracker` does, each by itself. name: one of TRACKERS."""

    def __init__(self, name: str, first: ImageLike, boxes: Boxes) -> None:
        check_tracker(name)
        self.name = name
        self.reset(first, boxes)

    def reset(self, frame: ImageLike, boxes: Boxes) -> None:
        """Begin anew at a frame, with other boxes."""
        pixels = _pixels(frame)
        self._size = (pixels.shape[0], pixels.shape[1])
        given = checked_boxes(boxes, self._size)
        with _Explained(self.name, self._size):
            self._following = [TRACKERS[self.name](pixels, _shown(box, self._size)) for box in given]

    def update(self, frame: ImageLike) -> tuple[TrackedBox, ...]:
        """Where each target is in the next frame, which has the size of the first."""
        pixels = _pixels(frame)
        check_size((pixels.shape[0], pixels.shape[1]), self._size)
        with _Explained(self.name, self._size):
            return tuple(follow(pixels) for follow in self._following)


class _Explained:
    """Turns what OpenCV refuses into a sentence."""

    def __init__(self, name: str, size: tuple[int, int]) -> None:
        self._name, self._size = name, f"{size[1]}x{size[0]}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, cv2.error):
            raise InputError(
                f"{self._name} cannot follow this box in frames of {self._size} pixels; give another one."
            ) from None


def _shown(box: Box, size: tuple[int, int]) -> Box:
    """What of a box a frame of (height, width) pixels shows, or the pixel at its border: a filter needs no more."""
    height, width = size
    left, top = min(max(0.0, box[0]), width - 1), min(max(0.0, box[1]), height - 1)
    right, bottom = min(float(width), box[0] + box[2]), min(float(height), box[1] + box[3])
    return left, top, max(1.0, right - left), max(1.0, bottom - top)


def _bgr(frame: Pixels) -> Pixels:
    return np.ascontiguousarray(frame[..., ::-1])


def _pixels(frame: ImageLike) -> Pixels:
    """Any image as uint8 H x W x 3, in one piece."""
    pixels = as_frame(frame, "the frame")
    whole = pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().byte()
    return np.asarray(whole.permute(1, 2, 0).contiguous().cpu().numpy())
