"""Trackers that need no weights, to compare with: a correlation filter of our own, and OpenCV's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from protoformer.errors import InputError
from protoformer.io.image_input import ImageLike, as_frame
from protoformer.tracking.result import Box, Boxes, TrackedBox, check_boxes, check_size

Pixels = npt.NDArray[np.uint8]
Maps = npt.NDArray[np.float32]
Spectra = npt.NDArray[np.complexfloating]

CONTEXT = 1.5
"""What a window has more than the target, each way, in roots of the target's area."""
WINDOW_PIXELS = 128 * 128
"""Pixels that a window is scaled to; features are taken from cells of CELL x CELL of them."""
CELL = 4
ORIENTATIONS = 9
PEAK_WIDTH = 1 / 16
"""Of the wanted peak, in roots of the target's area."""
REGULARIZATION = 1e-3
RATE = 0.04
"""How much of the filter a new frame replaces."""
SCALES = (1.0, 0.96, 1.04)
SCALE_PENALTY = 0.97
"""What a peak at another scale than the last is worth: the size changes only where that is clearly better."""
LARGEST_CHANGE = 6.0
"""Times that the target may grow or shrink in all, though not to more than LARGEST of the frame each way."""
LARGEST = 1.2
LOST_BELOW = 0.05
"""Height of the peak, of 1, under which nothing is learned and the target counts as lost."""


@dataclass(frozen=True)
class FilterPeak:
    """box: (x, y, w, h) in pixels; peak: the height of the answer, 0 to 1."""

    box: tuple[float, float, float, float]
    peak: float


class CorrelationFilter:
    """Follows one target. frame: uint8 H x W x 3; box: (x, y, w, h) in pixels, with an area."""

    def __init__(self, frame: Pixels, box: tuple[float, float, float, float]) -> None:
        x, y, width, height = box
        self.center = np.array((x + (width - 1) / 2, y + (height - 1) / 2))
        self.size = np.array((width, height))
        self.scale = 1.0
        root = float(np.sqrt(width * height))
        self._window = self.size + CONTEXT * root
        shrink = np.sqrt(WINDOW_PIXELS / self._window.prod())
        self._cells = np.maximum(4, np.round(self._window * shrink / CELL)).astype(int)
        self._pixels_of_cell = self._window / self._cells
        columns, rows = self._cells
        self._taper = np.outer(np.hanning(rows + 2)[1:-1], np.hanning(columns + 2)[1:-1]).astype(np.float32)
        self._wanted = np.fft.rfft2(_peak(rows, columns, PEAK_WIDTH * root / self._pixels_of_cell))
        seen = self._seen(frame, self.center, 1.0)
        self._numerator, self._energy = self._wanted * seen.conj(), _energy(seen)

    def follow(self, frame: Pixels) -> FilterPeak:
        """Where the target is in the next frame."""
        best, answer, factor = -np.inf, np.zeros((1, 1)), 1.0
        for step in SCALES:
            seen = self._seen(frame, self.center, self.scale * step)
            product = (self._numerator * seen).sum(axis=0) / (self._energy + REGULARIZATION)
            found = np.fft.irfft2(product, s=tuple(self._cells[::-1]))
            worth = float(found.max()) * (1.0 if step == 1.0 else SCALE_PENALTY)
            if worth > best:
                best, answer, factor = worth, found, step
        peak = min(1.0, max(0.0, float(answer.max())))
        if peak >= LOST_BELOW:
            self._move(answer, factor, frame.shape)
            self._learn(frame)
        return FilterPeak(self.box, peak)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """(x, y, w, h) in pixels, as of the last frame."""
        width, height = self.size * self.scale
        x, y = self.center - (self.size * self.scale - 1) / 2
        return float(x), float(y), float(width), float(height)

    def _move(self, answer: npt.NDArray[np.floating], factor: float, shape: tuple[int, ...]) -> None:
        step = _summit(answer) * self._pixels_of_cell * self.scale * factor
        self.center = np.clip(self.center + step, 0, (shape[1] - 1, shape[0] - 1))
        most = max(1.0, min(LARGEST_CHANGE, float((LARGEST * np.array(shape[1::-1]) / self.size).min())))
        self.scale = float(np.clip(self.scale * factor, 1 / LARGEST_CHANGE, most))

    def _learn(self, frame: Pixels) -> None:
        seen = self._seen(frame, self.center, self.scale)
        self._numerator = (1 - RATE) * self._numerator + RATE * self._wanted * seen.conj()
        self._energy = (1 - RATE) * self._energy + RATE * _energy(seen)

    def _seen(self, frame: Pixels, center: npt.NDArray[np.floating], scale: float) -> Spectra:
        """Spectra of the features of a window, C x rows x (columns / 2 + 1)."""
        width, height = np.maximum(2, np.round(self._window * scale)).astype(int)
        window = cv2.getRectSubPix(frame, (int(width), int(height)), (float(center[0]), float(center[1])))
        columns, rows = self._cells * CELL
        shrinks = columns < width
        way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        return np.fft.rfft2(_features(cv2.resize(window, (int(columns), int(rows)), interpolation=way)) * self._taper)


def _features(window: npt.NDArray[np.generic]) -> Maps:
    """Gradients by orientation and colors, averaged over cells: C x rows x columns, each map of mean about 0."""
    rows, columns = window.shape[0] // CELL, window.shape[1] // CELL
    colors = np.asarray(window, np.float32) / 255
    gray = cv2.cvtColor(colors, cv2.COLOR_RGB2GRAY)
    right, down = (cv2.Sobel(gray, cv2.CV_32F, *way, ksize=3) for way in ((1, 0), (0, 1)))
    strength, angle = cv2.cartToPolar(right, down)
    place = (angle % np.pi) * np.float32(ORIENTATIONS / np.pi)
    lower = place.astype(np.int64)
    share = place - lower
    cell = np.arange(rows).repeat(CELL)[:, None] * columns + np.arange(columns).repeat(CELL)
    gathered = sum(
        np.bincount(
            (layer % ORIENTATIONS * rows * columns + cell).ravel(),
            (strength * weight).ravel(),
            minlength=ORIENTATIONS * rows * columns,
        )
        for layer, weight in ((lower, 1 - share), (lower + 1, share))
    )
    oriented = np.asarray(gathered, np.float32).reshape(ORIENTATIONS, rows, columns) / CELL**2
    around = cv2.blur((oriented**2).sum(axis=0), (3, 3))
    painted = cv2.resize(colors, (columns, rows), interpolation=cv2.INTER_AREA).transpose(2, 0, 1)
    cells = np.concatenate((np.minimum(oriented / np.sqrt(around + 1e-4), 0.6), painted))
    return np.asarray(cells - cells.mean(axis=(1, 2), keepdims=True), np.float32)


def _peak(rows: int, columns: int, width: npt.NDArray[np.floating]) -> Maps:
    """A peak of height 1 at the first cell, the map being periodic. width: (across, down) in cells."""
    across = np.minimum(np.arange(columns), columns - np.arange(columns)) / max(0.5, width[0])
    down = np.minimum(np.arange(rows), rows - np.arange(rows)) / max(0.5, width[1])
    return np.asarray(np.exp(-(down[:, None] ** 2 + across**2) / 2), np.float32)


def _energy(spectra: Spectra) -> npt.NDArray[np.floating]:
    return np.asarray((spectra.real**2 + spectra.imag**2).sum(axis=0))


def _summit(answer: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """(across, down) from the first cell to the highest place of a periodic map, between cells by a parabola."""
    place = np.unravel_index(int(answer.argmax()), answer.shape)
    offsets = []
    for axis in (1, 0):
        length, center = answer.shape[axis], int(place[axis])
        before, here, after = (np.take(answer, (center + n) % length, axis=axis)[place[1 - axis]] for n in (-1, 0, 1))
        bend = before - 2 * here + after
        part = 0.5 * (before - after) / bend if bend < 0 else 0.0
        offsets.append((center + length // 2) % length - length // 2 + part)
    return np.array(offsets)


OPENCV_SMALLEST = 5
"""Pixels of a side of a box that OpenCV's trackers are given: of a smaller one some look for features without end."""
TrackerFactory = Callable[[Pixels], TrackedBox]
"""Looks for one target in the next frame, uint8 H x W x 3 RGB."""


def _correlation(frame: Pixels, box: Box) -> TrackerFactory:
    learned = CorrelationFilter(frame, box)

    def follow(frame: Pixels) -> TrackedBox:
        found = learned.follow(frame)
        return TrackedBox(found.box, found.peak, found.peak < LOST_BELOW)

    return follow


def _of_opencv(kind: str, frame: Pixels, box: Box) -> TrackerFactory:
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
TRACKERS: dict[str, Callable[[Pixels, Box], TrackerFactory]] = {
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
        given = check_boxes(boxes, self._size)
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
